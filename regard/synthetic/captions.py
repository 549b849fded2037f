"""Embedded images with captions: one to three colored shapes in a row or a column, and a sentence that lists them.

The sentence is a function of the image: it names the shapes from left to right, or from top to bottom.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..data.examples import Examples
from .scenes import DRAWN, OUTLINES, SHAPES, SIDE, turn_outline

# Colors that have one name each, on a gray background; their random variation (TINT) does not reach another name.
COLORS: Mapping[str, tuple[int, int, int]] = {
    "red": (215, 45, 40), "green": (45, 160, 60), "blue": (45, 75, 215), "yellow": (235, 215, 50),
    "white": (245, 245, 245), "black": (20, 20, 20),
}  # fmt: skip
TINT, GRAY, NOISE = 10, (110, 150), 5  # levels: of a color, of the background, and the standard deviation of the noise
MOST = 3  # shapes of a scene
SIZES = (26, 32), (24, 29), (17, 20)  # pixels of a shape: smallest and largest, in scenes of one, two and three shapes
ASIDE = 8  # pixels between a shape and the middle line of its row or column, at most
TURN = 0.1  # radians, at most, in both directions
SEEDS = {"train": 1, "valid": 2, "test": 3}
HELD_OUT = 500  # images for validation, and for test

Combination = tuple[str, str]  # a color and a shape, such as ("red", "circle")
COMBINATIONS: tuple[Combination, ...] = tuple((color, shape) for color in COLORS for shape in SHAPES)


class Arrangement(NamedTuple):
    """The content of a scene, in the order in which its sentence names it."""

    shapes: tuple[Combination, ...]
    column: bool  # from top to bottom, and not from left to right


class CaptionedScenes(Examples):
    """Scenes with a sentence each, drawn when they are needed: a pure function of the split and the number."""

    def __init__(self, split: str, count: int, most: int, allowed: Collection[Combination]) -> None:
        self.split, self.most = split, most
        self.allowed = tuple(each for each in COMBINATIONS if each in allowed)
        self.name, self.counts = f"embedded {split} scenes with captions", {"examples": count}

    def __len__(self) -> int:
        return self.counts["examples"]

    def arrangement(self, index: int) -> Arrangement:
        return random_arrangement(self._rng(index), self.most, self.allowed)

    def item(self, index: int) -> tuple[Any, ...]:
        rng = self._rng(index)
        arrangement = random_arrangement(rng, self.most, self.allowed)
        return draw_arrangement(arrangement, rng), describe(arrangement)

    def side(self, index: int, side: int) -> Any:
        return describe(self.arrangement(index)) if side == 1 else self.item(index)[side]  # no drawing for a sentence

    def location(self, index: int) -> str:
        return f"{self.name}, image {index + 1}"

    def fingerprint(self) -> str:
        return f"captions {self.split} {len(self)} {self.most} {self.allowed}"

    def _rng(self, index: int) -> np.random.Generator:
        return np.random.default_rng([SEEDS[self.split], index])


def make_captions(examples: int, most: int = MOST, unseen: Collection[Combination] = ()) -> dict[str, CaptionedScenes]:
    """Train, valid and test: different scenes of up to `most` shapes.

    Train and valid have no shape of the combinations `unseen`; if there are some, test has no other shape.
    """
    seen = [each for each in COMBINATIONS if each not in unseen]
    return {
        "train": CaptionedScenes("train", examples, most, seen),
        "valid": CaptionedScenes("valid", HELD_OUT, most, seen),
        "test": CaptionedScenes("test", HELD_OUT, most, unseen or seen),
    }


def label_text(combination: Combination) -> str:
    """The words for one shape: the whole caption of a scene with one shape, and a label for zero-shot answers."""
    color, shape = combination
    return f"a {color} {shape}"


def describe(arrangement: Arrangement) -> str:
    """The sentence of a scene."""
    words = [label_text(each) for each in arrangement.shapes]
    if len(words) == 1:
        return words[0]
    if len(words) == 2:
        return (" above " if arrangement.column else " left of ").join(words)
    way = "from top to bottom" if arrangement.column else "from left to right"
    return f"{', '.join(words[:-1])} and {words[-1]} {way}"


def random_arrangement(rng: np.random.Generator, most: int, allowed: Collection[Combination]) -> Arrangement:
    """One to `most` random shapes of the allowed combinations, in a row or a column."""
    choices = tuple(allowed)
    numbers = rng.integers(len(choices), size=int(rng.integers(1, most + 1)))
    return Arrangement(tuple(choices[number] for number in numbers.tolist()), bool(rng.integers(2)))


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
        tint = (np.array(COLORS[color]) + rng.integers(-TINT, TINT + 1, 3)).clip(0, 255)
        turn = rng.uniform(-TURN, TURN)
        for outline in OUTLINES[shape]:
            points = [(x * DRAWN, y * DRAWN) for x, y in turn_outline(outline, size / 2, turn, center)]
            draw.polygon(points, tuple(tint.tolist()))
    small = np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
    image: np.ndarray = np.rint((small + rng.normal(0, NOISE, small.shape)).clip(0, 255)).astype(np.uint8)
    return image
