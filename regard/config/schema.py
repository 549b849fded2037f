"""The sections of a run: what can be set of data, tokenizer, training and decoding, and which of them a task has."""

from collections.abc import Mapping
from os import PathLike
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from .merge import settings_of, split_commas, with_kind


class Base(BaseModel):
    """A group of settings. A union of groups told apart by `kind` is a slot: a plain string there means its kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _fill_kinds(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        known = settings_of(cls)
        return {name: with_kind(value, known[name]) if name in known else value for name, value in values.items()}


def _strings(value: Any) -> Any:
    value = split_commas(value) if isinstance(value, str) else value
    if not isinstance(value, list | tuple):
        return value
    return tuple(str(each) if isinstance(each, int) else each for each in value)


def _sides(value: Any) -> Any:
    value = split_commas(value) if isinstance(value, str) else value
    if not isinstance(value, list | tuple):
        return value
    return tuple((str(each),) if isinstance(each, str | PathLike) else each for each in value)


Strings: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_strings)]
Sides: TypeAlias = Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_sides)]
"""The sides of an example, each a tuple of file patterns."""

Count: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class Data(Base):
    """What every task can be told of its files."""

    train: Sides = ()  # nothing: the embedded data
    valid: Sides = ()
    test: Sides = ()
    invalid: Literal["refuse", "skip"] = "refuse"
    max_tokens: Positive = 256  # longest side of an example
    workers: Count = 0  # threads reading ahead


class PackedData(Data):
    """Of tasks with two sides."""

    packed: bool = False  # several examples share a row instead of padding


class PairData(PackedData):
    format: Literal["auto", "text", "tsv", "jsonl"] = "auto"
    columns: Strings = ()  # TSV column numbers from 1, or field names
    locales: Annotated[tuple[str, str], BeforeValidator(_strings)] = ("en", "de")  # of the embedded data
    examples: Positive = 20000  # embedded training pairs


class MixData(PackedData):
    """Several tasks at once: data.train=a.tsv,b.tsv names a file of pairs for each."""

    format: Literal["auto", "tsv", "jsonl"] = "auto"
    columns: Strings = ()  # as in PairData
    prefixes: Strings = ()  # what each task's sources begin with, such as "translate: ,summarise: "
    weights: tuple[Annotated[float, Field(gt=0)], ...] = ()  # how often each is drawn; nothing: as many as there are
    locales: Strings = ("en", "de", "fr")  # of the embedded data: from the first to each of the others
    examples: Positive = 20000  # embedded training pairs, over all tasks


class SpanData(PackedData):
    """Lines of text. Of those that are too long, every epoch reads a window."""

    masked: Annotated[float, Field(gt=0, lt=1)] = 0.15  # share of the pieces that are left out
    span: Annotated[float, Field(ge=1)] = 3.0  # pieces of a span, in the mean
    sentinels: Annotated[int, Field(ge=2)] = 100  # of a tokenizer that is learnt
    locales: Strings = ()  # of the embedded data, as in classify
    examples: Positive = 20000  # embedded training lines


class LabelData(Data):
    """Texts with a label each. Longer ones than max_tokens, or than the model has positions, are cut."""

    format: Literal["auto", "tsv", "csv", "jsonl"] = "auto"
    columns: Strings = ()  # text and label by number or name; or these two words in the order of the columns
    embedded: Literal["language_id", "matching"] = (
        "language_id"  # dates in many languages; two marks far apart in a long text
    )
    locales: Strings = ()  # of the embedded phrases; nothing: all of data.phrases.LOCALES
    examples: Positive = 20000  # embedded training texts
    token_masking: Share = (
        0.0  # of the pieces of a text, so many stand behind <mask> in training, others in every epoch
    )
    rdrop: Annotated[float, Field(ge=0)] = 0.0  # R-Drop (2106.14448): texts are read twice, answers apart cost so much


class TagData(Data):
    """Sentences with a tag for each word. Longer ones are read in windows that overlap."""

    format: Literal["auto", "conllu", "columns", "jsonl", "text"] = "auto"  # text has no tags: only to predict
    column: str = ""  # of the tags: a name of CoNLL-U, a number from 1, a field; else upos, the last one, tags
    overlap: Count = 32  # tokens that neighbouring windows share
    examples: Positive = 4000  # embedded training sentences


class MaskData(Data):
    """Lines of text. Of those that are too long, every epoch reads a window."""

    masked: Annotated[float, Field(gt=0, lt=1)] = 0.15  # share of the pieces that are to be guessed
    whole_words: bool = False  # all pieces of a word are masked together
    next_sentence: bool = False  # lines come in pairs: does the second follow the first? A blank line ends a document
    locales: Strings = ()  # of the embedded data, as in classify
    examples: Positive = 20000  # embedded training lines


class TextData(Data):
    """Running text, for language models."""

    max_tokens: Positive = 256  # of a window, in training and in evaluation
    format: Literal["auto", "text", "jsonl"] = "auto"
    document: Literal["file", "line", "blank", "stream"] = "file"  # blank: up to an empty line; stream: see corpus.py
    holdout: Share = 0.0  # of data.train, from its end, is the valid part if data.valid names none
    stride: Count = 0  # of evaluation: tokens from window to window; 0: windows do not overlap
    cache: str = ""  # folder of encoded texts; nothing: the user's own
    verify: bool = False  # compare all of a file with what was encoded, not only its size, time and samples

    @model_validator(mode="after")
    def _covering(self) -> "TextData":
        if self.stride > self.max_tokens:
            raise ValueError(
                f"data.stride is {self.stride}, above data.max_tokens={self.max_tokens}, and would pass over tokens; "
                "use less, or 0 for windows that do not overlap"
            )
        return self


class TokenizerConfig(Base):
    kind: Literal["bpe", "unigram", "wordpiece", "word", "space", "char", "byte"] = "bpe"
    vocab: Annotated[int, Field(ge=5)] = 8000  # four control symbols and at least one piece
    joint: bool = True
    normalize: Literal["none", "nfc", "nfkc", "lower", "nfkc+lower"] = "none"
    symbols: Strings = ()  # kept whole


class Noam(Base):
    kind: Literal["noam"] = "noam"


class Cosine(Base):
    kind: Literal["cosine"] = "cosine"
    floor: Share = 0.0  # of the peak


class Linear(Base):
    kind: Literal["linear"] = "linear"
    floor: Share = 0.0  # of the peak


class Constant(Base):
    kind: Literal["constant"] = "constant"


class WarmupStableDecay(Base):
    """Warm-up, stable, decay."""

    kind: Literal["wsd"] = "wsd"
    decay: Annotated[float, Field(gt=0, le=1)] = 0.2  # share of the steps


class Adam(Base):
    kind: Literal["adam"] = "adam"
    betas: tuple[Share, Share] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-9
    decay: Annotated[float, Field(ge=0)] = 0.0


class AdamW(Base):
    kind: Literal["adamw"] = "adamw"
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    decay: Annotated[float, Field(ge=0)] = 0.01


Schedule: TypeAlias = Annotated[Noam | Cosine | Linear | Constant | WarmupStableDecay, Field(discriminator="kind")]
Optimizer: TypeAlias = Annotated[Adam | AdamW, Field(discriminator="kind")]


class Untuned(Base):
    """Everything is trained."""

    kind: Literal["none"] = "none"


class Lora(Base):
    """A path of low rank beside linear maps."""

    kind: Literal["lora"] = "lora"
    rank: Positive = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0  # the path counts alpha / rank
    dropout: Share = 0.0  # of what the path reads
    pattern: str = r"\.(query|value)$"  # a regular expression that is looked for in the names of linear maps


class Adapter(Base):
    """A narrow network behind parts of every layer."""

    kind: Literal["adapter"] = "adapter"
    bottleneck: Positive = 64
    after: Literal["both", "attention", "feed"] = "both"


class Prompt(Base):
    """Vectors before the first token."""

    kind: Literal["prompt"] = "prompt"
    length: Positive = 20
    words: str = ""  # that they begin as, over and over; nothing: any tokens of the vocabulary


class Prefix(Base):
    """Keys and values before those of the first token, in every layer."""

    kind: Literal["prefix"] = "prefix"
    length: Positive = 20
    words: str = ""  # whose keys and values they begin as, over and over; nothing: those of any tokens


Tune: TypeAlias = Annotated[Untuned | Lora | Adapter | Prompt | Prefix, Field(discriminator="kind")]


class Train(Base):
    steps: Count = 0  # steps, epochs, minutes: the first that is reached ends the training, 0 is no limit
    epochs: Count = 0
    minutes: Annotated[float, Field(ge=0)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    lr: Annotated[float, Field(gt=0)] = 5e-4  # the peak
    warmup: Count = 400
    schedule: Schedule = Noam()
    optimizer: Optimizer = Adam()
    tokens: Positive = 4096  # of one update, over all its pieces, padding not counted
    batch: Count = 0  # items of one update; overrides tokens
    accumulate: Positive = 1
    precision: Literal["fp32", "bf16"] = "fp32"
    clip: Annotated[float, Field(ge=0)] = 1.0  # 0: off
    smoothing: Share = 0.1
    average: Count = 0  # last checkpoints whose mean is tried at the end; 0: none
    ema: Share = 0.0  # decay of a moving average of the weights, which is then evaluated and kept; 0: none
    compile: bool = False
    deterministic: bool = False
    save_every: Positive = 500
    keep: Positive = 3
    eval_every: Positive = 500
    metric: str = "loss"  # one of the task's
    patience: Count = 0  # evaluations without a better one; 0: never stop early
    log_every: Positive = 20
    tensorboard: bool = True

    @model_validator(mode="after")
    def _scheduled(self) -> "Train":
        if self.schedule.kind in ("cosine", "linear", "wsd") and self.steps == 0:
            raise ValueError(
                f"train.schedule={self.schedule.kind} falls towards the last update and train.steps is 0; "
                "set train.steps (train.epochs and train.minutes may end it sooner), or use noam or constant"
            )
        return self


class DecodeBase(Base):
    """What every task that writes text can be told of how it chooses its tokens."""

    kind: Literal["greedy", "beam", "sample"] = "beam"
    beam: Positive = 5
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0  # length^this has to stay a number
    nbest: Positive = 1  # of sampling: how many samples
    max_tokens: Count = 0
    early_stopping: Literal["exact", "first", "heuristic"] = "exact"
    temperature: float = 1.0  # temperature, top_k, top_p, min_p and seed are of sampling
    top_k: Count = 0  # 0: all
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Share = 0.0  # of the likeliest one's probability
    seed: Count = 1
    batch: Positive = 64  # texts at once

    @field_validator("temperature")
    @classmethod
    def _warm(cls, value: float) -> float:
        if value <= 0:
            raise ValueError(
                f"decode.temperature is {value:g}; expected more than 0 (decode.kind=greedy takes the likeliest)"
            )
        return value

    @model_validator(mode="after")
    def _enough(self) -> "DecodeBase":
        if self.kind == "greedy" and self.nbest > 1:
            raise ValueError(
                f"decode.nbest is {self.nbest} and greedy search finds one; use decode.kind=beam or sample"
            )
        if self.kind == "beam" and self.nbest > self.beam:
            raise ValueError(f"decode.nbest is {self.nbest}, above decode.beam={self.beam}; raise the beam")
        return self


NEUTRAL_SAMPLING = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
}  # of sampling: the values that shape nothing


class Seq2SeqDecode(DecodeBase):
    """Of translation. max_tokens 0: by each row's source length."""

    prefix: str = ""  # how every output begins
    include: Strings = ()  # phrases that every output says
    exclude: Strings = ()  # phrases that none says
    split: bool = False  # translate sentence by sentence

    @field_validator("include", "exclude")
    @classmethod
    def _said(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(phrase.strip() for phrase in value):
            raise ValueError("a phrase of it is empty; expected words, with a comma between phrases")
        return value

    @model_validator(mode="after")
    def _of_this_kind(self) -> "Seq2SeqDecode":
        for name, none in NEUTRAL_SAMPLING.items():
            value = getattr(self, name)
            if self.kind != "sample" and value != none:
                raise ValueError(
                    f"decode.{name} is {value:g} and decode.kind={self.kind} draws nothing; use decode.kind=sample"
                )
        if self.split and self.nbest > 1:
            raise ValueError(f"decode.nbest is {self.nbest} and decode.split joins one translation per sentence; use 1")
        if self.include and self.kind != "beam":
            raise ValueError(f"decode.include needs a beam and decode.kind is {self.kind}; use decode.kind=beam")
        if self.include and self.split:
            raise ValueError("decode.include cannot say which sentence of decode.split is meant; use one of the two")
        return self


class EncoderDecode(Base):
    """Of tasks whose model only reads."""

    top: Count = 0  # likeliest answers that are told with their probabilities; 0: the best one alone
    pooling: Literal["mean", "first", "max"] = "mean"  # of embeddings: over all tokens, or the first one's
    normalize: bool = True  # embeddings have length 1
    batch: Positive = 64  # texts at once


class LanguageDecode(DecodeBase):
    """Of language models. What is of sampling stays as it is while another kind is used: greedy passes over it."""

    kind: Literal["greedy", "beam", "sample"] = "sample"
    max_tokens: Positive = 256  # that a prompt is continued by, END counted
    repetition_penalty: Annotated[float, Field(gt=0)] = 1.0  # above 1: what prompt or text have said becomes unlikelier
    stop: Strings = ()  # strings: the text ends before the first of them
    add_start: bool = True  # START goes before a prompt: a text begins with it; false: it comes from the middle of one

    @field_validator("stop")
    @classmethod
    def _something(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(value):
            raise ValueError('decode.stop has an empty string; expected some text, such as ["\\n"]')
        return value


class TaskSchema(NamedTuple):
    """What a task is set up by, and the figures on valid data among which train.metric chooses."""

    data: type[Data]
    decode: type[Base]
    metrics: tuple[str, ...]


TASKS = {
    "language": TaskSchema(TextData, LanguageDecode, ("loss", "perplexity", "bits_per_byte", "word_perplexity")),
    "translate": TaskSchema(PairData, Seq2SeqDecode, ("loss", "perplexity", "bleu", "chrf", "exact")),
    "classify": TaskSchema(LabelData, EncoderDecode, ("loss", "accuracy", "f1")),
    "tag": TaskSchema(TagData, EncoderDecode, ("loss", "accuracy", "f1", "spans")),
    "masked": TaskSchema(MaskData, EncoderDecode, ("loss", "perplexity", "accuracy")),
    "text2text": TaskSchema(MixData, Seq2SeqDecode, ("loss", "perplexity", "bleu", "chrf", "exact")),
    "spans": TaskSchema(SpanData, Seq2SeqDecode, ("loss", "perplexity")),
}
