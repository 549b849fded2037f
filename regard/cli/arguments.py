"""The positional arguments of a verb: settings (key=value), texts, files."""

import difflib
import re
from contextvars import ContextVar
from pathlib import Path

from ..errors import UserError

KEY = re.compile(r"[^\W\d]\w*(\.\w+)*")
QUIET: ContextVar[bool] = ContextVar("QUIET", default=False)  # --quiet: no progress and no facts on stderr
AFTER_DASHES: ContextVar[int] = ContextVar("AFTER_DASHES", default=0)  # how many arguments stand after `--`


def take_quiet(arguments: list[str]) -> list[str]:
    """The arguments without --quiet, which may stand anywhere before `--`; it holds for the whole command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    QUIET.set(any(argument in ("--quiet", "-q") for argument in arguments[:end]))
    return [argument for argument in arguments[:end] if argument not in ("--quiet", "-q")] + arguments[end:]


def parse_settings(arguments: list[str]) -> dict[str, str]:
    """Settings of `train`, where every argument is one."""
    changes: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not KEY.fullmatch(key):
            raise UserError(f"{argument!r} is not a setting; expected key=value, such as train.steps=300")
        changes[key] = value
    return changes


def split_arguments(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Split into settings and others (texts, files, runs). What stands after `--`, and `./a.b=c`, is no setting."""
    from ..config.run import Run

    changes: dict[str, str] = {}
    others = []
    for remaining, argument in zip(range(len(arguments), 0, -1), arguments, strict=True):
        key, equals, value = argument.partition("=")
        if not equals or not KEY.fullmatch(key) or remaining <= AFTER_DASHES.get():
            others.append(argument)
        elif key.partition(".")[0] in Run.model_fields:
            changes[key] = value
        elif Path(argument).exists():
            others.append(argument)
        else:
            raise UserError(f"{key} is not a key{_hint(key)}; write a text or a name that contains = after --")
    return changes, others


def add_options(changes: dict[str, str], options: dict[str, str | None]) -> dict[str, str]:
    """The settings with those of options that are short for one; an option wins over its setting."""
    return changes | {key: value for key, value in options.items() if value is not None}


def _hint(key: str) -> str:
    """The setting of a finished run that is most like the key, as a question."""
    from ..config.merge import settings_of
    from ..config.registry import TASKS
    from ..config.renamed import MOVED
    from ..config.task_settings import task_settings

    sections = [(name, getattr(task_settings(task), name)) for task in TASKS for name in ("decode", "eval", "data")]
    keys = [*MOVED, *(f"{name}.{setting}" for name, section in sections for setting in settings_of(section))]
    near = [name for name in keys if name.endswith(f".{key}")]
    near = near or difflib.get_close_matches(key, [*keys, "device", "threads", "precision"], n=1)
    return f" (did you mean {MOVED.get(near[0], near[0])}?)" if near else ""
