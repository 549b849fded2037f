"""A pytest plugin: a complete run of the suite fails if a line that raises a UserError was never executed.

Every process of the run, also those that tests start, records the lines that make a UserError
(error_hook/sitecustomize.py). At the end they are compared with the lines that the source has. `--missed-errors` lists
those of a partial run, which may miss many.
"""

import ast
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOOK = Path(__file__).with_name("error_hook")
FOLDER = "REGARD_USER_ERRORS"
MADE, RAISED, CAUSE = 0, 1, -1  # a line makes a UserError, raises that of a helper, or raises what one is made of
VALUE_ERRORS = ("config/", "data/", "families/", "formats/", "parts/slots.py")  # whose ValueErrors become UserErrors
INTERNAL = (  # ValueErrors that only a mistake in Python code can cause
    "call `slots.for_layer` first",
    "expected a group of settings with model.family",
    "the content differs from its fingerprint",  # the cache is written again
)
Frames = dict[str, set[tuple[int, int]]]  # path -> (depth, line): how many calls lie between the line and the error


@dataclass(frozen=True, order=True)
class ErrorLine:
    """A statement that leads to a UserError."""

    path: str  # from the root
    first: int
    last: int
    kind: int
    text: str

    def executed(self, frames: Frames) -> bool:
        depths = [depth for depth, line in frames.get(self.path, ()) if self.first <= line <= self.last]
        return CAUSE in depths if self.kind == CAUSE else max(depths, default=CAUSE) >= self.kind

    def __str__(self) -> str:
        return f"{self.path}:{self.first}  {self.text}"


@cache
def error_lines(package: Path = ROOT / "regard") -> list[ErrorLine]:
    """Every line of the package that makes or raises a UserError."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py"))}
    classes = error_classes(list(trees.values()))
    helpers = error_helpers(list(trees.values()), classes)
    found = []
    for path, tree in trees.items():
        values = path.relative_to(package).as_posix().startswith(VALUE_ERRORS)
        for node, kind in error_nodes(tree, classes, helpers):
            if kind == CAUSE and not values:
                continue
            text = " ".join(ast.unparse(node).split())
            if any(words in text for words in INTERNAL):
                continue
            place = path.relative_to(package.parent).as_posix()
            found.append(ErrorLine(place, node.lineno, node.end_lineno or node.lineno, kind, text))
    return sorted(found)


def error_classes(trees: list[ast.Module]) -> set[str]:
    """UserError and the classes below it."""
    known, classes = (
        {"UserError"},
        [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)],
    )
    while new := {each.name for each in classes if known & {*map(called_name, each.bases)}} - known:
        known |= new
    return known


def error_helpers(trees: list[ast.Module], classes: set[str]) -> set[str]:
    """The names of functions that return a UserError, perhaps that of another helper."""
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    returned = {each: [node.value for node in ast.walk(each) if isinstance(node, ast.Return)] for each in functions}
    known: set[str] = set()
    while (
        new := {each.name for each in functions if any(calls(value, classes | known) for value in returned[each])}
        - known
    ):
        known |= new
    return known


def error_nodes(tree: ast.Module, classes: set[str], helpers: set[str]) -> Iterator[tuple[ast.Call, int]]:
    """Calls of a class of errors; calls of a helper that are raised; and ValueErrors that are raised."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node.func) in classes:
            yield node, MADE
        elif isinstance(node, ast.Raise):
            yield from ((call, RAISED) for call in calls(node.exc, helpers))
            yield from ((call, CAUSE) for call in calls(node.exc, {"ValueError"}))


def calls(value: ast.expr | None, names: set[str]) -> list[ast.Call]:
    """The calls of these names that a value is, or chooses between."""
    if isinstance(value, ast.IfExp):
        return calls(value.body, names) + calls(value.orelse, names)
    return [value] if isinstance(value, ast.Call) and called_name(value.func) in names else []


def called_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def recorded_frames(folder: Path) -> Frames:
    """What all processes recorded."""
    frames: Frames = {}
    for path in folder.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            depth, number, name = line.split(" ", 2)
            if Path(name).is_relative_to(ROOT):
                place = Path(name).relative_to(ROOT).as_posix()
                frames.setdefault(place, set()).add((int(depth), int(number)))
    return frames


def missed_lines(folder: Path) -> list[ErrorLine]:
    frames = recorded_frames(folder)
    return [line for line in error_lines() if not line.executed(frames)]


# --- hooks -----------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--missed-errors", action="store_true", help="list the lines that raise a UserError and did not run"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record in this process, in its workers and in what they start."""
    if hasattr(config, "workerinput"):
        return  # it inherits the environment
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="regard-user-errors-")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")]))
    sys.path.append(str(HOOK))  # some tests hand their own path on
    import sitecustomize

    if (errors := sys.modules.get("regard.errors")) is not None:
        sitecustomize.record_calls(errors)


ALL_TESTS = "not learn and not learn_full and not soak"  # the marks that pyproject.toml chooses


def is_complete(config: pytest.Config) -> bool:
    """True if the run has all tests but those that learn."""
    option = config.option
    chosen = option.keyword or option.deselect or option.ignore or option.ignore_glob or option.collectonly
    partial = chosen or getattr(option, "lf", False) or getattr(option, "stepwise", False)
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and option.markexpr == ALL_TESTS
    return whole and not partial


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if hasattr(config, "workerinput"):
        return
    folder = Path(os.environ[FOLDER])
    complete = exitstatus == pytest.ExitCode.OK and is_complete(config)
    config.stash[MISSED] = missed_lines(folder) if complete or config.option.missed_errors else []
    shutil.rmtree(folder)
    if complete and config.stash[MISSED]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


MISSED = pytest.StashKey[list[ErrorLine]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if missed := config.stash.get(MISSED, []):
        terminalreporter.section(
            f"{len(missed)} lines that raise a UserError were never executed; write a test for each"
        )
        for line in missed:
            terminalreporter.write_line(str(line))
