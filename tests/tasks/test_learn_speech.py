"""The recipe of speech reaches its stated score, in a short version and at full size. `make learn`, `make learn-full`."""

import time
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.synthetic.morse import make_morse

SHORT = {"train.steps": 1100, "train.eval_every": 1100, "train.save_every": 1100}  # the single characters of the recipe
SHORT_EXACT, SHORT_SECONDS = 0.25, 240
FULL: dict[str, Any] = {}
FULL_CER, FULL_SECONDS = 0.03, 600


def train(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The metrics on unseen recordings, with the seconds of training and evaluation."""
    began = time.monotonic()
    metrics = regard.train("transcribe", {"data.workers": 1, **settings}, out=out).evaluate()
    return {**metrics, "seconds": time.monotonic() - began}


@pytest.mark.learn
def test_morse_code(tmp_path):
    """The first steps of the recipe, in which it hears single characters, read many of them."""
    began = time.monotonic()
    predictor = regard.train("transcribe", {"data.workers": 1, **SHORT}, out=tmp_path / "run")
    unseen = make_morse(40000)["train"]
    chosen = [index for index in range(36000, 36400) if len(unseen.text(index, 1)) == 1]
    found = predictor.predict([unseen[index][0] for index in chosen], kind="ctc")
    exact = sum(text == unseen.text(index, 1) for text, index in zip(found, chosen, strict=True)) / len(chosen)
    seconds = time.monotonic() - began
    print(f"Morse code, {SHORT['train.steps']} steps: {seconds:.0f} s, {exact:.4f} of {len(chosen)} single characters")
    assert exact >= SHORT_EXACT
    assert seconds < SHORT_SECONDS


@pytest.mark.learn_full
def test_morse_code_at_full_size(tmp_path):
    """The recipe reads almost all characters of unseen recordings."""
    metrics = train(tmp_path / "run", FULL)
    print(f"Morse code: {metrics['seconds']:.0f} s, CER {metrics['cer']:.4f}, WER {metrics['wer']:.4f}")
    assert metrics["cer"] <= FULL_CER
    assert metrics["seconds"] < FULL_SECONDS
