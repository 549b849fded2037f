"""Requests and results: JSON is the type, for every one of them; what does not belong to a type is refused."""

import importlib
import io
import json
import pkgutil
import types
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import PIL.Image
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

import regard.messages
from regard.messages.base import Request, Result, message_adapter, message_schema, to_json
from regard.messages.media import ArrayForm, BytesForm, FileForm, Image, Item, Media, Sound
from regard.messages.texts import CaptionRequest, MultitaskRequest, TranslateRequest, TranslateResult
from regard.messages.verbs import ScoreRequest
from regard.processors.sound.read import Samples

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
SAMPLES = np.linspace(-1, 1, 5, dtype=np.float32)


def all_messages() -> list[type]:
    found = dict[str, type]()
    for module in pkgutil.iter_modules(regard.messages.__path__):
        for name, value in vars(importlib.import_module(f"regard.messages.{module.name}")).items():
            if isinstance(value, type) and issubclass(value, Request | Result) and value not in (Request, Result):
                found[name] = value
    return list(found.values())


MESSAGES = all_messages()
every_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
ONE_OF_SEVERAL = {Item, MultitaskRequest}  # dataclasses that have one of `text`, `image` and `audio`


def examples(annotation: Any, within: frozenset[type] = frozenset()) -> list[Any]:
    """Values of a type, at least one for each member of a union. A type inside itself has none."""
    if get_origin(annotation) is Annotated:
        return examples(get_args(annotation)[0], within)
    if get_origin(annotation) is Literal:
        return [*get_args(annotation)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [value for member in get_args(annotation) for value in examples(member, within)]
    if get_origin(annotation) is dict:
        return [{key: value} for key, value in zip(*map(examples, get_args(annotation)), strict=False)]
    if get_origin(annotation) is tuple:
        first, *others = get_args(annotation)
        if others == [...]:
            return [tuple(examples(first, within)), ()]
        return [tuple(examples(member)[0] for member in (first, *others))]
    simple: dict[Any, list[Any]] = {
        type(None): [None], str: ["a é\n", ""], bool: [True, False], int: [3], float: [0.5, -2.25], object: [],
        Image: [Image(PIXELS), Image(b"png"), Image("a.png")], Sound: [Sound(Samples(SAMPLES, 8000)), Sound("a.wav")],
    }  # fmt: skip
    if annotation in simple:
        return simple[annotation]
    if issubclass(annotation, tuple):  # a NamedTuple
        return [annotation(*(examples(hint)[0] for hint in get_type_hints(annotation).values()))]
    assert is_dataclass(annotation), f"there is no example of {annotation}"
    if annotation in within:
        return []
    return [value for value in examples_of(annotation, within) if has_media(value) or is_valid(annotation, value)]


def is_valid(message: Any, value: Any) -> bool:
    """Whether the validators of its fields take a message, such as the teacher of a strategy that must have one."""
    adapter: TypeAdapter[Any] = TypeAdapter(message)
    try:
        adapter.validate_json(adapter.dump_json(value))
    except ValidationError:
        return False
    return True


def examples_of(message: Any, within: frozenset[type] = frozenset()) -> Iterator[Any]:
    """A message with nothing but what it must have, and messages with each value of each field."""
    hints = get_type_hints(message, include_extras=True)
    values = {field.name: examples(hints[field.name], within | {message}) for field in fields(message)}
    if message in ONE_OF_SEVERAL:
        for name in ("text", "image", "audio"):
            for value in values[name]:
                if value is not None:
                    yield message(**{name: value})
        return
    least = {
        field.name: values[field.name][0]
        for field in fields(message)
        if field.default is MISSING and field.default_factory is MISSING
    }
    smallest = message(**least)
    yield smallest
    for number in range(max(map(len, values.values()), default=0)):
        chosen = {name: own[number % len(own)] for name, own in values.items() if own}
        yield replace(smallest, **chosen)


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """All JSON objects inside a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects_in(inner)


def has_media(value: Any) -> bool:
    return isinstance(value, Media) or (
        any(map(has_media, vars(value).values()))
        if is_dataclass(value)
        else isinstance(value, tuple) and any(map(has_media, value))
    )


# --- every type ------------------------------------------------------------------------------------------------------


@every_message
def test_json_is_the_type(message: type) -> None:
    adapter, count = message_adapter(message), 0
    for value in examples_of(message):
        text = adapter.dump_json(value)
        again = adapter.validate_json(text)
        assert adapter.dump_json(again) == text and type(again) is message
        assert again == value or has_media(value)
        assert not isinstance(value, Request) or isinstance(hash(value), int)
        count += 1
        if isinstance(value, Result):
            assert json.loads(json.dumps(to_json(value))) == json.loads(text) and [*to_json(value)][-1] == "notices"
            assert message.__name__ in value._repr_html_()
    assert count >= 2


@every_message
def test_no_schema_says_nothing(message: type) -> None:
    """`{}` allows anything, which is what `Any` gives."""

    def empty(schema: Any, path: str) -> list[str]:
        if not isinstance(schema, dict):
            return (
                [place for number, part in enumerate(schema) for place in empty(part, f"{path}/{number}")]
                if isinstance(schema, list)
                else []
            )
        found = []
        for name, part in schema.get("properties", {}).items():
            if not {*part} - {"title", "default", "description"}:
                found.append(f"{path}/{name}")
        for key in ("items", "additionalProperties"):
            if schema.get(key) in ({}, True):
                found.append(f"{path}/{key}")
        return found + [place for key, part in schema.items() for place in empty(part, f"{path}/{key}")]

    modes: tuple[Literal["validation", "serialization"], ...] = ("validation", "serialization")
    for schema in [message_schema(message), *(message_adapter(message).json_schema(mode=mode) for mode in modes)]:
        assert not empty(schema, message.__name__)
        own = schema if "properties" in schema else schema["$defs"][message.__name__]  # of a type inside itself
        assert own["additionalProperties"] is False


@every_message
def test_unknown_fields_are_refused_at_every_depth(message: type) -> None:
    """pydantic ignores them in plain dataclasses, so that a misspelled setting would have no effect."""
    adapter, checked = message_adapter(message), 0
    for value in examples_of(message):
        record = json.loads(adapter.dump_json(value))
        for part in objects_in(record):
            part["max_token"] = 1
            with pytest.raises(ValidationError):
                adapter.validate_json(json.dumps(record))
            del part["max_token"]
            checked += 1
        adapter.validate_json(json.dumps(record))
    assert checked >= 2


def test_values_of_another_type_are_refused() -> None:
    for message, wrong in (
        (TranslateRequest, {"source": 3}), (TranslateRequest, {}), (TranslateRequest, {"source": "a", "max_tokens": "many"}),
        (TranslateRequest, {"source": "a", "strategy": {"kind": "beam", "temperature": 1.0}}),
        (TranslateRequest, {"source": "a", "strategy": {"kind": "dream"}}), (TranslateRequest, {"source": "a", "strategy": {"size": 3}}),
        (TranslateRequest, {"source": "a", "include": [3]}), (CaptionRequest, {"image": 3}), (CaptionRequest, {"image": "a.png"}),
        (CaptionRequest, {"image": {"kind": "bytes", "path": "a.png"}}), (TranslateResult, {"text": "a", "finish": "tired"}),
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            message_adapter(message).validate_json(json.dumps(wrong))


# --- media -----------------------------------------------------------------------------------------------------------

IMAGES = TypeAdapter(Image)
SOUNDS = TypeAdapter(Sound)


def test_media_are_any_raw_form_in_python_without_a_copy() -> None:
    request = message_adapter(CaptionRequest).validate_python({"image": PIXELS})
    assert request.image.raw is PIXELS and "Image(" in repr(request)
    for raw in ("a.png", Path("a.png"), b"png", PIL.Image.fromarray(PIXELS), torch.zeros(3, 4, 4), io.BytesIO(b"png")):
        assert IMAGES.validate_python(raw).raw is raw
    for raw in ("a.wav", b"wav", SAMPLES, (SAMPLES, 8000), Samples(SAMPLES, 8000), torch.zeros(4)):
        assert SOUNDS.validate_python(raw).raw is raw
    media = Image(PIXELS)
    assert IMAGES.validate_python(media) is media
    for wrong, words in (
        (3, "a int is not an image; expected a path, bytes"),
        (None, "a NoneType is not an image"),
        ([PIXELS], "a list is not"),
    ):
        with pytest.raises(ValidationError, match=words):
            IMAGES.validate_python(wrong)
    for wrong in (3, np.zeros((2, 3, 4)), ([1], 2, 3)):
        with pytest.raises(ValidationError, match="is not a recording; expected a path, bytes, samples"):
            SOUNDS.validate_python(wrong)


def test_media_have_three_forms_in_json() -> None:
    """What was sent is what is read: paths, the bytes of files, and arrays with their types."""
    for path in ("a/b.png", Path("a/b.png")):
        assert IMAGES.dump_json(Image(path)) == b'{"kind":"file","path":"a/b.png"}'
    assert IMAGES.validate_json('{"kind": "file", "path": "a.png"}').raw == "a.png"
    for raw in (b"\x89PNG\x00", io.BytesIO(b"\x89PNG\x00")):
        form = json.loads(IMAGES.dump_json(Image(raw)))
        assert (
            form == {"kind": "bytes", "data": "iVBORwA="}
            and IMAGES.validate_json(json.dumps(form)).raw == b"\x89PNG\x00"
        )
    content = IMAGES.validate_json(IMAGES.dump_json(Image(PIL.Image.fromarray(PIXELS)))).raw
    assert (np.asarray(PIL.Image.open(io.BytesIO(content))) == PIXELS).all()
    for array in (
        PIXELS,
        PIXELS[:, ::-1],
        PIXELS[..., 0],
        SAMPLES.astype(">f4"),
        (SAMPLES * 99).astype(np.int16),
        np.zeros((0, 2), np.int32),
    ):
        adapter = IMAGES if array.dtype == np.uint8 else SOUNDS
        again = adapter.validate_json(adapter.dump_json((Image if adapter is IMAGES else Sound)(array))).raw
        assert again.shape == array.shape and again.dtype.itemsize == array.dtype.itemsize and (again == array).all()
    for raw in (torch.from_numpy(SAMPLES), SAMPLES.astype(np.float64)):
        again = SOUNDS.validate_json(SOUNDS.dump_json(Sound(raw))).raw
        assert again.dtype == np.float32 and (again == SAMPLES).all()
    for raw in ((SAMPLES, 8000), Samples(SAMPLES, 8000)):
        again = SOUNDS.validate_json(SOUNDS.dump_json(Sound(raw))).raw
        assert isinstance(again, Samples) and again.rate == 8000 and (again.samples == SAMPLES).all()
    forms = [FileForm(path="a.png"), BytesForm(data=b"x"), ArrayForm(data=b"abc", shape=(1, 1, 3), dtype="uint8")]
    for form in forms:
        assert IMAGES.validate_python(form.model_dump()).to_wire() == form
    schema = json.dumps(message_schema(CaptionRequest))
    assert all(name in schema for name in ("FileForm", "BytesForm", "ArrayForm", "base64", "discriminator"))


@pytest.mark.parametrize(
    "form, words",
    [
        ({"kind": "bytes", "data": "no base64!"}, "it is not base64"),
        ({"kind": "bytes", "data": "aGk"}, "it is not base64"),
        ({"kind": "bytes", "data": "é"}, "it is not base64"),
        ({"kind": "bytes", "data": 3}, "bytes"),
        ({"kind": "array", "data": "AAAA", "shape": [2, 2], "dtype": "uint8"}, r"it has 3 bytes, which are not uint8 of the shape \(2, 2\)"),
        ({"kind": "array", "data": "AAAA", "shape": [3], "dtype": "float32"}, r"it has 3 bytes, which are not float32 of the shape \(3,\)"),
        ({"kind": "array", "data": "AAAA", "shape": [-1, -3], "dtype": "uint8"}, "greater than or equal to 0"),
        ({"kind": "array", "data": "AAAA", "shape": [3], "dtype": "object"}, "'uint8', 'int16', 'int32' or 'float32'"),
        ({"kind": "array", "data": "AAAA", "shape": [3]}, "dtype"),
        ({"kind": "file"}, "path"),
        ({"kind": "file", "path": "a", "data": "AAAA"}, "Extra inputs"),
        ({"kind": "cloud", "path": "a"}, "'file', 'bytes', 'array'"),
        ({"path": "a"}, "discriminator"),
        ("a.png", "should be an object"),
    ],
)  # fmt: skip
def test_damaged_media_are_refused(form: Any, words: str) -> None:
    for adapter in (IMAGES, SOUNDS):
        with pytest.raises(ValidationError, match=words):
            adapter.validate_json(json.dumps(form))


def test_an_item_is_exactly_one_thing() -> None:
    adapter = TypeAdapter(Item)
    assert (
        Item(text="a").value == "a"
        and Item(text="").value == ""
        and Item(image=(image := Image(PIXELS))).value is image
    )
    assert adapter.validate_json('{"text": "a", "text_pair": "b"}') == Item(text="a", text_pair="b")
    for wrong, words in (
        ({}, "it has neither text, image nor audio; give exactly one of them"), ({"text": "a", "image": Image(PIXELS)}, "it has text and image; give"),
        ({"image": Image(PIXELS), "audio": Sound(SAMPLES)}, "it has image and audio"), ({"image": Image(PIXELS), "text_pair": "b"}, "text_pair and no text"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            Item(**wrong)
    form = {"kind": "file", "path": "a.png"}
    for record, words in (
        ({}, "give exactly one"),
        ({"text": "a", "image": form}, "it has text and image"),
        ({"text": None}, "exactly one"),
    ):
        with pytest.raises(ValidationError, match=words):
            adapter.validate_json(json.dumps(record))
    score = message_adapter(ScoreRequest)
    assert score.validate_json('{"item": "a", "target": "b"}') == ScoreRequest(
        Item(text="a"), "b"
    )  # a string is a text
    assert score.validate_json('{"item": {"text": "a"}, "target": ["b", "c"]}').target == ("b", "c")
    for wrong in ({"text": "a", "audio": Sound(SAMPLES)}, {}):
        with pytest.raises(ValueError, match="give exactly one of text, image and audio"):
            MultitaskRequest(**wrong)
