"""Odd files: each is read exactly as an independent model of its format says, or refused with file, line and remedy."""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.config.data.texts import LabelData, MaskData, PairData
from regard.data.source import Source
from regard.data.sources.labeled import labeled_texts
from regard.data.sources.lines import line_examples
from regard.data.sources.pairs import open_pairs
from regard.errors import UserError

# --- the model -------------------------------------------------------------------------------------------------------

KNOWN = {  # the names that generated headers have; the readers know more
    "text": ("text", "sentence", "review"),
    "label": ("label", "class", "sentiment", "target"),
    "source": ("source", "src", "input", "text", "sentence"),
    "target": ("target", "tgt", "output"),
}
TASKS = {"classify": ("text", "label"), "translate": ("source", "target"), "masked": ("text",)}
EMPTY, INVALID = "empty", "invalid"
BOM, UTF_16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")


class Refused(Exception):
    """The model refuses a file; `line` is None if any line may be named."""

    def __init__(self, line: int | None) -> None:
        self.line = line


@dataclass(repr=False)
class Odd:
    """A generated file, and how it is read."""

    format: str
    data: bytes
    task: str
    header: str = "auto"
    columns: tuple[str, ...] = ()
    skip: bool = False
    roles: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.roles = TASKS[self.task]

    def __repr__(self) -> str:
        asked = f"header={self.header} columns={','.join(self.columns)} skip={self.skip}"
        return f"{self.format} for {self.task} {asked} {self.data[:300]!r}"


def is_blank(line: str) -> bool:
    return not line.strip()


def byte_error(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return b"\0" in data


def named(names: list[str], odd: Odd) -> list[int]:
    """The columns that are read, in a table with a header. An IndexError if that is not clear."""
    if odd.columns:
        ordered = set(odd.roles) <= set(odd.columns)  # then they only tell the order of a table without a header
        return [one_of_columns(names, column) for column in (odd.roles if ordered else odd.columns)]
    lower = [name.strip().lower() for name in names]
    chosen: list[int | None] = []
    for role in odd.roles:
        found = [at for at, name in enumerate(lower) if name == role and at not in chosen]
        found = found or [at for at, name in enumerate(lower) if name in KNOWN[role] and at not in chosen]
        if len(found) > 1:
            raise IndexError
        chosen.append(found[0] if found else None)
    free = [at for at in range(len(names)) if at not in chosen]
    if odd.task == "translate" and chosen == [None, None] and len(free) == 2:
        chosen = [*free]
    if chosen.count(None) == 1 and len(free) == 1 and len(names) <= len(odd.roles):
        chosen[chosen.index(None)] = free[0]
    if None in chosen:
        raise IndexError
    return [at for at in chosen if at is not None]


def one_of_columns(names: list[str], column: str) -> int:
    found = [at for at, name in enumerate(names) if name == column]
    if len(found) > 1:
        raise IndexError
    if found:
        return found[0]
    if not column.isdecimal() or not 1 <= int(column) <= len(names):
        raise IndexError
    return int(column) - 1


def numbered(width: int, line: int, odd: Odd) -> list[int]:
    """The columns that are read, in a table without a header."""
    if odd.columns and set(odd.roles) <= set(odd.columns):
        chosen = [odd.columns.index(role) for role in odd.roles]
    elif not all(column.isdecimal() for column in odd.columns):
        raise Refused(line)
    elif odd.columns:
        chosen = [int(column) - 1 for column in odd.columns]
    else:
        chosen = [*range(len(odd.roles))] if width <= len(odd.roles) else []
    if len(chosen) < len(odd.roles) or max(chosen) >= width:
        raise IndexError
    return chosen


def has_header(cells: list[str], odd: Odd) -> bool | None:
    """None: the first line has short distinct cells, and no known name."""
    if odd.header != "auto":
        return odd.header == "yes"
    ordered = odd.columns and set(odd.roles) <= set(odd.columns)
    if odd.columns and not ordered and not all(column.isdecimal() for column in odd.columns):
        return True
    names = [cell.strip().lower() for cell in cells]
    if len(set(names)) < len(names) or not all(0 < len(name) <= 40 for name in names):
        return False
    found = [any(name in KNOWN[role] for name in names) for role in odd.roles]
    if all(found) or (odd.task == "classify" and any(found) and len(cells) > 1):
        return True
    return None


def record(cells: list[Any], odd: Odd) -> Any:
    """A record of these cells: a tuple, or EMPTY, or INVALID."""
    values = []
    for role, cell in zip(odd.roles, cells, strict=True):
        if cell is None or (isinstance(cell, float) and cell != cell):
            values.append("")
        elif isinstance(cell, str):
            values.append(cell.strip() if role == "label" else cell)
        elif role == "label" and isinstance(cell, bool | int | float):
            values.append(json.dumps(cell))
        else:
            return INVALID
    if any("\0" in value or any("\ud800" <= char <= "\udfff" for char in value) for value in values):
        return INVALID
    return tuple(values) if all(value.strip() for value in values) else EMPTY


def checked(records: Iterator[tuple[int, Any]], odd: Odd) -> list[Any]:
    """The records; the first invalid one is refused, unless they are left out."""
    kept = []
    for line, each in records:
        if each == INVALID and not odd.skip:
            raise Refused(line)
        kept.append(each)
    return kept


def choose(cells: list[str], line: int, odd: Odd) -> tuple[bool, list[int]]:
    """What the first row says: whether it is a header, and the columns that are read."""
    header = has_header(cells, odd)
    too_many = not header and not odd.columns and len(cells) > len(odd.roles)
    if too_many or (header is None and odd.format == "csv"):
        raise Refused(line)
    if not header:
        return False, numbered(len(cells), line, odd)
    try:
        return True, named([cell.strip() for cell in cells], odd)
    except IndexError:
        raise Refused(line) from None


def model_tsv(odd: Odd) -> list[Any]:
    lines = odd.data.removeprefix(BOM).split(b"\n")
    return checked(tsv_records(lines[:-1] if lines[-1] == b"" else lines, odd), odd)


def tsv_records(lines: list[bytes], odd: Odd) -> Iterator[tuple[int, Any]]:
    chosen: list[int] = []
    width = 0
    for line, data in enumerate(lines, 1):
        cells = [] if byte_error(data) else data.decode().removesuffix("\r").split("\t")
        if not cells:
            yield line, INVALID
        elif is_blank("".join(cells)):
            yield line, EMPTY
        elif width:
            yield line, record([cells[at] for at in chosen], odd) if len(cells) == width else INVALID
        else:
            try:
                header, chosen = choose(cells, line, odd)
            except IndexError:
                yield line, INVALID  # too few cells; the next line decides
                continue
            width = len(cells)
            if not header:
                yield line, record([cells[at] for at in chosen], odd)


def whole_text(odd: Odd) -> str:
    if odd.data.startswith(UTF_16):
        raise Refused(1)
    bad = [line for line, data in enumerate(odd.data.split(b"\n"), 1) if byte_error(data)]
    if bad and not odd.skip:
        raise Refused(bad[0])
    return odd.data.removeprefix(BOM).decode("utf-8", "surrogateescape")


def delimiter_of(text: str) -> str:
    """The most frequent one in the first row, outside quotes."""
    text, quoted, outside = text.lstrip("\r\n "), False, ""
    for char in text:
        quoted ^= char == '"'
        if char in "\r\n" and not quoted:
            break
        outside += "" if quoted else char
    if not any(each in outside for each in ",;\t|"):
        outside = re.split(r"[\r\n]", text, maxsplit=1)[0]
    return max(",;\t|", key=outside.count)


def model_csv(odd: Odd) -> list[Any]:
    text = whole_text(odd)
    rows, line = [], 1
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(text), strict=True)
    try:
        for cells in reader:
            rows += [(line, cells)] * bool(cells)
            line = reader.line_num + 1
    except csv.Error:
        raise Refused(None) from None
    begin = next((at for at, (_, cells) in enumerate(rows) if not is_blank("".join(cells))), None)
    if begin is None:
        raise Refused(1)
    try:
        header, chosen = choose(rows[begin][1], rows[begin][0], odd)
    except IndexError:
        raise Refused(rows[begin][0]) from None
    width = len(rows[begin][1])
    rows = rows[begin + 1 :] if header else rows
    rows = [(line, cells) for line, cells in rows if width == 1 or cells != [cells[0]] or not is_blank(cells[0])]
    whole = lambda cells: record([cells[at] for at in chosen], odd) if len(cells) == width else INVALID  # noqa: E731
    return checked(((line, whole(cells)) for line, cells in rows), odd)


def json_names(value: dict[str, Any]) -> list[str]:
    return [
        f"{name}.{inner}" if isinstance(each, dict) else name
        for name, each in value.items()
        for inner in (each if isinstance(each, dict) else [""])
    ]


def json_record(value: Any, names: list[str], odd: Odd) -> Any:
    """The record of an object in which these names are read."""
    cells = []
    for name in names:
        outer, _, inner = name.partition(".")
        if not isinstance(value, dict):
            return INVALID
        if name in value:
            cells.append(value[name])
        elif isinstance(value.get(outer), dict) and inner in value[outer]:
            cells.append(value[outer][inner])
        else:
            return INVALID
    return record(cells, odd)


def model_jsonl(odd: Odd) -> list[Any]:
    lines = odd.data.removeprefix(BOM).split(b"\n")
    return checked(jsonl_records(lines[:-1] if lines[-1] == b"" else lines, odd), odd)


def jsonl_records(lines: list[bytes], odd: Odd) -> Iterator[tuple[int, Any]]:
    names: list[str] | None = None
    for line, data in enumerate(lines, 1):
        if byte_error(data):
            yield line, INVALID
        elif is_blank(data.decode()):
            yield line, EMPTY
        else:
            try:
                value = json.loads(data.decode().removesuffix("\r"))
            except (ValueError, RecursionError):
                value = None
            if names is None and isinstance(value, dict):
                try:
                    names = [json_names(value)[at] for at in named(json_names(value), odd)]
                except IndexError:
                    raise Refused(line) from None
            yield line, json_record(value, names or [], odd) if isinstance(value, dict) else INVALID


def model_json(odd: Odd) -> list[Any]:
    if not odd.data.removeprefix(BOM).lstrip().startswith(b"["):
        return model_jsonl(odd)
    try:
        values = json.loads(whole_text(odd))
    except (ValueError, RecursionError):
        raise Refused(None) from None
    if not values:
        return []
    first = next((value for value in values if isinstance(value, dict)), {})
    try:
        names = [json_names(first)[at] for at in named(json_names(first), odd)]
    except IndexError:
        raise Refused(None) from None
    return checked(((-1, json_record(value, names, odd)) for value in values), odd)


MODELS = {"tsv": model_tsv, "csv": model_csv, "jsonl": model_jsonl, "json": model_json}

# --- the files -------------------------------------------------------------------------------------------------------

PIECES = [
    "a",
    "word",
    "é",
    "東",
    "🙂",
    " ",
    "  ",
    "'",
    ",",
    ";",
    "|",
    "\\",
    "\\n",
    ":",
    "{",
    "}",
    "[",
    "]",
    "#",
    "--",
    "/",
]
PIECES += [
    "0",
    "1",
    "-1",
    "1e5",
    "NaN",
    "null",
    "true",
    "=1+1",
    "\ufeff",
    "\u2028",
    "\x0b",
    "\x1c",
    "\x85",
    "\xa0",
    "\ud83d",
]
BREAKS = ["\t", "\n", "\r", "\r\n", '"', '""', "\0"]
plain = st.lists(st.sampled_from(PIECES[:-1]), max_size=4).map("".join)
odd_cell = st.lists(st.sampled_from(PIECES[:-1] + BREAKS), max_size=4).map("".join)
huge = st.integers(100_000, 150_000).map(lambda size: "x " * (size // 2))
cells = st.one_of(plain, plain, plain, odd_cell) | st.sampled_from(["good film", "pos", "neg", "0", "1", "", " "])
NAMES = sorted(
    {name for names in KNOWN.values() for name in names} | {"Text", " label ", "id", "x", "1", "2", "a b", ""}
)
ENDS = ["\n", "\n", "\n", "\r\n", "\r", "\n\n", "\n \n", ""]


@st.composite
def tables(draw: st.DrawFn, roles: tuple[str, ...]) -> list[list[str]]:
    """Rows of cells; the first may be a header, and some have a cell too many or too few."""
    width = draw(st.sampled_from([1, 2, 2, 2, 2, 3, 4]))
    usual = st.sampled_from([[*roles], [*roles], [*roles[::-1]], ["id", *roles], [KNOWN[role][1] for role in roles]])
    odd = st.lists(st.sampled_from(NAMES), min_size=width, max_size=width)
    header = draw(st.one_of(st.just([]), usual, usual, usual, usual, odd))
    width = len(header) or width
    rows = draw(st.lists(st.lists(cells, min_size=width, max_size=width), max_size=5))
    if rows and draw(st.integers(0, 5)) == 0:
        rows[draw(st.integers(0, len(rows) - 1))] = draw(st.lists(cells, max_size=width + 2))
    if rows and rows[0] and draw(st.integers(0, 40)) == 0:
        rows[0][0] = draw(huge)
    return [header] * bool(header) + rows


def join(draw: st.DrawFn, lines: list[str]) -> str:
    end = draw(st.sampled_from(ENDS[:4]))
    ends = [draw(st.sampled_from(ENDS)) for _ in lines] if draw(st.integers(0, 3)) == 0 else [end] * len(lines)
    return "".join(line + each for line, each in zip(lines, ends, strict=True))


def write_cell(draw: st.DrawFn, cell: str, delimiter: str) -> str:
    """A cell of CSV: quoted as it should be or, rarely, not."""
    quoted = '"' + cell.replace('"', '""') + '"'
    needed = any(char in cell for char in f'{delimiter}"\r\n')
    wrong = [cell, f'"{cell}"', f'"{cell}', f"'{cell}'"]
    return draw(st.sampled_from([quoted, quoted if needed else cell] * 20 + wrong))


values = st.one_of(
    cells, cells, cells, cells, st.none(), st.integers(-2, 2), st.booleans(), st.sampled_from([0.5, -2.0, float('nan'), float('inf')]),
    st.lists(cells, max_size=2), st.dictionaries(st.sampled_from(["text", "en", "de"]), cells, max_size=2),
    st.sampled_from(["\ud83d", "a\0b", 10**30]),
)  # fmt: skip


@st.composite
def json_lines(draw: st.DrawFn, roles: tuple[str, ...]) -> list[str]:
    """Objects as JSON, some of them damaged."""
    names = draw(st.sampled_from([[*roles]] * 4 + [[*roles[::-1]], ["id", *roles], ["text"], ["x", "y"]]))
    lines = []
    for _ in range(draw(st.integers(0, 5))):
        value: Any = {name: draw(cells) for name in names}
        kind = draw(st.integers(0, 20))
        if kind < 6:
            value[draw(st.sampled_from([*names, "more"]))] = draw(values)
        elif kind == 6:
            value.pop(draw(st.sampled_from(names)))
        elif kind == 7:
            value = draw(st.sampled_from([1, None, "text", [], [value], {}, {"text": {"text": value}}, 1.5]))
        line = json.dumps(value, ensure_ascii=draw(st.booleans())).replace("\ud83d", "\\ud83d")
        if kind == 8:
            line = draw(
                st.sampled_from([line[:-1], line + ",", line + line, line + " x", "{" + line, "[" * 3000, "1" * 5000])
            )
        lines.append(line)
    return lines


@st.composite
def odd_files(draw: st.DrawFn) -> Odd:
    task = draw(st.sampled_from(["classify", "classify", "translate", "masked"]))
    roles = TASKS[task]
    format = draw(st.sampled_from(["tsv", "csv", "csv", "jsonl", "json"]))
    if format == "tsv":
        text = join(draw, ["\t".join(row) for row in draw(tables(roles))])
    elif format == "csv":
        delimiter = draw(st.sampled_from(",,,;\t|"))
        rows = [[write_cell(draw, cell, delimiter) for cell in row] for row in draw(tables(roles))]
        text = join(draw, [delimiter.join(row) for row in rows])
    elif format == "jsonl" or draw(st.integers(0, 4)) == 0:
        text = join(draw, draw(json_lines(roles)))
    else:
        comma = draw(st.sampled_from([",", ",", ",\n", " ,\r\n ", ";"]))
        text = (
            "["
            + comma.join(draw(json_lines(roles)))
            + draw(st.sampled_from(["]"] * 6 + ["]\n", ",]", "", "]]", "] x"]))
        )
    text = draw(st.sampled_from([""] * 6 + ["\ufeff", "\n", " \n", "\t\n"])) + text
    data = text.encode(draw(st.sampled_from(["utf-8"] * 12 + ["latin-1", "utf-16", "utf-16-le"])), "replace")
    if draw(st.integers(0, 9)) == 0 and data:
        at = draw(st.integers(0, len(data) - 1))
        data = (
            data[:at]
            + draw(st.sampled_from([b"", b"\xff", b"\xc3", b"\0", b'"', b"\n", b"\t", b"\xe2\x82"]))
            + data[at + draw(st.integers(0, 2)) :]
        )
    columns = draw(
        st.sampled_from(
            [()] * 6
            + [roles, roles[::-1], ("1", "2")[: len(roles)], ("2", "1")[: len(roles)], ("x", "1")[: len(roles)]]
        )
    )
    header = draw(st.sampled_from(["auto"] * 6 + ["yes", "no"]))
    return Odd(format, data, task, header, columns, draw(st.booleans()))


# --- the law ---------------------------------------------------------------------------------------------------------


def open_examples(path: Path, odd: Odd) -> Source:
    asked = {"columns": odd.columns, "header": odd.header, "invalid": "skip" if odd.skip else "refuse"}
    sides = ((str(path),),)
    if odd.task == "classify":
        return labeled_texts(sides, LabelData(**asked))
    return line_examples(sides, MaskData(**asked)) if odd.task == "masked" else open_pairs(sides, PairData(**asked))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd")


@given(odd=odd_files())
@settings(max_examples=500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_odd_files_are_read_right_or_refused(folder: Path, odd: Odd) -> None:
    path = folder / f"odd.{odd.format}"
    path.write_bytes(odd.data)
    try:
        expected = MODELS[odd.format](odd)
    except Refused as refused:
        with pytest.raises(UserError) as error:
            open_examples(path, odd)
        place = re.match(rf"{re.escape(str(path))}:(\d+): .+; .+", str(error.value), re.DOTALL)
        assert place, error.value
        assert refused.line is None or refused.line < 1 or int(place[1]) == refused.line, error.value
        assert 1 <= int(place[1]) <= len(odd.data.splitlines()) + 1
        return
    examples = open_examples(path, odd)
    assert list(examples) == [each for each in expected if each not in (EMPTY, INVALID)]
    counts = examples.counts
    assert (counts["empty"], counts["invalid"]) == (expected.count(EMPTY), expected.count(INVALID))
    assert counts["examples"] + counts["empty"] + counts["invalid"] == len(expected)
