"""VisionEncoderDecoderModel folders (ViT and GPT-2), both ways: logits, images, captions by greedy and beam search."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.captioner import write_folder
from helpers.parity import change_config, run_readme
from helpers.runs import tiny_run
from PIL import Image

import regard
from regard.errors import UserError
from regard.parts import Inputs
from regard.synthetic import captions as scenes

TRAINED = {
    "model.size": "tiny", "model.width": 32, "model.layers": 1, "train.steps": 2, "train.warmup": 1, "train.batch": 8,
    "data.examples": 20, "train.metric": "exact", "train.eval_every": 2, "tokenizer.kind": "bpe", "tokenizer.vocab": 280,
    "model.encoder.pool": "first", "model.encoder.positions": "learned", "model.encoder.stem": [],
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "HELD_OUT", 6)


def images(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 256, (40, 40 + 9 * i, 3), np.uint8)) for i in range(count)]


def captions(model: Any, path: Path, items: list[Image.Image], **settings: Any) -> list[str]:
    """What transformers writes. At the limit, regard leaves out bytes that only begin a character."""
    processor, tokenizer = hf.ViTImageProcessorPil.from_pretrained(path), hf.AutoTokenizer.from_pretrained(path)
    pixels = processor(items, return_tensors="pt")["pixel_values"]
    return trimmed(tokenizer.batch_decode(model.generate(pixels, **settings), skip_special_tokens=True))


def trimmed(texts: list[str]) -> list[str]:
    return [text.rstrip("�") for text in texts]


@pytest.mark.parametrize("width", [36, 48], ids=["equal widths", "projected"])
def test_folders_give_the_same_logits_and_captions(width: int, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path, width, max_length=14)
    ours = regard.load(tmp_path)
    pixels, tokens = torch.randn(3, 3, 32, 32), torch.randint(300, (3, 9))
    with torch.no_grad():
        wanted = theirs(pixel_values=pixels, decoder_input_ids=tokens).logits
        found = ours.model(Inputs("pixels", pixels), Inputs("tokens", tokens))
    assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()
    items = images(5)
    assert ours.run.decode.strategy.kind == "greedy" and ours.run.decode.max_tokens == 13
    greedy = trimmed(ours.predict(items))
    assert greedy == captions(theirs, tmp_path, items) and len(set(greedy)) > 1
    beam = trimmed(ours.predict(items, kind="beam", beam=3, early_stopping="heuristic", length_penalty=1.0))
    assert beam == captions(theirs, tmp_path, items, num_beams=3) and beam != greedy


def test_generation_settings_of_the_folder_hold(tmp_path: Path) -> None:
    settings = {"num_beams": 2, "no_repeat_ngram_size": 2, "min_length": 4, "max_new_tokens": 9}
    theirs = write_folder(tmp_path, **settings)
    items = images(4)
    assert trimmed(regard.load(tmp_path).predict(items)) == captions(theirs, tmp_path, items)
    plain = tmp_path / "plain"
    theirs = write_folder(plain)
    assert regard.load(plain).run.decode.max_tokens == 20  # as in transformers
    assert trimmed(regard.load(plain).predict(items)) == captions(theirs, plain, items)


def test_a_folder_starts_a_run_and_is_written_back(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """The weights, the tokenizer and the image processor come from the folder; transformers reads the export."""
    write_folder(tmp_path / "folder", 48, max_length=10)
    run = tmp_path / "run"
    settings = {"start": str(tmp_path / "folder"), "train.steps": 1, "train.warmup": 1, "train.metric": "loss"}
    settings |= {"data.examples": 8, "train.batch": 4, "data.size": 32, "train.eval_every": 9, "decode.max_tokens": 9}
    regard.train("caption", settings, out=run)
    report = regard.convert(run, to="huggingface", out=tmp_path / "out")
    assert "regard and transformers" in report["checked"]
    item = images(1)[0]
    ours, again = regard.load(run), regard.load(tmp_path / "out")
    assert ours.target.pad == ours.target.end == ours.target.start and ours.predict(item) == again.predict(item)
    printed = run_readme(tmp_path / "out", item, monkeypatch, capsys).strip("\n")
    assert trimmed([printed]) == trimmed([ours.predict(item)])


def test_a_trained_run_becomes_a_folder(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    out, patches = tmp_path / "out", {"regard.synthetic.scenes.HELD_OUT": 6}
    run = tiny_run("caption", patches=patches, **TRAINED, **{"decode.max_tokens": 7})
    ours = regard.load(run)
    regard.convert(run, to="huggingface", out=out)
    item = images(1)[0]
    assert regard.load(out).predict([item], nbest=2, kind="beam") == ours.predict([item], nbest=2, kind="beam")
    printed = run_readme(out, item, monkeypatch, capsys).strip("\n")
    assert trimmed([printed]) == trimmed([ours.predict(item)])
    assert "bleu" in (out / "README.md").read_text()
    other = {"model.encoder.pool": "mean", "model.positions.kind": "sinusoid"}
    expected = r"model.encoder.pool=mean \(expected first.*model.positions.kind=sinusoid"
    with pytest.raises(UserError, match=expected):
        regard.convert(tiny_run("caption", patches=patches, **TRAINED | other), to="huggingface", out=tmp_path / "no")


def test_other_folders_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for side, kind, wanted in (("encoder", "swin", "vit"), ("decoder", "bert", "gpt2")):
        change_config(tmp_path, **{side: config[side] | {"model_type": kind}})
        with pytest.raises(UserError, match=f"{side}.model_type is '{kind}'; regard reads this type with '{wanted}'"):
            regard.load(tmp_path)
        change_config(tmp_path, **config)
    change_config(tmp_path, decoder=config["decoder"] | {"cross_attention_hidden_size": 8})
    with pytest.raises(UserError, match="cross_attention_hidden_size is 8; regard reads folders without it"):
        regard.load(tmp_path)
