"""CLIP folders of transformers, both ways: embeddings, scores, tokens, images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.clips import TEXTS, write_folder
from helpers.parity import run_readme
from helpers.runs import tiny_run
from PIL import Image

import regard
from regard.errors import UserError
from regard.files import read_json, write_json
from regard.parts import Inputs
from regard.processors.text.external import FolderTokenizer


def image(width: int = 40, height: int = 50, seed: int = 1) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize("legacy", [False, True], ids=["end", "highest id"])
def test_folders_give_the_same_embeddings_and_scores(legacy: bool, tmp_path: Path) -> None:
    theirs, ours = write_folder(tmp_path, legacy), regard.load(tmp_path)
    images = [image(), image(60, 33, 2)]
    tokens = hf.AutoTokenizer.from_pretrained(tmp_path)(TEXTS, return_tensors="pt", padding=True)
    pixels = hf.CLIPImageProcessorPil.from_pretrained(tmp_path)(images, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        found = theirs(pixel_values=pixels, **tokens)
    assert torch.allclose(ours.embed(images), found.image_embeds, atol=1e-5)
    assert torch.allclose(ours.embed(TEXTS), found.text_embeds, atol=1e-5)
    with torch.no_grad():
        text = Inputs("tokens", tokens["input_ids"], tokens["attention_mask"].bool())
        assert torch.allclose(ours.model(Inputs("pixels", pixels), text), found.logits_per_image, atol=1e-4)
    chances = found.logits_per_image.softmax(-1)
    answers = ours.predict(images, labels=TEXTS[:3] + ["A Red DOG"], top=4)
    for row, answer in zip(chances, answers, strict=True):
        assert sorted(each for _, each in answer) == pytest.approx(sorted(row.tolist()), abs=1e-4)


def test_a_folder_starts_a_run_that_becomes_a_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "clip")
    settings = {
        "start": str(tmp_path / "clip"),
        "train.steps": 1,
        "train.warmup": 1,
        "train.batch": 4,
        "data.examples": 8,
    }
    run = regard.train("contrastive", settings | {"train.metric": "loss", "train.eval_every": 9}, out=tmp_path / "run")
    assert isinstance(run.tokenizer, FolderTokenizer) and run.run.model.text.positions.tokens == 16
    regard.convert(tmp_path / "run", out=tmp_path / "hf", to="huggingface")
    again = regard.load(tmp_path / "hf")
    items = [image(), "a red cat"]
    assert torch.allclose(again.embed(items), regard.load(tmp_path / "run").embed(items), atol=1e-5)


def test_a_run_becomes_a_folder(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    small = {f"model.{tower}.{name}": value for tower in ("source", "text")
             for name, value in {"width": 16, "heads": 2, "layers": 1, "inner": 24}.items()}  # fmt: skip
    settings = small | {"model.width": 12, "model.source.image": 32, "model.source.pool": "first", "train.steps": 1}
    settings |= {"train.warmup": 1, "train.batch": 4, "data.examples": 8, "train.metric": "loss", "train.eval_every": 9}
    folder = tiny_run("contrastive", **settings)
    run, report = regard.load(folder), regard.convert(folder, out=tmp_path / "hf", to="huggingface")
    assert "transformers" in report["checked"] and "tokens equal" in report["checked"]
    again = regard.load(tmp_path / "hf")
    items = [image(), "a red circle", "a blue cross left of a red square"]
    assert torch.allclose(again.embed(items), run.embed(items), atol=1e-5)
    assert read_json(tmp_path / "hf" / "config.json")["text_config"]["eos_token_id"] == 3  # 2 marks older folders
    assert run_readme(tmp_path / "hf", image(), monkeypatch, capsys).strip() in ("a dog", "a cat")


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", tokenizer=False)
    with pytest.raises(UserError, match=r"has no tokenizer.json; write it with transformers"):
        regard.load(tmp_path / "a")
    write_folder(tmp_path / "b")
    config = read_json(tmp_path / "b" / "config.json")
    config["text_config"]["eos_token_id"] = 5
    write_json(tmp_path / "b" / "config.json", config)
    with pytest.raises(UserError, match="the model takes the state of id 5 .* use the tokenizer of this model"):
        regard.load(tmp_path / "b")
