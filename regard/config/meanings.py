"""What settings mean: the comment behind a field of a group, which goes on in the lines below it.

Nothing else says what a setting means: `--explain`, shell completion and the tables of the docs read these comments.
They are read from the source when somebody asks, so that they cost an import nothing.
"""

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Mapping
from functools import cache
from typing import TypeAlias

Comments: TypeAlias = Mapping[str, Mapping[str, str]]  # by class and field

SHARED = {  # fields that mean the same in the models of most families, or in all strategies; a comment says more
    "family": "the architecture; `regard list` shows the families and their sizes",
    "size": "sets several of these keys at once; a key that is given beside it wins",
    "width": "of the hidden states",
    "heads": "of every attention layer; must divide the width",
    "layers": "number of layers; of an encoder-decoder those of the encoder",
    "inner": "width inside the feed-forward",
    "dropout": "on embeddings and on the output of each sub-layer",
    "attention": "how tokens attend to each other",
    "positions": "how layers know the order of tokens",
    "feed": "the feed-forward of each layer",
    "norm": "the normalization of each sub-layer",
    "head": "the output; the task sets it",
    "labels": "number of labels; the task sets it",
    "patch": "side of a patch in pixels",
    "channels": "of a pixel: red, green, blue",
    "length_penalty": "score = log-probability / length^this; above 1 favors longer output, below 1 shorter",
}
PRAGMA = re.compile(r"(type: ignore|noqa|fmt:)\S*\s*(#\s*|$)")


def meaning_of(group: type, name: str) -> str:
    """What a field of a group of settings means; empty if nothing says it."""
    for base in group.__mro__:
        if comment := _comments(base.__module__).get(base.__qualname__, {}).get(name):
            return comment
    return SHARED.get(name, "")


def meaning_of_kind(group: type) -> str:
    """What a kind of a slot is: the first sentence of its docstring."""
    text = " ".join((group.__doc__ or "").split())
    return re.split(r"(?<=\.) ", text, maxsplit=1)[0].rstrip(".")


@cache
def _comments(module: str) -> Comments:
    """The comments beside the fields of the classes of a module; empty if its source is not there."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    whole = {line for line in comments if source.splitlines()[line - 1].lstrip().startswith("#")}
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return {node.name: _fields(node, comments, whole) for node in classes}


def _fields(group: ast.ClassDef, comments: Mapping[int, str], whole: set[int]) -> dict[str, str]:
    """The comment of every field: those on its own lines, and the whole lines right below it."""
    fields = {}
    for field in group.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            last = field.end_lineno or field.lineno
            lines = [line for line in range(field.lineno, last + 1) if line in comments]
            while last + 1 in whole:
                last += 1
                lines.append(last)
            text = " ".join(PRAGMA.sub("", comments[line]) for line in lines)
            fields[field.target.id] = text.strip()
    return fields
