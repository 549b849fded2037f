"""Embedded data for tagging: what each token of Python source is there for. The source is the standard library's."""

import ast
import hashlib
import io
import keyword
import random
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError
from .dates import InMemoryExamples

LEAST, MOST = 24, 64  # tokens of a sentence: whole logical lines until there are enough
HELD = 400  # sentences each of valid and test
SHOWN = 16  # letters of a string or a comment
PARTS = {0: "valid", 1: "test"}  # of every ten modules one each
SKIPPED = {tokenize.ENCODING, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Place = tuple[int, int]  # line and column
Sentence = tuple[tuple[str, ...], tuple[str, ...]]  # words and roles


def make_python_tags(examples: int, seed: int) -> dict[str, InMemoryExamples]:
    """Sentences for train, valid and test. No module is in two of them; valid and test are the same for every seed, and
    all are the same for one version of Python."""
    made: dict[str, list[Sentence]] = {"train": [], "valid": [], "test": []}
    enough = {"train": examples, "valid": HELD, "test": HELD}
    for path in modules():
        part = PARTS.get(_hash(path.name) % 10, "train")
        if len(made[part]) < 2 * enough[part]:
            made[part] += sentences(path)
    chance = {part: random.Random(f"roles {part} {seed if part == 'train' else 0}") for part in made}
    chosen = {part: chance[part].sample(some, min(len(some), enough[part])) for part, some in made.items()}
    return {part: PythonTagExamples(f"embedded {part} roles of Python tokens", some) for part, some in chosen.items()}


class PythonTagExamples(InMemoryExamples):
    """Words and their roles, held in memory."""

    def text(self, index: int, side: int) -> str:
        return " ".join(self.examples[index][side])


def modules() -> list[Path]:
    """The top-level modules of the standard library, in an order that has nothing to do with the alphabet."""
    folder = Path(sysconfig.get_path("stdlib"))
    found = sorted(folder.glob("*.py"), key=lambda path: _hash(path.name))
    if len(found) < 50:
        raise UserError(
            f"{folder} holds {len(found)} modules, and the embedded data are made from the source of the standard "
            "library; install Python with its source, or give data.train"
        )
    return found


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def sentences(path: Path) -> Iterator[Sentence]:
    """The tokens of a module with their roles, a few lines together. What cannot be parsed here is passed over."""
    try:
        source = path.read_text(encoding="utf-8")
        tree, tokens = ast.parse(source), list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, UnicodeDecodeError, OSError, tokenize.TokenError):
        return
    known = NameRoles(tree, source.splitlines())
    words: list[str] = []
    tags: list[str] = []
    line: list[str] = []  # the logical line so far
    for token in tokens:
        if token.type not in SKIPPED:
            words.append(shown(token.string))
            tags.append(known.role(token, line))
            line.append(token.string)
        if token.type in (tokenize.NEWLINE, tokenize.COMMENT):
            line = []
        if len(words) >= (LEAST if token.type == tokenize.NEWLINE else MOST):
            yield tuple(words), tuple(tags)
            words, tags = [], []


def shown(text: str) -> str:
    return text.partition("\n")[0][:SHOWN]


def named(line: list[str]) -> str:
    """What a name behind these tokens is, where they alone decide it."""
    first, before = (line[0], line[-1]) if line else ("", "")
    if before in ("def", "class"):
        return "function" if before == "def" else "class"
    if first in ("from", "import"):
        if before == "as":
            return "alias"
        return "imported" if first == "from" and "import" in line else "module"
    return "target" if first == "except" and before == "as" else ""


class NameRoles:
    """What the syntax tree says of names, by where they begin or end."""

    def __init__(self, tree: ast.AST, lines: list[str]) -> None:
        self.lines = lines
        self.begins: dict[Place, str] = {}
        self.ends: dict[Place, str] = {}
        for node in ast.walk(tree):  # parents come first: what they say of a name is not said over
            self._look(node)

    def role(self, token: tokenize.TokenInfo, line: list[str]) -> str:
        kinds = {tokenize.COMMENT: "comment", tokenize.NUMBER: "number", tokenize.OP: "operator"}
        if token.type in kinds:
            return kinds[token.type]
        if token.type != tokenize.NAME:
            return "string"
        if keyword.iskeyword(token.string):
            return "constant" if token.string in ("True", "False", "None") else "keyword"
        told = named(line) or self.begins.get(token.start) or self.ends.get(token.end)
        return told or "other"

    def _look(self, node: ast.AST) -> None:
        match node:
            case ast.Call(func=ast.Name() as name):
                self._begin(name, "called")
            case ast.Call(func=ast.Attribute() as attribute):
                self._end(attribute, "method")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for decorator in node.decorator_list:
                    self._all(decorator, "decorator")
                for base in getattr(node, "bases", ()):
                    self._all(base, "base")
            case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
                self._all(target, "loop")
            case ast.ExceptHandler(type=ast.AST() as type):
                self._all(type, "exception")
            case ast.Raise(exc=ast.Call(func=called)):
                self._all(called, "exception")
            case ast.arg(annotation=annotation):
                self._begin(node, "parameter")
                self._all(annotation, "annotation")
            case ast.keyword(arg=str()):
                self._begin(node, "argument")
            case ast.Attribute():
                self._end(node, "attribute")
            case ast.Name(ctx=ast.Store()):
                self._begin(node, "target")
            case ast.Name():
                self._begin(node, "read")

    def _all(self, node: ast.AST | None, role: str) -> None:
        """Of every name below a node that nobody has spoken of."""
        for each in ast.walk(node) if node else ():
            if isinstance(each, ast.Name):
                self._begin(each, role)
            elif isinstance(each, ast.Attribute):
                self._end(each, role)

    def _begin(self, node: ast.AST, role: str) -> None:
        self.begins.setdefault(self._place(node.lineno, node.col_offset), role)  # type: ignore[attr-defined]

    def _end(self, node: ast.AST, role: str) -> None:
        self.ends.setdefault(self._place(node.end_lineno, node.end_col_offset), role)  # type: ignore[attr-defined]

    def _place(self, line: int, column: int) -> Place:
        """The tree counts bytes, tokens count letters."""
        text = self.lines[line - 1]
        return line, column if text.isascii() else len(text.encode()[:column].decode())
