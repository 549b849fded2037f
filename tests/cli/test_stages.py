"""Recipes of several stages: one command runs all of them, continues after a kill, and reports mistakes first."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from regard import recipes
from regard.cli import main
from regard.files import read_json
from regard.runs import stages
from regard.synthetic.dates import make_dates
from regard.training import curves

SETTINGS = [
    "multi30k-nat-stages", "data.train=train.en,train.de", "data.valid=val.en,val.de", "device=cpu", "model.width=32",
    "model.heads=2", "model.layers=1", "model.inner=32", "tokenizer.vocab=300", "train.steps=4", "train.tokens=300",
    "train.precision=fp32", "train.warmup=1", "train.eval_every=4", "train.save_every=2", "train.tensorboard=false",
    "distilled.decode.kind=greedy", "teacher.train.steps=20",
]  # fmt: skip
NAMES = ["teacher", "distilled", "links", "student", "tuned"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(curves, "draw", lambda folder: None)
    pairs = list(make_dates(("en", "de"), 40, 1)["train"])
    for split, some in (("train", pairs), ("val", pairs[:4])):
        for side, name in enumerate(("en", "de")):
            Path(f"{split}.{name}").write_text("".join(f"{pair[side]}\n" for pair in some))


def train(*arguments: str) -> int:
    return main(["train", *arguments])


class Killed(BaseException):
    pass


def kill_in_first_stage(out: str) -> None:
    """Start the command in another process, and kill it after the first checkpoint of the teacher."""
    command = [sys.executable, "-m", "regard", "train", *SETTINGS, "--out", out]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    before = time.monotonic()
    while not Path(out, "teacher/checkpoints/step-2").exists() and time.monotonic() - before < 90:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_all_stages_continue_where_they_were_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in a training, between two stages, and in the alignment: the results are those of one that was not."""
    assert train(*SETTINGS, "--out", "whole") == 0
    err = capsys.readouterr().err
    assert all(f"stage {number} of 5, {name}: " in err for number, name in enumerate(NAMES, 1))
    assert len(Path("whole/links").read_text().splitlines()) == 40
    assert read_json(Path("whole/stages.json"))["done"] == NAMES

    kill_in_first_stage("killed")
    assert read_json(Path("killed/stages.json"))["done"] == []
    plain_write, plain_aligner = stages.write_json, stages.open_aligner

    def note(path: Path, values: Any) -> None:
        if values["done"] == ["teacher", "distilled"]:
            raise Killed  # the file is there, but not noted
        plain_write(path, values)

    def open_aligner(*arguments: Any) -> Any:
        if len(arguments) > 3:  # not the check of its settings
            raise Killed
        return plain_aligner(*arguments)

    for target, name, value in [(stages, "write_json", note), (stages, "open_aligner", open_aligner)]:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(target, name, value)
            train("--resume", "--out", "killed")
    assert read_json(Path("killed/stages.json"))["done"] == ["teacher", "distilled"]
    assert train("--resume", "--out", "killed") == 0
    assert "stage 2 of 5, distilled: done already" in capsys.readouterr().err
    for name in ("distilled", "links", *(f"{each}/model.safetensors" for each in ("teacher", "student", "tuned"))):
        assert Path("whole", name).read_bytes() == Path("killed", name).read_bytes(), name
    assert train("--resume", "--out", "killed") == 0  # nothing is left to do


def test_mistakes_of_all_stages_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(*SETTINGS, "teacher.train.lr=0", "student.model.heads=5", "--out", "run") == 2
    err = capsys.readouterr().err
    assert "stage teacher: " in err and "stage student: " in err and not Path("run").exists()
    for arguments, words in [
        (["multi30k-nat-stages", "--out", "run"], "needs data.train, two files of lines"),
        ([*SETTINGS, "links.iterations=0", "--out", "run"], "stage links: "),
        (
            [*SETTINGS, "links.kind=x", "--out", "run"],
            "kind is not a setting of align; expected symmetrize or iterations",
        ),
        ([*SETTINGS, "distilled.decode.beam=0", "--out", "run"], "stage distilled: "),
        ([*SETTINGS, "--dry"], "--dry reads the data of one training"),
        ([*SETTINGS, "--resume", "--out", "gone"], "gone holds no stages to resume"),
        ([SETTINGS[0], "data.train=a.tsv", "--out", "run"], "data.train has 1 sides; stages need two files of lines"),
    ]:
        assert train(*arguments) == 2
        assert words in capsys.readouterr().err, arguments
    assert not Path("run").exists()
    Path("run").mkdir()
    (Path("run") / "stages.json").write_text('{"recipe": "a", "settings": {}, "done": []}')
    assert train(*SETTINGS, "--out", "run") == 2 and "already holds stages; add --resume" in capsys.readouterr().err
    assert train(*SETTINGS, "--resume", "--out", "run") == 2
    assert "was started with another recipe or other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('task = "translate"\n[[stages]]\nname = "a"\ntrain = "dates"', "has stages and also task"),
        ('[[stages]]\nname = "a"', "stage a needs one of train, distill and align"),
        ("stages = [1]", "are not valid"),
        ('[[stages]]\nname = "a"\ndistill = "b"', "stage a has distill=b, which is not an earlier stage"),
        ('[[stages]]\nname = "a"\ntrain = "dates"\n[[stages]]\nname = "a"\ntrain = "dates"', "has two stages a"),
        (
            '[[stages]]\nname = "a"\ntrain = "dates"\n[[stages]]\nname = "b"\nalign = "a"\n'
            '[[stages]]\nname = "c"\ndistill = "b"',
            "distill is b, which is not a training",
        ),
    ],
)
def test_mistakes_in_a_file_of_stages(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.toml").write_text(text)
    assert train("own.toml", "data.train=train.en,train.de", "--out", "run") == 2
    assert words in capsys.readouterr().err and not Path("run").exists()


def test_stages_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert recipes.stage_names() == ["multi30k-nat-stages"]
    assert main(["list"]) == 0 and "multi30k-nat-stages  Multi30k without a teacher at hand" in capsys.readouterr().out
    assert train(*SETTINGS, "--show") == 0
    shown = capsys.readouterr().out
    assert shown.count("# stage ") == 5 and 'train.objective.teacher = "runs/multi30k-nat-stages/teacher"' in shown
