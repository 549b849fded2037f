"""One text from the texts of parts: sentences of a text, segments of a recording."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from ...messages.texts import Alignment, GeneratedText, TimeAlignment, TokenAlignment, Usage


def join_texts(
    parts: Sequence[GeneratedText], length_penalty: float, separator: str = " ", sources: Sequence[str] = ()
) -> dict[str, Any]:
    """The fields of the whole; parts without a score are empty inputs. `sources` are the texts of token alignments."""
    filled = [part for part in parts if part.score is not None]
    if not filled:
        return {"text": ""}
    logprob, length = sum(part.logprob or 0.0 for part in filled), sum(part.length for part in filled)
    return {
        "text": separator.join(part.text.strip() for part in filled if part.text.strip()),
        "score": logprob / max(length, 1) ** length_penalty,
        "logprob": logprob,
        "finish": next((part.finish for part in filled if part.finish != "end"), "end"),
        "length": length,
        "given": filled[0].given,
        "missing": tuple(chain.from_iterable(part.missing for part in filled)),
        "tokens": tuple(chain.from_iterable(part.tokens for part in filled)),
        "logprobs": tuple(chain.from_iterable(part.logprobs for part in filled)),
        "alternatives": tuple(chain.from_iterable(part.alternatives for part in filled)),
        "alignment": _join_alignments(parts, sources),
    }


def add_usage(usages: Sequence[Usage]) -> Usage:
    """What all parts have cost."""
    return Usage(sum(usage.input for usage in usages), sum(usage.output for usage in usages))


def _join_alignments(parts: Sequence[GeneratedText], sources: Sequence[str]) -> Alignment | None:
    """Token positions and words count from the beginning of the whole; times do already."""
    alignments = [part.alignment for part in parts]
    times = [alignment for alignment in alignments if isinstance(alignment, TimeAlignment)]
    if times:
        spans = chain.from_iterable(alignment.times for alignment in times)
        return TimeAlignment(tuple(spans), tuple(chain.from_iterable(alignment.words for alignment in times)))
    tokens: list[str] = []
    positions: list[int] = []
    words: list[tuple[int, int]] = []
    read = written = 0
    if not any(alignments):
        return None
    for part, alignment, source in zip(parts, alignments, sources, strict=True):
        if isinstance(alignment, TokenAlignment):
            positions += [place + len(tokens) for place in alignment.positions]
            words += [(i + read, j + written) for i, j in alignment.words]
            tokens += alignment.source
        read, written = read + len(source.split()), written + len(part.text.split())
    return TokenAlignment(tuple(tokens), tuple(positions), tuple(words))
