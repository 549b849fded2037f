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
from ..notices import missing_phrase
from ..requests import CaptionRequest, MultitaskRequest, TranslateRequest, TranslateResult, Translation
from ..transcribe.requests import TranscribeRequest
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
    return [TranslateRequest(text, **shared, **each._asdict()) for text, each in zip(texts, constraints, strict=True)]


def changed_settings(
    requests: AnyRequests,
    run: Seq2SeqDecode,
    batch: int | None,
    names: tuple[str, ...] = REQUEST_SETTINGS,
) -> dict[str, object]:
    """What requests with one strategy change in the run's decode.*, with the phrases of all requests.

    `names` are the fields of a request that are decode.*.
    """
    first = requests[0]
    own = {name: getattr(first, name) for name in names}
    given = {key: each for key, each in (own | {"batch": batch}).items() if each is not None}
    changes = strategy_settings(first.strategy) | rule_settings(first.rules, type(run)) | given
    for name in ("include", "exclude"):
        phrases = [getattr(each, name) for each in requests]
        if any(each is not None for each in phrases):
            changes[name] = tuple(chain(*(getattr(run, name) if each is None else each for each in phrases)))
    return changes


def constraints_of(
    request: TranslateRequest | TranscribeRequest | CaptionRequest | MultitaskRequest, run: Seq2SeqDecode
) -> ConstraintRequest:
    """The constraints of a request; those that it leaves out are the run's."""
    return ConstraintRequest(
        run.prefix if request.prefix is None else request.prefix,
        run.include if request.include is None else request.include,
        run.exclude if request.exclude is None else request.exclude,
    )


@dataclass(frozen=True)
class Trace:
    """Log-probabilities and alignment of a finished hypothesis, from one more forward pass."""

    logprobs: list[float]  # of every target token and of END
    source: list[str]  # tokens
    target: list[str]
    alignment: list[int]  # for every target token the source token with the largest attention weight


def translate_result(
    texts: list[str], hypotheses: list[Hypothesis], traces: Sequence[Trace], constraints: Constraints, details: bool
) -> TranslateResult:
    """The result of one text. `traces` is empty without details."""
    nbest = [make_translation(text, each, constraints) for text, each in zip(texts, hypotheses, strict=True)]
    if details:
        nbest = [_traced(own, trace) for own, trace in zip(nbest, traces, strict=True)]
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
    given = len(constraints.prefix)
    return Translation(
        text,
        hypothesis.score,
        hypothesis.logprob,
        hypothesis.ended,
        given=given,
        missing=tuple(constraints.missing(text)),
        length=len(hypothesis.tokens) + hypothesis.ended - given,
    )


def _traced(own: Translation, trace: Trace) -> Translation:
    aligned = word_alignment(trace.alignment, trace.source, trace.target)
    tokens = {
        "pieces": tuple(trace.target),
        "logprobs": tuple(trace.logprobs[: len(trace.target) + bool(own.ended)]),
        "alignment": tuple(trace.alignment),
        "word_alignment": tuple((i, j) for i, j in aligned),
    }
    return Translation(**{**vars(own), **tokens})


def join_sentences(sources: list[str], results: list[TranslateResult], length_penalty: float) -> TranslateResult:
    """The result of a text from the results of its sentences."""
    filled = [each for each in results if each.score is not None]
    if not filled:
        return TranslateResult(**{**vars(results[0]), "sentences": tuple(results)})
    logprob = sum(each.logprob or 0.0 for each in filled)
    length = sum(each.length for each in filled)
    alignment: list[int] = []
    words: list[tuple[int, int]] = []
    tokens, source_words, target_words = 0, 0, 0
    for source, each in zip(sources, results, strict=True):
        alignment += [i + tokens for i in each.alignment]
        words += [(i + source_words, j + target_words) for i, j in each.word_alignment]
        tokens += len(each.source_pieces)
        source_words, target_words = source_words + len(source.split()), target_words + len(each.text.split())
    return TranslateResult(
        text=" ".join(each.text for each in filled if each.text),
        score=logprob / max(length, 1) ** length_penalty,
        logprob=logprob,
        ended=all(each.ended for each in filled),
        pieces=tuple(piece for each in filled for piece in each.pieces),
        logprobs=tuple(value for each in filled for value in each.logprobs),
        given=filled[0].given,
        alignment=tuple(alignment),
        word_alignment=tuple(words),
        length=length,
        source_pieces=tuple(piece for each in filled for piece in each.source_pieces),
        sentences=tuple(results),
    )
