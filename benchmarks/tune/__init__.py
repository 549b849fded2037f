"""`regard bench tune`: a BERT trained whole and in small parts, and read with LoRA beside its maps and in them.

`python -m benchmarks.tune` has the other half: scores on data of your own, from a model of your own.
"""

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from regard.adapt import lora, tune
from regard.config.schema import AdamW, Adapter, Lora, Prefix, Prompt
from regard.device import resolve_device
from regard.errors import UserError
from regard.families import bert
from regard.parts.losses import smoothed_cross_entropy
from regard.training import optim as optim
from regard.training.checkpoint import tensors_to_save

from ..report import Report, Section
from ..timing import Way, rounds
from ..translate import about

SIZES = ("base", "tiny")
PARTS = ("training", "reading")
KINDS: dict[str, Any] = {"lora": Lora(), "adapter": Adapter(), "prompt": Prompt(), "prefix": Prefix()}
WHOLE = ("pooler.weight", "pooler.bias", "classes.weight", "classes.bias")  # a new head, trained in any case
APART = 1e-4


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    rows: int = 4
    tokens: int = 64
    updates: int = 1  # in a round
    precision: str = "fp32"


def planned(size: str, device: torch.device) -> Plan:
    if size == "tiny":
        return Plan(rows=2, tokens=12)
    return Plan(32, 128, 10, "bf16") if device.type == "cuda" else Plan()


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where = resolve_device(device)
    plan, sections = planned(size, where), []
    shape = {"vocab": 30522, "head": "class", "labels": 2, "size": size}
    c = bert.Config.model_validate(bert.SIZES[size] | shape | ({"vocab": 300} if size == "tiny" else {}))
    if "training" in parts:
        print("timing training …", file=sys.stderr)
        sections.append(training(c, plan, where, count))
    if "reading" in parts:
        print("timing reading …", file=sys.stderr)
        sections.append(reading(c, plan, where, count))
    return Report("tune", about(where) | {"size": size, "rounds": count}, sections)


def built(c: bert.Config, kind: str, device: torch.device) -> Any:
    """A model with random weights, tuned by a kind, or `full`."""
    torch.manual_seed(1)
    model = bert.Model(c).to(device)
    return tune.attach(model, KINDS[kind], WHOLE) if kind != "full" else model


def batch(c: bert.Config, plan: Plan, device: torch.device) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(c.vocab, (plan.rows, plan.tokens), generator=draw).to(device)


def training(c: bert.Config, plan: Plan, device: torch.device, count: int) -> Section:
    """Updates of Adam on one batch; of each kind how much is trained, kept and needed."""
    tokens, ways, facts = batch(c, plan, device), dict[str, Way](), list[str]()
    labels = torch.arange(plan.rows, device=device) % 2
    for kind in ("full", *KINDS):
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        model = built(c, kind, device).train()
        step = stepper(model, tokens, labels, plan, device)
        step(0)
        facts.append(f"{kind}: {facts_of(model, device, before)}")
        ways[kind] = step
    rates = rounds(ways, count, device)
    for i, kind in enumerate(ways):
        facts[i] += f", {1000 * plan.rows / statistics.median(rates[kind]):.3g} ms an update"
    return Section(f"training, {plan.rows} texts of {plan.tokens}", "texts/s", rates, tuple(KINDS), facts)


def stepper(model: nn.Module, tokens: Tensor, labels: Tensor, plan: Plan, device: torch.device) -> Way:
    optimizer = optim.build_optimizer(model, AdamW())
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def step(number: int) -> float:
        for _ in range(plan.updates):
            with optim.autocast(device, plan.precision):
                loss = smoothed_cross_entropy(model(tokens), labels) / len(labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return plan.updates * plan.rows

    return step


def facts_of(model: nn.Module, device: torch.device, before: int) -> str:
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    every = sum(each.numel() for name, each in model.named_parameters() if not name.startswith("tune."))
    size = len(save({name: each.detach().clone().contiguous() for name, each in tensors_to_save(model).items()}))
    peak = (
        f", peak {(torch.cuda.max_memory_allocated(device) - before) / 2**20:,.0f} MiB" if device.type == "cuda" else ""
    )
    return (
        f"{trained:,} trained ({100 * trained / every:.2f} %), file {size / 2**20:.1f} MiB, "
        f"gradients and optimizer {tune.optimizer_mebibytes(trained):,.1f} MiB{peak}"
    )


@torch.no_grad()
def reading(c: bert.Config, plan: Plan, device: torch.device, count: int) -> Section:
    """The base, LoRA beside it and LoRA in it; the last two are checked equal first."""
    tokens = batch(c, plan, device)
    models = {"base": built(c, "full", device)} | {name: built(c, "lora", device) for name in ("beside", "merged")}
    for name in ("beside", "merged"):
        torch.manual_seed(2)
        for _, _, side in lora.branches(models[name]):
            side.up.normal_(0.0, 0.02)
    lora.merge(models["merged"])
    tune.keep_merged(models["merged"])
    found = {name: model.eval()(tokens) for name, model in models.items()}
    apart = (found["beside"] - found["merged"]).abs().max().item()
    if apart > APART * max(1.0, found["beside"].abs().max().item()):
        raise UserError(f"merged and unmerged logits are apart by {apart:.2g}; nothing was timed")
    ways = {name: reader(model, tokens, plan) for name, model in models.items()}
    facts = [f"merged and beside: logits apart by {apart:.1g}"]
    rates = rounds(ways, count, device)
    return Section(f"reading, {plan.rows} texts of {plan.tokens}", "texts/s", rates, ("beside", "merged"), facts)


def reader(model: Callable[[Tensor], Tensor], tokens: Tensor, plan: Plan) -> Way:
    def read(number: int) -> float:
        with torch.no_grad():
            for _ in range(plan.updates):
                model(tokens)
        return plan.updates * plan.rows

    return read
