"""Small runs of encoder tasks for the tests: texts labeled glad or sad, words tagged as things or deeds."""

import random
from pathlib import Path
from typing import Any

import regard

TINY = {
    "model.size": "tiny", "model.width": 32, "model.heads": 2, "model.layers": 1, "model.inner": 64, "model.dropout": 0.0,
    "tokenizer.vocab": 300, "train.steps": 60, "train.tokens": 500, "train.lr": 1e-2, "train.warmup": 10, "train.save_every": 30,
    "train.eval_every": 30, "train.tensorboard": False, "device": "cpu",
}  # fmt: skip
GLAD, SAD, ANY = ("good", "happy", "sunny"), ("bad", "gloomy", "rainy"), ("a", "the", "day", "house", "cat", "so")
THINGS, DEEDS, SMALL = ("cat", "house", "day"), ("sees", "finds", "likes"), ("a", "the", "some")


def labeled_examples(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    examples = []
    for _ in range(count):
        glad = rng.random() < 0.6
        words = [*rng.choices(ANY, k=rng.randrange(1, 6)), rng.choice(GLAD if glad else SAD)]
        rng.shuffle(words)
        examples.append((" ".join(words), "glad" if glad else "sad"))
    return examples


def tagged_examples(count: int, seed: int) -> list[list[tuple[str, str]]]:
    """A thing begins a span after a small word and continues it after another thing: a tagger needs context."""
    rng = random.Random(seed)
    examples = []
    for _ in range(count):
        words: list[tuple[str, str]] = []
        for _ in range(rng.randrange(1, 6)):
            words += [(rng.choice(SMALL), "O"), (rng.choice(THINGS), "B-T"), (rng.choice(THINGS), "I-T")]
            words = words[: len(words) - rng.randrange(2)]
            words += [(rng.choice(DEEDS), "B-D")] * rng.randrange(2)
        examples.append(words[rng.choice((0, 0, 3)) :] or [("sees", "B-D")])
    return examples


def write_texts(path: Path, examples: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{text}\t{label}\n" for text, label in examples), encoding="utf-8")
    return path


def write_columns(path: Path, sentences: list[list[tuple[str, str]]]) -> Path:
    path.write_text("\n".join("".join(f"{word} x {tag}\n" for word, tag in each) for each in sentences))
    return path


def train_run(recipe: str, folder: Path, **settings: Any) -> Path:
    """Train a run in `folder`/run with its data files in `folder`; settings have __ for dots."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "classify": (write_texts, labeled_examples),
        "tag": (write_columns, tagged_examples),
        "masked": (write_texts, labeled_examples),
    }
    if recipe in data:
        write, make = data[recipe]
        splits = {"train": 300, "valid": 40, "test": 50}
        files = {name: write(folder / f"{name}.txt", make(count, i)) for i, (name, count) in enumerate(splits.items())}
        settings = {f"data.{name}": str(path) for name, path in files.items()} | settings
    own = {key.replace("__", "."): value for key, value in settings.items()}
    plain = {"model.ngrams.order": 0} if recipe == "classify" else {}  # exports need it
    regard.train(recipe, {**TINY, **plain, **own}, out=folder / "run")
    return folder / "run"
