"""Scores of texts against references. BLEU, chrF and TER are sacrebleu's own, with the signature that repeats them."""

from collections.abc import Sequence
from typing import Any


def text_figures(
    predicted: Sequence[str], references: Sequence[Sequence[str]], names: Sequence[str]
) -> dict[str, float]:
    """The named figures: bleu, chrf, ter, exact. Each text has one or more references."""
    figures: dict[str, float] = {}
    for name in names:
        if name == "exact":
            hits = sum(text in among for text, among in zip(predicted, references, strict=True))
            figures[name] = hits / max(len(predicted), 1)
        else:
            figures[name] = _metric(name, references).corpus_score(list(predicted), columns(references)).score
    return figures


def signature(name: str, references: Sequence[Sequence[str]]) -> str:
    metric = _metric(name, references)
    metric.corpus_score(["a"], [["a"]] * max(map(len, references), default=1))  # the number of references is part of it
    return f"{metric.get_signature()}"


def _metric(name: str, references: Sequence[Sequence[str]]) -> Any:
    from sacrebleu.metrics import BLEU, CHRF, TER

    return {"bleu": BLEU, "chrf": CHRF, "ter": TER}[name]()


def columns(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """sacrebleu's form: one list per reference number; a text with fewer references has None there."""
    most = max(map(len, references), default=1)
    return [[among[i] if i < len(among) else None for among in references] for i in range(most)]
