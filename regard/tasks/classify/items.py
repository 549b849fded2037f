"""What classification and regression read: texts, or pairs of texts."""

from collections.abc import Sequence
from typing import Any

from ...config.data.base import DataFiles
from ...config.run import Run
from ...data.datasets.collate import Ids
from ...data.datasets.rows import encode_rows, max_text_tokens, pad_texts
from ...data.source import Source
from ...data.sources.labeled import label_roles, labeled_texts
from ...data.tables.columns import ColumnRule
from ...errors import UserError
from ...parts import Inputs
from ...synthetic.language_id import make_phrases
from ...synthetic.matching import make_matching
from ..base import open_split
from ..label.encoder import EncoderPredictor
from ..notices import Notice, cut_text
from ..predictor import RequestType, ResultType
from ..texts import as_texts, describe_type, iterate_items

TextItem = str | tuple[str, ...]  # a text, or a pair of texts


class TextItems(EncoderPredictor[TextItem, RequestType, ResultType]):
    """An encoder that reads texts, or pairs of texts (data.pairs) with END between them."""

    def __init__(self, run: Run, *parts: Any) -> None:
        super().__init__(run, *parts)
        self.roles = label_roles(run.data)
        self.columns = len(self.roles) - 1
        self.fields = len(self.roles)

    @property
    def pairs(self) -> bool:
        return bool(self.run.data.pairs == "yes")

    @property
    def room(self) -> int:
        return max_text_tokens(self.model.context, self.run.data, 3 if self.pairs else 2)

    def is_item(self, x: object) -> bool:
        return isinstance(x, str) or (self.pairs and isinstance(x, tuple) and all(isinstance(e, str) for e in x))

    def input_rule(self) -> ColumnRule:
        return self.column_rule(self.columns)

    def as_items(self, values: Any) -> list[tuple[str, ...]]:
        """Each item as a tuple of texts. A single text where pairs are expected is an error."""
        pairs = []
        items: Any = [values] if isinstance(values, str) else iterate_items(values, "text")
        for number, item in enumerate(items, 1):
            if isinstance(item, str) and self.pairs:
                raise UserError(f"text {number} is one text, and this model reads pairs; give (text, text_pair)")
            several = isinstance(item, tuple) or (self.pairs and isinstance(item, list))
            if several and not 1 <= len(item) <= 2:
                raise UserError(f"text {number} has {len(item)} texts; expected a text, or a pair of texts")
            if several:
                pairs.append(tuple(as_texts(item)))
            elif isinstance(item, str):
                pairs.append((item,))
            else:
                raise UserError(f"text {number} is {describe_type(item)}; expected a str")
        return pairs

    def encode_texts(self, texts: Sequence[TextItem]) -> tuple[list[Ids], list[tuple[Notice, ...]]]:
        items = [(text,) if isinstance(text, str) else text for text in texts]
        encoded = list(encode_rows(self.tokenizer, items, self.room))
        notice = cut_text(self.room)
        return [row for row, _ in encoded], [(notice,) if cut else () for _, cut in encoded]

    def collate(self, rows: Sequence[Ids]) -> Inputs:
        types = getattr(self.run.model, "token_types", 2)
        return pad_texts(rows, self.tokenizer, types).to(self.device)


def item_of(request: Any) -> tuple[str, ...]:
    """The texts of a request."""
    return (request.text,) if request.text_pair is None else (request.text, request.text_pair)


def is_empty(item: Sequence[str]) -> bool:
    """True if there is nothing to read."""
    return not any(text.strip() for text in item)


def item_of_example(example: Sequence[Any]) -> tuple[str, ...]:
    """The texts of (text, target) or (text, target, second text)."""
    return (example[0], *example[2:])


def data_split(run: Run, split: str, files: DataFiles | None = None, train: Source | None = None) -> Source:
    """A split of the data; the embedded data are phrases or the matching task. `train` is data.train, if it is open."""
    data = run.data

    def read(files: DataFiles) -> Source:
        return train if train is not None and files == data.train else labeled_texts(files, data)

    def embedded() -> Source:
        if data.embedded == "matching":
            return make_matching(data.max_tokens - 2, data.examples, seed=1)[split]
        return make_phrases(data.locales, data.examples, seed=1)[split]

    return open_split(run, split, files, read, embedded, "test.tsv")
