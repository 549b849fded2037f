"""Parquet and Arrow files, Arrow tables, Hugging Face data sets, and the cache of iterables (extra `tables`)."""

import hashlib
import io
import json
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from ...files import cache_folder, remove, sync
from ...processors.image.read import is_image, open_image
from ...processors.sound.read import is_sound, read_sound
from ..source import LazySequence
from .columns import is_media, is_missing
from .records import check_names

if TYPE_CHECKING:
    import datasets
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


def read_arrow_file(path: Path) -> "pyarrow.Table":
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


def arrow_columns(
    data: "pyarrow.Table | datasets.Dataset",
) -> tuple[dict[str, ArrowColumn], Mapping[str, Sequence[str]]]:
    """The columns of an Arrow table or a Hugging Face data set, and the names of integer labels by column."""
    features: Any = {}
    if hasattr(data, "features"):  # a Hugging Face data set
        features = data.features.to_dict()
        data = data.with_format("arrow")[:]
    elif (metadata := data.schema.metadata) and b"huggingface" in metadata:
        features = json.loads(metadata[b"huggingface"]).get("info", {}).get("features", {})
    labels = {name: names for name, feature in features.items() if (names := _label_names(feature))}
    parts = [data.select([index]) for index in range(data.num_columns)]
    parts = [part if _is_media(part.schema.field(0)) else part.flatten() for part in parts]
    names = check_names([name for part in parts for name in part.column_names])
    columns = [ArrowColumn(column) for part in parts for column in part.columns]
    return dict(zip(names, columns, strict=True)), labels


def _is_media(field: Any) -> bool:
    """True for a column of images or sounds, which stay whole."""
    return is_media(inner.name.removeprefix(f"{field.name}.") for inner in field.flatten())


def _label_names(feature: Any) -> list[str]:
    """The names of a ClassLabel, or of a list of them."""
    if isinstance(feature, list):
        return _label_names(feature[0]) if feature else []
    if not isinstance(feature, dict):
        return []
    return feature.get("names") or _label_names(feature.get("feature"))


# --- iterables -------------------------------------------------------------------------------------------------------


def spool(records: Iterable[Any], key: str) -> Path:
    """Write records that can be read only once to an Arrow file in the cache folder, named by their hash."""
    pa = _import_arrow(f"{key} is an iterable, and")
    features = getattr(records, "features", None)  # of a Hugging Face data set: they name integer labels
    schema, count, digest = features.arrow_schema if features else None, 0, hashlib.blake2b(digest_size=16)
    folder = cache_folder()
    draft = folder / f".spool.{os.getpid()}.tmp"
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.callback(remove, draft)
        writer = None
        for chunk in _chunks(records, key):
            table = _as_table(pa, chunk, schema, f"{key}, records {count + 1:,} to {count + len(chunk):,}")
            with _writing(folder):
                writer = writer or stack.enter_context(pa.ipc.new_file(str(draft), table.schema))
                writer.write_table(table)
            digest.update(json.dumps([str(table.schema), *chunk], default=str).encode())
            schema, count = table.schema, count + len(chunk)
        if not writer:
            raise UserError(f"{key} is an iterable without records; give at least one")
        path = folder / f"{digest.hexdigest()}.arrow"
        with _writing(folder):
            writer.close()
            sync(draft)
            draft.replace(path)
    print(f"regard: {key}: wrote {count:,} records to {path}, because an iterable is read only once", file=sys.stderr)
    return path


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "free space there, or set XDG_CACHE_HOME to another folder"
        raise UserError(f"{folder} cannot be written ({error.strerror or error}); {remedy}") from error


def _chunks(records: Iterable[Any], key: str) -> Iterator[list[dict[str, Any]]]:
    """Records with named columns; columns of tuples are numbered. All records must have the shape of the first."""
    rows, first = enumerate(records, 1), None
    while some := list(islice(rows, SPOOLED_ROWS)):
        chunk = []
        for number, row in some:
            shape = _shape(row)
            first = shape if first is None else first
            if not shape or shape != first:
                remedy = (
                    "expected tuples, dicts or texts" if not shape else f"the first one is {first}; give equal ones"
                )
                raise UserError(f"{key}: record {number:,} is {shape or f'a {type(row).__name__}'}; {remedy}")
            named = row if isinstance(row, Mapping) else dict(enumerate((row,) if isinstance(row, str) else row, 1))
            chunk.append({str(name): _storable(cell) for name, cell in named.items()})
        yield chunk


def _storable(cell: Any) -> Any:
    """A cell that Arrow can store: an image becomes PNG bytes, as in a Hugging Face data set; samples become WAV."""
    if is_missing(cell):
        return None
    if isinstance(cell, dict) and "array" in cell and is_media(cell):
        cell = (cell["array"], cell["sampling_rate"])
    if isinstance(cell, tuple) and is_sound(cell):
        return {"bytes": _wav_bytes(cell), "path": None}
    if isinstance(cell, str | bytes | int | float) or not is_image(cell):
        return cell
    if isinstance(cell, os.PathLike):
        return os.fspath(cell)
    content = io.BytesIO()
    open_image(cell, background="transparent").save(content, "PNG", compress_level=1)
    return {"bytes": content.getvalue(), "path": None}


def _wav_bytes(sound: tuple[Any, int]) -> bytes:
    """A WAV file of floats, of one channel."""
    samples, rate = read_sound(sound)
    content = samples.astype("<f4").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, rate, 4 * rate, 4, 32)
    parts = b"WAVE" + form + b"data" + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(parts)) + parts


def _shape(row: object) -> str:
    """The type of a record, for messages; "" if it cannot be one."""
    if isinstance(row, Mapping):
        return "a dict"
    if isinstance(row, str):
        return "a text"
    return f"a tuple of {len(row)}" if isinstance(row, tuple | list) else ""


def _as_table(pa: Any, chunk: list[dict[str, Any]], schema: Any, where: str) -> Any:
    """Records as an Arrow table. Refuses integers among decimals, which would become decimals and so other labels."""
    try:
        table = pa.Table.from_pylist(chunk, schema=schema)
        for field in table.schema:
            if pa.types.is_floating(field.type) and any(type(record.get(field.name)) is int for record in chunk):
                raise ValueError(f"{field.name} has both integers and decimals")
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{where}: no table holds them ({error}); give the same fields and types to all") from error
    return table
