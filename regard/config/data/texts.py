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
from .base import Data, DataFiles, PackedData, TableData


class PairData(PackedData):
    """Sentence pairs."""

    train: DataFiles = ()  # "source,target": text files, one sentence per line, .gz, .bz2, .xz and .zst too; or one
    # table of pairs. A glob or a list, [["a.en", "b.en"], ["a.de", "b.de"]], names several for a side; \, is a comma
    # inside a name. Empty: embedded dates
    columns: Strings = ()  # source and target, by name or by number from 1; in evaluation, more are references. Empty:
    # known names
    locales: Annotated[tuple[str, str], BeforeValidator(as_strings)] = ("en", "de")  # of the embedded data: any two of
    # Babel's
    examples: Positive = 20000  # training examples of the embedded data

    @property
    def alignment_file(self) -> str:
        """The word alignments of data.train, a file in Pharaoh format; empty: none."""
        return ""


class AlignedPairData(PairData):
    """Sentence pairs whose words may be aligned."""

    alignments: str = ""  # word alignments of data.train (`regard align`), a file in Pharaoh format; empty: an IBM
    # model aligns the tokens

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

    train: DataFiles = ()  # "a.tsv,b.jsonl": a table of pairs for each task, .gz, .bz2, .xz and .zst too; a list as
    # [["a.tsv", "b.tsv"], "c.tsv"] gives a task several. Empty: embedded dates
    prefixes: Strings = ()  # prepended to the sources of each task, in the order of data.train: "translate: ,summarize:
    # "
    weights: tuple[
        Annotated[float, Field(gt=0)], ...
    ] = ()  # sampling weights of the tasks; empty: by number of examples
    locales: Strings = ("en", "de", "fr")  # of the embedded data: from the first into each of the others
    examples: Positive = 20000  # training examples of the embedded data, over all tasks


class SpanData(PackedData):
    """Lines of text with masked spans. Lines that are too long give one random window per epoch."""

    train: DataFiles = ()  # text files, .gz, .bz2, .xz and .zst too; each line is an example. Or tables with texts.
    # Empty: dates in 28 languages
    max_tokens: Positive = 256  # of a row; longer lines give one random window per epoch
    holdout: Share = 0.0  # fraction at the end of data.train for validation if data.valid is empty
    masked: Annotated[float, Field(gt=0, lt=1)] = 0.15  # fraction of the tokens that is masked
    span: Annotated[float, Field(ge=1)] = 3.0  # mean length of a masked span in tokens
    sentinels: Annotated[int, Field(ge=2)] = 100  # of a trained tokenizer: the most spans of a row
    locales: Strings = ()  # of the embedded data, as in classify
    examples: Positive = 20000  # training examples of the embedded data


class NGrams(Base):
    """Naive Bayes over n-grams of the texts, beside the encoder."""

    order: Count = 0  # naive Bayes over n-grams of 1 to so many tokens beside the encoder; 0: none, as exports to
    # Hugging Face need it. A start brings its own
    buckets: Positive = 1 << 18  # rows that n-grams of two or more tokens share; fewer with many labels
    words: bool = False  # words and pairs of words, too
    characters: Count = 0  # n-grams of so many characters, too; 0: none
    overlap: bool = False  # with words and characters, of pairs: also words of the second text that the first one lacks


class LabelData(TableData):
    """Labeled texts. Texts longer than max_tokens or the positions of the model are truncated."""

    train: DataFiles = ()  # a table of labeled texts: TSV, CSV, JSONL, JSON, Parquet, Arrow; .gz, .bz2, .xz and .zst
    # too. Empty: the embedded data
    max_tokens: Positive = 256  # of a text with START and END; longer ones are truncated, counted and reported
    columns: Strings = ()  # of text and label (of pairs: text, text_pair, label), by number from 1 or by name; or these
    # words in column order: label,text. Empty: known names; or text, then label
    pairs: Literal["auto", "yes", "no"] = "auto"  # yes: an example has two texts; auto: by known names, such as premise
    # and hypothesis, or by three names in data.columns; no: one text
    problem_type: Literal["auto", "single_label", "multi_label", "regression"] = "auto"  # what the targets are; auto:
    # lists or data.delimiter give multi_label, fractions with 20 different values or more regression
    delimiter: str = ""  # between the labels of a cell (multi_label); empty: a comma, or a list
    class_weights: Strings = ()  # balanced, or weights in the loss such as spam:3,ham:0.5; other labels have 1
    names: Strings = ()  # of labels that are given by their index from 0
    embedded: Literal["language_id", "matching"] = "language_id"  # language_id: the language of a date; matching: see
    # recipe matching
    locales: Strings = ()  # of the embedded data: any of Babel's; empty: 28, many closely related
    examples: Positive = 20000  # training examples of the embedded data
    token_masking: Share = 0.0  # fraction of the tokens replaced by <mask> in training, drawn anew in every epoch
    ngrams: NGrams = NGrams()

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

    train: DataFiles = ()  # a file of tagged sentences: CoNLL-U; columns with a blank line between sentences
    # (CoNLL-2003); JSONL, JSON, Parquet or Arrow with tokens and tags. Empty: Python's standard library
    max_tokens: Positive = 256  # of a row with START and END; longer sentences are split into overlapping windows
    format: Literal["auto", "conllu", "columns", "jsonl", "json", "parquet", "arrow", "text"] = "auto"
    # auto: by file name; text (words between spaces) has no tags: for prediction only
    column: str = ""  # of the tags: a CoNLL-U name (upos, xpos, deprel …), a number from 1, or a JSONL field; empty:
    # upos, the last column, the field tags
    column_count: Count = 0  # columns of a line, by which predict recognizes columns; 0: as in data.train
    names: Strings = ()  # of tags that are given by their index from 0
    overlap: Count = 32  # tokens that neighboring windows share
    examples: Positive = 4000  # training sentences of the embedded data


class MaskData(TableData):
    """Lines of text with masked tokens. Lines that are too long give one random window per epoch."""

    train: DataFiles = ()  # text files, .gz, .bz2, .xz and .zst too; each line is an example. Or tables with texts.
    # Empty: dates in 28 languages
    max_tokens: Positive = 256  # of a row with START and END; longer lines give one random window per epoch
    holdout: Share = 0.0  # fraction at the end of data.train for validation if data.valid is empty
    masked: Annotated[float, Field(gt=0, lt=1)] = 0.15  # fraction of the tokens to predict: 80 % of them become <mask>,
    # 10 % a random token, 10 % stay unchanged
    whole_words: bool = False  # mask all tokens of a word together
    next_sentence: bool = (
        False  # also predict if the second of two lines follows the first; a blank line ends a document
    )
    locales: Strings = ()  # of the embedded data, as in classify
    examples: Positive = 20000  # training examples of the embedded data


class TextData(TableData):
    """Running text, for language models."""

    train: DataFiles = ()  # files, folders or globs of text, .gz, .bz2, .xz and .zst too; or tables with texts. Empty:
    # Python's standard library
    holdout: Share = 0.0  # fraction at the end of data.train for validation if data.valid is empty
    max_tokens: Positive = 256  # of a window, in training and evaluation
    document: Literal["file", "line", "blank", "stream"] = "file"  # the unit of text: file, line, blank (ends at an
    # empty line), stream (all lines, END after each). No attention between texts; a record of a table is always one
    # text
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

    kind: Literal["bpe", "unigram", "wordpiece", "word", "space", "char", "byte"] = "bpe"  # trained on data.train and
    # stored in the run; space: words between spaces; wordpiece is BERT's: it loses spaces and unknown letters, so
    # decoding is not exact
    vocab: Annotated[int, Field(ge=5)] = 8000  # maximum size, with the four control symbols
    normalize: Literal["none", "nfc", "nfkc", "lower", "nfkc+lower"] = "none"  # none (decoding restores every text
    # exactly), or what changes texts before they become tokens
    symbols: Strings = ()  # words that are never split

    @property
    def shared(self) -> bool:
        """True if one tokenizer serves all texts."""
        return True


class PairTokenizerConfig(TokenizerConfig):
    """Settings of the tokenizers of pairs of texts."""

    joint: bool = True  # one tokenizer for both sides; false: one for each

    @property
    def shared(self) -> bool:
        return self.joint
