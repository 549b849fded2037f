"""Run the code blocks of a Markdown page as a reader would: in order, in one folder, without changing a command.

A shell block runs command by command; `regard` and Python scripts run in this process. Python blocks share one namespace.
A block whose first line names a file (`# ratings/rate.py`) becomes that file. TOML is parsed, and resolved if it is a
recipe; JSON is parsed. Blocks of `text` show outputs. Trainings become small on their way to the loop, not in the command.
"""

import contextlib
import glob
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch

import regard
from regard.cli import main
from regard.config import registry
from regard.config.merge import flatten
from regard.config.types import Base
from regard.processors.base import PROCESSORS
from regard.runs import launch
from regard.synthetic import captions, dates, digits, matching, morse, python_tags, scenes, stdlib
from regard.training import curves

ROOT = Path(__file__).parents[2]
SHELL, OTHERS = ("", "sh", "bash", "console"), ("python", "toml", "json", "text")
FENCE, HEADING, FILE = re.compile(r"^```(\w*)$"), re.compile(r"^#+ (.*)$"), re.compile(r"^# ([\w./-]+\.\w+)\n")
SIZES = {"width": 32, "heads": 2, "key_heads": 2, "layers": 1, "decoder_layers": 1, "inner": 32}
HELD_OUT = 6  # examples of each held-out split of embedded data


@dataclass(frozen=True)
class Block:
    """A code block: fenced, or indented by four spaces, which is a shell block."""

    language: str
    text: str
    line: int  # of its first line of code, from 1
    heading: str  # of the section that it belongs to

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block; a line that ends with a backslash continues."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def read_recipe(page: str) -> list[Block]:
    """The commands in the comments of a recipe, which are indented there, as one block. They may use several lines."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^#   +((?:regard|echo|python) (?:.*\\\n#)*.*)$", text, re.MULTILINE)
    return [Block("sh", "".join(f"{each}\n" for each in found).replace("\\\n#", " "), 1, page)]


def read_blocks(page: str) -> list[Block]:
    """All code blocks of a page, in order. A language that no rule covers, and an open fence, are errors."""
    if page.endswith(".toml"):
        return read_recipe(page)
    blocks: list[Block] = []
    heading, fence, start, before = "", None, 0, ""
    held: list[str] = []
    for number, line in enumerate([*(ROOT / page).read_text(encoding="utf-8").splitlines(), ""], 1):
        found = FENCE.match(line)
        if fence is not None and line == "```":
            blocks.append(Block(fence, "".join(held), start, heading))
            fence, held = None, []
        elif fence is not None:
            held.append(f"{line}\n")
        elif line.startswith("    ") and (held or not before):
            start = start if held else number
            held.append(f"{line[4:]}\n")
        else:
            if held:
                blocks.append(Block("", "".join(held), start, heading))
            held = []
            if found:
                fence, start = found[1], number + 1
                assert fence in (*SHELL, *OTHERS), (
                    f"{page}:{number} has the language {fence}; no rule says how to run it"
                )
            heading = title[1] if (title := HEADING.match(line)) else heading
        before = line
    assert fence is None, f"{page} has a code block that does not end"
    return blocks


@dataclass(frozen=True)
class Ran:
    """A command that ran, and what it printed."""

    command: str
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass
class PageRun:
    """What running a page left: the outputs of its commands, its Python names, and the folder, which is current."""

    page: str
    folder: Path
    blocks: list[Block]
    commands: list[Ran] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)  # by each Python block
    skipped: list[str] = field(default_factory=list)  # the entries of the table that a command matched

    def of(self, start: str) -> Ran:
        """The one command that begins like this."""
        (found,) = [each for each in self.commands if each.command.startswith(start)]
        return found

    @property
    def text(self) -> str:
        return (ROOT / self.page).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Rules:
    """How a page is run: its files, which trainings shrink, and what its commands need to be quick."""

    write: Callable[[], None] = lambda: None  # makes the files and runs that the page names, in the current folder
    check: Callable[[PageRun], None] = lambda run: None
    sizes: Mapping[str, int] = field(default_factory=lambda: SIZES)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of every training
    shrink: bool = True
    own_names: bool = False  # each Python block is a script of its own
    arguments: Callable[[list[str]], list[str]] = lambda words: words  # of a command, as it is executed


def run_page(page: str, folder: Path, rules: Rules, skip: Mapping[str, Callable[[list[str]], None]]) -> PageRun:
    """Run all blocks of a page in `folder`. Commands that begin as an entry of `skip` are checked by it instead."""
    run = PageRun(page, folder, read_blocks(page))
    with contextlib.chdir(folder), small_trainings(rules), restored_plugins():
        rules.write()
        for block in run.blocks:
            torch.manual_seed(0)
            if block.language in SHELL:
                for command in block.commands:
                    run_command(run, block, command, rules, skip)
            elif block.language != "text":
                RUNNERS[block.language](run, block, rules)
        for path in Path().glob("*.toml"):
            if "task" in tomllib.loads(path.read_text(encoding="utf-8")):
                regard.resolve(str(path))
        rules.check(run)
    return run


# --- shell -----------------------------------------------------------------------------------------------------------


def run_command(
    run: PageRun, block: Block, command: str, rules: Rules, skip: Mapping[str, Callable[[list[str]], None]]
) -> None:
    """Run one line: commands in a pipe, with `< file`, `> file` and `>> file`."""
    line = shlex.shlex(command.removeprefix("$ "), posix=True, punctuation_chars="|<>")
    line.whitespace_split, line.commenters = True, "#"
    words = list(line)
    where = f"{run.page}:{block.line}: {command}"
    for start, check in skip.items():
        if words[: len(start.split())] == start.split():
            run.skipped.append(start)
            check(words)
            return
    fed, err = b"", ""
    for stage in split_pipe(words):
        arguments, source, target, mode = redirections(stage)
        fed = Path(source).read_bytes() if source else fed
        code, out, err = run_stage(expand(arguments), fed, rules)
        assert code == 0, f"{where}\nended with {code}\n{out.decode()}{err}"
        fed = out
        if target:
            with open(target, mode) as file:
                file.write(out)
    run.commands.append(Ran(shlex.join(words) if "#" in command else command, fed.decode(), err))


def split_pipe(words: list[str]) -> list[list[str]]:
    stages: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            stages.append([])
        else:
            stages[-1].append(word)
    return stages


def redirections(words: list[str]) -> tuple[list[str], str, str, str]:
    """The arguments, the file of stdin, the file of stdout and how it is opened."""
    kept, source, target, mode = [], "", "", "wb"
    rest = iter(words)
    for word in rest:
        if word == "<":
            source = next(rest)
        elif word in (">", ">>"):
            target, mode = next(rest), "ab" if word == ">>" else "wb"
        else:
            kept.append(word)
    return kept, source, target, mode


def expand(words: list[str]) -> list[str]:
    return [file for word in words for file in (sorted(glob.glob(word)) if "*" in word else []) or [word]]


def run_stage(words: list[str], fed: bytes, rules: Rules) -> tuple[int, bytes, str]:
    """Run one command of a pipe: exit code, stdout, stderr."""
    if words[0] == "regard":
        return captured(lambda: main(rules.arguments(words[1:])), fed)
    if words[0] == "python" and words[1].endswith(".py"):
        with mock.patch.object(sys, "path", [str(Path.cwd()), *sys.path]):
            return captured(lambda: bool(runpy.run_path(words[1], run_name="__main__")) - 1, fed)
    done = subprocess.run(words, input=fed, capture_output=True, timeout=60)
    return done.returncode, done.stdout, done.stderr.decode()


def captured(call: Callable[[], int], fed: bytes = b"") -> tuple[int, bytes, str]:
    """What a function returns and prints; `fed` is its stdin."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    stdin = io.TextIOWrapper(io.BytesIO(fed), encoding="utf-8")
    names = {"stdin": stdin, "stdout": streams[0], "stderr": streams[1]}
    with mock.patch.multiple(sys, **names):
        code = call()
    out, err = (each.flush() or each.buffer.getvalue() for each in streams)  # type: ignore[attr-defined]
    return code, out, err.decode()


# --- other languages -------------------------------------------------------------------------------------------------


def run_python(run: PageRun, block: Block, rules: Rules) -> None:
    """Write the block to the file that it names, or execute it. Errors have the line of the page."""
    if written(block):
        compile(block.text, run.page, "exec")
        return
    names = {"__name__": f"block_{block.line}"} if rules.own_names else run.names
    code = compile("\n" * (block.line - 1) + block.text, run.page, "exec")
    run.printed.append(captured(lambda: exec(code, names) or 0)[1].decode())
    run.names |= names


def check_toml(run: PageRun, block: Block, rules: Rules) -> None:
    written(block)
    tomllib.loads(block.text)


def check_json(run: PageRun, block: Block, rules: Rules) -> None:
    """One value, or a value on each line."""
    written(block)
    try:
        json.loads(block.text)
    except json.JSONDecodeError:
        for line in block.text.splitlines():
            json.loads(line)


def written(block: Block) -> bool:
    """Write a block to the file that its first line names."""
    named = FILE.match(block.text)
    if named:
        path = Path(named[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    return named is not None


RUNNERS = {"python": run_python, "toml": check_toml, "json": check_json}


# --- small trainings -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_trainings(rules: Rules) -> Iterator[None]:
    """Every training that begins here, by a command, Python or a stage, is small and draws no curves."""

    def small_launch(out: Path, recipe: str | None, changes: Any, **more: Any) -> Any:
        if recipe is not None and not more["resume"]:
            small = small_settings(recipe, changes, rules.sizes) if rules.shrink else {}
            changes = {**dict(flatten(changes)), **small, **rules.settings}
        return whole_launch(out, recipe, changes, **more)

    whole_launch, all_files = launch.launch, stdlib.stdlib_files
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(launch, "launch", small_launch))
        patches.enter_context(mock.patch.object(curves, "draw", lambda folder: None))
        for module in (captions, dates, digits, matching, morse, python_tags, scenes):
            patches.enter_context(mock.patch.object(module, "HELD_OUT", HELD_OUT))
        patches.enter_context(mock.patch.object(stdlib, "stdlib_files", lambda split: all_files(split)[:2]))
        yield


def small_settings(recipe: str, changes: Any, sizes: Mapping[str, int] = SIZES) -> dict[str, Any]:
    """Settings that make the training of a recipe a matter of a moment."""
    run = regard.resolve(recipe, changes).run
    settings: dict[str, Any] = {
        "train.steps": 2, "train.warmup": 1, "train.eval_every": 2, "train.save_every": 2, "train.compile": False,
        "train.tensorboard": False, "device": "cpu",
    }  # fmt: skip
    if run.train.batch:
        settings["train.batch"] = min(run.train.batch, 8)
    else:
        settings["train.tokens"] = min(run.train.tokens, 2000 if run.task == "transcribe" else 400)
    if hasattr(run.data, "max_tokens"):
        settings["data.max_tokens"] = min(run.data.max_tokens, 128)
    if hasattr(run.data, "examples") and not run.data.train:
        settings["data.examples"] = 20
    if hasattr(run.decode, "max_tokens"):
        settings["decode.max_tokens"] = 5
    if run.start:
        return settings
    if getattr(run.tokenizer, "kind", "") in ("bpe", "wordpiece"):
        settings["tokenizer.vocab"] = min(run.tokenizer.vocab, 370)
    return settings | dict(lowered(run.model, "model", sizes))


def lowered(config: Base, prefix: str, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for name, value in config:
        if isinstance(value, Base):
            yield from lowered(value, f"{prefix}.{name}", sizes)
        elif name in sizes and isinstance(value, int) and value > sizes[name]:
            yield f"{prefix}.{name}", sizes[name]


@contextlib.contextmanager
def restored_plugins() -> Iterator[None]:
    """What the blocks register, import and put on the path is forgotten afterwards."""
    with contextlib.ExitStack() as patches:
        for each in (registry.FAMILIES, registry.TASKS, PROCESSORS):
            patches.enter_context(mock.patch.object(each, "added", dict(each.added)))
        patches.enter_context(mock.patch.object(registry, "_loaded", set(registry._loaded)))
        patches.enter_context(mock.patch.object(sys, "path", [*sys.path]))
        yield
        forget_modules(Path.cwd())


def forget_modules(folder: Path) -> None:
    """Drop the modules that were imported from this folder, so that they are imported anew."""
    for name in [name for name, module in sys.modules.items() if is_under(module, folder)]:
        del sys.modules[name]


def is_under(module: Any, folder: Path) -> bool:
    """True if a module, or a package without a file, was imported from this folder."""
    spec = vars(module).get("__spec__") if isinstance(module, ModuleType) else None
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    return any(str(place).startswith(f"{folder}/") for place in places)
