"""The laws of predictors, checked on a declared task of a plugin."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..api import load, train
from ..config.registry import TASKS
from ..errors import UserError
from ..messages.base import message_adapter, to_json
from ..plugins import register
from ..tasks.fields import FieldTask
from ..tasks.predictor import AnyPredictor

CLOSE = 1e-4  # relative, between numbers that were computed in other batches
TINY: dict[str, object] = {
    "model.size": "tiny", "train.warmup": 1, "train.save_every": 1, "train.eval_every": 1,
    "train.tensorboard": False, "device": "cpu",
}  # fmt: skip


class BrokenTaskLaw(UserError):
    """A task violates a law."""


@dataclass
class TinyTask:
    """A task with a run of two steps, and inputs of `predict`."""

    task: FieldTask[Any, Any]
    items: list[Any]
    settings: Mapping[str, object]
    folder: Path

    def __post_init__(self) -> None:
        self.recipe = self.folder / "recipe.toml"
        self.recipe.write_text(f'# A tiny run.\ntask = "{self.task.name}"\n')
        self.predictor = self.trained(self.folder / "run", {"train.steps": 2})

    def trained(self, out: Path, changes: Mapping[str, object]) -> AnyPredictor:
        predictor = train(self.recipe, {**TINY, **self.settings, **changes}, out=out)
        assert predictor is not None, "the training was interrupted"
        return predictor


def check_task(task: FieldTask[Any, Any], items: Sequence[Any], settings: Mapping[str, object]) -> list[str]:
    """Train a task for two steps on its embedded data and check the laws; return what was checked.

    `items` are at least two inputs of `predict`; `settings` complete the run, such as model.family. The first broken
    law raises BrokenTaskLaw, which names it.
    """
    if task.name not in TASKS:
        register(task=task)
    checked = []
    with TemporaryDirectory() as folder:
        tiny = TinyTask(task, [*items], settings, Path(folder))
        for name, law in TASK_LAWS.items():
            if not law(tiny):
                raise BrokenTaskLaw(f"task {task.name}: not true that {name} (regard.testing.tasks)")
            checked.append(f"{task.name}: {name}")
    return checked


def _resumes(tiny: TinyTask) -> bool:
    out = tiny.folder / "resumed"
    tiny.trained(out, {"train.steps": 1})
    resumed = train(None, {"train.steps": 2}, out=out, resume=True)
    return resumed is not None and resumed.predict(tiny.items) == tiny.predictor.predict(tiny.items)


def _loads(tiny: TinyTask) -> bool:
    return bool(load(tiny.folder / "run").predict(tiny.items) == tiny.predictor.predict(tiny.items))


def _is_invariant(tiny: TinyTask) -> bool:
    alone = [tiny.predictor.predict([item], details=True)[0] for item in tiny.items]
    return _near(tiny.predictor.predict(tiny.items, details=True), alone)


def _is_json(tiny: TinyTask) -> bool:
    requests = tiny.predictor.requests(tiny.items)
    messages: list[Any] = [*requests, *tiny.predictor.predict_requests(requests)]
    for message in messages:
        adapter = message_adapter(type(message))
        text = adapter.dump_json(message)
        if adapter.dump_json(adapter.validate_json(text)) != text:
            return False
    return True


def _isolates_errors(tiny: TinyTask) -> bool:
    good = tiny.predictor.requests(tiny.items)
    *found, error = tiny.predictor.predict_each([*good, replace(good[0], adapter="unknown")])
    records = [to_json(result) for result in found if not isinstance(result, BaseException)]
    return isinstance(error, UserError) and _near(records, tiny.predictor.predict(tiny.items, details=True))


def _evaluates(tiny: TinyTask) -> bool:
    return {metric.name for metric in tiny.task.settings.metrics} <= tiny.predictor.evaluate().keys()


def _near(one: object, other: object) -> bool:
    """Equal, but for the last digits of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_near(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_near, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= CLOSE * max(1.0, abs(one))
    return one == other


TASK_LAWS: dict[str, Callable[[TinyTask], bool]] = {
    "an item alone is answered as in a batch": _is_invariant,
    "requests and results are their JSON": _is_json,
    "one bad request leaves the others alone": _isolates_errors,
    "evaluation gives the metrics of the task": _evaluates,
    "a loaded run answers as before": _loads,
    "a resumed run answers as one that was never interrupted": _resumes,
}
