"""Transcripts of segments: times of tokens and words, and joining of segments to the result of a recording."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ...decode import Hypothesis
from ...decode.search.constraints import Constraints
from ...processors.text.tokenizers import Tokenizer
from ..notices import Notice, missing_phrase
from .requests import TimedWord, TranscribeResult, Transcript, TranscriptSegment

Span = tuple[float, float]  # start and end in seconds


@dataclass(frozen=True)
class TokenTrace:
    """Log-probabilities and times of the tokens of a hypothesis, from a second pass."""

    logprobs: tuple[float, ...]
    times: tuple[Span, ...]


def silence() -> Notice:
    """The notice for a silent recording."""
    return Notice(
        "the recording is silent and has no transcript",
        lambda count, total: f"{count} of {total} recordings are silent and have no transcript",
    )


def no_text() -> Notice:
    """The notice for a recording for which no text satisfies decode.*."""
    return Notice(
        "no text satisfies decode.* for the recording",
        lambda count, total: f"no text satisfies decode.* for {count} of {total} recordings",
    )


def make_transcript(
    text: str, hypothesis: Hypothesis, trace: TokenTrace | None, target: Tokenizer, constraints: Constraints
) -> Transcript:
    """The transcript of one hypothesis; without a trace it has neither tokens nor words."""
    missing = tuple(constraints.missing(text))
    length = len(hypothesis.tokens) + hypothesis.ended - len(constraints.prefix)
    plain = Transcript(text, hypothesis.score, hypothesis.logprob, hypothesis.ended, missing=missing, length=length)
    if trace is None:
        return plain
    tokens = {
        "pieces": tuple(target.tokens(hypothesis.tokens)),
        "logprobs": trace.logprobs,
        "times": trace.times,
        "words": tuple(timed_words(text, hypothesis.tokens, trace.times, target)),
    }
    return Transcript(**{**vars(plain), **tokens})


def timed_words(
    text: str, tokens: Sequence[int], times: Sequence[Span], target: Tokenizer, letters: bool = False
) -> list[TimedWord]:
    """The words of a text, or its letters, each timed from its first to its last token."""
    ends = [len(prefix) for prefix in target.decode([list(tokens[:count]) for count in range(1, len(tokens) + 1)])]
    begins = [0, *ends[:-1]]
    words, place = [], 0
    for word in [*"".join(text.split())] if letters else text.split():
        place = text.index(word, place)
        spans = [
            time
            for begin, end, time in zip(begins, ends, times, strict=True)
            if begin < place + len(word) and place < end
        ]
        if spans:
            words.append(TimedWord(word, min(start for start, _ in spans), max(end for _, end in spans)))
        place += len(word)
    return words


def shift_span(span: Span, start: float, end: float) -> Span:
    """The span `start` seconds later, at most until `end`, in milliseconds."""
    first, last = (round(min(seconds + start, end), 3) for seconds in span)
    return first, last


def shift_transcript(transcript: Transcript, start: float, end: float) -> Transcript:
    """The transcript of a segment from `start` to `end`, with times from the beginning of the recording."""
    words = tuple(TimedWord(word.word, *shift_span((word.start, word.end), start, end)) for word in transcript.words)
    times = tuple(shift_span(span, start, end) for span in transcript.times)
    return Transcript(**{**vars(transcript), "words": words, "times": times})


def join_segments(segments: Sequence[TranscriptSegment], seconds: float, length_penalty: float) -> TranscribeResult:
    """The result of a recording, joined from its segments."""
    best = [segment.nbest[0] for segment in segments if segment.nbest]
    if not best:
        notice = no_text() if segments else silence()
        return TranscribeResult("", seconds=seconds, segments=tuple(segments), notices=(notice,))
    logprob = sum(transcript.logprob or 0.0 for transcript in best)
    length = max(sum(transcript.length for transcript in best), 1)
    missing = tuple(chain.from_iterable(transcript.missing for transcript in best))
    return TranscribeResult(
        text=" ".join(transcript.text.strip() for transcript in best if transcript.text.strip()),
        score=logprob / length**length_penalty,
        logprob=logprob,
        ended=all(transcript.ended for transcript in best),
        pieces=tuple(chain.from_iterable(transcript.pieces for transcript in best)),
        logprobs=tuple(chain.from_iterable(transcript.logprobs for transcript in best)),
        times=tuple(chain.from_iterable(transcript.times for transcript in best)),
        words=tuple(chain.from_iterable(transcript.words for transcript in best)),
        missing=missing,
        length=length,
        seconds=seconds,
        segments=tuple(segments),
        notices=tuple(map(missing_phrase, missing[:1])),
    )
