"""The windows of Whisper: segments from timestamps, and whether a window must be decoded again."""

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from ...config.decode_sound import Windows
from ...decode import Hypothesis
from ...processors.text.whisper import WhisperTokenizer

LOOP = 4  # times that a phrase is repeated before it counts as a loop


class TokenSegment(NamedTuple):
    """Tokens between timestamps."""

    tokens: list[int]  # with its timestamps
    start: float  # seconds from the beginning of the window
    end: float


class SplitWindow(NamedTuple):
    """The segments of a window."""

    segments: list[TokenSegment]
    cut: list[int]  # tokens of a segment that the window cuts
    used: float  # seconds after which the next window begins


def split_window(tokens: list[int], tokenizer: WhisperTokenizer, seconds: float) -> SplitWindow:
    """The segments of a window that is `seconds` long.

    Two timestamps in a row end one segment and begin the next. Text after the last pair is cut by the end of the
    window, unless a single timestamp closes it: then nobody speaks after it.
    """
    stamped = [tokenizer.is_timestamp(token) for token in tokens]
    closed = stamped[-2:] == [False, True]
    borders = [i + 1 for i in range(len(tokens) - 1) if stamped[i] and stamped[i + 1]]
    if not borders:
        times = [tokenizer.seconds(token) for token in tokens if tokenizer.is_timestamp(token)]
        end = times[-1] if times and times[-1] > 0 else seconds
        return SplitWindow([TokenSegment(tokens, 0.0, end)], [], seconds)
    borders = [*borders, len(tokens)] if closed else [*borders[:-1], borders[-1] + 1]
    segments, first = [], 0
    for border in borders:
        segment = tokens[first:border]
        last = segment[-2] if border == borders[-1] and not closed else segment[-1]
        segments.append(TokenSegment(segment, tokenizer.seconds(segment[0]), tokenizer.seconds(last)))
        first = border
    used = seconds if closed else segments[-1].end
    return SplitWindow(segments, tokens[first - 1 :] if first < len(tokens) else [], used if used > 0 else seconds)


def without_pair(tokens: list[int], tokenizer: WhisperTokenizer) -> list[int]:
    """The tokens of a segment as text before the next window: of two timestamps at its end, one."""
    return tokens[:-1] if len(tokens) > 2 and tokenizer.is_timestamp(tokens[-2]) else tokens


def compression_ratio(tokens: Sequence[int], vocab: int) -> float:
    """The compression ratio of the tokens by zlib: text that repeats itself has a high ratio."""
    size = int(math.log2(vocab) / 8) + 1
    data = b"".join(token.to_bytes(size, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))


class WindowQuality(NamedTuple):
    """The decision about the text of a window, with its reasons."""

    again: bool  # at the next temperature
    skip: bool  # nobody speaks
    logprob: float  # mean log-probability of the tokens
    ratio: float  # compression ratio


def check_quality(
    hypothesis: Hypothesis, no_speech: float | None, settings: Windows, end: int, vocab: int
) -> WindowQuality:
    """Check if a hypothesis is too repetitive or too unlikely, and if nobody speaks."""
    tokens = [*hypothesis.tokens, end] if hypothesis.ended else hypothesis.tokens
    mean, ratio = hypothesis.logprob / max(len(tokens), 1), compression_ratio(tokens, vocab)
    unlikely = bool(settings.logprob_threshold) and mean < settings.logprob_threshold
    again = unlikely or bool(settings.compression_ratio_threshold) and ratio > settings.compression_ratio_threshold
    silent = no_speech is not None and no_speech > settings.no_speech_threshold
    skip = silent and (unlikely or not settings.logprob_threshold)
    return WindowQuality(again and not skip, skip, mean, ratio)


def cut_repetition(tokens: list[int]) -> list[int]:
    """The tokens without a phrase that repeats at their end: its first occurrence stays."""
    for size in range(1, len(tokens) // LOOP + 1):
        phrase, count = tokens[-size:], 1
        while tokens[-size * (count + 1) : -size * count] == phrase:
            count += 1
        if count >= LOOP:
            return tokens[: -size * (count - 1)]
    return tokens
