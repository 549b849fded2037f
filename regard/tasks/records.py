"""JSON records of results, as `details` gives them. The order of the keys is part of the output."""

from dataclasses import asdict, fields

from .base import Record
from .requests import (
    Caption,
    CaptionResult,
    Completion,
    LanguageResult,
    MultitaskResult,
    TranslateResult,
    Translation,
)
from .transcribe.requests import TranscribeResult, Transcript

TRANSLATION = tuple(field.name for field in fields(Translation) if field.name != "length")
TRANSLATED = (*TRANSLATION, "source_pieces")
EMPTY = (*TRANSLATION[:-1], "source_pieces", "missing")  # of an empty text
JOINED = (*TRANSLATION[:4], "given", "pieces", "logprobs", "source_pieces", "alignment", "word_alignment", "missing")
TRANSCRIPT = tuple(field.name for field in fields(Transcript) if field.name not in ("length", "words"))
MULTITASK = tuple(name for name in TRANSLATION if name != "word_alignment")
CAPTION = tuple(field.name for field in fields(Caption) if field.name != "length")
COMPLETION = tuple(field.name for field in fields(Completion) if field.name != "length")


def translation_record(result: TranslateResult) -> Record:
    """The best hypothesis, with all of them as `nbest`; a text that was split has its `sentences`."""
    names = EMPTY if result.score is None else JOINED if result.sentences else TRANSLATED
    record = _record(result, names) | {"nbest": [_record(hypothesis, TRANSLATION) for hypothesis in result.nbest]}
    if result.sentences:
        record["sentences"] = [translation_record(sentence) for sentence in result.sentences]
    return record


def transcript_record(result: TranscribeResult) -> Record:
    """The transcript of a recording, with its segments; of one segment, with the hypotheses as `nbest`."""
    record = {"text": result.text, "seconds": round(result.seconds, 3)} | _record(result, TRANSCRIPT[1:])
    segments = [
        {"start": segment.start, "end": segment.end, "text": segment.nbest[0].text if segment.nbest else ""}
        | (asdict(segment.decoded) if segment.decoded else {})
        for segment in result.segments
    ]
    record |= {"language": result.language} if result.language else {}
    record["words"] = [word._asdict() for word in result.words]
    return record | {
        "segments": segments,
        "nbest": [_record(hypothesis, TRANSCRIPT[:4]) for hypothesis in result.nbest],
    }


def multitask_record(result: MultitaskResult) -> Record:
    """The best hypothesis with the modality and the task, and all hypotheses as `nbest`."""
    names = ("kind", "task", *MULTITASK)
    return _record(result, (*names, "positions")) | {
        "nbest": [_record(hypothesis, MULTITASK) for hypothesis in result.nbest]
    }


def caption_record(result: CaptionResult) -> Record:
    """The best caption, with all of them as `nbest`."""
    return _record(result, CAPTION) | {"nbest": [_record(hypothesis, CAPTION) for hypothesis in result.nbest]}


def completion_record(result: LanguageResult) -> Record:
    """A continuation as a JSON record."""
    return _record(result, COMPLETION) | {"nbest": [_record(hypothesis, COMPLETION) for hypothesis in result.nbest]}


def _record(value: object, names: tuple[str, ...]) -> Record:
    return {name: _plain(getattr(value, name)) for name in names}


def _plain(value: object) -> object:
    """Lists for tuples, as JSON has them."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
