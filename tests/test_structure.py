"""The structure of the package: import direction, sizes, one meaning per class name, spelling, no `if family`."""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "regard").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))

# Lowest first. A module may import its own level and lower ones; the longest prefix of its name decides its level.
LEVELS = [
    ["errors", "html", "progress", "threads"],
    ["files", "recipes"],
    ["config"],
    ["device", "parts"],
    ["alignment"],
    ["metrics"],
    ["adapt"],
    ["look"],
    ["families"],
    ["processors"],
    ["data", "data.batch", "data.source", "data.rng"],
    ["data.dataset"],
    ["data.loading"],
    ["data.files"],
    ["data.tables"],
    ["data.sources"],
    ["data.datasets"],
    ["synthetic"],
    ["decode.search"],
    ["decode.engine"],
    ["decode.parallel", "decode"],
    ["training"],
    ["tasks"],
    ["measure"],
    ["formats"],
    ["runs"],
    ["api", "plugins", "testing"],
    ["cli", "demo", "sklearn", "__main__"],
]
LEVEL = {f"regard.{name}": number for number, names in enumerate(LEVELS) for name in names}

FILE, FUNCTION, PARAMETERS = 400, 50, 8
SAME_IN_EVERY_FAMILY = {"Config", "Model"}
TOP_LEVEL = {
    "__init__", "__main__", "api", "demo", "errors", "files", "device", "plugins", "testing", "sklearn", "html", "progress", "threads",
}  # fmt: skip

BRITISH = (
    "behaviour", "colour", "neighbour", "favour", "honour", "labelled", "labelling", "modelled", "modelling", "cancelled",
    "learnt", "spelt", "burnt", "whilst", "centre", "grey", "catalogue", "licence",
    "optimise", "optimisation", "optimiser", "initialise", "initialisation", "normalise", "normalisation", "quantise",
    "quantisation", "materialise", "recognise", "serialise", "summarise", "organise", "generalise",
    "penalise", "tokenise", "utilise", "visualise", "analyse", "emphasise", "standardise", "minimise", "maximise",
)  # fmt: skip
RETIRED = (
    "lesson", "seeker", "composer", "wishes", "wording", "teller", "snake", "graft", "senseless", "manyeth",
    "put it right", "is no run", "is no folder", "who sees whom", "of no sense",
)  # fmt: skip


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def level_of(module: str) -> int | None:
    """The level of a module, None for the package itself."""
    prefix = module
    while prefix not in LEVEL:
        prefix = prefix.rpartition(".")[0]
        if not prefix:
            return None
    return LEVEL[prefix]


def for_typing_only(tree: ast.Module) -> set[ast.AST]:
    """Nodes below `if TYPE_CHECKING:`."""
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of the package, also those inside functions."""
    module, tree = module_of(path), ast.parse(path.read_text(encoding="utf-8"))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    skipped = for_typing_only(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names if name.name.split(".")[0] == "regard")
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            if source.split(".")[0] != "regard":
                continue
            for name in node.names:
                inner = ROOT / Path(*f"{source}.{name.name}".split("."))
                is_module = inner.with_suffix(".py").exists() or inner.is_dir()
                yield node.lineno, f"{source}.{name.name}" if is_module else source


def test_imports_run_downwards() -> None:
    upward = []
    for path in PACKAGE:
        own = level_of(module_of(path))
        if own is None:  # regard/__init__.py imports its public names when they are asked for
            continue
        for line, imported in imports(path):
            level = level_of(imported)
            if level is not None and level > own:
                upward.append(f"{path.relative_to(ROOT)}:{line} imports {imported}")
    assert not upward, "\n".join(upward)


def test_every_module_has_a_level() -> None:
    unknown = [
        module_of(path) for path in PACKAGE if level_of(module_of(path)) is None and path.parent.name != "regard"
    ]
    assert not unknown
    assert {path.stem for path in (ROOT / "regard").glob("*.py")} <= TOP_LEVEL


def test_parts_import_only_torch() -> None:
    outside = [
        f"{path.relative_to(ROOT)}:{line} imports {imported}"
        for path in (ROOT / "regard" / "parts").rglob("*.py")
        for line, imported in imports(path)
        if not imported.startswith("regard.parts")
    ]
    assert not outside, "\n".join(outside)


def test_files_functions_and_constructors_are_small() -> None:
    large = []
    for path in [*PACKAGE, *BENCHMARKS]:
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        if (lines := text.count("\n")) > FILE:
            large.append(f"{name} has {lines} lines, above {FILE}")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if (size := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION:
                large.append(f"{name}:{node.lineno} {node.name} has {size} lines, above {FUNCTION}")
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if node.name == "__init__" and (count := len(given) - 1) > PARAMETERS:
                large.append(f"{name}:{node.lineno} a constructor has {count} parameters, above {PARAMETERS}")
    assert not large, "\n".join(large)


def test_a_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for path in PACKAGE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    shared = {
        name: where
        for name, where in places.items()
        if len(where) > 1 and not (name in SAME_IN_EVERY_FAMILY and all("families" in each for each in where))
    }
    assert not shared, shared


def test_no_code_asks_which_family_it_has() -> None:
    """Only families and file formats may compare `….family` with a name."""
    asked = []
    for path in PACKAGE:
        if {"families", "formats"} & set(path.relative_to(ROOT).parts):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                family = any(isinstance(side, ast.Attribute) and side.attr == "family" for side in sides)
                named = any(isinstance(each, ast.Constant) for side in sides for each in ast.walk(side))
                if family and named:
                    asked.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
    assert not asked, "\n".join(asked)


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository; outside a checkout, those that lie there."""
    done = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    found = done.stdout.split() if done.returncode == 0 else []
    return [ROOT / name for name in found] or [path for pattern in patterns for path in ROOT.rglob(pattern)]


TEXTS = [
    path
    for path in tracked("*.py", "*.md", "*.toml", "Makefile")
    if path.name not in (Path(__file__).name, "renamed.py") and "old" not in path.relative_to(ROOT).parts
]


# Names of format 1, which tests and readers of older runs mention.
FORMER = re.compile(r"optimiser\.safetensors|tokenizer\.normalise|train\.optimiser|decode\.normalised")


@pytest.mark.parametrize("words", [BRITISH, RETIRED], ids=["US spelling", "retired words"])
def test_spelling_and_vocabulary(words: tuple[str, ...]) -> None:
    stems = [word[:-1] if word.endswith("ise") else word for word in words]
    pattern = re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, stems))})", re.IGNORECASE)
    found = []
    for path in TEXTS:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            line = FORMER.sub("", line)
            found += [f"{path.relative_to(ROOT)}:{number} {match.group(0)!r}" for match in pattern.finditer(line)]
    assert not found, f"{len(found)} places\n" + "\n".join(found[:60])
