"""Scores of texts against references. BLEU, chrF and TER are sacrebleu's own, with the signature that repeats them."""

from collections.abc import Sequence
from typing import Any


def text_metrics(
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


Bootstrap = dict[str, dict[str, float | None]]  # by metric: score, mean, interval, p


def paired_bootstrap(
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    names: Sequence[str] = ("bleu", "chrf", "ter"),
) -> tuple[dict[str, str], list[Bootstrap]]:
    """sacrebleu's paired bootstrap of every system against the first: its signatures, and what it says of each system:
    the score, its mean over the resamples, half the 95 % confidence interval, and p, which the first has not."""
    from sacrebleu.significance import PairedTest

    named: list[tuple[str, Sequence[str]]] = [(f"{number}", list(texts)) for number, texts in enumerate(systems)]
    metrics = {name: _metric(name, references) for name in names}
    right: Any = columns(references)
    signatures, scores = PairedTest(named, metrics, right, test_type="bs")()
    theirs = dict(zip(names, signatures, strict=True))  # chrf is chrF2 there
    results = [{name: _result(scores[theirs[name]][number]) for name in names} for number in range(len(systems))]
    for texts, result in zip(systems[1:], results[1:], strict=True):
        if texts == systems[0]:  # sacrebleu finds it certain that nothing differs, and says p 0.001
            result.update({name: result[name] | {"p": 1.0} for name in names})
    return {name: str(signatures[theirs[name]]) for name in names}, results


def _result(result: Any) -> dict[str, float | None]:
    found = {"score": result.score, "mean": result.mean, "interval": result.ci, "p": result.p_value}
    return {key: None if value is None else float(value) for key, value in found.items()}


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
