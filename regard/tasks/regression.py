"""Regression: one number for a text, by an imported encoder whose head has one output. Such models are not trained."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import torch

from ..config.run import Run
from ..config.schema import Sides
from ..data.columns import LABEL, TEXT
from ..data.examples import Examples
from ..errors import UserError
from ..families.protocols import LabelModel
from ..metrics.regression import regression_metrics
from ..processors.tokenizers import Tokenizer
from .base import Metrics, Record
from .classify import data_split
from .encoder import EncoderPredictor, PretrainedEncoder, run_of_folder
from .finite import require_finite
from .notices import empty_text
from .predictor import Answer
from .requests import RegressionRequest, RegressionResult
from .texts import as_texts


class RegressionPredictor(EncoderPredictor[str, RegressionRequest, RegressionResult]):
    """The number of every text: the output of the head itself, not a probability. An empty text has none."""

    model: LabelModel
    roles = (TEXT, LABEL)

    def __init__(
        self, run: Run, model: LabelModel, tokenizer: Tokenizer, labels: Sequence[str], device: torch.device
    ) -> None:
        super().__init__(run, model, tokenizer, device)
        self.labels = tuple(labels)  # the name of the output

    @classmethod
    def from_folder(cls, folder: PretrainedEncoder, overrides: Mapping[str, object]) -> Self:
        """The predictor of a Hugging Face folder."""
        run, device = run_of_folder(folder, overrides, "classify")
        return cls(run, folder.model, folder.tokenizer, folder.labels, device)

    def requests(self, items: Iterable[str], details: bool = False, **decode: object) -> list[RegressionRequest]:
        if top := self.decode_settings(decode).top:
            raise UserError(
                f"decode.top is {top}, but this model has no labels to rank: it gives a number; leave it out"
            )
        return [RegressionRequest(text) for text in as_texts(items)]

    def predict_requests(
        self, requests: Sequence[RegressionRequest], batch: int | None = None
    ) -> list[RegressionResult]:
        self.refuse_adapters(requests)
        filled = [each.text for each in requests if each.text.strip()]
        rows, notices = self.encode_texts(filled)
        outputs = self.map_encoded(rows, lambda encoded: self.model.label_logits(encoded), batch)
        values = [float(each) for each in outputs]
        require_finite(values)
        results = (RegressionResult(value, notices=own) for value, own in zip(values, notices, strict=True))
        empty = RegressionResult(None, notices=(empty_text(),))
        return [next(results) if each.text.strip() else empty for each in requests]

    def record(self, request: RegressionRequest, result: RegressionResult) -> Record:
        return {"value": result.value}

    def answer(self, request: RegressionRequest, result: RegressionResult) -> float | None:
        return result.value

    def score(self, texts: object, targets: object = None, details: bool = False) -> Answer:
        raise UserError("this model gives a number for a text and no probability; use predict, or eval with data")

    def evaluate_with_outputs(self, sides: Sides | None = None) -> tuple[Metrics, None, list[float]]:
        """The metrics of `evaluate`, None because numbers have no paired test, and the reference numbers."""
        examples = data_split(self.run, "test", sides)
        examples.require_nonempty("data.test")
        gold = [_number(examples, index) for index in range(len(examples))]
        found = self.predict_requests([RegressionRequest(examples.text(i, 0)) for i in range(len(examples))])
        pairs = [(each.value, wanted) for each, wanted in zip(found, gold, strict=True) if each.value is not None]
        metrics = regression_metrics([value for value, _ in pairs], [wanted for _, wanted in pairs])
        return {"examples": len(pairs), **metrics}, None, gold


def _number(examples: Examples, index: int) -> float:
    """The number of an example."""
    text = examples.text(index, 1)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(
            f"{examples.location(index)} has the label {text!r}, and this model predicts numbers; give a number for "
            "each text"
        )
    return value


from_folder = RegressionPredictor.from_folder
