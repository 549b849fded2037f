"""Draw curves over a common axis."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..files import atomic_write, check_picture_path
from .draw import UNDATED

STYLES = ("-", "--", "-.", ":")


def draw_curves(
    path: Path, places: Sequence[float], lines: Mapping[str, Sequence[float]], across: str, up: str
) -> None:
    """Draw named lines over `places` to a PNG, PDF or SVG file."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = check_picture_path(Path(path))
    figure = Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (name, values) in enumerate(lines.items()):
        axes.plot(places, values, STYLES[number % len(STYLES)], marker="o", markersize=3, label=name)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.legend(fontsize=8)
    kind = path.suffix.lower()
    with atomic_write(path) as draft, rc_context({"svg.hashsalt": "regard"}):
        figure.savefig(draft, format=kind[1:], metadata=UNDATED[kind])
