"""The n-grams that decide: what each of them contributes to each label, over many texts, and what it all weighs."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeAlias

import torch

from ..adapt.ngrams import ngrams_of
from ..data.sources.data_files import evaluation_files
from ..errors import UserError
from ..look.decision import NGramEntry
from ..tasks.base import Record
from ..tasks.classify import items as text_items
from ..tasks.classify.explain import TOP, Totals, add_terms, decide, top_entries
from ..tasks.classify.items import TextItem, as_items
from ..tasks.classify.task import TextLabelPredictor
from ..tasks.label.texts import Texts, is_empty
from ..tasks.muting import require_one_model
from ..tasks.predictor import AnyPredictor

LabelPredictor: TypeAlias = TextLabelPredictor[Any, Any, Any]


@dataclass(frozen=True)
class NGramReport:
    """The n-grams that contribute most to each label, over some texts."""

    texts: int
    encoder: float  # the mean lead of the predicted label over the next, by the encoder
    ngrams: float  # and by the n-grams
    top: dict[str, tuple[NGramEntry, ...]]  # by label; values are means over the texts

    @property
    def ngram_share(self) -> float:
        """The share of the n-grams in the mean lead."""
        total = self.encoder + self.ngrams
        return self.ngrams / total if total else 0.0

    def record(self) -> Record:
        return {**asdict(self), "ngram_share": self.ngram_share}


@torch.no_grad()
def report_ngrams(
    predictor: AnyPredictor, items: Iterable[TextItem] | None = None, data: object = None, examples: int = 100
) -> NGramReport:
    """The n-grams of these texts, or of the first `examples` texts of data; by default of the test data of the run."""
    require_one_model(predictor, "--ngrams")
    if not isinstance(predictor, TextLabelPredictor) or (ngrams := ngrams_of(predictor.module)) is None:
        raise UserError(
            "--ngrams lists the n-grams beside the encoder of a classifier, and this model has none; give a run of "
            "classify with data.ngrams.order=1 or more"
        )
    if examples < 1:
        raise UserError(f"--examples is {examples}; expected 1 or more")
    texts = [text for text in _texts(predictor, items, data, examples) if not is_empty(text)]
    if not texts:
        raise UserError("all texts are empty and have no n-grams; give a sentence")
    single = predictor.problem_class.name == "single_label"
    totals, leads = Totals(), list[tuple[float, float]]()
    for row in (encoded.row for encoded in predictor.texts.read(texts)):
        text = predictor.texts.collate([row]).to(predictor.device)
        add_terms(totals, ngrams, ngrams.terms(text), text, predictor.tokenizer)
        decision = decide(predictor.module, text, predictor.tokenizer, predictor.labels.names, single)
        assert decision is not None
        leads.append(decision.lead)
    encoder, share = (sum(parts) / len(texts) for parts in zip(*leads, strict=True))
    top = {name: top_entries(totals, label, TOP, len(texts)) for label, name in enumerate(predictor.labels.names)}
    return NGramReport(len(texts), encoder, share, top)


def _texts(predictor: LabelPredictor, items: Iterable[TextItem] | None, data: object, examples: int) -> Iterable[Texts]:
    if items is not None:
        return as_items(items, predictor.pairs)
    split = text_items.data_split(predictor.run, "test", evaluation_files(data))
    return map(text_items.item_of_example, islice(split, examples))
