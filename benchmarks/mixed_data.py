"""`python -m benchmarks.mixed_data MULTI30K FASHION FSDD OUT`: three real data sets as manifests of `multitask`.

MULTI30K: the folder of train, val and test_2016_flickr in English and German. FASHION: the folder of Fashion-MNIST's
four IDX files; the last 2,000 training images are valid. FSDD: the Free Spoken Digit Dataset, a folder or an archive;
takes 0 to 4 are test, 5 to 9 valid. OUT gets {train,valid,test}-{text,image,audio}.jsonl and the files that they name.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.runner import run_app
from regard.data.files.open import open_decompressed
from regard.data.sources.images import read_idx

from .speech_data import WORDS, unpack

CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
TEXTS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
VALID_IMAGES = 2000  # the last ones of the training images
app = typer.Typer(add_completion=False)
Folder = Annotated[Path, typer.Argument()]


@app.command()
def write_manifests(multi30k: Folder, fashion: Folder, fsdd: Folder, out: Folder) -> None:
    """Manifests of texts, images and recordings."""
    out.mkdir(parents=True, exist_ok=True)
    for split, name in TEXTS.items():
        sides = (read_lines(multi30k, f"{name}.{language}") for language in ("en", "de"))
        write(out / f"{split}-text.jsonl", ({"text": a, "target": b} for a, b in zip(*sides, strict=True)))
    train = list(image_records(fashion, "train", out / "images"))
    write(out / "train-image.jsonl", train[:-VALID_IMAGES])
    write(out / "valid-image.jsonl", train[-VALID_IMAGES:])
    write(out / "test-image.jsonl", image_records(fashion, "t10k", out / "images"))
    recordings = unpack(fsdd, out / "recordings")
    for split in TEXTS:
        own = (each for each in recordings if each.split == split)
        write(out / f"{split}-audio.jsonl", ({"audio": str(each.path), "target": WORDS[each.digit]} for each in own))


def read_lines(folder: Path, name: str) -> list[str]:
    """The lines of a file, which may be compressed."""
    (path,) = folder.glob(f"{name}*")
    with open_decompressed(path) as file:
        return [line.decode().rstrip("\n") for line in file]


def image_records(folder: Path, split: str, out: Path) -> Iterator[dict[str, Any]]:
    """Write the images of a split as files, and name them and their classes."""
    from PIL import Image

    images, labels = (read_idx(next(folder.glob(f"{split}-{kind}*"))) for kind in ("images", "labels"))
    (out / split).mkdir(parents=True, exist_ok=True)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = out / split / f"{number:05d}.png"
        Image.fromarray(image).save(path)
        yield {"image": str(path.relative_to(out.parent)), "target": CLASSES[int(label)]}


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_app(app, "python -m benchmarks.mixed_data", sys.argv[1:]))
