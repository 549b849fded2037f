"""Images of every mode and source, and files that are none: the right pixels, or one sentence that names the file."""

import io
import os
import struct
import sys
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.config.data.images import ImageData
from regard.data.files.trees import FolderTree
from regard.data.sources.data_files import as_data_files
from regard.data.sources.images import LABELED_IMAGES
from regard.errors import UserError
from regard.processors.image import read as read_image
from regard.processors.image.processor import ImageProcessor
from regard.processors.image.read import FileBytes, image_problem, image_size, is_image, open_image
from regard.processors.labels import collect_labels

COLOR = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3) * 2
GRAY = COLOR[..., 0]


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def pixels(raw: Any) -> np.ndarray:
    image = open_image(raw)
    assert image.mode == "RGB"
    return np.asarray(image)


def png_header(width: int, height: int) -> bytes:
    """A PNG file that claims a size and has no pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [head, b"IDAT" + zlib.compress(b""), b"IEND"]
    chunks = (struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each)) for each in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


# --- right results ---------------------------------------------------------------------------------------------------


def test_modes_of_pillow_become_rgb() -> None:
    image = Image.fromarray(COLOR)
    for mode in ("RGBA", "RGBX", "RGBa"):
        assert (pixels(image.convert("RGBA").convert(mode)) == COLOR).all()
    half = Image.fromarray(np.dstack([COLOR, np.full((5, 6), 7, np.uint8)]))
    assert (pixels(half) == COLOR).all()  # transparency is dropped, as by convert("RGB")
    assert np.abs(pixels(image.convert("CMYK")).astype(int) - COLOR).max() <= 1
    assert (pixels(image.convert("1")) == np.asarray(image.convert("1").convert("RGB"))).all()
    gray = np.dstack([GRAY] * 3)
    for mode in ("L", "LA", "La"):
        assert (pixels(Image.fromarray(GRAY).convert("LA" if mode == "La" else "L").convert(mode)) == gray).all()


@pytest.mark.parametrize("mode", ["RGBA", "RGBa", "LA", "La", "PA", "P", "tRNS", "array", "tensor"])
def test_transparent_parts_show_the_background(mode: str) -> None:
    """A black icon on transparent black is no black square."""
    alpha = np.zeros((6, 4), np.uint8)
    alpha[2:4] = 255
    alpha[4] = 128
    icon: Any = Image.fromarray(np.dstack([np.zeros((6, 4, 3), np.uint8), alpha]))
    gray = 255 - alpha
    if mode in ("P", "tRNS"):
        icon = Image.fromarray((alpha > 0).astype(np.uint8) * 9)
        if mode == "P":
            icon.putpalette(bytes(number for number in range(256) for _ in range(3)))
        icon = encoded(icon, transparency=0)
        gray = np.where(alpha, 9, 255).astype(np.uint8)
    elif mode in ("array", "tensor"):
        icon = np.asarray(icon) if mode == "array" else torch.from_numpy(np.array(icon)).permute(2, 0, 1)
    else:
        icon = icon.convert({"La": "LA"}.get(mode, "RGBA")).convert(mode)
    found = np.asarray(open_image(icon, background="white"))
    assert np.abs(found.astype(int) - np.dstack([gray] * 3)).max() <= 1
    assert (np.asarray(open_image(icon, background="#ff0000"))[0, 0] == [255, 0, 0]).all()
    processor = ImageProcessor(resize=(6, 4), crop=0, background="white")
    assert np.abs(processor.encode_bytes(icon).astype(int) - gray).max() <= 1
    assert pixels(icon).max() <= 9  # without a background, as older runs read it
    assert open_image(icon, background="transparent").mode == "RGBA"


def test_palettes_with_transparency_give_no_warning() -> None:
    image = Image.fromarray(COLOR).quantize(8)
    raw = encoded(image, transparency=bytes([0, 128]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (pixels(raw) == np.asarray(image.convert("RGB"))).all()


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_keep_their_contrast(format: str) -> None:
    wide = GRAY.astype(np.uint16) * 257
    raw = encoded(Image.fromarray(wide), format)
    assert (pixels(raw) == np.dstack([GRAY] * 3)).all()
    assert (pixels(wide) == np.dstack([GRAY] * 3)).all() and (pixels(COLOR.astype(np.uint16) << 8) == COLOR).all()
    assert (pixels(Image.fromarray(wide.astype(np.int32))) == np.dstack([GRAY] * 3)).all()
    with pytest.raises(UserError, match="an image has values from 0 to 70000"):
        open_image(Image.fromarray(np.array([[0, 70000]], np.int32)))


def test_floats_in_a_file() -> None:
    share = GRAY.astype(np.float32) / 255
    assert (pixels(encoded(Image.fromarray(share), "TIFF")) == np.dstack([GRAY] * 3)).all()
    with pytest.raises(UserError, match="the bytes has values from 0 to 174; expected floats of 0…1"):
        open_image(encoded(Image.fromarray(GRAY.astype(np.float32)), "TIFF"))


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (3, 3), color) for color in ("red", "blue")]
    for format in ("GIF", "WEBP"):
        raw = encoded(frames[0], format, save_all=True, append_images=frames[1:], lossless=True)
        assert pixels(raw)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("make", [torch.from_numpy, lambda each: torch.from_numpy(each).permute(2, 0, 1)])
@pytest.mark.parametrize("scale", [1, 255])
def test_tensors_with_channels_first_or_last(make: Any, scale: int) -> None:
    tensor = make(COLOR) if scale == 1 else make(COLOR).float().requires_grad_() / scale
    assert (pixels(tensor) == COLOR).all()


def test_other_arrays_and_tensors() -> None:
    gray = np.dstack([GRAY] * 3)
    assert (pixels(torch.from_numpy(GRAY)) == gray).all() and (pixels(torch.from_numpy(GRAY)[None]) == gray).all()
    assert (pixels(COLOR.astype(np.int64)) == COLOR).all()
    assert pixels(np.array([[True, False]]))[0, :, 0].tolist() == [255, 0]
    assert pixels(torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16))[0, :, 0].tolist() == [0, 255]
    assert (pixels(np.ones((3, 4, 4), np.uint8)[:, ::2]) == 1).all()  # four channels, not contiguous
    for values, words in (
        (np.zeros((2, 3, 5)), r"an array of shape \(2, 3, 5\) is no image; expected \(height, width\[, 1, 3 or 4\]\)"),
        (torch.zeros(2, 5, 5), r"a tensor of shape \(2, 5, 5\) is no image"),
        (np.zeros((0, 4)), r"an array of shape \(0, 4\)"),
        (np.array([["a"]]), "an array of <U1 is no image; expected numbers"),
        (np.full((2, 2), np.nan), "an image has values from nan to nan"),
        (3, "a int is no image; expected a path, bytes, a Pillow image, an array or a tensor"),
    ):
        with pytest.raises(UserError, match=words):
            open_image(values)  # type: ignore[arg-type]


def test_paths_files_and_camera_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    raw = encoded(Image.fromarray(COLOR), exif=exif)
    (place := tmp_path / "ü, b.PNG").write_bytes(raw)

    class Named(os.PathLike[str]):
        def __fspath__(self) -> str:
            return str(place)

    turned = np.rot90(COLOR, -1)
    with open(place, "rb") as file, Image.open(place) as image:
        for form in (place, str(place), Named(), raw, io.BytesIO(raw), file, image):
            assert is_image(form) and (pixels(form) == turned).all() and image_size(form) == (5, 6)
        assert image.size == (6, 5)  # that of the caller stays as it is
    damaged = encoded(Image.fromarray(COLOR), exif=b"Exif\0\0no orientation")
    assert (pixels(damaged) == COLOR).all()
    assert not is_image([raw]) and not is_image(np.zeros((2, 3, 4, 4)))


def test_one_pixel() -> None:
    assert pixels(np.array([[9]], np.uint8)).tolist() == [[[9, 9, 9]]]
    for rng in (None, np.random.default_rng(1)):
        assert ImageProcessor(randaugment=2, erase=1.0).encode(np.array([[9]], np.uint8), rng).shape == (3, 224, 224)


# --- refused ---------------------------------------------------------------------------------------------------------

HEIC = b"\0\0\0\x18ftypheic" + bytes(40)
NONE = {
    "zero.png": (b"", "it is empty; create or download it again"),
    "text.png": (b"no image\n" * 200, "it is text; give a PNG, JPEG or another image"),
    "page.jpg": (b"<!DOCTYPE html><p>404", "it is text"),
    "photo.heic": (HEIC, "it is HEIC or AVIF, or a video; convert it to PNG or JPEG first"),
    "lines.svg": (b'<?xml version="1.0"?><svg xmlns="x"/>', "it is SVG, which is drawn by lines; convert it"),
    "paper.png": (b"%PDF-1.7 \xff\xfe\0", "it is PDF; convert it"),
    "noise.png": (bytes(range(256)) * 5, "Pillow does not know its format"),
    "cut.jpg": (encoded(Image.fromarray(COLOR).resize((90, 90)), "JPEG")[:-200], "image file is truncated"),
    "cut.png": (encoded(Image.fromarray(COLOR).resize((90, 90)))[:90], "truncated|broken|not enough"),
    "bomb.png": (png_header(20_000, 20_000), "is 20,000 × 20,000 pixels, more than the 89,478,485 that Pillow allows"),
    "large.png": (png_header(10_000, 10_000), "is 10,000 × 10,000 pixels, more than the 89,478,485 that Pillow allows"),
    "header.bmp": (b"BM" + bytes(30), "cannot be read as an image"),
    "none.gif": (b"GIF89a\0\0\0\0\0\0\0", "none.gif is 0 × 0 pixels; expected at least one|cannot be read"),
}


@pytest.mark.parametrize("name", NONE)
def test_files_that_are_no_images(name: str, tmp_path: Path) -> None:
    content, words = NONE[name]
    (tmp_path / name).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for raw in (tmp_path / name, FileBytes(content, f"a.zip/{name}")):
            with pytest.raises(UserError, match=words) as caught:
                open_image(raw)
            assert name in str(caught.value) and "object at 0x" not in str(caught.value)
            thorough = image_problem(raw, thorough=True)
            assert thorough == str(caught.value)
            assert image_problem(raw) == thorough


def test_addresses_folders_and_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"https://a\.b/c\.png is an address, which regard does not fetch; download"):
        open_image("https://a.b/c.png")
    with pytest.raises(UserError, match="cannot be read as an image .Is a directory"):
        open_image(tmp_path)
    with pytest.raises(UserError, match="cannot be read as an image .embedded null"):
        open_image("a\0b")
    monkeypatch.setattr(read_image, "SMALL", 10)
    assert "20,000 × 20,000 pixels" in image_problem(png_header(20_000, 20_000))
    assert image_problem(encoded(Image.fromarray(COLOR))) == ""
    assert image_problem(encoded(Image.fromarray(COLOR), "WEBP")) == ""
    assert image_problem(encoded(Image.fromarray(COLOR), "JPEG") + b"more") == ""  # decoded, because its end is odd
    assert "values from" in image_problem(np.full((2, 2), 3.0)) and image_problem(Image.new("L", (2, 2))) == ""


# --- data sets -------------------------------------------------------------------------------------------------------


def make(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(Image.new("RGB", (4, 4), (number, 0, 0))))
    return folder


def read(place: object, **data: Any) -> Any:
    return LABELED_IMAGES.open(((str(place),),), ImageData(**data))


def labels(examples: Any) -> list[str]:
    return [examples.field(index, 1) for index in range(len(examples))]


def test_odd_folders(tmp_path: Path) -> None:
    folder = make(tmp_path / "all", "a b/1.PNG", "a b/2, ü.png", "c/deep/er/3.png", "c/.hidden.png", ".cache/4.png")
    (folder / "empty").mkdir()
    (folder / "c" / "more.zip").write_bytes(b"PK")
    (folder / "c" / "link.png").symlink_to(folder / "a b" / "1.PNG")
    (folder / "c" / "loop").symlink_to(folder)
    examples = read(folder)
    assert labels(examples) == ["a b", "a b", "c", "c"]
    assert examples.report() == [
        "no images in empty, so no class of this name",
        "1 files are no images and were left out, such as c/more.zip",
    ]
    assert [pixels(image)[0, 0, 0] for image, _ in examples] == [0, 1, 2, 0]
    assert read(folder).fingerprint() == examples.fingerprint() and examples.location(1).endswith("a b/2, ü.png")


def test_folders_that_cannot_be_read_as_classes(tmp_path: Path) -> None:
    make(tmp_path / "both", "cat/1.png", "2.png")
    make(tmp_path / "splits", "train/cat/1.png", "train/dog/2.png", "test/cat/3.png")
    (tmp_path / "none" / "cat").mkdir(parents=True)
    make(tmp_path / "single", "cat/1.png", "cat/2.png")
    for name, words in (
        ("both", r"2\.png is in no folder of a class"),
        ("splits", r"has the folders test, train, which look like splits .* such as data.train=.*splits/train"),
        ("none", r"none has no images; expected files such as \.png"),
    ):
        with pytest.raises(UserError, match=words):
            read(tmp_path / name)
    assert labels(read(make(tmp_path / "modes", "train/1.png", "test/2.png"))) == ["test", "train"]  # are classes here
    with pytest.raises(UserError, match="every label of .*single is 'cat', expected at least two; give a folder for"):
        collect_labels(read(tmp_path / "single"), "give a folder for each class")
    assert collect_labels(read(make(tmp_path / "few", "a/1.png", "b/2.png")), "x").counts == {"a": 1, "b": 1}
    with pytest.raises(UserError, match="images and labels are in one place, but 2 were given"):
        LABELED_IMAGES.open(((str(tmp_path / "few"),), (str(tmp_path / "single"),)), ImageData())


def test_unreadable_images_stop_or_are_counted(tmp_path: Path) -> None:
    folder = make(tmp_path / "all", "a/1.png", "b/2.png", "b/3.png")
    (folder / "a" / "0.heic").write_bytes(HEIC)
    (folder / "b" / "4.png").write_bytes(b"")
    (folder / "b" / "5.png").symlink_to(folder / "gone.png")
    with pytest.raises(
        UserError, match=r"all/a/0\.heic cannot be read as an image: it is HEIC .* or set data.invalid="
    ):
        read(folder)
    examples = read(folder, invalid="skip")
    assert labels(examples) == ["a", "b", "b"] and examples.counts["unreadable"] == 3
    (fact,) = examples.report()
    assert fact.startswith("3 images left out because they cannot be read (data.invalid=skip); the first: ")
    assert "0.heic" in fact


def test_tables_name_file_and_line(tmp_path: Path) -> None:
    make(tmp_path, "a.png", "b.png")
    (tmp_path / "c.png").write_bytes(b"")
    table = tmp_path / "list.csv"
    rows = [("a.png", "x"), (tmp_path / "b.png", "y"), ("c.png", "x"), ("d.png", "y")]
    table.write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in rows))
    with pytest.raises(UserError, match=r"list\.csv:4: .*c\.png cannot be read as an image: it is empty"):
        read(table)
    examples = read(table, invalid="skip")
    assert labels(examples) == ["x", "y"] and examples.counts["unreadable"] == 2
    assert [pixels(image)[0, 0, 0] for image, _ in examples] == [0, 1]
    table.write_text("path,label\na.png,x\nd.png,y\n")
    with pytest.raises(UserError, match=r"list\.csv:3: there is no image .*d\.png; correct the path or the line, or"):
        read(table)
    table.write_text("label,file\nx,a.png\ny,b.png\n")
    before = read(table).fingerprint()
    assert [name for name, _ in LABELED_IMAGES.items(str(table), ImageData())] == [str(tmp_path / "a.png"), str(tmp_path / "b.png")]  # fmt: skip
    make(tmp_path, "a.png", "other.png")
    (tmp_path / "a.png").write_bytes(encoded(Image.new("RGB", (40, 40))))
    assert read(table).fingerprint() != before  # another file of this name


def test_names_of_numbered_labels(tmp_path: Path) -> None:
    folder = make(tmp_path / "digits", "0/a.png", "1/b.png")
    assert labels(read(folder, names=("zero", "one"))) == ["zero", "one"]
    with pytest.raises(
        UserError, match=r"has the label 1, which is no index of the 1 names .data\.names.; give a name"
    ):
        read(folder, names=("zero",))


def test_several_places_are_one(tmp_path: Path) -> None:
    make(tmp_path, "one/a/1.png", "one/b/2.png", "two/a/3.png", "two/c/4.png")
    (tmp_path / "two" / "c" / "x.txt").write_text("")
    places = (str(tmp_path / "one"), str(tmp_path / "two"))
    examples = LABELED_IMAGES.open((places,), ImageData())
    assert labels(examples) == ["a", "b", "a", "c"] and [examples.text(i, 1) for i in (0, 3)] == ["a", "c"]
    assert [pixels(examples[i][0])[0, 0, 0] for i in range(4)] == [0, 1, 2, 3] and examples.location(2).endswith(
        "3.png"
    )
    assert examples.fingerprint() != LABELED_IMAGES.open((places[::-1],), ImageData()).fingerprint()
    assert examples.report() == [f"{places[1]}: 1 files are no images and were left out, such as c/x.txt"]


# --- memory ----------------------------------------------------------------------------------------------------------

ARRAYS = [np.full((4, 4, 3), 10 * number, np.uint8) for number in range(4)]


class Pairs:
    """A data set as those of torchvision."""

    def __init__(self, pairs: list[Any]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        return self.pairs[index]


def containers(tmp_path: Path) -> dict[str, Any]:
    import datasets
    import pandas as pd

    names, images = ["cat", "dog", "cat", "dog"], [Image.fromarray(each) for each in ARRAYS]
    files = make(tmp_path, *(f"{number}.png" for number in range(4)))
    for number, image in enumerate(images):
        image.save(files / f"{number}.png")
    paths = [str(files / f"{number}.png") for number in range(4)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    columns = {"image": images, "label": [0, 1, 0, 1]}
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "all.parquet")
    return {
        "parquet": tmp_path / "all.parquet",
        "tuples": list(zip(ARRAYS, names, strict=True)),
        "dicts": [{"image": image, "label": name} for image, name in zip(images, names, strict=True)],
        "columns": {"image": np.stack(ARRAYS), "label": names},
        "tensors": [(torch.from_numpy(each).permute(2, 0, 1), name) for each, name in zip(ARRAYS, names, strict=True)],
        "bytes": [(encoded(image), name) for image, name in zip(images, names, strict=True)],
        "paths": [(Path(path), name) for path, name in zip(paths, names, strict=True)],
        "frame": pd.DataFrame({"file": paths, "label": names}),
        "images in a frame": pd.DataFrame({"image": images, "label": names}),
        "sequence": Pairs(list(zip(images, names, strict=True))),
        "iterable": iter(list(zip(images, names, strict=True))),
        "iterable of dicts": ({"image": image, "label": name} for image, name in zip(ARRAYS, names, strict=True)),
        "streamed": datasets.Dataset.from_dict(columns, features=features).to_iterable_dataset(),
        "datasets": datasets.Dataset.from_dict(columns, features=features),
        "datasets of paths": datasets.Dataset.from_dict({**columns, "image": paths}, features=features),
    }


def test_images_in_any_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, data in containers(tmp_path).items():
        sides = as_data_files(data, "data.train")
        examples = LABELED_IMAGES.open(sides, ImageData())
        assert labels(examples) == ["cat", "dog", "cat", "dog"], name
        assert [pixels(image)[0, 0, 0] for image, _ in examples] == [0, 10, 20, 30], name
        again = LABELED_IMAGES.open(sides, ImageData())
        other = LABELED_IMAGES.open(
            as_data_files(data[1:], "data.train") if isinstance(data, list) else sides, ImageData()
        )
        assert examples.fingerprint() == again.fingerprint(), name
        assert not isinstance(data, list) or other.fingerprint() != again.fingerprint(), name


def test_mistakes_in_memory_name_the_record() -> None:
    for second, words in (
        (np.full((4, 4), 7.0), "record 2: an image has values from 7 to 7"),
        ("nowhere.png", "record 2: there is no image nowhere.png"),
        (b"", "record 2: the bytes cannot be read as an image: it is empty"),
        (3.5, "record 2: no path or image under 'path' but 3.5"),
    ):
        data = as_data_files([(ARRAYS[0], "a"), (second, "b")], "data.train")
        with pytest.raises(UserError, match=words):
            LABELED_IMAGES.open(data, ImageData())
        kept = LABELED_IMAGES.open(data, ImageData(invalid="skip"))
        assert labels(kept) == ["a"]


def test_trees_that_cannot_be_read(tmp_path: Path) -> None:
    folder = make(tmp_path / "all", "a/1.png", "b/2.png")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(folder / "a/1.png", "a/1.png")
        archive.writestr("b/2.png", b"x" * 100)
    content = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "damaged.zip").write_bytes(content.replace(b"x" * 100, b"y" * 100))
    with pytest.raises(UserError, match=r"damaged\.zip/b/2\.png cannot be read .*create the archive again"):
        read(tmp_path / "damaged.zip")
    (tmp_path / "cut.zip").write_bytes(content.replace(b"PK\x01\x02", b"PK\x01\x09"))
    with pytest.raises(UserError, match=r"cut\.zip cannot be unpacked .*; download or create it again"):
        read(tmp_path / "cut.zip")
    tree = FolderTree(folder)
    (folder / "a" / "1.png").unlink()
    with pytest.raises(UserError, match=r"1\.png cannot be read: No such file"):
        tree.read("a/1.png")
    with pytest.raises(UserError, match="gone cannot be read: No such file or directory; check its permissions"):
        FolderTree(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty has no images; expected files such as \.png or \.jpg"):
        LABELED_IMAGES.items(str(tmp_path / "empty"), ImageData())


def test_no_pillow_and_no_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="an image is 0 × 0 pixels; expected at least one"):
        open_image(Image.new("RGB", (0, 0)))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"images need Pillow; install it with: pip install 'regard\[vision\]'"):
        open_image(b"")
