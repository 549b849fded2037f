"""Parquet and Arrow files, Arrow tables, Hugging Face data sets, and the cache of iterables (extra `tables`)."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import cache_folder, explain_os_error, remove, sync
from .examples import LazySequence

if TYPE_CHECKING:
    import pyarrow

SPOOLED_ROWS = 10_000  # records that are written together


def _import_arrow(what: str) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise UserError(f"{what} needs pyarrow, which is not installed; pip install 'regard[tables]'") from error
    return pyarrow


class ArrowColumn(LazySequence[Any]):
    """A column of an Arrow table; its values become Python's on access."""

    def __init__(self, values: "pyarrow.ChunkedArray") -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def item(self, index: int) -> Any:
        return self.values[index].as_py()


def read_arrow_file(path: Path) -> Any:
    """The Arrow table in a Parquet or Arrow file."""
    pa = _import_arrow(str(path))
    try:
        with open(path, "rb") as file:
            head = file.read(8)
        if head.startswith(b"PAR1"):
            import pyarrow.parquet

            return pyarrow.parquet.read_table(path, memory_map=True, partitioning=None)
        source = pa.memory_map(str(path))
        return (pa.ipc.open_file if head.startswith(b"ARROW1") else pa.ipc.open_stream)(source).read_all()
    except pa.ArrowException as error:
        raise UserError(
            f"{path} is not a whole Parquet or Arrow file ({error}); create or download it again"
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}; check its name and content") from error


def arrow_columns(data: Any) -> tuple[dict[str, Sequence[Any]], Mapping[str, Sequence[str]]]:
    """The columns of an Arrow table or a Hugging Face data set, and the names of integer labels by column."""
    features: Any = {}
    if hasattr(data, "features"):  # a Hugging Face data set
        features = data.features.to_dict()
        data = data.with_format("arrow")[:]
    elif (metadata := data.schema.metadata) and b"huggingface" in metadata:
        features = json.loads(metadata[b"huggingface"]).get("info", {}).get("features", {})
    labels = {name: names for name, feature in features.items() if (names := _label_names(feature))}
    data = data.flatten()
    return {name: ArrowColumn(data.column(name)) for name in data.column_names}, labels


def _label_names(feature: Any) -> list[str]:
    """The names of a ClassLabel, or of a list of them."""
    if isinstance(feature, list):
        return _label_names(feature[0]) if feature else []
    if not isinstance(feature, dict):
        return []
    return feature.get("names") or _label_names(feature.get("feature"))


# --- iterables -------------------------------------------------------------------------------------------------------


def spool(records: Iterable[Any], key: str) -> Path:
    """Write records that can be read only once to an Arrow file in the cache folder; its name depends on them."""
    pa = _import_arrow(f"{key} is an iterable, and")
    rows = iter(records)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{key} is an iterable without records; give at least one")
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".spool.{os.getpid()}.tmp"
    try:
        count, digest = _write_records(pa, draft, chain([first], rows), key)
        path = folder / f"{digest}.arrow"
        sync(draft)
        draft.replace(path)
    except pa.ArrowException as error:
        raise UserError(f"{key}: the records differ in their fields ({error}); give the same ones to all") from error
    except OSError as error:
        raise explain_os_error(error, folder, draft) from error
    finally:
        remove(draft)
    print(f"regard: {key}: wrote {count:,} records to {path}, because an iterable is read only once", file=sys.stderr)
    return path


def _write_records(pa: Any, path: Path, rows: Iterable[Any], key: str) -> tuple[int, str]:
    """Write an Arrow file chunk by chunk; return the number of records and a hash of them."""
    rows, digest, count, schema = iter(rows), hashlib.blake2b(digest_size=16), 0, None
    with ExitStack() as stack:
        while chunk := [_as_record(row, key) for row in islice(rows, SPOOLED_ROWS)]:
            table = pa.Table.from_pylist(chunk, schema=schema)
            if schema is None:
                schema = table.schema
                writer = stack.enter_context(pa.ipc.new_file(str(path), schema))
            writer.write_table(table)
            digest.update(json.dumps(chunk, default=str).encode())
            count += len(chunk)
    return count, digest.hexdigest()


def _as_record(row: Any, key: str) -> dict[str, Any]:
    """A record with named columns; those of tuples are numbers."""
    if isinstance(row, Mapping):
        return dict(row)
    if isinstance(row, str):
        return {"1": row}
    if isinstance(row, tuple | list):
        return {str(number): value for number, value in enumerate(row, 1)}
    raise UserError(f"{key}: a record is a {type(row).__name__}; expected tuples, dicts or texts")
