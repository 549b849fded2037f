"""CLIP folders of transformers, both ways: embeddings, scores, tokens, images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.parity import run_readme
from helpers.runs import tiny_run
from PIL import Image

import regard
from regard.errors import UserError
from regard.files import read_json, write_json
from regard.parts import Inputs
from regard.processors.text.external import FolderTokenizer

WORDS = ["a</w>", "red</w>", "cat</w>", "dog</w>", "of</w>"]
TOWER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
TEXTS = ["a red cat", "dog", "a cat of a dog of a cat", "A  Red\tDOG"]


def write_folder(path: Path, legacy: bool = False, tokenizer: bool = True) -> Any:
    """A small CLIP folder with its tokenizer and image processor."""
    letters = sorted({letter for word in WORDS for letter in word.removesuffix("</w>")})
    vocab = [*letters, *(f"{letter}</w>" for letter in letters), "re", "ca", "do", *WORDS]
    vocab = list(dict.fromkeys(vocab)) + ["<|startoftext|>", "<|endoftext|>"]
    merges = ["r e", "re d</w>", "c a", "ca t</w>", "d o", "do g</w>", "o f</w>"]
    ids = {name: number for number, name in enumerate(vocab)}
    end = 2 if legacy else ids["<|endoftext|>"]
    text = TOWER | {"vocab_size": len(vocab), "max_position_embeddings": 16, "eos_token_id": end}
    text |= {"bos_token_id": ids["<|startoftext|>"], "pad_token_id": ids["<|endoftext|>"]}
    vision = TOWER | {"image_size": 32, "patch_size": 8, "hidden_size": 32, "hidden_act": "gelu"}
    torch.manual_seed(1)
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=20)
    model = hf.CLIPModel(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if name == "logit_scale" else 0.0, 0.3)
    model.save_pretrained(path)
    if tokenizer:
        hf.CLIPTokenizer(vocab=ids, merges=[tuple(each.split()) for each in merges]).save_pretrained(path)
    size = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}
    hf.CLIPImageProcessorPil(**size).save_pretrained(path)
    return model


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
