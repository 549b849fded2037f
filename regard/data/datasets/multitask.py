"""Examples of several modalities in one training: a data set for each, and steps that contain all of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...config.data.mixed import MultitaskData
from ...config.train import Train
from ..batch import Batch
from ..dataset import Dataset, EncodedExample, Measured
from ..loading.sampler import BudgetSampler, Pool, Step, alternate_sort, first_step, group_by_budget, split_evenly
from ..sources.task_mixture import TaskMixture


class MultitaskDataset(Dataset):
    """Every modality has its own data set; a batch has examples of one modality.

    Sizes count positions of the shared layers: `strides` has the units of a modality (tokens, patches, frames) per
    position.
    """

    examples: TaskMixture

    def __init__(
        self,
        mixture: TaskMixture,
        members: Mapping[str, Dataset],
        strides: Mapping[str, int],
        data: MultitaskData,
        train: Train,
    ) -> None:
        super().__init__(mixture, data, train)
        self.members = [members[modality] for modality in mixture.modalities]
        self.strides = [strides[modality] for modality in mixture.modalities]
        self.limit = max(-(-member.limit // stride) for member, stride in zip(self.members, self.strides, strict=True))
        self.limit_key = " or ".join(dict.fromkeys(member.limit_key for member in self.members))
        self.curriculum = data.curriculum

    def modalities(self, examples: np.ndarray) -> np.ndarray:
        """The number of the modality of each example."""
        modalities: np.ndarray = self.examples.modality_numbers[examples]
        return modalities

    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured:
        sizes, shortened = np.zeros((len(indices), 2), np.int64), np.zeros(len(indices), bool)
        modalities = self.modalities(indices)
        for number, (member, stride) in enumerate(zip(self.members, self.strides, strict=True)):
            places = np.flatnonzero(modalities == number)
            if len(places):
                measured = member.measure(self.examples.places[indices[places]], keep)
                long = measured.sizes.max(1) > member.limit
                sizes[places] = np.where(long[:, None], self.limit + 1, -(-measured.sizes // stride))
                shortened[places] = measured.shortened
        return Measured(indices, sizes, shortened, np.ones(len(indices), np.int64))

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        member = self.members[int(self.modalities(indices[:1])[0])]
        return replace(member.batch(self.examples.places[indices], epoch), examples=tuple(indices.tolist()))

    def cache_encoded(self) -> None:
        for member in self.members:
            member.cache_encoded()

    def describe_too_long(self) -> str:
        return "; or ".join(dict.fromkeys(member.describe_too_long() for member in self.members))

    def describe_shortened(self) -> str:
        return next(member.describe_shortened() for member in self.members if member.limit_key != "data.max_tokens")

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        raise NotImplementedError  # the members encode

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        raise NotImplementedError  # the members collate


class MultitaskSampler(BudgetSampler):
    """Steps that contain each modality by its share of the pool, in micro-batches of one modality.

    So every step has gradients of all modalities, as long as there are examples. With `accumulate`, a step has that
    many micro-batches of every modality.
    """

    dataset: MultitaskDataset

    def plan(self, pool: Pool, index: int = 0) -> Sequence[Step]:
        sizes = self.dataset.epoch_sizes(pool.epoch, pool.examples, self.costs.of)
        longer, modalities = sizes.max(1), self.dataset.modalities(pool.examples)
        fits = longer <= self.costs.limit
        curriculum = self.dataset.curriculum and not pool.epoch
        rng = np.random.default_rng([self.train.seed, pool.epoch, pool.begin // self.pool_size + 1])
        whole = int(longer[fits].sum())
        columns: list[list[np.ndarray]] = []
        for number in range(len(self.dataset.members)):
            examples = np.flatnonzero((modalities == number) & fits)
            if len(examples):
                share = longer[examples].sum() / whole, len(examples) / max(int(fits.sum()), 1)
                groups = self._groups(examples, sizes, longer, share)
                order = range(len(groups)) if curriculum else rng.permutation(len(groups))
                columns.append([groups[i] for i in order])
        steps = spread_groups(columns)
        read = np.cumsum([sum(map(len, step)) for step in steps], dtype=int)
        ends = pool.begin + len(pool.examples) - int(fits.sum()) + read
        begin = first_step(ends, pool, index)
        return [
            self._mixed_step(pool, step, longer, end) for step, end in zip(steps[begin:], ends[begin:], strict=True)
        ]

    def _groups(
        self, examples: np.ndarray, sizes: np.ndarray, longer: np.ndarray, share: tuple[float, float]
    ) -> list[np.ndarray]:
        """The examples of one modality in groups, one per step: a share of the token budget, or of the examples."""
        order = examples[alternate_sort(longer[examples], sizes[examples, 0] - sizes[examples, 1])]
        tokens, batch = max(int(self.train.tokens * share[0]), 1), self.train.batch
        some = max(round(batch * share[1]), 1) if batch else 0
        return [order[group] for group in group_by_budget(longer[order], tokens, some)]

    def _mixed_step(self, pool: Pool, groups: Sequence[np.ndarray], longer: np.ndarray, end: int) -> Step:
        parts = [group[part] for group in groups for part in split_evenly(longer[group], self.train.accumulate)]
        cost = sum(int(longer[group].sum()) for group in groups)
        return Step(pool.epoch, int(end), cost, tuple(pool.examples[part] for part in parts))


def spread_groups(columns: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """As many steps as the longest column has groups; the groups of shorter columns are spread evenly over them."""
    count = max(map(len, columns), default=0)
    steps: list[list[np.ndarray]] = [[] for _ in range(count)]
    for column in columns:
        for number, group in enumerate(column):
            steps[number * count // len(column)].append(group)
    return steps
