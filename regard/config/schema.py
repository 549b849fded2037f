"""The settings of data, tokenizer, training, tuning and decoding."""

import re
from os import PathLike
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from .decode import NEUTRAL_SAMPLING as NEUTRAL_SAMPLING
from .decode import ClassifyDecode as ClassifyDecode
from .decode import DecodeBase as DecodeBase
from .decode import EncoderDecode as EncoderDecode
from .decode import LanguageDecode as LanguageDecode
from .decode import Seq2SeqDecode as Seq2SeqDecode
from .decode import TranslateDecode as TranslateDecode
from .merge import split_commas
from .types import Base as Base
from .types import Count as Count
from .types import Positive as Positive
from .types import Share as Share
from .types import Strings as Strings
from .types import as_strings


def _sides(value: Any) -> Any:
    value = split_commas(value) if isinstance(value, str) else value
    if not isinstance(value, list | tuple):
        return value
    return tuple(
        (each if isinstance(each, str) else str(each),) if isinstance(each, str | PathLike) else each for each in value
    )


def _keep(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """A string as it is: pydantic would make a subclass, such as the name of data in memory, a plain one."""
    checked = validate(value)
    return value if isinstance(value, str) else checked


Pattern: TypeAlias = Annotated[str, WrapValidator(_keep)]  # a file name, a glob, or data in memory
Sides: TypeAlias = Annotated[tuple[tuple[Pattern, ...], ...], BeforeValidator(_sides)]
"""The sides of an example (source, target), each a tuple of file patterns."""


class Data(Base):
    """Settings of the data of every task."""

    train: Sides = ()  # empty: the embedded data
    valid: Sides = ()
    test: Sides = ()
    invalid: Literal["refuse", "skip"] = "refuse"
    holdout: Share = 0.0  # fraction of data.train for validation if data.valid is empty
    max_tokens: Positive = 256  # of the longest side of an example
    workers: Count = 0  # processes that load batches ahead


TextFormat: TypeAlias = Literal["auto", "text", "tsv", "csv", "jsonl", "json", "parquet", "arrow"]


class TableData(Data):
    """Data that may come as tables."""

    format: TextFormat = "auto"  # by suffix; text: plain lines
    columns: Strings = ()  # by name, or by number from 1; empty: known names, such as text and label
    header: Literal["auto", "yes", "no"] = "auto"  # whether the first line of TSV and CSV names the columns


class PackedData(TableData):
    """Data of tasks with two sides."""

    packed: bool = False  # several examples share a row instead of padding


class PairData(PackedData):
    """Sentence pairs."""

    locales: Annotated[tuple[str, str], BeforeValidator(as_strings)] = ("en", "de")  # of the embedded data
    examples: Positive = 20000  # embedded training pairs
    links: str = ""  # word alignments of data.train, a file in Pharaoh format; families with fertilities read it
    teacher: str = ""  # a run whose tokenizers are used, and which fine-tunes families with fertilities
    teacher_weight: Share = 0.0  # of the fine-tuning losses; the paper's is 0.25
    teacher_init: bool = False  # begin with the weights of the teacher that fit, by name and shape
    glancing: Share = 0.0  # target tokens shown in training, as a fraction of those that are wrong (2008.07905)
    rdrop: Annotated[float, Field(ge=0)] = 0.0  # Mask-Predict: weight of the R-Drop loss (2106.14448)

    @model_validator(mode="after")
    def _check_links(self) -> "PairData":
        for name in ("teacher_weight", "teacher_init"):
            if (value := getattr(self, name)) and not self.teacher:
                value = str(value).lower()
                raise ValueError(f"data.{name} is {value}, but no run teaches; give one with data.teacher=RUN")
        if self.links and not self.train:
            raise ValueError(f"data.links is {self.links}, but the embedded data need none; name data.train, too")
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
    rdrop: Annotated[float, Field(ge=0)] = 0.0  # weight of the R-Drop loss (2106.14448): two passes, symmetric KL

    @field_validator("class_weights")
    @classmethod
    def _check_weights(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in () if value == ("balanced",) else value:
            weight = each.rpartition(":")[2].strip()
            if ":" not in each or not re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", weight):
                raise ValueError(
                    f"data.class_weights has {each!r}; expected balanced, or a label, a colon and its weight, such as "
                    "spam:3"
                )
        return value

    def weight_table(self) -> dict[str, float]:
        """The weights of the labels that data.class_weights names."""
        named = (each.rpartition(":") for each in self.class_weights if each != "balanced")
        return {label.strip(): float(weight) for label, _, weight in named}


class ClassifyEval(Base):
    """Evaluation of classification."""

    baseline: bool = True  # a bag of words, fitted to data.train and scored beside the model


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


class Noam(Base):
    """The rate falls with the inverse square root of the step."""

    kind: Literal["noam"] = "noam"


class Cosine(Base):
    """The rate falls along a cosine to the floor at the last step."""

    kind: Literal["cosine"] = "cosine"
    floor: Share = 0.0  # fraction of the peak


class Linear(Base):
    """The rate falls linearly to the floor at the last step."""

    kind: Literal["linear"] = "linear"
    floor: Share = 0.0  # fraction of the peak


class Constant(Base):
    """The rate stays at its peak."""

    kind: Literal["constant"] = "constant"


class WarmupStableDecay(Base):
    """Warm-up, constant, linear decay."""

    kind: Literal["wsd"] = "wsd"
    decay: Annotated[float, Field(gt=0, le=1)] = 0.2  # fraction of the steps


LayerDecay: TypeAlias = Annotated[float, Field(gt=0, le=1)]
"""The rate of a layer is that of the layer above times this; 1: all layers have the same rate."""


class Adam(Base):
    """Adam, with the constants of "Attention is all you need"."""

    kind: Literal["adam"] = "adam"
    betas: tuple[Share, Share] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-9
    decay: Annotated[float, Field(ge=0)] = 0.0
    layer_decay: LayerDecay = 1.0


class AdamW(Base):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"] = "adamw"
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    decay: Annotated[float, Field(ge=0)] = 0.01
    layer_decay: LayerDecay = 1.0


Schedule: TypeAlias = Annotated[Noam | Cosine | Linear | Constant | WarmupStableDecay, Field(discriminator="kind")]
Optimizer: TypeAlias = Annotated[Adam | AdamW, Field(discriminator="kind")]


class Train(Base):
    """Settings of the training loop."""

    steps: Count = 0  # steps, epochs, minutes: the first reached ends the training; one given replaces a recipe's
    epochs: Count = 0
    minutes: Annotated[float, Field(ge=0)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    lr: Annotated[float, Field(gt=0)] = 5e-4  # the peak
    warmup: Count = 400
    schedule: Schedule = Noam()
    optimizer: Optimizer = Adam()
    tokens: Positive = 4096  # tokens per step over all micro-batches, without padding
    batch: Count = 0  # examples (windows of long sentences) per step; if not 0, overrides tokens
    accumulate: Positive = 1  # micro-batches per step
    precision: Literal["fp32", "bf16"] = "fp32"
    clip: Annotated[float, Field(ge=0)] = 1.0  # gradient norm; 0: off
    smoothing: Share = 0.1
    average: Count = 0  # average of the last checkpoints, tried at the end; 0: off
    ema: Share = 0.0  # decay of a moving average of the weights, which is evaluated and saved; 0: off
    compile: bool = False
    deterministic: bool = False
    save_every: Positive = 500
    keep: Positive = 3
    eval_every: Positive = 500
    metric: str = "loss"  # chooses the best weights; one of the metrics of the task
    patience: Count = 0  # evaluations without improvement before stopping; 0: never stop early
    log_every: Positive = 20
    tensorboard: bool = True
    freeze: Strings = ()  # patterns of parameters that are not trained, such as encoder.layers.0.*
    rates: Strings = ()  # factors of the learning rate, such as encoder.*:0.1
    own_loss: str = ""  # the name of the Python function that computes the loss; regard.train(loss=…) sets it
    own_metrics: Strings = ()  # names of metrics that Python functions compute; -name: lower is better

    @model_validator(mode="after")
    def _check_schedule(self) -> "Train":
        if self.schedule.kind in ("cosine", "linear", "wsd") and not (self.steps or self.epochs or self.minutes):
            raise ValueError(
                f"train.schedule={self.schedule.kind} decays until the training ends, which it does not; set "
                "train.steps, train.epochs or train.minutes, or use noam or constant"
            )
        return self


class TextEval(Base):
    """Metrics of tasks that write text. `auto` chooses by the script of the references."""

    tokenize: Literal[
        "auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "spm", "flores101", "flores200"
    ] = "auto"  # of BLEU, by sacrebleu
    asian_support: Literal["auto", "on", "off"] = "auto"  # TER splits Chinese and Japanese into characters
