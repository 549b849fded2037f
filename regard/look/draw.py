"""Pictures of attention."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ..files import replacing


def draw(path: Path, weights: Tensor, queries: Sequence[str], keys: Sequence[str], title: str = "") -> None:
    """A PNG of weights (queries, keys): one row for each query, dark where it looks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cell = 0.34  # inches
    figure = Figure(figsize=(1.9 + cell * len(keys), 1.7 + cell * len(queries)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    picture = axes.imshow(weights.float().numpy(), cmap="Blues", vmin=0.0, aspect="equal")
    axes.set_xticks(range(len(keys)), [shown(piece) for piece in keys], rotation=90, fontsize=9)
    axes.set_yticks(range(len(queries)), [shown(piece) for piece in queries], fontsize=9)
    axes.xaxis.tick_top()
    axes.set_xticks([x - 0.5 for x in range(1, len(keys))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(queries))], minor=True)
    axes.grid(which="minor", color="#dddddd", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    figure.colorbar(picture, ax=axes, shrink=0.6, aspect=18)
    if title:
        axes.set_xlabel(title, fontsize=9, color="#555555")
    with replacing(path) as draft:
        figure.savefig(draft, format="png")


def shown(piece: str) -> str:
    """Spaces of other kinds become visible, and $ is not read as the start of a formula."""
    return "".join("·" if letter.isspace() else letter for letter in piece).replace("$", r"\$")
