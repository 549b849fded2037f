"""docs/audio.md: all its commands and its Python run, on recordings of the names that it uses."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from helpers.whisper import write_folder

import regard
from regard.cli import main
from regard.synthetic import morse
from regard.training import curves

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "audio.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (regard .*)$", PAGE, re.MULTILINE)
FEW = ["train.steps=2", "train.warmup=1", "train.tokens=2000", "train.eval_every=2", "train.save_every=2"]
FEW += ["train.tensorboard=false", "device=cpu"]
SMALL = [
    "model.size=tiny",
    "model.width=16",
    "model.heads=2",
    "model.layers=1",
    "model.decoder_layers=1",
    "model.inner=16",
]


def write_data() -> None:
    """Tables of recordings with their texts, a.wav, b.flac, and the folder new."""
    import soundfile

    examples = morse.make_morse(12)["train"]
    rows = []
    Path("new").mkdir()
    for number in range(12):
        sound, text = examples[number]
        soundfile.write(f"new/{number}.wav", sound.samples, sound.rate)
        rows.append(f"new/{number}.wav\t{text}")
    for split in ("train", "valid", "test"):
        Path(f"{split}.tsv").write_text("\n".join(["path\ttext", *rows, "a.wav\tCQ DE W1AW"]) + "\n")
    recording = morse.encode_morse("CQ DE W1AW", np.random.default_rng(1))
    soundfile.write("a.wav", recording.samples, recording.rate)
    soundfile.write("b.flac", recording.samples, recording.rate)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


def test_the_commands_run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(morse, "HELD_OUT", 5)
    monkeypatch.setattr(curves, "draw", lambda folder: None)
    write_data()
    assert len(COMMANDS) == 12
    for command in COMMANDS:
        arguments = shlex.split(command)[1:]
        if arguments[0] == "train":
            embedded = [] if "data.train" in command else ["data.examples=12"]
            arguments = [*arguments[:2], *arguments[2:-2], *SMALL, *FEW, *embedded, *arguments[-2:]]
        elif arguments[0] == "predict":
            arguments.append("decode.max_tokens=5")
        assert main(arguments) == 0, (command, capsys.readouterr().err)
        out = capsys.readouterr().out
        if arguments[0] == "align-audio":
            assert [line.split("\t")[2] for line in out.splitlines()] == ["CQ", "DE", "W1AW"]
    assert Path("a.srt").is_file() and len([*Path("subtitles").iterdir()]) == 24


def test_the_python_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    write_folder(Path("whisper-small"))
    for block in blocks:
        exec(block, names)
    assert Path("attention.png").stat().st_size > 1000
    assert (Path("copy") / "generation_config.json").is_file()
    assert isinstance(names["words"], list) and isinstance(regard.load("runs/speech").predict("a.wav"), str)


def test_its_pictures_exist() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", PAGE)
    assert pictures and all((DOCS / each).is_file() for each in pictures)
