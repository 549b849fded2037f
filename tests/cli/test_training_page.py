"""docs/training.md: its commands run, and its tables are true."""

import re
from pathlib import Path

import pytest
from helpers import reads

from regard.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (regard .*)$", PAGE, re.MULTILINE)
TINY = [f"{key}={value}" for key, value in reads.TINY.items() if key not in ("train.steps", "train.lr")]


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    reads.write_texts(tmp_path / "reviews.tsv", reads.labeled_examples(60, 1))
    assert len(COMMANDS) == 4
    printed = []
    for command in COMMANDS:
        arguments = command.split()[1:]
        assert main(arguments + TINY * ("--resume" not in arguments)) == 0, command
        printed.append(capsys.readouterr())
    assert "labels 2" in printed[2].out and "train: 60 examples" in printed[2].out
    shown = re.findall(r"^    (train\.\w+ = \d+) +# (.*)$", PAGE, re.MULTILINE)
    assert len(shown) == 2
    for setting, origin in shown:
        assert re.search(rf"^{re.escape(setting)} +# {origin}$", printed[3].out, re.MULTILINE)
