"""docs/look.md: all its commands and its Python run, on small runs of the names that it uses."""

import json
import re
import shlex
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import regard
from regard.cli import main
from regard.synthetic import digits, morse, scenes
from regard.training import curves

PAGE = (Path(__file__).parents[2] / "docs" / "look.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (regard .*)$", PAGE, re.MULTILINE)
FEW = {
    "data.examples": 12, "train.steps": 1, "train.warmup": 1, "train.eval_every": 1, "train.save_every": 1,
    "train.tensorboard": False, "device": "cpu",
}  # fmt: skip
SMALL = {"model.width": 32, "model.heads": 2, "model.inner": 32}
RUNS = {
    "dates": ("dates", {**SMALL, "model.layers": 2, "tokenizer.vocab": 270, "decode.max_tokens": 6, "train.tokens": 200}),
    "digits": ("classify-image", {**SMALL, "model.layers": 1, "train.batch": 2}),
    "scenes": ("detect", {"model.size": "tiny", "train.batch": 2}),
    "morse": ("transcribe", {**SMALL, "model.layers": 1, "model.decoder_layers": 1, "decode.max_tokens": 3, "train.tokens": 2000}),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import soundfile
    from PIL import Image

    folder = tmp_path_factory.mktemp("look")
    held_out = [mock.patch.object(module, "HELD_OUT", 4) for module in (digits, morse, scenes)]
    with held_out[0], held_out[1], held_out[2], mock.patch.object(curves, "draw", lambda folder: None):
        for name, (recipe, settings) in RUNS.items():
            regard.train(recipe, {**FEW, **settings}, out=folder / "runs" / name)
    for name in ("image.png", "scene.png"):
        Image.fromarray(np.random.default_rng(1).integers(0, 255, (40, 48, 3), np.uint8)).save(folder / name)
    recording = morse.encode_morse("CQ", np.random.default_rng(1))
    soundfile.write(folder / "a.wav", recording.samples, recording.rate)
    return folder


def test_the_commands_run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    assert len(COMMANDS) == 7
    for command in COMMANDS:
        arguments = shlex.split(command)[1:]
        assert main(arguments) == 0, (command, capsys.readouterr().err)
        out = Path(arguments[-1])
        name = {".html": "page", ".json": "numbers"}.get(out.suffix, "picture")
        assert capsys.readouterr().out == f"{name} {out}\n" and out.stat().st_size > 1000
    numbers = json.loads(Path("head.json").read_text())
    assert {each["layer"] for each in numbers["maps"]} == {2} and [*numbers["maps"][0]["heads"]] == ["1"]
    rows = np.array(numbers["maps"][0]["heads"]["1"])
    assert rows.shape == (len(numbers["maps"][0]["queries"]), len(numbers["maps"][0]["keys"]))
    assert np.allclose(rows.sum(1), 1, atol=1e-3)
    page = Path("sound.html").read_text()
    assert "http://" not in page and "https://" not in page and "<link" not in page and "data:image/png" in page


def test_the_python_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    view = names["view"]
    assert isinstance(view, regard.look.AttentionView) and "sandbox" in view._repr_html_()
    assert view.weights(2, 1).shape == (len(view.target), len(view.source)) and len(view.logprobs) == len(view.target)


def test_mistakes(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    for arguments, words in {
        ("runs/dates", "a", "--layer", "3"): "layer is 3; expected a number from 1 to 2, or all",
        ("runs/dates", "a", "--head", "3"): "head is 3; expected a number from 1 to 2, or all",
        (
            "runs/dates",
            "a",
            "--kind",
            "order",
        ): "kind is 'order', but this model has the attention encoder, decoder, cross",
        ("runs/dates", " "): "the text is empty and has no attention to show",
        ("runs/dates", "a", "--out", "a.jpg"): "has the suffix '.jpg'; expected one of .html, .png, .pdf, .svg, .json",
        ("runs/digits", "image.png", "a"): "takes no target; give the image alone",
        ("runs/digits", "no.png"): "no.png",
    }.items():
        given = arguments if "--out" in arguments else (*arguments, "--out", "x.html")
        assert main(["look", *given]) == 2
        assert words in capsys.readouterr().err and not Path("x.html").exists()
