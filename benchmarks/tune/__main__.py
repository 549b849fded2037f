"""`python -m benchmarks.tune RECIPE start=RUN KEY=VALUE …`: one task, trained whole and in small parts, as a table.

    python -m benchmarks.tune ewt start=runs/cased data.train=train.conllu data.valid=dev.conllu data.test=test.conllu

Every training is a process of its own, so that its memory is its own. `lora:train.lr=1e-3` is a setting of one kind.
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

from ..report import aligned

KINDS: dict[str, dict[str, str]] = {
    "full": {},
    "lora": {"tune.kind": "lora", "tune.pattern": "attention|feed", "train.lr": "1e-3"},
    "adapter": {"tune.kind": "adapter", "tune.bottleneck": "32", "train.lr": "1e-3"},
    "prompt": {"tune.kind": "prompt", "train.lr": "1e-2"},
    "prefix": {"tune.kind": "prefix", "train.lr": "5e-3"},
}
HEAD = ["", "score", "seeds", "trained", "share", "file MiB", "ms/update", "peak MiB"]


def one(recipe: str, settings: dict[str, str], out: str) -> dict[str, Any]:
    """Train, measure, tell."""
    import torch

    from regard import api

    events, peaks = list[dict[str, Any]](), list[float]()

    def note(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "end":  # what is loaded afterwards is not of the training
            peaks.append(torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else resident())

    system = api.train(recipe, settings, out=out, on_event=note)
    figures = system.evaluate()
    trained = [each for each in system.model.parameters() if each.requires_grad]
    return {
        "score": figures.get(system.run.train.metric),
        "trained": sum(each.numel() for each in trained),
        "every": sum(each.numel() for name, each in system.model.named_parameters() if not name.startswith("tune.")),
        "file": (Path(out) / "model.safetensors").stat().st_size / 2**20,
        "step": 1000 * pace(events),
        "peak": peaks[-1],
    }


def pace(events: list[dict[str, Any]]) -> float:
    """Seconds of an update: the median over stretches between two records in which nothing was evaluated."""
    found, last = [], None
    for event in events:
        if event["event"] == "train":
            if last is not None:
                found.append((event["seconds"] - last["seconds"]) / (event["step"] - last["step"]))
            last = event
        else:
            last = None
    return statistics.median(found) if found else float("nan")


def resident() -> float:
    from ..corpus import peak

    return peak() * 1e6 / 2**20


def rows(found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    table = [HEAD]
    for kind, runs in found.items():
        scores = [run["score"] for run in runs]
        spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
        first = runs[0]
        table.append([
            kind, f"{statistics.mean(scores):.4f}{spread}", f"{len(scores)}", f"{first['trained']:,}",
            f"{100 * first['trained'] / first['every']:.2f} %", f"{first['file']:.2f}",
            f"{statistics.median(run['step'] for run in runs):.2f}", f"{max(run['peak'] for run in runs):,.0f}",
        ])  # fmt: skip
    return table


def settings_of(words: list[str], kind: str) -> dict[str, str]:
    """Those of all kinds, then what this kind has, then what was said for it alone."""
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
            sys.exit(f"{which} is no kind; expected one of {', '.join(KINDS)}")
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
    asked = parser.parse_intermixed_args(arguments)
    if asked.one:
        try:
            print(json.dumps(one(asked.recipe, json.loads(asked.one), str(asked.out))))
        except UserError as mistake:
            print(f"regard: {mistake}", file=sys.stderr)
            sys.exit(2)
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in asked.kinds:
        for seed in range(1, asked.seeds + 1):
            settings = settings_of(asked.settings, kind) | {"train.seed": str(seed), "train.tensorboard": "false"}
            own = [sys.executable, "-m", "benchmarks.tune", asked.recipe, "--one", json.dumps(settings)]
            done = subprocess.run([*own, "--out", f"{asked.out / f'{kind}-{seed}'}"], stdout=subprocess.PIPE)
            if done.returncode:  # it has said why
                sys.exit(done.returncode)
            found.setdefault(kind, []).append(json.loads(done.stdout.splitlines()[-1]))
            print(kind, seed, found[kind][-1], file=sys.stderr, flush=True)
    print(json.dumps(found) if asked.json else "\n".join(aligned(rows(found))))


if __name__ == "__main__":
    main()
