"""Texts with labels, from tables."""

from collections.abc import Sequence

from ..config.schema import LabelData
from ..errors import UserError
from .columns import LABEL, TEXT
from .table_files import column_rule, open_table
from .tables import TableExamples


def labeled_texts(sides: Sequence[Sequence[str]], data: LabelData) -> TableExamples:
    """The examples in these files, each a text and its label."""
    if len(sides) != 1:
        raise UserError(
            f"texts and labels are in one file, but {len(sides)} were given, separated by commas; "
            "join several files by a glob or a TOML list"
        )
    return TableExamples(open_table(sides[0], column_rule(data, (TEXT, LABEL)), data.format, data.invalid))
