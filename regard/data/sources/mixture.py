"""Several sets of pairs as one data set: a prefix names the task of each, weights set how often it is drawn."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ...config.data.texts import MixData
from ...errors import UserError
from ..source import Concat, Source
from .pairs import open_pairs

Rng = np.random.Generator


class Mixture(Concat):
    """The examples of several tasks, one task after the other. Sources begin with the prefix of their task."""

    def __init__(self, tasks: Sequence[tuple[str, Source]], weights: Sequence[float] = ()) -> None:
        self.prefixes, parts = [prefix for prefix, _ in tasks], [examples for _, examples in tasks]
        super().__init__(parts, ", ".join(f"{prefix!r} {examples.name}" for prefix, examples in tasks))
        self.weights = np.array(weights) / sum(weights) if weights else None
        self.counts = sum((Counter(examples.counts) for examples in parts), Counter[str]())

    def item(self, index: int) -> tuple[str, ...]:
        source, target = super().item(index)
        return self.prefixes[self.part_of(index)] + source, target

    def field(self, index: int, field: int) -> str:
        return self.item(index)[field]

    def text(self, index: int, field: int) -> str:
        return self.item(index)[field]

    def divide(self, choose: Callable[[Source], Source]) -> "Mixture":
        weights = () if self.weights is None else tuple(self.weights)
        return Mixture(list(zip(self.prefixes, map(choose, self.parts), strict=True)), weights)

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """The example indices of one epoch.

        With weights, an epoch has as many examples as all tasks together, drawn by weight. A small task is repeated,
        in a new order each time.
        """
        if self.weights is None:
            return super().order(rng)
        groups = [np.arange(*bounds) for bounds in pairwise(self.bounds)]
        return weighted_order(groups, self.weights, rng)

    def fingerprint(self) -> str:
        tasks = zip(self.prefixes, self.parts, strict=True)
        parts = [f"{prefix}\0{examples.fingerprint()}" for prefix, examples in tasks]
        return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()

    def report(self) -> list[str]:
        return Source.report(self)


def weighted_order(groups: Sequence[np.ndarray], shares: np.ndarray, rng: Rng) -> np.ndarray:
    """As many indices as all groups have together, drawn from each by its share.

    A small group is repeated, in a new order each time.
    """
    total = sum(map(len, groups))
    choices = rng.choice(len(groups), size=total, p=shares)
    order = np.empty(total, np.int32 if total < 2**31 else np.int64)
    for number, group in enumerate(groups):
        places = np.flatnonzero(choices == number)
        rounds = [rng.permutation(len(group)) for _ in range(-(-len(places) // len(group)))]
        order[places] = group[np.concatenate([np.zeros(0, np.int64), *rounds])[: len(places)]]
    return order


def open_mixture(files: Sequence[Sequence[str]], data: MixData, references: bool) -> Mixture:
    """A mixture with one task for each of these files."""
    for key, values in (("prefixes", data.prefixes), ("weights", data.weights)):
        if values and len(values) != len(files):
            raise UserError(
                f"data.{key} has {len(values)} entries and there are {len(files)} files; "
                f"give one for each, in the order of data.train"
            )
    if len(files) > 1 and not data.prefixes:
        raise UserError(
            f"{len(files)} files are given without prefixes to tell their tasks apart; set data.prefixes, one for "
            "each, or join files of one task by a glob or a TOML list"
        )
    datasets = [open_pairs([file], data, references, default="tsv") for file in files]
    for examples in datasets:
        examples.require_nonempty("data.train")
    return Mixture(list(zip(data.prefixes or [""] * len(datasets), datasets, strict=True)), data.weights)
