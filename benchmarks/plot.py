"""The picture of `python -m benchmarks scaling`: time and memory against length, on logarithmic axes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.files import atomic_write

COLORS = ("#222222", "#1f77b4", "#d95f02", "#e6ab02", "#1b9e77", "#7570b3", "#e7298a", "#a6761d", "#666666")


def draw(path: Path, curves: Sequence[Any], title: str) -> None:
    """Draw a PNG, PDF or SVG with one row per part: time on the left, memory on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.6 + 4.2 * len(curves)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(curves), 2, squeeze=False)
    for (left, right), each in zip(grid, curves, strict=True):
        draw_lines(left, each.lengths, {name: [1000 * s for s in own] for name, own in each.seconds.items()})
        draw_lines(right, each.lengths, {name: [b / 2**20 for b in own] for name, own in each.bytes.items()})
        left.set_title(f"{each.part}: time of forward and backward", fontsize=10)
        right.set_title(f"{each.part}: peak memory", fontsize=10)
        left.set_ylabel("ms")
        right.set_ylabel("MiB")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.suptitle(f"Cost against text length ({title})", fontsize=11)
    with atomic_write(path) as draft:
        figure.savefig(draft, format=path.suffix[1:].lower())


def draw_lines(axes: Any, lengths: Sequence[int], values_by_name: dict[str, list[float]]) -> None:
    for number, (name, values) in enumerate(values_by_name.items()):
        axes.plot(lengths, values, marker="o", markersize=3.5, color=COLORS[number % len(COLORS)], label=name)
    every = [value for own in values_by_name.values() for value in own]
    low, high = min(every), max(every)
    first, last = lengths[0], lengths[-1]
    for power, word in ((1, "n"), (2, "n²")):  # only the slope of these lines has a meaning
        rise = (last / first) ** power
        axes.plot([first, last], [low, low * rise], color="#bbbbbb", linestyle=":", linewidth=1, zorder=0)
        axes.annotate(f" {word}", (last, low * rise), color="#999999", fontsize=8, annotation_clip=False)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(0.7 * low, 2 * max(high, low * (last / first) ** 2))
    axes.set_xticks(lengths, [f"{n // 1024} k" if n >= 1024 else str(n) for n in lengths])
    axes.set_xlabel("tokens")
    axes.grid(which="major", color="#eeeeee")
