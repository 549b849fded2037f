"""Settings: TOML recipes and key=value overrides become validated, frozen models; every mistake is reported at once."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from .. import pretrained
from ..errors import UserError
from .merge import SettingsDraft, flat, one_of, settings_of, shown, to_toml
from .schema import TASKS, Base, Data, Optimizer, Schedule, Seq2SeqDecode, Sides, TokenizerConfig, Train, Tune, Untuned

__all__ = [
    "Base",
    "Data",
    "Seq2SeqDecode",
    "Optimizer",
    "Run",
    "Schedule",
    "Sides",
    "TokenizerConfig",
    "Train",
]  # and what is below


class Run(Base):
    """Everything that defines a run."""

    task: str
    start: str = ""  # a run or a Hugging Face folder whose model, tokenizer and weights it begins with
    tune: Tune = Untuned()  # train and keep only small parts of what it begins with
    model: Any  # the Config of a family
    data: Any = Field(default_factory=dict, validate_default=True)  # data and decode: the sections of the task
    tokenizer: TokenizerConfig = TokenizerConfig()
    train: Train = Train()
    decode: Any = Field(default_factory=dict, validate_default=True)
    device: str = "auto"
    precision: Literal["fp32", "bf16", "int8"] = "fp32"  # of a finished model, when it is used

    @field_validator("task")
    @classmethod
    def _known_task(cls, value: str) -> str:
        if value not in TASKS:
            raise ValueError(f"task is {shown(value)}; {one_of(value, list(TASKS))}")
        return value

    @field_validator("data", "decode", mode="before")
    @classmethod
    def _of_task(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Base) or "task" not in info.data:
            return value
        section: type[Base] = getattr(TASKS[info.data["task"]], str(info.field_name))
        return section.model_validate(value)

    @model_validator(mode="after")
    def _measured(self) -> "Run":
        if self.train.metric not in (metrics := TASKS[self.task].metrics):
            raise ValueError(f"train.metric is {shown(self.train.metric)}; {one_of(self.train.metric, list(metrics))}")
        return self

    @model_validator(mode="after")
    def _something_to_tune(self) -> "Run":
        if self.tune.kind != "none" and not self.start:
            raise ValueError(
                f"tune.kind is {self.tune.kind} and nothing is there to tune; name a run or folder as start"
            )
        return self

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
    from ..families import FAMILIES, family

    if name is None:
        raise ValueError(f"model.family is missing; {one_of(name, list(FAMILIES))}")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(f"model.family is {shown(name)}; {one_of(name, list(FAMILIES))}")
    return family(name)


@dataclass(frozen=True)
class ResolvedRun:
    """A run and, for every dotted key, where its value came from."""

    run: Run
    origin: dict[str, str]

    def show(self) -> str:
        """TOML lines with the origin behind each; saved to a file they are a recipe of the same run."""
        lines = {key: f"{key} = {to_toml(value)}" for key, value in flat(self.run.dump()) if value is not None}
        widest = max(len(line) for line in lines.values() if len(line) < 60)
        return "\n".join(f"{line:<{widest}}  # {self.origin[key]}" for key, line in lines.items())


def resolve(recipe: str, overrides: Mapping[str, Any] | None = None, where: str = "command line") -> ResolvedRun:
    """The run that a recipe (a packaged name or the path of a .toml file) and overrides (dotted or nested) define."""
    from ..recipes import layers

    return _settled([*layers(recipe), (where, overrides or {})], fresh=True)


def load_config(values: Mapping[str, Any], where: str = "run.json") -> Run:
    """The run that `Run.dump` wrote."""
    return _settled([(where, values)], fresh=False).run


USE = ("decode", "data", "device", "precision")  # what can be set for a finished model


def change_settings(run: Run, overrides: Mapping[str, Any], only: tuple[str, ...] = USE) -> Run:
    """The run with other settings; keys outside the groups `only` are refused, for they would have no effect."""
    for key, _ in flat(overrides):
        group = key.partition(".")[0]
        if group not in only and group in Run.model_fields:
            raise UserError(f"{key} has no effect on a finished run; what can be set here: {', '.join(only)}")
    return _settled([("run.json", run.dump()), ("command line", overrides)], fresh=False).run


def sides(text: str) -> tuple[tuple[str, ...], ...]:
    """`a,b` as the sides of an example, read as `data.test=a,b` would be."""
    try:
        found = Data.model_validate({"test": text}).test
    except ValidationError as error:
        raise UserError(f"{error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    if not found:
        raise UserError("--data names no file; give some, as in test.en,test.de, or leave it out for the run's own")
    return found


def changed_keys(old: Run, new: Run) -> list[str]:
    """The dotted keys whose values differ."""
    before, after = dict(flat(old.dump())), dict(flat(new.dump()))
    absent = object()
    return [key for key in {**before, **after} if before.get(key, absent) != after.get(key, absent)]


def _settled(layers: list[tuple[str, Mapping[str, Any]]], fresh: bool) -> ResolvedRun:
    """Lay the layers over one another, the lowest first. In a fresh run a model's size stands for what it names."""
    chosen = [value for _, values in layers for key, value in flat(values) if key == "model.family"]
    try:
        module = family_of(chosen[-1] if chosen else None)
    except ValueError as error:
        return _without_family(layers, str(error))
    draft = SettingsDraft(Run, {"model": module.Config} | _sections(layers))
    started = [value for _, values in layers for key, value in flat(values) if key == "start"]
    start = started[-1] if fresh and started else ""
    layers = _of_one_family(layers)
    if fresh:
        _lay_size(draft, module, settings_of(module.Config)["size"].default)
    for where, values in layers:
        if start and where == layers[-1][0]:
            _lay_start(draft, start, chosen[-1], values)
        for key, value in flat(values):
            if fresh and key == "model.size" and not (start and where == layers[-1][0]):
                _lay_size(draft, module, value)
        draft.lay(where, values)
    if start:
        pretrained.refuse_tokenizer(draft, start)
    if fresh and not any(draft.values.get(f"train.{limit}") for limit in ("steps", "epochs", "minutes")):
        draft.mistakes.append("nothing says when the training ends; set train.steps, train.epochs or train.minutes")
    return _validated(draft)


def _of_one_family(layers: list[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, Mapping[str, Any]]]:
    """A layer that chooses another family sweeps away what lower layers say of the model, as a slot's kind does."""
    kept: list[tuple[str, Mapping[str, Any]]] = []
    family = None
    for where, values in layers:
        own = dict(flat(values)).get("model.family", family)
        if own != family:
            kept = [(w, {key: value for key, value in flat(v) if not key.startswith("model.")}) for w, v in kept]
        kept, family = [*kept, (where, values)], own
    return kept


def _sections(layers: list[tuple[str, Mapping[str, Any]]]) -> dict[str, type]:
    """The sections of the task; of an unknown one those of any, so that other mistakes can be told too."""
    chosen = [value for _, values in layers for key, value in flat(values) if key == "task"]
    known = TASKS.get(chosen[-1]) if chosen and isinstance(chosen[-1], str) else None
    sections = known or TASKS["translate"]
    return {"data": sections.data, "decode": sections.decode}


def _lay_size(draft: SettingsDraft, module: Any, size: Any) -> None:
    """What a size names lies over all earlier layers and below the keys of the layer that chose it."""
    if not isinstance(size, str) or size not in module.SIZES:
        draft.mistakes.append(f"model.size is {shown(size)}; {one_of(size, list(module.SIZES))}")
        return
    for key in [key for key, origin in draft.origin.items() if origin.startswith("size ")]:
        del draft.values[key], draft.origin[key]
    draft.lay(f"size {size}", {"model": module.SIZES[size]})


def _lay_start(draft: SettingsDraft, start: Any, family: str, last: Mapping[str, Any]) -> None:
    """What the run begins with lies over the recipe and below the command line."""
    if not isinstance(start, str):
        raise UserError(f"start is {shown(start)}; expected the path of a run or of a Hugging Face folder")
    if "model.size" in dict(flat(last)):
        draft.mistakes.append(f"model.size is given beside start={start}, which brings its size along; leave it out")
    pretrained.lay(draft, start, family)


def _without_family(layers: list[tuple[str, Mapping[str, Any]]], mistake: str) -> ResolvedRun:
    """Tell the other mistakes too, but for the model's, which only a family could find."""
    draft = SettingsDraft(Run, _sections(layers))
    draft.mistakes.append(mistake)
    for where, values in layers:
        draft.lay(where, {key: value for key, value in flat(values) if not key.startswith("model.")})
    draft.values["model"] = Base()
    return _validated(draft)


def _validated(draft: SettingsDraft) -> ResolvedRun:
    try:
        run = Run.model_validate(draft.settle())
    except ValidationError as error:
        draft.explain(error)
        draft.refuse()
        raise
    draft.refuse()
    return ResolvedRun(run, {key: draft.origin.get(key, "default") for key, _ in flat(run.dump())})
