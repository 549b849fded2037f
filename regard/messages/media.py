"""Images and sounds in requests: any raw form in Python, without a copy; one typed form in JSON.

`image: Image` in a request is a Media object in Python. Its schema is the union of three JSON objects, so that a server
can describe it. A server refuses files unless it was given the folders that it may read.
"""

import base64
import io
import os
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import numpy as np
import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from ..errors import UserError
from ..processors.image.read import RawImage, is_image
from ..processors.sound.read import RawSound, Samples, is_sound
from .base import FORBID_UNKNOWN


def _decode_base64(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:  # binascii.Error is one; letters beyond ASCII give another
        raise ValueError(f"it is not base64 ({error})") from error


Base64 = Annotated[
    bytes,
    BeforeValidator(_decode_base64),
    PlainSerializer(lambda value: base64.b64encode(value).decode(), str),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


class MediaForm(BaseModel):
    """A form of media in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileForm(MediaForm):
    """A file that the reader of the request can open."""

    kind: Literal["file"] = "file"
    path: str


class BytesForm(MediaForm):
    """The content of a PNG, JPEG, WAV, FLAC … file."""

    kind: Literal["bytes"] = "bytes"
    data: Base64


class ArrayForm(MediaForm):
    """Pixels (height, width[, channels]) or samples (samples[, channels])."""

    kind: Literal["array"] = "array"
    data: Base64  # little-endian, the last index changes fastest
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    dtype: Literal["uint8", "int16", "int32", "float32"]
    rate: int | None = None  # samples per second, of a sound


AnyForm: TypeAlias = FileForm | BytesForm | ArrayForm
WireForm = Annotated[AnyForm, Field(discriminator="kind")]
WIRE: TypeAdapter[AnyForm] = TypeAdapter(WireForm)


class Media:
    """A raw image or sound. It is read when its request runs, not before."""

    noun: ClassVar[str]
    expected: ClassVar[str]
    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.raw!r:.40})"

    @classmethod
    def accepts(cls, raw: object) -> bool:
        """True for one item in a form that Python code uses."""
        raise NotImplementedError

    @classmethod
    def of(cls, raw: object) -> Self:
        """Raw media, or their JSON form, as media."""
        if isinstance(raw, cls):
            return raw
        if isinstance(raw, dict) and "kind" in raw:
            return cls.from_wire(WIRE.validate_python(raw))
        if not cls.accepts(raw):
            raise ValueError(f"a {type(raw).__name__} is not {cls.noun}; expected {cls.expected}")
        return cls(raw)

    @classmethod
    def from_wire(cls, form: AnyForm) -> Self:
        """The media of a JSON form."""
        match form:
            case FileForm(path=path):
                return cls(path)
            case BytesForm(data=data):
                return cls(data)
        dtype = np.dtype(form.dtype).newbyteorder("<")
        if len(form.data) != dtype.itemsize * int(np.prod(form.shape)):
            raise ValueError(f"it has {len(form.data)} bytes, which are not {form.dtype} of the shape {form.shape}")
        array = np.frombuffer(form.data, dtype).reshape(form.shape)
        return cls(array if form.rate is None else Samples(array, form.rate))

    def to_wire(self) -> AnyForm:
        """The JSON form. Pillow images become PNG."""
        raw, rate = self.raw, None
        if isinstance(raw, str | os.PathLike):
            return FileForm(path=os.fspath(raw))
        if isinstance(raw, bytes):
            return BytesForm(data=raw)
        if hasattr(raw, "convert"):
            file = io.BytesIO()
            raw.save(file, "PNG")
            return BytesForm(data=file.getvalue())
        if hasattr(raw, "read"):
            return BytesForm(data=raw.read())
        if isinstance(raw, tuple):
            raw, rate = raw
        array = np.ascontiguousarray(raw.detach().cpu().numpy() if isinstance(raw, torch.Tensor) else raw)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        dtype: Any = array.dtype.name
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        return ArrayForm(data=data, shape=array.shape, dtype=dtype, rate=rate)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        wire = handler.generate_schema(WireForm)
        from_json = core_schema.no_info_after_validator_function(cls.from_wire, wire)
        to_json = core_schema.plain_serializer_function_ser_schema(cls.to_wire, return_schema=wire, when_used="json")
        from_python = core_schema.no_info_plain_validator_function(cls.of)
        return core_schema.json_or_python_schema(from_json, from_python, serialization=to_json)


class Image(Media):
    """A path, bytes, a Pillow image, an array (height, width[, channels]) or a tensor."""

    raw: RawImage
    noun, expected = "an image", "a path, bytes, a Pillow image or an array"
    __slots__ = ()

    @classmethod
    def accepts(cls, raw: object) -> bool:
        return is_image(raw)


class Sound(Media):
    """A path, bytes, samples at the rate of the run, or (samples, rate)."""

    raw: RawSound
    noun, expected = "a recording", "a path, bytes, samples, or (samples, rate)"
    __slots__ = ()

    @classmethod
    def accepts(cls, raw: object) -> bool:
        return is_sound(raw)


Value = TypeVar("Value", bound=str | Media)


@dataclass(frozen=True)
class Item:
    """A text, a pair of texts, an image or a recording."""

    __pydantic_config__: ClassVar[ConfigDict] = FORBID_UNKNOWN
    text: str | None = None
    image: Image | None = None
    audio: Sound | None = None
    text_pair: str | None = None  # the second text of a pair
    task: str | None = None  # the tag, for a model of several tasks

    def __post_init__(self) -> None:
        given = [name for name in ("text", "image", "audio") if getattr(self, name) is not None]
        if len(given) != 1:
            content = " and ".join(given) or "neither text, image nor audio"
            raise ValueError(f"it has {content}; give exactly one of them")
        if self.text_pair is not None and self.text is None:
            raise ValueError("it has text_pair and no text; give both texts of a pair")

    @property
    def value(self) -> str | Media:
        """The text, or the media."""
        value = next(value for value in (self.text, self.image, self.audio) if value is not None)
        return value

    def value_as(self, wanted: type[Value]) -> Value:
        """The value of an item that must be a text (str), an Image or a Sound; another one is refused."""
        if isinstance(value := self.value, wanted):
            return value
        noun = noun_of(wanted)
        raise UserError(f"this model reads {noun.split()[1]}s and was given {noun_of(type(value))}; give {noun}")


def noun_of(kind: type) -> str:
    """What an item of this type is called, for messages."""
    return kind.noun if issubclass(kind, Media) else "a text"


AnyItem = Annotated[Item, BeforeValidator(lambda value: Item(text=value) if isinstance(value, str) else value)]
"""An item; in JSON a string is a text."""
