"""Metrics of labels and spans: accuracy, precision, recall, F1, the confusion matrix and a paired bootstrap."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

MAX_MATRIX_LABELS = 17  # as many as Universal Dependencies has; with more, only the most frequent confusions are listed
MAX_CONFUSIONS = 12
MAX_ROWS = 100  # of a printed table by label; `--json` has all
SAMPLES = 1000  # of the bootstrap

Span = tuple[int, int, str]  # first word, end (exclusive), kind
BootstrapResult = dict[str, dict[str, float | None]]  # by metric: score, mean, interval, p


class SpanMetrics(TypedDict):
    """Metrics of spans."""

    spans: float  # F1
    span_precision: float
    span_recall: float
    span_kinds: "SpanTable"


def label_metrics(predicted: Sequence[str], gold: Sequence[str]) -> dict[str, Any]:
    """Accuracy, macro and micro F1, the table by label and the confusion matrix."""
    table = LabelTable(predicted, gold)
    correct = sum(map(str.__eq__, predicted, gold))
    return {
        "accuracy": correct / max(len(gold), 1),
        "f1": table.f1,
        "micro_f1": _f1(correct, len(predicted), len(gold)),
        "labels": table,
        "confusion": ConfusionMatrix(predicted, gold),
    }


def multi_label_metrics(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> dict[str, Any]:
    """For multi-label texts: the share of exact label sets, macro and micro F1, and the table by label."""
    pairs = [(set(labels), set(gold_labels)) for labels, gold_labels in zip(predicted, gold, strict=True)]
    correct = Counter(label for labels, gold_labels in pairs for label in labels & gold_labels)
    ours, theirs = (Counter(label for pair in pairs for label in pair[field]) for field in (0, 1))
    names = sorted({*ours, *theirs})
    table = LabelTable.of({label: _row(correct[label], ours[label], theirs[label]) for label in names})
    return {
        "accuracy": sum(labels == gold_labels for labels, gold_labels in pairs) / max(len(pairs), 1),
        "f1": table.f1,
        "micro_f1": _f1(correct.total(), ours.total(), theirs.total()),
        "labels": table,
    }


def _f1(correct: int, predicted: int, gold: int) -> float:
    """2·p·r / (p + r); 0 if nothing is correct."""
    return 2 * correct / (predicted + gold) if correct else 0.0


class LabelTable(dict[str, dict[str, float]]):
    """label -> precision, recall, f1 and its number of gold occurrences, for every gold or predicted label."""

    def __init__(self, predicted: Sequence[str], gold: Sequence[str]) -> None:
        correct = Counter(a for a, b in zip(predicted, gold, strict=True) if a == b)
        ours, theirs = Counter(predicted), Counter(gold)
        rows = {label: _row(correct[label], ours[label], theirs[label]) for label in sorted({*ours, *theirs})}
        super().__init__(rows)

    @classmethod
    def of(cls, rows: Mapping[str, dict[str, float]]) -> "LabelTable":
        table = cls((), ())
        table.update(rows)
        return table

    @property
    def f1(self) -> float:
        return sum(row["f1"] for row in self.values()) / max(len(self), 1)

    def __str__(self) -> str:
        return _format_table(self)


def _row(correct: int, predicted: int, gold: int) -> dict[str, float]:
    precision, recall = correct / max(predicted, 1), correct / max(gold, 1)
    return {"precision": precision, "recall": recall, "f1": _f1(correct, predicted, gold), "count": gold}


def _format_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """The rows as text; only the most frequent ones if there are many."""
    more = len(rows) - MAX_ROWS
    if more > 0:
        rows = {label: rows[label] for label in sorted(rows, key=lambda label: -rows[label]["count"])[:MAX_ROWS]}
    widest = max(map(len, rows), default=0)
    lines = [f"  {'':{widest}}  precision  recall      f1   count"]
    if more > 0:
        lines.append(f"  the {MAX_ROWS} most frequent of {len(rows) + more:,} labels")
    for label, row in rows.items():
        lines.append(
            f"  {label:{widest}}     {row['precision']:.4f}  {row['recall']:.4f}  {row['f1']:.4f}  {row['count']:6d}"
        )
    return "\n" + "\n".join(lines)


class ConfusionMatrix(dict[str, dict[str, int]]):
    """gold label -> predicted label -> count."""

    def __init__(self, predicted: Sequence[str], gold: Sequence[str]) -> None:
        counts = Counter(zip(gold, predicted, strict=True))
        self.labels = sorted({*predicted, *gold})
        super().__init__({a: {b: counts[a, b] for b in self.labels if counts[a, b]} for a in self.labels})

    def __str__(self) -> str:
        return "\n" + "\n".join(
            self._matrix_lines() if len(self.labels) <= MAX_MATRIX_LABELS else self._confusion_lines()
        )

    def _matrix_lines(self) -> Iterator[str]:
        widest = max(map(len, self.labels))
        widths = [max(len(label), 5) for label in self.labels]
        head = " ".join(f"{label:>{width}}" for label, width in zip(self.labels, widths, strict=True))
        yield f"  {'':{widest}} {head}  (columns: predicted; rows: gold)"
        for a in self.labels:
            cells = (f"{self[a].get(b, 0):{width}d}" for b, width in zip(self.labels, widths, strict=True))
            yield f"  {a:{widest}} {' '.join(cells)}"

    def _confusion_lines(self) -> Iterator[str]:
        wrong = [(count, a, b) for a, row in self.items() for b, count in row.items() if a != b]
        worst = sorted(wrong, key=lambda confusion: (-confusion[0], confusion[1:]))
        yield f"  the most frequent confusions of {len(self.labels)} labels"
        for count, a, b in worst[:MAX_CONFUSIONS]:
            yield f"  {count:6d}  {a} predicted as {b}"


# --- spans ---------------------------------------------------------------------------------------------------------


def tag_spans(tags: Sequence[str]) -> list[Span]:
    """The spans of BIO (also IO, BIOES) tags, as in seqeval's default mode.

    A word tagged I or E continues the span before it if the kind is the same and no E or S ended it; otherwise it
    begins a new one.
    """
    result: list[Span] = []
    previous, span_type = "O", ""
    for index, tag in enumerate(tags):
        letter, _, name = tag.partition("-")
        if letter != "O":
            if previous in ("B", "I") and letter in ("I", "E") and name == span_type:
                result[-1] = (result[-1][0], index + 1, name)
            else:
                result.append((index, index + 1, name))
        previous, span_type = letter, name
    return result


def span_metrics(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> SpanMetrics:
    """Precision, recall and F1 over exact spans, in total and for each kind of span."""
    ours = {(i, *span) for i, tags in enumerate(predicted) for span in tag_spans(tags)}
    theirs = {(i, *span) for i, tags in enumerate(gold) for span in tag_spans(tags)}
    rows = {}
    for span_type in sorted({span[3] for span in ours | theirs}):
        a, b = ({span for span in every if span[3] == span_type} for every in (ours, theirs))
        rows[span_type] = _row(len(a & b), len(a), len(b))
    total = _row(len(ours & theirs), len(ours), len(theirs))
    return {
        "spans": total["f1"],
        "span_precision": total["precision"],
        "span_recall": total["recall"],
        "span_kinds": SpanTable(rows),
    }


class SpanTable(dict[str, dict[str, float]]):
    """kind of span -> precision, recall, f1 and its number of gold spans."""

    def __str__(self) -> str:
        return _format_table(self)


# --- significance --------------------------------------------------------------------------------------------------


def paired_accuracy_bootstrap(
    outputs: Sequence[Sequence[object]], gold: Sequence[object]
) -> tuple[dict[str, str], list[BootstrapResult]]:
    """Paired bootstrap of the accuracy in percent: each of the outputs against the first. As in `metrics.text`."""
    hits = [[float(a == b) for a, b in zip(predicted, gold, strict=True)] for predicted in outputs]
    return bootstrap_rates("accuracy", hits, [1.0] * len(gold))


def bootstrap_rates(
    name: str, counts: Sequence[Sequence[float]], sizes: Sequence[float]
) -> tuple[dict[str, str], list[BootstrapResult]]:
    """Paired bootstrap of rates in percent: counts (outputs, examples) over the sizes of the examples."""
    import numpy as np

    percents, size = np.array(counts, float) * 100, np.array(sizes, float)
    samples = np.random.default_rng(12345).integers(len(size), size=(SAMPLES, len(size)))
    scores = percents.sum(-1) / max(size.sum(), 1)
    rates = percents[:, samples].sum(-1) / size[samples].sum(-1).clip(1)  # (outputs, samples)
    results = []
    for number, (score, resampled) in enumerate(zip(scores, rates, strict=True)):
        p = None
        if number:
            differences = resampled - rates[0]
            extreme = np.abs(differences - differences.mean()) >= abs(score - scores[0])
            p = (float(extreme.sum()) + 1) / (SAMPLES + 1)
        half = float(np.percentile(resampled, 97.5) - np.percentile(resampled, 2.5)) / 2
        results.append({name: {"score": float(score), "mean": float(resampled.mean()), "interval": half, "p": p}})
    return {name: f"percent|examples:{len(size)}|bootstrap:{SAMPLES}|seed:12345"}, results
