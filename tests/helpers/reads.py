"""Small runs of encoder tasks for the tests: texts labeled glad or sad, words tagged as things or deeds."""

import random
from pathlib import Path
from typing import Any

from helpers.runs import tiny_run

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


def lines_of_texts(examples: list[tuple[str, str]]) -> str:
    return "".join(f"{text}\t{label}\n" for text, label in examples)


def lines_of_columns(sentences: list[list[tuple[str, str]]]) -> str:
    return "\n".join("".join(f"{word} x {tag}\n" for word, tag in each) for each in sentences)


def write_texts(path: Path, examples: list[tuple[str, str]]) -> Path:
    path.write_text(lines_of_texts(examples), encoding="utf-8")
    return path


def write_columns(path: Path, sentences: list[list[tuple[str, str]]]) -> Path:
    path.write_text(lines_of_columns(sentences))
    return path


def file_texts(recipe: str) -> dict[str, str]:
    """The contents of train.txt, valid.txt and test.txt for a recipe of texts; of others, none."""
    splits = list(enumerate({"train": 300, "valid": 40, "test": 50}.items()))
    if recipe == "tag":
        return {f"{name}.txt": lines_of_columns(tagged_examples(count, i)) for i, (name, count) in splits}
    if recipe in ("classify", "masked"):
        return {f"{name}.txt": lines_of_texts(labeled_examples(count, i)) for i, (name, count) in splits}
    return {}


def all_settings(recipe: str, folder: Path | str, **settings: Any) -> dict[str, Any]:
    """Those of a tiny run with its data files in `folder`; settings have __ for dots."""
    data = {f"data.{name.removesuffix('.txt')}": f"{folder}/{name}" for name in file_texts(recipe)}
    plain = {"data.ngrams.order": 0} if recipe == "classify" else {}  # exports need it
    return {**TINY, **plain, **data, **{key.replace("__", "."): value for key, value in settings.items()}}


def stored_run(recipe: str, **settings: Any) -> Path:
    """A run of the store, with its data files beside it; settings have __ for dots."""
    return tiny_run(recipe, file_texts(recipe), **all_settings(recipe, "{files}", **settings))


def image_run() -> Path:
    """A stored classifier of images, for tests that need just some run: ten labels, 28 × 28 pixels."""
    return tiny_run("classify-image", **{
        "model.width": 16, "model.heads": 2, "model.layers": 1, "model.inner": 16, "data.examples": 64, "train.steps": 2,
        "train.warmup": 1, "train.eval_every": 2, "train.save_every": 2, "train.batch": 8, "train.tensorboard": False,
    })  # fmt: skip


def train_run(recipe: str, folder: Path, **settings: Any) -> Path:
    """Train such a run in a folder of its own, for a test that needs the training or changes the run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in file_texts(recipe).items():
        (folder / name).write_text(text, encoding="utf-8")
    regard.train(recipe, all_settings(recipe, folder, **settings), out=folder / "run")
    return folder / "run"
