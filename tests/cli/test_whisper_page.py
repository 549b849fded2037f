"""docs/whisper.md: all its commands and its Python run, on a small folder and recordings of the names that it uses."""

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.whisper import write_multilingual

import regard
from regard.cli import files as recording_files
from regard.cli import main
from regard.synthetic import morse
from regard.training import curves

PAGE = (Path(__file__).parents[2] / "docs" / "whisper.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (regard .*)$", PAGE, re.MULTILINE)
SECONDS = 3
FEW = ["train.steps=2", "train.warmup=1", "train.tokens=600", "train.eval_every=2", "train.save_every=2"]
FEW += ["train.tensorboard=false", "device=cpu", "decode.max_tokens=5"]
SMALL = ["model.width=16", "model.heads=2", "model.layers=1", "model.inner=16", "data.examples=12", "train.tokens=1600"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whisper-small, recordings, and tables of them, one with the marks of the page."""
    path: Path = tmp_path_factory.mktemp("page")
    write_multilingual(path / "whisper-small", SECONDS, tokens=64, alignment_heads=[[1, 0], [1, 3]])
    rng = np.random.default_rng(1)
    (path / "recordings").mkdir()
    for name, text in (("talk.mp3", "CQ DE W1AW"), ("short.wav", "E"), ("talk-1.wav", "ET"), ("talk-2.wav", "TE")):
        sound = morse.encode_morse(text, rng)
        soundfile.write(path / name, sound.samples, sound.rate)
        soundfile.write(path / "recordings" / f"{text}.wav", sound.samples, sound.rate)
    for split in ("train", "valid", "test"):
        (path / f"{split}.tsv").write_text("talk-1.wav\tET\ntalk-2.wav\tTE\nshort.wav\tE\n")
    (block,) = re.findall(r"```\n(talk-1.*?)```", PAGE, re.DOTALL)
    (path / "marked.tsv").write_text(block + "short.wav\tE\n" * 8)
    return path


@pytest.fixture
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setattr(morse, "HELD_OUT", 4)
    monkeypatch.setattr(curves, "draw", lambda folder: None)
    return place


def test_the_commands_run(inside: Path, capsys: Capture) -> None:
    assert len(COMMANDS) == 24
    for command in COMMANDS:
        arguments = shlex.split(command)[1:]
        if arguments[0] == "train":
            small = SMALL if "whisper-morse" in arguments[1] else []
            arguments = [*arguments[:-2], *FEW, *small, *arguments[-2:]]
        elif arguments[0] in ("predict", "eval"):
            arguments += ["decode.max_tokens=5", "device=cpu"]
        assert main(arguments) == 0, (command, capsys.readouterr().err)
        out = capsys.readouterr().out
        if arguments[0] == "align-audio":
            assert [line.split("\t")[2] for line in out.splitlines()] == ["the", "words", "that", "are", "spoken"]
    assert Path("talk.srt").is_file() and Path("german.vtt").is_file() and len([*Path("subtitles").iterdir()]) == 8
    assert regard.load("runs/times").run.decode.timestamps and not regard.load("runs/german").run.decode.timestamps
    for name in ("german-whisper", "lora-whisper", "whisper-morse"):
        assert (Path(name) / "preprocessor_config.json").is_file()


def test_the_python_runs(inside: Path) -> None:
    names: dict[str, Any] = {}
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, names)
    result = names["result"]
    assert (
        result["language"] == "de" and result["segments"] and {"temperature", "no_speech"} <= {*result["segments"][0]}
    )


def test_the_table_has_the_settings_of_decoding() -> None:
    """With their defaults."""
    run = regard.resolve("whisper").run
    rows = dict(re.findall(r"^\| `decode\.(\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE))
    known: dict[str, Any] = {
        "true": True,
        "none": "",
        "0, 0.2, … 1": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        "that of the folder": "greedy",
    }
    for name, default in rows.items():
        assert getattr(run.decode, name) == (known[default] if default in known else float(default)), name
    assert {"sequential", "condition_on_previous", "temperatures", "no_speech_threshold", "batch"} <= {*rows}


@pytest.mark.parametrize("sequential", ["true", "false"])
def test_a_terminal_shows_the_position(
    sequential: str, inside: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(recording_files, "PAUSE", 0.0)
    given = [f"decode.sequential={sequential}", "decode.temperatures=[0]", "decode.max_tokens=5", "decode.batch=1"]
    assert main(["predict", "whisper-small", "talk.mp3", *given]) == 0
    shown = [each for each in capsys.readouterr().err.split(recording_files.CLEAR) if each]
    assert shown and all(re.fullmatch(r"talk\.mp3  0:00:0\d of 0:00:0\d", each) for each in shown)
    assert shown == sorted(shown)
    shutil.copy("talk-1.wav", "one.wav")  # of one window
    assert main(["predict", "whisper-small", "one.wav", *given]) == 0 and capsys.readouterr().err == ""
