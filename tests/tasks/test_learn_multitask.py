"""One model learns texts, images and sound as single models of the same size do. `make learn`, `make learn-full`."""

import time
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.config.data.mixed import EMBEDDED
from regard.synthetic.mixture import SHARES

SHORT = {"train.steps": 150, "train.eval_every": 150, "train.save_every": 150}
SHORT_EXACT = {"dates": 0.05, "scenes": 0.25}  # Morse code takes longer
SHORT_SECONDS = 300
SHARE, LEARNED, FULL_SECONDS = 0.95, 0.5, 1500  # of a single model's score; of that score; of all four trainings


def train(out: Path, settings: dict[str, Any]) -> dict[str, float]:
    """The share of exact outputs for unseen inputs, by task."""
    tasks = regard.train("multitask", settings, out=out).evaluate()["tasks"]
    return {task: each["exact"] for task, each in tasks.items()}


@pytest.mark.learn
def test_three_sources_at_once(tmp_path):
    """The first steps of the recipe teach dates and scenes."""
    began = time.monotonic()
    found = train(tmp_path / "run", SHORT)
    seconds = time.monotonic() - began
    print(f"multitask, {SHORT['train.steps']} steps: {seconds:.0f} s, exact {found}")
    assert all(found[task] >= bound for task, bound in SHORT_EXACT.items())
    assert seconds < SHORT_SECONDS


@pytest.mark.learn_full
def test_one_model_learns_what_three_single_models_learn(tmp_path):
    """A step of a single model has as many examples of its source as a step of the joint model."""
    began = time.monotonic()
    joint = train(tmp_path / "all", {})
    batch = regard.resolve("multitask", {}).run.train.batch
    for source in EMBEDDED:
        own = round(batch * SHARES[source] / sum(SHARES.values()))
        single = train(tmp_path / source, {"data.sources": source, "train.batch": own})[source]
        print(f"{source}: exact {joint[source]:.4f} in one model, {single:.4f} alone")
        assert single >= LEARNED and joint[source] >= SHARE * single
    seconds = time.monotonic() - began
    print(f"multitask: {seconds:.0f} s for four trainings")
    assert seconds < FULL_SECONDS
