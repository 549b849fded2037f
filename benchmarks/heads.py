"""`python -m benchmarks.heads DATA RUN PRUNED…`: score and speed of a tagger, and of the same run with fewer heads.

The programs take turns. Speed is that of `predict` over all sentences of DATA (CoNLL-U), reading and writing excluded.
"""

import statistics
import sys
from collections.abc import Sequence
from typing import Any

import regard
from regard.adapt.heads import all_heads, head_sites
from regard.config.run import parse_data_files
from regard.tasks.tag.task import data_split

from . import timing
from .report import align_columns

ROUNDS = 5


def measure(data: str, runs: Sequence[str], count: int = ROUNDS) -> list[list[str]]:
    """A row of figures for every run: heads, parameters, accuracy, words per second, and times as fast as the first."""
    predictors: dict[str, Any] = {run: regard.load(run) for run in runs}
    first = predictors[runs[0]]
    sentences = [list(words) for words, _ in data_split(first.run, "test", parse_data_files(data))]
    words = sum(map(len, sentences))

    def program(predictor: Any) -> timing.RunRound:
        def run_round(number: int) -> float:
            predictor.predict(sentences)
            return float(words)

        return run_round

    rates = timing.rounds({run: program(each) for run, each in predictors.items()}, count, first.device)
    rows = []
    for run, predictor in predictors.items():
        times, low, high = timing.ratio(rates[run], rates[runs[0]])
        rows.append(
            [
                run,
                f"{len(all_heads(head_sites(predictor.module)))}",
                f"{sum(each.numel() for each in predictor.module.parameters()):,}",
                f"{predictor.evaluate(parse_data_files(data))['accuracy']:.4f}",
                f"{statistics.median(rates[run]):,.0f}",
                f"{times:.2f} ({low:.2f} to {high:.2f})",
            ]
        )
    return rows


def main(arguments: list[str], count: int = ROUNDS) -> None:
    data, *runs = arguments
    head = ["run", "heads", "parameters", "accuracy", "words/s", "times the first"]
    print("\n".join(align_columns([head, *measure(data, runs, count)])))


if __name__ == "__main__":
    main(sys.argv[1:])
