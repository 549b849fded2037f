"""Chooses the columns of a table that a task reads: by header, by known names, or by data.columns."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...errors import UserError
from .cells import FieldValue, Row, any_label_value, labels_value, number_value, tags_value, text_value, words_value
from .cells import MediaValue as MediaValue
from .cells import is_media as is_media
from .cells import is_missing as is_missing
from .cells import label_value as label_value

MAX_NAME = 40  # characters of a column name; a longer cell is text
TRANSLATION = "translation."  # as Hugging Face names the columns of a pair
LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?")  # en, pt-BR

Convert = Callable[[object, Sequence[str]], FieldValue]  # (cell, label names) -> value; a ValueError says what is there


@dataclass(frozen=True)
class Role:
    """The purpose of a column. `known` has groups of column names for it, the most specific group first."""

    name: str
    value_type: str  # for messages
    known: tuple[tuple[str, ...], ...]
    convert: Convert
    optional: bool = False  # its value may be empty

    def find(self, names: Sequence[str], taken: Sequence[int | None]) -> list[int]:
        """The columns with a known name of this role, from the most specific group; the names are in lower case."""
        for group in self.known:
            if matches := [index for index, name in enumerate(names) if name in group and index not in taken]:
                return matches
        return []


# --- roles -----------------------------------------------------------------------------------------------------------

TEXT_NAMES = (
    "sentence",
    "content",
    "document",
    "review",
    "comment",
    "utterance",
    "message",
    "tweet",
    "body",
    "question",
)
SOURCE_NAMES = ("src", "input", "prompt", "question", "article", "document", "text", "sentence")
TARGET_NAMES = ("tgt", "trg", "output", "completion", "response", "answer", "summary", "reference")
LABEL_NAMES = ("labels", "class", "category", "target", "intent", "sentiment", "gold", "topic", "label_text")

TEXT = Role("text", "text", (("text",), TEXT_NAMES), text_value)
PAIR_NAMES = {
    "text": "text_pair",
    "sentence1": "sentence2",
    "premise": "hypothesis",
    "question1": "question2",
    "text1": "text2",
    "text_a": "text_b",
    "query": "passage",
}  # the columns of the first and of the second text
FIRST_TEXT = Role("text", "text", (tuple(PAIR_NAMES), TEXT_NAMES), text_value)
TEXT_PAIR = Role("text_pair", "text", (tuple(PAIR_NAMES.values()),), text_value)
LABEL = Role("label", "label", (("label",), LABEL_NAMES), label_value)
ANY_LABEL = replace(LABEL, convert=any_label_value)
LABELS = Role("label", "list of labels", LABEL.known, labels_value, optional=True)
NUMBER = Role("label", "number", (("label",), (*LABEL_NAMES, "score", "similarity", "value", "rating")), number_value)
SOURCE = Role("source", "text", (("source",), SOURCE_NAMES), text_value)
TARGET = Role("target", "text", (("target",), TARGET_NAMES), text_value)
WORDS = Role("tokens", "list of texts", (("tokens",), ("words",)), words_value)
PROMPT = Role("prompt", "text", (("prompt",), ("text",), TEXT_NAMES), text_value)
TAGS = Role(
    "tags", "list of tags", (("tags",), ("ner_tags", "pos_tags", "upos_tags", "chunk_tags", "labels")), tags_value
)


# --- the choice ------------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """The columns of a table that are read."""

    indices: tuple[int | None, ...]  # of each role; then of further references
    names: tuple[str, ...]  # of all columns of the table; numbers from 1 if it has no header
    header: bool  # the table has one


class PairColumns(Exception):
    """The columns of a table are those of text pairs."""


@dataclass(frozen=True)
class ColumnRule:
    """How the columns of a task's tables are chosen."""

    roles: tuple[Role, ...]
    columns: tuple[str, ...] = ()  # data.columns; an empty one is found by known names
    header: str = "auto"  # data.header
    names: tuple[str, ...] = ()  # data.names
    required: int = 0  # number of roles that must have a column; 0: all
    references: bool = False  # columns after those of the roles are further references
    key: str = "data.columns"
    watch_pairs: bool = False  # raise PairColumns where the names are those of two texts

    @property
    def needed(self) -> int:
        return self.required or len(self.roles)

    @property
    def words(self) -> list[str]:
        return [role.name for role in self.roles]

    @property
    def blank(self) -> Row:
        """The fields of an example without content."""
        return tuple(role.convert(None, ()) for role in self.roles)

    @property
    def takes_texts(self) -> bool:
        """True if any text is a valid cell of every role."""
        plain = (TEXT, FIRST_TEXT, TEXT_PAIR, LABEL, ANY_LABEL, SOURCE, TARGET)
        return not self.names and all(role in plain for role in self.roles)

    @property
    def labeled(self) -> bool:
        """True if an example has a label, labels or a number."""
        return any(role.name == LABEL.name for role in self.roles)

    @property
    def ordered(self) -> bool:
        """True if data.columns has the names of the roles in the order of the columns, such as label,text."""
        return set(self.words) <= set(self.columns)

    def by_name(self, names: Sequence[str]) -> Choice:
        """The columns of a table whose columns have these names."""
        lower = {name.strip().lower() for name in names}
        if self.watch_pairs and any(lower >= {*pair} for pair in PAIR_NAMES.items()):
            raise PairColumns
        indices = self._chosen_columns(names) if self.columns else self._known_columns(names)
        return Choice(tuple(indices), tuple(names), True)

    def by_number(self, count: int) -> Choice:
        """The columns of a table of `count` columns without names. A ValueError says that there are too few."""
        numbers = tuple(str(number) for number in range(1, count + 1))
        if self.ordered:
            indices: list[int | None] = [self.columns.index(word) for word in self.words]
        elif self.columns:
            indices = [self._number(column, count) for column in self._named_columns()]
        elif count == 1 and self.needed == 1:
            indices = [0]
        elif count > len(self.roles):
            raise UserError(
                f"{count} columns without a header, and {self._expected()} are needed; give the numbers of these, such "
                f"as {self.key}={','.join(numbers[: len(self.roles)])}, or data.header=yes if the first line names them"
            )
        else:
            indices = list(range(len(self.roles)))
        for index in indices[: self.needed]:
            if index is None or index >= count:
                most = max(index for index in indices[: self.needed] if index is not None) + 1
                raise ValueError(f"{count} columns, expected at least {most} ({self.key})")
        present = [index if index is not None and index < count else None for index in indices]
        return Choice((*present, *[None] * (len(self.roles) - len(present))), numbers, False)

    def is_header(self, cells: Sequence[str]) -> bool | None:
        """Whether a first line has the names of the columns; None if it is possible but no name is known."""
        if self.header != "auto":
            return self.header == "yes"
        names = [cell.strip().lower() for cell in cells]
        plausible = len(set(names)) == len(names) and all(0 < len(name) <= MAX_NAME for name in names)
        if self.columns and not self.ordered and not all(column.isdecimal() for column in self.columns):
            return True
        if not plausible:
            return False
        known = [bool(role.find(names, ())) for role in self.roles]
        if all(known[: self.needed]) and (all(known) or len(cells) == 1 or len(cells) > len(self.roles) > self.needed):
            return True
        if self.labeled and any(known) and len(cells) > 1:
            return True
        if self.needed < len(self.roles) == len(cells) and known[0]:  # training reads it as an example
            raise UserError(
                f"the first line, {' | '.join(cells)}, may name the columns or be an example; set data.header=yes or no"
            )
        return None

    # The names or numbers that the user gives

    def _named_columns(self) -> tuple[str, ...]:
        """data.columns, one for each role; with `references`, more."""
        words = self.words
        if self.ordered:
            return tuple(words)
        if len(self.columns) < self.needed:
            number = "one column" if len(self.columns) == 1 else f"{len(self.columns)} columns"
            expected = f"{_number_word(len(words))}: {', '.join(words)}"
            raise UserError(f"{self.key}={','.join(self.columns)} names {number}, expected {expected}")
        if len(self.columns) > len(words) and TARGET not in self.roles:
            raise UserError(
                f"{self.key}={','.join(self.columns)} is not clear; expected {_number_word(len(words))}, "
                f"{self._expected()}, by number or by name, or the words {' and '.join(words)} in the order of the "
                f"columns, such as {','.join(reversed(words))}"
            )
        return self.columns if self.references else self.columns[: len(words)]

    def _chosen_columns(self, names: Sequence[str]) -> list[int | None]:
        indices: list[int | None] = []
        for place, column in enumerate(self._named_columns()):
            if not column:
                indices.append(replace(self, columns=(), roles=(self.roles[place],)).by_name(names).indices[0])
            elif matches := _named(names, column):
                if len(matches) > 1:
                    numbers = " and ".join(str(index + 1) for index in matches)
                    raise UserError(f"columns {numbers} are both {column!r} ({self.key}); give the number of one")
                indices.append(matches[0])
            elif column.isdecimal() and 1 <= int(column) <= len(names):
                indices.append(int(column) - 1)
            elif place < self.needed:
                raise UserError(
                    f"the header has no column {column!r} ({self.key}), it has {', '.join(names) or 'nothing'}; "
                    "name one of these, or a number"
                )
            else:
                indices.append(None)
        return [*indices, *[None] * (len(self.roles) - len(indices))]

    def _number(self, column: str, count: int) -> int:
        if not column.isdecimal():
            raise UserError(f"the columns have no names, and {self.key} asks for {column!r}; give its number")
        if column == "0":
            raise UserError(f"{self.key}={','.join(self.columns)} holds 0; columns are counted from 1")
        return int(column) - 1

    # Known names

    def _known_columns(self, names: Sequence[str]) -> list[int | None]:
        indices: list[int | None] = []
        lower = [name.strip().lower() for name in names]
        for role in self.roles:
            matches = role.find(lower, indices)
            if len(matches) > 1:
                candidates = " and ".join(names[index] for index in matches)
                raise self._unclear(names, f"{candidates} may each be the {role.name}")
            indices.append(matches[0] if matches else None)
        free = [index for index in range(len(names)) if index not in indices]
        missing = [place for place, index in enumerate(indices) if index is None]
        if SOURCE in self.roles and len(missing) == len(self.roles):
            inner = [index for index in free if lower[index].startswith(TRANSLATION)]
            if len(inner or free) == len(self.roles):
                return [*(inner or free)]  # two columns, such as en and de, or translation.en and translation.de
        if len(missing) == 1 and len(free) == 1 and len(names) <= len(self.roles):
            indices[missing[0]] = free[0]
        for role, index in zip(self.roles[: self.needed], indices, strict=False):
            if index is None:
                raise self._unclear(names, f"none of them is known to be the {role.name}")
        return indices

    def _unclear(self, names: Sequence[str], problem: str) -> UserError:
        columns = ", ".join(names) or "nothing"
        example = ",".join((*dict.fromkeys(names), *self.words)[: len(self.roles)])
        return UserError(
            f"the columns are {columns}, and {problem}; name {self._expected()}, such as {self.key}={example}"
        )

    def _expected(self) -> str:
        return " and ".join(f"the {role.name}'s" for role in self.roles[: self.needed])

    # What was chosen

    def describe(self, choice: Choice) -> str:
        """A sentence about the chosen columns."""
        words = [*self.words, *["reference"] * (len(choice.indices) - len(self.roles))]
        chosen = [*zip(words, choice.indices, strict=True)][: self.required or None]
        parts = ", ".join(f"{word} is column {choice.names[index]}" for word, index in chosen if index is not None)
        return f"{parts} (of {', '.join(choice.names)})" if choice.header else f"{parts} (no header)"

    def row(self, cells: Sequence[object]) -> Row:
        """The fields of an example from the cells of the chosen columns."""
        if len(cells) == len(self.roles):
            try:
                return tuple([role.convert(cell, self.names) for role, cell in zip(self.roles, cells, strict=True)])
            except ValueError:
                pass  # the code below adds the name of the column
        values: list[Any] = [
            self._value(role, cell) for role, cell in zip(self.roles, cells[: len(self.roles)], strict=True)
        ]
        if more := [text for cell in cells[len(self.roles) :] if (text := text_value(cell)).strip()]:
            values[-1] = "\t".join([values[-1], *more] if values[-1].strip() else more)
        return tuple(values)

    def _value(self, role: Role, cell: object) -> FieldValue:
        try:
            return role.convert(cell, self.names)
        except ValueError as error:
            raise ValueError(f"no {role.value_type} under {role.name!r} but {error}") from error


def _named(names: Sequence[str], column: str) -> list[int]:
    """The columns with this name; else columns of a nested object, such as translation.en for en."""
    matches = [index for index, name in enumerate(names) if name == column]
    if matches or column.isdecimal():
        return matches
    return [index for index, name in enumerate(names) if name.endswith(f".{column}")]


def _number_word(count: int) -> str:
    return {1: "one", 2: "two"}.get(count, str(count))
