"""Type checkers know the types of the sections of a run."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SNIPPET = """
from regard.config.data.base import Data
from regard.config.losses import LabelLoss
from regard.config.run import AnyRun, Run
from regard.tasks.classify.settings import ClassifyRun
from regard.tasks.translate.settings import TranslateRun

def known(run: TranslateRun, other: ClassifyRun, shared: Run) -> None:
    reveal_type(run.data.locales)
    reveal_type(other.train.objective)
    reveal_type(other.decode.threshold)
    any_task: Run[Data] = other
    changed: ClassifyRun = other.model_copy(update={"threads": 2})
    run.data.bins
    other.train.objective.glancing
    shared.data.locales
    wrong: TranslateRun = other

def unknown(run: AnyRun) -> ClassifyRun:
    return run
"""
EXPECTED = """
8: note: Revealed type is "tuple[str, str]"
9: note: Revealed type is "regard.config.losses.LabelLoss"
10: note: Revealed type is "float"
13: error: "PairData" has no attribute "bins"  [attr-defined]
14: error: "LabelLoss" has no attribute "glancing"  [attr-defined]
15: error: "Data" has no attribute "locales"  [attr-defined]
16: error: Incompatible types in assignment (expression has type "Run[LabelData, ClassifyDecode, Any, LabelLoss]", variable has type "Run[PairData, WritingDecode, Any, TaughtLoss]")  [assignment]
"""


def test_mypy_knows_the_settings_of_a_task(tmp_path: Path) -> None:
    """The cache of the project makes it fast; a new one takes a few seconds."""
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET.lstrip("\n"))
    command = [sys.executable, "-m", "mypy", "--strict", "--hide-error-context", "--no-error-summary", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    lines = [line.partition("snippet.py:")[2] for line in done.stdout.splitlines() if "snippet.py:" in line]
    assert lines == EXPECTED.strip().splitlines(), done.stdout + done.stderr
