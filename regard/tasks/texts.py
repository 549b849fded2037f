"""Texts as arguments of predictors: one str, or several in any iterable. Anything else raises one sentence."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..data.files.in_memory import type_name
from ..errors import UserError

T = TypeVar("T")


def as_text(value: object, name: str = "text") -> str:
    """A text that must be a str."""
    if not isinstance(value, str):
        raise UserError(f"the {name} is {describe_type(value)}; expected a str")
    return value


def as_texts(values: object, name: str = "text") -> list[str]:
    """The texts in an iterable; a str is one text."""
    texts = [values] if isinstance(values, str) else list(iterate_items(values, name))
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UserError(f"{name} {number} is {describe_type(text)}; expected a str")
    return texts  # type: ignore[return-value]  # they were checked


def as_pairs(texts: object, targets: object, names: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Texts and their targets, equally many: two str, or two iterables."""
    if isinstance(texts, str) != isinstance(targets, str) or targets is None:
        raise UserError("score takes two texts or two lists of texts, not one of each")
    inputs, outputs = as_texts(texts, names[0]), as_texts(targets, names[1])
    if len(inputs) != len(outputs):
        first, second = names
        raise UserError(
            f"there are {len(inputs)} {first}s and {len(outputs)} {second}s; each {first} needs its {second}, so give "
            f"as many {second}s as {first}s"
        )
    return inputs, outputs


def as_sentences(values: object) -> list[str | Sequence[str]]:
    """The sentences in an iterable: each a str, or an iterable of its words."""
    if isinstance(values, str):
        return [values]
    sentences: list[str | Sequence[str]] = []
    for number, sentence in enumerate(iterate_items(values, "sentence"), 1):
        if isinstance(sentence, str):
            sentences.append(sentence)
            continue
        try:
            sentences.append(tuple(as_texts(sentence, "word")))
        except UserError as error:
            raise UserError(f"sentence {number}: {error}") from error
    return sentences


def listed(items: T | Iterable[T], single: bool) -> Iterable[T]:
    """A single item as a list, or several items as they are."""
    several: Any = [items] if single else items
    iterable: Iterable[T] = several
    return iterable


def describe_type(value: object) -> str:
    """The type of a value, for people: None, a dict, an int."""
    if value is None:
        return "None"
    name = type_name(value)
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def iterate_items(values: object, name: str) -> Iterable[object]:
    """The values of an ordered iterable; a data frame is refused, because it iterates over its columns."""
    expected = f"expected a {name} as a str, or several in a list or another iterable"
    if hasattr(values, "to_pylist") and not hasattr(values, "column_names"):
        values = values.to_pylist()  # an Arrow array
    frame = hasattr(values, "columns") or hasattr(values, "column_names")
    if frame or not isinstance(values, Iterable) or isinstance(values, bytes | bytearray | Mapping | set | frozenset):
        hint = "; give one of its columns" if frame else ""
        raise UserError(f"the {name}s are {describe_type(values)}; {expected}{hint}")
    if (dimensions := getattr(values, "ndim", 1)) != 1:
        raise UserError(f"the {name}s are {describe_type(values)} of {dimensions} dimensions; {expected}")
    return values
