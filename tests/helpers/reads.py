"""Small runs of models that read, for the tests: texts that are glad or sad, words that are things or deeds."""

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


def moods(count: int, seed: int) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        glad = chance.random() < 0.6
        words = [*chance.choices(ANY, k=chance.randrange(1, 6)), chance.choice(GLAD if glad else SAD)]
        chance.shuffle(words)
        found.append((" ".join(words), "glad" if glad else "sad"))
    return found


def phrases(count: int, seed: int) -> list[list[tuple[str, str]]]:
    """A thing behind a small word begins a span, and goes on with it behind another thing: a tagger must look around."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        words: list[tuple[str, str]] = []
        for _ in range(chance.randrange(1, 6)):
            words += [(chance.choice(SMALL), "O"), (chance.choice(THINGS), "B-T"), (chance.choice(THINGS), "I-T")]
            words = words[: len(words) - chance.randrange(2)]
            words += [(chance.choice(DEEDS), "B-D")] * chance.randrange(2)
        found.append(words[chance.choice((0, 0, 3)) :] or [("sees", "B-D")])
    return found


def texts_of(path: Path, examples: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{text}\t{label}\n" for text, label in examples), encoding="utf-8")
    return path


def columns_of(path: Path, sentences: list[list[tuple[str, str]]]) -> Path:
    path.write_text("\n".join("".join(f"{word} x {tag}\n" for word, tag in each) for each in sentences))
    return path


def trained(recipe: str, folder: Path, **settings: Any) -> Path:
    """A run in `folder`/run; settings with __ for the dots. Its files are there, too."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"classify": (texts_of, moods), "tag": (columns_of, phrases), "masked": (texts_of, moods)}
    if recipe in data:
        write, make = data[recipe]
        parts = {"train": 300, "valid": 40, "test": 50}
        files = {name: write(folder / f"{name}.txt", make(count, i)) for i, (name, count) in enumerate(parts.items())}
        settings = {f"data.{name}": str(path) for name, path in files.items()} | settings
    own = {key.replace("__", "."): value for key, value in settings.items()}
    regard.train(recipe, {**TINY, **own}, out=folder / "run")
    return folder / "run"
