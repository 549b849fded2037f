"""Metrics of transcripts: word and character error rates, by jiwer (the extra `audio`)."""

from collections.abc import Sequence
from typing import Any

from ..errors import UserError
from .labels import BootstrapResult, bootstrap_rates
from .normalize_speech import NORMALIZERS

EDITS = ("substitutions", "insertions", "deletions")


def speech_metrics(transcripts: Sequence[str], references: Sequence[str], normalize: str = "none") -> dict[str, Any]:
    """WER, CER and the share of exact transcripts, with the counts of edits.

    `normalize` (eval.normalize) is applied to transcripts and references. White space is always collapsed. The rates
    are edits / max(words, 1): text for an empty reference counts as inserted, even if all references are empty.
    """
    pairs = _pairs(transcripts, references, normalize)
    words, characters = _counts(pairs, by_word=True), _counts(pairs, by_word=False)
    return {
        "wer": _rate(words),
        "cer": _rate(characters),
        "exact": sum(text == reference for text, reference in pairs) / max(len(pairs), 1),
        "words": words["length"],
        **{edit: words[edit] for edit in EDITS},
        "characters": characters["length"],
        **{f"character_{edit}": characters[edit] for edit in EDITS},
        "normalize": normalize,
    }


def paired_error_bootstrap(
    outputs: Sequence[Sequence[str]], references: Sequence[str], normalize: str = "none"
) -> tuple[dict[str, str], list[BootstrapResult]]:
    """Paired bootstrap of the WER in percent: each of the outputs against the first."""
    counts = [[_counts([pair], by_word=True) for pair in _pairs(output, references, normalize)] for output in outputs]
    edits = [[sum(count[edit] for edit in EDITS) for count in row] for row in counts]
    return bootstrap_rates("wer", edits, [count["length"] for count in counts[0]])


def _pairs(transcripts: Sequence[str], references: Sequence[str], normalize: str) -> list[tuple[str, str]]:
    change = NORMALIZERS[normalize]
    return [
        (" ".join(change(text).split()), " ".join(change(reference).split()))
        for text, reference in zip(transcripts, references, strict=True)
    ]


def _rate(counts: dict[str, int]) -> float:
    return sum(counts[edit] for edit in EDITS) / max(counts["length"], 1)


def _counts(pairs: Sequence[tuple[str, str]], by_word: bool) -> dict[str, int]:
    """The edits and the length of all references, in words or in characters."""
    try:
        import jiwer
    except ImportError as error:
        raise UserError("WER and CER need jiwer; install it with: pip install 'regard[audio]'") from error
    whole = [(text, reference) for text, reference in pairs if reference]  # older releases of jiwer refuse empty ones
    added = sum(len(text.split()) if by_word else len(text) for text, reference in pairs if not reference)
    counts = dict.fromkeys((*EDITS, "length"), 0)
    if whole:
        count_edits = jiwer.process_words if by_word else jiwer.process_characters
        edits = count_edits([reference for _, reference in whole], [text for text, _ in whole])
        counts = {edit: int(getattr(edits, edit)) for edit in EDITS}
        counts["length"] = int(edits.hits + edits.substitutions + edits.deletions)
    return counts | {"insertions": counts["insertions"] + added}
