"""Small translation runs for the tests: the target is the source in capitals."""

from pathlib import Path
from typing import Any

from helpers import marian

import regard

TINY = {
    "model.size": "tiny", "model.width": 64, "model.layers": 1, "model.inner": 128, "tokenizer.vocab": 300,
    "train.lr": 4e-3, "train.warmup": 40, "train.tokens": 1500, "train.tensorboard": False, "device": "cpu",
}  # fmt: skip


def write_files(folder: Path, **counts: int) -> Path:
    """Write train, valid and test, each with a side .low and a side .up."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate((dict(train=400, valid=40, test=60) | counts).items()):
        texts = marian.sentences(count, seed)
        (folder / f"{name}.low").write_text("\n".join(texts) + "\n")
        (folder / f"{name}.up").write_text("\n".join(text.upper() for text in texts) + "\n")
    return folder


def train_translator(folder: Path, steps: int, pairs: int = 400, **settings: Any) -> Path:
    """Train a run of `steps` steps on such write_files and return its folder; settings have __ for the dots."""
    data = write_files(folder / "files", train=pairs)
    sides = {f"data.{name}": f"{data}/{name}.low,{data}/{name}.up" for name in ("train", "valid", "test")}
    own = {key.replace("__", "."): value for key, value in settings.items()}
    regard.train("translate", {**TINY, **sides, "train.steps": steps, **own}, out=folder / "run")
    return folder / "run"
