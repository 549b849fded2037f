"""`python -m benchmarks.matching`: which attention brings two marks together that stand far apart in a long text?

Every model has two layers, trains on the same texts in the same order, and tells the label by its first position with
the same head. The control looks as near as the window does, but its head is given the mean over all positions.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard import files
from regard.config.run import resolve
from regard.device import resolve_device
from regard.errors import UserError
from regard.tasks import classify
from regard.training import fit

from .report import aligned

POOLED = "control"
WAYS: dict[str, dict[str, Any]] = {
    "window": {"globals": 0},
    POOLED: {"globals": 0},
    "globals": {"globals": 1},
    "blocks": {"kind": "blocks"},
    "favor": {"kind": "favor"},
    "lowrank": {"kind": "lowrank"},
    "dense": {"kind": "dense", "dropout": 0.0},
}
REACH = 64  # a window's radius is so small a part of the text


def settings(way: str, tokens: int, others: Mapping[str, Any]) -> dict[str, Any]:
    own = {f"model.attention.{key}": value for key, value in WAYS[way].items()}
    if "globals" in WAYS[way]:
        own["model.attention.radius"] = max(tokens // REACH, 1)
    if way == "blocks":
        own["model.attention.size"] = max(tokens // REACH, 1)
    if way == "lowrank":
        own["model.attention.tokens"] = tokens
    return {"data.max_tokens": tokens, "train.tensorboard": False, **own, **others}


def trained(way: str, tokens: int, folder: Path, others: Mapping[str, Any], short: int = 0) -> dict[str, Any]:
    """Accuracy on test texts after a training as the recipe `marks` says; before it, unless `short` is 0, comes one on
    texts of so many tokens, with all else the same."""
    before, weights, seconds = None, None, 0.0
    for length in ([short] if short else []) + [tokens]:
        run = resolve("matching", settings(way, tokens, others) | {"data.max_tokens": length}).run
        lesson, kept, run = classify.prepare(run, before, resolve_device(run.device))
        model, before = lesson.model, folder / str(length)
        if way == POOLED:
            model.pool = lambda states, pooler=model.pooler: torch.tanh(pooler(states.mean(1)))  # all of one length
        if weights is not None:
            model.load_state_dict(weights)
        before.mkdir(parents=True)
        files.write_json(before / "run.json", {"format": 1})
        for name, part in kept.items():
            part.save(before / name)
        seconds += fit(lesson, model, before, resume=False, progress=False).seconds
        weights = model.state_dict()
    model.eval()
    found = lesson.system.evaluate()
    return {"way": way, "accuracy": found["accuracy"], "examples": found["examples"], "seconds": seconds}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matching", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096, help="of a text")
    parser.add_argument("--short", type=int, default=0, help="train as long on texts of so many tokens first")
    parser.add_argument("--only", action="append", choices=[*WAYS], help="one of the ways; may be given again")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("settings", nargs="*", help="of the recipe marks, such as train.steps=500")
    asked = parser.parse_args(arguments)
    try:
        print(answer(asked))
    except UserError as mistake:
        print(f"regard: {mistake}", file=sys.stderr)
        return 2
    return 0


def answer(asked: argparse.Namespace) -> str:
    """The table, or JSON, of the trainings that were asked for."""
    if wrong := [each for each in asked.settings if "=" not in each]:
        raise UserError(f"{wrong[0]!r} is not a setting; expected key=value, such as train.steps=500")
    others = dict(each.split("=", 1) for each in asked.settings)
    told, ways = [], asked.only or [*WAYS]
    with tempfile.TemporaryDirectory() as folder:
        for number, way in enumerate(ways):
            print(f"training {way} …", file=sys.stderr)
            told.append(trained(way, asked.tokens, Path(folder, str(number)), others, asked.short))
    if asked.json:
        how = {"tokens": asked.tokens, "short": asked.short, "settings": others}
        return json.dumps({"bench": "marks", **how, "ways": told})
    after = f" after {asked.short:,}" if asked.short else ""
    rows = [[f"{asked.tokens:,} tokens{after}, {told[0]['examples']:,} texts", "accuracy", "seconds"]]
    rows += [[each["way"], f"{each['accuracy']:.3f}", f"{each['seconds']:.0f}"] for each in told]
    return "\n".join(aligned(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
