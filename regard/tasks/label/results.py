"""What predictors of labels share: the best labels, ranked labels, and baselines."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from torch import Tensor

from ...config.run import Run
from ...data.source import Source
from ...errors import UserError
from ...metrics.labels import label_metrics
from ...processors.labels import LabelSet
from ..base import Metrics, Processors, TrainingJob, describe_labels, kept_labels, log_facts
from ..requests import LabelProbability

TOP = 5  # of many labels, the likeliest that are counted as hits


class LabelSetMixin:
    """A predictor with a label set."""

    labels: LabelSet

    def best_labels(self, logprobs: Tensor) -> list[str]:
        """The likeliest label of each row of logprobs (rows, labels)."""
        return [self.labels.names[number] for number in logprobs.argmax(-1).tolist()]

    def ranked_labels(self, logprobs: Tensor, top: int = 0) -> tuple[LabelProbability, ...]:
        """The labels with their probabilities, the likeliest first; `top` of them, or all."""
        order = logprobs.exp().sort(descending=True, stable=True)
        chosen = slice(top or len(self.labels))
        names = [self.labels.names[number] for number in order.indices[chosen].tolist()]
        return tuple(map(LabelProbability, names, order.values[chosen].tolist()))

    def label_ids(self, labels: Sequence[str]) -> list[int]:
        """The ids of labels; one that the run does not have is an error."""
        for label in labels:
            if label not in self.labels.ids:
                raise UserError(f"{label!r} is no label of this run; it has {self.labels.listed}")
        return [self.labels.ids[label] for label in labels]

    def majority_baseline(self, references: Sequence[str]) -> Metrics:
        """The accuracy of the most frequent training label; empty if the label counts are unknown."""
        if not any(self.labels.counts.values()):
            return {}
        label = self.labels.majority
        return {
            "majority": sum(reference == label for reference in references) / len(references),
            "majority_label": label,
        }

    def top_k(self, logprobs: Tensor, references: Sequence[str]) -> Metrics:
        """The share of examples whose label is among the TOP likeliest; empty if there are not more labels."""
        if len(self.labels) <= TOP:
            return {}
        best = logprobs.exp().sort(descending=True, stable=True).indices[:, :TOP].tolist()  # as `ranked_labels`
        hits = sum(self.labels.ids.get(label) in row for label, row in zip(references, best, strict=True))
        return {f"top_{TOP}_accuracy": hits / len(references)}

    def unseen_labels(self, references: Sequence[str]) -> dict[str, str]:
        """A metric that lists the reference labels outside the label set; empty if there are none."""
        counts = Counter(label for label in references if label not in self.labels.ids)
        listed = ", ".join(f"{label} ({count})" for label, count in counts.items())
        return {"unseen_labels": listed} if listed else {}

    def report_labels(self, examples: Source, references: Sequence[str]) -> None:
        """Log the labels of evaluation data."""
        log_facts(examples.name, [describe_labels(Counter(references))])


def label_set(
    run: Run, collected: LabelSet, processors: Processors, field: str, splits: Mapping[str, Source]
) -> LabelSet:
    """The labels of the training data, with the ids of the saved label set if the labels are equal."""
    if run.data.valid and run.data.invalid == "refuse":  # the embedded data are not checked
        collected.require_known(splits["valid"], "data.valid")
    saved_labels = kept_labels(processors, field)
    return collected.in_order_of(saved_labels) if saved_labels else collected


def example_labels(examples: Source) -> list[str]:
    """The labels of examples; their other fields are not read."""
    return [examples.field(index, 1) for index in range(len(examples))]


class LabelJob(TrainingJob):
    """Examples with labels; the facts about the data include their counts."""

    predictor: Any  # has LabelSetMixin
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
