"""Draws the images of docs/images.md from the embedded data: `python docs/images/make.py DIGITS SCENES`, two runs."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import regard
from regard.config.data.images import ImageData
from regard.data.datasets.mixed_images import mix
from regard.look import draw_confusion
from regard.look.draw import draw_objects
from regard.processors.image.processor import ImageProcessor
from regard.synthetic.digits import make_digits
from regard.synthetic.scenes import SHAPES, make_scenes

PLACE = Path(__file__).parent
PLAIN = {"resize": 64, "crop": 64, "scale": (1.0, 1.0), "flip": False}


def sheet(rows: Sequence[Sequence[Image.Image]], side: int, gap: int = 4) -> Image.Image:
    """Images in rows, on white."""
    width, height = (count * (side + gap) - gap for count in (max(map(len, rows)), len(rows)))
    out = Image.new("RGB", (width, height), "white")
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            how = Image.Resampling.NEAREST if image.width < side else Image.Resampling.LANCZOS
            out.paste(image.resize((side, side), how), (x * (side + gap), y * (side + gap)))
    return out


def digits(count: int = 4) -> Image.Image:
    """Some embedded digits, a column for each label."""
    columns: dict[str, list[Image.Image]] = {str(label): [] for label in range(10)}
    for image, label in make_digits(400)["train"]:
        columns[label].append(Image.fromarray(image).convert("RGB"))
    return sheet([[column[row] for column in columns.values()] for row in range(count)], 42)


def augmented(count: int = 6) -> Image.Image:
    """A scene as training reads it: a row for each kind of augmentation."""
    scenes = [image for image, _ in make_scenes(20)["train"]]
    own = scenes[7]
    kinds: list[Callable[[int], Image.Image]] = [
        lambda seed: changed(own, seed, scale=(0.3, 1.0), flip=True),
        lambda seed: changed(own, seed, color=0.5),
        lambda seed: changed(own, seed, randaugment=2, strength=0.5),
        lambda seed: changed(own, seed, erase=1.0),
        lambda seed: mixed(own, scenes[seed], seed, ImageData(mixup=1.0)),
        lambda seed: mixed(own, scenes[seed], seed, ImageData(cutmix=1.0)),
    ]
    return sheet([[Image.fromarray(own), *(kind(seed) for seed in range(1, count + 1))] for kind in kinds], 64)


def changed(image: np.ndarray, seed: int, **settings: object) -> Image.Image:
    processor = ImageProcessor(**{**PLAIN, **settings})  # type: ignore[arg-type]
    return processor.decode(processor.encode(image, np.random.default_rng(seed)))


def mixed(one: np.ndarray, other: np.ndarray, seed: int, data: ImageData) -> Image.Image:
    processor = ImageProcessor(**PLAIN)  # type: ignore[arg-type]
    pixels = [torch.from_numpy(processor.encode(each)) for each in (one, other)]
    return processor.decode(mix(*pixels, data, np.random.default_rng(seed))[0])


def mistakes(run: str, count: int = 10) -> Image.Image:
    """Test digits that a run reads wrongly, the surest first."""
    examples = make_digits(1)["test"]
    results = regard.load(run).predict([image for image, _ in examples])
    wrong = [(each.score, i) for i, each in enumerate(results) if each.label != examples[i][1]]
    chosen = [i for _, i in sorted(wrong, reverse=True)[:count]]
    print("mistakes:", ", ".join(f"{examples[i][1]} read as {results[i].label}" for i in chosen))
    return sheet([[Image.fromarray(examples[i][0]).convert("RGB") for i in chosen]], 42)


def boxes(run: str, count: int = 4) -> Image.Image:
    """What a run finds in test scenes."""
    predictor, scenes = regard.load(run), [image for image, _ in make_scenes(1)["test"][:count]]
    found = [result.objects for result in predictor.predict(scenes)]
    drawn = [draw_objects(Image.fromarray(image), each, SHAPES) for image, each in zip(scenes, found, strict=True)]
    return sheet([drawn], 224)


if __name__ == "__main__":
    digit_run, scene_run = sys.argv[1:]
    digits().quantize(32).save(PLACE / "digits.png", optimize=True)
    augmented().quantize(128).save(PLACE / "augmented.png", optimize=True)
    mistakes(digit_run).quantize(32).save(PLACE / "mistakes.png", optimize=True)
    boxes(scene_run).quantize(64).save(PLACE / "boxes.png", optimize=True)
    draw_confusion(PLACE / "confusion.png", regard.load(digit_run).evaluate()["confusion"])
