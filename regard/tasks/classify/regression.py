"""Regression: a number for a text or a pair of texts, by an encoder whose head has one output."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ...config.data.base import DataFiles
from ...config.run import Run
from ...data.source import Source
from ...errors import UserError
from ...families.protocols import LabelModel
from ...metrics.regression import regression_metrics
from ...processors.base import Processor
from ...processors.saved import load_processors
from ...processors.targets import NumberProcessor
from ...processors.text.tokenizers import Tokenizer
from ..base import Metrics, Record, build_model, require_tokenizer
from ..label.baselines import StoredBaseline
from ..notices import empty_text, require_finite
from ..predictor import PlainResult
from ..requests import RegressionRequest, RegressionResult
from .items import TextItem, TextItems, data_split, is_empty, item_of, item_of_example


class RegressionPredictor(TextItems[RegressionRequest, RegressionResult]):
    """The number of every text: the output of the head itself, not a probability. An empty text has none."""

    model: LabelModel
    label_field, problem = "label", "regression"
    folder: Path | None = None

    def __init__(
        self, run: Run, model: LabelModel, tokenizer: Tokenizer, labels: Iterable[str], device: torch.device
    ) -> None:
        super().__init__(run, model, tokenizer, device)
        self.labels = tuple(labels)  # the name of the output
        self.fields = self.columns  # it gives no probability of a target

    @classmethod
    def from_run_folder(cls, run: Run, folder: Path, device: torch.device) -> Self:
        """The predictor of a run folder, without the weights."""
        processors = load_processors(folder)
        number = processors.get(cls.label_field)
        name = number.name if isinstance(number, NumberProcessor) else "value"
        predictor = cls(run, build_model(run), require_tokenizer(processors), (name,), device)
        predictor.folder = folder
        return predictor

    @property
    def processors(self) -> dict[str, Processor]:
        return {**super().processors, self.label_field: NumberProcessor(self.labels[0])}

    def requests(self, items: Iterable[TextItem], details: bool = False, **decode: object) -> list[RegressionRequest]:
        if top := self.decode_settings(decode).top:
            raise UserError(
                f"decode.top is {top}, but this model has no labels to rank: it gives a number; leave it out"
            )
        return [RegressionRequest(*item) for item in self.as_items(items)]

    def predict_batch(self, requests: Sequence[RegressionRequest], batch: int | None = None) -> list[RegressionResult]:
        filled = [item_of(request) for request in requests if not is_empty(item_of(request))]
        rows, notices = self.encode_texts(filled)
        outputs = self.map_encoded(rows, lambda encoded: self.model.label_logits(encoded), batch)
        values = [float(output) for output in outputs]
        require_finite(values)
        results = (
            RegressionResult(value, notices=text_notices) for value, text_notices in zip(values, notices, strict=True)
        )
        empty = RegressionResult(None, notices=(empty_text(),))
        return [empty if is_empty(item_of(request)) else next(results) for request in requests]

    def record(self, request: RegressionRequest, result: RegressionResult) -> Record:
        return {"value": result.value}

    def plain_result(self, request: RegressionRequest, result: RegressionResult) -> float | None:
        return result.value

    def score(self, texts: object, targets: object = None, details: bool = False) -> PlainResult:
        raise UserError("this model gives a number for a text and no probability; use predict, or eval with data")

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, None, list[float]]:
        """The metrics of `evaluate`, None because numbers have no paired test, and the reference numbers."""
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        predicted, gold = self._values(examples)
        metrics = {"examples": len(gold), **regression_metrics(predicted, gold)}
        if self.run.eval.baseline:
            metrics |= StoredBaseline(self.folder).score(examples, "regression")
        return metrics, None, gold

    def validation_metrics(self, examples: Source) -> dict[str, float]:
        metrics = regression_metrics(*self._values(examples))
        return {"loss": metrics.pop("mse"), "pearson": 0.0, "spearman": 0.0, **metrics}

    def majority_baseline(self, references: Sequence[Any]) -> Metrics:
        """The error of the mean of the references, which no constant beats."""
        values = torch.tensor([float(reference) for reference in references], dtype=torch.float64)
        return {"mean": float(values.std(correction=0))}

    def _values(self, examples: Source) -> tuple[list[float], list[float]]:
        """The predicted and the reference numbers of examples."""
        outputs: list[Tensor] = self.map_encoded(
            self.encode_with_warning([item_of_example(example) for example in examples]),
            lambda encoded: self.model.label_logits(encoded),
        )
        predicted = [float(output) for output in outputs]
        require_finite(predicted)
        return predicted, [float(example[1]) for example in examples]
