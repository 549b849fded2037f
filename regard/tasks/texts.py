"""Texts as people give them to predictors: one str, or several in any iterable. All else gets one sentence."""

from collections.abc import Iterable, Mapping, Sequence

from ..data.files.in_memory import type_name
from ..errors import UserError


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
    found, wanted = as_texts(texts, names[0]), as_texts(targets, names[1])
    if len(found) != len(wanted):
        first, second = names
        raise UserError(
            f"there are {len(found)} {first}s and {len(wanted)} {second}s; each {first} needs its {second}, so give as "
            f"many {second}s as {first}s"
        )
    return found, wanted


def as_sentences(values: object) -> list[str | Sequence[str]]:
    """The sentences in an iterable: each a str, or an iterable of its words."""
    if isinstance(values, str):
        return [values]
    found: list[str | Sequence[str]] = []
    for number, each in enumerate(iterate_items(values, "sentence"), 1):
        if isinstance(each, str):
            found.append(each)
            continue
        try:
            found.append(tuple(as_texts(each, "word")))
        except UserError as error:
            raise UserError(f"sentence {number}: {error}") from error
    return found


def describe_type(value: object) -> str:
    """The type of a value, for people: None, a dict, an int."""
    if value is None:
        return "None"
    kind = type_name(value)
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def iterate_items(values: object, name: str) -> Iterable[object]:
    """The values of an iterable that has an order; a frame is no list of texts, because it gives its columns."""
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
