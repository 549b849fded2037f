"""From planned steps to tensors: a process encodes and collates only its share, itself or in worker processes."""

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from ..batch import Batch
from ..dataset import Dataset, Measured
from .sampler import BudgetSampler, MicroBatch, Pool, Step, StepSampler
from .workers import Workers

MEASURED_TOGETHER = 1000  # examples measured in one job of a worker


@dataclass(frozen=True)
class LoadedStep:
    """The data of one optimizer step: this process's share of it, as tensors."""

    micro_batches: list[Batch]
    index: int  # examples of the epoch, over all processes, consumed up to and including this step
    tokens: int  # of the whole step
    examples: list[int]  # of the whole step

    @property
    def count(self) -> int:
        """The divisor of the summed loss: the number of predictions in this share."""
        return sum(batch.count for batch in self.micro_batches if batch.counted)


LoadedSteps: TypeAlias = Iterator[tuple[int, LoadedStep]]  # with their epochs
Share: TypeAlias = tuple[int, int]  # of a process: its rank, and the number of processes


class MeasureJob(NamedTuple):
    """Measure examples, so that their pool can be planned."""

    examples: np.ndarray
    keep: bool


class BatchJob(NamedTuple):
    """Make a batch."""

    micro_batch: MicroBatch
    epoch: int


class PlannedStep(NamedTuple):
    """A step whose batches are being loaded."""

    epoch: int
    step: Step
    batches: int  # of this process's share


Job: TypeAlias = MeasureJob | BatchJob | None  # None does nothing; it flushes the results of earlier jobs


class BatchSource(Protocol):
    """Builds batches: a `Dataset`, or windows of a corpus."""

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


class JobStream:
    """Turns the plan of a sampler into jobs, and their results into steps."""

    def __init__(self, sampler: StepSampler, run: JobRunner, workers: int) -> None:
        self.sampler, self.run = sampler, run
        self.workers: Workers[Job, Measured | Batch | None] | None = Workers(run, workers) if workers else None

    def results(self, jobs: Iterator[Job]) -> Iterator[Measured | Batch | None]:
        return self.workers.map(jobs) if self.workers else map(self.run, jobs)

    def load(self, epoch: int, index: int, share: Share) -> LoadedSteps:
        """The steps of an epoch after its first `index` examples; with workers, also of all epochs that follow."""
        planned: deque[PlannedStep] = deque()
        batches: list[Batch] = []
        for result in self.results(self._jobs(epoch, index, share, planned)):
            if isinstance(result, Measured):
                self.sampler.add_costs(result)
            elif result is not None:
                batches.append(result)
                if len(batches) == planned[0].batches:
                    step_epoch, step, _ = planned.popleft()
                    yield step_epoch, LoadedStep(batches, step.index, step.tokens, step.examples)
                    batches = []

    def measure(self, pool: Pool) -> None:
        for result in self.results(iter(self._measure_jobs(pool))):
            assert isinstance(result, Measured)
            self.sampler.add_costs(result)

    # Planning a pool needs the costs of its examples. Workers measure a pool while the one before it is loaded.

    def _jobs(self, epoch: int, index: int, share: Share, planned: deque[PlannedStep]) -> Iterator[Job]:
        steps = yield from self._epoch_jobs(epoch, index, share, planned)
        while self.workers and steps:
            epoch += 1
            steps = yield from self._epoch_jobs(epoch, 0, share, planned)

    def _epoch_jobs(
        self, epoch: int, index: int, share: Share, planned: deque[PlannedStep]
    ) -> Generator[Job, None, int]:
        """The jobs of an epoch; returns the number of its steps."""
        pools = self.sampler.pools(epoch, index)
        first, count = next(pools, None), 0
        if first is None:
            return 0
        yield from self._measure_jobs(first)
        for pool, following in pairwise(chain([first], pools, [None])):
            assert pool is not None
            while len(self.sampler.unmeasured(pool)):
                yield None
            ahead = self._measure_jobs(following) if following and self.workers else []
            for step in self.sampler.plan(pool, index):
                shard = step.shard(*share)
                planned.append(PlannedStep(epoch, step, len(shard)))
                count += 1
                yield from [BatchJob(micro_batch, epoch) for micro_batch in shard]
                if ahead:
                    yield ahead.pop()
            yield from ahead
            if following and not self.workers:
                yield from self._measure_jobs(following)
        return count

    def _measure_jobs(self, pool: Pool) -> list[Job]:
        unknown = self.sampler.unmeasured(pool)
        size = MEASURED_TOGETHER if self.workers else max(len(unknown), 1)
        keep = self.workers is None
        return [MeasureJob(unknown[first : first + size], keep) for first in range(0, len(unknown), size)]


class Loader:
    """The steps of every epoch. Their order and bits do not depend on the number of workers or processes."""

    def __init__(self, source: BatchSource, sampler: StepSampler, workers: int = 0) -> None:
        self.sampler, self._stream = sampler, JobStream(sampler, JobRunner(source), workers)
        self._ahead: dict[tuple[int, Share], LoadedSteps] = {}  # steps of the next epoch, by its number

    @classmethod
    def of(cls, dataset: Dataset, sampler: type[BudgetSampler] = BudgetSampler) -> "Loader":
        """Steps within the budget of the run. Without workers, a small data set stays in memory once encoded."""
        if not dataset.data.workers:
            dataset.cache_encoded()
        return cls(dataset, sampler(dataset), dataset.data.workers)

    def steps(self, epoch: int, index: int = 0, rank: int = 0, world: int = 1) -> Iterator[LoadedStep]:
        """The steps of an epoch after its first `index` examples; `LoadedStep.index` is where to resume.

        Workers continue with the next epoch, so its first steps are ready when it begins.
        """
        share = rank, world
        ahead = None if index else self._ahead.pop((epoch, share), None)
        self._ahead.clear()
        loaded = self._stream.load(epoch, index, share) if ahead is None else ahead
        for step_epoch, step in loaded:
            if step_epoch != epoch:
                self._ahead[step_epoch, share] = chain([(step_epoch, step)], loaded)
                return
            yield step

    def planned_steps(self, epochs: int) -> float:
        """The number of steps of the first `epochs` epochs. Only the first pool is measured for it."""
        for pool in islice(self.sampler.pools(0), 1):
            self._stream.measure(pool)
        return self.sampler.planned_steps(epochs)

    def align(self, epoch: int, index: int) -> int:
        """The end of the last step within the first `index` examples of an epoch; for checkpoints of another PLAN."""
        for pool in islice(self.sampler.pools(epoch, index), 1):
            self._stream.measure(pool)
            return max([pool.begin, *(step.index for step in self.sampler.plan(pool) if step.index <= index)])
        return index

    def report(self) -> list[str]:
        """Sentences about what was left out so far."""
        return self.sampler.report()

    def close(self) -> None:
        """End the worker processes."""
        self._ahead.clear()
        if self._stream.workers:
            self._stream.workers.close()
