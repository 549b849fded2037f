"""`python -m benchmarks scaling`: the cost of attention against text length, beside its alternatives.

Measures forward and backward of one module at equal width, alone and inside a whole layer: seconds and peak memory,
their growth exponents, and the length from which each variant is faster than dense attention.
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

from .report import align_columns
from .timing import synchronize
from .translate import environment

SIZES = ("usual", "tiny")
PARTS = ("attention", "layer")
MAX_SECONDS = 4.0  # a variant that has taken this long at some length gets no further round there


@dataclass(frozen=True)
class ScalingWorkload:
    """Sizes of the modules and lengths of the texts."""

    width: int = 128
    heads: int = 2
    radius: int = 128
    features: int = 128
    rank: int = 128
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    fitted: int = 4096  # the growth exponent is fitted from this length on
    dtype: torch.dtype = torch.float32


def make_workload(size: str, device: torch.device) -> ScalingWorkload:
    if size == "tiny":
        return ScalingWorkload(32, 2, 8, 16, 16, (32, 64, 128), 32)
    if device.type == "cuda":
        lengths = tuple(2**power for power in range(9, 17))
        return ScalingWorkload(512, 8, 256, 256, 256, lengths, 8192, torch.bfloat16)
    return ScalingWorkload()


@dataclass(frozen=True)
class Variant:
    """`build` returns a module from (batch, tokens, width) to the same shape, for texts of the given length."""

    build: Callable[[ScalingWorkload, int], nn.Module]
    theory: str  # time complexity: n tokens, d width, and its own setting


class SelfAttention(nn.Module):
    """An attention slot as self-attention."""

    def __init__(self, workload: ScalingWorkload, slot: Any, causal: bool = False) -> None:
        super().__init__()
        self.attention, self.mask = slot.build(workload.width, workload.heads), Mask(causal=causal)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, self.mask)
        return out


VARIANTS: dict[str, Variant] = {
    "dense": Variant(lambda workload, tokens: SelfAttention(workload, slots.Dense()), "n²d"),
    "window": Variant(lambda workload, tokens: SelfAttention(workload, slots.Window(radius=workload.radius)), "nwd"),
    "favor": Variant(lambda workload, tokens: SelfAttention(workload, slots.Favor(features=workload.features)), "nmd"),
    "favor causal": Variant(
        lambda workload, tokens: SelfAttention(workload, slots.Favor(features=workload.features), True), "nmd"
    ),
    "lowrank": Variant(
        lambda workload, tokens: SelfAttention(workload, slots.Lowrank(rank=workload.rank, tokens=tokens)), "nrd"
    ),
    "blocks": Variant(lambda workload, tokens: SelfAttention(workload, slots.Blocks(size=workload.radius // 4)), "nbd"),
    "rnn": Variant(lambda workload, tokens: standalone_recurrence(workload.width), "nd²"),
    "cnn": Variant(lambda workload, tokens: standalone_convolution(workload.width), "knd²"),
}


class FullLayer(nn.Module):
    """A layer of the measured module and a feed-forward, each with its residual."""

    def __init__(self, workload: ScalingWorkload, inside: nn.Module) -> None:
        super().__init__()
        self.inside, self.feed = inside, FeedForward(workload.width, 4 * workload.width, "gelu")
        self.first, self.second = (Residual(nn.LayerNorm(workload.width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x, self.inside), lambda y: self.feed(y, Mask()))
        return x


# --- measuring -------------------------------------------------------------------------------------------------------


def forward_backward(module: nn.Module, x: Tensor) -> None:
    module(x).sum().backward()
    module.zero_grad()
    x.grad = None


def peak_bytes(module: nn.Module, x: Tensor) -> int:
    """The peak memory of a pass, without weights and input.

    On a CPU it is the sum of torch's allocator events; the memory of the process would include unrelated parts.
    """
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        forward_backward(module, x)
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise it logs every start and stop
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        forward_backward(module, x)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    events.sort(key=lambda event: event.start_ns())
    return int(np.cumsum([0, *(event.nbytes() for event in events)]).max())


def measure(
    workload: ScalingWorkload, part: str, tokens: int, rounds: int, device: torch.device
) -> dict[str, tuple[float, int]]:
    """Seconds and bytes of every variant at one length; the variants take turns."""
    torch.manual_seed(1)
    x = torch.randn(1, tokens, workload.width, device=device, dtype=workload.dtype, requires_grad=True)
    modules, spent, bytes = {}, {name: list[float]() for name in VARIANTS}, {}
    for name, variant in VARIANTS.items():
        module = variant.build(workload, tokens)
        module = (module if part == "attention" else FullLayer(workload, module)).to(device, workload.dtype)
        forward_backward(module, x)  # warm-up: the first product allocates its workspace
        modules[name], bytes[name] = module, peak_bytes(module, x)
    for _ in range(rounds):
        for name, module in modules.items():
            if sum(spent[name]) < MAX_SECONDS:
                synchronize(device)
                began = time.perf_counter()
                forward_backward(module, x)
                synchronize(device)
                spent[name].append(time.perf_counter() - began)
    return {name: (statistics.median(spent[name]), bytes[name]) for name in VARIANTS}


def growth(lengths: list[int], values: list[float], since: int) -> float:
    """The exponent p of values ~ length^p, by least squares from length `since` on."""
    points = [(n, max(value, 1e-12)) for n, value in zip(lengths, values, strict=True) if n >= since]
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def crossing(lengths: list[int], dense: list[float], other: list[float]) -> float | None:
    """The length from which `other` is faster, interpolated linearly in the logarithms; 0: always, None: never."""
    gaps = [float(np.log(a / b)) for a, b in zip(dense, other, strict=True)]
    last = next(
        (i for i in reversed(range(len(gaps))) if gaps[i] <= 0), -1
    )  # the last length where dense is not slower
    if last == len(gaps) - 1:
        return None
    if last < 0:
        return 0.0
    share = -gaps[last] / (gaps[last + 1] - gaps[last])
    return float(lengths[last] * (lengths[last + 1] / lengths[last]) ** share)


# --- the report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """One part: seconds and bytes of every variant at every length."""

    part: str
    lengths: list[int]
    since: int
    seconds: dict[str, list[float]]
    bytes: dict[str, list[int]]

    def values(self) -> dict[str, Any]:
        variants = {
            name: {
                "seconds": self.seconds[name],
                "bytes": self.bytes[name],
                "growth": growth(self.lengths, self.seconds[name], self.since),
                "memory growth": growth(self.lengths, [float(each) for each in self.bytes[name]], self.since),
                "faster than dense from": crossing(self.lengths, self.seconds["dense"], self.seconds[name]),
                "theory": VARIANTS[name].theory,
            }
            for name in self.seconds
        }
        return {"part": self.part, "lengths": self.lengths, "fitted from": self.since, "ways": variants}

    def table(self) -> str:
        values = self.values()["ways"]
        sizes = [f"{n:,}" for n in self.lengths]
        time = [[f"{self.part}, ms", *sizes, f"growth from {self.since:,}", "theory", "faster than dense"]]
        memory = [[f"{self.part}, peak MiB", *sizes, f"growth from {self.since:,}"]]
        for name, own in values.items():
            from_ = "" if name == "dense" else format_crossing(own["faster than dense from"], self.lengths)
            spent = [f"{1000 * each:,.4g}" for each in own["seconds"]]
            time.append([name, *spent, f"{own['growth']:.2f}", own["theory"], from_])
            memory.append([name, *(f"{each / 2**20:,.1f}" for each in own["bytes"]), f"{own['memory growth']:.2f}"])
        return "\n".join([*align_columns(time), "", *align_columns(memory)])


def format_crossing(tokens: float | None, lengths: list[int]) -> str:
    if tokens is None:
        return f"not up to {lengths[-1]:,}"
    return f"from {tokens:,.0f} tokens" if tokens else f"from {lengths[0]:,} or less"


@dataclass(frozen=True)
class ScalingReport:
    """The curves of all parts."""

    about: dict[str, Any]
    curves: list[Curves]

    def values(self) -> dict[str, Any]:
        return {"bench": "scaling", **self.about, "parts": [each.values() for each in self.curves]}

    def table(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return "\n\n".join([f"scaling: {about}", *(each.table() for each in self.curves)])

    def draw(self, path: Path) -> None:
        from .plot import draw

        draw(path, self.curves, f"{self.about['device']}, width {self.about['width']}, {self.about['dtype']}")


def main(device: str, size: str, rounds: int, parts: tuple[str, ...]) -> ScalingReport:
    where = resolve_device(device)
    workload = make_workload(size, where)
    curves = []
    for part in parts:
        found = []
        for tokens in workload.lengths:
            print(f"timing {part} at {tokens:,} tokens …", file=sys.stderr)
            found.append(measure(workload, part, tokens, rounds, where))
        seconds, bytes = ({name: [each[name][i] for each in found] for name in VARIANTS} for i in (0, 1))
        curves.append(Curves(part, list(workload.lengths), workload.fitted, seconds, bytes))  # type: ignore[arg-type]
    settings = {name: getattr(workload, name) for name in ("width", "heads", "radius", "features", "rank")}
    options = {"size": size, "rounds": rounds, "dtype": str(workload.dtype).removeprefix("torch.")}
    return ScalingReport(environment(where) | settings | options, curves)
