"""Labeled images from folders, archives, tables, IDX files and memory; augmentation and mixing."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.config.schema import Train
from regard.config.vision import ImageData
from regard.data.images import labeled_images, read_idx
from regard.data.memory import as_sides
from regard.data.mixed_images import MixedImages, mix
from regard.errors import UserError
from regard.processors.augment import NAMES, OPERATIONS, erase, rand_augment
from regard.processors.fields import Fields
from regard.processors.image import ImageProcessor, open_image
from regard.processors.labels import LabelProcessor, LabelSet, collect_labels

KINDS = {"cat": 60, "dog": 200}


def png(value: int, side: int = 8) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(out, "PNG")
    return out.getvalue()


def make_folder(path: Path) -> Path:
    for label, value in KINDS.items():
        for number in range(3):
            (path / label).mkdir(parents=True, exist_ok=True)
            (path / label / f"{number}.png").write_bytes(png(value + number))
    (path / "notes.txt").write_text("no image")
    (path / ".hidden.png").write_bytes(b"")
    return path


def pack(folder: Path, name: str) -> Path:
    path, around = folder.parent / name, "all/"
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for file in files:
                archive.write(file, around + file.relative_to(folder).as_posix())
    else:
        with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as archive:
            for file in files:
                archive.add(file, around + file.relative_to(folder).as_posix())
    return path


def idx(values: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def colors(examples: Any) -> list[tuple[int, str]]:
    return [(open_image(image).getpixel((0, 0))[0], label) for image, label in examples]


WANTED = [(value + number, label) for label, value in KINDS.items() for number in range(3)]


def read(*sides: object, **data: Any) -> Any:
    return labeled_images(tuple((str(side),) for side in sides), ImageData(**data))


@pytest.mark.parametrize("kind", ["folder", "a.zip", "a.tar", "a.tar.gz", "csv", "jsonl", "tsv"])
def test_every_source_gives_the_same_examples(kind: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "images")
    place = folder
    if kind.startswith("a."):
        place = pack(folder, kind)
    elif kind != "folder":
        rows = [(f"images/{label}/{number}.png", label) for label in KINDS for number in range(3)]
        place = tmp_path / f"list.{kind}"
        lines = {
            "csv": ["file,label", *(",".join(row) for row in rows)],
            "tsv": ["\t".join(row) for row in rows],
            "jsonl": [json.dumps({"path": path, "label": label}) for path, label in rows],
        }
        place.write_text("\n".join(lines[kind]) + "\n")
    examples = read(place)
    assert colors(examples) == WANTED and collect_labels(examples).counts == {"cat": 3, "dog": 3}
    assert examples.fingerprint() == read(place).fingerprint()
    assert ("list." if kind in ("csv", "jsonl", "tsv") else "cat/1.png") in examples.location(1)


def test_other_files_are_reported(tmp_path: Path) -> None:
    examples = read(make_folder(tmp_path / "p"))
    assert examples.report() == ["1 files are no images and were left out, such as notes.txt"]


def test_idx_files(tmp_path: Path) -> None:
    images, labels = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5), np.array([7, 0, 7], np.uint8)
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(images)))
    (tmp_path / "y").write_bytes(idx(labels))
    examples = read(tmp_path / "x.gz", tmp_path / "y")
    assert [label for _, label in examples] == ["7", "0", "7"] and (examples[2][0] == images[2]).all()
    for content, words in ((b"\0\0\x09\x01", "no IDX file"), (idx(labels)[:-1], "has 2 values"), (b"", "no IDX file")):
        (tmp_path / "z").write_bytes(content)
        with pytest.raises(UserError, match=words):
            read_idx(tmp_path / "z")
    (tmp_path / "w").write_bytes(idx(labels[:2]))
    with pytest.raises(UserError, match="as many labels"):
        read(tmp_path / "x.gz", tmp_path / "w")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(idx(images))[:-9])
    with pytest.raises(UserError, match="not a complete archive"):
        read_idx(tmp_path / "cut.gz")


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "a.png").write_bytes(png(1))
    (tmp_path / "list.tsv").write_text("loose/a.png\tx\nloose/b.png\ty\n")
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 no")
    for place, words in (
        ("nothing", "there is no file"),
        ("none.zip", "expected a folder or an archive"),
        ("broken.zip", "neither a folder nor a .zip or .tar archive"),
        ("loose", "a.png is in no folder of a class"),
        ("loose/a.png", "neither a folder, an archive nor a table"),
        ("list.tsv", r"list.tsv:2: there is no image .*b.png"),
    ):
        with pytest.raises(UserError, match=words):
            read(tmp_path / place)
    with pytest.raises(UserError, match="3 were given"):
        read("a", "b", "c")


def test_images_in_memory(tmp_path: Path) -> None:
    rows = [(np.full((4, 4), 9, np.uint8), "x"), (Image.new("RGB", (4, 4)), "y")]
    examples = labeled_images(as_sides(rows, "data.train"), ImageData())
    assert colors(examples) == [(9, "x"), (0, "y")] and len(examples.fingerprint()) == 32
    with pytest.raises(UserError, match="1 columns, expected at least 2"):
        labeled_images(as_sides([("a",)], "data.train"), ImageData())


# --- augmentation ----------------------------------------------------------------------------------------------------


def noise(side: int = 16) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (side, side, 3), np.uint8))


@pytest.mark.parametrize("name", NAMES)
def test_operations_keep_the_size(name: str) -> None:
    for strength in (-1.0, 0.0, 0.7):
        changed = OPERATIONS[name](noise(), strength)
        assert changed.size == (16, 16) and changed.mode == "RGB"
    same = (np.asarray(OPERATIONS[name](noise(), 0.7)) == np.asarray(noise())).all()
    assert same == (name == "identity") or name in ("autocontrast", "equalize")  # noise has all values


def test_augmentation_depends_on_its_generator_only() -> None:
    image = ImageProcessor(resize=16, crop=16, patch=4, scale=(0.5, 1), color=0.3, randaugment=2, erase=0.9)
    one, again, other = (image.encode(noise(), np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert (one == again).all() and (one != other).any() and one.shape == (3, 16, 16)
    assert rand_augment(noise(), 0, 0.5, np.random.default_rng(1)) == noise()
    pixels = np.zeros((3, 16, 16), np.float32)
    erased = erase(pixels, np.random.default_rng(3))
    assert 0 < np.count_nonzero(erased[0]) < 200 and not pixels.any()


def mixed(**data: Any) -> MixedImages:
    examples = [(np.full((8, 8), 40 * number, np.uint8), "ab"[number % 2]) for number in range(6)]
    fields = Fields({"image": ImageProcessor(resize=8, crop=8, patch=4, scale=(1, 1), flip=False), "label": LabelProcessor(LabelSet({"a": 3, "b": 3}))})  # fmt: skip
    from regard.data.images import InMemoryImages

    return MixedImages(InMemoryImages("made", examples), fields, ImageData(**data), Train())


@pytest.mark.parametrize("data", [{"mixup": 1.0}, {"cutmix": 1.0}, {"mixup": 0.5, "cutmix": 1.0}])
def test_a_mixed_image_depends_on_its_example_alone(data: dict[str, float]) -> None:
    dataset = mixed(**data)
    together, alone = dataset.batch(np.arange(6), 3), dataset.batch(np.array([4]), 3)
    for name in ("image", "label", "other", "share"):
        assert (together[name].values[4] == alone[name].values[0]).all()
    assert (dataset.batch(np.arange(6), 4)["share"].values != together["share"].values).any()
    assert "other" not in mixed().batch(np.arange(6), 3)


def test_the_share_is_that_of_the_pixels() -> None:
    import torch

    for seed in range(20):
        for data in (ImageData(mixup=1.0), ImageData(cutmix=1.0)):
            found, share = mix(torch.ones(3, 10, 12), torch.zeros(3, 10, 12), data, np.random.default_rng(seed))
            assert float(found.mean()) == pytest.approx(share, abs=1e-6)
