"""Tables with a record per line: parallel text files, TSV and JSONL. They stay on disk."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ...errors import UserError
from ..files.line_index import BLANK, HEADER, INVALID, VALID
from ..files.lines import TextLines
from .cells import Row
from .columns import LANGUAGE, Choice, ColumnRule
from .records import Table, check_encodable, parse_object, record_cells, record_names, row_status


class ParallelLines(Table):
    """Line i of every file belongs to one record, which has a field per file."""

    def __init__(self, lines: Sequence[TextLines]) -> None:
        self.lines, first = lines, lines[0]
        self.name = ", ".join(file.name for file in lines)
        self.counts = {key: sum(file.counts[key] for file in lines) for key in ("crlf", "bom")}
        for other in lines[1:]:
            if len(other) != len(first):
                raise UserError(
                    f"the sides of the data differ in length: {first.name} has {len(first):,} lines and {other.name} "
                    f"has {len(other):,}; line i of one must belong to line i of the other"
                )

    def __len__(self) -> int:
        return len(self.lines[0])

    def item(self, index: int) -> Row:
        return tuple(file[index] for file in self.lines)

    def statuses(self) -> np.ndarray:
        statuses = np.stack([file.statuses() for file in self.lines])
        return np.where((statuses == INVALID).any(0), INVALID, statuses.max(0)).astype(np.uint8)

    def release_statuses(self) -> None:
        for file in self.lines:
            file.release_statuses()

    def location(self, index: int) -> str:
        return ", ".join(file.location(index) for file in self.lines)

    def adjacent(self, index: int) -> bool:
        return self.lines[0].locate(index)[0] == self.lines[0].locate(index + 1)[0]

    def digest(self) -> bytes:
        return b"\0".join([b"text", *(file.digest() for file in self.lines)])


class LineTable(ParallelLines):
    """One record per line, which a parser splits into fields."""

    def __init__(self, patterns: Sequence[str], parser: "LineParser", invalid: str) -> None:
        self.parser = parser
        super().__init__([TextLines(patterns, invalid, parser.check, check_name=parser.identity)])

    @property
    def has_header(self) -> bool:  # type: ignore[override]
        return all(choice.header for choice in self.parser.choices.values())

    def item(self, index: int) -> Row:
        file, _ = self.lines[0].locate(index)
        return self.parser.row(file, self.lines[0][index])

    def digest(self) -> bytes:
        return b"\0".join([self.parser.name.encode(), self.lines[0].digest()])

    def record(self, index: int) -> dict[str, object]:
        file, _ = self.lines[0].locate(index)
        text = self.lines[0][index]
        return self.parser.record(self.parser.choices[file], text) if text.strip() else {}

    def facts(self) -> list[str]:
        return self.parser.facts()


class LineParser(ABC):
    """Splits the lines of some files into the fields of examples. The first line of each file shows its columns."""

    format: str

    def __init__(self, rule: ColumnRule) -> None:
        self.rule = rule
        self.choices: dict[int, Choice] = {}  # per file
        chosen = rule.columns if rule.references else rule.columns[: len(rule.roles)]
        if rule.ordered or not chosen:
            chosen = self.usual_columns(rule)
        self.name = f"{self.format} {chosen}"  # part of the fingerprint: keep it stable
        self.identity = f"{self.name} {rule.columns} {rule.words} {rule.needed} {rule.header} {rule.names}"

    @abstractmethod
    def usual_columns(self, rule: ColumnRule) -> tuple[str, ...]:
        """The columns that are read by default, without data.columns."""

    @abstractmethod
    def check(self, file: int, line: int, text: str) -> int:
        """The status of a line; a ValueError says what is wrong with it."""

    @abstractmethod
    def cells(self, choice: Choice, text: str) -> list[object]:
        """The cells of the chosen columns."""

    @abstractmethod
    def record(self, choice: Choice, text: str) -> dict[str, object]:
        """All cells by the names of their columns."""

    def row(self, file: int, text: str) -> Row:
        if file not in self.choices or not text or text.isspace():
            return self.rule.blank
        return self.rule.row(self.cells(self.choices[file], text))

    def parses(self, file: int, line: int, text: str) -> bool:
        """Whether a line is a whole record."""
        try:
            return self.check(file, line, text) == VALID
        except ValueError:
            return False

    def facts(self) -> list[str]:
        return list(dict.fromkeys(self.rule.describe(choice) for choice in self.choices.values()))


class TsvParser(LineParser):
    """Cells between tabs. Quotes have no meaning."""

    format = "tsv"

    def __init__(self, rule: ColumnRule) -> None:
        super().__init__(rule)
        self.doubtful = ""  # a first line that may be a header
        self.whole: dict[
            int, tuple[int, tuple[int, ...]]
        ] = {}  # per file: cells of a line, and which must not be empty

    def usual_columns(self, rule: ColumnRule) -> tuple[str, ...]:
        order = rule.columns if rule.ordered else rule.words
        return tuple(str(order.index(word) + 1) for word in rule.words)

    def check(self, file: int, line: int, text: str) -> int:
        if file in self.whole:  # most lines: a million take two seconds less than by `row`
            cells, (width, needed) = text.split("\t"), self.whole[file]
            if len(cells) == width:
                for index in needed:
                    if not cells[index] or cells[index].isspace():
                        return BLANK
                return VALID
        if not text or text.isspace():
            return BLANK
        if file not in self.choices:
            cells = text.split("\t")
            if header := self.rule.is_header(cells):
                self._choose(file, self.rule.by_name([cell.strip() for cell in cells]))
                return HEADER
            self._choose(file, self.rule.by_number(len(cells)))
            if header is None and all(LANGUAGE.fullmatch(cell) for cell in cells):
                self.doubtful = " | ".join(cells)
        return row_status(self.row(file, text), self.rule)

    def _choose(self, file: int, choice: Choice) -> None:
        self.choices[file] = choice
        needed = tuple(index for index in choice.indices[: self.rule.needed] if index is not None)
        if self.rule.takes_texts and len(needed) == self.rule.needed:
            self.whole[file] = len(choice.names), needed

    def cells(self, choice: Choice, text: str) -> list[object]:
        cells = text.split("\t")
        if len(cells) != len(choice.names):
            optional = len(self.rule.columns) > len(self.rule.roles) and not self.rule.ordered  # references
            if len(cells) > len(choice.names) or not optional:
                whose = "the header" if choice.header else "the first line"
                raise ValueError(f"{len(cells)} columns, and {whose} has {len(choice.names)}")
        chosen: list[object] = [
            None if index is None or index >= len(cells) else cells[index] for index in choice.indices
        ]
        if None in chosen and None in chosen[: self.rule.needed]:
            raise ValueError(f"{len(cells)} columns, expected at least {self.rule.needed} ({self.rule.key})")
        return chosen

    def record(self, choice: Choice, text: str) -> dict[str, object]:
        return dict(zip(choice.names, text.split("\t"), strict=False))

    def facts(self) -> list[str]:
        more = f"the first line, {self.doubtful}, is read as an example; if it names the columns, set data.header=yes"
        return super().facts() + [more] * bool(self.doubtful)


class JsonParser(LineParser):
    """A JSON object per line."""

    format = "jsonl"

    def __init__(self, rule: ColumnRule) -> None:
        super().__init__(rule)
        self.example = "{" + ", ".join(f'"{word}": …' for word in rule.words) + "}"

    def usual_columns(self, rule: ColumnRule) -> tuple[str, ...]:
        return tuple(rule.words)

    def check(self, file: int, line: int, text: str) -> int:
        if not text or text.isspace():
            return BLANK
        record = self.parse(text)
        if file not in self.choices:
            self.choices[file] = self.rule.by_name(record_names(record))
        row = self.rule.row(record_cells(record, self.choices[file], self.rule))
        check_encodable(row)
        return row_status(row, self.rule)

    def cells(self, choice: Choice, text: str) -> list[object]:
        return record_cells(self.parse(text), choice, self.rule)

    def record(self, choice: Choice, text: str) -> dict[str, object]:
        return self.parse(text)

    def parse(self, text: str) -> dict[str, object]:
        return parse_object(text, self.example)
