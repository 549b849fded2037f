"""Embedded data for tagging: the syntactic role of each token of Python source, from the standard library."""

import ast
import hashlib
import io
import keyword
import random
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

from ..data.source import InMemorySource
from ..errors import UserError

MIN_TOKENS, MAX_TOKENS = 24, 64  # of a sentence: whole logical lines until there are enough
HELD_OUT = 400  # sentences each of valid and test
MAX_LETTERS = 16  # of a string or a comment
SPLITS = {0: "valid", 1: "test"}  # one of ten modules each
SKIPPED = {tokenize.ENCODING, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Position = tuple[int, int]  # line and column
Sentence = tuple[tuple[str, ...], tuple[str, ...]]  # words and roles
Located = ast.expr | ast.arg | ast.keyword  # nodes with a position


def make_python_tags(examples: int, seed: int) -> dict[str, InMemorySource]:
    """Sentences for train, valid and test. No module is in two splits; valid and test are the same for every seed.

    One version of Python always gives the same sentences.
    """
    splits: dict[str, list[Sentence]] = {"train": [], "valid": [], "test": []}
    sizes = {"train": examples, "valid": HELD_OUT, "test": HELD_OUT}
    for path in stdlib_modules():
        split = SPLITS.get(_hash(path.name) % 10, "train")
        if len(splits[split]) < 2 * sizes[split]:
            splits[split] += sentences(path)
    rngs = {split: random.Random(f"roles {split} {seed if split == 'train' else 0}") for split in splits}
    chosen = {split: rngs[split].sample(some, min(len(some), sizes[split])) for split, some in splits.items()}
    names = {split: f"embedded {split} roles of Python tokens" for split in splits}
    return {split: PythonTagSource(names[split], some) for split, some in chosen.items()}


class PythonTagSource(InMemorySource):
    """Words and their roles, held in memory."""

    def text(self, index: int, field: int) -> str:
        return " ".join(self.examples[index][field])


def stdlib_modules() -> list[Path]:
    """The top-level modules of the standard library, in the order of a hash of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    modules = sorted(folder.glob("*.py"), key=lambda path: _hash(path.name))
    if len(modules) < 50:
        raise UserError(
            f"{folder} holds {len(modules)} modules, and the embedded data are made from the source of the standard "
            "library; install Python with its source, or give data.train"
        )
    return modules


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def sentences(path: Path) -> Iterator[Sentence]:
    """The tokens of a module with their roles, a few lines per sentence; none if the module cannot be parsed."""
    try:
        source = path.read_text(encoding="utf-8")
        tree, tokens = ast.parse(source), list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, UnicodeDecodeError, OSError, tokenize.TokenError):
        return
    roles = NameRoles(tree, source.splitlines())
    words: list[str] = []
    tags: list[str] = []
    line: list[str] = []  # the logical line so far
    for token in tokens:
        if token.type not in SKIPPED:
            words.append(shorten(token.string))
            tags.append(roles.role(token, line))
            line.append(token.string)
        if token.type in (tokenize.NEWLINE, tokenize.COMMENT):
            line = []
        if len(words) >= (MIN_TOKENS if token.type == tokenize.NEWLINE else MAX_TOKENS):
            yield tuple(words), tuple(tags)
            words, tags = [], []


def shorten(text: str) -> str:
    """The first line of a text, shortened."""
    return text.partition("\n")[0][:MAX_LETTERS]


def role_after(line: list[str]) -> str:
    """The role of a name after these tokens, or "" if they do not decide it."""
    first, before = (line[0], line[-1]) if line else ("", "")
    if before in ("def", "class"):
        return "function" if before == "def" else "class"
    if first in ("from", "import"):
        if before == "as":
            return "alias"
        return "imported" if first == "from" and "import" in line else "module"
    return "target" if first == "except" and before == "as" else ""


class NameRoles:
    """The roles of names in a syntax tree, by the position where they begin or end."""

    def __init__(self, tree: ast.AST, lines: list[str]) -> None:
        self.lines = lines
        self.begins: dict[Position, str] = {}
        self.ends: dict[Position, str] = {}
        for node in ast.walk(tree):  # parents come first, and their roles are not overwritten
            self._visit(node)

    def role(self, token: tokenize.TokenInfo, line: list[str]) -> str:
        kinds = {tokenize.COMMENT: "comment", tokenize.NUMBER: "number", tokenize.OP: "operator"}
        if token.type in kinds:
            return kinds[token.type]
        if token.type != tokenize.NAME:
            return "string"
        if keyword.iskeyword(token.string):
            return "constant" if token.string in ("True", "False", "None") else "keyword"
        return role_after(line) or self.begins.get(token.start) or self.ends.get(token.end) or "other"

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.Call(func=ast.Name() as name):
                self._set_begin(name, "called")
            case ast.Call(func=ast.Attribute() as attribute):
                self._set_end(attribute, "method")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for decorator in node.decorator_list:
                    self._set_all(decorator, "decorator")
                for base in getattr(node, "bases", ()):
                    self._set_all(base, "base")
            case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
                self._set_all(target, "loop")
            case ast.ExceptHandler(type=ast.AST() as type):
                self._set_all(type, "exception")
            case ast.Raise(exc=ast.Call(func=called)):
                self._set_all(called, "exception")
            case ast.arg(annotation=annotation):
                self._set_begin(node, "parameter")
                self._set_all(annotation, "annotation")
            case ast.keyword(arg=str()):
                self._set_begin(node, "argument")
            case ast.Attribute():
                self._set_end(node, "attribute")
            case ast.Name(ctx=ast.Store()):
                self._set_begin(node, "target")
            case ast.Name():
                self._set_begin(node, "read")

    def _set_all(self, node: ast.AST | None, role: str) -> None:
        """Set the role of every name below a node that has none yet."""
        for each in ast.walk(node) if node else ():
            if isinstance(each, ast.Name):
                self._set_begin(each, role)
            elif isinstance(each, ast.Attribute):
                self._set_end(each, role)

    def _set_begin(self, node: Located, role: str) -> None:
        self.begins.setdefault(self._position(node.lineno, node.col_offset), role)

    def _set_end(self, node: ast.expr, role: str) -> None:
        assert node.end_lineno is not None and node.end_col_offset is not None  # None only in trees built by hand
        self.ends.setdefault(self._position(node.end_lineno, node.end_col_offset), role)

    def _position(self, line: int, column: int) -> Position:
        """A position in letters, as tokens have; the tree counts bytes."""
        text = self.lines[line - 1]
        return line, column if text.isascii() else len(text.encode()[:column].decode())
