"""Small runs for the tests: sentences of a few words into the same in capitals."""

from pathlib import Path
from typing import Any

from helpers import marian

import regard

TINY = {
    "model.size": "tiny", "model.width": 64, "model.layers": 1, "model.inner": 128, "tokenizer.vocab": 300,
    "train.lr": 4e-3, "train.warmup": 40, "train.tokens": 1500, "train.tensorboard": False, "device": "cpu",
}  # fmt: skip


def files(folder: Path, **counts: int) -> Path:
    """train, valid, test: each with a side .low and a side .up."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate((dict(train=400, valid=40, test=60) | counts).items()):
        texts = marian.sentences(count, seed)
        (folder / f"{name}.low").write_text("\n".join(texts) + "\n")
        (folder / f"{name}.up").write_text("\n".join(text.upper() for text in texts) + "\n")
    return folder


def trained(folder: Path, steps: int, pairs: int = 400, **settings: Any) -> Path:
    """A run of so many steps on such files; settings with __ for the dots."""
    data = files(folder / "files", train=pairs)
    sides = {f"data.{name}": f"{data}/{name}.low,{data}/{name}.up" for name in ("train", "valid", "test")}
    own = {key.replace("__", "."): value for key, value in settings.items()}
    regard.train("translate", {**TINY, **sides, "train.steps": steps, **own}, out=folder / "run")
    return folder / "run"
