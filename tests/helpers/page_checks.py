"""Checks of commands that a page shows and no test executes: that they would be understood."""

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from helpers.pages import ROOT, forget_modules
from typer.main import get_command

import benchmarks.__main__
import regard
from benchmarks import BENCHMARKS
from regard.cli.app import app
from regard.cli.arguments import parse_settings, split_arguments
from regard.recipes import stage_names
from regard.runs.stages import read_stages

INLINE = re.compile(r"`((?:\w+=\S+ )?(?:regard|python -m|make|pip install) [^`]+)`")


def check_make(words: list[str]) -> None:
    """The Makefile has the target."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in words[1:]:
        assert "=" in target or re.search(rf"^{re.escape(target)}:", text, re.MULTILINE), target


def check_pip(words: list[str]) -> None:
    """The extras exist. `pip install .` is executed, with a folder of this folder as the place of packages."""
    if words[2] == ".":
        options = "--no-deps --no-build-isolation --disable-pip-version-check --quiet --target site"
        done = subprocess.run([sys.executable, "-m", "pip", "install", *options.split(), "."], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        forget_modules(Path.cwd())
        sys.path.insert(0, str(Path("site").resolve()))
        return
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in re.findall(r"regard\[(.*?)\]", " ".join(words)):
        assert {*name.split(",")} <= extras.keys(), name


def check_benchmark(words: list[str]) -> None:
    """There is such a benchmark, and its part; the options are known."""
    module, arguments = words[2], [word for word in words[3:] if word not in ("…", ">") and not word.endswith(".json")]
    if module != "benchmarks":
        assert importlib.util.find_spec(module) is not None, module
        return
    given = get_command(benchmarks.__main__.app).make_context("benchmarks", arguments).params
    assert given["what"] in BENCHMARKS, words
    found = importlib.import_module(f"benchmarks.{given['what'].replace('-', '_')}")
    assert given["only"] is None or given["only"] in found.PARTS, words


def check_regard(words: list[str]) -> None:
    """The verb, its options and settings are known, and so is the recipe of a training.

    A word with `…` stands for anything, one in capitals for a name. A sentence may leave out what a verb requires.
    """
    group = get_command(app)
    words = words[: words.index("--")] if "--" in words else words
    pairs = zip(words, words[1:], strict=False)
    arguments = [word for before, word in pairs if "…" not in word or before.startswith("--")]
    if not arguments or arguments[0].startswith("-"):
        return
    name, command, rest = group.resolve_command(group.make_context("regard", list(arguments)), arguments)  # type: ignore[attr-defined]
    try:
        given = command.make_context(name, list(rest)).params
    except Exception as error:
        assert type(error).__name__ == "MissingParameter", (words, error)
        return
    if name == "train" and given["recipe"] in stage_names():
        read_stages(given["recipe"])
    elif name == "train" and given["recipe"] and given["recipe"].islower():
        settings = parse_settings(given["settings"] or [])
        own = {key: value for key, value in settings.items() if key != "start" and not key.startswith("tune.")}
        regard.resolve(given["recipe"], own)
    elif name != "train":
        split_arguments(given.get("arguments") or [])


CHECKS = {"regard": check_regard, "make": check_make, "pip": check_pip, "python": check_benchmark}


def check_mentioned(text: str) -> int:
    """Check every command that a sentence mentions; return their number."""
    found = [shlex.split(each.replace("\n", " "), comments=True) for each in INLINE.findall(text)]
    for words in found:
        words = words[1:] if "=" in words[0] else words  # an environment variable
        words = words[: words.index("<")] if "<" in words else words
        CHECKS[words[0]](words)
    return len(found)


def missing_names(text: str) -> list[str]:
    """The names `regard.NAME` that a page mentions in a sentence and that the package does not have."""
    names = re.findall(r"`[^`\n]*\bregard\.(\w+)[^`\n]*`", text)
    return [name for name in names if not hasattr(regard, name) and importlib.util.find_spec(f"regard.{name}") is None]
