"""Small translation runs for the tests: the target is the source in capitals."""

from pathlib import Path
from typing import Any

from helpers import marian
from helpers.runs import tiny_run

import regard

TINY = {
    "model.size": "tiny", "model.width": 64, "model.layers": 1, "model.inner": 128, "tokenizer.vocab": 300,
    "train.lr": 4e-3, "train.warmup": 40, "train.tokens": 1500, "train.tensorboard": False, "device": "cpu",
}  # fmt: skip


def file_texts(**counts: int) -> dict[str, str]:
    """The contents of train, valid and test, each with a side .low and a side .up."""
    found = {}
    for seed, (name, count) in enumerate((dict(train=400, valid=40, test=60) | counts).items()):
        texts = marian.sentences(count, seed)
        found[f"{name}.low"] = "\n".join(texts) + "\n"
        found[f"{name}.up"] = "\n".join(text.upper() for text in texts) + "\n"
    return found


def write_files(folder: Path, **counts: int) -> Path:
    """Write train, valid and test, each with a side .low and a side .up."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in file_texts(**counts).items():
        (folder / name).write_text(text)
    return folder


def translator(steps: int = 4, pairs: int = 60, **settings: Any) -> Path:
    """A stored run of `steps` steps, with its data in the folder files beside it; settings have __ for the dots."""
    files = {f"files/{name}": text for name, text in file_texts(train=pairs).items()}
    own = {key.replace("__", "."): value for key, value in settings.items()}
    whole = {**TINY, **sides_in("{files}/files"), "train.steps": steps, **own}
    return tiny_run("translate", files, **{key: value for key, value in whole.items() if value is not None})


def half_trained() -> Path:
    """A stored run without test data, with several checkpoints, whose texts differ from the references."""
    return translator(160, 400, data__test=None, train__metric="bleu", train__eval_every=80, train__save_every=40)


def sides_in(folder: Path | str) -> dict[str, str]:
    return {f"data.{name}": f"{folder}/{name}.low,{folder}/{name}.up" for name in ("train", "valid", "test")}


def train_translator(folder: Path, steps: int, pairs: int = 400, **settings: Any) -> Path:
    """Train such a run in a folder of its own, for a test that needs the training or changes the run."""
    data = write_files(folder / "files", train=pairs)
    own = {key.replace("__", "."): value for key, value in settings.items()}
    regard.train("translate", {**TINY, **sides_in(data), "train.steps": steps, **own}, out=folder / "run")
    return folder / "run"
