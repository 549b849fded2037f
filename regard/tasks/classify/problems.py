"""What the outputs of a class head mean: one label, several labels, or a number, with their results and metrics."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ...data.source import Source
from ...data.tables.cells import labels_value
from ...errors import UserError
from ...messages.base import Result
from ...messages.labels import (
    ClassifyRequest,
    ClassifyResult,
    MultiLabelRequest,
    MultiLabelResult,
    RegressionRequest,
    RegressionResult,
)
from ...metrics.bag_of_words import ProblemType
from ...metrics.labels import label_metrics, multi_label_metrics
from ...metrics.regression import regression_metrics
from ...processors.base import Array, Processor
from ...processors.labels import LabelProcessor, LabelSet
from ...processors.targets import MultiLabelProcessor, NumberProcessor
from ..base import Metrics, Processors
from ..label.encoder import require_labels
from ..label.results import best_labels, class_result, known_loss, label_ids, majority_baseline, rank_labels, top_of
from ..label.texts import Texts
from ..notices import empty_text, require_finite
from ..predictor import PlainResult
from ..texts import as_texts
from .settings import ClassifyDecode, ClassifyRun

Q = TypeVar("Q", bound=ClassifyRequest | RegressionRequest)
A = TypeVar("A", bound=Result)
T = TypeVar("T")  # the target of an example: a label, labels, or a number
Targets: TypeAlias = str | Iterable[str | Iterable[str]] | None  # of `score`, for one text or several


class Problem(ABC, Generic[Q, A, T]):
    """The results, scores and metrics of one data.problem_type. Outputs are rows (labels,) of the head."""

    name: ClassVar[ProblemType]
    labeled: ClassVar[bool] = True  # outputs are labels, not a number
    metric_names: ClassVar[tuple[str, ...]]  # of train.metric; the second replaces a metric of another problem

    def __init__(self, run: ClassifyRun, labels: LabelSet) -> None:
        self.run, self.labels, self.decode = run, labels, run.decode

    @property
    @abstractmethod
    def processor(self) -> Processor:
        """The processor of the targets."""

    @staticmethod
    def outputs(logits: Tensor) -> Tensor:
        """The outputs for a batch of logits (rows, labels)."""
        return logits

    @staticmethod
    def load_labels(run: ClassifyRun, folder: Path, processors: Processors) -> LabelSet:
        """The labels of a run folder."""
        return require_labels(run, folder, processors, "label")

    # --- requests ----------------------------------------------------------------------------------------------

    @abstractmethod
    def request(self, texts: Texts, settings: ClassifyDecode | None) -> Q:
        """The request for a text or a pair; `settings` are decode.*, None: those of the run."""

    @abstractmethod
    def empty_result(self) -> A:
        """The result of an empty text."""

    @abstractmethod
    def result(self, output: Array, request: Q, notices: tuple[str, ...]) -> A:
        """The result for a row of outputs."""

    @abstractmethod
    def plain_result(self, request: Q, result: A) -> PlainResult:
        """What `predict` returns without details."""

    # --- known targets -----------------------------------------------------------------------------------------

    @abstractmethod
    def targets(self, targets: Targets, single: bool, count: int) -> Sequence[str | tuple[str, ...]]:
        """The targets that `score` was given for `count` texts, or for a single one."""

    def target_ids(self, target: str | tuple[str, ...] | None) -> list[int]:
        """The ids of a target; one with an unknown label is refused."""
        return label_ids(self.labels, (target,) if isinstance(target, str) else target or ())

    def logprob(self, output: Array, target: Sequence[int]) -> float:
        """ln P(target | text)"""
        raise NotImplementedError

    # --- metrics -----------------------------------------------------------------------------------------------

    @abstractmethod
    def references(self, examples: Source) -> list[T]:
        """The targets of examples."""

    def label_names(self, references: Sequence[T]) -> list[str]:
        """All labels of targets."""
        return []

    @abstractmethod
    def predictions(self, outputs: Tensor) -> list[T]:
        """What is predicted for rows of outputs, as `metrics` compares it with references."""

    @abstractmethod
    def metrics(self, predicted: Sequence[T], references: Sequence[T]) -> Metrics:
        """The metrics of `evaluate`."""

    @abstractmethod
    def validation(self, outputs: Tensor, references: Sequence[T]) -> dict[str, float]:
        """The loss and the metrics of a validation; unseen labels are left out."""

    @abstractmethod
    def constant_baseline(self, references: Sequence[T]) -> Metrics:
        """The score of the best constant prediction."""


class SingleLabel(Problem[ClassifyRequest, ClassifyResult, str]):
    """One of the labels. Outputs are log-probabilities."""

    name, metric_names = "single_label", ("loss", "accuracy", "f1")

    @property
    def processor(self) -> LabelProcessor:
        return LabelProcessor(self.labels)

    @staticmethod
    def outputs(logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)

    def request(self, texts: Texts, settings: ClassifyDecode | None) -> ClassifyRequest:
        return ClassifyRequest(texts[0], None if settings is None else settings.top, second(texts))

    def empty_result(self) -> ClassifyResult:
        return ClassifyResult(None, None, (), notices=(empty_text(),))

    def result(self, output: Array, request: ClassifyRequest, notices: tuple[str, ...]) -> ClassifyResult:
        return class_result(self.labels.names, output, top_of(request, self.decode), notices)

    def plain_result(self, request: ClassifyRequest, result: ClassifyResult) -> str | list[tuple[str, float]]:
        if top_of(request, self.decode):
            return [(label.label, label.probability) for label in result.top]
        return result.label or ""

    def targets(self, targets: Targets, single: bool, count: int) -> list[str]:
        if single != isinstance(targets, str) or targets is None:
            raise UserError("score takes two texts or two lists of texts, not one of each")
        labels = as_texts(targets, "label")
        if len(labels) != count:
            raise UserError(
                f"there are {count} texts and {len(labels)} labels; each text needs its label, so give as many labels "
                "as texts"
            )
        return labels

    def logprob(self, output: Array, target: Sequence[int]) -> float:
        return float(output[target[0]])

    def references(self, examples: Source) -> list[str]:
        return [example[1] for example in examples]

    def label_names(self, references: Sequence[str]) -> list[str]:
        return [*references]

    def predictions(self, outputs: Tensor) -> list[str]:
        return best_labels(self.labels, outputs)

    def metrics(self, predicted: Sequence[str], references: Sequence[str]) -> Metrics:
        return label_metrics(predicted, references)

    def validation(self, outputs: Tensor, references: Sequence[str]) -> dict[str, float]:
        """Nats per text, accuracy and macro F1."""
        loss, predicted, known = known_loss(self.labels, outputs, references)
        metrics = label_metrics(predicted, known)
        return {"loss": loss, "accuracy": metrics["accuracy"], "f1": metrics["f1"]}

    def constant_baseline(self, references: Sequence[str]) -> Metrics:
        return majority_baseline(self.labels, references)


class MultiLabel(Problem[MultiLabelRequest, MultiLabelResult, tuple[str, ...]]):
    """Any number of labels, each with a probability of its own. Outputs are logits."""

    name, metric_names = "multi_label", ("loss", "micro_f1", "accuracy", "f1")

    @property
    def processor(self) -> MultiLabelProcessor:
        return MultiLabelProcessor(self.labels)

    def request(self, texts: Texts, settings: ClassifyDecode | None) -> MultiLabelRequest:
        top, threshold = (None, None) if settings is None else (settings.top, settings.threshold)
        return MultiLabelRequest(texts[0], top, second(texts), threshold)

    def empty_result(self) -> MultiLabelResult:
        return MultiLabelResult((), (), notices=(empty_text(),))

    def result(self, output: Array, request: MultiLabelRequest, notices: tuple[str, ...]) -> MultiLabelResult:
        least = self.threshold(request.threshold)
        ranked = rank_labels(self.labels.names, torch.from_numpy(output).sigmoid().numpy())
        require_finite(label.probability for label in ranked)
        chosen = tuple(label for label in ranked if label.probability >= least)
        return MultiLabelResult(chosen, ranked[: top_of(request, self.decode) or len(ranked)], notices=notices)

    def plain_result(self, request: MultiLabelRequest, result: MultiLabelResult) -> list[str] | list[tuple[str, float]]:
        if top_of(request, self.decode):
            return [(label.label, label.probability) for label in result.top]
        return [label.label for label in result.labels]

    def threshold(self, value: float | None = None) -> float:
        """The probability from which a text has a label."""
        least = float(self.decode.threshold) if value is None else value
        if not 0 <= least < 1:
            raise UserError(f"a request has threshold={least:g}; expected at least 0 and less than 1")
        return least

    def targets(self, targets: Targets, single: bool, count: int) -> list[tuple[str, ...]]:
        """A target is a list of labels, or text with data.delimiter."""
        lists = [self._label_list(target) for target in ([targets] if single else targets or ())]
        if len(lists) != count:
            raise UserError(f"there are {count} texts and {len(lists)} lists of labels; give one for each text")
        return lists

    def _label_list(self, target: object) -> tuple[str, ...]:
        try:
            return labels_value(target, (), self.run.data.delimiter)
        except ValueError as error:
            raise UserError(f"a target is {error}; expected a list of labels") from error

    def target_ids(self, target: str | tuple[str, ...] | None) -> list[int]:
        return super().target_ids(self._label_list(target) if isinstance(target, str) else target)

    def logprob(self, output: Array, target: Sequence[int]) -> float:
        """ln P(exactly these labels | text)"""
        logits = torch.from_numpy(output)
        sign = -torch.ones_like(logits)
        sign[list(target)] = 1
        return float(logsigmoid(sign * logits).sum())

    def references(self, examples: Source) -> list[tuple[str, ...]]:
        return [tuple(sorted(example[1])) for example in examples]

    def label_names(self, references: Sequence[tuple[str, ...]]) -> list[str]:
        return [label for reference in references for label in reference]

    def predictions(self, outputs: Tensor) -> list[tuple[str, ...]]:
        positive = outputs.sigmoid() >= self.threshold()
        rows = [row.nonzero()[:, 0].tolist() for row in positive]
        return [tuple(sorted(self.labels.names[number] for number in row)) for row in rows]

    def metrics(self, predicted: Sequence[tuple[str, ...]], references: Sequence[tuple[str, ...]]) -> Metrics:
        return multi_label_metrics(predicted, references)

    def validation(self, outputs: Tensor, references: Sequence[tuple[str, ...]]) -> dict[str, float]:
        """The mean binary cross-entropy, and the metrics."""
        require_finite([float(outputs.sum())])
        known = [tuple(label for label in reference if label in self.labels.ids) for reference in references]
        targets = self.processor.collate([self.processor.encode(reference) for reference in known])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets.values)
        metrics = multi_label_metrics(self.predictions(outputs), known)
        return {"loss": float(loss), **{name: metrics[name] for name in ("accuracy", "f1", "micro_f1")}}

    def constant_baseline(self, references: Sequence[tuple[str, ...]]) -> Metrics:
        """The micro F1 of the most frequent training label for every text."""
        if not any(self.labels.counts.values()):
            return {}
        label = self.labels.majority
        metrics = multi_label_metrics([(label,)] * len(references), references)
        return {"majority": metrics["micro_f1"], "majority label": label}


class Regression(Problem[RegressionRequest, RegressionResult, float]):
    """A number: the output of the head itself, not a probability. The label set has the name of the output."""

    labeled = False
    name, metric_names = "regression", ("loss", "rmse", "pearson", "spearman")

    @property
    def processor(self) -> NumberProcessor:
        return NumberProcessor(self.labels.names[0])

    def request(self, texts: Texts, settings: ClassifyDecode | None) -> RegressionRequest:
        if top := (settings or self.decode).top:
            raise UserError(
                f"decode.top is {top}, but this model has no labels to rank: it gives a number; leave it out"
            )
        return RegressionRequest(texts[0], second(texts))

    def empty_result(self) -> RegressionResult:
        return RegressionResult(None, notices=(empty_text(),))

    def result(self, output: Array, request: RegressionRequest, notices: tuple[str, ...]) -> RegressionResult:
        value = float(output[0])
        require_finite([value])
        return RegressionResult(value, notices=notices)

    def plain_result(self, request: RegressionRequest, result: RegressionResult) -> float | None:
        return result.value

    def targets(self, targets: Targets, single: bool, count: int) -> list[str]:
        raise UserError("this model gives a number for a text and no probability; use predict, or eval with data")

    @staticmethod
    def load_labels(run: ClassifyRun, folder: Path, processors: Processors) -> LabelSet:
        number = processors.get("label")
        return LabelSet({number.name if isinstance(number, NumberProcessor) else "value": 0})

    def references(self, examples: Source) -> list[float]:
        return [float(example[1]) for example in examples]

    def predictions(self, outputs: Tensor) -> list[float]:
        return outputs.flatten().tolist()

    def metrics(self, predicted: Sequence[float], references: Sequence[float]) -> Metrics:
        return regression_metrics(predicted, references)

    def validation(self, outputs: Tensor, references: Sequence[float]) -> dict[str, float]:
        require_finite([float(outputs.sum())])
        metrics = regression_metrics(self.predictions(outputs), references)
        return {"loss": metrics.pop("mse"), "pearson": 0.0, "spearman": 0.0, **metrics}

    def constant_baseline(self, references: Sequence[float]) -> Metrics:
        """The error of the mean of the references, which no constant beats."""
        values = torch.tensor([float(reference) for reference in references], dtype=torch.float64)
        return {"mean": float(values.std(correction=0))}


def second(texts: Texts) -> str | None:
    """The second text of a pair."""
    return texts[1] if len(texts) > 1 else None
