"""The inputs of commands: tables are read by their columns, as in training; other files and stdin as lines."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError
from .lines import decode_lines, open_lines
from .records import Record, parse_records, parse_rows, plain_record

if TYPE_CHECKING:
    from ..config.run import AnyRun
    from ..data.tables.columns import ColumnRule
    from ..data.tables.records import Table
    from ..tasks.predictor import AnyPredictor
    from ..tasks.reading import FileItems, ItemReader

CHUNK = 1000  # records that are read, processed and printed at a time


class Entry(NamedTuple):
    """One record to predict or to score."""

    item: Any  # the argument of `predict`; for `score` the fields of an example
    record: Record | None = None  # all its fields; None for a plain line
    name: str = ""  # of an item that is a file


@dataclass(frozen=True)
class InputFile:
    """The records of a file, or of stdin."""

    entries: Iterable[Entry]
    ready: Callable[[float], bool] = lambda since: True  # as in `Lines`


def chunks(sources: Iterable[InputFile], size: int = CHUNK) -> Iterator[list[Entry]]:
    """Lists of `size` records; of fewer where the next one is not there yet, such as from a slow pipe."""
    chunk: list[Entry] = []
    since = time.monotonic()
    for source in sources:
        if chunk and not source.ready(since):
            yield chunk
            chunk = []
        for entry in source.entries:
            since = since if chunk else time.monotonic()
            chunk.append(entry)
            if len(chunk) == size or not source.ready(since):
                yield chunk
                chunk = []
    if chunk:
        yield chunk


def check_files(names: Sequence[str]) -> None:
    """Refuse files that are missing or may not be read, before any work."""
    from ..data.files.open import open_text

    if not names and sys.stdin.isatty():
        print("reading lines from the terminal; Ctrl-D ends", file=sys.stderr)
    for path in (Path(name) for name in names if name != "-"):
        if path.is_file() or not path.exists():  # a pipe can be opened only once; a folder may hold items
            open_text(path).close()


class InputReader:
    """Opens the inputs of a predictor. Settings of the command line win over those of its run."""

    def __init__(self, predictor: "AnyPredictor", changes: dict[str, str], all_fields: bool = False) -> None:
        """`all_fields` keeps all fields of every record."""
        self.run: AnyRun = predictor.run
        self.reader, self.changes, self.all_fields = predictor.item_reader, changes, all_fields
        self.invalid = changes.get("data.invalid", "refuse")
        self.folders: list[tempfile.TemporaryDirectory[str]] = []  # they live as long as this object

    def items(self, names: Sequence[str]) -> list[InputFile]:
        """The items of `predict`: files, for a predictor of files; otherwise the texts in files or stdin."""
        if (files := self.reader.files) is None:
            return self.texts(names)
        if not names and (text_item := files.text_item) is not None:
            lines = open_lines("-")
            numbered = enumerate(decode_lines(lines, "stdin"), 1)
            return [
                InputFile((Entry(text_item(line), name=f"stdin:{number}") for number, line in numbered), lines.ready)
            ]
        paths: Iterable[str] = names or decode_lines(open_lines("-"), "stdin")  # a name on each line
        return [InputFile(_file_items(files, name)) for name in paths]

    def texts(self, names: Sequence[str]) -> list[InputFile]:
        """The texts of files, or of stdin."""
        rule = self.reader.item_rule
        if "data.columns" in self.changes:
            rule = replace(rule, columns=self.run.data.columns)
        names = names or ["-"]
        prefixes = self._prefixes(names)
        return [self._texts(name, rule, prefix) for name, prefix in zip(names, prefixes, strict=True)]

    def examples(self, names: Sequence[str]) -> list[InputFile]:
        """The examples to score: texts, or texts with their targets."""
        fields, names = self.reader.fields, names or ["-"]
        rule, tables = replace(self.reader.rule, required=fields), [self._is_table(name) for name in names]
        if fields == 1 or tables == [True] or names == ["-"]:
            inputs = zip(names, tables, self._prefixes(names), strict=True)
            return [
                self._rows(name, rule, prefix) if table else self._lines(name, rule) for name, table, prefix in inputs
            ]
        if any(tables):
            table = names[tables.index(True)]
            raise UserError(f"{table} is a table, which holds both sides; give it alone, or two files of lines")
        if len(names) != 2:
            raise UserError(
                f"score takes two files, SOURCE and TARGET, or none (stdin then has both), or one table such as .tsv, "
                f"not {len(names)} files of lines"
            )
        sources, targets = (open_lines(name) for name in names)
        pairs_of_lines = zip_lines(names, decode_lines(sources, names[0]), decode_lines(targets, names[1]))
        return [InputFile(map(Entry, pairs_of_lines), lambda since: sources.ready(since) and targets.ready(since))]

    # Tables

    def _is_table(self, name: str) -> bool:
        return self._format(name) in self.reader.table_formats

    def _format(self, name: str) -> str:
        """The format of an input: that of the command line, else by its suffix, else that of the run for files."""
        from ..data.files.open import plain_suffix
        from ..data.tables.open import SUFFIXES

        default = str(getattr(self.run.data, "format", "auto"))
        if "data.format" in self.changes and default != "auto":
            return default
        return "text" if name == "-" else SUFFIXES.get(plain_suffix(name), default)

    def _texts(self, name: str, rule: "ColumnRule", prefix: str) -> InputFile:
        if self._is_table(name):
            rows, take = self._records(name, rule), self._item
            return InputFile(Entry(prefix + row[0] if prefix else take(row), record) for row, record in rows)
        lines, plain = open_lines(name), self._format(name) == "text" and "data.format" in self.changes
        texts = decode_lines(lines, _display_name(name))
        if (split := self.reader.split) is not None:
            return InputFile(map(Entry, split(texts)), lines.ready)
        items = self._watch_tabs(texts, name)
        if plain:
            return InputFile(map(Entry, items), lines.ready)
        if self.reader.columns > 1:
            return self._lines(name, rule, self.reader.columns)
        if self.reader.record_field is not None:
            return InputFile((Entry(*record) for record in parse_records(items, self.reader.record_field)), lines.ready)
        parsed = parse_rows(items, _display_name(name), self._by_name(rule, "jsonl"))
        return InputFile((Entry(line if row is None else row[0], record) for line, row, record in parsed), lines.ready)

    def _rows(self, name: str, rule: "ColumnRule", prefix: str) -> InputFile:
        rows = self._records(name, rule)
        fields = self.reader.fields
        return InputFile(Entry((prefix + row[0], *row[1:fields])) for row, _ in rows)

    def _item(self, row: tuple[Any, ...]) -> Any:
        """The item of `predict` in a row: a text, or a pair of texts."""
        return row[0] if self.reader.columns == 1 else row[: self.reader.columns]

    def _lines(self, name: str, rule: "ColumnRule", fields: int = 0) -> InputFile:
        """Lines to score: a text each, or a source, a tab and a target, or JSON records; or pairs of texts."""
        lines, fields = open_lines(name), fields or self.reader.fields
        rows = parse_rows(decode_lines(lines, _display_name(name)), _display_name(name), self._by_name(rule, "jsonl"))
        names = [role.name for role in self.reader.roles[:fields]]
        split: Any = split_at_tab if fields == 2 else lambda line, place: (line,)
        if self.reader.columns > 1:
            split = partial(split_at_tabs, names=names)
        numbered = enumerate(rows, 1)
        items = (
            split(line, f"{_display_name(name)}:{n}") if row is None else row[:fields] for n, (line, row, _) in numbered
        )
        return InputFile(map(Entry, items), lines.ready)

    def _open_table(self, name: str, rule: "ColumnRule") -> "tuple[Table, list[int]]":
        """Open and check a table, and print which columns are read; with the statuses of its records."""
        from ..data.files.line_index import INVALID
        from ..data.sources.labeled import refuse_likely_header
        from ..data.tables.open import open_table
        from ..data.tables.records import TableSource

        path = self._save_stdin() if name == "-" else name
        try:
            table = open_table([path], self._by_name(rule, self._format(name)), self._format(name), self.invalid)
        except UserError as error:
            raise UserError(str(error).replace(path, _display_name(name))) from error
        facts, statuses = table.facts(), table.statuses()
        if rule.labeled and rule.header == "auto" and len(examples := TableSource(table)):
            refuse_likely_header(examples, rule)
        if count := int((statuses == INVALID).sum()):
            facts.append(f"{count:,} records are not valid and get an empty answer (data.invalid=skip)")
        for fact in facts:
            print(f"regard: {_display_name(name)}: {fact}", file=sys.stderr)
        return table, statuses.tolist()

    def _by_name(self, rule: "ColumnRule", format: str) -> "ColumnRule":
        """The rule for a table whose columns have names: column numbers of the run are for tables without a header."""
        numbers = format not in ("tsv", "csv") and all(column.isdecimal() for column in rule.columns)
        return replace(rule, columns=()) if numbers and "data.columns" not in self.changes else rule

    def _records(self, name: str, rule: "ColumnRule") -> Iterator[tuple[tuple[Any, ...], Record | None]]:
        """The fields of every record of a table; those of an invalid record are empty. The table is checked at once."""
        from ..data.files.line_index import HEADER, INVALID

        table, statuses = self._open_table(name, rule)
        first = statuses.index(HEADER) + 1 if HEADER in statuses else 0  # blank lines may stand before the header
        rows = (
            (rule.blank if statuses[index] == INVALID else table.item(index), index)
            for index in range(first, len(statuses))
        )
        return ((row, plain_record(table.record(index)) if self.all_fields else None) for row, index in rows)

    def _save_stdin(self) -> str:
        """Copy stdin to a temporary file and return its path."""
        self.folders.append(tempfile.TemporaryDirectory())
        path = Path(self.folders[-1].name) / "stdin"
        with open(path, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return str(path)

    def _prefixes(self, names: Sequence[str]) -> Sequence[str]:
        """The prefix of the texts of each table, as in evaluation; lines already have it."""
        prefixes = getattr(self.run.data, "prefixes", ())
        tables = sum(map(self._is_table, names))
        if not prefixes or not tables:
            return [""] * len(names)
        if len(prefixes) != len(names):
            raise UserError(
                f"data.prefixes has {len(prefixes)} entries and there are {len(names)} files; give one for each"
            )
        return list(prefixes)

    def _watch_tabs(self, lines: Iterable[str], name: str) -> Iterator[str]:
        """The lines; the first with a tab prints how to read columns, if the run was trained on a table."""
        watching = True
        for line in lines:
            if watching and "\t" in line:
                watching = False
                if trained_on_table(self.run, self.reader):
                    notice = "the lines contain tabs and are read whole; data.format=tsv reads columns"
                    print(f"regard: {_display_name(name)}: {notice}", file=sys.stderr)
            yield line


def read_record(predictor: "AnyPredictor", changes: dict[str, str], name: str, number: int) -> str:
    """The text of one record of a file, counted from 1."""
    check_files([name])
    (source,) = InputReader(predictor, changes).texts([name])
    count = 0
    for count, entry in enumerate(source.entries, 1):
        if count == number:
            print(f"regard: {name}: reading record {number}", file=sys.stderr)
            text: str = entry.item if isinstance(entry.item, str) else " ".join(entry.item)
            return text
    raise UserError(f"--record is {number}, and {name} has {count} records; give a number from 1 to {count}")


def trained_on_table(run: "AnyRun", reader: "ItemReader") -> bool:
    """True if the training data of the run are a table."""
    from ..data.files.in_memory import IN_MEMORY
    from ..data.tables.open import file_format

    train = run.data.train
    if not train:
        return False
    default = "tsv" if len(train) == 1 and len(reader.roles) > 1 else "text"
    name = str(train[0][0])
    return name.endswith(IN_MEMORY) or file_format(name, run.data.format, default) != "text"


def _file_items(files: "FileItems", name: str) -> Iterator[Entry]:
    """The items in a file, which is opened when the first is read."""
    check_files([name])
    return (Entry(item, name=place) for place, item in files.open(name))


def zip_lines(names: Sequence[str], sources: Iterator[str], targets: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Pairs of lines of two files, which must have equally many."""
    for number, (source, target) in enumerate(zip_longest(sources, targets)):
        if source is None or target is None:
            remaining = 1 + sum(1 for _ in sources) + sum(1 for _ in targets)
            counts = (number, number + remaining) if source is None else (number + remaining, number)
            raise UserError(f"{names[0]} has {counts[0]} lines and {names[1]} has {counts[1]}; expected equally many")
        yield source, target


def split_at_tab(line: str, place: str) -> tuple[str, str]:
    """The source and the target of a line with one tab."""
    cells = line.split("\t")
    if len(cells) != 2:
        raise UserError(f"{place} has {len(cells) - 1} tabs; expected the source, one tab and the target")
    return cells[0], cells[1]


def split_at_tabs(line: str, place: str, names: Sequence[str]) -> tuple[str, ...]:
    """The cells of a line, one for each of these names."""
    cells = line.split("\t")
    if len(cells) != len(names):
        raise UserError(f"{place} has {len(cells) - 1} tabs; expected {', '.join(names)} with tabs between")
    return tuple(cells)


def _display_name(name: str) -> str:
    return "stdin" if name == "-" else name
