"""Train a user's module with the loop: optimizer, schedule, accumulation, precision, checkpoints, resume."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from pydantic import ValidationError, model_validator
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..config import run_folder
from ..config.merge import Section, Settings, SettingsDraft, flatten, format_value, one_of
from ..config.registry import describe_error
from ..config.task_settings import metrics_of
from ..config.train import Train
from ..config.types import Base, Threads
from ..data.batch import Batch
from ..data.loading.sampler import split_evenly
from ..device import resolve_device, use_threads
from ..errors import UserError
from ..files import JsonObject, atomic_write, path_name
from . import checkpoint
from .callbacks import Callback, CustomCodeError, name_of
from .custom import CustomMetric, Metrics, as_loss, as_metrics, custom_settings
from .lock import RunLock
from .loop import Reporting, run_loop
from .objective import LossSum, Objective
from .protocols import Outcome
from .ranks import joined_processes

Entry = TypeVar("Entry")  # a batch, or an example that a function `collate` takes
Collate: TypeAlias = Callable[[list[Entry]], Any]
DEFAULTS = {
    "train.lr": 1e-3, "train.warmup": 0, "train.schedule": "linear", "train.optimizer": "adamw", "train.batch": 32,
}  # fmt: skip
FIXED = ("seed", "batch", "accumulate")  # settings that determine the steps


class ModuleRun(Base):
    """The settings of `regard.fit`."""

    task: str = ""
    train: Train = Train()
    device: str = "auto"
    threads: Threads = 0

    @model_validator(mode="after")
    def _check_metric(self) -> "ModuleRun":
        if self.train.metric not in (names := list(metrics_of("", self.train))):
            raise ValueError(f"train.metric is {format_value(self.train.metric)}; {one_of(self.train.metric, names)}")
        if not (self.train.steps or self.train.epochs or self.train.minutes):
            raise ValueError("the training has no end; set train.steps, train.epochs or train.minutes")
        return self


def fit(
    objective: nn.Module,
    data: Iterable[Entry] | Dataset[Entry],
    *,
    out: str | PathLike[str],
    overrides: Settings | None = None,
    valid: Iterable[Entry] | Dataset[Entry] | None = None,
    collate: Collate[Entry] | None = None,
    resume: bool = False,
    progress: bool = False,
    on_event: Callable[[JsonObject], None] | None = None,
    callbacks: Sequence[Callback] = (),
    metrics: Metrics | None = None,
    **sections: Section,
) -> Outcome:
    """Train a module whose `forward(batch)` returns its loss, and load the best weights into it.

    `data` are batches, or examples with a function `collate` that turns a list of them into a batch (train.batch
    examples, divided into train.accumulate micro-batches). A list is shuffled by (seed, epoch). Any other iterable is
    read in order, again in every epoch. The loss is a mean over the batch, or a `LossSum` over its examples.

    `valid` are data for validation: their mean loss, and `metrics`, functions of the module, select the weights. The
    folder `out` gets checkpoints, metrics.jsonl and model.safetensors. To resume, pass the same data and functions.
    """
    custom_metrics = as_metrics(metrics)
    run = _resolve({**_flat(sections), **_flat(overrides or {}), **custom_settings(None, custom_metrics)})
    folder = Path(path_name(out, "out"))
    job = ModuleJob(run, objective, DataSource(data, collate, "data"), _source(valid, collate), custom_metrics)
    use_threads(run.threads)
    with joined_processes(resolve_device(run.device)) as ranks, ExitStack() as stack:
        if ranks.first and not resume:
            _create(folder, run, job)
        if ranks.first:
            if not run_folder.is_run(folder):
                raise UserError(f"{folder} holds no run to resume; leave out resume to start one")
            stack.enter_context(RunLock(folder))
            _check_same(folder, run, job)
        ranks.wait()
        reporting: Reporting = {"progress": progress, "on_event": on_event, "callbacks": callbacks}
        outcome = run_loop(job, folder, resume=resume, ranks=ranks, **reporting)
        if (folder / checkpoint.MODEL).exists():
            checkpoint.load_model(objective, folder / checkpoint.MODEL)
    return outcome


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(flatten(values))


def _resolve(changes: Mapping[str, Any]) -> ModuleRun:
    draft = SettingsDraft(ModuleRun, {})
    draft.add_layer("regard.fit", DEFAULTS)
    draft.add_layer("", changes)
    try:
        run = ModuleRun.model_validate(draft.nested_values())
    except ValidationError as error:
        draft.add_validation_errors(error)
        draft.raise_errors()
        raise
    draft.raise_errors()
    return run


# --- the run folder --------------------------------------------------------------------------------------------------


def _create(folder: Path, run: ModuleRun, job: "ModuleJob[Entry]") -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; resume the run there (resume=True), or choose another out")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder, replace=False) as draft:
        draft.mkdir()
        about = {"module": name_of(job.objective.model), "config": run.model_dump(mode="json"), "processors": {}}
        run_folder.write_run(draft, {**about, "data": job.sizes()})
        if folder.exists():
            folder.rmdir()


def _check_same(folder: Path, run: ModuleRun, job: "ModuleJob[Entry]") -> None:
    """Check that a resumed run reads the same steps. The data are not compared."""
    about = run_folder.read_run(folder)
    if "module" not in about:
        raise UserError(f"{folder} holds a run of a recipe; resume it with regard.train")
    before = ModuleRun.model_validate(about["config"]).train
    for key in FIXED:
        if getattr(before, key) != getattr(run.train, key):
            was, now = getattr(before, key), getattr(run.train, key)
            raise UserError(f"train.{key} was {was} and is now {now}; a resumed run cannot change it")
    for name, size in job.sizes().items():
        if about["data"].get(name) != size:
            raise UserError(f"{name} has {size} entries and had {about['data'].get(name)}; give the same data")
    run_folder.update_run(folder, config=run.model_dump(mode="json"))


# --- data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ModuleBatch(Batch):
    """A user's batch of any type."""

    content: Any = None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "ModuleBatch":
        """The batch with all its tensors on a device."""
        return replace(self, content=_move(self.content, device, non_blocking))


def _move(value: Any, device: torch.device | str, non_blocking: bool) -> Any:
    """Move tensors inside dicts, lists, tuples and objects with `to` to a device."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, Mapping):
        return {key: _move(item, device, non_blocking) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_move(item, device, non_blocking) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_move(item, device, non_blocking) for item in value)
    return value.to(device) if callable(getattr(value, "to", None)) else value


def batch_size(content: Any) -> int:
    """The examples in a batch: the length of its first tensor, or 1 if it has none."""
    if isinstance(content, Tensor):
        return len(content) if content.dim() else 1
    parts = content.values() if isinstance(content, Mapping) else content if isinstance(content, list | tuple) else ()
    return next((batch_size(part) for part in parts if isinstance(part, Tensor | Mapping | list | tuple)), 1)


@dataclass(frozen=True)
class ModuleStep:
    """The data of one optimizer step."""

    micro_batches: Sequence[Batch]
    index: int
    tokens: int
    examples: list[int]


class DataSource(Generic[Entry]):
    """Batches, or examples that `collate` turns into batches."""

    def __init__(self, data: Iterable[Entry] | Dataset[Entry], collate: Collate[Entry] | None, name: str) -> None:
        if isinstance(data, Iterator) or not (isinstance(data, Iterable) or hasattr(data, "__getitem__")):
            raise UserError(
                f"{name} is a {type(data).__name__}; expected a list, or another iterable that starts anew in every "
                "epoch: a generator can be read only once"
            )
        self.data: Any = data
        self.collate, self.name = collate, name
        self.sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
        if self.size == 0:
            raise UserError(f"{name} is empty; give at least one example")

    @property
    def size(self) -> int | None:
        """The number of entries, if it is known."""
        return len(self.data) if self.sized else None

    def entries(self, shuffled: random.Random | None, first: int = 0) -> Iterator[tuple[int, Entry]]:
        """(index, entry) in the order of an epoch, after its first ones."""
        if not self.sized:
            yield from islice(zip(count(), self.data, strict=False), first, None)
            return
        order = list(range(len(self.data)))
        if shuffled:
            shuffled.shuffle(order)
        yield from ((index, self.data[index]) for index in order[first:])

    def batch(self, entries: list[Entry], number: int = 0, counted: bool = True) -> ModuleBatch:
        """One batch: collated examples, or the only entry, if entries are batches."""
        if self.collate is None:
            content, size = entries[0], batch_size(entries[0])
        else:
            try:
                content, size = self.collate(entries), len(entries)
            except Exception as error:
                raise CustomCodeError(
                    f"the function {name_of(self.collate)} failed on {self.name} ({describe_error(error)}); correct it"
                ) from error
        return ModuleBatch({}, size, number, counted=counted, content=content)


def _source(data: Iterable[Entry] | Dataset[Entry] | None, collate: Collate[Entry] | None) -> DataSource[Entry] | None:
    return None if data is None else DataSource(data, collate, "valid")


# --- the job ---------------------------------------------------------------------------------------------------------


class ModuleObjective(Objective):
    """A user's module as an objective: its mean loss times the examples of the batch, or its LossSum."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> LossSum:
        assert isinstance(batch, ModuleBatch)
        return as_loss(self.model(batch.content), batch.count, f"forward of {name_of(self.model)}")


class ModuleJob(Generic[Entry]):
    """The job of `regard.fit` for the loop."""

    static_shapes = False

    def __init__(
        self,
        run: ModuleRun,
        module: nn.Module,
        train: DataSource[Entry],
        valid: DataSource[Entry] | None,
        metrics: Mapping[str, CustomMetric],
    ) -> None:
        if not isinstance(module, nn.Module):
            raise UserError(f"objective is a {type(module).__name__}; expected an nn.Module whose forward gives a loss")
        if metrics and valid is None:
            raise UserError(f"metrics= gives {', '.join(metrics)}, but there are no data for validation; give valid=")
        self.run, self.objective, self.train, self.valid, self.metrics = (
            run, ModuleObjective(module), train, valid, metrics,
        )  # fmt: skip
        settings = run.train
        self.per_step = (settings.batch or 1) if train.collate else settings.accumulate  # entries of a step

    def sizes(self) -> dict[str, int | None]:
        """The number of entries of the data, as far as it is known."""
        return {source.name: source.size for source in (self.train, self.valid) if source is not None}

    def steps(self, epoch: int, index: int, rank: int, world: int) -> Iterator[ModuleStep]:
        """The share of process `rank` of the steps of an epoch after its first `index` entries."""
        shuffled = random.Random(f"{self.run.train.seed} {epoch}")
        entries = self.train.entries(shuffled, index)
        while some := list(islice(entries, self.per_step)):
            index += len(some)
            parts = [some[chosen] for chosen in split_evenly(np.ones(len(some), np.int64), self.run.train.accumulate)]
            yield ModuleStep(self._share(parts, rank, world), index, len(some), [place for place, _ in some])

    def _share(self, parts: Sequence[Sequence[tuple[int, Entry]]], rank: int, world: int) -> list[Batch]:
        """Micro-batch i goes to process i mod N; a process without one repeats the first, uncounted."""
        rounds = -(-len(parts) // world)
        numbers = [turn * world + rank for turn in range(rounds)]
        chosen = [(number, parts[number] if number < len(parts) else parts[0]) for number in numbers]
        return [self.train.batch([entry for _, entry in part], number, number < len(parts)) for number, part in chosen]

    def planned_steps(self, epochs: int) -> float:
        """The steps of the first epochs; unknown for data without a length."""
        size = self.train.size
        return float("inf") if size is None else epochs * -(-size // self.per_step)

    def align(self, epoch: int, index: int) -> int:
        """Returns `index`: the planning of these steps has never changed."""
        return index

    def describe_data(self) -> list[str]:
        """Sentences about the number of entries."""
        return [f"{name}: {size:,} entries" for name, size in self.sizes().items() if size is not None]

    def validate(self) -> dict[str, float]:
        """The mean loss over `valid`, and the custom metrics."""
        if self.valid is None:
            return {}
        device = resolve_device(self.run.device)
        total, examples, entries = 0.0, 0, self.valid.entries(None)
        size = (self.run.train.batch or 1) if self.valid.collate else 1
        while some := list(islice(entries, size)):
            batch = self.valid.batch([entry for _, entry in some]).to(device)
            loss = self.objective(batch)
            total, examples = total + float(loss.sum), examples + batch.count
        measure = partial(_measure, module=self.objective.model)
        values = {name: measure(name, metric) for name, metric in self.metrics.items()}
        return {"loss": total / max(examples, 1)} | values


def _measure(name: str, metric: CustomMetric, module: nn.Module) -> float:
    return metric(name, module)
