"""Which jobs run next, and in which batches: closed batches of all that wait, or one bounded pass and one token."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ...data.loading.sampler import sorted_batches
from ...errors import UserError
from ...progress import track
from .activity import Activities, Activity, Reply, as_exception
from .generator import Generator, Handle
from .jobs import AnyJob, Generate, ModelContext, Read
from .wrappers import EncodedSources

MAX_MODELS = 8  # wrapped models that an engine keeps: one for each weight of CTC

Group: TypeAlias = tuple[int, Hashable, int | None]  # the stage, the group and the rows of jobs that share batches
Threads: TypeAlias = Callable[[Callable[[], None]], object]  # runs a function in another thread


class Scheduler:
    """The queues of one model. The caller holds the lock of the engine.

    `rows` and `capacity` limit an open batch; None: it has what its requests need. `budget` limits the cost of a pass.
    """

    def __init__(self, context: ModelContext, rows: int | None, capacity: int | None, budget: int) -> None:
        self.context, self.rows, self.capacity, self.budget = context, rows, capacity, budget
        self.activities = Activities(self._put, self._drop)
        self.queues: dict[Group, deque[Activity]] = {}
        self.planned: deque[list[Activity]] = deque()  # closed batches that come next
        self._plan: Iterator[list[Activity]] = iter(())  # yields them and reports the progress
        self.pools: dict[tuple[Hashable, ...], Generator] = {}
        self.models: dict[Hashable, Any] = {}  # wrapped models; CUDA graphs belong to these objects
        self.batches: Counter[str] = Counter()  # batches so far, by the kind of job
        self.jobs: Counter[str] = Counter()  # jobs so far

    # --- offline -----------------------------------------------------------------------------------------------

    def run_batch(self) -> None:
        """Run a closed batch. Batches are planned of all jobs of the lowest stage; requests of higher stages gather.

        So recordings that are decoded again at another temperature catch up before the next windows are encoded.
        """
        self.activities.deliver()
        if not self.planned and self.queues:
            self._make_plan()
        activities = [activity for activity in next(self._plan, ()) if activity.open]
        if activities and isinstance(activities[0].job, Generate):
            self._search(activities)
        elif activities:
            self._run(activities)
        if not self.planned:
            next(self._plan, None)  # reports the end

    def _make_plan(self) -> None:
        """Closed batches of all jobs of the lowest stage, by length."""
        activities = self._take(min(self.queues, key=lambda group: group[0]))
        groups: dict[Hashable, list[Activity]] = {}
        for activity in activities:
            job = job_of(activity)
            groups.setdefault(job.agreement() if isinstance(job, Generate) else None, []).append(activity)
        for members in groups.values():
            costs, (tokens, rows) = [activity.cost for activity in members], members[0].limits
            batches = sorted_batches(costs, tokens, rows) if rows else [[*range(len(members))]]
            self.planned.extend([members[i] for i in batch] for batch in batches)
        self._plan = pop_all(self.planned)
        if activities and len(self.planned) > 1:
            what = "texts written" if isinstance(activities[0].job, Generate) else "inputs"
            self._plan = track(self._plan, what, len(activities), len)

    def forget_plan(self) -> None:
        """Put planned jobs back into their queues."""
        for batch in pop_all(self.planned):
            self._put_back(activity for activity in batch if activity.open)
        self._plan = iter(())

    def forget(self) -> None:
        """Forget all jobs: no request is left."""
        self.queues.clear()
        self.planned.clear()
        self._plan = iter(())

    def _search(self, activities: Sequence[Activity]) -> None:
        """A closed batch of searches."""
        pool = self._enter(activities, activities[0].answer.batch or self.context.batch, closed=True)
        if pool is None:
            return
        try:
            for handles in pool.closed_batches():
                self._note("generate", len(handles))
                self._finish(handles)
        except BaseException:  # an interrupt: requests of other threads go on later
            self._put_back(activity for activity in activities if activity.handle and not activity.handle.done)
            raise
        self.activities.deliver()

    # --- a server ----------------------------------------------------------------------------------------------

    def tick(self, threads: Threads | None = None) -> bool:
        """One pass of bounded cost, then one token for every row of the open batches. False: nothing was to be done.

        So a token waits for one pass at most, and a pass for one token. `threads` read inputs meanwhile.
        """
        self.activities.deliver()
        activities = self._next_pass()
        if activities and threads is not None and isinstance(activities[0].job, Read):
            for activity in activities:  # one by one: none waits for the slow file of another
                threads(partial(self._read, activity))
        elif activities:
            self._run(activities)
        for group in [group for group, queue in self.queues.items() if isinstance(queue[0].job, Generate)]:
            self._enter(self._take(group), self.rows or 0, closed=False)
        busy = self.open_pools
        for pool in busy:
            self._finish(pool.tick())
        self.activities.deliver()
        return bool(activities or busy or self.queues)

    @property
    def open_pools(self) -> list[Generator]:
        """The open batches with running requests."""
        return [pool for pool in self.pools.values() if pool.capacity is not None and pool.busy]

    @property
    def running_rows(self) -> int:
        """The rows of running requests. Other threads may ask for it."""
        return sum(pool.running_rows for pool in list(self.pools.values()))

    def _next_pass(self) -> list[Activity]:
        """Jobs of the group that has the oldest request, up to the budget; at least one."""
        groups = [group for group, queue in self.queues.items() if not isinstance(queue[0].job, Generate)]
        if not groups:
            return []
        group = min(groups, key=lambda group: self.queues[group][0].answer.number)
        queue, budget, activities = self.queues[group], self.budget, list[Activity]()
        _, rows = queue[0].limits
        while queue and not (rows and len(activities) >= rows):
            if queue[0].open:
                budget -= queue[0].cost
                if activities and budget < 0:
                    break
                activities.append(queue[0])
            queue.popleft()
        if not queue:
            del self.queues[group]
        return activities

    def _read(self, activity: Activity) -> None:
        """In a thread: read an input; the next tick resumes its request."""
        try:
            replies = self._replies_to([activity])
        except BaseException as error:
            replies = [(activity, None, as_exception(error))]
        self.activities.replies.extend(replies)

    # --- batches -----------------------------------------------------------------------------------------------

    def _run(self, activities: Sequence[Activity]) -> None:
        self._note(type(activities[0].job).__name__.lower(), len(activities))
        try:
            replies = self._replies_to(activities)
        except BaseException:  # an interrupt: requests of other threads go on later
            self._put_back(activities)
            raise
        self.activities.deliver(replies)

    def _replies_to(self, activities: Sequence[Activity]) -> list[Reply]:
        """Run a batch. If it fails, run its halves: in the end one job fails, and no other.

        A call that ends with the first mistake of a user need not know which of its requests made it.
        """
        jobs, batch = [job_of(activity) for activity in activities], activities[0].answer.batch
        context = replace(self.context, batch=batch) if batch else self.context
        try:
            replies = jobs[0].run(jobs, context)
            return [(activity, reply, None) for activity, reply in zip(activities, replies, strict=True)]
        except Exception as error:
            call = activities[0].answer.call
            shared = call is not None and all(activity.answer.call is call for activity in activities)
            if len(activities) == 1 or shared and isinstance(error, UserError):
                return [(activity, None, error) for activity in activities]
            middle = len(activities) // 2
            return self._replies_to(activities[:middle]) + self._replies_to(activities[middle:])

    def _enter(self, activities: Sequence[Activity], rows: int, closed: bool) -> Generator | None:
        """Submit searches to their pools; one that does not fit fails alone."""
        pool, errors = None, list[Reply]()
        try:
            for activity in activities:
                job = job_of(activity)
                assert isinstance(job, Generate)
                try:
                    pool = self._pool(job, rows, closed)
                    activity.handle = pool.submit(job)
                    activity.handle.owner = activity
                except Exception as error:
                    errors.append((activity, None, error))
        except BaseException:
            self._put_back(activities)
            raise
        self.activities.replies.extend(errors)
        return pool

    def _pool(self, job: Generate, rows: int, closed: bool) -> Generator:
        """The pool of a search: one for closed batches, one open batch for each size that requests need."""
        key: tuple[Hashable, ...] = job.variant, job.encoded
        capacity = None
        if not closed:
            capacity = self.capacity or next_power(len(job.prompt) + job.max_tokens + 1)
            rows = rows or next_power(job.width, 32)
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
            if len(self.models) >= MAX_MODELS:
                self._forget_idle()
            model = EncodedSources(self.context.model) if job.encoded else self.context.model
            if job.variant is not None:
                assert self.context.variant is not None, "this model has no variants"
                model = self.context.variant(model, job.variant)
            self.models[key] = model
        return self.models[key]

    def _forget_idle(self) -> None:
        """Drop pools without requests, and the wrapped models that no other pool has."""
        self.pools = {key: pool for key, pool in self.pools.items() if pool.busy}
        kept = {key[:2] for key in self.pools}
        self.models = {key: model for key, model in self.models.items() if key in kept}

    def _finish(self, handles: Iterable[Handle]) -> None:
        """The next delivery resumes the requests of finished searches."""
        for handle in handles:
            if isinstance(handle.owner, Activity):
                self.activities.replies.append((handle.owner, handle.hypotheses, handle.error))

    # --- queues ------------------------------------------------------------------------------------------------

    def _put(self, activity: Activity) -> None:
        job, batch = job_of(activity), activity.answer.batch
        activity.cost, activity.limits = job.cost, job.limits(self.context, batch or self.context.batch)
        group = job.stage, job.group(), batch
        if (queue := self.queues.get(group)) is None:
            queue = self.queues[group] = deque()
        queue.append(activity)

    def _put_back(self, activities: Iterable[Activity]) -> None:
        """After an interrupt: their jobs run later."""
        for activity in activities:
            self._drop(activity)
            self._put(activity)

    def _take(self, group: Group) -> list[Activity]:
        return [activity for activity in self.queues.pop(group) if activity.open]

    def _drop(self, activity: Activity) -> None:
        """Give up the search of a request: free its rows."""
        if activity.handle is not None:
            activity.handle.cancel()

    def _note(self, kind: str, size: int) -> None:
        self.batches[kind] += 1
        self.jobs[kind] += size


def job_of(activity: Activity) -> AnyJob:
    """The job that a coroutine waits for."""
    assert activity.job is not None
    return activity.job


def pop_all(batches: deque[list[Activity]]) -> Iterator[list[Activity]]:
    """Take batches from the left until none is left."""
    while batches:
        yield batches.popleft()


def next_power(number: int, least: int = 512) -> int:
    """The next power of two, at least `least`, so that requests of similar size share an open batch."""
    return max(least, 1 << (number - 1).bit_length())
