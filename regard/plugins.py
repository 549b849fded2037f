"""Plugins: a user's families, tasks and processors, added without editing the package."""

import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .config.registry import FAMILIES, TASKS, describe_error
from .errors import UserError
from .processors.base import PROCESSORS
from .processors.text.custom import CustomTokenizer

if TYPE_CHECKING:
    from .tasks.fields import FieldTask

FAMILY_PARTS = {
    "Config": "its settings, a subclass of regard.config.types.Base with a default for `family`",
    "SIZES": "its sizes by name; `tiny` is required",
    "Model": "the model, built from a Config",
    "SPEC": "a ModelSpec: what it reads and writes",
}
TASK_PARTS = {
    "TASK": "a Task: its name, what it reads and writes",
    "SETTINGS": "TaskSettings: the types of data.*, decode.* and eval.*, and its metrics",
    "prepare": "a function that returns the TrainingJob",
    "restore": "a function that returns the predictor of a run folder",
    "size_without_data": "a function that completes the model settings without data",
}


def register(
    *,
    family: ModuleType | str | None = None,
    task: "ModuleType | str | FieldTask[Any, Any] | None" = None,
    processor: type | None = None,
    tokenizer: object = None,
) -> None:
    """Add a family or a task, which are modules (or their import names), a processor class, or a tokenizer.

    A task may also be a declaration, a `regard.tasks.fields.FieldTask`.

    A tokenizer is an object with `encode(text)` and `decode(ids)`, known by its `name` or the name of its class.

    Config, command line, training, resuming and prediction then know it by its name. An installed package does this in
    its entry point `regard.plugins`, a single file is given as `regard --plugin FILE`.
    """
    if family is None and task is None and processor is None and tokenizer is None:
        raise UserError("register got nothing to add; give family=, task=, processor= or tokenizer=")
    if family is not None:
        module = _import(family)
        _require(module, "family", FAMILY_PARTS)
        FAMILIES.add(_family_name(module), module)
    if task is not None:
        declared = _import(task) if isinstance(task, ModuleType | str) else task
        _require(declared, "task", TASK_PARTS)
        TASKS.add(declared.TASK.name, declared)
    if processor is not None:
        if not isinstance(name := getattr(processor, "kind", None), str):
            raise UserError(f"the processor {processor.__name__} has no name; give it a class attribute `kind`")
        PROCESSORS.add(name, processor)
    if tokenizer is not None:
        CustomTokenizer(tokenizer)  # it registers what it wraps


def load_plugin(source: str) -> None:
    """Import a plugin: the path of a .py file, or the name of a module. It registers its parts."""
    path = Path(source)
    if path.suffix != ".py" and all(part.isidentifier() for part in source.split(".")):
        _import(source)
        return
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"--plugin {source} is not a file; give the path of a .py file or the name of a module")
    _refuse_shadowing(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # `register(family=__name__)` and pickling find it there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(path.stem, None)
        if isinstance(error, UserError):
            raise
        raise UserError(f"the plugin {source} cannot be loaded ({describe_error(error)}); correct it") from error


def _refuse_shadowing(path: Path) -> None:
    """Refuse a file whose name shadows another module."""
    name, spec = path.stem, PathFinder.find_spec(path.stem)
    other = spec is not None and spec.origin is not None and Path(spec.origin).resolve() != path.resolve()
    if other or name in sys.stdlib_module_names:
        raise UserError(f"the plugin {path} has the name of an installed module, {name}; rename the file")


def _import(module: ModuleType | str) -> ModuleType:
    if isinstance(module, ModuleType):
        return module
    try:
        return sys.modules.get(module) or importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"the plugin module {module} cannot be imported ({error}); install it, or correct its name"
        ) from error
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the plugin module {module} cannot be imported ({describe_error(error)}); correct it"
        ) from error


def _require(module: Any, noun: str, parts: dict[str, str]) -> None:
    for name, description in parts.items():
        if not hasattr(module, name):
            where = getattr(module, "__name__", "")
            raise UserError(f"the {noun} module {where} has no {name}: {description}; see docs/extend.md")
    if noun == "family" and "tiny" not in module.SIZES:
        raise UserError(f"SIZES of the family module {module.__name__} has no size tiny, which its tests use; add it")


def _family_name(module: ModuleType) -> str:
    name = module.Config.model_fields["family"].default if "family" in module.Config.model_fields else None
    if not isinstance(name, str) or not name:
        raise UserError(f"Config of the family module {module.__name__} has no default for `family`; give its name")
    return name
