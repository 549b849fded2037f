"""Dependency trees of Universal Dependencies: for every word its head and its relation to it (CoNLL-U)."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from os import fspath
from pathlib import Path

from ...config.data.texts import TagData
from ...errors import UserError
from .tagged import CONLLU, Conllu, TaggedSentences, Word

ID, HEAD, RELATION = (CONLLU.index(name) for name in ("id", "head", "deprel"))
ROOT = -1  # the head of the root


@dataclass(frozen=True)
class DependencyTree:
    """The words of a sentence; for each the index of its head, or ROOT, and the relation."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]

    @property
    def punctuation(self) -> list[bool]:
        """For every word, whether it has punctuation and symbols only."""
        return [all(unicodedata.category(letter)[0] in "PS" for letter in word) for word in self.words]


class ConlluTrees(Conllu):
    """Reads the columns id, head and deprel as one tag."""

    def __init__(self) -> None:
        super().__init__("upos")

    def word(self, line: str, tagged: bool) -> Word | None:
        word = super().word(line, tagged)
        if word is None:
            return None
        cells = line.split("\t")
        if not cells[HEAD].isdecimal() or cells[RELATION] == "_":
            raise ValueError(
                f"the head is {cells[HEAD]!r} and the relation {cells[RELATION]!r}, so there is no tree; give CoNLL-U "
                "with the columns head and deprel"
            )
        return Word(word.text, f"{cells[ID]} {cells[HEAD]} {cells[RELATION]}")


def read_trees(path: str | Path) -> list[DependencyTree]:
    """The trees in a CoNLL-U file, or in files that match a pattern."""
    sentences = TaggedSentences([fspath(path)], TagData(), ConlluTrees())
    sentences.require_nonempty(str(path))
    return [_tree(words, tags, sentences.location(i)) for i, (words, tags) in enumerate(sentences.examples)]


def _tree(words: Sequence[str], tags: Sequence[str], where: str) -> DependencyTree:
    ids, heads, relations = zip(*(tag.split(" ", 2) for tag in tags), strict=True)
    if [*map(int, ids)] != [*range(1, len(words) + 1)] or max(map(int, heads)) > len(words):
        raise UserError(
            f"{where}: the words of a sentence have ids 1, 2, 3…, and heads among them; this sentence has "
            f"ids up to {ids[-1]} and {len(words)} words, restore it"
        )
    return DependencyTree(tuple(words), tuple(int(head) - 1 for head in heads), tuple(relations))
