"""From planned steps to tensors: a process encodes and collates only its share, itself or in worker processes."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from .batch import Batch
from .dataset import Measured, TaskDataset
from .sampler import BudgetSampler, MicroBatch, Pool, Step, StepSampler
from .workers import Workers

MEASURED_TOGETHER = 1000  # examples that a worker measures in one job


@dataclass(frozen=True)
class LoadedStep:
    """The data of one optimizer step: this process's share of it, as tensors."""

    micro_batches: list[Batch]
    index: int  # examples of the epoch, over all processes, consumed up to and including this step
    tokens: int  # of the whole step
    examples: list[int]  # of the whole step

    @property
    def count(self) -> int:
        """The predictions of this share, which the summed loss is divided by."""
        return sum(batch.count for batch in self.micro_batches if batch.counted)


class MeasureJob(NamedTuple):
    """Measure examples, so that their pool can be planned."""

    examples: np.ndarray
    keep: bool


class BatchJob(NamedTuple):
    """Make a batch."""

    micro_batch: MicroBatch
    epoch: int


Job: TypeAlias = MeasureJob | BatchJob | None  # None only lets the results of earlier jobs come out


class BatchSource(Protocol):
    """What makes the batches: a `TaskDataset`, or windows of a corpus."""

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch: ...
    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured: ...


@dataclass(frozen=True)
class JobRunner:
    """Runs jobs, here or in a worker process, which has a copy of the source."""

    source: BatchSource

    def __call__(self, job: Job) -> Measured | Batch | None:
        if job is None:
            return None
        if isinstance(job, MeasureJob):
            return self.source.measure(job.examples, job.keep)
        examples, number, counted, rows = job.micro_batch
        batch = self.source.batch(examples, job.epoch, *([] if rows is None else [rows]))
        return replace(batch, number=number, counted=counted)


class Loader:
    """The steps of every epoch. Their order and bits do not depend on the number of workers or processes."""

    def __init__(self, source: BatchSource, sampler: StepSampler, workers: int = 0) -> None:
        self.sampler, self._run = sampler, JobRunner(source)
        self._workers: Workers[Job, Measured | Batch | None] | None = Workers(self._run, workers) if workers else None

    @classmethod
    def of(cls, dataset: TaskDataset) -> "Loader":
        """Steps within the budget of the run. Without workers, a small data set stays in memory once encoded."""
        if not dataset.data.workers:
            dataset.cache_encoded()
        return cls(dataset, BudgetSampler(dataset), dataset.data.workers)

    def steps(self, epoch: int, index: int = 0, rank: int = 0, world: int = 1) -> Iterator[LoadedStep]:
        """The steps of an epoch after its first `index` examples; `LoadedStep.index` is where to resume."""
        planned: deque[tuple[Step, int]] = deque()  # steps whose batches are not all loaded, and how many they have
        jobs = self._jobs(epoch, index, (rank, world), planned)
        batches: list[Batch] = []
        for result in self._results(jobs):
            if isinstance(result, Measured):
                self.sampler.add_costs(result)
            elif result is not None:
                batches.append(result)
                if len(batches) == planned[0][1]:
                    step, _ = planned.popleft()
                    yield LoadedStep(batches, step.index, step.tokens, step.examples)
                    batches = []

    def planned_steps(self, epochs: int) -> float:
        """The number of steps of the first `epochs` epochs. Only the first pool is measured for it."""
        for pool in islice(self.sampler.pools(0), 1):
            self._measure(pool)
        return self.sampler.planned_steps(epochs)

    def align(self, epoch: int, index: int) -> int:
        """The end of the last step within the first `index` examples of an epoch, for checkpoints of another plan."""
        for pool in islice(self.sampler.pools(epoch, index), 1):
            self._measure(pool)
            return max([pool.begin, *(step.index for step in self.sampler.plan(pool) if step.index <= index)])
        return index

    def _measure(self, pool: Pool) -> None:
        for result in self._results(iter(self._measure_jobs(pool))):
            assert isinstance(result, Measured)
            self.sampler.add_costs(result)

    def _results(self, jobs: Iterator[Job]) -> Iterator[Measured | Batch | None]:
        return self._workers.map(jobs) if self._workers else map(self._run, jobs)

    def report(self) -> list[str]:
        """Sentences about what was left out so far."""
        return self.sampler.report()

    def close(self) -> None:
        """End the worker processes."""
        if self._workers:
            self._workers.close()

    # Jobs. Planning a pool needs the costs of its examples. Workers measure a pool while the one before it is loaded.

    def _jobs(self, epoch: int, index: int, share: tuple[int, int], planned: deque[tuple[Step, int]]) -> Iterator[Job]:
        pools = self.sampler.pools(epoch, index)
        first = next(pools, None)
        if first is None:
            return
        yield from self._measure_jobs(first)
        for pool, following in pairwise(chain([first], pools, [None])):
            assert pool is not None
            while len(self.sampler.unmeasured(pool)):
                yield None
            ahead = self._measure_jobs(following) if following and self._workers else []
            for step in self.sampler.plan(pool, index):
                own = step.shard(*share)
                planned.append((step, len(own)))
                yield from [BatchJob(each, epoch) for each in own]
                if ahead:
                    yield ahead.pop()
            yield from ahead
            if following and not self._workers:
                yield from self._measure_jobs(following)

    def _measure_jobs(self, pool: Pool) -> list[Job]:
        unknown = self.sampler.unmeasured(pool)
        size = MEASURED_TOGETHER if self._workers else max(len(unknown), 1)
        keep = self._workers is None
        return [MeasureJob(unknown[first : first + size], keep) for first in range(0, len(unknown), size)]
