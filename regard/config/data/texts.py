"""The settings of texts: pairs, mixtures, spans, labels, tags, masks, running text."""

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ..types import Base as Base
from ..types import Count as Count
from ..types import Positive as Positive
from ..types import Share as Share
from ..types import Strings as Strings
from ..types import as_strings
from .base import Data, PackedData, TableData


class PairData(PackedData):
    """Sentence pairs."""

    locales: Annotated[tuple[str, str], BeforeValidator(as_strings)] = ("en", "de")  # of the embedded data
    examples: Positive = 20000  # embedded training pairs

    @property
    def alignment_file(self) -> str:
        """The word alignments of data.train, a file in Pharaoh format; empty: none."""
        return ""


class AlignedPairData(PairData):
    """Sentence pairs whose words may be aligned."""

    alignments: str = ""  # word alignments of data.train, a file in Pharaoh format; empty: an IBM model aligns tokens

    @property
    def alignment_file(self) -> str:
        return self.alignments

    @model_validator(mode="after")
    def _check_alignments(self) -> "AlignedPairData":
        if self.alignments and not self.train:
            raise ValueError(
                f"data.alignments is {self.alignments}, but the embedded data need none; name data.train, too"
            )
        return self


class MixData(PackedData):
    """Pairs of several tasks: data.train=a.tsv,b.tsv names a file for each task."""

    prefixes: Strings = ()  # prepended to the sources of each task, such as "translate: ,summarize: "
    weights: tuple[
        Annotated[float, Field(gt=0)], ...
    ] = ()  # sampling weights of the tasks; empty: by number of examples
    locales: Strings = ("en", "de", "fr")  # of the embedded data: from the first into each of the others
    examples: Positive = 20000  # embedded training pairs, over all tasks


class SpanData(PackedData):
    """Lines of text with masked spans. Lines that are too long give one random window per epoch."""

    masked: Annotated[float, Field(gt=0, lt=1)] = 0.15  # fraction of the tokens that is masked
    span: Annotated[float, Field(ge=1)] = 3.0  # mean length in tokens
    sentinels: Annotated[int, Field(ge=2)] = 100  # of a trained tokenizer
    locales: Strings = ()  # of the embedded data, as in classify
    examples: Positive = 20000  # embedded training lines


class LabelData(TableData):
    """Labeled texts. Texts longer than max_tokens or the positions of the model are truncated."""

    columns: Strings = ()  # of text, text_pair and label, by number or name; or these words in column order
    pairs: Literal["auto", "yes", "no"] = "auto"  # whether an example has two texts; auto: by the names of the columns
    problem_type: Literal["auto", "single_label", "multi_label", "regression"] = "auto"
    delimiter: str = ""  # between the labels of a cell; empty: a comma, or a list
    class_weights: Strings = ()  # balanced, or weights such as spam:3,ham:0.5; other labels have 1
    names: Strings = ()  # of labels that are given by their index
    embedded: Literal["language_id", "matching"] = "language_id"  # the synthetic data set
    locales: Strings = ()  # of language_id; empty: all of synthetic.language_id.LOCALES
    examples: Positive = 20000  # embedded training texts
    token_masking: Share = 0.0  # fraction of the tokens replaced by <mask> in training, drawn anew in every epoch

    @field_validator("class_weights")
    @classmethod
    def _check_weights(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in () if value == ("balanced",) else value:
            weight = entry.rpartition(":")[2].strip()
            if ":" not in entry or not re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", weight):
                raise ValueError(
                    f"data.class_weights has {entry!r}; expected balanced, or a label, a colon and its weight, such as "
                    "spam:3"
                )
        return value

    def weight_table(self) -> dict[str, float]:
        """The weights of the labels that data.class_weights names."""
        named = (entry.rpartition(":") for entry in self.class_weights if entry != "balanced")
        return {label.strip(): float(weight) for label, _, weight in named}


class TagData(Data):
    """Sentences with a tag for each word. Long sentences are split into overlapping windows."""

    format: Literal["auto", "conllu", "columns", "jsonl", "json", "parquet", "arrow", "text"] = (
        "auto"  # text has no tags: for prediction only
    )
    column: str = ""  # CoNLL-U name, number from 1, or JSON field; empty: upos, last column, "tags"
    names: Strings = ()  # of tags that are given by their index
    overlap: Count = 32  # tokens that neighboring windows share
    examples: Positive = 4000  # embedded training sentences


class MaskData(TableData):
    """Lines of text with masked tokens. Lines that are too long give one random window per epoch."""

    masked: Annotated[float, Field(gt=0, lt=1)] = 0.15  # fraction of the tokens that is predicted
    whole_words: bool = False  # mask all tokens of a word together
    next_sentence: bool = (
        False  # also predict if the second of two lines follows the first; a blank line ends a document
    )
    locales: Strings = ()  # of the embedded data, as in classify
    examples: Positive = 20000  # embedded training lines


class TextData(TableData):
    """Running text, for language models."""

    max_tokens: Positive = 256  # of a window, in training and evaluation
    document: Literal["file", "line", "blank", "stream"] = (
        "file"  # blank: ends at an empty line; stream: see data/datasets/corpus.py
    )
    stride: Count = 0  # tokens between window starts in evaluation; 0: windows do not overlap
    cache: str = ""  # folder of encoded texts; empty: in the user's cache folder
    verify: bool = False  # detect changed files by all bytes, not only by size, time and samples

    @model_validator(mode="after")
    def _check_stride(self) -> "TextData":
        if self.stride > self.max_tokens:
            raise ValueError(
                f"data.stride is {self.stride}, above data.max_tokens={self.max_tokens}, and would skip tokens; "
                "lower it, or use 0 for windows that do not overlap"
            )
        return self


class TokenizerConfig(Base):
    """Settings of a tokenizer that is trained on the data."""

    kind: Literal["bpe", "unigram", "wordpiece", "word", "space", "char", "byte"] = "bpe"
    vocab: Annotated[int, Field(ge=5)] = 8000  # four control symbols and at least one token
    joint: bool = True  # one tokenizer for source and target
    normalize: Literal["none", "nfc", "nfkc", "lower", "nfkc+lower"] = "none"
    symbols: Strings = ()  # never split
