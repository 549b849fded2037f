"""Draw attention weights, confusion matrices, curves, and the objects of an image."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image, ImageFont

    from ..metrics.detection import Detection


import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..files import atomic_write, check_picture_path
from ..metrics.labels import ConfusionMatrix
from .fonts import escape, font_families

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL, MIN_PANEL = 0.34, 1.3  # inches: a cell; the side of a panel, if it has few cells
MAX_SIZE, MAX_GRID = 24.0, 40.0  # inches: all cells of one panel, and of a grid of panels
LABEL = 0.11  # inches that a label needs; if cells are smaller, only some have labels
MIN_GRID = 0.2  # inches of a cell that has lines around it
LABEL_LETTERS = 32  # longer tokens and labels are cut
TITLE_CHARACTERS = 13  # per inch
UNDATED: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}  # equal bytes


@dataclass(frozen=True)
class Axis:
    """The labels of the rows or columns of all panels, and the name of the axis."""

    name: str
    labels: Sequence[str]


@dataclass(frozen=True)
class PanelGrid:
    """The sizes of a picture with rows × columns panels, each of `height` × `width` cells."""

    rows: int
    columns: int
    height: int
    width: int

    def __len__(self) -> int:
        return self.rows * self.columns

    @property
    def cell(self) -> float:
        """The side of a cell in inches."""
        cells = max(self.columns * self.width, self.rows * self.height, 1)
        fitting = min(CELL, MAX_SIZE / cells)
        if len(self) == 1:
            return fitting
        return min(max(fitting, LABEL, MIN_PANEL / max(self.width, 1)), MAX_GRID / cells)

    @property
    def step(self) -> int:
        """The cells from one label to the next."""
        return math.ceil(LABEL / self.cell)

    @property
    def font(self) -> float:
        """The size of labels in points."""
        return min(9.0, 54 * self.cell * self.step)

    def figure(self, row_labels: Sequence[str], column_labels: Sequence[str]) -> tuple[float, float]:
        """Width and height in inches, with room for the labels, titles and the color bar."""
        left, top = (max(map(len, labels), default=0) * self.font / 110 for labels in (row_labels, column_labels))
        wide = 1.6 + left + 0.2 * (self.columns - 1) + self.columns * self.width * self.cell
        return wide, 1.3 + top + 0.35 * (self.rows - 1) + self.rows * self.height * self.cell


def draw_matrices(
    path: Path, panels: Sequence[Mapping[str, Tensor]], rows: Axis, columns: Axis, title: str = "", caption: str = ""
) -> None:
    """Draw matrices (rows, columns), darker for larger values, to a PNG, PDF or SVG file.

    `panels` has a mapping from title to matrix for every row of the picture.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = check_picture_path(Path(path))
    layout = PanelGrid(len(panels), max(map(len, panels)), len(rows.labels), len(columns.labels))
    families, missing = font_families([*rows.labels, *columns.labels])
    marks = [[printable_token(text, missing) for text in axis.labels[:: layout.step]] for axis in (rows, columns)]
    size = layout.figure(*marks)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(layout.rows, layout.columns, squeeze=False)
    largest = max(float(matrix.max()) for line in panels for matrix in line.values())
    for number, line in enumerate(panels):
        for axes, (name, matrix) in zip(grid[number], line.items(), strict=False):
            image = axes.imshow(matrix.float().numpy(), cmap="Blues", vmin=0.0, vmax=largest, aspect="equal")
            axes.set_title(name if len(layout) > 1 else "", fontsize=9)
            _draw_ticks(axes, layout, [[], marks[1]][number == 0], families, of_rows=False)
            _draw_ticks(axes, layout, [[], marks[0]][axes is grid[number][0]], families, of_rows=True)
        for axes in grid[number][len(line) :]:  # a layer with fewer heads
            axes.set_visible(False)
    for axes in grid[0]:
        axes.set_xlabel(columns.name, fontsize=9)
        axes.xaxis.set_label_position("top")
    for axes in grid[:, 0]:
        axes.set_ylabel(rows.name, fontsize=9)
    figure.colorbar(image, ax=list(grid.flat), shrink=0.6, aspect=18)
    characters = round(TITLE_CHARACTERS * size[0])
    alone = [title, *panels[0]] if len(layout) == 1 else [title]
    figure.suptitle(textwrap.fill(", ".join(filter(None, alone)), characters), fontsize=10)
    figure.supxlabel(textwrap.fill(caption, characters), fontsize=9, color="#555555")
    suffix = path.suffix.lower()
    with atomic_write(path) as draft, rc_context({"svg.hashsalt": "regard"}):
        figure.savefig(draft, format=suffix[1:], metadata=UNDATED[suffix])


def _draw_ticks(axes: "Axes", layout: PanelGrid, marks: list[str], families: list[str], of_rows: bool) -> None:
    """Label the cells of one axis; without marks, draw only the grid between them."""
    axis, cells = (axes.yaxis, layout.height) if of_rows else (axes.xaxis, layout.width)
    places = range(0, cells, layout.step)[: len(marks)]
    axis.set_ticks(places, marks, fontsize=layout.font, fontfamily=families, rotation=0 if of_rows else 90)
    if not of_rows:
        axes.xaxis.tick_top()
    if layout.cell >= MIN_GRID:
        axis.set_ticks([x - 0.5 for x in range(1, cells)], minor=True)
        axes.grid(which="minor", color="#dddddd", linewidth=0.5)
    axes.tick_params(which="both", length=0)


def printable_token(token: str, missing: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    """The token with visible whitespace, codes for characters without a glyph, and $ escaped (for matplotlib)."""
    letters = ["·" if letter.isspace() else escape(letter) if letter in missing else letter for letter in token]
    text = "".join(letters)
    return (text if len(text) <= LABEL_LETTERS else text[: LABEL_LETTERS - 1] + "…").replace("$", r"\$")


def draw_confusion(path: Path, matrix: ConfusionMatrix) -> None:
    """Draw a confusion matrix to a picture: each row shows the predictions for one label, as fractions."""
    labels = matrix.labels
    counts = torch.tensor([[matrix[a].get(b, 0) for b in labels] for a in labels], dtype=torch.float)
    fractions = counts / counts.sum(1, keepdim=True).clamp(min=1)
    caption = "each row: the predictions for that label, as fractions of its examples"
    draw_matrices(path, [{"": fractions}], Axis("gold", labels), Axis("predicted", labels), "confusion matrix", caption)


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
    suffix = path.suffix.lower()
    with atomic_write(path) as draft, rc_context({"svg.hashsalt": "regard"}):
        figure.savefig(draft, format=suffix[1:], metadata=UNDATED[suffix])


COLORS = (
    (214, 39, 40), (31, 119, 180), (44, 160, 44), (255, 127, 14), (148, 103, 189), (23, 190, 207), (227, 119, 194),
    (140, 86, 75), (188, 189, 34),
)  # fmt: skip


SMALLEST = 320  # the shorter side of a drawing: smaller images are enlarged, so that names are legible


def draw_objects(image: "Image.Image", objects: Sequence["Detection"], labels: Sequence[str]) -> "Image.Image":
    """A copy of the image with labels, scores and boxes; the color depends on the index of the label."""
    from PIL import ImageDraw

    times = max(-(-SMALLEST // min(image.size)), 1)
    picture = image.resize((image.width * times, image.height * times), 0)
    line = max(round(min(picture.size) / 240), 2)
    font, canvas = _font(max(round(min(picture.size) / 32), 10)), ImageDraw.Draw(picture)
    for detected in reversed(objects):  # the likeliest come last, on top
        color = COLORS[labels.index(detected.label) % len(COLORS)]
        corners = [coordinate * times for coordinate in detected.box]
        canvas.rectangle(corners, outline=color, width=line)
        text = f"{detected.label} {detected.score:.2f}"
        _, _, width, height = canvas.textbbox((0, 0), text, font)
        left = min(max(corners[0], 0), max(picture.width - width - 4, 0))
        top = corners[1] - height - 4 if corners[1] >= height + 4 else corners[1]
        canvas.rectangle((left, top, left + width + 4, top + height + 4), fill=color)
        canvas.text((left + 2, top + 1), text, (255, 255, 255), font)
    return picture


@cache
def _font(size: int) -> "ImageFont.FreeTypeFont":
    import matplotlib
    from PIL import ImageFont

    data: Any = matplotlib.get_data_path()
    return ImageFont.truetype(str(Path(data, "fonts", "ttf", "DejaVuSans.ttf")), size)
