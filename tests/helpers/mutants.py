"""One-line bugs: do the tests that replace others catch what those caught?

    python tests/helpers/mutants.py --old OLD_CHECKOUT --old-tests tests/laws/test_tune_laws.py \\
        --new . --new-tests tests/laws/test_tune_laws.py --coverage base.coverage --within regard/adapt --seed 0 --count 2

`--coverage` is the data file of a run of all old tests with one context per test (`pytest --cov=regard
--cov-context=test`; several files: first `coverage combine`). Among the lines of regard that only the old tests cover, a
seeded generator chooses some, and in each a bug: a comparison turned, a number ± 1, a statement deleted. If there are no
such lines, it chooses among all lines below `--within` that the old tests cover, and says so. Every bug is put into a copy
of the old tree, where the old tests run. One that they catch is put into the equal line of a copy of the new tree, where
the new tests run. The line is found by its text in the function of the same name, so a file may have moved. Bugs are
drawn until the old tests have caught `--count` of them. The program prints a table, and fails if the new tests miss a bug
that the old ones catch.

Both checkouts need a `.venv` with pytest; nothing is written into them.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TURNED = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", ">="), ast.GtE: (">=", "<"), ast.Gt: (">", "<="),
    ast.LtE: ("<=", ">"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
DELETABLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Assert, ast.Delete)
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info")


@dataclass(frozen=True)
class Bug:
    """One line of a file becomes another; `function` is the qualified name of what the line is in."""

    file: str  # relative to the checkout
    line: int  # from 1
    function: str
    text: str
    changed: str
    what: str


def bugs_of(file: str, source: str) -> Iterator[Bug]:
    """Every bug that fits into one line of this file."""
    lines = source.splitlines()
    for function, node in named_nodes(ast.parse(source)):
        if getattr(node, "lineno", 0) != getattr(node, "end_lineno", 1):
            continue
        for start, end, changed, what in changes(node, lines[node.lineno - 1]):
            raw = lines[node.lineno - 1].encode()  # columns count bytes
            text = (raw[:start] + changed.encode() + raw[end:]).decode()
            yield Bug(file, node.lineno, function, lines[node.lineno - 1], text, what)


def named_nodes(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """All nodes, each with the name of the function that it is in."""
    for node in ast.iter_child_nodes(tree):
        own = getattr(node, "name", None) if isinstance(node, ast.ClassDef | ast.FunctionDef) else None
        inside = f"{name}.{own}".lstrip(".") if own else name
        yield inside, node
        yield from named_nodes(node, inside)


def changes(node: ast.AST, line: str) -> Iterator[tuple[int, int, str, str]]:
    """First and last column of what is replaced, what replaces it, and the kind of the bug."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        start, end = node.left.end_col_offset, node.comparators[0].col_offset
        old, new = TURNED[type(node.ops[0])]
        between = line.encode()[start:end].decode()
        yield start, end, between.replace(old, new, 1), f"{old} → {new}"
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        for new in (node.value + 1, node.value - 1):
            yield node.col_offset, node.end_col_offset, f"({new})", f"{node.value} → {new}"
    elif isinstance(node, DELETABLE) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield node.col_offset, node.end_col_offset, "pass", "deleted"


def covered_lines(data_file: Path, root: Path, tests: list[str]) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """By file, the lines that only these tests run, and all that they run. Imports do not count."""
    from coverage import CoverageData

    data = CoverageData(str(data_file))
    data.read()
    alone, covered = {}, {}
    for path in sorted(data.measured_files()):
        file = Path(path).relative_to(root).as_posix() if Path(path).is_relative_to(root) else ""
        if not file.startswith("regard/"):
            continue
        for line, contexts in data.contexts_by_lineno(path).items():
            own = [each.startswith(tuple(tests)) for each in contexts if each]  # an import has no name
            if any(own):
                covered.setdefault(file, set()).add(line)
                if all(own):
                    alone.setdefault(file, set()).add(line)
    return alone, covered


def draw_bugs(lines: dict[str, set[int]], root: Path, rng: random.Random) -> Iterator[Bug]:
    """Bugs in these lines: lines in random order, and of each line one of its bugs."""
    by_line: dict[tuple[str, int], list[Bug]] = {}
    for file in sorted(lines):
        for bug in bugs_of(file, (root / file).read_text()):
            if bug.line in lines[file] and bug.text != bug.changed:
                by_line.setdefault((file, bug.line), []).append(bug)
    for place in rng.sample(sorted(by_line), len(by_line)):
        yield rng.choice(by_line[place])


def same_line(bug: Bug, root: Path) -> tuple[Path, int] | None:
    """The file and the line of another tree with this text in a function of this name, or None."""
    files = [root / bug.file, *sorted((root / "regard").rglob("*.py"))]
    same_name = [each for each in files if each.name == Path(bug.file).name]
    for path in [*same_name, *files]:
        if path.is_file():
            for found in bugs_of(bug.file, path.read_text()):
                if (found.function, found.text, found.changed) == (bug.function, bug.text, bug.changed):
                    return path, found.line
    return None


def put(path: Path, line: int, text: str) -> None:
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")


def passes(tree: Path, tests: list[str], timeout: int) -> bool:
    """True if all tests pass in this tree; endless tests fail."""
    settings = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(tree / ".venv/bin/python"), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=settings, capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1, 2, 4):  # no tests, or pytest itself fails; 4: a test file cannot be imported
        raise SystemExit(done.stdout.decode() + done.stderr.decode())
    return done.returncode == 0


def catches(tree: Path, path: Path, line: int, bug: Bug, tests: list[str], timeout: int) -> bool:
    """True if a test fails while this line of the tree has the bug."""
    put(path, line, bug.changed)
    caught = not passes(tree, tests, timeout)
    put(path, line, bug.text)
    return caught


def copy_tree(root: Path, to: Path) -> Path:
    shutil.copytree(root, to, ignore=LEFT_OUT)
    (to / ".venv").symlink_to((root / ".venv").resolve())
    return to


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--old", "--new", "--coverage"):
        parser.add_argument(name, type=Path, required=True)
    for name in ("--old-tests", "--new-tests"):
        parser.add_argument(name, nargs="+", required=True)
    parser.add_argument("--within", nargs="+", default=["regard/"], help="files or folders of regard")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2, help="bugs that the old tests catch")
    parser.add_argument("--draws", type=int, default=10, help="bugs to try at most")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one run of tests")
    given = parser.parse_args()

    alone, covered = covered_lines(given.coverage, given.old.resolve(), given.old_tests)
    chosen = {file: found for file, found in alone.items() if file.startswith(tuple(given.within))}
    if not any(True for _ in draw_bugs(chosen, given.old, random.Random(given.seed))):
        print(
            f"no line of {', '.join(given.within)} is covered by these tests only; all lines that they cover are used"
        )
        chosen = {file: found for file, found in covered.items() if file.startswith(tuple(given.within))}
    print(f"{sum(map(len, chosen.values()))} lines in {len(chosen)} files")

    caught = missed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        old, new = copy_tree(given.old, Path(folder) / "old"), copy_tree(given.new, Path(folder) / "new")
        for tree, tests in ((old, given.old_tests), (new, given.new_tests)):
            if not passes(tree, tests, given.timeout):
                raise SystemExit(f"{' '.join(tests)} fail without any bug in {tree}")
        print("| line | bug | caught by old | caught by new |\n|---|---|---|---|", flush=True)
        for bug in list(draw_bugs(chosen, given.old, random.Random(given.seed)))[: given.draws]:
            place = same_line(bug, new)
            if place is None:
                print(f"| {bug.file}:{bug.line} | {bug.what} | the new tree has no such line | |", flush=True)
                continue
            by_old = catches(old, old / bug.file, bug.line, bug, given.old_tests, given.timeout)
            by_new = catches(new, *place, bug, given.new_tests, given.timeout) if by_old else "not run"
            print(f"| {bug.file}:{bug.line} `{bug.text.strip()}` | {bug.what} | {by_old} | {by_new} |", flush=True)
            caught, missed = caught + by_old, missed + (by_new is False)
            if caught == given.count:
                break
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
