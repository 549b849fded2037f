"""Code that predictors of labels share: ranked labels, metrics beside those of all labels, and training."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ...config.run import Run
from ...data.source import Source
from ...errors import UserError
from ...messages.labels import ClassifyResult, LabelProbability
from ...metrics.labels import label_metrics
from ...processors.base import Array
from ...processors.labels import LabelSet
from ..base import Metrics, Processors, TrainingJob, describe_labels, find_labels, log_facts
from ..notices import require_finite

TOP = 5  # of many labels, the likeliest that are counted as hits


class TopRequest(Protocol):
    """A request for some candidates."""

    @property
    def top(self) -> int | None: ...


class TopSettings(Protocol):
    """decode.* with a number of candidates."""

    @property
    def top(self) -> int: ...


def top_of(request: TopRequest, decode: TopSettings) -> int:
    """The number of candidates that a request asks for; by default decode.top."""
    top = int(decode.top) if request.top is None else request.top
    if top < 0:
        raise UserError(f"a request has top={top}; expected 0 or more")
    return top


def rank_labels(names: Sequence[str], probabilities: Array, top: int = 0) -> tuple[LabelProbability, ...]:
    """The labels with their probabilities, the likeliest first; `top` of them, or all."""
    order = np.argsort(-probabilities, kind="stable")[: top or None]
    pairs = zip(order.tolist(), probabilities[order].tolist(), strict=True)
    return tuple([LabelProbability(names[number], value) for number, value in pairs])


def class_result(names: Sequence[str], logprobs: Array, top: int, notices: tuple[str, ...] = ()) -> ClassifyResult:
    """The likeliest label, and the `top` ones, or all."""
    ranked = rank_labels(names, np.exp(logprobs), top)
    require_finite([ranked[0].probability])
    return ClassifyResult(ranked[0].label, ranked[0].probability, ranked, notices=notices)


def best_labels(labels: LabelSet, logprobs: Tensor) -> list[str]:
    """The likeliest label of each row of logprobs (rows, labels)."""
    return [labels.names[number] for number in logprobs.argmax(-1).tolist()]


def label_ids(labels: LabelSet, names: Sequence[str]) -> list[int]:
    """The ids of labels; one that the run does not have is an error."""
    for name in names:
        if name not in labels.ids:
            raise UserError(f"{name!r} is no label of this run; it has {labels.listed}")
    return [labels.ids[name] for name in names]


# --- metrics ---------------------------------------------------------------------------------------------------------


def majority_baseline(labels: LabelSet, references: Sequence[str]) -> Metrics:
    """The accuracy of the most frequent training label; empty if the label counts are unknown."""
    if not any(labels.counts.values()):
        return {}
    label = labels.majority
    return {"majority": sum(reference == label for reference in references) / len(references), "majority_label": label}


def known_loss(labels: LabelSet, logprobs: Tensor, references: Sequence[str]) -> tuple[float, list[str], list[str]]:
    """Nats per example, predicted and reference labels; examples with an unseen label are left out."""
    known = [place for place, label in enumerate(references) if label in labels.ids]
    chosen, targets = logprobs[known], torch.tensor([labels.ids[references[place]] for place in known]).long()
    nats = -float(chosen.gather(1, targets[:, None]).sum())
    return nats / max(len(known), 1), best_labels(labels, chosen), [references[place] for place in known]


def top_k(labels: LabelSet, logprobs: Tensor, references: Sequence[str]) -> Metrics:
    """The share of examples whose label is among the TOP likeliest; empty if there are not more labels."""
    if len(labels) <= TOP:
        return {}
    best = logprobs.exp().sort(descending=True, stable=True).indices[:, :TOP].tolist()  # as `rank_labels`
    hits = sum(labels.ids.get(label) in row for label, row in zip(references, best, strict=True))
    return {f"top_{TOP}_accuracy": hits / len(references)}


def unseen_labels(labels: LabelSet, references: Sequence[str]) -> dict[str, str]:
    """A metric that lists the reference labels outside the label set; empty if there are none."""
    counts = Counter(label for label in references if label not in labels.ids)
    listed = ", ".join(f"{label} ({count})" for label, count in counts.items())
    return {"unseen_labels": listed} if listed else {}


def report_labels(examples: Source, references: Sequence[str]) -> None:
    """Log the labels of evaluation data."""
    log_facts(examples.name, [describe_labels(Counter(references))])


# --- training --------------------------------------------------------------------------------------------------------


def label_set(
    run: Run, collected: LabelSet, processors: Processors, field: str, splits: Mapping[str, Source]
) -> LabelSet:
    """The labels of the training data, with the ids of the saved label set if the labels are equal."""
    if run.data.valid and run.data.invalid == "refuse":  # the embedded data are not checked
        collected.require_known(splits["valid"], "data.valid")
    saved_labels = find_labels(processors, field)
    return collected.in_order_of(saved_labels) if saved_labels else collected


def example_labels(examples: Source) -> list[str]:
    """The labels of examples; their other fields are not read."""
    return [examples.field(index, 1) for index in range(len(examples))]


class LabelJob(TrainingJob):
    """Examples with labels; the facts about the data include their counts."""

    predictor: Any  # has labels, and loss_over
    splits: Mapping[str, Source]

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        loss, predicted, references = self.predictor.loss_over(self.splits["valid"])
        metrics = label_metrics(predicted, references)
        return {"loss": loss, "accuracy": metrics["accuracy"], "f1": metrics["f1"]}

    def describe_data(self) -> list[str]:
        return super().describe_data() + self._label_facts

    @cached_property
    def _label_facts(self) -> list[str]:
        counts = {"train": self.predictor.labels.counts}
        for name in self.splits.keys() - counts:
            targets = (self.splits[name].field(index, 1) for index in range(len(self.splits[name])))
            counts[name] = Counter(chain(*((target,) if isinstance(target, str) else target for target in targets)))
        return [f"{name}: {describe_labels(label_counts)}" for name, label_counts in counts.items()]
