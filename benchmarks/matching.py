"""`python -m benchmarks.matching`: compare attention kinds on matching two distant marks in a long text.

Every model has two layers, trains on the same texts in the same order, and predicts the label from its first position
with the same head. The control has the attention of the window, but its head gets the mean over all positions.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.config import run_folder
from regard.config.run import resolve_run
from regard.device import resolve_device
from regard.errors import UserError
from regard.tasks.classify import task as classify
from regard.training import run_loop

from .report import align_columns

CONTROL = "control"
VARIANTS: dict[str, dict[str, Any]] = {
    "window": {"globals": 0},
    CONTROL: {"globals": 0},
    "globals": {"globals": 1},
    "blocks": {"kind": "blocks"},
    "favor": {"kind": "favor"},
    "lowrank": {"kind": "lowrank"},
    "dense": {"kind": "dense", "dropout": 0.0},
}
WINDOW_FRACTION = 64  # a window's radius is the text length divided by this


def variant_settings(variant: str, tokens: int, others: Mapping[str, Any]) -> dict[str, Any]:
    own = {f"model.attention.{key}": value for key, value in VARIANTS[variant].items()}
    if "globals" in VARIANTS[variant]:
        own["model.attention.radius"] = max(tokens // WINDOW_FRACTION, 1)
    if variant == "blocks":
        own["model.attention.size"] = max(tokens // WINDOW_FRACTION, 1)
    if variant == CONTROL:
        own["model.pooling"] = "mean"
    if variant == "lowrank":
        own["model.attention.tokens"] = tokens
    return {"data.max_tokens": tokens, "train.tensorboard": False, **own, **others}


def train(variant: str, tokens: int, folder: Path, others: Mapping[str, Any], short: int = 0) -> dict[str, Any]:
    """Train with the recipe `matching` and return the test accuracy.

    If `short` is not 0, train on texts of `short` tokens first, with the same other settings.
    """
    weights, seconds = None, 0.0
    kept: dict[str, Any] = {}
    for length in ([short] if short else []) + [tokens]:
        run = resolve_run("matching", variant_settings(variant, tokens, others) | {"data.max_tokens": length}).run
        objective = classify.prepare(run, kept, resolve_device(run.device))
        model, kept, before = objective.model, objective.predictor.processors, folder / str(length)
        if weights is not None:
            model.load_state_dict(weights)
        before.mkdir(parents=True)
        run_folder.write_run(before, {"config": objective.run.dump()})
        seconds += run_loop(objective, before, resume=False, progress=False).seconds
        weights = model.state_dict()
    model.eval()
    found = objective.predictor.evaluate()
    return {"way": variant, "accuracy": found["accuracy"], "examples": found["examples"], "seconds": seconds}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matching", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a text")
    parser.add_argument("--short", type=int, default=0, help="train on texts of this length first")
    parser.add_argument("--only", action="append", choices=[*VARIANTS], help="one variant; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("settings", nargs="*", help="settings of the recipe matching, such as train.steps=500")
    options = parser.parse_args(arguments)
    try:
        print(report(options))
    except UserError as error:
        print(f"regard: {error}", file=sys.stderr)
        return 2
    return 0


def report(options: argparse.Namespace) -> str:
    """Train the chosen variants and return the table or JSON."""
    if wrong := [each for each in options.settings if "=" not in each]:
        raise UserError(f"{wrong[0]!r} is not a setting; expected key=value, such as train.steps=500")
    others = dict(each.split("=", 1) for each in options.settings)
    results, variants = [], options.only or [*VARIANTS]
    with tempfile.TemporaryDirectory() as folder:
        for number, variant in enumerate(variants):
            print(f"training {variant} …", file=sys.stderr)
            results.append(train(variant, options.tokens, Path(folder, str(number)), others, options.short))
    if options.json:
        how = {"tokens": options.tokens, "short": options.short, "settings": others}
        return json.dumps({"bench": "matching", **how, "ways": results})
    after = f" after {options.short:,}" if options.short else ""
    rows = [[f"{options.tokens:,} tokens{after}, {results[0]['examples']:,} texts", "accuracy", "seconds"]]
    rows += [[each["way"], f"{each['accuracy']:.3f}", f"{each['seconds']:.0f}"] for each in results]
    return "\n".join(align_columns(rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
