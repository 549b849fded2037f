"""Texts with labels, from tables."""

from collections import Counter
from collections.abc import Sequence

from ..config.schema import LabelData
from ..errors import UserError
from .columns import LABEL, TEXT, ColumnRule
from .table_files import column_rule, open_table
from .tables import TableExamples

INSPECTED, FEWEST = 1000, 10  # examples that are inspected for a header, and those it takes to be sure


def labeled_texts(sides: Sequence[Sequence[str]], data: LabelData) -> TableExamples:
    """The examples in these files, each a text and its label."""
    if len(sides) != 1:
        raise UserError(
            f"texts and labels are in one file, but {len(sides)} were given, separated by commas; "
            "join several files by a glob or a TOML list"
        )
    if data.format == "text":
        raise UserError("data.format=text has no labels for training or evaluation; use a table, such as tsv")
    rule = column_rule(data, (TEXT, LABEL))
    examples = TableExamples(open_table(sides[0], rule, data.format, data.invalid))
    if data.header == "auto" and len(examples):
        refuse_likely_header(examples, rule)
    return examples


def refuse_likely_header(examples: TableExamples, rule: ColumnRule) -> None:
    """Refuse a first line that looks like unknown column names: its label occurs nowhere else, and all others do."""
    counts = Counter(examples[index][1] for index in range(min(len(examples), INSPECTED)))
    text, label = examples[0]
    singles = [name for name, count in counts.items() if count == 1]
    if (
        counts.total() < FEWEST
        or singles != [label]
        or examples.table.has_header
        or rule.is_header([text, label]) is False
    ):
        return
    raise UserError(
        f"{examples.location(0)}: the line {text} | {label} may name the columns, because no other line has the label "
        f"{label!r}; set data.header=yes if it does, or data.header=no"
    )
