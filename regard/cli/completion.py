"""Shell completion: recipes, run folders, and settings with their values and files, from the schema of the settings.

A shell inserts what all candidates have in common, and a space after the only one. So the only key comes with its
values, and the only folder with what it holds. Bash splits words at `=`, other shells do not.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeAlias

import typer

from ..errors import UserError

if TYPE_CHECKING:
    from ..config.run import Run
    from ..config.schema import SchemaField

P = ParamSpec("P")
Candidates: TypeAlias = list[tuple[str, str]]  # with what they mean, which some shells show
LONGEST = 70  # characters of a meaning
FILE_KEYS = ("start", "teacher", "alignments", "cache")  # besides data.train, data.valid, data.test


def _without_errors(complete: Callable[P, Candidates]) -> Callable[P, Candidates]:
    """A mistake in what is typed completes to nothing: the command reports it."""

    @wraps(complete)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> Candidates:
        try:
            return complete(*args, **kwargs)
        except (UserError, OSError):
            return []

    return quiet


@_without_errors
def complete_recipe(incomplete: str) -> Candidates:
    """The recipes that begin so; else .toml files."""
    from ..recipes import header, recipe_names, stage_names

    names = [name for name in [*recipe_names(), *stage_names()] if name.startswith(incomplete)]
    return [(name, header(name)) for name in names] or _as_candidates(_paths(incomplete, ".toml"))


@_without_errors
def complete_run(incomplete: str) -> Candidates:
    """The run folders that begin so, and the folders on the way to them."""
    return _as_candidates(_runs(incomplete))


@_without_errors
def complete_setting(context: typer.Context, incomplete: str) -> Candidates:
    """Settings of a recipe, or those of a run that a verb may change, and files."""
    from ..config.run import INFERENCE_SECTIONS

    params = context.params
    words = Words.of(params.get("settings") or params.get("arguments"), incomplete)
    if "recipe" in params:
        return _settings(_run_of_recipe(params["recipe"], words.changes), words)
    paths = [] if words.key or "settings" in params else _as_candidates(_paths(incomplete))
    return paths + _settings(_run_in(Path(params["run"])), words, INFERENCE_SECTIONS)


@_without_errors
def complete_key(context: typer.Context, incomplete: str) -> Candidates:
    """Keys and groups that --explain explains."""
    recipe, *settings = context.args  # not parsed yet: the option has no value
    run = _run_of_recipe(recipe, Words.of(settings, "").changes)
    fields = _fields(run)
    groups = {key[:place] for key in fields for place, sign in enumerate(key) if sign == "."}
    return [(key, _about(fields, key)) for key in [*sorted(groups), *fields, "all"] if key.startswith(incomplete)]


class Words(NamedTuple):
    """What is typed: the settings before the cursor, and the key and the beginning of the word at it."""

    changes: dict[str, str]
    key: str  # empty: a key is typed
    text: str
    prefix: str = ""  # of the candidates: `key=` where the shell does not split words there

    @classmethod
    def of(cls, given: Iterable[str] | None, incomplete: str) -> "Words":
        """Join what Bash has split: `key`, `=`, `value`."""
        words: list[str] = []
        at_sign = not incomplete and os.environ.get("COMP_WORDS", "").endswith("=")  # click takes it for an empty word
        for word in [*(given or ()), *(["="] if at_sign else [])]:
            if word == "=" or (words and words[-1].endswith("=")):
                words[-1:] = ["".join([*words[-1:], word])]
            else:
                words.append(word)
        key, prefix = "", ""
        if words and words[-1].endswith("="):
            key = words.pop().removesuffix("=")
        elif "=" in incomplete:
            key, _, incomplete = incomplete.partition("=")
            prefix = f"{key}="
        pairs = (word.partition("=") for word in words if "=" in word)
        return cls({name: value for name, _, value in pairs}, key, incomplete, prefix)


def _run_of_recipe(recipe: str, changes: dict[str, str]) -> "Run":
    """The run of a recipe with the settings that are typed so far; without them if they do not fit."""
    from ..config.run import resolve_run

    known = {key: value for key, value in changes.items() if key != "start"}  # opening it takes long
    try:
        return resolve_run(recipe, known).run
    except UserError:
        return resolve_run(recipe).run


def _run_in(folder: Path) -> "Run":
    from ..config.run import load_config
    from ..config.run_folder import read_run

    return load_config(read_run(folder)["config"])


def _fields(run: "Run") -> "dict[str, SchemaField]":
    from ..config.schema import schema_of_run

    return schema_of_run(run)


def _settings(run: "Run", words: Words, sections: tuple[str, ...] = ()) -> Candidates:
    from ..config.renamed import MOVED

    fields = {key: field for key, field in _fields(run).items() if not sections or key.partition(".")[0] in sections}
    if words.key:
        values = _values(run, fields, words.key, words.text)
        return [(f"{words.prefix}{value}", about) for value, about in values]
    keys = [key for key in fields if key.startswith(words.text)]
    keys = keys or [key for key, moved in MOVED.items() if key.startswith(words.text) and moved in fields]  # short
    heads = dict.fromkeys(key.partition(".")[0] for key in keys)
    if len(heads) > 1:
        return [(f"{head}=" if head in fields else f"{head}.", _about(fields, head)) for head in heads]
    found = [(f"{key}=", _about(fields, key)) for key in keys]
    if len(keys) == 1:  # a second candidate keeps the shell from adding a space
        found += [(f"{keys[0]}={value}", about) for value, about in _values(run, fields, keys[0], "")]
    return found


def _values(run: "Run", fields: "dict[str, SchemaField]", key: str, text: str) -> Candidates:
    """The values of a setting that begin so: its options, files, or its present value."""
    from ..config.merge import flatten, to_toml
    from ..config.renamed import moved_key
    from ..config.schema import choices_of_run

    key = moved_key(key, fields)
    field = fields.get(key) or fields.get(f"{key}.kind")
    if field is None:
        return []
    options = dict.fromkeys(choices_of_run(run).get(key, ()), "") or field.options
    if not options and (field.name in FILE_KEYS or key in ("data.train", "data.valid", "data.test")):
        before, comma, last = text.rpartition(",")
        return _as_candidates(f"{before}{comma}{path}" for path in _paths(last))
    if not options:
        value = dict(flatten(run.dump()))[field.key]
        options = {value if isinstance(value, str) else to_toml(value): "now"}
    return [(name, about[:LONGEST]) for name, about in options.items() if name and name.startswith(text)]


def _about(fields: "dict[str, SchemaField]", key: str) -> str:
    """What a key means, in a line for the shell; typer would take brackets for markup."""
    text = fields[key].meaning if key in fields else ""
    text = text.translate(str.maketrans("[]\\", "() "))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _as_candidates(names: Iterable[str]) -> Candidates:
    return [(name, "") for name in names]


def _paths(incomplete: str, suffix: str = "") -> list[str]:
    """The files and folders whose path begins so; of the only folder what it holds."""
    found = [*_entries(incomplete, suffix)]
    return [*found, *_entries(found[0], suffix)] if len(found) == 1 and found[0].endswith("/") else found


def _entries(incomplete: str, suffix: str) -> Iterator[str]:
    head, slash, name = incomplete.rpartition("/")
    folder = Path(head + slash)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        hidden = path.name.startswith(".") and not name.startswith(".")
        if path.name.startswith(name) and not hidden and (path.is_dir() or path.name.endswith(suffix)):
            yield f"{head}{slash}{path.name}{'/' if path.is_dir() else ''}"


def _runs(incomplete: str) -> list[str]:
    from ..config.run_folder import FILE

    def inside(begin: str) -> list[str]:
        folders = [name for name in _entries(begin, "") if name.endswith("/")]
        return [name.rstrip("/") if Path(name, FILE).is_file() else name for name in folders]

    found = inside(incomplete)
    return [*found, *inside(found[0])] if len(found) == 1 and found[0].endswith("/") else found
