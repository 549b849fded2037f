"""Settings: TOML recipes and key=value overrides become validated, frozen models; every mistake is reported at once."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from .errors import Mistake
from .settings import Draft, flat, one_of, settings_of, shown, split, to_toml, with_kind


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


def _words(value: Any) -> Any:
    value = split(value) if isinstance(value, str) else value
    if not isinstance(value, list | tuple):
        return value
    return tuple(str(each) if isinstance(each, int) else each for each in value)


def _sides(value: Any) -> Any:
    value = split(value) if isinstance(value, str) else value
    if not isinstance(value, list | tuple):
        return value
    return tuple((str(each),) if isinstance(each, str | PathLike) else each for each in value)


Words: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_words)]
Sides: TypeAlias = Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_sides)]
"""The sides of an example, each a tuple of file patterns."""

Count: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


class Data(Base):
    train: Sides = ()  # nothing: the embedded data
    valid: Sides = ()
    test: Sides = ()
    format: Literal["auto", "text", "tsv", "jsonl"] = "auto"
    columns: Words = ()  # TSV column numbers from 1, or field names
    invalid: Literal["refuse", "skip"] = "refuse"
    max_tokens: Positive = 256  # longest side of an example
    workers: Count = 0  # threads reading ahead
    packed: bool = False
    locales: Annotated[tuple[str, str], BeforeValidator(_words)] = ("en", "de")  # of the embedded data
    examples: Positive = 20000  # embedded training pairs


class Tokenizer(Base):
    kind: Literal["bpe", "unigram", "word", "char", "byte"] = "bpe"
    vocab: Annotated[int, Field(ge=5)] = 8000  # four control symbols and at least one piece
    joint: bool = True
    normalise: Literal["none", "nfc", "nfkc", "lower", "nfkc+lower"] = "none"
    symbols: Words = ()  # kept whole


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


class Stable(Base):
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


Schedule: TypeAlias = Annotated[Noam | Cosine | Linear | Constant | Stable, Field(discriminator="kind")]
Optimiser: TypeAlias = Annotated[Adam | AdamW, Field(discriminator="kind")]


class Train(Base):
    steps: Count = 0  # steps, epochs, minutes: the first that is reached ends the training, 0 is no limit
    epochs: Count = 0
    minutes: Annotated[float, Field(ge=0)] = 0.0
    seed: Count = 1
    lr: Annotated[float, Field(gt=0)] = 5e-4  # the peak
    warmup: Count = 400
    schedule: Schedule = Noam()
    optimiser: Optimiser = Adam()
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
    metric: Literal["loss", "bleu", "chrf", "exact"] = "loss"
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


class Decode(Base):
    kind: Literal["greedy", "beam", "sample"] = "beam"
    beam: Positive = 5
    length_penalty: float = 1.0
    nbest: Positive = 1  # of sampling: how many samples
    max_tokens: Count = 0  # 0: by each row's source length
    stop: Literal["exact", "first", "heuristic"] = "exact"
    temperature: float = 1.0  # temperature, top_k, top_p and seed are of sampling
    top_k: Count = 0  # 0: all
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Count = 1
    prefix: str = ""  # how every output begins
    must: Words = ()  # phrases that every output says
    avoid: Words = ()  # phrases that none says
    split: bool = False  # translate sentence by sentence
    batch: Positive = 64  # sentences at once

    @field_validator("temperature")
    @classmethod
    def _warm(cls, value: float) -> float:
        if value <= 0:
            raise ValueError(
                f"decode.temperature is {value:g}; expected more than 0 (decode.kind=greedy takes the likeliest)"
            )
        return value

    @field_validator("must", "avoid")
    @classmethod
    def _said(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(phrase.strip() for phrase in value):
            raise ValueError("a phrase of it is empty; expected words, with a comma between phrases")
        return value

    @model_validator(mode="after")
    def _enough(self) -> "Decode":
        if self.kind == "greedy" and self.nbest > 1:
            raise ValueError(f"decode.nbest is {self.nbest} and greedy search finds one; use decode.kind=beam")
        if self.kind == "beam" and self.nbest > self.beam:
            raise ValueError(f"decode.nbest is {self.nbest}, above decode.beam={self.beam}; raise the beam")
        if self.split and self.nbest > 1:
            raise ValueError(f"decode.nbest is {self.nbest} and decode.split joins one translation per sentence; use 1")
        return self

    @model_validator(mode="after")
    def _of_this_kind(self) -> "Decode":
        for name, none in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0)):
            value = getattr(self, name)
            if self.kind != "sample" and value != none:
                raise ValueError(
                    f"decode.{name} is {value:g} and decode.kind={self.kind} draws nothing; use decode.kind=sample"
                )
        if self.must and self.kind != "beam":
            raise ValueError(f"decode.must needs a beam and decode.kind is {self.kind}; use decode.kind=beam")
        if self.must and self.split:
            raise ValueError("decode.must cannot say which sentence of decode.split is meant; use one of the two")
        return self


class Run(Base):
    """Everything that defines a run."""

    task: Literal["translate"]
    model: Any  # the Config of a family
    data: Data = Data()
    tokenizer: Tokenizer = Tokenizer()
    train: Train = Train()
    decode: Decode = Decode()
    device: str = "auto"
    precision: Literal["fp32", "bf16", "int8"] = "fp32"  # of a finished model, when it is used

    @field_validator("model", mode="before")
    @classmethod
    def _of_family(cls, value: Any) -> Any:
        if isinstance(value, Base):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"model is {shown(value)}; expected a group of settings with model.family")
        return family_of(value.get("family")).Config.model_validate(value)

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
            raise ValueError(f"device is {value!r}; expected auto, cpu, cuda, cuda:1 (a number) or mps")
        return value

    def dump(self) -> dict[str, Any]:
        """Plain values, ready for JSON; `read` takes them back."""
        return self.model_dump(mode="json")


def family_of(name: Any) -> Any:
    """The module of a family, which holds its Config and SIZES."""
    from .families import FAMILIES, family

    if name is None:
        raise ValueError(f"model.family is missing; {one_of(name, list(FAMILIES))}")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(f"model.family is {shown(name)}; {one_of(name, list(FAMILIES))}")
    return family(name)


@dataclass(frozen=True)
class Resolved:
    """A run and, for every dotted key, where its value came from."""

    run: Run
    origin: dict[str, str]

    def show(self) -> str:
        """TOML lines with the origin behind each; saved to a file they are a recipe of the same run."""
        lines = {key: f"{key} = {to_toml(value)}" for key, value in flat(self.run.dump()) if value is not None}
        widest = max(len(line) for line in lines.values() if len(line) < 60)
        return "\n".join(f"{line:<{widest}}  # {self.origin[key]}" for key, line in lines.items())


def resolve(recipe: str, overrides: Mapping[str, Any] | None = None, where: str = "command line") -> Resolved:
    """The run that a recipe (a packaged name or the path of a .toml file) and overrides (dotted or nested) define."""
    from .recipes import layers

    return _settled([*layers(recipe), (where, overrides or {})], fresh=True)


def read(values: Mapping[str, Any], where: str = "run.json") -> Run:
    """The run that `Run.dump` wrote."""
    return _settled([(where, values)], fresh=False).run


USE = ("decode", "data", "device", "precision")  # what can be set for a finished model


def change(run: Run, overrides: Mapping[str, Any], only: tuple[str, ...] = USE) -> Run:
    """The run with other settings; keys outside the groups `only` are refused, for they would have no effect."""
    for key, _ in flat(overrides):
        group = key.partition(".")[0]
        if group not in only and group in Run.model_fields:
            raise Mistake(f"{key} has no effect on a finished run; what can be set here: {', '.join(only)}")
    return _settled([("run.json", run.dump()), ("command line", overrides)], fresh=False).run


def sides(text: str) -> tuple[tuple[str, ...], ...]:
    """`a,b` as the sides of an example, read as `data.test=a,b` would be."""
    try:
        return Data.model_validate({"test": text}).test
    except ValidationError as error:
        raise Mistake(f"{error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def difference(old: Run, new: Run) -> list[str]:
    """The dotted keys whose values differ."""
    before, after = dict(flat(old.dump())), dict(flat(new.dump()))
    absent = object()
    return [key for key in {**before, **after} if before.get(key, absent) != after.get(key, absent)]


def _settled(layers: list[tuple[str, Mapping[str, Any]]], fresh: bool) -> Resolved:
    """Lay the layers over one another, the lowest first. In a fresh run a model's size stands for what it names."""
    chosen = [value for _, values in layers for key, value in flat(values) if key == "model.family"]
    try:
        module = family_of(chosen[-1] if chosen else None)
    except ValueError as error:
        return _without_family(layers, str(error))
    draft = Draft(Run, {"model": module.Config})
    if fresh:
        _lay_size(draft, module, settings_of(module.Config)["size"].default)
    for where, values in layers:
        for key, value in flat(values):
            if fresh and key == "model.size":
                _lay_size(draft, module, value)
        draft.lay(where, values)
    if fresh and not any(draft.values.get(f"train.{limit}") for limit in ("steps", "epochs", "minutes")):
        draft.mistakes.append("nothing says when the training ends; set train.steps, train.epochs or train.minutes")
    return _validated(draft)


def _lay_size(draft: Draft, module: Any, size: Any) -> None:
    """What a size names lies over all earlier layers and below the keys of the layer that chose it."""
    if not isinstance(size, str) or size not in module.SIZES:
        draft.mistakes.append(f"model.size is {shown(size)}; {one_of(size, list(module.SIZES))}")
        return
    for key in [key for key, origin in draft.origin.items() if origin.startswith("size ")]:
        del draft.values[key], draft.origin[key]
    draft.lay(f"size {size}", {"model": module.SIZES[size]})


def _without_family(layers: list[tuple[str, Mapping[str, Any]]], mistake: str) -> Resolved:
    """Tell the other mistakes too, but for the model's, which only a family could find."""
    draft = Draft(Run, {})
    draft.mistakes.append(mistake)
    for where, values in layers:
        draft.lay(where, {key: value for key, value in flat(values) if not key.startswith("model.")})
    draft.values["model"] = Base()
    return _validated(draft)


def _validated(draft: Draft) -> Resolved:
    try:
        run = Run.model_validate(draft.settle())
    except ValidationError as error:
        draft.explain(error)
        draft.refuse()
        raise
    draft.refuse()
    return Resolved(run, {key: draft.origin.get(key, "default") for key, _ in flat(run.dump())})
