"""docs/python.md: every script is short, runs at its tiny size, and is clean for a type checker."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard.training import curves

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
SCRIPTS = dict(re.findall(r"^## (.*?)\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scripts run in one process and one folder, in the order of the page: later ones load earlier runs."""
    place = tmp_path_factory.mktemp("python")
    for number, text in enumerate(SCRIPTS.values()):
        (place / f"script_{number}.py").write_text(text, encoding="utf-8")
    return place


def test_there_are_ten_short_scripts() -> None:
    assert len(SCRIPTS) == 10
    for title, text in SCRIPTS.items():
        assert text.count("\n") <= 25, title


def test_the_scripts_run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(curves, "draw", lambda folder: None)  # half a second for each of 15 trainings
    for number, (title, text) in enumerate(SCRIPTS.items()):
        exec(compile(text, f"script_{number}.py", "exec"), {"__name__": f"script_{number}"})
        assert title == "Stop from a callback" or title == "Own loss" or capsys.readouterr().out, title
    assert len(list((folder / "runs").iterdir())) == 9


def test_the_scripts_are_clean_for_pyright(folder: Path) -> None:
    """basedpyright is pyright with its own node in the wheel, so that nothing is downloaded."""
    settings = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))  # pyright does not follow editable installs
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
