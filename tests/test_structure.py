"""The structure of the package: import direction, sizes, one meaning per name, spelling, no `if family`.

Some limits have budgets for code that is above them today (`structure_budgets.json`). More than a budget is refused, and
whoever gets clearly below one lowers it.
"""

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "regard").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
BUDGETS = json.loads(Path(__file__).with_name("structure_budgets.json").read_text(encoding="utf-8"))

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
    ["messages"],
    ["modalities"],
    ["tasks"],
    ["measure"],
    ["formats"],
    ["runs"],
    ["api", "plugins", "testing"],
    ["cli", "demo", "sklearn", "__main__"],
]
LEVEL = {f"regard.{name}": number for number, names in enumerate(LEVELS) for name in names}

CLASS, BASES, FUNCTION, PARAMETERS, FILES = 450, 3, 50, 8, 20
SLACK = 0.95  # share of a budget below which it must be lowered
SAME_IN_EVERY_FAMILY = {"Config", "Model"}
MANY_FILES = {"regard/families", "regard/formats/huggingface"}  # one file per architecture
# Modules that implement one interface: each may define its functions.
INTERFACES = ("regard/families/", "regard/formats/", "regard/adapt/", "regard/tasks/")
VERBS = "regard/cli/"  # the function of a verb has the name of the function that it calls
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


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


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


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of the package, also those inside functions and those for types alone."""
    module, tree = module_of(path), tree_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
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


def check_budget(name: str, counts: dict[str, int]) -> None:
    """Compare counts by place with their budgets."""
    budget, wrong = BUDGETS[name], []
    for place in sorted({*counts, *budget}):
        count, most = counts.get(place, 0), budget.get(place, 0)
        if count > most or count < SLACK * most:
            wrong.append(f"{place}: {count}, and its budget is {most}")
    advice = "make it less, or lower a budget that is no longer needed (tests/structure_budgets.json)"
    assert not wrong, f"{name}: {advice}\n" + "\n".join(wrong)


def place_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_functions_and_constructors_are_small() -> None:
    large = []
    for path in [*PACKAGE, *BENCHMARKS]:
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if (size := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION:
                large.append(f"{place_of(path)}:{node.lineno} {node.name} has {size} lines, above {FUNCTION}")
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if node.name == "__init__" and (count := len(parameters) - 1) > PARAMETERS:
                large.append(f"{place_of(path)}:{node.lineno} a constructor has {count} parameters, above {PARAMETERS}")
    assert not large, "\n".join(large)


def base_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return base_name(node.value)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def package_classes() -> dict[str, ast.ClassDef]:
    """Every class of the package by name; those of families, which share two names, by module and name."""
    classes = {}
    for path in PACKAGE:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                shared = node.name in SAME_IN_EVERY_FAMILY and path.parent.name == "families"
                classes[f"{path.stem}.{node.name}" if shared else node.name] = node
    return classes


def with_bases(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The class and all classes of the package that it inherits from."""
    reached, waiting = set[str](), [name]
    while waiting:
        if (name := waiting.pop()) in classes and name not in reached:
            reached.add(name)
            waiting += [base_name(base) for base in classes[name].bases]
    return reached


def test_a_class_is_small_together_with_its_bases() -> None:
    classes = package_classes()
    lines = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in classes.items()}
    total = {name: sum(lines[each] for each in with_bases(name, classes)) for name in classes}
    check_budget("lines of a class with its bases", {name: size for name, size in total.items() if size > CLASS})
    bases = {name: len(node.bases) for name, node in classes.items()}
    assert not {name: count for name, count in bases.items() if count > BASES}


def test_a_folder_has_few_files_and_says_what_belongs_in_it() -> None:
    folders = Counter(place_of(path.parent) for path in PACKAGE if path.name != "__init__.py")
    full = {folder: count for folder, count in folders.items() if count > FILES and folder not in MANY_FILES}
    silent = [
        folder
        for folder in {place_of(path.parent) for path in PACKAGE}
        if not (ROOT / folder / "__init__.py").exists()
        or len((ast.get_docstring(tree_of(ROOT / folder / "__init__.py")) or "").split()) < 8
    ]
    assert not full and not silent, f"{full} {silent}"


def test_a_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for path in PACKAGE:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(place_of(path))
    shared = {
        name: where
        for name, where in places.items()
        if len(where) > 1 and not (name in SAME_IN_EVERY_FAMILY and all("families" in place for place in where))
    }
    assert not shared, shared


def test_a_public_function_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for path in PACKAGE:
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                places[node.name].append(place_of(path))
    shared = {}
    for name, where in places.items():
        interfaces = {next((prefix for prefix in INTERFACES if place.startswith(prefix)), place) for place in where}
        meanings = {place for place in interfaces if not place.startswith(VERBS)} or interfaces
        if len(meanings) > 1:
            shared[name] = where
    assert not shared, "\n".join(f"{name}: {', '.join(where)}" for name, where in shared.items())


def test_any_in_public_signatures_only_becomes_less() -> None:
    counts = Counter[str]()
    for path in PACKAGE:
        for signature in public_signatures(tree_of(path).body):
            count = sum(
                isinstance(node, ast.Name) and node.id == "Any" for part in signature for node in ast.walk(part)
            )
            counts[place_of(path).split("/")[1]] += count
    check_budget("Any in public signatures", {name: count for name, count in counts.items() if count})


def public_signatures(body: list[ast.stmt]) -> Iterator[list[ast.expr]]:
    """The annotations of every public function, method and constructor."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_signatures(node.body)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name == "__init__" or not node.name.startswith("_"):
            signature = node.args
            more = [each for each in (signature.vararg, signature.kwarg) if each]
            parameters = [*signature.posonlyargs, *signature.args, *signature.kwonlyargs, *more]
            yield [each for each in [*(parameter.annotation for parameter in parameters), node.returns] if each]


def test_no_code_asks_which_family_it_has() -> None:
    """Only families and file formats may compare `….family` with a name."""
    found = []
    for path in PACKAGE:
        if {"families", "formats"} & set(path.relative_to(ROOT).parts):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Compare) and compares_with_constant(node, {"family"}):
                found.append(f"{place_of(path)}:{node.lineno} {ast.unparse(node)}")
    assert not found, "\n".join(found)


def test_questions_about_modality_and_family_only_become_fewer() -> None:
    """Code that asks what a model or a processor is should get the answer from its declaration."""
    counts = Counter[str]()
    for path in PACKAGE:
        if not {"families", "processors", "modalities", "formats"} & set(path.relative_to(ROOT).parts):
            counts[place_of(path)] += sum(asks_for_type(node) for node in ast.walk(tree_of(path)))
    check_budget("questions about modality or family", {name: count for name, count in counts.items() if count})


TENSOR_KINDS = {"tokens", "pixels", "frames"}
SECTIONS = {"data", "model", "decode", "config"}  # of a run: a family or a task has some settings, others lack them


def asks_for_type(node: ast.AST) -> bool:
    """True for a question about modality or family, also in disguise.

    Disguises are `"x" in type(run.model).model_fields`, `isinstance(processor, …Processor)`, and `getattr(run.data, …)`.
    """
    if isinstance(node, ast.Compare):
        fields = any(isinstance(side, ast.Attribute) and side.attr == "model_fields" for side in node.comparators)
        named = {each.value for each in (node.left, *node.comparators) if isinstance(each, ast.Constant)}
        return fields or bool(named & TENSOR_KINDS) or compares_with_constant(node, {"modality"})
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) < 2:
        return False
    if node.func.id == "isinstance":
        types = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
        return any(name.endswith("Processor") for name in types)
    subject = node.args[0]
    name = subject.attr if isinstance(subject, ast.Attribute) else subject.id if isinstance(subject, ast.Name) else ""
    raw = node.func.id == "hasattr" and isinstance(subject, ast.Name)  # data of a user, not the settings data.*
    return node.func.id in ("getattr", "hasattr") and name in SECTIONS and not raw


def compares_with_constant(node: ast.Compare, attributes: set[str]) -> bool:
    """True if one of these attributes is compared with something that has a constant."""
    sides = [node.left, *node.comparators]
    asked = any(isinstance(side, ast.Attribute) and side.attr in attributes for side in sides)
    return asked and any(isinstance(each, ast.Constant) for side in sides for each in ast.walk(side))


def test_settings_are_declared_without_torch() -> None:
    """`config` and the settings of tasks import neither torch nor the code that they describe."""
    code = (
        "import sys, pkgutil, importlib, regard.config\n"
        "from regard.config.registry import TASKS\n"
        "from regard.config.task_settings import task_settings\n"
        "for each in pkgutil.walk_packages(regard.config.__path__, 'regard.config.'): importlib.import_module(each.name)\n"
        "for name in TASKS: task_settings(name)\n"
        "loaded = [name for name in sys.modules if name == 'torch' or name.startswith('regard.families')\n"
        "          or (name.startswith('regard.tasks.') and name.endswith('.task'))]\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


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


def test_the_picture_of_the_packages_shows_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "images")
    import make_packages

    drawn = [set(names.split()) for _, names, _ in reversed(make_packages.ROWS)]
    packages = [{name.partition(".")[0] for name in names} - {"__main__"} for names in LEVELS]
    merged = [names for number, names in enumerate(packages) if number == 0 or names != packages[number - 1]]
    assert drawn == merged
    assert (ROOT / "docs" / "images" / "packages.svg").read_text(encoding="utf-8") == make_packages.draw_packages()


def test_the_paths_in_the_docs_exist() -> None:
    missing = []
    for page in tracked("docs/*.md", "README.md", "CONTRIBUTING.md"):
        for name in re.findall(r"`((?:\w+/)+[\w.<>-]*)`", page.read_text(encoding="utf-8")):
            places = [ROOT / name, ROOT / "regard" / name]
            run = name.startswith("runs/") and not name.endswith(".py")  # the folder of a reader's runs
            code = name.split("/")[0] in CODE_FOLDERS and "<" not in name and not run
            if code and not any(place.exists() for place in places):
                missing.append(f"{page.relative_to(ROOT)}: {name}")
    assert not missing, "\n".join(missing)


CODE_FOLDERS = {"regard", "tests", "benchmarks", *(path.name for path in (ROOT / "regard").iterdir() if path.is_dir())}
