"""How far labels agree with the right ones: accuracy, F1, spans, a table of the labels, and who is taken for whom."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

WIDE = 17  # labels, as many as Universal Dependencies has; of more the most frequent mistakes are told
TOLD = 12  # of them
SAMPLES = 1000  # of the bootstrap

Span = tuple[int, int, str]  # first word, the one behind the last, kind


def label_metrics(found: Sequence[str], right: Sequence[str]) -> dict[str, Any]:
    """Accuracy, F1 as the mean over the labels (macro) and over all answers (micro), and the tables behind them."""
    table = LabelTable(found, right)
    hits = sum(map(str.__eq__, found, right))
    return {
        "accuracy": hits / max(len(right), 1),
        "f1": table.f1,
        "micro f1": _f1(hits, len(found), len(right)),
        "labels": table,
        "confusion": ConfusionMatrix(found, right),
    }


def _f1(hits: int, found: int, right: int) -> float:
    """2·p·r / (p + r), 0 where nothing is right."""
    return 2 * hits / (found + right) if hits else 0.0


class LabelTable(dict[str, dict[str, float]]):
    """label -> precision, recall, f1 and the number of right answers; every label that is right or was found."""

    def __init__(self, found: Sequence[Any], right: Sequence[Any]) -> None:
        hits = Counter(a for a, b in zip(found, right, strict=True) if a == b)
        said, there = Counter(found), Counter(right)
        super().__init__({label: _row(hits[label], said[label], there[label]) for label in sorted({*said, *there})})

    @property
    def f1(self) -> float:
        return sum(row["f1"] for row in self.values()) / max(len(self), 1)

    def __str__(self) -> str:
        return _table(self)


def _row(hits: int, found: int, right: int) -> dict[str, float]:
    precision, recall = hits / max(found, 1), hits / max(right, 1)
    return {"precision": precision, "recall": recall, "f1": _f1(hits, found, right), "count": right}


def _table(rows: Mapping[str, Mapping[str, float]]) -> str:
    widest = max(map(len, rows), default=0)
    lines = [f"  {'':{widest}}  precision  recall      f1   count"]
    for label, row in rows.items():
        lines.append(
            f"  {label:{widest}}     {row['precision']:.4f}  {row['recall']:.4f}  {row['f1']:.4f}  {row['count']:6d}"
        )
    return "\n" + "\n".join(lines)


class ConfusionMatrix(dict[str, dict[str, int]]):
    """right label -> found label -> how often."""

    def __init__(self, found: Sequence[str], right: Sequence[str]) -> None:
        counts = Counter(zip(right, found, strict=True))
        self.labels = sorted({*found, *right})
        super().__init__({a: {b: counts[a, b] for b in self.labels if counts[a, b]} for a in self.labels})

    def __str__(self) -> str:
        return "\n" + "\n".join(self._matrix() if len(self.labels) <= WIDE else self._mistakes())

    def _matrix(self) -> Iterator[str]:
        widest = max(map(len, self.labels))
        widths = [max(len(label), 5) for label in self.labels]
        head = " ".join(f"{label:>{width}}" for label, width in zip(self.labels, widths, strict=True))
        yield f"  {'':{widest}} {head}  (columns: found; rows: right)"
        for a in self.labels:
            cells = (f"{self[a].get(b, 0):{width}d}" for b, width in zip(self.labels, widths, strict=True))
            yield f"  {a:{widest}} {' '.join(cells)}"

    def _mistakes(self) -> Iterator[str]:
        wrong = [(count, a, b) for a, row in self.items() for b, count in row.items() if a != b]
        worst = sorted(wrong, key=lambda each: (-each[0], each[1:]))
        yield f"  of {len(self.labels)} labels, the most frequent mistakes"
        for count, a, b in worst[:TOLD]:
            yield f"  {count:6d}  {a} taken for {b}"

    def save(self, path: Path) -> None:
        """A picture: each row the right label, dark where the answers went."""
        import torch

        from ..look.draw import draw

        counts = torch.tensor([[self[a].get(b, 0) for b in self.labels] for a in self.labels], dtype=torch.float)
        shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
        draw(path, shares, self.labels, self.labels, "each row: what a label was taken for, as a share of its examples")


# --- spans ---------------------------------------------------------------------------------------------------------


def spans(tags: Sequence[str]) -> list[Span]:
    """The spans that BIO (also IO, BIOES) tags draw, as seqeval's default mode reads them: a word goes on with the span
    before it if it is tagged I or E, of the same kind, and that one is not ended by an E or S; else it begins one."""
    found: list[Span] = []
    before, kind = "O", ""
    for place, tag in enumerate(tags):
        letter, _, name = tag.partition("-")
        if letter != "O":
            if before in ("B", "I") and letter in ("I", "E") and name == kind:
                found[-1] = (found[-1][0], place + 1, name)
            else:
                found.append((place, place + 1, name))
        before, kind = letter, name
    return found


def span_metrics(found: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Precision, recall and F1 over whole spans, and the same for each kind of span."""
    mine = {(i, *span) for i, tags in enumerate(found) for span in spans(tags)}
    theirs = {(i, *span) for i, tags in enumerate(right) for span in spans(tags)}
    kinds = sorted({span[3] for span in mine | theirs})
    rows = {}
    for kind in kinds:
        a, b = ({span for span in some if span[3] == kind} for some in (mine, theirs))
        rows[kind] = _row(len(a & b), len(a), len(b))
    whole = _row(len(mine & theirs), len(mine), len(theirs))
    return {
        "spans": whole["f1"],
        "span precision": whole["precision"],
        "span recall": whole["recall"],
        "span kinds": SpanTable(rows),
    }


class SpanTable(dict[str, dict[str, float]]):
    def __str__(self) -> str:
        return _table(self)


# --- several systems -----------------------------------------------------------------------------------------------


def paired_bootstrap(
    systems: Sequence[Sequence[Any]], right: Sequence[Any]
) -> tuple[dict[str, str], list[dict[str, dict[str, float | None]]]]:
    """A paired bootstrap of the accuracy, in percent, of every system against the first; like `metrics.paired`."""
    import numpy as np

    hits = np.array([[a == b for a, b in zip(found, right, strict=True)] for found in systems], float) * 100
    chosen = np.random.default_rng(12345).integers(hits.shape[1], size=(SAMPLES, hits.shape[1]))
    means = hits[:, chosen].mean(-1)  # (systems, samples)
    results = []
    for number, (own, drawn) in enumerate(zip(hits, means, strict=True)):
        p = None
        if number:
            gaps = drawn - means[0]
            as_far = np.abs(gaps - gaps.mean()) >= abs(own.mean() - hits[0].mean())
            p = (float(as_far.sum()) + 1) / (SAMPLES + 1)
        half = float(np.percentile(drawn, 97.5) - np.percentile(drawn, 2.5)) / 2
        score = {"score": float(own.mean()), "mean": float(drawn.mean()), "interval": half, "p": p}
        results.append({"accuracy": score})
    return {"accuracy": f"percent|examples:{hits.shape[1]}|bootstrap:{SAMPLES}|seed:12345"}, results
