"""Classification with any number of labels for a text, each with a probability of its own."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ...config.data.base import DataFiles
from ...data.datasets.collate import Ids
from ...data.source import Source
from ...data.tables.cells import labels_value
from ...errors import UserError
from ...metrics.labels import multi_label_metrics
from ...processors.base import Processor
from ...processors.targets import MultiLabelProcessor
from ..base import Metrics, Record
from ..notices import empty_text, require_finite
from ..predictor import PlainResult
from ..records import multi_label_record
from ..requests import LabelProbability, MultiLabelRequest, MultiLabelResult
from .items import TextItem, data_split, is_empty, item_of, item_of_example
from .task import LabeledTexts


class MultiLabelPredictor(LabeledTexts[MultiLabelRequest, MultiLabelResult]):
    """The labels of every text whose probability is at least decode.threshold. An empty text has none."""

    problem = "multi_label"

    @property
    def processors(self) -> dict[str, Processor]:
        return {**super().processors, self.label_field: MultiLabelProcessor(self.labels)}

    def requests(self, items: Iterable[TextItem], details: bool = False, **decode: object) -> list[MultiLabelRequest]:
        settings = self.decode_settings(decode) if decode else None
        top, threshold = (None, None) if settings is None else (settings.top, settings.threshold)
        pairs = ((item[0], item[1] if len(item) > 1 else None) for item in self.as_items(items))
        return [MultiLabelRequest(text, top, pair, threshold) for text, pair in pairs]

    def predict_batch(self, requests: Sequence[MultiLabelRequest], batch: int | None = None) -> list[MultiLabelResult]:
        filled = [request for request in requests if not is_empty(item_of(request))]
        rows, notices = self.encode_texts([item_of(request) for request in filled])
        outputs = iter(zip(self._logits(rows, batch), notices, strict=True))
        empty = MultiLabelResult((), (), notices=(empty_text(),))
        return [empty if is_empty(item_of(request)) else self._result(*next(outputs), request) for request in requests]

    def _result(self, logits: Tensor, notices: tuple[str, ...], request: MultiLabelRequest) -> MultiLabelResult:
        order = logits.sigmoid().sort(descending=True, stable=True)
        names = [self.labels.names[number] for number in order.indices.tolist()]
        ranked = tuple(map(LabelProbability, names, order.values.tolist()))
        require_finite([label.probability for label in ranked])
        least = self.threshold(request.threshold)
        chosen = tuple(label for label in ranked if label.probability >= least)
        return MultiLabelResult(chosen, ranked[: self.top(request) or len(ranked)], notices=notices)

    def threshold(self, value: float | None = None) -> float:
        least = float(self.run.decode.threshold) if value is None else value
        if not 0 <= least < 1:
            raise UserError(f"a request has threshold={least:g}; expected at least 0 and less than 1")
        return least

    def record(self, request: MultiLabelRequest, result: MultiLabelResult) -> Record:
        return multi_label_record(result)

    def plain_result(self, request: MultiLabelRequest, result: MultiLabelResult) -> list[Any]:
        if self.top(request):
            return [(label.label, label.probability) for label in result.top]
        return [label.label for label in result.labels]

    def score(self, texts: Any, targets: Any = None, details: bool = False) -> PlainResult:
        """ln P(exactly these labels | text); a target is a list of labels, or text with data.delimiter."""
        if self.is_item(texts):
            return self.score([texts], [targets], details)[0]
        items, labels = self.as_items(texts), [self._label_list(target) for target in targets or ()]
        if len(items) != len(labels):
            raise UserError(f"there are {len(items)} texts and {len(labels)} lists of labels; give one for each text")
        ids = [self.label_ids(target) for target in labels]
        logits = self._logits(self.encode_with_warning(items))
        values = [float(_exact_logprob(row, row_ids)) for row, row_ids in zip(logits, ids, strict=True)]
        require_finite(values)
        return [{"score": value} for value in values] if details else values

    def _label_list(self, target: object) -> tuple[str, ...]:
        try:
            return labels_value(target, (), self.run.data.delimiter)
        except ValueError as error:
            raise UserError(f"a target is {error}; expected a list of labels") from error

    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[Any], list[Any]]:
        examples = data_split(self.run, "test", files)
        examples.require_nonempty("data.test")
        references = [tuple(sorted(example[1])) for example in examples]
        flat = [label for reference in references for label in reference]
        self.report_labels(examples, flat)
        logits = self._logits(self.encode_with_warning([item_of_example(example) for example in examples]))
        predicted = self._label_sets(torch.stack(logits))
        metrics = {"examples": len(references), **multi_label_metrics(predicted, references)}
        return metrics | self.baselines(examples, references) | self.unseen_labels(flat), predicted, references

    def validation_metrics(self, examples: Source) -> dict[str, float]:
        """The mean binary cross-entropy, and the metrics; unseen labels are left out."""
        known = [tuple(sorted(label for label in example[1] if label in self.labels.ids)) for example in examples]
        logits = torch.stack(self._logits(self.encode_with_warning([item_of_example(example) for example in examples])))
        targets = MultiLabelProcessor(self.labels).collate([MultiLabelProcessor(self.labels).encode(e) for e in known])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets.values)
        metrics = multi_label_metrics(self._label_sets(logits), known)
        return {"loss": float(loss), **{name: metrics[name] for name in ("accuracy", "f1", "micro_f1")}}

    def majority_baseline(self, references: Sequence[Any]) -> Metrics:
        """The micro F1 of the most frequent training label for every text."""
        if not any(self.labels.counts.values()):
            return {}
        label = self.labels.majority
        metrics = multi_label_metrics([(label,)] * len(references), references)
        return {"majority": metrics["micro_f1"], "majority label": label}

    def _label_sets(self, logits: Tensor) -> list[tuple[str, ...]]:
        positive = logits.sigmoid() >= self.threshold()
        rows = [row.nonzero()[:, 0].tolist() for row in positive]
        return [tuple(sorted(self.labels.names[number] for number in row)) for row in rows]

    def _logits(self, rows: Sequence[Ids], batch: int | None = None) -> list[Tensor]:
        logits = self.map_encoded(rows, lambda encoded: self.model.label_logits(encoded), batch)
        require_finite([float(torch.stack(logits).sum())] if logits else [])
        return logits


def _exact_logprob(logits: Tensor, ids: Sequence[int]) -> Tensor:
    sign = -torch.ones_like(logits)
    sign[list(ids)] = 1
    return logsigmoid(sign * logits).sum()
