"""Records of translations for `details`, as plain values for JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..decode import Hypothesis
from ..decode.constraints import Constraints
from ..decode.texts import word_alignment
from .base import Record


@dataclass(frozen=True)
class Trace:
    """Log-probabilities and alignment of a finished hypothesis, from one more forward pass."""

    logprobs: list[float]  # of every target token and of END
    source: list[str]  # tokens
    target: list[str]
    alignment: list[int]  # for every target token the source token with the largest attention weight


def translation_record(
    texts: list[str], hypotheses: list[Hypothesis], traces: Sequence[Trace], constraints: Constraints
) -> Record:
    """The record of the best hypothesis, with all of them as `nbest`."""
    nbest = [
        _hypothesis_record(text, hypothesis, trace, constraints)
        for text, hypothesis, trace in zip(texts, hypotheses, traces, strict=True)
    ]
    if not nbest:
        return EMPTY | {"missing": constraints.missing(""), "nbest": []}
    return nbest[0] | {"source_pieces": traces[0].source, "nbest": nbest}


def _hypothesis_record(text: str, hypothesis: Hypothesis, trace: Trace, constraints: Constraints) -> Record:
    return {
        "text": text,
        "score": hypothesis.score,
        "logprob": hypothesis.logprob,
        "ended": hypothesis.ended,
        "pieces": trace.target,
        "logprobs": trace.logprobs[: len(trace.target) + hypothesis.ended],  # END comes last
        "given": len(constraints.prefix),  # tokens of the prefix, which score and logprob exclude
        "alignment": trace.alignment,
        "word_alignment": word_alignment(trace.alignment, trace.source, trace.target),
        "missing": constraints.missing(text),
    }


EMPTY: Record = {
    "text": "", "score": None, "logprob": None, "ended": None, "pieces": [], "logprobs": [], "given": 0,
    "alignment": [], "word_alignment": [], "source_pieces": [],
}  # fmt: skip


def join_records(sources: list[str], records: list[Record], length_penalty: float) -> Record:
    """The record of a text from the records of its sentences."""
    filled = [each for each in records if each["score"] is not None]
    if not filled:
        return records[0] | {"sentences": records}
    logprob = sum(each["logprob"] for each in filled)
    length = sum(len(each["logprobs"]) - each["given"] for each in filled)
    joined: Record = {
        "text": " ".join(each["text"] for each in filled),
        "score": logprob / max(length, 1) ** length_penalty,
        "logprob": logprob,
        "ended": all(each["ended"] for each in filled),
        "given": filled[0]["given"],
    }
    for name in ("pieces", "logprobs", "source_pieces"):
        joined[name] = [value for each in filled for value in each[name]]
    tokens, source_words, target_words = 0, 0, 0
    joined |= {"alignment": [], "word_alignment": [], "missing": []}
    for source, each in zip(sources, records, strict=True):
        joined["alignment"] += [i + tokens for i in each["alignment"]]
        joined["word_alignment"] += [[i + source_words, j + target_words] for i, j in each["word_alignment"]]
        tokens += len(each["source_pieces"])
        source_words, target_words = source_words + len(source.split()), target_words + len(each["text"].split())
    return joined | {"nbest": [], "sentences": records}
