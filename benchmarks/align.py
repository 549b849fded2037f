"""`python -m benchmarks.align [RUN]`: the alignment error rate of both aligners on the embedded dates.

The gold links connect the words of each field. The IBM model is fitted to all pairs and evaluated on those of the test
split, as the attention of RUN is. `--pairs SOURCE,TARGET` are files to align instead, which have no gold links: then
RUN is compared with an IBM model that is fitted to these and to the pairs of `--fit SOURCE,TARGET`. Its sure links are
those of both directions, its possible ones those of either.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from regard.alignment.ibm import align_words
from regard.alignment.links import Links
from regard.cli.runner import run_app
from regard.data.files.open import open_decompressed
from regard.metrics.alignment import alignment_metrics
from regard.runs.work import open_aligner
from regard.synthetic.dates import gold_alignments, make_dates

from .report import align_columns

LOCALES = ("en", "de")
KINDS = ("grow-diag-final-and", "intersect", "union", "forward", "reverse")
Pairs = Sequence[tuple[str, str]]
app = typer.Typer(add_completion=False)


def measure(run: str | None, kind: str, examples: int) -> dict[str, float]:
    """Precision, recall, error rate and seconds; `examples` pairs of the train split help to fit the IBM model."""
    dates, gold = make_dates(LOCALES, examples, 1), gold_alignments(LOCALES, examples, 1)["test"]
    pairs = [*(dates["train"] if run is None else ()), *dates["test"]]
    return compare(run, kind, pairs, [(links, links) for links in gold])


def compare(run: str | None, kind: str, pairs: Pairs, gold: Sequence[tuple[Links, Links]]) -> dict[str, float]:
    """Precision, recall, error rate and seconds; `gold` has the sure and possible links of the last pairs."""
    before = time.perf_counter()
    found = list(open_aligner(run, kind, 5)(pairs))[-len(gold) :]
    seconds = time.perf_counter() - before
    return alignment_metrics((links, *own) for links, own in zip(found, gold, strict=True)) | {"seconds": seconds}


def read_pairs(names: str) -> list[tuple[str, str]]:
    """The lines of two files, which may be compressed."""
    sides = []
    for name in names.split(","):
        with open_decompressed(Path(name)) as file:
            sides.append([line.decode().rstrip("\n") for line in file])
    return list(zip(*sides, strict=True))


@app.command()
def main(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN")] = None,
    pairs: Annotated[str, typer.Option(metavar="SOURCE,TARGET")] = "",
    fit: Annotated[str, typer.Option(metavar="SOURCE,TARGET")] = "",
    examples: int = 20_000,
) -> None:
    """The alignment error rate of runs, and of the IBM model on dates."""
    rows = [["aligner", "symmetrization", "precision", "recall", "aer", "seconds"]]
    if pairs:
        own = read_pairs(pairs)
        whole = [*(read_pairs(fit) if fit else ()), *own]
        both, either = (list(align_words(whole, kind))[-len(own) :] for kind in ("intersect", "union"))
        gold = list(zip(both, either, strict=True))
    for name, run in [*(() if pairs else (("IBM model 2", None),)), *(("attention", run) for run in runs or ())]:
        for kind in KINDS:
            values = (compare(run, kind, own, gold) if pairs else measure(run, kind, examples)).values()
            rows.append([name, kind, *(f"{value:.4f}" for value in values)])
    print("\n".join(align_columns(rows)))


if __name__ == "__main__":
    sys.exit(run_app(app, "python -m benchmarks.align", sys.argv[1:]))
