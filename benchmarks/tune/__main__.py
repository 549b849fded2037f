"""`python -m benchmarks.tune RECIPE start=RUN KEY=VALUE …`: compare full and parameter-efficient training on one task.

    python -m benchmarks.tune ewt start=runs/cased data.train=train.conllu data.valid=dev.conllu data.test=test.conllu

Every training runs in a process of its own, which gives its memory. `lora:train.lr=1e-3` is a setting of one kind.
The score is train.metric on data.test, the mean over the seeds.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from regard.errors import UserError

from ..report import align_columns

KINDS: dict[str, dict[str, str]] = {
    "full": {},
    "lora": {"tune.kind": "lora", "tune.pattern": "attention|feed", "train.lr": "1e-3"},
    "adapter": {"tune.kind": "adapter", "tune.bottleneck": "32", "train.lr": "1e-3"},
    "prompt": {"tune.kind": "prompt", "train.lr": "1e-2"},
    "prefix": {"tune.kind": "prefix", "train.lr": "5e-3"},
}
HEAD = ["", "score", "seeds", "trained", "share", "file MiB", "ms/step", "peak MiB"]


def train_one(recipe: str, settings: dict[str, str], out: str) -> dict[str, Any]:
    """Train once; return the score, sizes, speed and peak memory."""
    import torch

    from regard import api

    events, peaks = list[dict[str, Any]](), list[float]()

    def record(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "end":  # before the evaluation loads anything
            peaks.append(torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else peak_mebibytes())

    predictor = api.train(recipe, settings, out=out, on_event=record)
    metrics = predictor.evaluate()
    trained = [each for each in predictor.model.parameters() if each.requires_grad]
    return {
        "score": metrics.get(predictor.run.train.metric),
        "trained": sum(each.numel() for each in trained),
        "every": sum(each.numel() for name, each in predictor.model.named_parameters() if not name.startswith("tune.")),
        "file": (Path(out) / "model.safetensors").stat().st_size / 2**20,
        "step": 1000 * step_seconds(events),
        "peak": peaks[-1],
    }


def step_seconds(events: list[dict[str, Any]]) -> float:
    """Seconds of a step: the median over intervals between two train records without an evaluation."""
    found, last = [], None
    for event in events:
        if event["event"] == "train":
            if last is not None:
                found.append((event["seconds"] - last["seconds"]) / (event["step"] - last["step"]))
            last = event
        else:
            last = None
    return statistics.median(found) if found else float("nan")


def peak_mebibytes() -> float:
    from ..corpus import peak

    return peak() * 1e6 / 2**20


def table_rows(results: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    table = [HEAD]
    for kind, runs in results.items():
        scores = [run["score"] for run in runs]
        spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
        first = runs[0]
        table.append([
            kind, f"{statistics.mean(scores):.4f}{spread}", f"{len(scores)}", f"{first['trained']:,}",
            f"{100 * first['trained'] / first['every']:.2f} %", f"{first['file']:.2f}",
            f"{statistics.median(run['step'] for run in runs):.2f}", f"{max(run['peak'] for run in runs):,.0f}",
        ])  # fmt: skip
    return table


def settings_for(words: list[str], kind: str) -> dict[str, str]:
    """The common settings, the defaults of the kind, and the settings given for this kind."""
    common, own = {}, {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            sys.exit(f"{word!r} is not a setting; expected key=value, or lora:key=value for one kind")
        which, colon, rest = key.partition(":")
        if not colon:
            common[key] = value
        elif which == kind:
            own[rest] = value
        elif which not in KINDS:
            sys.exit(f"{which} is not a kind; expected one of {', '.join(KINDS)}")
    return common | KINDS[kind] | own


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--out", type=Path, default=Path("runs/bench-tune"), help="where the runs go")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args(arguments)
    if options.one:
        try:
            print(json.dumps(train_one(options.recipe, json.loads(options.one), str(options.out))))
        except UserError as error:
            print(f"regard: {error}", file=sys.stderr)
            sys.exit(2)
        return
    results: dict[str, list[dict[str, Any]]] = {}
    for kind in options.kinds:
        for seed in range(1, options.seeds + 1):
            settings = settings_for(options.settings, kind) | {"train.seed": str(seed), "train.tensorboard": "false"}
            command = [sys.executable, "-m", "benchmarks.tune", options.recipe, "--one", json.dumps(settings)]
            done = subprocess.run([*command, "--out", f"{options.out / f'{kind}-{seed}'}"], stdout=subprocess.PIPE)
            if done.returncode:  # the process has printed the reason
                sys.exit(done.returncode)
            results.setdefault(kind, []).append(json.loads(done.stdout.splitlines()[-1]))
            print(kind, seed, results[kind][-1], file=sys.stderr, flush=True)
    print(json.dumps(results) if options.json else "\n".join(align_columns(table_rows(results))))


if __name__ == "__main__":
    main()
