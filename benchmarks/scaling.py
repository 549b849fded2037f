"""`regard bench scaling`: what attention costs as texts grow, beside what replaced it and what it replaced.

Forward and backward of one module at equal width, alone and inside a whole layer: seconds and peak memory against the
length of a text, how fast they grow, and from which length on each way is faster than dense attention.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.device import resolve_device
from regard.parts import FeedForward, Mask, Residual, slots
from regard.parts.recurrent import standalone_convolution, standalone_recurrence
from regard.training import optim as optim

from .report import aligned
from .timing import settle
from .translate import about

SIZES = ("usual", "tiny")
PARTS = ("attention", "layer")
ENOUGH = 4.0  # seconds: a way that has taken so long at some length gets no further round there


@dataclass(frozen=True)
class Plan:
    """How large things are."""

    width: int = 128
    heads: int = 2
    radius: int = 128
    features: int = 128
    rank: int = 128
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    fitted: int = 4096  # growth is that from this length on
    dtype: torch.dtype = torch.float32


def planned(size: str, device: torch.device) -> Plan:
    if size == "tiny":
        return Plan(32, 2, 8, 16, 16, (32, 64, 128), 32)
    if device.type == "cuda":
        lengths = tuple(2**power for power in range(9, 17))
        return Plan(512, 8, 256, 256, 256, lengths, 8192, torch.bfloat16)
    return Plan()


@dataclass(frozen=True)
class Way:
    """`build` makes a module from (batch, tokens, width) to the same, for texts of so many tokens."""

    build: Callable[[Plan, int], nn.Module]
    theory: str  # how its time grows: n tokens, d width, and its own setting


class Looking(nn.Module):
    def __init__(self, plan: Plan, slot: Any, causal: bool = False) -> None:
        super().__init__()
        self.attention, self.mask = slot.build(plan.width, plan.heads), Mask(causal=causal)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attention(x, x, x, self.mask)
        return found


WAYS: dict[str, Way] = {
    "dense": Way(lambda plan, tokens: Looking(plan, slots.Dense()), "n²d"),
    "window": Way(lambda plan, tokens: Looking(plan, slots.Window(radius=plan.radius)), "nwd"),
    "favor": Way(lambda plan, tokens: Looking(plan, slots.Favor(features=plan.features)), "nmd"),
    "favor causal": Way(lambda plan, tokens: Looking(plan, slots.Favor(features=plan.features), True), "nmd"),
    "lowrank": Way(lambda plan, tokens: Looking(plan, slots.Lowrank(rank=plan.rank, tokens=tokens)), "nrd"),
    "blocks": Way(lambda plan, tokens: Looking(plan, slots.Blocks(size=plan.radius // 4)), "nbd"),
    "rnn": Way(lambda plan, tokens: standalone_recurrence(plan.width), "nd²"),
    "cnn": Way(lambda plan, tokens: standalone_convolution(plan.width), "knd²"),
}


class Whole(nn.Module):
    """A layer: what is measured, and a feed-forward, each inside its residual."""

    def __init__(self, plan: Plan, inside: nn.Module) -> None:
        super().__init__()
        self.inside, self.feed = inside, FeedForward(plan.width, 4 * plan.width, "gelu")
        self.first, self.second = (Residual(nn.LayerNorm(plan.width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x, self.inside), lambda y: self.feed(y, Mask()))
        return x


# --- measuring -------------------------------------------------------------------------------------------------------


def once(module: nn.Module, x: Tensor) -> None:
    module(x).sum().backward()
    module.zero_grad()
    x.grad = None


def peak(module: nn.Module, x: Tensor) -> int:
    """The most bytes that a pass holds at one time, beside weights and input. On a CPU these are summed up over what
    torch's allocator notes; what the process itself takes would hold much that has nothing to do with it."""
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        once(module, x)
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it tells of every start and stop
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as watched:
        once(module, x)
    noted = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    noted.sort(key=lambda event: event.start_ns())
    return int(np.cumsum([0, *(event.nbytes() for event in noted)]).max())


def measured(plan: Plan, part: str, tokens: int, rounds: int, device: torch.device) -> dict[str, tuple[float, int]]:
    """Seconds and bytes of every way at one length; the ways take turns."""
    torch.manual_seed(1)
    x = torch.randn(1, tokens, plan.width, device=device, dtype=plan.dtype, requires_grad=True)
    modules, spent, bytes = {}, {name: list[float]() for name in WAYS}, {}
    for name, way in WAYS.items():
        module = way.build(plan, tokens)
        module = (module if part == "attention" else Whole(plan, module)).to(device, plan.dtype)
        once(module, x)  # the first product of all brings its workspace along
        modules[name], bytes[name] = module, peak(module, x)
    for _ in range(rounds):
        for name, module in modules.items():
            if sum(spent[name]) < ENOUGH:
                settle(device)
                began = time.perf_counter()
                once(module, x)
                settle(device)
                spent[name].append(time.perf_counter() - began)
    return {name: (statistics.median(spent[name]), bytes[name]) for name in WAYS}


def growth(lengths: list[int], values: list[float], since: int) -> float:
    """The exponent p of values ~ length^p, by least squares from length `since` on."""
    points = [(n, max(value, 1e-12)) for n, value in zip(lengths, values, strict=True) if n >= since]
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def crossing(lengths: list[int], dense: list[float], other: list[float]) -> float | None:
    """From which length on the other one takes less, between two measured ones by a straight line in the logarithms; 0:
    always, None: nowhere here."""
    gaps = [float(np.log(a / b)) for a, b in zip(dense, other, strict=True)]
    last = next((i for i in reversed(range(len(gaps))) if gaps[i] <= 0), -1)  # the last length where dense is no worse
    if last == len(gaps) - 1:
        return None
    if last < 0:
        return 0.0
    share = -gaps[last] / (gaps[last + 1] - gaps[last])
    return float(lengths[last] * (lengths[last + 1] / lengths[last]) ** share)


# --- the report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """One part: what every way took at every length."""

    part: str
    lengths: list[int]
    since: int
    seconds: dict[str, list[float]]
    bytes: dict[str, list[int]]

    def values(self) -> dict[str, Any]:
        ways = {
            name: {
                "seconds": self.seconds[name],
                "bytes": self.bytes[name],
                "growth": growth(self.lengths, self.seconds[name], self.since),
                "memory growth": growth(self.lengths, [float(each) for each in self.bytes[name]], self.since),
                "faster than dense from": crossing(self.lengths, self.seconds["dense"], self.seconds[name]),
                "theory": WAYS[name].theory,
            }
            for name in self.seconds
        }
        return {"part": self.part, "lengths": self.lengths, "fitted from": self.since, "ways": ways}

    def table(self) -> str:
        values = self.values()["ways"]
        sizes = [f"{n:,}" for n in self.lengths]
        time = [[f"{self.part}, ms", *sizes, f"growth from {self.since:,}", "theory", "faster than dense"]]
        memory = [[f"{self.part}, peak MiB", *sizes, f"growth from {self.since:,}"]]
        for name, own in values.items():
            from_ = "" if name == "dense" else crossed(own["faster than dense from"], self.lengths)
            spent = [f"{1000 * each:,.4g}" for each in own["seconds"]]
            time.append([name, *spent, f"{own['growth']:.2f}", own["theory"], from_])
            memory.append([name, *(f"{each / 2**20:,.1f}" for each in own["bytes"]), f"{own['memory growth']:.2f}"])
        return "\n".join([*aligned(time), "", *aligned(memory)])


def crossed(tokens: float | None, lengths: list[int]) -> str:
    if tokens is None:
        return f"not up to {lengths[-1]:,}"
    return f"from {tokens:,.0f} tokens" if tokens else f"from {lengths[0]:,} or less"


@dataclass(frozen=True)
class Scaling:
    about: dict[str, Any]
    curves: list[Curves]

    def values(self) -> dict[str, Any]:
        return {"bench": "scaling", **self.about, "parts": [each.values() for each in self.curves]}

    def table(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return "\n\n".join([f"scaling: {about}", *(each.table() for each in self.curves)])

    def draw(self, path: Path) -> None:
        from .picture import draw

        draw(path, self.curves, f"{self.about['device']}, width {self.about['width']}, {self.about['dtype']}")


def main(device: str, size: str, rounds: int, parts: tuple[str, ...]) -> Scaling:
    where = resolve_device(device)
    plan = planned(size, where)
    curves = []
    for part in parts:
        found = []
        for tokens in plan.lengths:
            print(f"timing {part} at {tokens:,} tokens …", file=sys.stderr)
            found.append(measured(plan, part, tokens, rounds, where))
        seconds, bytes = ({name: [each[name][i] for each in found] for name in WAYS} for i in (0, 1))
        curves.append(Curves(part, list(plan.lengths), plan.fitted, seconds, bytes))  # type: ignore[arg-type]
    settings = {name: getattr(plan, name) for name in ("width", "heads", "radius", "features", "rank")}
    asked = {"size": size, "rounds": rounds, "dtype": str(plan.dtype).removeprefix("torch.")}
    return Scaling(about(where) | settings | asked, curves)
