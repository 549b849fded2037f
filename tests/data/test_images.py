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
import torch
from PIL import Image

from regard.config.data.images import ImageData
from regard.config.train import Train
from regard.data.datasets.mixed_images import MixedImages, mix
from regard.data.loading.loader import Loader
from regard.data.rng import ExampleRng
from regard.data.sources.data_files import as_data_files
from regard.data.sources.images import LABELED_IMAGES, InMemoryImages, read_idx
from regard.errors import UserError
from regard.parts.media.patches import PatchEmbedding
from regard.processors.image.augment import NAMES, OPERATIONS, erase, rand_augment, resize
from regard.processors.image.processor import RESAMPLING, ImageProcessor, open_image
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
    return LABELED_IMAGES.open(tuple((str(side),) for side in sides), ImageData(**data))


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


def test_images_of_one_color_are_reported(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (20, 20, 3), np.uint8)
    clear = np.zeros((20, 20, 1), np.uint8)
    icon = np.dstack([np.full((20, 20, 3), 255, np.uint8), noise[..., :1]])  # white on transparent
    images = {"noise": noise, "black": 0 * noise, "icon": icon, "clear": np.dstack([noise, clear])}
    for number, (name, pixels) in enumerate(images.items()):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "ab"[number % 2] / f"{name}.png")
    for background, expected in (("white", {"black", "icon", "clear"}), ("black", {"black", "clear"})):
        data = ImageData(background=background)
        examples = LABELED_IMAGES.open([[str(tmp_path)]], data)
        (note,) = examples.notes(range(len(examples)))
        assert note.startswith(f"{len(expected)} images have one color throughout; the first: {tmp_path}")
        alone = [Path(examples.location(index)).stem for index in range(4) if examples.notes([index])]
        assert {*alone} == expected


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
    examples = LABELED_IMAGES.open(as_data_files(rows, "data.train"), ImageData())
    assert colors(examples) == [(9, "x"), (0, "y")] and len(examples.fingerprint()) == 32
    with pytest.raises(UserError, match="1 columns, expected at least 2"):
        LABELED_IMAGES.open(as_data_files([("a",)], "data.train"), ImageData())


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


def changed(name: str, image: Image.Image, strength: float) -> np.ndarray:
    return np.asarray(OPERATIONS[name](image, strength)).astype(int)


def test_operations_do_what_is_published() -> None:
    """The ranges of RandAugment (1909.13719), which are those of AutoAugment (1805.09501)."""
    image, pixels = noise(40), np.asarray(noise(40)).astype(int)
    assert len(OPERATIONS) == 14
    for name in ("color", "contrast", "brightness", "sharpness"):
        assert (changed(name, image, 0) == pixels).all()  # a factor of 1
    assert np.abs(changed("brightness", image, -1) - 0.1 * pixels).max() <= 1  # factors of 0.1 to 1.9
    assert np.abs(changed("brightness", image, 0.5) - (1.45 * pixels).clip(0, 255)).max() <= 1
    gray = np.asarray(image.convert("L"))[..., None].astype(int)
    assert np.abs(changed("color", image, -1) - (gray + 0.1 * (pixels - gray))).max() <= 1
    assert (changed("posterize", image, 1) == pixels & 0xF0).all()  # 4 bits stay
    assert (changed("posterize", image, -0.5) == pixels & 0xFC).all()
    assert (changed("solarize", image, 1) == 255 - pixels).all()
    assert (changed("solarize", image, 0.5) == np.where(pixels < 128, pixels, 255 - pixels)).all()
    moved = changed("shift_x", image, 331 / 150 / 4)  # by a quarter; at full strength by 150 of 331 pixels
    assert np.abs(moved[:, :30] - pixels[:, 10:]).max() <= 1 and (moved[:, 31:] == [124, 116, 104]).all()
    moved = changed("shift_y", image, -331 / 150 / 4)
    assert np.abs(moved[10:] - pixels[:30]).max() <= 1
    row = changed("shear_x", image, 1)[20]  # by 0.3 pixels for each pixel of height
    assert np.abs(row[:30] - (0.85 * pixels[20, 6:36] + 0.15 * pixels[20, 7:37])).max() <= 2
    column = changed("shear_y", image, -1)[:, 20]
    assert np.abs(column[10:] - (0.85 * pixels[4:34, 20] + 0.15 * pixels[3:33, 20])).max() <= 2
    turned = np.asarray(image.rotate(30, Image.Resampling.BILINEAR, fillcolor=(124, 116, 104)))
    assert (changed("rotate", image, 1) == turned).all()


def test_random_operations_are_drawn_evenly_with_both_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, float]] = []
    for name in NAMES:
        monkeypatch.setitem(
            OPERATIONS, name, lambda image, strength, name=name: drawn.append((name, strength)) or image
        )
    for seed in range(300):
        rand_augment(noise(), 3, 0.3, np.random.default_rng(seed))
    counts = [sum(each == name for each, _ in drawn) for name in NAMES]
    assert len(drawn) == 900 and min(counts) > 35 and max(counts) < 95  # 64 of each are expected
    assert {strength for _, strength in drawn} == {0.3, -0.3}


def test_erased_rectangles_have_their_area_and_aspect() -> None:
    """Random erasing (1708.04896): 2 to 40 % of the area, an aspect of 0.3 to 3.3."""
    shares = []
    for seed in range(200):
        erased = np.argwhere(erase(np.zeros((3, 40, 60), np.float32), np.random.default_rng(seed))[0])
        (top, left), (bottom, right) = erased.min(0), erased.max(0) + 1
        assert len(erased) == (bottom - top) * (right - left)  # one rectangle
        assert 0.25 < (right - left) / (bottom - top) < 4
        shares.append(len(erased) / 2400)
    assert 0.015 < min(shares) < 0.05 and 0.35 < max(shares) < 0.42 and 0.17 < np.mean(shares) < 0.24
    assert not erase(np.zeros((3, 1, 300), np.float32), np.random.default_rng(1)).any()  # none fits


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")  # on fewer cores
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("mixing", [{}, {"mixup": 0.4, "cutmix": 1.0}], ids=["bytes", "mixed"])
def test_pixels_depend_on_neither_workers_nor_batches(workers: int, mixing: dict[str, float]) -> None:
    """The pixels, labels and shares of every example of an epoch, however it is loaded."""
    plain = ImageProcessor(8, 8, patch=4, scale=(0.3, 1), randaugment=1)
    names = ("image", "label", "other", "share") if mixing else ("image", "label")

    def epoch(workers: int, **train: Any) -> dict[int, tuple[Any, ...]]:
        dataset = mixed(13, {"workers": workers, **mixing}, None if mixing else plain, **train)
        loader, found = Loader.of(dataset), {}
        try:
            for step in loader.steps(2):
                for batch in step.micro_batches:
                    assert (batch["image"].values.dtype == torch.uint8) == (not mixing)
                    rows = zip(*(batch.to("cpu")[name].values.tolist() for name in names), strict=True)
                    found |= dict(zip(batch.examples, rows, strict=True))
        finally:
            loader.close()
        return found

    wanted = epoch(0, batch=4)
    assert len(wanted) == 13
    for train in ({"batch": 4}, {"batch": 5}, {"batch": 12, "accumulate": 3}):
        assert epoch(workers, **train) == wanted


@pytest.mark.parametrize("crop", [8, 10, 0], ids=["whole patches", "partial patches", "padded"])
def test_bytes_are_normalized_on_the_device_to_the_same_bits(crop: int) -> None:
    """A batch of bytes has the pixels of `encode` once it is moved; a batch that is padded has them at once."""
    image = ImageProcessor(8, crop, patch=4, scale=(0.3, 1), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.7), color=0.2)
    examples = [(np.asarray(noise(9 + number)), "ab"[number % 2]) for number in range(6)]
    dataset = mixed(examples, image=image)
    batch = dataset.batch(np.arange(6), 3)["image"]
    rngs = ExampleRng.of(1, 3, np.arange(6)).generators()
    wanted = image.collate([image.encode(raw, rng) for (raw, _), rng in zip(examples, rngs, strict=True)])
    assert (batch.values.dtype == torch.uint8) == bool(crop) == (batch.scaling is not None)
    moved = batch.to("cpu")
    assert moved.values.equal(wanted.values) and moved.values.is_contiguous() and moved.scaling is None
    assert (moved.valid is None) == (wanted.valid is None) == bool(crop)


def test_every_byte_is_normalized_as_numpy_does() -> None:
    image = ImageProcessor(16, 16, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    found = image.collate([image.encode_bytes(gray)] * 2).to("cpu").values
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (image.mean, image.std))
    assert (found.numpy() == (gray / np.float32(255) - mean) / std).all()


@pytest.mark.parametrize("resample", ["nearest", "lanczos", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(90, 84), (130, 150), (100, 120), (20, 30)], ids=["down", "up", "equal", "small"])
def test_training_resizes_as_pillow_does(resample: str, size: tuple[int, int]) -> None:
    image = noise(120).crop((0, 0, 120, 100))
    found = np.asarray(resize(image, *size, resample)).astype(int)
    wanted = np.asarray(image.resize(size[::-1], RESAMPLING[resample])).astype(int)
    assert found.shape == (*size, 3) and np.abs(found - wanted).max() <= 2 and np.abs(found - wanted).mean() < 0.05


def test_partners_are_neighbors_of_the_epoch_and_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = mixed(13, {"mixup": 1.0})
    every = np.arange(13)
    partners = dataset.mixed_with(every, 3)
    assert (partners != every).all() and (dataset.mixed_with(every, 4) != partners).any()
    order = dataset.examples.order(np.random.default_rng([1, 3]))
    assert dataset.mixed_with(order[:4], 3).tolist() == order[[1, 0, 3, 2]].tolist()
    read: list[int] = []
    item = InMemoryImages.item
    monkeypatch.setattr(InMemoryImages, "item", lambda self, index: read.append(index) or item(self, index))
    dataset.batch(order[:8], 3)
    assert sorted(read) == sorted(order[:8].tolist())
    assert mixed(1, {"mixup": 1.0}).mixed_with(np.array([0]), 0).tolist() == [0]


def test_images_of_unequal_sizes_are_mixed() -> None:
    examples = [(np.full((8 + 8 * number, 8), 200, np.uint8), "ab"[number % 2]) for number in range(2)]
    image = ImageProcessor(resize=8, crop=0, patch=4, scale=(1, 1), flip=False)
    for data in ({"mixup": 1.0}, {"cutmix": 1.0}):
        batch = mixed(examples, data, image).batch(np.arange(2), 0)
        assert batch["image"].values.shape == (2, 3, 16, 8) and batch["image"].valid is None
        alone = mixed(examples, data, image).batch(np.array([0]), 0)
        assert alone["image"].values.equal(batch["image"].values[:1])


def mixed(rows: Any = 6, data: Any = None, image: ImageProcessor | None = None, **train: Any) -> MixedImages:
    examples = rows if isinstance(rows, list) else [
        (np.full((8, 8), 240 // rows * number, np.uint8), "ab"[number % 2]) for number in range(rows)
    ]  # fmt: skip
    image = image or ImageProcessor(resize=8, crop=8, patch=4, scale=(0.3, 1), erase=0.5, randaugment=1)
    labels = LabelProcessor(LabelSet({"a": 3, "b": 3}))
    settings = Train(**{"batch": 4, "seed": 1, **train})
    return MixedImages(InMemoryImages("made", examples), image, labels, ImageData(**(data or {})), settings)


@pytest.mark.parametrize("data", [{"mixup": 1.0}, {"cutmix": 1.0}, {"mixup": 0.5, "cutmix": 1.0}])
def test_a_mixed_image_depends_on_its_example_alone(data: dict[str, float]) -> None:
    dataset = mixed(data=data)
    together, alone = dataset.batch(np.arange(6), 3), dataset.batch(np.array([4]), 3)
    for name in ("image", "label", "other", "share"):
        assert (together[name].values[4] == alone[name].values[0]).all()
    assert (dataset.batch(np.arange(6), 4)["share"].values != together["share"].values).any()
    assert "other" not in mixed().batch(np.arange(6), 3)


def test_the_share_is_that_of_the_pixels() -> None:
    for seed in range(20):
        for data in (ImageData(mixup=1.0), ImageData(cutmix=1.0)):
            found, share = mix(torch.ones(3, 10, 12), torch.zeros(3, 10, 12), data, np.random.default_rng(seed))
            assert float(found.mean()) == pytest.approx(share, abs=1e-6)


def test_dropped_partial_patches_are_dropped_in_a_padded_batch_too() -> None:
    patches = PatchEmbedding(3, 12, 8, partial="drop")
    image, batch, valid = torch.randn(1, 3, 30, 26), torch.randn(1, 3, 48, 40), torch.zeros(1, 48, 40, dtype=torch.bool)
    batch[:, :, :30, :26], valid[:, :30, :26] = image, True
    alone, places = patches(image), patches.valid(valid)
    assert alone.shape[2:] == patches.patch_grid(30, 26) == (3, 3) and places is not None
    assert places.nonzero().tolist() == [[0, row, column] for row in range(3) for column in range(3)]
    torch.testing.assert_close(patches(batch, valid)[:, :, :3, :3], alone)


@pytest.mark.parametrize("size", [(30, 26), (32, 24)], ids=["padded", "whole patches"])
def test_a_stem_reads_an_image_alone_and_in_a_padded_batch_alike(size: tuple[int, int]) -> None:
    torch.manual_seed(1)
    patches = PatchEmbedding(3, 12, 8, stem=(6, 8))
    with torch.no_grad():
        for each in patches.stem:
            torch.nn.init.normal_(each.bias)  # type: ignore[arg-type]
    image, (height, width) = torch.randn(1, 3, *size), size
    batch, valid = torch.randn(1, 3, 48, 40), torch.zeros(1, 48, 40, dtype=torch.bool)
    batch[:, :, :height, :width], valid[:, :height, :width] = image, True
    alone, padded = patches(image), patches(batch, valid)
    rows, columns = alone.shape[2:]
    assert (rows, columns) == (4, -(-width // 8)) and padded.shape[2:] == (6, 5)
    torch.testing.assert_close(padded[:, :, :rows, :columns], alone)
