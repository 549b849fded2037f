"""The same columns in every container that regard reads: files of every format, compressed or not, and objects."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import datasets
import pandas
import polars
import pyarrow
import pyarrow.parquet
import zstandard

Columns = dict[str, list[Any]]

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def rows_of(columns: Columns) -> list[tuple[Any, ...]]:
    return list(zip(*columns.values(), strict=True))


def records_of(columns: Columns) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in rows_of(columns)]


# --- text files ------------------------------------------------------------------------------------------------------


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def tsv(columns: Columns, header: bool = True) -> str:
    lines = [list(columns)] * header + [[_cell(value) for value in row] for row in rows_of(columns)]
    return "".join("\t".join(cells) + "\n" for cells in lines)


def comma(columns: Columns, delimiter: str = ",", end: str = "\r\n") -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end)
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows_of(columns))
    return text.getvalue()


def jsonl(columns: Columns) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records_of(columns))


TEXT_FILES: dict[str, tuple[str, Callable[[Columns], str]]] = {
    "tsv": (".tsv", tsv),
    "tsv without header": (".tsv", lambda columns: tsv(columns, header=False)),
    "tsv with BOM and CRLF": (".tsv", lambda columns: "\ufeff" + tsv(columns).replace("\n", "\r\n")),
    "csv": (".csv", comma),
    "csv with BOM": (".csv", lambda columns: "\ufeff" + comma(columns, end="\n")),
    "csv with semicolons": (".csv", lambda columns: comma(columns, ";", "\n")),
    "csv with tabs": (".csv", lambda columns: comma(columns, "\t", "\n")),
    "jsonl": (".jsonl", jsonl),
    "jsonl in ASCII": (".ndjson", lambda columns: "".join(json.dumps(each) + "\n" for each in records_of(columns))),
    "json array": (".json", lambda columns: json.dumps(records_of(columns), indent=1)),
    "json lines": (".json", jsonl),
}
LISTS = ("jsonl", "jsonl in ASCII", "json array", "json lines")  # the formats that hold lists


def _writer(suffix: str, text: Callable[[Columns], str], packed: str) -> Callable[[Columns, Path], str]:
    def write(columns: Columns, folder: Path) -> str:
        path = folder / f"data{suffix}{packed}"
        path.write_bytes(PACKERS[packed](text(columns).encode()))
        return str(path)

    return write


# --- Arrow -----------------------------------------------------------------------------------------------------------


def _parquet(columns: Columns, folder: Path) -> str:
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "data.parquet", row_group_size=7)
    return str(folder / "data.parquet")


def _arrow_file(columns: Columns, folder: Path) -> str:
    table = pyarrow.table(columns)
    with pyarrow.ipc.new_file(folder / "data.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=5)
    return str(folder / "data.arrow")


def _arrow_stream(columns: Columns, folder: Path) -> str:
    table = pyarrow.table(columns)
    with pyarrow.ipc.new_stream(folder / "stream.arrow", table.schema) as file:
        file.write_table(table)
    return str(folder / "stream.arrow")


# --- objects ---------------------------------------------------------------------------------------------------------


class Records:
    """A sequence as users write them: only a length and items by number."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.records[index]


def _generator(records: list[Any]) -> Iterator[Any]:
    yield from records


OBJECTS: dict[str, Callable[[Columns], Any]] = {
    "pandas": pandas.DataFrame,
    "pandas without names": lambda columns: pandas.DataFrame(rows_of(columns)),
    "polars": polars.DataFrame,
    "polars without names": lambda columns: polars.DataFrame(rows_of(columns), orient="row"),
    "polars lazy": lambda columns: polars.DataFrame(columns).lazy(),
    "arrow table": pyarrow.table,
    "data set": datasets.Dataset.from_dict,
    "shuffled data set": lambda columns: _reordered(datasets.Dataset.from_dict(columns)),
    "dict of columns": dict,
    "tuples": rows_of,
    "dicts": records_of,
    "sequence": lambda columns: Records(rows_of(columns)),
    "generator of tuples": lambda columns: _generator(rows_of(columns)),
    "generator of dicts": lambda columns: _generator(records_of(columns)),
    "iterable data set": lambda columns: datasets.Dataset.from_dict(columns).to_iterable_dataset(),
}


def _reordered(data: datasets.Dataset) -> datasets.Dataset:
    """The same records through a mapping of indices, as after `shuffle` or `filter`."""
    back = list(range(len(data)))[::-1]
    return data.select(back).select(back)


def _files() -> dict[str, Callable[[Columns, Path], Any]]:
    return {
        f"{name} {packed}".strip(): _writer(suffix, text, packed)
        for (name, (suffix, text)), packed in product(TEXT_FILES.items(), PACKERS)
    }


def _in_memory(make: Callable[[Columns], Any]) -> Callable[[Columns, Path], Any]:
    return lambda columns, folder: make(columns)


FILES = _files() | {"parquet": _parquet, "arrow file": _arrow_file, "arrow stream": _arrow_stream}
MEMORY = {name: _in_memory(make) for name, make in OBJECTS.items()}
CONTAINERS: dict[str, Callable[[Columns, Path], Any]] = FILES | MEMORY


def holds_lists(name: str) -> bool:
    """Whether cells may be lists in this container."""
    return name not in FILES or "arrow" in name or name == "parquet" or name.startswith(LISTS)


def holds_line_breaks(name: str) -> bool:
    return not name.startswith("tsv")
