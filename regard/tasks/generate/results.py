"""Requests and results of translations: from requests to settings, from hypotheses and sentences to results."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from ...config.decode import Seq2SeqDecode
from ...config.strategies import DecodeStrategy, ParallelStrategy
from ...decode import Hypothesis, TokenRules
from ...decode.search.constraints import ConstraintRequest, Constraints
from ...decode.search.texts import word_alignment
from ...messages.speech import TranscribeRequest
from ..notices import missing_phrase
from ..requests import CaptionRequest, MultitaskRequest, TranslateRequest, TranslateResult, Translation
from .base import rule_settings, strategy_settings

AnyRequests: TypeAlias = (
    Sequence[TranslateRequest] | Sequence[TranscribeRequest] | Sequence[CaptionRequest] | Sequence[MultitaskRequest]
)
REQUEST_SETTINGS = "max_tokens", "min_tokens", "repetition_penalty", "split"  # fields of a request that are decode.*


def make_requests(
    texts: Sequence[str],
    settings: Seq2SeqDecode,
    strategy: DecodeStrategy | ParallelStrategy,
    constraints: Sequence[ConstraintRequest],
    details: bool,
) -> list[TranslateRequest]:
    """A request for every text, all with these settings."""
    shared: dict[str, Any] = {name: getattr(settings, name) for name in REQUEST_SETTINGS}
    shared |= {"strategy": strategy, "rules": TokenRules.of(settings), "details": details}
    return [
        TranslateRequest(text, **shared, **constraint._asdict())
        for text, constraint in zip(texts, constraints, strict=True)
    ]


def changed_settings(
    requests: AnyRequests,
    run: Seq2SeqDecode,
    batch: int | None,
    names: tuple[str, ...] = REQUEST_SETTINGS,
) -> dict[str, object]:
    """The changes to the decode.* of the run by requests with one strategy, with the phrases of all requests.

    `names` are the fields of a request that are decode.*.
    """
    first = requests[0]
    fields = {name: getattr(first, name) for name in names} | {"batch": batch}
    changed = {name: value for name, value in fields.items() if value is not None}
    changes = strategy_settings(first.strategy) | rule_settings(first.rules, type(run)) | changed
    for name in ("include", "exclude"):
        phrases = [getattr(request, name) for request in requests]
        if any(group is not None for group in phrases):
            changes[name] = tuple(chain(*(getattr(run, name) if group is None else group for group in phrases)))
    return changes


def constraints_of(
    request: TranslateRequest | TranscribeRequest | CaptionRequest | MultitaskRequest, run: Seq2SeqDecode
) -> ConstraintRequest:
    """The constraints of a request; missing ones come from the run."""
    return ConstraintRequest(
        run.prefix if request.prefix is None else request.prefix,
        run.include if request.include is None else request.include,
        run.exclude if request.exclude is None else request.exclude,
    )


@dataclass(frozen=True)
class TranslationTrace:
    """Log-probabilities and alignment of a finished hypothesis, from one more forward pass."""

    logprobs: list[float]  # of every target token and of END
    source: list[str]  # tokens
    target: list[str]
    alignment: list[int]  # for every target token the source token with the largest attention weight


def translate_result(
    texts: list[str],
    hypotheses: list[Hypothesis],
    traces: Sequence[TranslationTrace],
    constraints: Constraints,
    details: bool,
) -> TranslateResult:
    """The result of one text. `traces` is empty without details."""
    nbest = [
        make_translation(text, hypothesis, constraints) for text, hypothesis in zip(texts, hypotheses, strict=True)
    ]
    if details:
        nbest = [_with_trace(translation, trace) for translation, trace in zip(nbest, traces, strict=True)]
    best = nbest[0] if nbest else Translation("", missing=tuple(constraints.missing("")))
    lacks_phrase = best.missing and not details  # details list them
    return TranslateResult(
        **vars(best),
        source_pieces=tuple(traces[0].source) if traces else (),
        nbest=tuple(nbest),
        notices=(missing_phrase(best.missing[0]),) if lacks_phrase else (),
    )


def make_translation(text: str, hypothesis: Hypothesis, constraints: Constraints) -> Translation:
    """A hypothesis as a translation, without its tokens and alignments."""
    prefix = len(constraints.prefix)
    return Translation(
        text,
        hypothesis.score,
        hypothesis.logprob,
        hypothesis.ended,
        given=prefix,
        missing=tuple(constraints.missing(text)),
        length=len(hypothesis.tokens) + hypothesis.ended - prefix,
    )


def _with_trace(translation: Translation, trace: TranslationTrace) -> Translation:
    aligned = word_alignment(trace.alignment, trace.source, trace.target)
    tokens = {
        "pieces": tuple(trace.target),
        "logprobs": tuple(trace.logprobs[: len(trace.target) + bool(translation.ended)]),
        "alignment": tuple(trace.alignment),
        "word_alignment": tuple((i, j) for i, j in aligned),
    }
    return Translation(**{**vars(translation), **tokens})


def join_sentences(sources: list[str], results: list[TranslateResult], length_penalty: float) -> TranslateResult:
    """The result of a text from the results of its sentences."""
    filled = [result for result in results if result.score is not None]
    if not filled:
        return TranslateResult(**{**vars(results[0]), "sentences": tuple(results)})
    logprob = sum(result.logprob or 0.0 for result in filled)
    length = sum(result.length for result in filled)
    alignment: list[int] = []
    words: list[tuple[int, int]] = []
    tokens, source_words, target_words = 0, 0, 0
    for source, result in zip(sources, results, strict=True):
        alignment += [i + tokens for i in result.alignment]
        words += [(i + source_words, j + target_words) for i, j in result.word_alignment]
        tokens += len(result.source_pieces)
        source_words, target_words = source_words + len(source.split()), target_words + len(result.text.split())
    return TranslateResult(
        text=" ".join(result.text for result in filled if result.text),
        score=logprob / max(length, 1) ** length_penalty,
        logprob=logprob,
        ended=all(result.ended for result in filled),
        pieces=tuple(token for result in filled for token in result.pieces),
        logprobs=tuple(value for result in filled for value in result.logprobs),
        given=filled[0].given,
        alignment=tuple(alignment),
        word_alignment=tuple(words),
        length=length,
        source_pieces=tuple(token for result in filled for token in result.source_pieces),
        sentences=tuple(results),
    )
