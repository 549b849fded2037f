"""Which jobs run next, and in which batches: closed batches of all that wait, or one bounded pass and one token."""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, TypeAlias

from ...data.loading.sampler import sorted_batches
from ...errors import UserError
from ...progress import track
from .activity import Activities, Activity
from .generator import Generator, Handle
from .jobs import Generate, Job, ModelContext, Read
from .wrappers import EncodedSources

Reply: TypeAlias = tuple[Activity, Any, BaseException | None]


class Scheduler:
    """The queues of one model. The caller holds the lock of the engine.

    `rows` and `capacity` limit an open batch; None: it has what its requests need. `budget` limits the cost of a pass.
    """

    def __init__(self, context: ModelContext, rows: int | None, capacity: int | None, budget: int) -> None:
        self.context, self.rows, self.capacity, self.budget = context, rows, capacity, budget
        self.activities = Activities(self._put, self._drop)
        self.queues: dict[Hashable, deque[Activity]] = {}  # by group of jobs and size of batches
        self.pools: dict[Hashable, Generator] = {}
        self.replies: deque[Reply] = deque()  # from reading threads
        self.models: dict[Hashable, Any] = {}  # wrapped models; CUDA graphs belong to these objects
        self.batches: Counter[str] = Counter()  # batches so far, by the kind of job
        self.jobs: Counter[str] = Counter()  # jobs so far

    # --- offline -----------------------------------------------------------------------------------------------

    def round(self) -> bool:
        """All jobs of the lowest stage in sorted batches; requests of higher stages gather meanwhile.

        So recordings that are decoded again at another temperature catch up before the next windows are encoded.
        """
        if not self.queues:
            return False
        activities = self._take(min(self.queues, key=lambda group: job_of(self.queues[group][0]).stage))
        if not activities:
            return True
        job, batch = job_of(activities[0]), activities[0].answer.batch or self.context.batch
        if isinstance(job, Generate):
            self._search(activities, batch)
            return True
        tokens, rows = job.limits(self.context, batch)
        costs = [job_of(activity).cost for activity in activities]
        groups: Iterable[Sequence[int]] = sorted_batches(costs, tokens, rows) if rows else [range(len(activities))]
        for indices in track(groups, "inputs", len(activities), len) if rows else groups:
            self._run([activities[i] for i in indices])
        return True

    def _search(self, activities: Sequence[Activity], batch: int) -> None:
        """Searches in closed batches."""
        pool = self._enter(activities, batch, closed=True)
        if pool is None:
            return
        try:
            for handles in track(pool.closed_batches(), "texts written", pool.waiting, len):
                self._note("generate", len(handles))
                self._finish(handles)
        except BaseException:  # an interrupt: requests of other threads go on later
            for activity in activities:
                if activity.handle is not None and not activity.handle.done:
                    self._put(activity)
            raise

    # --- a server ----------------------------------------------------------------------------------------------

    def tick(self, readers: Executor | None = None) -> bool:
        """One pass of bounded cost, then one token for every row of the open batches. False: nothing was to be done.

        So a token waits for one pass at most, and a pass for one token.
        """
        while self.replies:
            self.activities.resume(*self.replies.popleft())
        activities = self._next_pass()
        if activities and readers is not None and isinstance(activities[0].job, Read):
            readers.submit(self._read, activities)
        elif activities:
            self._run(activities)
        for group in [group for group, queue in self.queues.items() if isinstance(queue[0].job, Generate)]:
            self._enter(self._take(group), self.rows or 0, closed=False)
        busy = self.open_pools
        for pool in busy:
            self._finish(pool.tick())
        return bool(activities or busy or self.replies or self.queues)

    @property
    def open_pools(self) -> list[Generator]:
        """The open batches with running requests."""
        return [pool for pool in self.pools.values() if pool.capacity is not None and pool.busy]

    @property
    def running_rows(self) -> int:
        """The rows of running requests."""
        return sum(pool.running_rows for pool in self.pools.values())

    def _next_pass(self) -> list[Activity]:
        """Jobs of the group whose first one waits longest, up to the budget; at least one."""
        groups = [group for group, queue in self.queues.items() if not isinstance(queue[0].job, Generate)]
        if not groups:
            return []
        group = min(groups, key=lambda group: self.queues[group][0].answer.number)
        first, budget, count = self.queues[group][0], self.budget, 0
        _, rows = job_of(first).limits(self.context, first.answer.batch or self.context.batch)
        for activity in self.queues[group]:
            budget -= job_of(activity).cost
            if count and (budget < 0 or rows and count >= rows):
                break
            count += 1
        return self._take(group, count)

    def _read(self, activities: Sequence[Activity]) -> None:
        """In a thread: read inputs; the next tick resumes their requests."""
        self.replies.extend(self._replies_to(activities))

    # --- batches -----------------------------------------------------------------------------------------------

    def _run(self, activities: Sequence[Activity]) -> None:
        self._note(type(activities[0].job).__name__.lower(), len(activities))
        try:
            replies = self._replies_to(activities)
        except BaseException:  # an interrupt: requests of other threads go on later
            for activity in activities:
                self._put(activity)
            raise
        for activity, reply, error in replies:
            self.activities.resume(activity, reply, error)

    def _replies_to(self, activities: Sequence[Activity]) -> list[Reply]:
        """Run a batch. If it fails, run its halves: in the end one job fails, and no other.

        Calls that end with their first mistake of a user need not know which of their requests made it.
        """
        jobs, batch = [job_of(activity) for activity in activities], activities[0].answer.batch
        context = replace(self.context, batch=batch) if batch else self.context
        try:
            replies = jobs[0].run(jobs, context)
            return [(activity, reply, None) for activity, reply in zip(activities, replies, strict=True)]
        except Exception as error:
            fail_fast = isinstance(error, UserError) and all(activity.answer.fail_fast for activity in activities)
            if len(activities) == 1 or fail_fast:
                return [(activity, None, error) for activity in activities]
            middle = len(activities) // 2
            return self._replies_to(activities[:middle]) + self._replies_to(activities[middle:])

    def _enter(self, activities: Sequence[Activity], rows: int, closed: bool) -> Generator | None:
        """Submit searches to their pools; one that does not fit fails alone."""
        pool = None
        for activity in activities:
            job = job_of(activity)
            assert isinstance(job, Generate)
            try:
                pool = self._pool(job, rows, closed)
                activity.handle = pool.submit(job)
                activity.handle.owner = activity
            except Exception as error:
                self.activities.resume(activity, error=error)
        return pool

    def _pool(self, job: Generate, rows: int, closed: bool) -> Generator:
        """The pool of a search: one for closed batches, one open batch for each size that requests need."""
        key: tuple[Hashable, ...] = job.variant, job.encoded
        capacity = None
        if not closed:
            capacity = self.capacity or round_up(len(job.prompt) + job.max_tokens + 1)
            rows = rows or round_up(job.width, 32)
        if (pool := self.pools.get((*key, capacity, 0 if closed else rows))) is None:
            context = self.context
            pool = Generator(
                self._model(job, key),
                -1 if context.tokenizer is None else context.tokenizer.end,
                context.filters,
                rows,
                capacity,
                context.positions,
                context.constraint_tokenizer,
            )
            self.pools[*key, capacity, 0 if closed else rows] = pool
        pool.rows = rows
        return pool

    def _model(self, job: Generate, key: Hashable) -> Any:
        """The model of a search with its wrappers, which live as long as the engine."""
        if key not in self.models:
            model = EncodedSources(self.context.model) if job.encoded else self.context.model
            if job.variant is not None:
                assert self.context.variant is not None, "this model has no variants"
                model = self.context.variant(model, job.variant)
            self.models[key] = model
        return self.models[key]

    def _finish(self, handles: Iterable[Handle]) -> None:
        for handle in handles:
            if isinstance(handle.owner, Activity):
                self.activities.resume(handle.owner, handle.hypotheses, handle.error)

    # --- queues ------------------------------------------------------------------------------------------------

    def _put(self, activity: Activity) -> None:
        group = job_of(activity).group(), activity.answer.batch
        queue = self.queues.get(group)
        if queue is None:
            queue = self.queues[group] = deque()
        queue.append(activity)

    def _take(self, group: Hashable, count: int = 1 << 30) -> list[Activity]:
        queue, taken = self.queues[group], list[Activity]()
        while queue and len(taken) < count:
            if (activity := queue.popleft()).open:
                taken.append(activity)
        if not queue:
            del self.queues[group]
        return taken

    def _drop(self, activity: Activity) -> None:
        """A request was canceled: free its rows."""
        if activity.handle is not None:
            activity.handle.cancel()

    def _note(self, kind: str, size: int) -> None:
        self.batches[kind] += 1
        self.jobs[kind] += size


def job_of(activity: Activity) -> Job[Any]:
    """The job that a coroutine waits for."""
    assert activity.job is not None
    return activity.job


def round_up(number: int, least: int = 512) -> int:
    """The next power of two, at least `least`, so that requests of similar size share an open batch."""
    return max(least, 1 << (number - 1).bit_length())
