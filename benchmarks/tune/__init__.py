"""`python -m benchmarks tune`: full and parameter-efficient training of BERT, and inference with LoRA.

`python -m benchmarks.tune` compares the scores of the methods on your own data and model.
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
from regard.config.train import AdamW
from regard.config.tuning import Adapter, Lora, Prefix, Prompt
from regard.device import resolve_device
from regard.errors import UserError
from regard.families import bert
from regard.parts import Inputs
from regard.parts.losses import smoothed_cross_entropy
from regard.training import optim
from regard.training.checkpoint import tensors_to_save

from ..report import Report, Section
from ..timing import RunRound, rounds
from ..translate import environment

SIZES = ("base", "tiny")
PARTS = ("training", "reading")
KINDS: dict[str, Any] = {"lora": Lora(), "adapter": Adapter(), "prompt": Prompt(), "prefix": Prefix()}
FULLY_TRAINED = ("pooler.weight", "pooler.bias", "classes.weight", "classes.bias")  # a new head, always trained
TOLERANCE = 1e-4


@dataclass(frozen=True)
class TuneWorkload:
    """The batch and the number of steps."""

    rows: int = 4
    tokens: int = 64
    steps: int = 1  # in a round
    precision: str = "fp32"


def make_workload(size: str, device: torch.device) -> TuneWorkload:
    if size == "tiny":
        return TuneWorkload(rows=2, tokens=12)
    return TuneWorkload(32, 128, 10, "bf16") if device.type == "cuda" else TuneWorkload()


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where = resolve_device(device)
    workload, sections = make_workload(size, where), []
    shape = {"vocab": 30522, "head": "class", "labels": 2, "size": size}
    c = bert.Config.model_validate(bert.SIZES[size] | shape | ({"vocab": 300} if size == "tiny" else {}))
    if "training" in parts:
        print("timing training …", file=sys.stderr)
        sections.append(training(c, workload, where, count))
    if "reading" in parts:
        print("timing reading …", file=sys.stderr)
        sections.append(inference(c, workload, where, count))
    return Report("tune", environment(where) | {"size": size, "rounds": count}, sections)


def build_model(c: bert.Config, kind: str, device: torch.device) -> Any:
    """A model with random weights, tuned with `kind`; `full`: without tuning."""
    torch.manual_seed(1)
    model = bert.Model(c).to(device)
    return tune.attach(model, KINDS[kind], FULLY_TRAINED) if kind != "full" else model


def batch(c: bert.Config, workload: TuneWorkload, device: torch.device) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(c.vocab, (workload.rows, workload.tokens), generator=generator)
    return Inputs("tokens", ids.to(device))


def training(c: bert.Config, workload: TuneWorkload, device: torch.device, count: int) -> Section:
    """Adam steps on one batch; for each kind its trained parameters, file size and memory."""
    text, programs, facts = batch(c, workload, device), dict[str, RunRound](), list[str]()
    labels = torch.arange(workload.rows, device=device) % 2
    for kind in ("full", *KINDS):
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        model = build_model(c, kind, device).train()
        step = train_rounds(model, text, labels, workload, device)
        step(0)
        facts.append(f"{kind}: {size_facts(model, device, before)}")
        programs[kind] = step
    rates = rounds(programs, count, device)
    for i, kind in enumerate(programs):
        facts[i] += f", {1000 * workload.rows / statistics.median(rates[kind]):.3g} ms a step"
    return Section(f"training, {workload.rows} texts of {workload.tokens}", "texts/s", rates, tuple(KINDS), facts)


def train_rounds(
    model: nn.Module, text: Inputs, labels: Tensor, workload: TuneWorkload, device: torch.device
) -> RunRound:
    optimizer = optim.build_optimizer(model, AdamW())
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def step(number: int) -> float:
        for _ in range(workload.steps):
            with optim.autocast(device, workload.precision):
                loss = smoothed_cross_entropy(model(text), labels) / len(labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return workload.steps * workload.rows

    return step


def size_facts(model: nn.Module, device: torch.device, before: int) -> str:
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
def inference(c: bert.Config, workload: TuneWorkload, device: torch.device, count: int) -> Section:
    """Time the base, LoRA as a branch and LoRA merged; the last two must give equal logits."""
    text = batch(c, workload, device)
    models = {"base": build_model(c, "full", device)} | {
        name: build_model(c, "lora", device) for name in ("beside", "merged")
    }
    for name in ("beside", "merged"):
        torch.manual_seed(2)
        for _, _, branch in lora.branches(models[name]):
            branch.up.normal_(0.0, 0.02)
    lora.merge(models["merged"])
    tune.keep_merged(models["merged"])
    logits = {name: model.eval()(text) for name, model in models.items()}
    difference = (logits["beside"] - logits["merged"]).abs().max().item()
    if difference > TOLERANCE * max(1.0, logits["beside"].abs().max().item()):
        raise UserError(f"merged and unmerged logits differ by {difference:.2g}, so nothing was timed")
    programs = {name: forward_rounds(model, text, workload) for name, model in models.items()}
    facts = [f"merged and beside: logits differ by {difference:.1g}"]
    rates = rounds(programs, count, device)
    return Section(
        f"reading, {workload.rows} texts of {workload.tokens}", "texts/s", rates, ("beside", "merged"), facts
    )


def forward_rounds(model: Callable[[Inputs], Tensor], text: Inputs, workload: TuneWorkload) -> RunRound:
    def forward(number: int) -> float:
        with torch.no_grad():
            for _ in range(workload.steps):
                model(text)
        return workload.steps * workload.rows

    return forward
