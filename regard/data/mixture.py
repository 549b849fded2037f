"""Several sets of pairs as one: a prefix tells the task of each, weights say how often it is drawn."""

import bisect
import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..config.schema import MixData, PairData
from ..errors import UserError
from ..synthetic.dates import make_dates
from ..synthetic.language_id import make_phrases
from .examples import Examples
from .readers import PairExamples, named_kind, pairs


class Mixture(Examples):
    """The examples of several tasks, one task after the other. Sources begin with the prefix of their task."""

    def __init__(self, tasks: Sequence[tuple[str, Examples]], weights: Sequence[float] = ()) -> None:
        self.prefixes, self.sets = [prefix for prefix, _ in tasks], [examples for _, examples in tasks]
        self.weights = np.array(weights) / sum(weights) if weights else None
        self.firsts = np.cumsum([0, *map(len, self.sets)])
        self.name = ", ".join(f"{prefix!r} {examples.name}" for prefix, examples in tasks)
        self.counts = sum((Counter(examples.counts) for examples in self.sets), Counter[str]())

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def task(self, index: int) -> int:
        return bisect.bisect_right(self.firsts, index) - 1

    def item(self, index: int) -> tuple[str, ...]:
        task = self.task(index)
        source, target = self.sets[task][index - int(self.firsts[task])]
        return self.prefixes[task] + source, target

    def location(self, index: int) -> str:
        task = self.task(index)
        return self.sets[task].location(index - int(self.firsts[task]))

    def order(self, chance: np.random.Generator) -> np.ndarray:
        """With weights, an epoch has as many examples as there are, of each task as many as its weight draws; a small
        one comes several times, in a new order each time."""
        if self.weights is None:
            return super().order(chance)
        drawn = chance.choice(len(self.sets), size=len(self), p=self.weights)
        order = np.empty(len(self), np.int64)
        for task, examples in enumerate(self.sets):
            places = np.flatnonzero(drawn == task)
            rounds = [chance.permutation(len(examples)) for _ in range(-(-len(places) // len(examples)))]
            order[places] = self.firsts[task] + np.concatenate([np.zeros(0, np.int64), *rounds])[: len(places)]
        return order

    def fingerprint(self) -> str:
        parts = [
            f"{prefix}\0{examples.fingerprint()}" for prefix, examples in zip(self.prefixes, self.sets, strict=True)
        ]
        return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def mixture(files: Sequence[Sequence[str]], data: MixData, references: bool) -> Mixture:
    """A set of pairs for each of these files."""
    for key, given in (("prefixes", data.prefixes), ("weights", data.weights)):
        if given and len(given) != len(files):
            raise UserError(
                f"data.{key} has {len(given)} entries and there are {len(files)} files; "
                f"give one for each, in the order of data.train"
            )
    if len(files) > 1 and not data.prefixes:
        raise UserError(
            f"{len(files)} files are named and nothing tells their tasks apart; set data.prefixes, one for each, or "
            "join files of one task by a glob or a TOML list"
        )
    sets = [pairs_of(file, data, references) for file in files]
    for examples in sets:
        examples.require_nonempty("data.train")
    return Mixture(list(zip(data.prefixes or [""] * len(sets), sets, strict=True)), data.weights)


def pairs_of(file: Sequence[str], data: MixData, references: bool) -> PairExamples:
    kinds: dict[str, Any] = {".jsonl": "jsonl", ".json": "jsonl"}
    format = named_kind(file[0], kinds, "tsv") if data.format == "auto" else data.format
    return pairs([file], PairData(format=format, columns=data.columns, invalid=data.invalid), references)  # type: ignore[arg-type]


def made(data: MixData, part: str) -> Mixture:
    """The embedded tasks: dates from one language into several others, and in which language a date is."""
    source, *targets = data.locales
    if not targets:
        raise UserError(f"data.locales={source} names one language; expected the source's and at least one target's")
    each = max(data.examples // (len(targets) + 1), 1)
    tasks: list[tuple[str, Examples]] = [
        (f"to {target}: ", make_dates((source, target), each, seed=1)[part]) for target in targets
    ]
    tasks.append(("language: ", make_phrases((), each, seed=1)[part]))
    return Mixture(tasks, data.weights)
