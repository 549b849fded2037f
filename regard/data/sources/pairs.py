"""Pairs of source and target: from parallel text files, or from tables."""

from collections.abc import Sequence

from ...config.data.base import TableData
from ...errors import UserError
from ..files.lines import TextLines
from ..tables.columns import SOURCE, TARGET
from ..tables.line_table import ParallelLines
from ..tables.open import column_rule, file_format, open_table
from ..tables.records import TableSource


def open_pairs(
    files: Sequence[Sequence[str]],
    data: TableData,
    references: bool = False,
    default: str = "text",
    alignments: str = "",
) -> TableSource:
    """The examples in these files. With `references`, `data.columns` after the second hold further references.

    `default` is the format of files with an unknown suffix. The lines of the file `alignments` become a third field.
    """
    if not files or not all(files):
        raise UserError("no data file is named; give two sides such as data.train=train.en,train.de")
    format = file_format(files[0][0], data.format, default)
    if format == "text":
        if len(files) != 2:
            raise UserError(
                f"text data need two sides, source and target, not {len(files)} ({files[0][0]} …); separate them by "
                "a comma, as in data.train=a,b, or give one table, such as .tsv or .jsonl (data.format)"
            )
        files = [*files, [alignments]] if alignments else files
        return TableSource(ParallelLines([TextLines(group, data.invalid) for group in files]))
    if alignments:
        raise UserError(
            f"data.alignments is {alignments}, and data.train is a table; alignments go with two files of lines"
        )
    if len(files) != 1:
        raise UserError(
            f"{format} data hold both sides in one file, and {len(files)} sides were given; join several files by a "
            "glob or a TOML list, or set data.format=text"
        )
    rule = column_rule(data, (SOURCE, TARGET), references=references)
    return TableSource(open_table(files[0], rule, data.format, data.invalid, default))


def split_references(text: str) -> list[str]:
    """The references in a target of evaluation data, where tabs separate them."""
    return [reference for reference in text.split("\t") if reference.strip()] or [""]
