"""Families that write all tokens at once learn the embedded dates. Takes minutes; `make learn`."""

import time
from pathlib import Path

import pytest

import regard

pytestmark = pytest.mark.learn


@pytest.mark.parametrize(
    ("recipe", "settings", "bleu"),
    [
        ("nat", {"train.steps": 600, "train.objective.glancing": 0.5}, 65.0),
        ("nat-ctc", {"train.steps": 250}, 40.0),
        ("cmlm", {"train.steps": 800}, 25.0),
    ],
)
def test_recipes(recipe: str, settings: dict[str, float], bleu: float, tmp_path: Path) -> None:
    """Unseen dates, without a teacher."""
    began = time.monotonic()
    metrics = regard.train(recipe, settings, out=tmp_path / "run").evaluate()
    seconds = time.monotonic() - began
    print(f"{recipe} {seconds:.0f} s, BLEU {metrics['bleu']:.1f}, exact {metrics['exact']:.3f}")
    assert metrics["bleu"] >= bleu
    assert seconds < 400  # about 90 on two free cores; other machines are slower
