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
from ..predictor import Answer
from ..records import multi_label_record
from ..requests import LabelProbability, MultiLabelRequest, MultiLabelResult
from .items import TextItem, data_split, is_empty, item_of, item_of_example
from .task import LabeledTexts


class MultiLabelPredictor(LabeledTexts[MultiLabelRequest, MultiLabelResult]):
    """The labels of every text whose probability is at least decode.threshold. An empty text has none."""

    kind = "multi_label"

    @property
    def processors(self) -> dict[str, Processor]:
        return {**super().processors, self.label_field: MultiLabelProcessor(self.labels)}

    def requests(self, items: Iterable[TextItem], details: bool = False, **decode: object) -> list[MultiLabelRequest]:
        settings = self.decode_settings(decode) if decode else None
        top, threshold = (None, None) if settings is None else (settings.top, settings.threshold)
        pairs = ((item[0], item[1] if len(item) > 1 else None) for item in self.as_items(items))
        return [MultiLabelRequest(text, top, pair, threshold) for text, pair in pairs]

    def predict_requests(
        self, requests: Sequence[MultiLabelRequest], batch: int | None = None
    ) -> list[MultiLabelResult]:
        self.refuse_adapters(requests)
        filled = [each for each in requests if not is_empty(item_of(each))]
        rows, notices = self.encode_texts([item_of(each) for each in filled])
        found = iter(zip(self._logits(rows, batch), notices, strict=True))
        empty = MultiLabelResult((), (), notices=(empty_text(),))
        return [empty if is_empty(item_of(each)) else self._result(*next(found), each) for each in requests]

    def _result(self, logits: Tensor, notices: tuple[str, ...], request: MultiLabelRequest) -> MultiLabelResult:
        order = logits.sigmoid().sort(descending=True, stable=True)
        names = [self.labels.names[number] for number in order.indices.tolist()]
        ranked = tuple(map(LabelProbability, names, order.values.tolist()))
        require_finite([each.probability for each in ranked])
        least = self.threshold(request.threshold)
        chosen = tuple(each for each in ranked if each.probability >= least)
        return MultiLabelResult(chosen, ranked[: self.top(request) or len(ranked)], notices=notices)

    def threshold(self, asked: float | None = None) -> float:
        least = float(self.run.decode.threshold) if asked is None else asked
        if not 0 <= least < 1:
            raise UserError(f"a request has threshold={least:g}; expected at least 0 and less than 1")
        return least

    def record(self, request: MultiLabelRequest, result: MultiLabelResult) -> Record:
        return multi_label_record(result)

    def answer(self, request: MultiLabelRequest, result: MultiLabelResult) -> list[Any]:
        if self.top(request):
            return [(each.label, each.probability) for each in result.top]
        return [each.label for each in result.labels]

    def score(self, texts: Any, targets: Any = None, details: bool = False) -> Answer:
        """ln P(exactly these labels | text); a target is a list of labels, or text with data.delimiter."""
        if self.is_item(texts):
            return self.score([texts], [targets], details)[0]
        items, wanted = self.as_items(texts), [self._label_list(each) for each in targets or ()]
        if len(items) != len(wanted):
            raise UserError(f"there are {len(items)} texts and {len(wanted)} lists of labels; give one for each text")
        ids = [self.label_ids(each) for each in wanted]
        logits = self._logits(self.encode_with_warning(items))
        values = [float(_exact_logprob(row, own)) for row, own in zip(logits, ids, strict=True)]
        require_finite(values)
        return [{"score": value} for value in values] if details else values

    def _label_list(self, target: object) -> tuple[str, ...]:
        try:
            return labels_value(target, (), self.run.data.delimiter)
        except ValueError as error:
            raise UserError(f"a target is {error}; expected a list of labels") from error

    def evaluate_with_outputs(self, sides: DataFiles | None = None) -> tuple[Metrics, list[Any], list[Any]]:
        examples = data_split(self.run, "test", sides)
        examples.require_nonempty("data.test")
        references = [tuple(sorted(each[1])) for each in examples]
        flat = [label for each in references for label in each]
        self.report_labels(examples, flat)
        logits = self._logits(self.encode_with_warning([item_of_example(each) for each in examples]))
        found = self._chosen(torch.stack(logits))
        metrics = {"examples": len(references), **multi_label_metrics(found, references)}
        return metrics | self.baselines(examples, references) | self.unseen_labels(flat), found, references

    def validation_metrics(self, examples: Source) -> dict[str, float]:
        """The mean binary cross-entropy, and the metrics; unseen labels are left out."""
        known = [tuple(sorted(label for label in each[1] if label in self.labels.ids)) for each in examples]
        logits = torch.stack(self._logits(self.encode_with_warning([item_of_example(each) for each in examples])))
        wanted = MultiLabelProcessor(self.labels).collate([MultiLabelProcessor(self.labels).encode(e) for e in known])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted.values)
        metrics = multi_label_metrics(self._chosen(logits), known)
        return {"loss": float(loss), **{name: metrics[name] for name in ("accuracy", "f1", "micro_f1")}}

    def majority_baseline(self, references: Sequence[Any]) -> Metrics:
        """The micro F1 of the most frequent training label for every text."""
        if not any(self.labels.counts.values()):
            return {}
        label = self.labels.majority
        found = multi_label_metrics([(label,)] * len(references), references)
        return {"majority": found["micro_f1"], "majority label": label}

    def _chosen(self, logits: Tensor) -> list[tuple[str, ...]]:
        given = logits.sigmoid() >= self.threshold()
        rows = [row.nonzero()[:, 0].tolist() for row in given]
        return [tuple(sorted(self.labels.names[number] for number in row)) for row in rows]

    def _logits(self, rows: Sequence[Ids], batch: int | None = None) -> list[Tensor]:
        found = self.map_encoded(rows, lambda encoded: self.model.label_logits(encoded), batch)
        require_finite([float(torch.stack(found).sum())] if found else [])
        return found


def _exact_logprob(logits: Tensor, ids: Sequence[int]) -> Tensor:
    sign = -torch.ones_like(logits)
    sign[list(ids)] = 1
    return logsigmoid(sign * logits).sum()
