"""Metrics of predictors of texts: of labels, several labels and numbers, beside baselines."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...data.source import Source
from ..base import Metrics
from ..label.baselines import WANTED, StoredBaseline
from ..label.results import report_labels, unseen_labels
from ..label.texts import Texts
from ..notices import require_finite, warn_once
from .items import item_of_example
from .problems import A, Q, T

if TYPE_CHECKING:
    from .task import TextLabelPredictor


def text_outputs(predictor: "TextLabelPredictor[Q, A, T]", items: Iterable[Texts]) -> Tensor:
    """(texts, labels): log-probabilities; of several labels logits, and of regression the number."""
    texts = predictor.texts.read([*items])
    warn_once((notice for text in texts for notice in text.notices), len(texts), stacklevel=5)
    rows = predictor.run_programs(predictor.head_output(text) for text in texts)
    return torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, len(predictor.labels))


def evaluate_texts(
    predictor: "TextLabelPredictor[Q, A, T]", examples: Source
) -> tuple[Metrics, list[T] | None, list[T]]:
    """The metrics of `evaluate`, the predicted labels (None: numbers have no paired test), and the targets."""
    examples.require_nonempty("data.test")
    problem = predictor.problem
    references = problem.references(examples)
    names = problem.label_names(references)
    if problem.labeled:
        report_labels(examples, names)
    outputs = text_outputs(predictor, map(item_of_example, examples))
    require_finite([float(outputs.sum())])
    predicted = problem.predictions(outputs)
    metrics = {"examples": len(references), **problem.metrics(predicted, references)}
    metrics |= baselines(predictor, examples, references) | unseen_labels(predictor.labels, names)
    return metrics, predicted if problem.labeled else None, references


def validate_texts(predictor: "TextLabelPredictor[Q, A, T]", examples: Source) -> dict[str, float]:
    """The loss and the metrics on validation data; unseen labels are left out."""
    outputs = text_outputs(predictor, map(item_of_example, examples))
    return predictor.problem.validation(outputs, predictor.problem.references(examples))


def baselines(predictor: "TextLabelPredictor[Q, A, T]", examples: Source, references: Sequence[T]) -> Metrics:
    """The scores of the most frequent label and of a bag of words."""
    if not WANTED.get():
        return {}
    problem = predictor.problem
    constant = problem.constant_baseline(references) if problem.labeled else {}
    if not predictor.run.eval.baseline:
        return constant
    return constant | StoredBaseline(predictor.folder).score(examples, problem.name)
