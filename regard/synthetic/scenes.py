"""Embedded images with boxes: scenes of up to four shapes on a noisy background."""

import math
from collections.abc import Sequence

import numpy as np

from ..data.sources.boxes import BoxData, Objects
from ..processors.labels import LabelSet
from .generated import GeneratedSource

SIDE, DRAWN = 64, 4  # pixels of an image; drawn that many times larger, so that edges are smooth
SHAPES = ("circle", "square", "triangle", "cross")
COLORS = (
    (220, 60, 50), (60, 160, 70), (60, 90, 210), (235, 200, 60), (160, 70, 180), (240, 140, 40), (70, 190, 200),
    (240, 240, 240), (30, 30, 30),
)  # fmt: skip
MOST, SMALLEST, LARGEST = 4, 10, 28  # shapes of a scene, and their sizes in pixels
OVERLAP = 0.15  # of the smaller of two boxes, at most
TRIES = 30  # to place a shape
HELD_OUT = 500  # images for validation, and for test

Point = tuple[float, float]


class SceneSource(GeneratedSource, BoxData):
    """Scenes of shapes, which are cached."""

    noun = "image"

    def __init__(self, split: str, count: int) -> None:
        super().__init__(split, count, "scenes")
        self.labels = LabelSet(dict.fromkeys(SHAPES, 0))
        self.categories = {name: number + 1 for number, name in enumerate(SHAPES)}
        self._drawn = dict[int, tuple[np.ndarray, Objects]]()  # 12 kB each

    def item(self, index: int) -> tuple[np.ndarray, Objects]:
        if index not in self._drawn:
            image, boxes, labels = draw_scene(self.rng(index))
            areas, crowd = (boxes[:, 2:] - boxes[:, :2]).prod(1), np.zeros(len(boxes), bool)
            self._drawn[index] = image, Objects(boxes, labels, crowd, areas, index + 1, SIDE, SIDE)
        return self._drawn[index]

    def fingerprint(self) -> str:
        return f"scenes {self.split} {len(self)}"


def make_scenes(examples: int) -> dict[str, BoxData]:
    """Train, valid and test: different drawings of the same shapes."""
    counts = {"train": examples, "valid": HELD_OUT, "test": HELD_OUT}
    return {split: SceneSource(split, count) for split, count in counts.items()}


def draw_scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """An image (64, 64, 3), the corners of its shapes, and their names: one to four shapes, rarely none."""
    from PIL import Image, ImageDraw

    ground = rng.integers(60, 200, 3)
    canvas = Image.new("RGB", (SIDE * DRAWN, SIDE * DRAWN), tuple(ground.tolist()))
    draw, boxes, labels = ImageDraw.Draw(canvas), list[list[float]](), list[str]()
    for _ in range(int(rng.integers(MOST + 1)) or int(rng.integers(MOST + 1))):
        label, color = SHAPES[int(rng.integers(len(SHAPES)))], _distinct_color(ground, rng)
        outlines, box = _place(label, boxes, rng)
        if box is None:
            continue
        for outline in outlines:
            points = [(x * DRAWN, y * DRAWN) for x, y in outline]
            draw.polygon(points, color)
        boxes.append(box)
        labels.append(label)
    small = np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
    light = np.linspace(-1, 1, SIDE)[:, None, None] * rng.uniform(-25, 25) + rng.normal(
        0, rng.uniform(2, 14), (SIDE, SIDE, 3)
    )
    image: np.ndarray = np.rint((small + light).clip(0, 255)).astype(np.uint8)
    return image, np.array(boxes, np.float64).reshape(-1, 4), tuple(labels)


def _distinct_color(ground: np.ndarray, rng: np.random.Generator) -> tuple[int, int, int]:
    """A color that differs from the background."""
    far = [color for color in COLORS if np.abs(np.array(color) - ground).sum() > 120]
    return far[int(rng.integers(len(far)))]


def _place(
    label: str, others: Sequence[Sequence[float]], rng: np.random.Generator
) -> tuple[list[list[Point]], list[float] | None]:
    """The polygons of a shape and its box; no box if there is no room."""
    for _ in range(TRIES):
        size, turn = rng.uniform(SMALLEST, LARGEST), rng.uniform(-0.4, 0.4)
        center = rng.uniform(size / 2, SIDE - size / 2, 2)
        outlines = [turn_outline(outline, size / 2, turn, center) for outline in OUTLINES[label]]
        points = np.array([point for outline in outlines for point in outline])
        box = [*points.min(0), *points.max(0)]
        if min(box) >= 0 and max(box) <= SIDE and all(_shared(box, other) <= OVERLAP for other in others):
            return outlines, [float(coordinate) for coordinate in box]
    return [], None


def turn_outline(outline: Sequence[Point], radius: float, turn: float, center: np.ndarray) -> list[Point]:
    """The points of an outline, scaled by `radius`, turned by `turn` radians and moved to `center`."""
    cos, sin = math.cos(turn) * radius, math.sin(turn) * radius
    return [(center[0] + x * cos - y * sin, center[1] + x * sin + y * cos) for x, y in outline]


def _shared(box: Sequence[float], other: Sequence[float]) -> float:
    """The share of the smaller box that both have in common."""
    across, down = (max(min(box[i + 2], other[i + 2]) - max(box[i], other[i]), 0.0) for i in (0, 1))
    areas = [(right - left) * (bottom - top) for left, top, right, bottom in (box, other)]
    return across * down / min(areas)


ARM = 0.34  # half the thickness of the arms of a cross
OUTLINES: dict[str, list[list[Point]]] = {
    "circle": [[(math.cos(k * math.pi / 18), math.sin(k * math.pi / 18)) for k in range(36)]],
    "square": [[(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)]],
    "triangle": [[(0.0, -1.0), (0.95, 0.75), (-0.95, 0.75)]],
    "cross": [
        [(-1.0, -ARM), (1.0, -ARM), (1.0, ARM), (-1.0, ARM)],
        [(-ARM, -1.0), (ARM, -1.0), (ARM, 1.0), (-ARM, 1.0)],
    ],
}
