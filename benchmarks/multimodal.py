"""`python -m benchmarks multimodal`: training steps of one model on texts, images and sound, mixed and alone.

A step has the same number of positions that enter the shared encoder, whatever they are. In the part `training` it has
three micro-batches: of one kind, or one of each kind. In `small-steps` one kind needs only one micro-batch, three times
as large as each of the three of a mixed step. On a GPU it is bf16 autocast with fp32 weights.
"""

import sys
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.config.losses import SmoothedLoss
from regard.data.batch import Batch
from regard.device import resolve_device
from regard.families import omni
from regard.parts import Inputs
from regard.tasks.objectives import Seq2SeqCtcObjective
from regard.training.step import GradientStep

from .report import Report, Section
from .timing import RunRound, rounds
from .translate import environment

SIZES = ("base", "tiny")
PARTS = ("training", "small-steps")
KINDS = ("text", "images", "sound")
STRIDE = 4  # frames of a position


@dataclass(frozen=True)
class MixedWorkload:
    """How much is measured."""

    model: dict[str, Any]
    positions: int  # of a micro-batch of one kind
    repeats: int  # steps of a round
    tokens: int = 32  # of a source text and of its target
    seconds: int = 4  # of a recording, at 100 frames per second
    caption: int = 16  # tokens of the target of an image


def make_workload(size: str, device: torch.device) -> MixedWorkload:
    if size == "tiny":
        small = {"width": 32, "heads": 2, "layers": 1, "decoder_layers": 1, "inner": 64, "image": 16, "vocab": 100}
        return MixedWorkload(omni.SIZES["tiny"] | small, 300, 1, seconds=1)
    positions, repeats = (49152, 6) if device.type == "cuda" else (2400, 1)
    return MixedWorkload(omni.SIZES["base"] | {"vocab": 8000}, positions, repeats)


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where = resolve_device(device)
    workload = make_workload(size, where)
    config = omni.Config.model_validate(workload.model)
    torch.manual_seed(1)
    model = omni.Model(config).to(where).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5, fused=True)
    precision = "bf16" if where.type == "cuda" else "fp32"
    step = GradientStep(Seq2SeqCtcObjective(model, SmoothedLoss(), 0), where, precision=precision)
    ready = lambda batch: batch.pin() if where.type == "cuda" else batch  # noqa: E731  # a step copies it to the device

    def micro_batches(kinds: tuple[str, ...], count: int) -> list[Batch]:
        made = {kind: ready(make_batch(kind, workload, config, count)) for kind in dict.fromkeys(kinds)}
        return [replace(made[kind], number=number) for number, kind in enumerate(kinds)]

    def run_round(kinds: tuple[str, ...], count: int) -> RunRound:
        own = micro_batches(kinds, count)
        work = sum(
            len(batch["source"]) * row_positions(kind, workload, config) for kind, batch in zip(kinds, own, strict=True)
        )

        def go(number: int) -> float:
            for each in range(workload.repeats):
                step.run(number * workload.repeats + each, own)
                optimizer.step()
                optimizer.zero_grad()
            return float(workload.repeats * work)

        return go

    sections = []
    for part in parts:
        print(f"timing {part} …", file=sys.stderr)
        small = part == "small-steps"
        programs = {"mixed": run_round(KINDS, workload.positions // 3 if small else workload.positions)}
        programs |= {kind: run_round((kind,) * (1 if small else 3), workload.positions) for kind in KINDS}
        facts = [
            f"width {config.width}, {config.layers} + {config.decoder_layers or config.layers} layers; a step of about "
            f"{workload.positions * (1 if small else 3):,} positions; targets of {workload.tokens} tokens, of images "
            f"{workload.caption}"
        ]
        sections.append(Section(part, "positions/s", rounds(programs, count, where), ("mixed",), facts))
        print(sections[-1].table(), file=sys.stderr, flush=True)
    return Report("multimodal", environment(where) | {"size": size, "rounds": count}, sections)


def row_positions(kind: str, workload: MixedWorkload, config: omni.Config) -> int:
    """The positions of one input."""
    patches = (config.image // config.patch) ** 2
    return {"text": workload.tokens, "images": patches, "sound": workload.seconds * 100 // STRIDE}[kind]


def make_batch(kind: str, workload: MixedWorkload, config: omni.Config, count: int) -> Batch:
    """Random inputs of one kind with about `count` positions, and random targets."""
    generator = torch.Generator().manual_seed(2)
    rows = max(count // row_positions(kind, workload, config), 1)
    tokens = workload.caption if kind == "images" else workload.tokens
    if kind == "text":
        source = Inputs("tokens", torch.randint(4, config.vocab, (rows, workload.tokens), generator=generator))
    elif kind == "images":
        source = Inputs("pixels", torch.randn(rows, 3, config.image, config.image, generator=generator))
    else:
        source = Inputs("frames", torch.randn(rows, workload.seconds * 100, config.bins, generator=generator))
    target = torch.randint(4, config.vocab, (rows, tokens), generator=generator)
    fields = {"source": source, "target": Inputs("tokens", target), "labels": Inputs("tokens", target.roll(-1, 1))}
    return Batch(fields, rows * tokens)
