"""What `details` tells of a translation, as plain values ready for JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..decode import Hypothesis
from ..decode.constraints import Constraints
from ..decode.texts import word_pairs

Record = dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """A second look at a finished hypothesis, in one pass."""

    logprobs: list[float]  # of every target piece and of END
    source: list[str]  # pieces
    target: list[str]
    alignment: list[int]  # for every target piece the source piece it looks at most


def record(texts: list[str], hypotheses: list[Hypothesis], traces: Sequence[Trace], wish: Constraints) -> Record:
    """The best hypothesis, and all of them as `nbest`."""
    some = zip(texts, hypotheses, traces, strict=True)
    nbest = [_one(text, hypothesis, trace, wish) for text, hypothesis, trace in some]
    if not nbest:
        return EMPTY | {"missing": wish.missing(""), "nbest": []}
    return nbest[0] | {"source_pieces": traces[0].source, "nbest": nbest}


def _one(text: str, hypothesis: Hypothesis, trace: Trace, wish: Constraints) -> Record:
    return {
        "text": text,
        "score": hypothesis.score,
        "logprob": hypothesis.logprob,
        "ended": hypothesis.ended,
        "pieces": trace.target,
        "logprobs": trace.logprobs[: len(trace.target) + hypothesis.ended],  # END comes last
        "given": len(wish.prefix),  # pieces of the prefix, which score and logprob do not count
        "alignment": trace.alignment,
        "word_alignment": word_pairs(trace.alignment, trace.source, trace.target),
        "missing": wish.missing(text),
    }


EMPTY: Record = {
    "text": "", "score": None, "logprob": None, "ended": None, "pieces": [], "logprobs": [], "given": 0,
    "alignment": [], "word_alignment": [], "source_pieces": [],
}  # fmt: skip


def joined(sources: list[str], parts: list[Record], length_penalty: float) -> Record:
    """The record of a text whose sentences have these records."""
    said = [each for each in parts if each["score"] is not None]
    if not said:
        return parts[0] | {"sentences": parts}
    logprob = sum(each["logprob"] for each in said)
    length = sum(len(each["logprobs"]) - each["given"] for each in said)
    whole: Record = {
        "text": " ".join(each["text"] for each in said),
        "score": logprob / max(length, 1) ** length_penalty,
        "logprob": logprob,
        "ended": all(each["ended"] for each in said),
        "given": said[0]["given"],
    }
    for name in ("pieces", "logprobs", "source_pieces"):
        whole[name] = [value for each in said for value in each[name]]
    pieces, read, written = 0, 0, 0
    whole |= {"alignment": [], "word_alignment": [], "missing": []}
    for source, each in zip(sources, parts, strict=True):
        whole["alignment"] += [i + pieces for i in each["alignment"]]
        whole["word_alignment"] += [[i + read, j + written] for i, j in each["word_alignment"]]
        pieces += len(each["source_pieces"])
        read, written = read + len(source.split()), written + len(each["text"].split())
    return whole | {"nbest": [], "sentences": parts}
