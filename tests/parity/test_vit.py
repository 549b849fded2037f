"""ViT folders of transformers, both ways: states, logits, sizes, images."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.parity import run_readme
from helpers.runs import copy_run, tiny_run
from PIL import Image

import regard
from regard.errors import UserError
from regard.families.clip import Config as CLIPConfig
from regard.families.towers import ImageTowerConfig
from regard.families.vit import Config as ViTConfig
from regard.formats.huggingface import clip, vit
from regard.formats.huggingface.files import PROCESSOR, parse_config
from regard.formats.huggingface.images import CLASSES, VIT, read_image, read_image_settings, write_image_settings
from regard.parts import Inputs
from regard.processors.image.processor import ImageProcessor

SMALL = {
    "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 50, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
TRAINED = {
    "model.width": 36, "model.heads": 3, "model.layers": 2, "model.inner": 50, "model.image": 32, "model.patch": 8,
    "model.pool": "first", "train.steps": 2, "train.warmup": 1, "train.batch": 8, "data.examples": 20, "train.metric": "loss",
    "train.eval_every": 9,
}  # fmt: skip


def write_folder(path: Path, kind: str, **settings: Any) -> Any:
    torch.manual_seed(1)
    model = getattr(hf, kind)(hf.ViTConfig(**SMALL | settings)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    model.save_pretrained(path)
    return model


def image(width: int = 40, height: int = 50) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("size", [(32, 32), (48, 32), (64, 72)])
@pytest.mark.parametrize("kind", ["ViTModel", "ViTForImageClassification"])
def test_folders_give_the_same_outputs(kind: str, size: tuple[int, int], tmp_path: Path) -> None:
    theirs, ours = write_folder(tmp_path, kind, num_labels=5), regard.load(tmp_path)
    pixels = torch.randn(3, 3, *size)
    with torch.no_grad():
        found, encoded = theirs(pixels, interpolate_pos_encoding=True), ours.model.encode(Inputs("pixels", pixels))
        if kind == "ViTModel":
            assert torch.allclose(found.last_hidden_state, encoded.states, atol=1e-5)
            assert torch.allclose(found.pooler_output, ours.model.pool(encoded), atol=1e-5)
        else:
            assert torch.allclose(found.logits, ours.model.label_logits(encoded), atol=1e-5)


@pytest.mark.parametrize(
    "theirs",
    [
        hf.ViTImageProcessorPil(size={"height": 32, "width": 32}),
        hf.CLIPImageProcessorPil(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}),
        hf.ViTImageProcessorPil(size={"height": 32, "width": 32}, do_normalize=False, resample=3),
    ],
    ids=["vit", "clip", "plain"],
)
def test_images_are_read_as_theirs(theirs: Any, tmp_path: Path) -> None:
    model = write_folder(tmp_path, "ViTForImageClassification", num_labels=3, id2label={0: "a", 1: "b", 2: "c"})
    theirs.save_pretrained(tmp_path)
    ours = regard.load(tmp_path)
    wanted = theirs(image(), return_tensors="pt")["pixel_values"]
    assert torch.allclose(torch.from_numpy(ours.image.encode(image()))[None], wanted, atol=1e-5)
    with torch.no_grad():
        chances = model(wanted).logits[0].softmax(-1)
    found = ours.predict([image()], top=3)[0]
    probabilities = {each.label: each.probability for each in found.top}
    assert probabilities == pytest.approx(dict(zip("abc", chances.tolist(), strict=True)), abs=1e-5)


def test_a_run_becomes_a_folder(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    run = regard.load(copy_run(tiny_run("classify-image", **TRAINED), tmp_path / "run"))
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.normal_(0, 0.2)
    from regard.training.checkpoint import save_model

    save_model(run.model, tmp_path / "run" / "model.safetensors", 2)
    report = regard.convert(tmp_path / "run", out=tmp_path / "hf", to="huggingface")
    assert any("regard and transformers" in value for value in report.values())
    theirs = hf.ViTForImageClassification.from_pretrained(tmp_path / "hf").eval()
    processor = hf.AutoImageProcessor.from_pretrained(tmp_path / "hf", use_fast=False)
    with torch.no_grad():
        logits = theirs(processor(image(), return_tensors="pt")["pixel_values"]).logits[0]
    again = regard.load(tmp_path / "hf")
    label = regard.load(tmp_path / "run").predict([image()])[0].label
    assert run_readme(tmp_path / "hf", image(), monkeypatch, capsys) == f"{label}\n"
    assert theirs.config.id2label[int(logits.argmax())] == label == again.predict([image()])[0].label


def test_what_a_folder_cannot_hold_is_refused(tmp_path: Path) -> None:
    run = tiny_run("classify-image", **TRAINED | {"model.pool": "mean"})
    with pytest.raises(UserError, match="model.pool=mean .expected first"):
        regard.convert(run, out=tmp_path / "hf", to="huggingface")
    assert any("model.stem" in each for each in vit.CONFIG.unsupported(ViTConfig(stem=(8,))))
    tower = CLIPConfig(source=ImageTowerConfig(stem=(8,)))
    assert any("model.source.stem" in each for each in clip.FORMAT.unsupported(tower))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rescale_factor": 0}, "rescale_factor is 0; expected a number above 0"),
        ({"image_mean": [0.1, 0.2]}, r"image_mean has 2 numbers; expected 3, as many as the model has channels"),
        ({"do_center_crop": True, "crop_size": {"height": 3, "width": 4}}, "regard crops squares"),
        ({"resample": 9}, "resample is 9"),
        ({"size": {"max_height": 9, "max_width": 9}}, "expected shortest_edge, or height and width"),
        (
            {"image_processor_type": "SwinImageProcessor"},
            "image_processor_type is 'SwinImageProcessor'; regard reads ViT",
        ),
    ],
)
def test_processors_that_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"preprocessor_config.json: .*{words}"):
        parse_config(tmp_path, {"size": 32, **settings}, lambda theirs: read_image_settings(theirs, DEFAULT), PROCESSOR)


DEFAULT = ImageProcessor(resize=(32, 32), crop=0, patch=8)


@pytest.mark.parametrize("name", CLASSES)
def test_absent_keys_have_the_meaning_of_their_class(name: str) -> None:
    defaults = {key: value for key, value in getattr(hf, name)().to_dict().items() if value is not None}
    named = {"image_processor_type": name}
    assert read_image_settings(named, DEFAULT) == read_image_settings(defaults | named, DEFAULT)
    legacy = {"feature_extractor_type": name.replace("ImageProcessor", "FeatureExtractor")}
    assert read_image_settings(legacy, DEFAULT) == read_image_settings({"do_resize": True}, DEFAULT, name)


def test_the_settings_of_a_whole_processor_are_read(tmp_path: Path) -> None:
    """Where both files have them, processor_config.json wins as in transformers."""
    hf.CLIPImageProcessor(size={"shortest_edge": 24}).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    for size in (24, 20):
        expected = hf.CLIPImageProcessor.from_pretrained(tmp_path).size["shortest_edge"]
        assert read_image(tmp_path, DEFAULT, VIT).resize == expected == size
        whole = {"image_processor": settings | {"size": {"shortest_edge": 20}}, "processor_class": "CLIPProcessor"}
        (tmp_path / "processor_config.json").write_text(json.dumps(whole))


def test_processors_go_both_ways() -> None:
    square, shorter = (
        {"size": 32, "image_processor_type": kind} for kind in ("ViTImageProcessor", "CLIPImageProcessor")
    )
    assert (read_image_settings(square, DEFAULT).resize, read_image_settings(shorter, DEFAULT).resize) == ((32, 32), 32)
    gray, own_size = {"mean": (0.1,), "std": (0.7,)}, {"resize": 0, "crop": 0}
    for settings in ({"resize": 36, "crop": 32}, {"resize": (32, 40), "crop": 0}, gray, own_size, {"pad": (40, 50)}):
        image = ImageProcessor(patch=8, **settings)
        again = read_image_settings(write_image_settings(image, detector="pad" in settings), replace(image, pad=(0, 0)))
        assert again == replace(image, max_size=again.max_size, crop=again.crop if "pad" in settings else image.crop)
