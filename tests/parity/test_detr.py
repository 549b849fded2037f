"""DETR folders of transformers, both ways: logits and boxes of padded batches, images, labels; ResNet folders."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.parity import change_config, run_readme
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.errors import UserError
from regard.families.detr import SIZES, Config, Model
from regard.formats.huggingface import detr, resnet
from regard.formats.huggingface.files import PROCESSOR, read_weights
from regard.formats.huggingface.folder import load_folder, load_start
from regard.formats.huggingface.images import ImageFolder, write_image_settings
from regard.formats.huggingface.weight_names import load_weights
from regard.parts import Inputs
from regard.processors.image.processor import ImageProcessor

SMALL = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 7, "num_labels": 5,
}  # fmt: skip
BACKBONES: dict[str, dict[str, Any]] = {
    "bottleneck": {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 2, 1, 1]},
    "basic": {"embedding_size": 6, "hidden_sizes": [6, 12, 20], "depths": [2, 1, 1], "layer_type": "basic"},
    "first stage": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "downsample_in_first_stage": True},
}
CHANGES: dict[str, dict[str, Any]] = {
    "bottleneck": {},
    "basic": {"decoder_layers": 1, "activation_function": "gelu"},
    "first stage": {"encoder_layers": 1, "num_queries": 3},
}


def stir(model: Any) -> Any:
    """Random weights and statistics that show every error."""
    torch.manual_seed(1)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("running_var") or (tensor.dim() == 1 and name.endswith("weight")):
            tensor.data.uniform_(0.5, 1.5)
        elif "query_position" in name:
            tensor.data.normal_()
        elif tensor.dim() > 1:
            tensor.data.normal_(0, (0.8 if tensor.dim() == 4 else 1.5) / tensor[0].numel() ** 0.5)
        elif tensor.is_floating_point():
            tensor.data.normal_(0, 0.2)
    return model.eval()


def make_theirs(backbone: dict[str, Any], **settings: Any) -> Any:
    last = f"stage{len(backbone['depths'])}"
    config = hf.ResNetConfig(**backbone, out_features=[last])
    model = hf.DetrForObjectDetection(
        hf.DetrConfig(use_timm_backbone=False, backbone_config=config, **SMALL | settings)
    )
    return stir(model)


def read(path: Path) -> ImageFolder:
    return detr.FORMAT.read(path)


def batch(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Three images: one whole, one narrower, one smaller in both directions."""
    valid = torch.ones(3, height, width, dtype=torch.bool)
    valid[1, :, width * 2 // 3 :] = False
    valid[2, height // 2 :], valid[2, :, width - 9 :] = False, False
    return torch.randn(3, 3, height, width) * valid[:, None], valid


@torch.no_grad()
def same_outputs(theirs: Any, ours: Model, height: int, width: int) -> None:
    pixels, valid = batch(height, width)
    pixels = pixels.to(ours.queries.weight.dtype)
    for mask in (valid, None):
        wanted = theirs(pixels, pixel_mask=None if mask is None else mask.long())
        found = ours.detect(Inputs("pixels", pixels, mask))
        assert torch.allclose(found.logits[-1], wanted.logits, rtol=0, atol=1e-5)
        assert torch.allclose(found.boxes[-1], wanted.pred_boxes, rtol=0, atol=1e-5)
    assert wanted.logits.std(0).mean() > 1e-2 and wanted.logits.std(1).mean() > 1e-3  # images and queries differ


def test_sharp_attention_in_double_precision(tmp_path: Path) -> None:
    """Queries that differ much show errors of positions; they also enlarge rounding, so both sides are in fp64."""
    theirs = make_theirs(BACKBONES["basic"])
    theirs.model.query_position_embeddings.weight.data *= 8
    theirs.save_pretrained(tmp_path)
    ours = read(tmp_path).model.double()
    same_outputs(theirs.double(), ours, 97, 131)
    with torch.no_grad():
        found = ours.detect(Inputs("pixels", batch(97, 131)[0].double()))
    assert found.logits[-1].std(1).mean() > 0.05 and found.boxes[-1].std(1).mean() > 5e-3


@pytest.mark.parametrize("size", [(64, 64), (97, 131), (75, 50)])
@pytest.mark.parametrize("name", BACKBONES)
def test_folders_give_the_same_outputs_both_ways(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    theirs = make_theirs(BACKBONES[name], **CHANGES[name])
    theirs.save_pretrained(tmp_path / "theirs")
    folder = read(tmp_path / "theirs")
    assert len(folder.config.stages) == len(BACKBONES[name]["depths"]) and not detr.FORMAT.unsupported(folder.config)
    same_outputs(theirs, folder.model, *size)
    predictor = predictor_of(folder)
    detr.FORMAT.write(predictor, tmp_path / "ours", "fp32")
    assert "transformers" in detr.FORMAT.verify(predictor, tmp_path / "ours", "fp32")
    again = hf.DetrForObjectDetection.from_pretrained(tmp_path / "ours").eval()
    same_outputs(again, folder.model, *size)


def predictor_of(folder: ImageFolder) -> Any:
    labels = {label: number for number, label in enumerate(folder.labels)}
    return SimpleNamespace(
        run=SimpleNamespace(model=folder.config, data=None), module=folder.model, image=folder.image, labels=labels
    )


def test_the_auxiliary_outputs_are_those_of_every_layer() -> None:
    theirs = make_theirs(BACKBONES["basic"], auxiliary_loss=True)
    ours = Model(
        detr.FORMAT.from_huggingface(theirs.config.to_dict() | {"architectures": None, "auxiliary_loss": False})
    )
    tensors = {name.replace("model.backbone.model.", detr.BACKBONE): each for name, each in theirs.state_dict().items()}
    load_weights(ours, tensors, detr.names(Config()), resnet.UNUSED)
    pixels, valid = batch(64, 80)
    wanted = {"class_labels": torch.tensor([1, 2]), "boxes": torch.rand(2, 4) / 2 + 0.2}
    with torch.no_grad():
        found = theirs(pixels, pixel_mask=valid.long(), labels=[wanted] * 3)
        own = ours.detect(Inputs("pixels", pixels, valid))
    assert torch.allclose(own.logits[0], found.auxiliary_outputs[0]["logits"], atol=1e-5)
    assert torch.allclose(own.boxes[0], found.auxiliary_outputs[0]["pred_boxes"], atol=1e-5)


def test_backbones_of_timm_have_other_names(tmp_path: Path) -> None:
    """The oracle is the ResNet-18 of transformers, renamed as timm names its layers."""
    theirs = make_theirs(
        {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic"},
        id2label=dict(enumerate(("N/A", "cat", "N/A", "dog", "N/A"))),
    )
    theirs.save_pretrained(tmp_path)
    save_file({timm_name(name): each for name, each in load_file(tmp_path / "model.safetensors").items()},
              tmp_path / "model.safetensors")  # fmt: skip
    change_config(tmp_path, backbone_config=None, use_timm_backbone=True, backbone="resnet18")
    folder = read(tmp_path)
    assert "model.backbone.conv_encoder.model.layer2.0.downsample.1.weight" in read_weights(tmp_path)
    assert folder.labels == ("N/A", "cat", "N/A 2", "dog", "N/A 4")
    same_outputs(theirs, folder.model, 70, 64)
    kept = {"model_type": "timm_backbone", "backbone": "resnet18.a1_in1k", "out_indices": [1, 2, 3, 4]}
    assert (
        detr.FORMAT.from_huggingface(json.loads((tmp_path / "config.json").read_text()) | {"backbone_config": kept})
        == folder.config
    )


def timm_name(name: str) -> str:
    name = re.sub(r"embedder\.embedder\.convolution", "conv1", name)
    name = re.sub(r"embedder\.embedder\.normalization", "bn1", name)
    stage = r"encoder\.stages\.(\d)\.layers\.(\d)\."
    for pattern, new in (
        (stage + r"layer\.(\d)\.convolution", lambda m: f"layer{int(m[1]) + 1}.{m[2]}.conv{int(m[3]) + 1}"),
        (stage + r"layer\.(\d)\.normalization", lambda m: f"layer{int(m[1]) + 1}.{m[2]}.bn{int(m[3]) + 1}"),
        (stage + r"shortcut\.convolution", lambda m: f"layer{int(m[1]) + 1}.{m[2]}.downsample.0"),
        (stage + r"shortcut\.normalization", lambda m: f"layer{int(m[1]) + 1}.{m[2]}.downsample.1"),
    ):
        name = re.sub(pattern, new, name)
    return name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["DetrForSegmentation"]}, "'DetrForSegmentation'; expected DetrForObjectDetection"),
        ({"encoder_ffn_dim": 7}, "encoder_ffn_dim is 7 and decoder_ffn_dim 2048"),
        ({"position_embedding_type": "learned"}, "regard's DETR has sinusoids"),
        ({"dilation": True}, "regard's ResNet has strides only"),
        ({"backbone": "swin_tiny"}, "backbone is 'swin_tiny'; expected resnet18"),
        ({"backbone_config": {"model_type": "swin"}}, "backbone_config is of type 'swin'"),
        ({"backbone_config": {"model_type": "resnet", "hidden_act": "gelu"}}, "regard's ResNet has relu"),
        ({"backbone_config": {"model_type": "resnet", "layer_type": "wide"}}, "expected basic or bottleneck"),
        ({"backbone_config": {"model_type": "resnet", "out_features": ["stage2"]}}, "of the last stage, stage4"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "detr", **changes}))
    with pytest.raises(UserError, match=words):
        load_folder(tmp_path, {})


def test_what_a_folder_cannot_hold() -> None:
    frozen = {"backbone_norm": {"kind": "frozen"}}
    assert detr.FORMAT.unsupported(Config(**frozen)) == []
    refused = detr.FORMAT.unsupported(Config.model_validate(SIZES["tiny"] | {"strides": (1, 1), "anchors": "learned"}))
    assert refused == [
        "model.backbone_norm.kind=group (expected frozen: group norm does not exist there)",
        "model.strides=(1, 1) (expected 1 or 2, then 2)",
        "model.anchors=learned (expected none: queries are vectors there)",
    ]


@pytest.mark.parametrize("size", [size for size in SIZES if size.startswith("R")])
def test_every_size_survives_export_and_import(size: str) -> None:
    changes = {"backbone_norm": {"kind": "frozen"}, "labels": 3, "size": "huggingface", "decoder_layers": 4}
    c = Config.model_validate(SIZES[size] | changes | {"attention": {"dropout": 0.2}, "feed": {"act": "silu"}})
    named = {"id2label": {"0": "a", "1": "b", "2": "c"}}
    assert detr.FORMAT.from_huggingface(detr.CONFIG.write(c) | named) == c
    theirs = hf.DetrConfig(**detr.CONFIG.write(c)).backbone_config
    assert (theirs.hidden_sizes, theirs.depths) == (list(c.stages), list(c.depths))


@pytest.mark.parametrize("size", [size for size in SIZES if size.startswith("R")])
def test_sizes_have_the_parameters_of_theirs(size: str) -> None:
    c = Config.model_validate(SIZES[size] | {"labels": 91, "backbone_norm": {"kind": "frozen"}})
    with torch.device("meta"):
        ours, theirs = Model(c), hf.DetrForObjectDetection(hf.DetrConfig(**detr.CONFIG.write(c), num_labels=91))
    assert sum(each.numel() for each in ours.parameters()) == sum(each.numel() for each in theirs.parameters())


# --- images ----------------------------------------------------------------------------------------------------------


def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)) for size in ((50, 70), (90, 40), (64, 64))]


@pytest.mark.parametrize(
    "theirs",
    [
        hf.DetrImageProcessorPil(size={"shortest_edge": 48, "longest_edge": 90}),
        hf.DetrImageProcessorPil(size={"height": 40, "width": 56}, image_mean=[0.1, 0.2, 0.3], resample=3),
        hf.DetrImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 60}, do_normalize=False),
    ],
    ids=["aspect", "fixed", "plain"],
)
def test_images_are_read_and_written_as_theirs(theirs: Any, tmp_path: Path) -> None:
    model = make_theirs(BACKBONES["basic"])
    model.save_pretrained(tmp_path / "a")
    theirs.save_pretrained(tmp_path / "a")
    folder = read(tmp_path / "a")
    wanted, found = theirs(pictures(), return_tensors="pt"), folder.image.collate(
        [folder.image.encode(each) for each in pictures()]
    )  # fmt: skip
    assert torch.equal(found.values, wanted["pixel_values"])
    assert (
        wanted["pixel_mask"]
        .bool()
        .equal(torch.ones_like(wanted["pixel_mask"]).bool() if found.valid is None else found.valid)
    )
    detr.FORMAT.write(predictor_of(folder), tmp_path / "b", "fp32")
    again = hf.AutoImageProcessor.from_pretrained(tmp_path / "b", backend="pil")
    assert torch.equal(again(pictures(), return_tensors="pt")["pixel_values"], wanted["pixel_values"])
    assert read(tmp_path / "b").image == folder.image


def test_a_folder_without_settings_of_images(tmp_path: Path) -> None:
    make_theirs(BACKBONES["basic"]).save_pretrained(tmp_path)
    folder = read(tmp_path)
    assert folder.image == detr.default_image(folder.config) and folder.image.resize == 800
    (tmp_path / PROCESSOR).write_text(json.dumps({"size": 600, "max_size": 1000}))  # as first published
    assert (read(tmp_path).image.resize, read(tmp_path).image.max_size) == (600, 1000)
    limited = write_image_settings(ImageProcessor(resize=40, crop=0, patch=1), detector=True)
    assert limited["size"] == {"shortest_edge": 40, "longest_edge": 4000}  # there is always a limit there


# --- ResNet ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ResNetModel", "ResNetForImageClassification", "ResNetBackbone"])
def test_resnet_folders_start_a_backbone(kind: str, tmp_path: Path) -> None:
    config = hf.ResNetConfig(**BACKBONES["bottleneck"])
    theirs = stir(getattr(hf, kind)(config))
    theirs.save_pretrained(tmp_path)
    ours = load_start(tmp_path).model["backbone"].eval()
    pixels = torch.randn(2, 3, 70, 90)
    with torch.no_grad():
        found = theirs(pixels, output_hidden_states=True).hidden_states[-1]
        assert (ours(pixels)[0] - found).abs().max() < 1e-5 * found.abs().max()
    with pytest.raises(UserError, match="holds a ResNet.*regard train detect start="):
        load_folder(tmp_path, {})


# --- runs ------------------------------------------------------------------------------------------------------------

TRAINED = {
    "train.steps": 2, "train.warmup": 1, "train.batch": 4, "data.examples": 8, "train.eval_every": 9,
    "train.tensorboard": False, "device": "cpu",
}  # fmt: skip


def test_predictions_are_those_of_transformers(tmp_path: Path) -> None:
    theirs = make_theirs(BACKBONES["basic"], id2label=dict(enumerate("abcde")))
    theirs.save_pretrained(tmp_path)
    processor = hf.DetrImageProcessorPil(size={"shortest_edge": 48, "longest_edge": 90})
    processor.save_pretrained(tmp_path)
    ours = regard.load(tmp_path)
    for image, found in zip(pictures(), ours.predict(pictures(), threshold=0.3), strict=True):
        with torch.no_grad():
            outputs = theirs(**processor(image, return_tensors="pt"))
        (wanted,) = processor.post_process_object_detection(outputs, 0.3, [image.size[::-1]])
        order = wanted["scores"].argsort(descending=True)
        assert [each.label for each in found.objects] == ["abcde"[number] for number in wanted["labels"][order]]
        assert [each.score for each in found.objects] == pytest.approx(wanted["scores"][order].tolist(), abs=1e-5)
        limits = torch.tensor([*image.size, *image.size])
        boxes = torch.tensor([each.box for each in found.objects]).reshape(-1, 4)
        assert torch.allclose(boxes, wanted["boxes"][order].clamp(min=0).minimum(limits), atol=1e-3)
    assert found.objects


def test_a_run_starts_from_a_folder_and_becomes_one(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    make_theirs(BACKBONES["basic"]).save_pretrained(tmp_path / "theirs")
    hf.DetrImageProcessorPil(size={"shortest_edge": 48, "longest_edge": 90}).save_pretrained(tmp_path / "theirs")
    run = regard.train("detect", TRAINED, start=str(tmp_path / "theirs"), out=tmp_path / "run")
    assert run.run.model.backbone_norm.kind == "frozen" and run.image.max_size == 90
    log = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "images: read as by the start, the shorter side with 48 pixels and the longer with at most 90" in log
    report = regard.convert(tmp_path / "run", out=tmp_path / "hf", to="huggingface")
    assert any("regard and transformers" in value for value in report.values())
    theirs = hf.DetrForObjectDetection.from_pretrained(tmp_path / "hf").eval()
    same_outputs(theirs, run.model.cpu(), 75, 50)
    assert list(theirs.config.id2label.values()) == list(run.labels)
    assert run_readme(tmp_path / "hf", pictures()[0], monkeypatch, capsys).count("\n") == len(
        run.predict(pictures()[0], threshold=0.5).objects
    )
    again = regard.load(tmp_path / "hf")
    assert [each.label for each in again.predict(pictures()[0], threshold=0.0).objects] == [
        each.label for each in run.predict(pictures()[0], threshold=0.0).objects
    ]


def test_a_run_starts_from_a_resnet(tmp_path: Path) -> None:
    theirs = stir(hf.ResNetForImageClassification(hf.ResNetConfig(**BACKBONES["basic"], num_labels=3)))
    theirs.save_pretrained(tmp_path / "resnet")
    settings = TRAINED | {"start": str(tmp_path / "resnet"), "train.lr": 1e-12, "model.width": 64}
    run = regard.train("detect", settings, out=tmp_path / "run")
    model = run.run.model
    assert (model.stages, model.bottleneck, model.backbone_norm.kind, model.width) == ((6, 12, 20), False, "frozen", 64)
    first = theirs.resnet.embedder.embedder
    stem = run.model.cpu().backbone.stem
    assert torch.allclose(stem.convolution.weight, first.convolution.weight, atol=1e-6)
    assert torch.equal(stem.norm.running_mean, first.normalization.running_mean)
    notes = json.loads((tmp_path / "run" / "run.json").read_text())["start"]["notes"]
    assert "new tensors: project.weight" in notes[0] and len(notes) == 1


def test_settings_of_the_backbone_are_checked() -> None:
    for settings, words in (
        ({"backbone_norm": {"kind": "group", "groups": 0}}, "model.backbone_norm.groups is 0; expected at least 1"),
        ({"strides": (1, 2)}, "model.stages, model.depths and model.strides have 4, 4 and 2 numbers"),
        ({"width": 18, "heads": 2}, "positions of a grid need a width that 4 divides, not 18"),
    ):
        with pytest.raises(ValueError, match=words):
            Config.model_validate(settings)


def test_frozen_norms_need_trained_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model.backbone_norm.kind is frozen, and new weights have no statistics"):
        regard.train("detect", TRAINED | {"model.backbone_norm.kind": "frozen"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
