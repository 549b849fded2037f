"""Draw attention weights and confusion matrices."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..files import atomic_write, check_picture_path
from ..metrics.labels import ConfusionMatrix

CELL, MAX_SIZE = 0.34, 24.0  # inches: a cell, and the whole matrix at most
LABEL = 0.2  # inches that a label needs; if cells are smaller, only some have labels
TITLE_CHARACTERS = 13  # per inch


def draw(path: Path, weights: Tensor, queries: Sequence[str], keys: Sequence[str], title: str = "") -> None:
    """Draw weights (queries, keys) to a PNG file: one row per query, darker for larger weights."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = check_picture_path(Path(path))
    cell = min(CELL, MAX_SIZE / max(len(keys), len(queries), 1))
    step = math.ceil(LABEL / cell)
    wide, font = 1.9 + cell * len(keys), min(9.0, 9 * cell * step / CELL)
    figure = Figure(figsize=(wide, 1.7 + cell * len(queries)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(weights.float().numpy(), cmap="Blues", vmin=0.0, aspect="equal")
    columns, rows = ([printable_token(token) for token in tokens[::step]] for tokens in (keys, queries))
    axes.set_xticks(range(0, len(keys), step), columns, rotation=90, fontsize=font)
    axes.set_yticks(range(0, len(queries), step), rows, fontsize=font)
    axes.xaxis.tick_top()
    if step == 1:
        axes.set_xticks([x - 0.5 for x in range(1, len(keys))], minor=True)
        axes.set_yticks([y - 0.5 for y in range(1, len(queries))], minor=True)
        axes.grid(which="minor", color="#dddddd", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    figure.colorbar(image, ax=axes, shrink=0.6, aspect=18)
    if title:
        figure.supxlabel(textwrap.fill(title, round(TITLE_CHARACTERS * wide)), fontsize=9, color="#555555")
    with atomic_write(path) as draft:
        figure.savefig(draft, format="png")


def printable_token(token: str) -> str:
    """The token with visible whitespace, and with $ escaped: matplotlib would read a formula."""
    return "".join("·" if letter.isspace() else letter for letter in token).replace("$", r"\$")


def draw_confusion(path: Path, matrix: ConfusionMatrix) -> None:
    """Draw a confusion matrix to a PNG file: each row shows the predictions for one label, as fractions."""
    labels = matrix.labels
    counts = torch.tensor([[matrix[a].get(b, 0) for b in labels] for a in labels], dtype=torch.float)
    fractions = counts / counts.sum(1, keepdim=True).clamp(min=1)
    draw(path, fractions, labels, labels, "each row: the predictions for that label, as fractions of its examples")
