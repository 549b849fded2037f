"""Texts, or pairs of texts, with labels or numbers, from tables."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ...config.data.texts import LabelData
from ...errors import UserError
from ..tables.cells import labels_value
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

INSPECTED, FEWEST = 1000, 10  # examples that are inspected for a header, and those it takes to be sure
FEWEST_NUMBERS = 20  # different ones among them that are no classes, if some have a fraction


class PairedTexts(TableSource):
    """Pairs of texts. An example is (text, label, second text): the label has the place that it has without a pair."""

    def item(self, index: int) -> tuple[Any, ...]:
        text, pair, label = super().item(index)
        return text, label, pair


def label_roles(data: LabelData, label: Role = LABEL) -> tuple[Role, ...]:
    """The columns of an example."""
    if data.problem_type == "multi_label":
        label = replace(LABELS, convert=partial(labels_value, delimiter=data.delimiter))
    elif data.problem_type == "regression":
        label = NUMBER
    return (FIRST_TEXT, TEXT_PAIR, label) if data.pairs == "yes" else (TEXT, label)


def labeled_texts(sides: Sequence[Sequence[str]], data: LabelData) -> TableSource:
    """The examples in these files: (text, target), or (text, target, second text) of pairs."""
    return _open(sides, data, column_rule(data, label_roles(data)))


def _open(sides: Sequence[Sequence[str]], data: LabelData, rule: ColumnRule) -> TableSource:
    if len(sides) != 1:
        raise UserError(
            f"texts and labels are in one file, but {len(sides)} were given, separated by commas; "
            "join several files by a glob or a TOML list"
        )
    if data.format == "text":
        raise UserError("data.format=text has no labels for training or evaluation; use a table, such as tsv")
    table = open_table(sides[0], rule, data.format, data.invalid)
    examples = TableSource(table)
    if data.header == "auto" and len(examples):
        refuse_likely_header(examples, rule)
    return PairedTexts(table) if len(rule.roles) == 3 else examples


def refuse_likely_header(examples: TableSource, rule: ColumnRule) -> None:
    """Refuse a first line that looks like unknown column names: its label occurs nowhere else, and all others do."""
    place = rule.words.index(LABEL.name)
    if rule.roles[place] not in (LABEL, ANY_LABEL):
        return
    counts = Counter(examples[index][place] for index in range(min(len(examples), INSPECTED)))
    cells = examples[0]
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
    """What training data show about themselves."""

    settings: dict[str, str]  # of data.*, where they differ from one label for one text
    examples: TableSource | None  # the data, if they are open with these settings


def detect_problem(data: LabelData) -> Detected:
    """Whether data.train has pairs of texts, and several labels or numbers, where the settings leave it open.

    Only unmistakable signs count: the names of two texts, three columns in data.columns, lists of labels, numbers with
    fractions and many values.
    """
    found: dict[str, str] = {}
    if data.pairs == "auto" and len(data.columns) == 3:
        found["pairs"] = "yes"
    if data.problem_type == "auto" and data.delimiter:
        found["problem_type"] = "multi_label"
    data = data.model_copy(update=found)
    rule = column_rule(data, label_roles(data, ANY_LABEL if data.problem_type == "auto" else LABEL))
    try:
        examples = _open(data.train, data, replace(rule, watch_pairs=data.pairs == "auto" and not data.columns))
    except PairColumns:
        again = detect_problem(data.model_copy(update={"pairs": "yes"}))
        return Detected(found | {"pairs": "yes"} | again.settings, again.examples)
    if data.problem_type != "auto":
        return Detected(found, examples)
    kind = _target_kind([examples.side(index, 1) for index in range(min(len(examples), INSPECTED))])
    if kind == "single_label":
        return Detected(found, examples)
    return Detected(found | {"problem_type": kind}, None)


def _target_kind(targets: Sequence[str]) -> str:
    """What these cells are: labels, lists of labels in JSON, or numbers."""
    if targets and all(each.startswith("[") and each.endswith("]") for each in targets):
        return "multi_label"
    numbers = [_as_number(each) for each in targets]
    known = {number for number in numbers if number is not None}
    if None in numbers or len(known) < FEWEST_NUMBERS or all(number.is_integer() for number in known):
        return "single_label"
    return "regression"


def _as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
