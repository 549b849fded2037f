"""The training of classification: one label, several labels, or a number for every text or pair of texts."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...adapt.ngrams import ngrams_of
from ...config.run import change_settings
from ...data.datasets.rows import LabeledTextDataset
from ...data.loading.loader import Loader
from ...data.source import Source
from ...errors import UserError
from ...families.protocols import as_module
from ...metrics.bag_of_words import ProblemType
from ...processors.labels import LabelSet, collect_label_sets, collect_labels
from ..base import Processors, TrainingJob, build_model
from ..label.baselines import FILE, NOT_FITTED, StoredBaseline, can_fit, fit_bag_of_words
from ..label.encoder import find_or_train_tokenizer, with_vocab
from ..label.results import LabelJob, label_set
from ..objectives import LabelObjective, MultiLabelObjective, RegressionObjective
from .evaluation import validate_texts
from .ngrams import add_ngrams, start_ngrams
from .settings import ClassifyRun

if TYPE_CHECKING:
    from .task import AnyLabelPredictor

OBJECTIVES: Mapping[ProblemType, type[LabelObjective]] = {
    "single_label": LabelObjective, "multi_label": MultiLabelObjective, "regression": RegressionObjective
}  # fmt: skip


class ClassifyJob(LabelJob):
    """Texts, or pairs of texts, with their targets."""

    run: ClassifyRun
    objective: LabelObjective
    splits: Mapping[str, Source]

    def __init__(
        self,
        predictor: "type[AnyLabelPredictor]",
        run: ClassifyRun,
        processors: Processors,
        device: torch.device,
        splits: dict[str, Source],
        resumed: bool,
    ) -> None:
        self.problem: ProblemType = predictor.problem_class.name
        self.metric_names: tuple[str, ...] = predictor.problem_class.metric_names
        self.splits, train = splits, splits["train"]
        labels = self._labels(run, processors)
        tokenizer = find_or_train_tokenizer(run, processors, train, (0, 2) if run.data.pairs == "yes" else (0,))
        self.run = run = with_vocab(self._with_metric(run), tokenizer, head="class", labels=len(labels))
        self.predictor = predictor(run, add_ngrams(build_model(run), run), tokenizer, labels, device)
        data, train_settings, model = run.data, run.train, self.predictor.model
        self.objective = self._objective(labels)
        target, types = self.predictor.problem.processor, getattr(run.model, "token_types", 2)
        dataset = LabeledTextDataset(train, tokenizer, target, data, train_settings, model.context, types)
        self.loader = Loader.of(dataset)
        if not resumed:  # a checkpoint has what follows
            self._set_first_weights(dataset)

    def _labels(self, run: ClassifyRun, processors: Processors) -> LabelSet:
        if self.problem == "regression":
            return LabelSet({"value": 0})
        collect = collect_labels if self.problem == "single_label" else collect_label_sets
        return label_set(run, collect(self.splits["train"]), processors, "label", self.splits)

    def _with_metric(self, run: ClassifyRun) -> ClassifyRun:
        """The run with a train.metric that its targets have."""
        metrics = self.metric_names
        custom = {name.removeprefix("-") for name in run.train.own_metrics}
        if run.train.metric in {*metrics, *custom}:
            return run
        return change_settings(run, {"train": {"metric": metrics[1]}}, only=("train",))

    def _objective(self, labels: LabelSet) -> LabelObjective:
        data, settings = self.run.data, self.run.train.objective
        if settings.rdrop and self.problem != "single_label":
            raise UserError(
                f"train.objective.rdrop={settings.rdrop:g} compares the probabilities of one label, and "
                f"data.problem_type is {self.problem}; set train.objective.rdrop=0"
            )
        weights = class_weights(
            data.class_weights, data.weight_table(), labels, self.problem, len(self.splits["train"])
        )
        return OBJECTIVES[self.problem](as_module(self.predictor.model), settings, weights)

    @torch.no_grad()
    def _set_first_weights(self, dataset: LabeledTextDataset) -> None:
        """Count the n-grams of a model that has them. A regression begins at the mean of its targets."""
        model: Any = self.predictor.model
        if self.problem == "regression":
            train = self.splits["train"]
            model.classes.bias.fill_(sum(float(train.field(i, 1)) for i in range(len(train))) / len(train))
        elif (ngrams := ngrams_of(model)) is not None and not ngrams.texts.is_meta:  # --dry has no weights
            start_ngrams(ngrams, model.classes, dataset, self.objective)

    # --- what the loop calls -------------------------------------------------------------------------------------

    def validate(self) -> dict[str, float]:
        if "valid" not in self.splits:
            return {}
        metrics: dict[str, float] = validate_texts(self.predictor, self.splits["valid"])
        return metrics | self._baselines

    @cached_property
    def _baselines(self) -> dict[str, float]:
        """The scores of the baselines on the validation data."""
        valid = self.splits["valid"]
        references = [valid.field(index, 1) for index in range(len(valid))]
        scores = self.predictor.problem.constant_baseline(references)
        if self.run.eval.baseline:
            scores |= StoredBaseline(self.predictor.folder).score(valid, self.problem)
        return {name: value for name, value in scores.items() if isinstance(value, float)}

    def write_files(self, folder: Path) -> None:
        """Fit the bag of words that evaluations compare with."""
        self.predictor.folder = folder
        if self.run.eval.baseline and can_fit() and not (folder / FILE).exists():
            fit_bag_of_words(self.problem, self.splits["train"], self.splits.get("valid")).save(folder / FILE)

    def describe_data(self) -> list[str]:
        data = self.run.data
        settings = {"problem_type": data.problem_type, "pairs": data.pairs}
        changed = [
            f"data.{key}={value}" for key, value in settings.items() if value not in ("auto", "no", "single_label")
        ]
        facts = [f"train: {', '.join(changed)}; train.metric={self.run.train.metric}"] if changed else []
        facts += [NOT_FITTED] if self.run.eval.baseline and not can_fit() else []
        return facts + (TrainingJob.describe_data(self) if self.problem == "regression" else super().describe_data())


def class_weights(
    setting: tuple[str, ...], table: Mapping[str, float], labels: LabelSet, problem: ProblemType, examples: int
) -> list[float] | None:
    """A weight for each label: those of data.class_weights, or weights that make all labels count alike."""
    if not setting:
        return None
    if problem == "regression":
        raise UserError("data.class_weights has weights, but data.problem_type=regression has no classes; leave it out")
    for label in table:
        if label not in labels.ids:
            raise UserError(
                f"data.class_weights has {label!r}, which is no label of data.train; expected {labels.listed}"
            )
    if setting != ("balanced",):
        return [table.get(label, 1.0) for label in labels]
    counts = [max(labels.counts[label], 1) for label in labels]
    if problem == "multi_label":  # the weight of texts with a label, beside those without
        return [max(examples - count, 1) / count for count in counts]
    return [examples / (len(labels) * count) for count in counts]
