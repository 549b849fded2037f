"""Notices: sentences about one result, which travel with it. Warnings sum them up over the results of a call."""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Self

from ..errors import UserError


class Notice(str):
    """A sentence about one result. Notices of one `topic` are reported once, as `summarize(count, total)`.

    If the sentences of a topic differ, the one with the largest `size` is summarized. `texts` is the number of texts
    that a notice concerns: a result may have several.
    """

    topic: str
    size: int
    texts: int
    summarize: Callable[[int, int], str]

    def __new__(
        cls, text: str, summarize: Callable[[int, int], str], topic: str = "", size: int = 0, texts: int = 1
    ) -> Self:
        notice = super().__new__(cls, text)
        notice.topic, notice.size, notice.texts, notice.summarize = topic or text, size, texts, summarize
        return notice

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # copies and other processes get the sentence


def warn_once(notices: Iterable[str], total: int, stacklevel: int = 3) -> None:
    """Issue one warning for each topic of notice among `total` results; the default level is the caller's caller."""
    topics: dict[str, list[str]] = {}
    for notice in notices:
        topics.setdefault(notice.topic if isinstance(notice, Notice) else notice, []).append(notice)
    for group in topics.values():
        summarizable = [notice for notice in group if isinstance(notice, Notice)]
        if summarizable:
            largest = max(summarizable, key=lambda notice: notice.size)
            message = largest.summarize(sum(notice.texts for notice in summarizable), total)
        else:
            message = group[0]
        warnings.warn(message, stacklevel=stacklevel)


def cut_text(tokens: int) -> Notice:
    """The notice for a text that an encoder cuts at `tokens` tokens."""
    why = "(data.max_tokens and the model's positions)"
    return Notice(
        f"the text has more than {tokens} tokens and was cut there {why}",
        lambda count, total: f"{count} of {total} texts have more than {tokens} tokens and were cut there {why}",
    )


def empty_text() -> Notice:
    """The notice for an empty text."""
    return Notice(
        "the text is empty and gets no label",
        lambda count, total: f"{count} of {total} texts are empty and get no label",
    )


def no_mask() -> Notice:
    """The notice for a text without a mask."""
    return Notice(
        "the text has no <mask> and stays as it is",
        lambda count, total: f"{count} of {total} texts have no <mask> and stay as they are",
    )


def cut_masked(tokens: int) -> Notice:
    """The notice for a masked text that was cut at `tokens` tokens."""
    message = f"a text has more than {tokens} tokens and was cut there (data.max_tokens)"
    return Notice(message, lambda count, total: message)


def missing_phrase(phrase: str) -> Notice:
    """The notice for a phrase that the output lacks."""
    return Notice(
        f"the text lacks the phrase {phrase!r} (decode.include)",
        lambda count, total: (
            f"decode.include: {count} of {total} texts lack a phrase, such as {phrase!r}; details show which"
        ),
        topic="missing phrase",
    )


def silent_recording() -> Notice:
    """The notice for a silent recording."""
    return Notice(
        "the recording is silent and has no transcript",
        lambda count, total: f"{count} of {total} recordings are silent and have no transcript",
    )


def uniform_image(uniform: bool) -> tuple[Notice, ...]:
    """The notice for an image of one color."""
    notice = Notice(
        "the image has one color throughout, so its result means nothing",
        lambda count, total: f"{count} of {total} images have one color throughout, so their results mean nothing",
    )
    return (notice,) if uniform else ()


def long_recording(seconds: float, heard: float, longest: float) -> Notice:
    """The notice for a recording of more `seconds` than the training has `heard`; `longest`: of its segments."""
    rest = f"the longest of the training {heard:g}; it was cut into parts of at most {longest:g} seconds "
    rest += "(decode.max_segment_seconds)" + (f", which may be wrong above {heard:g}" if longest > heard else "")
    return Notice(
        f"the recording has {seconds:.1f} seconds, and {rest}",
        lambda count, total: f"{count} of {total} recordings are long: one has {seconds:.1f} seconds, and {rest}",
        topic="long recording",
        size=round(seconds),
    )


def unreliable_times(found: float, sound: float) -> Notice:
    """The notice for word times of a run whose CTC finds few of the tokens of its validation data in sound."""
    message = (
        f"the word times are unreliable: in validation, CTC found {found:.0%} of the tokens where there is sound, and "
        f"{sound:.0%} of the time is sound; train longer, with more recordings or with a larger model.ctc.weight"
    )
    return Notice(message, lambda count, total: message)


def no_text() -> Notice:
    """The notice for a recording for which no text satisfies decode.*."""
    return Notice(
        "no text satisfies decode.* for the recording",
        lambda count, total: f"no text satisfies decode.* for {count} of {total} recordings",
    )


def short_memory(tokens: int, memory: int) -> Notice:
    """The notice for a prompt that is longer than the memory of the model."""
    predicate = f"has {tokens:,} tokens; the model remembers the last {memory:,} (model.memory)"
    return Notice(
        f"the prompt {predicate}", lambda count, total: f"a prompt {predicate}", topic="short memory", size=tokens
    )


def full_context(texts: int, context: int | None) -> Notice:
    """The notice for texts that end because the context of the model is full."""

    def sentence(count: int, total: int) -> str:
        return f"{'the text ends' if count == 1 else f'{count} texts end'} at the model's context of {context:,} tokens"

    return Notice(sentence(texts, texts), sentence, topic="full context", texts=texts)


def require_finite(values: Iterable[float]) -> None:
    """Refuse outputs if one of them is NaN or infinite."""
    if not math.isfinite(sum(values)):
        raise UserError(
            "the model gives numbers that are not finite (NaN or infinite), so it has no answer; its weights are too "
            "large or damaged: use others, or precision=fp32"
        )
