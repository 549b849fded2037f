"""Pictures of attention."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ..files import atomic_write, check_picture_path

CELL, LARGEST = 0.34, 24.0  # inches: a cell, and all of them where they are many
NAME = 0.2  # inches that a name needs; of cells that are smaller not every one has its name
LETTERS = 13  # of a title, in an inch


def draw(path: Path, weights: Tensor, queries: Sequence[str], keys: Sequence[str], title: str = "") -> None:
    """A PNG of weights (queries, keys): one row for each query, dark where it looks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = check_picture_path(Path(path))
    cell = min(CELL, LARGEST / max(len(keys), len(queries), 1))
    step = math.ceil(NAME / cell)
    wide, font = 1.9 + cell * len(keys), min(9.0, 9 * cell * step / CELL)
    figure = Figure(figsize=(wide, 1.7 + cell * len(queries)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    picture = axes.imshow(weights.float().numpy(), cmap="Blues", vmin=0.0, aspect="equal")
    axes.set_xticks(range(0, len(keys), step), [shown(piece) for piece in keys[::step]], rotation=90, fontsize=font)
    axes.set_yticks(range(0, len(queries), step), [shown(piece) for piece in queries[::step]], fontsize=font)
    axes.xaxis.tick_top()
    if step == 1:
        axes.set_xticks([x - 0.5 for x in range(1, len(keys))], minor=True)
        axes.set_yticks([y - 0.5 for y in range(1, len(queries))], minor=True)
        axes.grid(which="minor", color="#dddddd", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    figure.colorbar(picture, ax=axes, shrink=0.6, aspect=18)
    if title:
        figure.supxlabel(textwrap.fill(title, round(LETTERS * wide)), fontsize=9, color="#555555")
    with atomic_write(path) as draft:
        figure.savefig(draft, format="png")


def shown(piece: str) -> str:
    """Spaces of other kinds become visible, and $ is not read as the start of a formula."""
    return "".join("·" if letter.isspace() else letter for letter in piece).replace("$", r"\$")
