"""Embedded images with captions: one to three colored shapes in a row or a column, and a sentence that lists them.

The sentence is a function of the image: it names the shapes from left to right, or from top to bottom. Some shapes of
training may have a color without a name: the sentence names the shape alone.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from .generated import GeneratedSource
from .scenes import DRAWN, OUTLINES, SHAPES, SIDE, Point, turn_outline

# Colors that have one name each, on a gray background; their random variation (TINT) does not reach another name.
COLORS: Mapping[str, tuple[int, int, int]] = {
    "red": (215, 45, 40), "green": (45, 160, 60), "blue": (45, 75, 215), "yellow": (235, 215, 50),
    "white": (245, 245, 245), "black": (20, 20, 20), "coral": (250, 125, 75), "purple": (130, 40, 165),
    "pink": (250, 140, 190), "cyan": (50, 205, 215), "brown": (115, 65, 25), "lime": (150, 235, 50),
}  # fmt: skip
TINT, GRAY, NOISE = 10, (110, 150), 5  # levels: of a color, of the background, and the standard deviation of the noise
MOST = 3  # shapes of a scene
SIZES = (26, 32), (24, 29), (17, 20)  # pixels of a shape: smallest and largest, in scenes of one, two and three shapes
ASIDE = 8  # pixels between a shape and the middle line of its row or column, at most
TURN = 0.1  # radians, at most, in both directions
HELD_OUT = 500  # images for validation, and for test
APART = 45  # levels of a channel, at least, between a color without a name and every color with one
CONTRAST = 120  # levels, at least, between the same color and the background, summed over the channels
UNNAMED = ""  # the name of such a color


def star_outline(radii: tuple[float, float], points: int) -> list[Point]:
    """A star with its first point at the top; `radii` of its points and of the corners between them."""
    turns = [math.pi * k / points for k in range(2 * points)]
    return [(radii[k % 2] * math.sin(turn), -radii[k % 2] * math.cos(turn)) for k, turn in enumerate(turns)]


def ring_outline(inner: float) -> list[Point]:
    """A circle, and back along a smaller one: the polygon between them."""
    circle = [(math.cos(k * math.pi / 18), math.sin(k * math.pi / 18)) for k in range(37)]
    return circle + [(inner * x, inner * y) for x, y in reversed(circle)]


SHAPE_OUTLINES: Mapping[str, list[list[Point]]] = {
    **{name: OUTLINES[name] for name in SHAPES},
    "diamond": [[(0.0, -1.0), (0.65, 0.0), (0.0, 1.0), (-0.65, 0.0)]],
    "star": [star_outline((1.0, 0.4), 5)],
    "ring": [ring_outline(0.6)],
    "bar": [[(-1.0, -0.35), (1.0, -0.35), (1.0, 0.35), (-1.0, 0.35)]],
}

Combination = tuple[str, str]  # a color and a shape, such as ("red", "circle")


def all_combinations(colors: int = 6, shapes: int = len(SHAPES)) -> tuple[Combination, ...]:
    """Every combination of the first `colors` colors and the first `shapes` shapes."""
    names = islice(COLORS, colors)
    return tuple((color, shape) for color in names for shape in islice(SHAPE_OUTLINES, shapes))


COMBINATIONS = all_combinations()


class Arrangement(NamedTuple):
    """The content of a scene, in the order in which its sentence names it."""

    shapes: tuple[Combination, ...]
    column: bool  # from top to bottom, and not from left to right


@dataclass(frozen=True)
class SceneSettings:
    """The content of scenes. Combinations in `unseen` occur only in test, those in `unseen_valid` only in valid."""

    most: int = MOST  # shapes of a scene
    combinations: tuple[Combination, ...] = COMBINATIONS
    unseen: Collection[Combination] = ()
    unseen_valid: Collection[Combination] = ()
    unnamed: float = 0.0  # how often a shape of training has a color without a name

    def allowed(self, split: str) -> tuple[Combination, ...]:
        """The combinations of a split: those of training, unless the split has its own."""
        special = {"valid": self.unseen_valid, "test": self.unseen}.get(split, ())
        allowed = special or {*self.combinations}.difference(self.unseen, self.unseen_valid)
        return tuple(combination for combination in self.combinations if combination in allowed)


class CaptionedScenes(GeneratedSource):
    """Scenes with a sentence each."""

    noun = "image"

    def __init__(self, split: str, count: int, settings: SceneSettings) -> None:
        super().__init__(split, count, "scenes with captions")
        self.most, self.allowed = settings.most, settings.allowed(split)
        self.unnamed = settings.unnamed if split == "train" else 0.0

    def arrangement(self, index: int) -> Arrangement:
        return self._arrangement(self.rng(index))

    def item(self, index: int) -> tuple[np.ndarray, str]:
        rng = self.rng(index)
        arrangement = self._arrangement(rng)
        return draw_arrangement(arrangement, rng), describe_arrangement(arrangement)

    def field(self, index: int, field: int) -> np.ndarray | str:
        return (
            describe_arrangement(self.arrangement(index)) if field == 1 else self.item(index)[field]
        )  # no drawing for a sentence

    def fingerprint(self) -> str:
        unnamed = f" {self.unnamed}" if self.unnamed else ""
        return f"captions {self.split} {len(self)} {self.most} {self.allowed}{unnamed}"

    def _arrangement(self, rng: np.random.Generator) -> Arrangement:
        return random_arrangement(rng, self.most, self.allowed, self.unnamed)


def make_captions(examples: int, most: int = MOST, settings: SceneSettings | None = None) -> dict[str, CaptionedScenes]:
    """Train, valid and test: different scenes of up to `most` shapes, or as `settings` say."""
    settings = settings or SceneSettings(most)
    counts = {"train": examples, "valid": HELD_OUT, "test": HELD_OUT}
    return {split: CaptionedScenes(split, count, settings) for split, count in counts.items()}


def label_text(combination: Combination) -> str:
    """The words for one shape: the caption of a scene with one shape, and a label for zero-shot classification."""
    return " ".join(["a", *filter(None, combination)])


def describe_arrangement(arrangement: Arrangement) -> str:
    """The sentence of a scene."""
    words = [label_text(combination) for combination in arrangement.shapes]
    if len(words) == 1:
        return words[0]
    if len(words) == 2:
        return (" above " if arrangement.column else " left of ").join(words)
    way = "from top to bottom" if arrangement.column else "from left to right"
    return f"{', '.join(words[:-1])} and {words[-1]} {way}"


def random_arrangement(
    rng: np.random.Generator, most: int, allowed: Collection[Combination], unnamed: float = 0.0
) -> Arrangement:
    """One to `most` random shapes of the allowed combinations, in a row or a column; some without a named color."""
    choices = tuple(allowed)
    numbers = rng.integers(len(choices), size=int(rng.integers(1, most + 1)))
    shapes, column = [choices[number] for number in numbers.tolist()], bool(rng.integers(2))
    if unnamed:
        changed = rng.random(len(shapes)) < unnamed
        shapes = [(UNNAMED if lost else color, shape) for (color, shape), lost in zip(shapes, changed, strict=True)]
    return Arrangement(tuple(shapes), column)


def random_color(ground: int, rng: np.random.Generator) -> tuple[int, int, int]:
    """A color without a name: far from every color that has one, and from the background."""
    named = np.array([*COLORS.values()])
    while True:
        color = rng.integers(256, size=3)
        if np.abs(named - color).max(1).min() >= APART and np.abs(color - ground).sum() >= CONTRAST:
            return tuple(color.tolist())


def draw_arrangement(arrangement: Arrangement, rng: np.random.Generator) -> np.ndarray:
    """An image (64, 64, 3): random sizes, places, rotations, tints and noise."""
    from PIL import Image, ImageDraw

    ground = int(rng.integers(*GRAY))
    canvas = Image.new("RGB", (SIDE * DRAWN, SIDE * DRAWN), (ground,) * 3)
    draw, count = ImageDraw.Draw(canvas), len(arrangement.shapes)
    for number, (color, shape) in enumerate(arrangement.shapes):
        size = rng.uniform(*SIZES[count - 1])
        slack = (SIDE / count - size) / 2  # a shape stays in its own part of the row: the order is clear
        reach = slack if count == 1 else ASIDE
        along = SIDE / count * (number + 0.5) + rng.uniform(-slack, slack)
        aside = SIDE / 2 + rng.uniform(-reach, reach)
        center = np.array([aside, along] if arrangement.column else [along, aside])
        level = random_color(ground, rng) if color == UNNAMED else COLORS[color]
        tint = (np.array(level) + rng.integers(-TINT, TINT + 1, 3)).clip(0, 255)
        turn = rng.uniform(-TURN, TURN)
        for outline in SHAPE_OUTLINES[shape]:
            points = [(x * DRAWN, y * DRAWN) for x, y in turn_outline(outline, size / 2, turn, center)]
            draw.polygon(points, tuple(tint.tolist()))
    small = np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
    image: np.ndarray = np.rint((small + rng.normal(0, NOISE, small.shape)).clip(0, 255)).astype(np.uint8)
    return image
