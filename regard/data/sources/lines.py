"""Lines of plain files, or the texts in tables: one text each."""

from collections.abc import Sequence

from ...config.data.texts import MaskData, SpanData
from ...errors import UserError
from ..files.lines import TextLines
from ..source import Source
from ..tables.columns import TEXT
from ..tables.line_table import ParallelLines
from ..tables.open import column_rule, file_format, open_table
from ..tables.records import TableSource


def line_examples(files: Sequence[Sequence[str]], data: MaskData | SpanData) -> Source:
    """The lines of these files, or the texts in tables; examples with one field."""
    if len(files) != 1:
        raise UserError(
            f"text has one side, but {len(files)} were given, separated by commas; "
            "join several files by a glob or a TOML list"
        )
    if file_format(files[0][0], data.format, "text") == "text":
        return TableSource(ParallelLines([TextLines(files[0], data.invalid)]))
    return TableSource(open_table(files[0], column_rule(data, (TEXT,)), data.format, data.invalid))
