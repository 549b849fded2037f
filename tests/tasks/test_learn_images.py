"""Recipes of images reach their stated scores, in a short version and at full size. `make learn`, `make learn-full`."""

import time
from pathlib import Path
from typing import Any

import pytest

import regard


def train(recipe: str, out: Path, **settings: object) -> dict[str, Any]:
    """The metrics on unseen images, with the seconds of training and evaluation."""
    began = time.monotonic()
    metrics = regard.train(
        recipe, {name.replace("__", "."): value for name, value in settings.items()}, out=out
    ).evaluate()
    return {**metrics, "seconds": time.monotonic() - began}


@pytest.mark.learn
def test_digits(tmp_path):
    """A quarter of the training of the recipe."""
    metrics = train("classify-image", tmp_path / "run", train__steps=800, train__eval_every=400, data__workers=1)
    print(f"digits, 800 steps: {metrics['seconds']:.0f} s, accuracy {metrics['accuracy']:.4f}")
    assert metrics["accuracy"] >= 0.75
    assert metrics["seconds"] < 240


@pytest.mark.learn_full
def test_digits_at_full_size(tmp_path):
    """At least 97 % of unseen digits."""
    metrics = train("classify-image", tmp_path / "run", data__workers=1)
    print(f"digits: {metrics['seconds']:.0f} s, accuracy {metrics['accuracy']:.4f}")
    assert metrics["accuracy"] >= 0.97
    assert metrics["seconds"] < 600


@pytest.mark.learn
def test_scenes(tmp_path):
    """A quarter of the training of the recipe."""
    settings = {"train__steps": 300, "train__eval_every": 300, "data__examples": 2000, "data__workers": 1}
    metrics = train("detect", tmp_path / "run", **settings)
    print(f"scenes, 300 steps: {metrics['seconds']:.0f} s, AP50 {metrics['ap50']:.4f}")
    assert metrics["ap50"] >= 0.3
    assert metrics["seconds"] < 240


@pytest.mark.learn_full
def test_scenes_at_full_size(tmp_path):
    """AP50 of at least 0.85 on unseen scenes."""
    metrics = train("detect", tmp_path / "run", data__workers=1)
    print(f"scenes: {metrics['seconds']:.0f} s, AP50 {metrics['ap50']:.4f}, AP {metrics['ap']:.4f}")
    assert metrics["ap50"] >= 0.85
    assert metrics["seconds"] < 600


@pytest.mark.learn
def test_captions(tmp_path):
    """Scenes of one shape, with a part of the training of the recipe."""
    settings = {"train__steps": 500, "train__eval_every": 500, "data__examples": 8000, "data__shapes": 1}
    metrics = train("caption", tmp_path / "run", **settings)
    print(f"captions of one shape, 500 steps: {metrics['seconds']:.0f} s, exact {metrics['exact']:.4f}")
    assert metrics["exact"] >= 0.85
    assert metrics["seconds"] < 240


@pytest.mark.learn_full
def test_captions_at_full_size(tmp_path):
    """At least 95 % of the captions of unseen scenes."""
    metrics = train("caption", tmp_path / "run")
    print(f"captions: {metrics['seconds']:.0f} s, exact {metrics['exact']:.4f}, CIDEr-D {metrics['cider']:.3f}")
    assert metrics["exact"] >= 0.95
    assert metrics["seconds"] < 600


@pytest.mark.learn
def test_unseen_combinations(tmp_path):
    """Zero-shot labels of combinations that training never has, with two thirds of the training of the recipe."""
    metrics = train("zero-shot", tmp_path / "run", train__steps=600, train__eval_every=600)
    shown = f"accuracy {metrics['accuracy']:.4f} among 96 labels, {metrics['item_to_text_r1']:.4f} among the 12 unseen"
    print(f"unseen combinations, 600 steps: {metrics['seconds']:.0f} s, {shown}")
    assert metrics["accuracy"] >= 0.6
    assert metrics["seconds"] < 240


@pytest.mark.learn_full
def test_unseen_combinations_at_full_size(tmp_path):
    """At least 80 % of the scenes of unseen combinations, among the labels of all combinations."""
    metrics = train("zero-shot", tmp_path / "run")
    shown = f"accuracy {metrics['accuracy']:.4f} among 96 labels, {metrics['item_to_text_r1']:.4f} among the 12 unseen"
    print(f"unseen combinations: {metrics['seconds']:.0f} s, {shown}")
    assert metrics["accuracy"] >= 0.8
    assert metrics["seconds"] < 600


@pytest.mark.learn
def test_texts_of_scenes(tmp_path):
    """A short training on scenes of one shape: which of 24 texts belongs to an image."""
    settings = {
        "data__max_shapes": 1,
        "data__examples": 8000,
        "train__steps": 600,
        "train__batch": 64,
        "train__lr": 2e-3,
    }
    text = {"model__text__layers": 1, "model__text__pool": "mean", "model__text__causal": False}
    metrics = train("contrastive", tmp_path / "run", train__eval_every=300, **settings, **text)
    print(f"texts of scenes, 600 steps: {metrics['seconds']:.0f} s, R@1 {metrics['item_to_text_r1']:.4f}")
    assert metrics["item_to_text_r1"] >= 0.65
    assert metrics["seconds"] < 240
