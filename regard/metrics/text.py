"""Metrics of texts against references. BLEU, chrF and TER are sacrebleu's, with its reproducibility signatures."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ..errors import UserError
from .labels import BootstrapResult
from .tokenization import Tokenization, choose_tokenization

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.significance import Result


def text_metrics(
    predicted: Sequence[str],
    references: Sequence[Sequence[str]],
    names: Sequence[str],
    tokenization: Tokenization | None = None,
) -> dict[str, float]:
    """Compute the named metrics: bleu, chrf, ter, exact. Each text has one or more references.

    Without `tokenization`, the script of the references decides.
    """
    tokenization = tokenization or choose_tokenization(references)
    metrics: dict[str, float] = {}
    for name in names:
        if name == "exact":
            hits = sum(text in correct for text, correct in zip(predicted, references, strict=True))
            metrics[name] = hits / max(len(predicted), 1)
        else:
            score = _metric(name, tokenization).corpus_score(list(predicted), _reference_streams(references))
            metrics[name] = float(score.score)
    return metrics


def paired_bootstrap(
    outputs: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    names: Sequence[str] = ("bleu", "chrf", "ter"),
    tokenization: Tokenization | None = None,
) -> tuple[dict[str, str], list[BootstrapResult]]:
    """sacrebleu's paired bootstrap: each of the outputs against the first. Returns the signatures and the results.

    A result has the score, its mean over the resamples, half the 95 % confidence interval, and p (None for the first).
    """
    from sacrebleu.significance import PairedTest

    systems: list[tuple[str, Sequence[str]]] = [(f"{number}", list(texts)) for number, texts in enumerate(outputs)]
    tokenization = tokenization or choose_tokenization(references)
    metrics = {name: _metric(name, tokenization) for name in names}
    signatures, scores = PairedTest(systems, metrics, _reference_streams(references), test_type="bs")()
    their_names = dict(zip(names, signatures, strict=True))  # chrf is chrF2 there
    scored = {name: cast("list[Result]", scores[their_names[name]]) for name in names}
    results = [{name: _as_dict(scored[name][number]) for name in names} for number in range(len(outputs))]
    for texts, result in zip(outputs[1:], results[1:], strict=True):
        if texts == outputs[0]:  # sacrebleu reports p 0.001 for equal outputs
            result.update({name: result[name] | {"p": 1.0} for name in names})
    return {name: str(signatures[their_names[name]]) for name in names}, results


def _as_dict(result: "Result") -> dict[str, float | None]:
    values = {"score": result.score, "mean": result.mean, "interval": result.ci, "p": result.p_value}
    return {key: None if value is None else float(value) for key, value in values.items()}


def signature(name: str, references: Sequence[Sequence[str]], tokenization: Tokenization | None = None) -> str:
    """sacrebleu's signature of a metric, which includes the number of references and the tokenizer."""
    metric = _metric(name, tokenization or choose_tokenization(references))
    metric.corpus_score(["a"], [["a"]] * max(map(len, references), default=1))  # sets the number of references
    return f"{metric.get_signature()}"


def check_same_signatures(systems: Sequence[Mapping[str, object]]) -> None:
    """Raise UserError if a metric of two systems, each with the entry `run`, has different signatures."""
    first = systems[0]
    for other in systems[1:]:
        for key, value in first.items():
            if key.endswith("_signature") and other.get(key) != value:
                raise UserError(
                    f"{first['run']} and {other['run']} have different signatures of {key.removesuffix('_signature')} "
                    f"({value} and {other.get(key)}); set eval.tokenize for all"
                )


def _metric(name: str, tokenization: Tokenization) -> "Metric":
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "bleu":
        return BLEU(tokenize=tokenization.bleu)
    asian = tokenization.asian_support  # without `normalized` it has no effect
    return TER(normalized=asian, asian_support=asian) if name == "ter" else CHRF()


def _reference_streams(references: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """sacrebleu's layout: one list per reference number; a text with fewer references has None there."""
    most = max(map(len, references), default=1)
    streams = [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
    return cast(list[Sequence[str]], streams)  # sacrebleu accepts None, but its types do not say so
