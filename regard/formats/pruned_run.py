"""Runs whose attention heads are pruned: write one, and give it full heads again for formats that need them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..adapt.heads import HeadName, all_heads, head_sites, parse_heads
from ..adapt.mute import muted_copy
from ..adapt.outliers import random_inputs, smallest_vocab
from ..adapt.prune import fill_heads, remove_heads
from ..config import measured
from ..config.run_folder import is_run, read_run, write_run
from ..errors import UserError
from ..families import family
from ..files import JsonMapping, JsonObject, atomic_write
from ..parts.layer import smallest_context
from .parity import check_close

if TYPE_CHECKING:
    from ..tasks.predictor import AnyPredictor

METRICS = "metrics.jsonl"
PROBE_TOKENS = 9  # tokens per text that are compared
LEAST = "least:"


def prune_run(
    path: Path, out: Path, load: "Callable[[Path], AnyPredictor]", heads: str, effect: Path | None
) -> dict[str, str]:
    """Write the run at `path` without these heads to `out`; return a report of the checks.

    `heads` are names, or least:K: the K heads whose muting costs least according to the JSON file `effect`. `load`
    returns the run's predictor in fp32 on the CPU.
    """
    if not is_run(path):
        raise UserError(f"{path} is not a run folder: it has no run.json; give one that `regard train` wrote")
    if out.exists():
        raise UserError(f"{out} exists; choose another --out, so that nothing there is lost")
    if effect is not None and not heads.startswith(LEAST):
        raise UserError(f"--effect is for --heads least:K, but --heads is {heads}; leave --effect out")
    predictor = load(path)
    if (kind := predictor.run.tune.kind) != "none":
        raise UserError(f"{path} is tuned over another model by {kind}; prune its base, or merge it first")
    model = predictor.module
    count = sum(map(torch.numel, model.parameters()))
    chosen = least_useful(heads, effect, model) if heads.startswith(LEAST) else parse_heads(heads, model, "--heads")
    muted = probe_logits(predictor, muted_copy(model, chosen))
    remove_heads(model, chosen)
    difference = check_close("pruning gives logits", probe_logits(predictor), muted)
    about = read_run(path)
    names = [*predictor.run.pruned_heads, *map(str, chosen)]
    about |= {"config": about["config"] | {"pruned_heads": names}}
    about.get(measured.KEY, {}).pop("alignment", None)  # its head may have gone, and the others have new numbers
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as draft:
        write_copy(path, draft, about, model)
    remaining = len(all_heads(head_sites(model)))
    return {
        "out": str(out),
        "heads": f"{len(chosen)} removed, {remaining} left: {', '.join(map(str, chosen))}",
        "parameters": f"{count:,} -> {sum(map(torch.numel, model.parameters())):,}",
        "checked": f"logits apart from those of the muted model by {difference:.1g} (relative)",
    }


def least_useful(heads: str, effect: Path | None, model: nn.Module) -> list[HeadName]:
    """The K heads of `least:K` whose muting costs least; every layer keeps its most useful head."""
    count = heads.removeprefix(LEAST)
    if not count.isdecimal() or not int(count):
        raise UserError(f"--heads is {heads}; expected least: and a number, such as least:8, or names such as 3.2,4.1")
    if effect is None:
        remedy = "write it with `regard look RUN --effect --out FILE`"
        raise UserError(f"--heads is {heads}, which needs --effect FILE; {remedy}")
    drops = read_effect(effect)
    sites = head_sites(model)
    missing = [str(head) for head in all_heads(sites) if str(head) not in drops]
    if missing:
        raise UserError(f"{effect} has no effect of head {missing[0]}; measure this run: `regard look RUN --effect`")
    spared = {max(site.heads, key=lambda head: drops[str(head)]) for site in sites}
    ranked = sorted((head for head in all_heads(sites) if head not in spared), key=lambda head: drops[str(head)])
    if len(ranked) < int(count):
        raise UserError(f"--heads is {heads}, but only {len(ranked)} can go: every layer keeps one; use less")
    return ranked[: int(count)]


def read_effect(path: Path) -> dict[str, float]:
    """The drop of the score for every head by name."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["heads"]
        return {str(entry["head"]): float(entry["zero"]) for entry in entries}
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "write one with `regard look RUN --effect --out FILE`"
        raise UserError(f"{path} is not an effect file; {remedy}") from error


def with_filled_heads(predictor: "AnyPredictor") -> "AnyPredictor":
    """The predictor of a pruned run with all heads: those that were pruned are zeros, which changes no output."""
    run = predictor.run
    full = family(run.model.family).Model(run.model).to(predictor.device).eval()
    filled = predictor.with_model(fill_heads(full, predictor.module))
    filled.run = run.model_copy(update={"pruned_heads": ()})
    return filled


@torch.no_grad()
def probe_logits(predictor: "AnyPredictor", model: nn.Module | None = None) -> Tensor:
    """The logits for a few random tokens, in as many texts as the model reads at once."""
    module = predictor.module
    context = smallest_context(module)
    room = PROBE_TOKENS if context is None else context - getattr(predictor.run.tune, "length", 0)
    tokens = max(1, min(PROBE_TOKENS, room))
    inputs = random_inputs(module, smallest_vocab(predictor.run.model), 4, tokens)
    logits: Tensor = (module if model is None else model)(*inputs)
    return logits


def write_copy(path: Path, draft: Path, about: JsonMapping, model: nn.Module) -> None:
    """Write the run at `path` with other weights and another run.json. Checkpoints are not copied."""
    from ..training import save_model

    draft.mkdir()
    content: JsonObject = dict(about)
    write_run(draft, content)
    save_model(model, draft / "model.safetensors", content.get("weights", {}).get("step", 0))
    for name in {entry["file"] for entry in content["processors"].values()}:
        shutil.copy(path / name, draft / name)
    if (path / METRICS).is_file():
        shutil.copy(path / METRICS, draft / METRICS)
