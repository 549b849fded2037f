"""Baselines beside the scores of classification: the most frequent label or the mean, and a bag of words."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...data.source import Source
from ...metrics.bag_of_words import BagOfWords, ProblemType, Target
from ...metrics.labels import label_metrics, multi_label_metrics
from ...metrics.regression import regression_metrics
from .texts import LabeledText

FILE = "baseline.safetensors"  # in a run folder
MAX_EXAMPLES = 100_000  # that the bag of words is fitted to
STRENGTHS = (1.0, 10.0)  # C; validation data choose one
USUAL_STRENGTH = 10.0
NOT_FITTED = (
    "no bag of words beside the scores: scikit-learn, which fits it, is not installed; pip install 'regard[sklearn]', "
    "or set eval.baseline=false"
)

WANTED: ContextVar[bool] = ContextVar("WANTED", default=True)  # an evaluation reports them

SCORES: dict[ProblemType, tuple[str, Callable[[Sequence[Any], Sequence[Any]], dict[str, Any]]]] = {
    "single_label": ("accuracy", label_metrics),
    "multi_label": ("micro_f1", multi_label_metrics),
    "regression": ("rmse", regression_metrics),
}  # the metric that compares baselines, and its function


@contextmanager
def without_baselines() -> Iterator[None]:
    """In this context, evaluations report what the model scores alone."""
    token = WANTED.set(False)
    try:
        yield
    finally:
        WANTED.reset(token)


def baseline_score(problem: ProblemType, predicted: Sequence[Target], references: Sequence[Target]) -> float:
    """The metric that compares baselines of this problem type."""
    name, metrics = SCORES[problem]
    return float(metrics(predicted, references)[name])


def baseline_text(example: LabeledText) -> str:
    """The words of an example; those of the second text of a pair are other words."""
    return " ".join([example[0], *(f"2_{word}" for pair in example[2:] for word in pair.split())])


def _targets(examples: Iterable[Sequence[Any]], problem: ProblemType) -> list[Any]:
    return [float(example[1]) if problem == "regression" else example[1] for example in examples]


def can_fit() -> bool:
    """True if scikit-learn is installed."""
    return find_spec("sklearn") is not None


def fit_bag_of_words(problem: ProblemType, train: Source, valid: Source | None) -> BagOfWords:
    """A bag of words of the first training examples; the strength is the better one on validation data."""
    train_examples = train[:MAX_EXAMPLES]
    texts, targets = [baseline_text(example) for example in train_examples], _targets(train_examples, problem)
    if valid is None:
        return next(BagOfWords.fits(texts, targets, problem, (USUAL_STRENGTH,)))
    valid_examples = valid[:MAX_EXAMPLES]
    inputs, references = [baseline_text(example) for example in valid_examples], _targets(valid_examples, problem)
    sign = -1 if problem == "regression" else 1
    candidates = BagOfWords.fits(texts, targets, problem, STRENGTHS)
    return max(candidates, key=lambda model: sign * baseline_score(problem, model.predict(inputs), references))


class StoredBaseline:
    """The bag of words of a run folder; None where it has none."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @cached_property
    def model(self) -> BagOfWords | None:
        path = None if self.folder is None else self.folder / FILE
        return BagOfWords.load(path) if path is not None and path.exists() else None

    def score(self, examples: Source, problem: ProblemType) -> dict[str, float]:
        """Its score on these examples, as a metric."""
        if self.model is None:
            return {}
        predicted = self.model.predict([baseline_text(example) for example in examples])
        return {"bag_of_words": baseline_score(problem, predicted, _targets(examples, problem))}
