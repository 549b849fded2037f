"""The recipe of speech reaches its stated score, in a short version and at full size. `make learn`, `make learn-full`."""

import time
from pathlib import Path
from typing import Any

import pytest

import regard

SHORT = {"train.steps": 1200, "train.eval_every": 600, "train.save_every": 600}  # a third of the recipe
SHORT_CER, SHORT_SECONDS = 0.5, 240
FULL: dict[str, Any] = {}
FULL_CER, FULL_SECONDS = 0.03, 600


def train(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The metrics on unseen recordings, with the seconds of training and evaluation."""
    began = time.monotonic()
    metrics = regard.train("transcribe", {"data.workers": 1, **settings}, out=out).evaluate()
    return {**metrics, "seconds": time.monotonic() - began}


@pytest.mark.learn
def test_morse_code(tmp_path):
    """The short version reads a part of the characters."""
    metrics = train(tmp_path / "run", SHORT)
    print(f"Morse code, {SHORT['train.steps']} steps: {metrics['seconds']:.0f} s, CER {metrics['cer']:.4f}")
    assert metrics["cer"] <= SHORT_CER
    assert metrics["seconds"] < SHORT_SECONDS


@pytest.mark.learn_full
def test_morse_code_at_full_size(tmp_path):
    """The recipe reads almost all characters of unseen recordings."""
    metrics = train(tmp_path / "run", FULL)
    print(f"Morse code: {metrics['seconds']:.0f} s, CER {metrics['cer']:.4f}, WER {metrics['wer']:.4f}")
    assert metrics["cer"] <= FULL_CER
    assert metrics["seconds"] < FULL_SECONDS
