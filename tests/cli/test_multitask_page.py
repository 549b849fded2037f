"""docs/multimodal.md, "One model, many inputs": all its commands run, on files of the names that it uses."""

import json
import re
from pathlib import Path
from unittest import mock

import pytest
import soundfile
from PIL import Image

from regard.cli import main
from regard.synthetic import captions, dates, morse
from regard.training import curves

PAGE = (Path(__file__).parents[2] / "docs" / "multimodal.md").read_text(encoding="utf-8")
SECTION = re.split(r"\n## ", PAGE.partition("\n## One model, many inputs\n")[2])[0]
COMMANDS = re.findall(r"^    (regard .*)$", SECTION, re.MULTILINE)
LINES = [json.loads(line) for line in re.findall(r"^(\{.*\})$", SECTION, re.MULTILINE)]
FEW = [
    "train.steps=2", "train.warmup=1", "train.batch=8", "train.eval_every=9", "train.tensorboard=false", "device=cpu",
    "decode.max_tokens=4", "model.width=16", "model.heads=2", "model.layers=1", "model.inner=16",
]  # fmt: skip


def write_files() -> None:
    sound, _ = morse.MorseSource("test", 1)[0]
    for folder, name in (("pictures", "dog.png"), (".", "picture.png")):
        Path(folder).mkdir(exist_ok=True)
        Image.new("RGB", (40, 30), "red").save(Path(folder) / name)
    for folder, name in (("recordings", "dog.wav"), (".", "recording.wav")):
        Path(folder).mkdir(exist_ok=True)
        soundfile.write(Path(folder) / name, sound.samples, sound.rate)
    Path("sentences.txt").write_text("a small dog\n\na dog\n")
    for name in ("train.jsonl", "valid.jsonl"):
        Path(name).write_text("".join(json.dumps(line) + "\n" for line in LINES))
    Path("new.jsonl").write_text('{"image": "picture.png"}\n{"text": "a dog", "task": "shorten"}\n')


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (captions, dates, morse):
        monkeypatch.setattr(module, "HELD_OUT", 2)
    write_files()
    printed = {}
    assert len(COMMANDS) == 7 and len(LINES) == 4
    with mock.patch.object(curves, "draw", lambda folder: None):
        for command in COMMANDS:
            words = command.split()[1:]
            words += FEW if words[0] == "train" else []
            words += ["data.examples=8"] if command == "regard train multitask --out runs/three" else []
            assert main(words) == 0, command
            printed[command] = capsys.readouterr().out.splitlines()
    assert len(printed[COMMANDS[1]]) == 5 and printed[COMMANDS[1]][3] == ""  # an empty line has an empty answer
    records = [json.loads(line) for line in printed[COMMANDS[2]]]
    assert [(each["kind"], each["task"]) for each in records] == [("image", "image"), ("text", "shorten")]
    assert {line.split()[0] for line in printed[COMMANDS[3]]} >= {
        "exact",
        "loss",
        "german",
        "shorten",
        "image",
        "audio",
    }
    assert Path("attention.png").stat().st_size > 1000
    assert {line.split()[0] for line in printed[COMMANDS[6]]} >= {"dates", "scenes", "morse"}
