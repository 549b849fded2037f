"""`python -m benchmarks.align [RUN]`: the alignment error rate of both aligners on the embedded dates.

The gold links connect the words of each field. The IBM model is fitted to all pairs and evaluated on those of the test
split, as the attention of RUN is.
"""

import sys
import time

from regard.metrics.alignment import alignment_metrics
from regard.runs.work import open_aligner
from regard.synthetic.dates import gold_alignments, make_dates

from .report import align_columns

LOCALES = ("en", "de")
KINDS = ("grow-diag-final-and", "intersect", "union", "forward", "reverse")


def measure(run: str | None, kind: str, examples: int) -> dict[str, float]:
    """Precision, recall, error rate and seconds; `examples` pairs of the train split help to fit the IBM model."""
    dates, gold = make_dates(LOCALES, examples, 1), gold_alignments(LOCALES, examples, 1)["test"]
    pairs = [*(dates["train"] if run is None else ()), *dates["test"]]
    before = time.perf_counter()
    found = list(open_aligner(run, kind, 5)(pairs))[-len(gold) :]
    seconds = time.perf_counter() - before
    return alignment_metrics(zip(found, gold, gold, strict=True)) | {"seconds": seconds}


def main(arguments: list[str], examples: int = 20_000) -> None:
    rows = [["aligner", "symmetrization", "precision", "recall", "aer", "seconds"]]
    for name, run in [("IBM model 2", None), *(("attention", run) for run in arguments)]:
        for kind in KINDS:
            values = measure(run, kind, examples).values()
            rows.append([name, kind, *(f"{value:.4f}" for value in values)])
    print("\n".join(align_columns(rows)))


if __name__ == "__main__":
    main(sys.argv[1:])
