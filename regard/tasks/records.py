"""JSON records of results, as `details` gives them. The order of the keys is part of the output."""

from dataclasses import fields

from .base import Record
from .requests import (
    ClassifyResult,
    MaskedResult,
    MultiLabelResult,
    TagResult,
    TranslateResult,
    Translation,
)

TRANSLATION = tuple(field.name for field in fields(Translation) if field.name != "length")
TRANSLATED = (*TRANSLATION, "source_pieces")
EMPTY = (*TRANSLATION[:-1], "source_pieces", "missing")  # of an empty text
JOINED = (*TRANSLATION[:4], "given", "pieces", "logprobs", "source_pieces", "alignment", "word_alignment", "missing")


def translation_record(result: TranslateResult) -> Record:
    """The best hypothesis, with all of them as `nbest`; a text that was split has its `sentences`."""
    names = EMPTY if result.score is None else JOINED if result.sentences else TRANSLATED
    record = _record(result, names) | {"nbest": [_record(hypothesis, TRANSLATION) for hypothesis in result.nbest]}
    if result.sentences:
        record["sentences"] = [translation_record(sentence) for sentence in result.sentences]
    return record


def label_record(result: ClassifyResult) -> Record:
    """A label as a JSON record."""
    top = [{"label": label.label, "probability": label.probability} for label in result.top]
    return {"label": result.label, "probability": result.probability, "top": top}


def multi_label_record(result: MultiLabelResult) -> Record:
    """The labels of a text with their probabilities, and the `top` ones of all."""
    labels, top = (
        [{"label": label.label, "probability": label.probability} for label in group]
        for group in (result.labels, result.top)
    )
    return {
        "labels": [label["label"] for label in labels],
        "probabilities": [label["probability"] for label in labels],
        "top": top,
    }


def tag_record(result: TagResult, top: bool) -> Record:
    """Tags as a JSON record."""
    record = _record(result, ("words", "tags", "probabilities"))
    pairs = [[(label.label, label.probability) for label in word] for word in result.top]
    return record | ({"top": pairs} if top else {})


def masked_record(result: MaskedResult) -> Record:
    """Predicted tokens as a JSON record."""
    return {
        "text": result.text,
        "masks": [
            [(candidate.token, candidate.probability) for candidate in candidates] for candidates in result.masks
        ],
    }


def _record(value: object, names: tuple[str, ...]) -> Record:
    return {name: _plain(getattr(value, name)) for name in names}


def _plain(value: object) -> object:
    """Lists for tuples, as JSON has them."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
