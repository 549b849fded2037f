"""Runs: merge recipes, sizes, `start` and overrides into one validated, frozen `Run`; report all errors at once."""

import json
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, cast

from pydantic import (
    Field,
    SerializeAsAny,
    SkipValidation,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from typing_extensions import TypeVar

from ..errors import UserError
from ..files import JsonObject
from ..html import html_table
from .data.base import Data
from .data.texts import TokenizerConfig
from .family import FamilySettings, family_of
from .merge import (
    Settings,
    SettingsDraft,
    TypeHint,
    flatten,
    format_value,
    one_of,
    origin_note,
    parse_value,
    plain_types,
    settings_of,
)
from .registry import FAMILIES, TASKS
from .renamed import moved_key
from .task_settings import metrics_of, section_types, task_settings
from .train import L, ObjectiveValues, Train
from .tuning import Tune, Untuned
from .types import Base, Strings, Threads

Layer: TypeAlias = tuple[str, Settings]  # where the settings come from, and the settings
ReadStart: TypeAlias = Callable[[str], Settings]  # the folder `start` -> its settings by dotted key


D = TypeVar("D", bound=Data, default=Data, covariant=True)
X = TypeVar("X", bound=Base, default=Any, covariant=True)
M = TypeVar("M", bound=Base, default=Any, covariant=True)
RunType = TypeVar("RunType", bound="Run[Data, Any, Any, Any]")


def _section() -> Any:
    """A section whose type depends on the task and the family."""
    return Field(default_factory=dict, validate_default=True)


class Run(Base, Generic[D, X, M, L]):
    """All settings of a run. `Run[D, X, M, L]` tells type checkers the types of data, decode, model and objective."""

    task: str  # what a model learns; it decides what data.*, decode.* and eval.* have
    start: str = ""  # a run, a Hugging Face folder, a GGUF file or org/name: model, tokenizer, first weights
    tune: Tune = Untuned()  # train and store only small parts added to start; precision=int8 quantizes the frozen
    # weights
    model: SerializeAsAny[M]  # the Config of the family
    pruned_heads: Strings = ()  # attention heads that the model lacks, such as 3.2 or encoder.3.2; `regard prune` sets
    # them
    data: SerializeAsAny[D] = _section()  # data, tokenizer, decode, eval: the types depend on the task
    tokenizer: Annotated[TokenizerConfig, SkipValidation()] = _section()
    train: Train[L] = _section()
    decode: SerializeAsAny[X] = _section()
    eval: Any = _section()
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps; auto: the first CUDA device, or the CPU
    threads: Threads = 0  # of torch on the CPU, in each process; 0: torch's choice, one per core. The same number gives
    # the same bits; another one sums in another order
    precision: Literal["fp32", "bf16", "int8"] = "fp32"  # of inference; int8 is for the CPU; train.precision is that of
    # training

    @field_validator("task")
    @classmethod
    def _check_task(cls, value: str) -> str:
        if value not in TASKS:
            raise ValueError(f"task is {format_value(value)}; {one_of(value, list(TASKS))}")
        return value

    @field_validator("data", "tokenizer", "decode", "eval", mode="before")
    @classmethod
    def _task_section(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Base) or "task" not in info.data:
            return value
        return _types_of(info)[str(info.field_name)].model_validate(value)

    @field_validator("train", mode="before")
    @classmethod
    def _type_of_objective(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping | Base) or "task" not in info.data:
            return value
        settings = dict(value)
        objective = settings.get("objective", {})
        values = dict(objective) if isinstance(objective, Base) else objective
        return {**settings, "objective": ObjectiveValues(_types_of(info)["train.objective"], values)}

    @model_validator(mode="after")
    def _check_metric(self) -> Self:
        if self.train.metric not in (metrics := list(metrics_of(self.task, self.train))):
            raise ValueError(f"train.metric is {format_value(self.train.metric)}; {one_of(self.train.metric, metrics)}")
        return self

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if self.tune.kind != "none" and not self.start:
            raise ValueError(
                f"tune.kind is {self.tune.kind} but start is not set; set start to a run or a Hugging Face folder"
            )
        return self

    @field_validator("model", mode="before")
    @classmethod
    def _family_config(cls, value: Any) -> Any:
        if isinstance(value, Base):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"model is {format_value(value)}; expected a group of settings with model.family")
        return family_of(value.get("family")).Config.model_validate(value)

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
            raise ValueError(f"device is {value!r}; expected auto, cpu, cuda, cuda:1 (a number) or mps")
        return value

    def __repr__(self) -> str:
        model, train = (dict(section) for section in (self.model, self.train))
        name = f"{model['family']} {model.get('size', '')}".rstrip()
        ends = "".join(f", {limit}={train[limit]}" for limit in ("steps", "epochs", "minutes") if train[limit])
        data = format_value(self.data.train) if self.data.train else "embedded data"
        return f"<Run: {self.task} with {name}, {data}{ends}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_table("Run", dict(flatten(self.dump())))

    def dump(self) -> JsonObject:
        """Plain values for JSON; `load_config` reads them back."""
        return self.model_dump(mode="json")


AnyRun: TypeAlias = Run[Any, Any, Any, Any]
"""A run of which only the caller knows the task and the family."""


def _types_of(info: ValidationInfo) -> Mapping[str, type[Base]]:
    """The types of the sections, for the task and the family of the run that is validated."""
    return section_types(info.data["task"], getattr(info.data.get("model"), "family", None))


@dataclass(frozen=True)
class ResolvedRun:
    """A run and the origin of every setting by dotted key, such as "recipe translate" or "command line"."""

    run: AnyRun
    origin: dict[str, str]

    def _repr_html_(self) -> str:
        values = {key: f"{value}  ({self.origin[key]})" for key, value in flatten(self.run.dump()) if value is not None}
        return html_table("ResolvedRun", values)

    def show(self, all: bool = False) -> str:
        """TOML lines of the settings that differ from the defaults, with the origin of each as a comment; or of all.

        As a file they are a recipe of the same run.
        """
        from .show import show_settings

        return show_settings(self.run, self.origin, all)


def resolve_run(recipe: str, overrides: Settings | None = None, read_start: ReadStart | None = None) -> ResolvedRun:
    """The run that a recipe (a packaged name or a .toml file) and overrides (dotted or nested keys) define.

    `read_start` reads the settings of the folder that `start` names; without it `start` cannot be resolved.
    """
    from ..recipes import layers

    return _merge_layers([*layers(recipe), ("command line", overrides or {})], fresh=True, read_start=read_start)


def load_config(values: Settings, where: str = "run.json") -> AnyRun:
    """The run that `Run.dump` wrote. `where` names the file in error messages."""
    model = values.get("model")
    family = model.get("family") if isinstance(model, Mapping) else None
    for key, name, registry in (("task", values.get("task"), TASKS), ("model.family", family, FAMILIES)):
        if isinstance(name, str) and name not in registry:
            raise UserError(
                f"{where} has {key}={name}, which is not built in; install the plugin that defines it, or load its "
                "file with `regard --plugin FILE`"
            )
    return _merge_layers([(where, values)], fresh=False).run


def without_foreign(settings: Settings) -> tuple[JsonObject, dict[str, str]]:
    """Settings of an older run, by dotted key, under their current keys; and their former keys, by current key.

    Keys that their task, family or slots lack are left out: they never had an effect. A strategy that the family lacks
    was greedy.
    """
    try:
        draft = _draft([("run.json", settings)])
    except ValueError:  # a family or a task of a plugin that is missing
        return dict(settings), {key: key for key in settings}
    former = {current: key for key in settings if (current := draft.current_key(key)) in draft.leaves}
    values = {key: settings[old] for key, old in former.items()}
    if values.get(kind := "decode.strategy.kind") not in (kinds := _kinds(draft, "decode.strategy")):
        values[kind] = "greedy" if "greedy" in kinds else next(iter(kinds), None)
    draft.add_layer("run.json", values)
    draft.nested_values()
    kept = {key: value for key, value in values.items() if key in draft.values}
    return kept, {key: former[key] for key in kept if key in former}


def _kinds(draft: SettingsDraft, slot: str) -> list[str | None]:
    """The kinds that a slot may have; none if the settings have no such slot."""
    return list(draft.kinds(slot)) if slot in draft.groups else []


FAMILY_SECTIONS = ("data.", "decode.", "train.objective.")  # a family may have its own
TOTAL_LIMITS = {"decode.max_tokens": "decode.max_length", "decode.min_tokens": "decode.min_length"}
"""Limits of a continuation, each with the limit of prompt and continuation that it replaces."""
LIMITS = ("train.steps", "train.epochs", "train.minutes")  # the first reached ends a training
INFERENCE_SECTIONS = ("decode", "eval", "data", "device", "threads", "precision")  # can be changed for a trained model


def change_settings(run: RunType, overrides: Settings, only: tuple[str, ...] = INFERENCE_SECTIONS) -> RunType:
    """The run with some settings changed. Keys outside the sections `only` have no effect and raise UserError."""
    for key, _ in flatten(overrides):
        group = key.partition(".")[0]
        if group not in only and group in Run.model_fields:
            raise UserError(f"{key} has no effect on a finished run; only these can be set: {', '.join(only)}")
    for name in {"decode", "model"}.intersection(only):
        if (section := _changed_section(run, name, overrides)) is not None:
            return run.model_copy(update={name: section})
    changed = _merge_layers([("run.json", run.dump()), ("command line", overrides)], fresh=False).run
    return cast(RunType, changed)  # task and family, which decide its types, are those of the run


def override_settings(run: Run, settings: Settings, overrides: Settings) -> JsonObject:
    """Settings for a run and others above them, by dotted key. A new kind in a slot removes those of another kind."""
    draft = _draft([("run.json", {"task": run.task, "model.family": run.model.family})])
    for where, layer in (("settings", settings), ("command line", overrides)):
        draft.add_layer(where, layer)
    draft.raise_errors()
    return dict(draft.values)


def changed_decode(run: Run[Data, X], decode: Settings) -> X:
    """The run's decode.* with some settings changed, remembered because every call of `predict` may need it."""
    if not decode:
        return run.decode
    try:
        key = run.decode, json.dumps(decode, sort_keys=True, default=asdict)
    except TypeError:  # not plain values: their text may not identify them
        return change_settings(run, {"decode": decode}).decode
    if key not in CHANGED:
        if len(CHANGED) >= MAX_CHANGED:
            CHANGED.clear()
        CHANGED[key] = change_settings(run, {"decode": decode}).decode
    return cast(X, CHANGED[key])


CHANGED: dict[tuple[Base, str], Base] = {}
MAX_CHANGED = 256


@cache
def section_keys(section: type[Base], name: str) -> Mapping[str, TypeHint]:
    """The type annotations of the settings of a section, by dotted key."""
    return {f"{name}.{key}": annotation for key, annotation in SettingsDraft(section, {}).leaves.items()}


def _changed_section(run: Run, name: str, overrides: Settings) -> Base | None:
    """The section with these settings; None if invalid or beyond it. Validating a whole run takes 40 times as long."""
    former: Base = getattr(run, name)
    keys, values, groups = section_keys(type(former), name), dict(former), dict[str, dict[str, Any]]()
    given = {moved_key(key, keys): value for key, value in flatten(overrides)}
    for key, value in (_without_replaced(given, keys) | given).items():
        if key not in keys:
            return None
        value = parse_value(value, keys[key]) if isinstance(value, str) else value
        if isinstance(value, bool) and bool not in plain_types(keys[key]):
            return None
        setting, _, inner = key.removeprefix(f"{name}.").partition(".")
        if inner:
            groups.setdefault(setting, {})[inner] = value
        else:
            values[setting] = value
    for setting, changes in groups.items():  # a new kind in a slot removes the settings of the previous kind
        group = vars(values[setting])
        values[setting] = changes if changes.get("kind", group.get("kind")) != group.get("kind") else group | changes
    try:
        return type(former).model_validate(values)
    except ValidationError:
        return None  # merging the whole run gives the error message


def _without_replaced(given: Container[str], keys: Container[str]) -> dict[str, int]:
    """Zero for limits that include the prompt, where a limit of the continuation is given."""
    return {total: 0 for new, total in TOTAL_LIMITS.items() if new in given and total in keys}


def parse_data_files(text: str) -> tuple[tuple[str, ...], ...]:
    """Parse `a,b` into data files, as in `data.test=a,b`."""
    try:
        files = Data.model_validate({"test": text}).test
    except ValidationError as error:
        raise UserError(f"{error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    if not files:
        raise UserError("--data names no file; give files such as test.en,test.de, or leave it out to use data.test")
    return files


def changed_keys(old: Run, new: Run) -> list[str]:
    """The dotted keys whose values differ."""
    before, after = dict(flatten(old.dump())), dict(flatten(new.dump()))
    absent = object()
    return [key for key in {**before, **after} if before.get(key, absent) != after.get(key, absent)]


def _merge_layers(layers: list[Layer], fresh: bool, read_start: ReadStart | None = None) -> ResolvedRun:
    """Merge layers, the lowest first. In a fresh run, `model.size` expands to the settings that it names."""
    try:
        draft = _draft(layers)
    except ValueError as error:
        return _report_without_family(layers, str(error))
    chosen = _chosen(layers, "model.family")
    module = family_of(chosen)
    start = _chosen(layers, "start") if fresh else ""
    layers = _drop_other_families(layers, draft)
    if fresh:
        _add_size(draft, module, settings_of(module.Config)["size"].default)
    started: Settings = {}
    for where, values in layers:
        over_start = start and where == layers[-1][0]
        if over_start:
            started = _add_start(draft, start, str(chosen), values, read_start)
        for key, value in flatten(values):
            if fresh and key == "model.size" and not over_start:
                _add_size(draft, module, value)
        draft.add_layer(where, values)
        _replace_limits(draft, where)
    if start:
        _check_tokenizer(draft, start, started)
    if fresh and not any(draft.values.get(limit) for limit in LIMITS):
        draft.errors.append("the training has no end; set train.steps, train.epochs or train.minutes")
    if fresh:
        _check_train_data(draft)
    return _validate(draft)


def _replace_limits(draft: SettingsDraft, where: str) -> None:
    """A limit in a layer replaces those of lower layers: 20 epochs do not mean "at most 800 steps".

    A new limit of a continuation replaces one that includes the prompt.
    """
    limits = [key for key in LIMITS if draft.origin.get(key) == where and draft.values[key]]
    for key in LIMITS:
        if limits and draft.values.get(key) and draft.origin[key] != where:
            draft.values[key], draft.origin[key] = 0, f"replaced by {limits[0]}"
    given = [key for key in TOTAL_LIMITS if draft.origin.get(key) == where]
    for key, zero in _without_replaced(given, draft.values).items():
        if draft.origin[key] != where:
            draft.values[key], draft.origin[key] = zero, where


def _check_train_data(draft: SettingsDraft) -> None:
    """Report an empty or forgotten data.train, with which a run would silently train on the embedded data."""
    if draft.values.get("data.train") and draft.values["data.train"] != "[]":
        return
    if "data.train" in draft.values:
        note = origin_note(draft.origin["data.train"])
        draft.errors.append(f"data.train is empty{note}; name files, or leave it out to train on the embedded data")
        return
    for key in ("data.valid", "data.test", "data.holdout"):  # a recipe may set data.holdout for any data
        if key in draft.values and (key != "data.holdout" or draft.origin[key] == "command line"):
            draft.errors.append(
                f"{key} is set but data.train is not, so the training would use the embedded data; set data.train, or "
                f"leave {key} out"
            )


def _drop_other_families(layers: list[Layer], draft: SettingsDraft) -> list[Layer]:
    """Remove what layers below a change of the family set for the former one, as a new kind does in a slot."""
    result: list[Layer] = []
    family, task = None, _known_task(layers)
    for where, values in layers:
        layer_family = dict(flatten(values)).get("model.family", family)
        if result and layer_family != family:
            former = SettingsDraft(Run, section_types(task, family))
            result = [(below, _drop_foreign(settings, former, draft)) for below, settings in result]
        result, family = [*result, (where, values)], layer_family
    return result


def _drop_foreign(values: Settings, former: SettingsDraft, draft: SettingsDraft) -> Settings:
    """The settings without those of a model, and without keys and kinds of sections that only the former family has."""
    flat = {draft.current_key(key): value for key, value in flatten(values) if not key.startswith("model.")}
    for slot in [key.removesuffix(".kind") for key in flat]:
        kind = flat.get(f"{slot}.kind", flat.get(slot))
        if slot in draft.groups and slot.startswith(FAMILY_SECTIONS) and kind not in draft.kinds(slot):
            flat = {key: value for key, value in flat.items() if key != slot and not key.startswith(f"{slot}.")}
    lost = former.leaves.keys() - draft.leaves.keys()
    return {key: value for key, value in flat.items() if former.current_key(key) not in lost}


def _draft(layers: list[Layer]) -> SettingsDraft:
    """A draft for the family and the task that the layers name. An unknown family raises ValueError."""
    family = _chosen(layers, "model.family")
    return SettingsDraft(Run, {"model": family_of(family).Config, **_task_sections(layers, str(family))})


def _task_sections(layers: list[Layer], family: str | None = None) -> Mapping[str, type[Base]]:
    """The types of sections that depend on the task and the family."""
    return section_types(_known_task(layers), family)


def _known_task(layers: list[Layer]) -> str:
    """The task of the layers; translate if it is unknown, which validation reports."""
    task = _chosen(layers, "task")
    return task if isinstance(task, str) and task in TASKS else "translate"


def _chosen(layers: list[Layer], key: str) -> Any:
    """The value of the highest layer that has the key; None: no layer has it."""
    return next((v for _, values in reversed(layers) for name, v in reversed([*flatten(values)]) if name == key), None)


def _add_size(draft: SettingsDraft, module: FamilySettings, size: object) -> None:
    """Add the settings of a size: above all earlier layers, below other keys of the layer with `model.size`."""
    if not isinstance(size, str) or size not in module.SIZES:
        draft.errors.append(f"model.size is {format_value(size)}; {one_of(size, list(module.SIZES))}")
        return
    for key in [key for key, origin in draft.origin.items() if origin.startswith("size ")]:
        del draft.values[key], draft.origin[key]
    draft.add_layer(f"size {size}", {"model": module.SIZES[size]})


def _add_start(
    draft: SettingsDraft, start: object, family: str, overrides: Settings, read_start: ReadStart | None
) -> Settings:
    """Add the settings of `start`, above the recipe and below the overrides, and return them.

    A dropout that the recipe sets stays: no weight depends on it.
    """
    if not isinstance(start, str):
        raise UserError(f"start is {format_value(start)}; expected the path of a run or of a Hugging Face folder")
    if read_start is None:
        raise TypeError("resolve() needs read_start for a run with `start`; use regard.resolve")
    if "model.size" in dict(flatten(overrides)):
        draft.errors.append(f"model.size is set beside start={start}, which defines the size; leave model.size out")
    settings = read_start(start)
    if (other := settings.get("model.family")) != family:
        raise UserError(
            f"start={start} holds a model of family {other} but model.family is {family}; choose another start, or "
            f"set model.family={other} if the task can use it"
        )
    dropouts = {key for key in settings if key.endswith(".dropout") and draft.origin.get(key, "").startswith("recipe")}
    sections = ("data.", "tokenizer.")
    foreign = {key for key in settings if key.startswith(sections) and key not in draft.leaves}  # of the start's task
    draft.add_layer(f"start {start}", {key: value for key, value in settings.items() if key not in dropouts | foreign})
    if (task := str(draft.values.get("task"))) in TASKS:
        draft.add_layer(
            f"start {start} for {task}", family_of(family).SPEC.start_settings(task_settings(task).head, settings)
        )
    return settings


def _check_tokenizer(draft: SettingsDraft, start: str, settings: Settings) -> None:
    """Report tokenizer overrides that differ from `start`, whose weights require its own tokenizer."""
    for key, value in draft.values.items():
        if key.startswith("tokenizer.") and draft.origin[key] == "command line" and value != settings.get(key):
            start_value = f" with {key}={settings[key]!r}" if key in settings else ""
            draft.errors.append(
                f"{key} is {value!r} but start={start} brings its own tokenizer{start_value}; leave out {key} or start"
            )


def _report_without_family(layers: list[Layer], error: str) -> ResolvedRun:
    """Report an unknown family together with the errors outside [model], which only a family could check."""
    draft = SettingsDraft(Run, _task_sections(layers))
    draft.errors.append(error)
    for where, values in layers:
        draft.add_layer(where, {key: value for key, value in flatten(values) if not key.startswith("model.")})
    draft.values["model"] = Base()
    return _validate(draft)


def _validate(draft: SettingsDraft) -> ResolvedRun:
    try:
        run = Run.model_validate(draft.nested_values())
    except ValidationError as error:
        draft.add_validation_errors(error)
        draft.raise_errors()
        raise
    draft.raise_errors()
    return ResolvedRun(run, {key: draft.origin.get(key, "default") for key, _ in flatten(run.dump())})
