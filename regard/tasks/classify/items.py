"""The inputs of classification and regression: texts, or pairs of texts."""

from collections.abc import Iterable

from ...config.data.base import DataFiles
from ...data.source import Source
from ...data.sources.labeled import labeled_texts
from ...errors import UserError
from ...messages.labels import ClassifyRequest, RegressionRequest
from ...synthetic.language_id import make_phrases
from ...synthetic.matching import make_matching
from ..base import open_split
from ..label.texts import LabeledText, Texts
from ..texts import as_texts, describe_type, iterate_items
from .settings import ClassifyRun

TextItem = str | tuple[str, ...]  # a text, or a pair of texts


def as_items(values: TextItem | Iterable[TextItem], pairs: bool) -> list[Texts]:
    """Each item as a tuple of texts. A single text where pairs are expected is an error."""
    found = []
    items = [values] if isinstance(values, str) else iterate_items(values, "text")
    for number, item in enumerate(items, 1):
        if isinstance(item, str) and pairs:
            raise UserError(f"text {number} is one text, and this model reads pairs; give (text, text_pair)")
        if isinstance(item, tuple) or (pairs and isinstance(item, list)):
            if not 1 <= len(item) <= 2:
                raise UserError(f"text {number} has {len(item)} texts; expected a text, or a pair of texts")
            found.append(tuple(as_texts(item)))
        elif isinstance(item, str):
            found.append((item,))
        else:
            raise UserError(f"text {number} is {describe_type(item)}; expected a str")
    return found


def item_of(request: ClassifyRequest | RegressionRequest) -> Texts:
    """The texts of a request."""
    return (request.text,) if request.text_pair is None else (request.text, request.text_pair)


def item_of_example(example: LabeledText) -> Texts:
    """The texts of (text, target) or (text, target, second text)."""
    return (example[0], *example[2:])


def data_split(run: ClassifyRun, split: str, files: DataFiles | None = None, train: Source | None = None) -> Source:
    """A split of the data; the embedded data are phrases or the matching task. `train` is data.train, if it is open."""
    data = run.data

    def read(files: DataFiles) -> Source:
        return train if train is not None and files == data.train else labeled_texts(files, data)

    def embedded() -> Source:
        if data.embedded == "matching":
            return make_matching(data.max_tokens - 2, data.examples, seed=1)[split]
        return make_phrases(data.locales, data.examples, seed=1)[split]

    return open_split(run, split, files, read, embedded, "test.tsv")
