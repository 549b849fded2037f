"""Reads images: paths, bytes, files, Pillow images, arrays and tensors become upright RGB images.

Pillow (the extra `vision`) is imported where it is used.
"""

import io
import os
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
import torch

from ...errors import UserError
from ..base import Array
from ..base import FileBytes as FileBytes

if TYPE_CHECKING:
    from PIL import Image

RawImage: TypeAlias = Union[str, os.PathLike[str], bytes, IO[bytes], Array, torch.Tensor, "Image.Image"]
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO")  # none runs programs
ORIENTATION = 0x0112  # the EXIF tag
HEAD = 1024  # bytes that identify the format of a file
CHANNELS = (1, 3, 4)
ENDS = {b"\xff\xd8\xff": b"\xff\xd9", b"\x89PNG\r\n\x1a\n": b"IEND\xaeB`\x82"}  # of JPEG and PNG, by their first bytes
SMALL, MANY = 1 << 19, 1 << 24  # bytes and pixels: the header of larger files is read
UNIFORM_BYTES, UNIFORM_PIXELS = 4096, 25  # a compressed image of one color has fewer bytes: 1 per 60 pixels as JPEG
SIDE = 32  # of an image that is examined for colors, at least
EXPECTED = "give a PNG, JPEG or another image"
CONVERT = "convert it to PNG or JPEG first"


def is_image(value: object) -> bool:
    """True for one image, False for several."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.ndim in (2, 3)
    return isinstance(value, str | bytes | os.PathLike) or hasattr(value, "convert") or hasattr(value, "read")


def image_name(raw: object) -> str:
    """The name of an image in messages."""
    if isinstance(raw, str | os.PathLike):
        return os.fspath(raw)
    if isinstance(raw, bytes):
        return getattr(raw, "place", "the bytes")
    return str(getattr(raw, "filename", "") or getattr(raw, "name", "") or "an image")


def open_image(raw: RawImage, enough: int = 0, background: str = "none") -> "Image.Image":
    """The first frame as an RGB image, rotated upright by its EXIF orientation.

    Transparent parts show the `background`, a color; with "none" the colors that their pixels have, often black. The
    background "transparent" keeps them: RGBA.

    A JPEG file is decoded at a half, a quarter or an eighth of its size if both sides keep `enough` pixels: 12 million
    pixels take half of the time. 0: at its size.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError("images need Pillow; install it with: pip install 'regard[vision]'") from error
    name = image_name(raw)
    if isinstance(raw, Image.Image):
        return _decode(raw, name, background)
    if isinstance(raw, np.ndarray | torch.Tensor):
        return _to_rgb(Image.fromarray(_to_bytes(raw, name)), name, background)
    with _open_file(raw, name) as file:
        return _decode(_parse(file, name), name, background, enough)


def image_size(raw: RawImage) -> tuple[int, int]:
    """Width and height of the upright image; the pixels of a file are not decoded."""
    name = image_name(raw)
    if not isinstance(raw, str | os.PathLike | bytes):
        return open_image(raw).size
    with _open_file(raw, name) as file:
        image = _parse(file, name)
        _check_size(image, name)
        width, height = image.size
        return (height, width) if _orientation(image) >= 5 else (width, height)  # turned by 90 degrees


def image_problem(raw: RawImage, thorough: bool = False) -> str:
    """Why an image cannot be read, as a sentence; "" if it can.

    Unless `thorough`, only a PNG or JPEG file without its usual end is decoded. Others are checked by their header,
    small ones by their first bytes (20 µs; a header takes 100 µs, decoding milliseconds).
    """
    name = image_name(raw)
    try:
        if thorough or isinstance(raw, np.ndarray | torch.Tensor):
            open_image(raw)
        elif isinstance(raw, str | os.PathLike | bytes):
            with _open_file(raw, name) as file:
                _check_ends(file, name)
    except UserError as error:
        return str(error)
    return ""


def is_uniform(raw: RawImage, background: str) -> bool:
    """True for an image of one color on its background; files of many bytes are not read."""
    if isinstance(raw, str | os.PathLike | bytes):
        width, height = image_size(raw)
        size = len(raw) if isinstance(raw, bytes) else Path(raw).expanduser().stat().st_size
        if size > UNIFORM_BYTES + width * height // UNIFORM_PIXELS:
            return False
    extrema: list[tuple[int, int]] = open_image(raw, SIDE, background).getextrema()  # type: ignore[assignment]
    return all(low == high for low, high in extrema)  # of every channel


def _check_ends(file: IO[bytes], name: str) -> None:
    head, size = file.read(HEAD), file.seek(0, os.SEEK_END)
    end = next((end for start, end in ENDS.items() if head.startswith(start)), None)
    file.seek(max(size - 8, 0))
    whole = end is not None and file.read().endswith(end)
    claimed = int.from_bytes(head[16:20]) * int.from_bytes(head[20:24]) if head.startswith(b"\x89PNG") else 0
    if whole and size < SMALL and claimed < MANY:
        return
    file.seek(0)
    image = _parse(file, name)
    _check_size(image, name)
    if end and not whole:
        _decode(image, name, "none")


def _open_file(raw: Any, name: str) -> IO[bytes]:
    if isinstance(raw, bytes):
        return io.BytesIO(raw)
    if hasattr(raw, "read"):
        if hasattr(raw, "seek"):
            raw.seek(0)
        return io.BytesIO(raw.read())
    if not isinstance(raw, str | os.PathLike):
        type_name = type(raw).__name__
        raise UserError(f"a {type_name} is no image; expected a path, bytes, a Pillow image, an array or a tensor")
    if name.startswith(("http://", "https://")):
        raise UserError(f"{name} is an address, which regard does not fetch; download the image and give its path")
    try:
        return open(Path(name).expanduser(), "rb")
    except FileNotFoundError as error:
        raise UserError(f"{name} does not exist; give the path of an image") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{name} cannot be read as an image ({reason}); {EXPECTED}") from error


def _parse(file: IO[bytes], name: str) -> "Image.Image":
    """The header of an image. Like Image.open, but for FORMATS only, and without warnings about large images."""
    from PIL import Image

    head = file.read(HEAD)
    for load_plugins in (Image.preinit, Image.init):
        load_plugins()
        for factory, accept in (Image.OPEN[format] for format in FORMATS if format in Image.OPEN):
            if (
                accept is None or not (accepted := accept(head[:16])) or isinstance(accepted, str)
            ):  # a text says why not
                continue
            try:
                file.seek(0)
                return factory(file, name)
            except (SyntaxError, IndexError, TypeError, struct.error):
                continue  # of another format
            except Exception as error:  # plugins raise what their parsers raise
                raise _damaged(name, error) from error
    raise UserError(f"{name} cannot be read as an image: {_describe(head)}")


def _describe(head: bytes) -> str:
    """The type of a file that Pillow does not know, and a remedy."""
    if not head:
        return "it is empty; create or download it again"
    if head[4:8] == b"ftyp":
        return f"it is HEIC or AVIF, or a video; {CONVERT}"
    if b"<svg" in head:
        return f"it is SVG, which is drawn by lines; {CONVERT}"
    if head.startswith(b"%PDF"):
        return f"it is PDF; {CONVERT}"
    try:
        head.decode("utf-8", "strict" if len(head) < HEAD else "ignore")
        binary = b"\0" in head
    except UnicodeDecodeError:
        binary = True
    return f"Pillow does not know its format; {EXPECTED}" if binary else f"it is text; {EXPECTED}"


def _check_size(image: "Image.Image", name: str) -> None:
    from PIL import Image

    width, height = image.size
    if (limit := Image.MAX_IMAGE_PIXELS) and width * height > limit:
        raise UserError(
            f"{name} is {width:,} × {height:,} pixels, more than the {limit:,} that Pillow allows; scale it down"
        )
    if not width * height:
        raise UserError(f"{name} is {width} × {height} pixels; expected at least one")


def _decode(image: "Image.Image", name: str, background: str, enough: int = 0) -> "Image.Image":
    from PIL import ImageOps

    _check_size(image, name)
    try:
        if enough:
            image.draft(None, (enough, enough))
        image.load()
        if _orientation(image) != 1:
            image = ImageOps.exif_transpose(image)
        return _to_rgb(image, name, background)
    except UserError:
        raise
    except Exception as error:  # decoders raise what their parsers raise
        raise _damaged(name, error) from error


def _damaged(name: str, error: Exception) -> UserError:
    return UserError(f"{name} cannot be read as an image ({error}); {EXPECTED}, or create it again")


def _orientation(image: "Image.Image") -> int:
    """The EXIF orientation; 1 (upright) if it is missing or cannot be read."""
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF data raise what their parser raises; the pixels are fine
        return 1


def _to_rgb(image: "Image.Image", name: str, background: str) -> "Image.Image":
    """Convert to RGB, scaling 16 bits and floats, which `convert` would clip."""
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        array = np.asarray(image)
        whole = image.mode != "F" and array.min() >= 0 and array.max() <= 65535
        image = Image.fromarray(_to_bytes(array.astype(np.uint16) if whole else array, name))
    if image.mode == "P" and "transparency" in image.info or image.mode in ("La", "RGBa"):
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    if background != "none" and ("A" in image.getbands() or "transparency" in image.info):
        image = image.convert("RGBA")
        if background == "transparent":
            return image
        whole = Image.new("RGB", image.size, background)
        whole.paste(image, mask=image.getchannel("A"))
        return whole
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_bytes(values: "Array | torch.Tensor", name: str) -> Array:
    """An array (height, width[, channels]) or a tensor, which may have its channels first, as whole numbers 0…255."""
    array = _channels_last(values) if isinstance(values, torch.Tensor) else values
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in CHANNELS) or not array.size:
        container = "a tensor" if isinstance(values, torch.Tensor) else "an array"
        raise UserError(
            f"{container} of shape {tuple(values.shape)} is no image; expected (height, width[, 1, 3 or 4])"
        )
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype == np.uint16:
        return (array >> 8).astype(np.uint8)  # as Pillow reads 16 bits of a color
    if array.dtype.kind not in "biuf":
        raise UserError(f"an array of {array.dtype} is no image; expected numbers")
    limit = 1 if array.dtype.kind in "bf" else 255
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= limit):
        raise UserError(f"{name} has values from {low:g} to {high:g}; expected floats of 0…1 or whole numbers 0…255")
    return np.rint(array * np.float64(255 / limit)).astype(np.uint8)


def _channels_last(tensor: torch.Tensor) -> Array:
    values = tensor.detach().cpu()
    values = values.float() if values.dtype == torch.bfloat16 else values
    first = values.ndim == 3 and values.size(0) in CHANNELS  # torchvision's order; it wins where both are possible
    array: Array = (values.permute(1, 2, 0) if first else values).numpy()
    return array
