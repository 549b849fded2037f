"""docs/parallel.md: its commands and its Python run."""

import re
import shlex
from pathlib import Path

import pytest

import regard
from regard.cli import main
from regard.synthetic.dates import make_dates

PAGE = (Path(__file__).parents[2] / "docs" / "parallel.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (regard .*)$", PAGE, re.MULTILINE)
TINY = {"model.size": "tiny", "model.layers": 1, "train.steps": 2, "data.examples": 40, "train.tensorboard": False}


def write_data() -> None:
    """Forty dates, with links, and a run that has seen few of them."""
    pairs = list(make_dates(("en", "de"), 40, 1)["train"])
    for side, name in enumerate(("train.en", "train.de")):
        Path(name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    Path("gold.links").write_text("0-0 1?1\n" * len(pairs))
    regard.train("dates", {**TINY, "device": "cpu"}, out="runs/dates")


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_data()
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        assert main(shlex.split(command)[1:]) == 0, (command, capsys.readouterr().err)
        assert len(capsys.readouterr().out.splitlines()) == 40


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {})
