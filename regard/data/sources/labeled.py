"""Texts, or pairs of texts, with labels or numbers, from tables."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ...config.data.texts import LabelData
from ...errors import UserError
from ..tables.cells import Row, labels_value
from ..tables.columns import (
    ANY_LABEL,
    FIRST_TEXT,
    LABEL,
    LABELS,
    NUMBER,
    TEXT,
    TEXT_PAIR,
    ColumnRule,
    PairColumns,
    Role,
)
from ..tables.open import column_rule, open_table
from ..tables.records import TableSource

INSPECTED, FEWEST = 1000, 10  # examples inspected for a header; with fewer than FEWEST, no first line is refused
FEWEST_NUMBERS = 20  # this many different numbers, some with a fraction, are regression targets


class LabeledPairs(TableSource):
    """Pairs of texts. An example is (text, label, second text): the label is field 1, as for single texts."""

    def item(self, index: int) -> Row:
        text, pair, label = super().item(index)
        return text, label, pair


def label_roles(data: LabelData, label: Role = LABEL) -> tuple[Role, ...]:
    """The columns of an example."""
    if data.problem_type == "multi_label":
        label = replace(LABELS, convert=partial(labels_value, delimiter=data.delimiter))
    elif data.problem_type == "regression":
        label = NUMBER
    return (FIRST_TEXT, TEXT_PAIR, label) if data.pairs == "yes" else (TEXT, label)


def labeled_texts(files: Sequence[Sequence[str]], data: LabelData) -> TableSource:
    """The examples in these files: (text, target), or (text, target, second text) of pairs."""
    return _open(files, data, column_rule(data, label_roles(data)))


def _open(files: Sequence[Sequence[str]], data: LabelData, rule: ColumnRule) -> TableSource:
    if len(files) != 1:
        raise UserError(
            f"texts and labels are in one file, but {len(files)} were given, separated by commas; "
            "join several files by a glob or a TOML list"
        )
    if data.format == "text":
        raise UserError("data.format=text has no labels for training or evaluation; use a table, such as tsv")
    source = LabeledPairs if len(rule.roles) == 3 else TableSource
    examples = source(open_table(files[0], rule, data.format, data.invalid))
    if data.header == "auto" and len(examples):
        refuse_likely_header(examples, rule)
    return examples


def refuse_likely_header(examples: TableSource, rule: ColumnRule) -> None:
    """Refuse a first line that looks like unknown column names: its label occurs nowhere else, and all others do."""
    place = rule.words.index(LABEL.name)
    if rule.roles[place] not in (LABEL, ANY_LABEL):
        return
    rows = [TableSource.item(examples, index) for index in range(min(len(examples), INSPECTED))]
    counts, cells = Counter(row[place] for row in rows), rows[0]
    singles = [name for name, count in counts.items() if count == 1]
    if (
        counts.total() < FEWEST
        or singles != [cells[place]]
        or examples.table.has_header
        or rule.is_header(cells) is False
    ):
        return
    raise UserError(
        f"{examples.location(0)}: the line {' | '.join(cells)} may name the columns, because no other line has the "
        f"label {cells[place]!r}; set data.header=yes if it does, or data.header=no"
    )


# --- what the data are -----------------------------------------------------------------------------------------------


class Detected(NamedTuple):
    """Settings detected from training data."""

    settings: dict[str, str]  # keys of data.* that differ from one label for one text
    examples: TableSource | None  # the data, if they were opened with these settings


def detect_problem(data: LabelData) -> Detected:
    """Detect pairs of texts, several labels or numbers in data.train, where the settings are `auto`.

    Only clear signs count: column names of two texts, three columns in data.columns, lists of labels, many different
    numbers with fractions.
    """
    settings: dict[str, str] = {}
    if data.pairs == "auto" and len(data.columns) == 3:
        settings["pairs"] = "yes"
    if data.problem_type == "auto" and data.delimiter:
        settings["problem_type"] = "multi_label"
    data = data.model_copy(update=settings)
    rule = column_rule(data, label_roles(data, ANY_LABEL if data.problem_type == "auto" else LABEL))
    try:
        examples = _open(data.train, data, replace(rule, watch_pairs=data.pairs == "auto" and not data.columns))
    except PairColumns:
        again = detect_problem(data.model_copy(update={"pairs": "yes"}))
        return Detected(settings | {"pairs": "yes"} | again.settings, again.examples)
    if data.problem_type != "auto":
        return Detected(settings, examples)
    problem = _problem_type([examples.field(index, 1) for index in range(min(len(examples), INSPECTED))])
    if problem == "single_label":
        return Detected(settings, examples)
    return Detected(settings | {"problem_type": problem}, None)


def _problem_type(targets: Sequence[str]) -> str:
    """The problem type of these cells: labels, lists of labels in JSON, or numbers."""
    if targets and all(target.startswith("[") and target.endswith("]") for target in targets):
        return "multi_label"
    numbers = [_as_number(target) for target in targets]
    distinct = {number for number in numbers if number is not None}
    if None in numbers or len(distinct) < FEWEST_NUMBERS or all(number.is_integer() for number in distinct):
        return "single_label"
    return "regression"


def _as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
