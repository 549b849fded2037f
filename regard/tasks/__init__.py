"""What models are for. A task turns data into losses for the loop, and texts into predictions for people.

A task's module has `prepare`, for training, `restore`, for use, and `sized`, for a model without any data. Its VERBS
are what it asks of a model, so that a family which cannot answer is refused by name.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

from ..config.merge import one_of
from ..config.run import Run
from ..errors import UserError
from ..families import FAMILIES, family

NAMES = ("language", "translate", "classify", "tag", "masked", "text2text", "spans")
TASKS = {name: f"regard.tasks.{name}" for name in NAMES}


def prepare(run: Run, folder: Path | None, device: Any) -> tuple[Any, dict[str, Any], Run]:
    """The lesson to train, the tokenizers by file name, the run with its vocabulary; `folder` is a run to resume."""
    _refuse_stranger(run)
    prepared: tuple[Any, dict[str, Any], Run] = import_module(TASKS[run.task]).prepare(run, folder, device)
    return prepared


def restore(run: Run, folder: Path, device: Any) -> Any:
    """What people use, but for the weights."""
    return import_module(TASKS[run.task]).restore(run, folder, device)


def _refuse_stranger(run: Run) -> None:
    verbs = getattr(import_module(TASKS[run.task]), "VERBS", ())

    def able(name: str) -> bool:
        forms = getattr(family(name), "HEADS", {"": family(name).Model})
        return any(all(hasattr(form, verb) for verb in verbs) for form in forms.values())

    if not able(run.model.family):
        others = [name for name in FAMILIES if able(name)]
        raise UserError(
            f"model.family={run.model.family} cannot be used for the task {run.task}; {one_of(None, others)}"
        )


def sized(run: Run) -> Run:
    """The run as it would be if its tokenizer learnt as much as it may."""
    _refuse_stranger(run)
    found: Run = import_module(TASKS[run.task]).sized(run)
    return found
