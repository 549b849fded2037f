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


def line_examples(sides: Sequence[Sequence[str]], data: MaskData | SpanData) -> Source:
    """The lines of these files, or the texts in tables; one side each."""
    if len(sides) != 1:
        raise UserError(
            f"text has one side, but {len(sides)} were given, separated by commas; "
            "join several files by a glob or a TOML list"
        )
    if file_format(sides[0][0], data.format, "text") == "text":
        return TableSource(ParallelLines([TextLines(sides[0], data.invalid)]))
    return TableSource(open_table(sides[0], column_rule(data, (TEXT,)), data.format, data.invalid))
