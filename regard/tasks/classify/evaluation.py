"""Metrics of predictors of texts: of labels, several labels and numbers, beside baselines."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ...adapt.ngrams import ngrams_of
from ...config import run_folder
from ...data.source import Source
from ...data.sources.holdout import hold_out
from ...decode.engine.jobs import ModelCall
from ...families.protocols import as_module
from ..base import Metrics, log_facts
from ..label.baselines import WANTED, StoredBaseline
from ..label.results import report_labels, unseen_labels
from ..label.texts import LabeledText, Texts
from ..notices import require_finite, warn_once
from .items import item_of_example
from .problems import A, Q, T

BATCH = 64  # training texts that are scored together

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
    if trained := trained_examples(predictor, examples):
        log_facts(examples.name, ["these are training texts: each is scored without its own n-gram counts"])
        outputs[trained] = outputs_without_own_counts(predictor, [examples[index] for index in trained])
    require_finite([float(outputs.sum())])
    predicted = problem.predictions(outputs)
    metrics = {"examples": len(references), **problem.metrics(predicted, references)}
    metrics |= baselines(predictor, examples, references) | unseen_labels(predictor.labels, names)
    return metrics, predicted if problem.labeled else None, references


def trained_examples(predictor: "TextLabelPredictor[Q, A, T]", examples: Source) -> list[int]:
    """The indices of the texts whose n-grams the run has counted, if the examples are its training data."""
    folder, data = predictor.folder, predictor.run.data
    if folder is None or ngrams_of(as_module(predictor.model)) is None:
        return []
    known = run_folder.read_run(folder).get("data", {}).get("train")
    if examples.fingerprint() == known:
        return [*range(len(examples))]
    if data.holdout and not data.valid and round(data.holdout * len(examples)) < len(examples) > 1:
        part = hold_out(examples, data.holdout, "train")
        return [part.origin(index)[1] for index in range(len(part))] if part.fingerprint() == known else []
    return []


def outputs_without_own_counts(predictor: "TextLabelPredictor[Q, A, T]", examples: Sequence[LabeledText]) -> Tensor:
    """(texts, labels): the outputs for training texts, as in training without what each adds to the n-gram counts."""
    processor, texts = predictor.problem.processor, predictor.texts
    targets = processor.collate([processor.encode(example[1]) for example in examples]).values
    own = one_hot(targets, len(predictor.labels)).float() if targets.ndim == 1 else targets
    rows = [text.row for text in texts.read([item_of_example(example) for example in examples])]

    def outputs(indices: Sequence[int], model: Any) -> Tensor:
        inputs = texts.collate([rows[index] for index in indices]).to(predictor.device)
        logits: Tensor = model.label_logits(model.encode(inputs), own[indices].to(predictor.device))
        output: Tensor = predictor.problem_class.outputs(logits.float()).cpu()
        return output

    async def batch(indices: Sequence[int]) -> Tensor:
        job: ModelCall[Tensor] = ModelCall(partial(outputs, indices))
        return await job

    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    batches = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
    result = torch.cat(predictor.run_programs(map(batch, batches)))
    return result[torch.tensor(order).argsort()]


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
