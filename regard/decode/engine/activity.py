"""Running coroutines: each waits for a job, or for other coroutines that it gathers."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias, TypeVar

from .answer import Answer, AnyAnswer, CanceledError, Emit
from .generator import Handle
from .jobs import AnyJob, Gather, Job, Program

R = TypeVar("R")
Start: TypeAlias = Callable[[Emit | None], Program[R]]  # makes the coroutine of a request when its turn comes


class Activity:
    """A coroutine, what it waits for, and what it gathers."""

    __slots__ = (
        "answer",
        "children",
        "cost",
        "handle",
        "index",
        "job",
        "limit",
        "limits",
        "open",
        "parent",
        "program",
        "rest",
        "results",
    )

    def __init__(
        self, program: Program[object], answer: AnyAnswer, parent: "Activity | None" = None, index: int = 0
    ) -> None:
        self.program, self.answer, self.parent, self.index = program, answer, parent, index
        self.job: AnyJob | None = None
        self.cost, self.limits = 0, (0, 0)  # of its job
        self.handle: Handle | None = None  # of a search
        self.open = True
        self.rest: Iterator[tuple[int, Program[object]]] | None = None  # gathered coroutines that have not begun
        self.children: set[Activity] | None = None
        self.results: dict[int, object] = {}
        self.limit = 0


Reply: TypeAlias = tuple[Activity, object, BaseException | None]


class Activities:
    """All coroutines of an engine. `queue` gets one that waits for a job; `drop` gets one that was canceled."""

    def __init__(self, queue: Callable[[Activity], None], drop: Callable[[Activity], None]) -> None:
        self.queue, self.drop = queue, drop
        self.active: dict[AnyAnswer, Activity] = {}
        self.replies: deque[Reply] = deque()  # of coroutines that can go on; reading threads add theirs
        self.failures = 0  # requests that failed so far

    def begin(self, start: Start[R], answer: Answer[R]) -> None:
        """Start the coroutine of a request and run it to its first job."""
        try:
            program = start(answer.emit)
        except BaseException as error:
            self.failures += 1
            answer.finish(None, as_exception(error))
            if not isinstance(error, Exception):
                raise
            return
        self.active[answer] = activity = Activity(program, answer)
        self._resume(activity)

    def deliver(self, replies: Iterable[Reply] = ()) -> None:
        """Give coroutines their replies. After an interrupt the rest is delivered by the next call."""
        self.replies.extend(replies)
        while self.replies:
            self._resume(*self.replies.popleft())

    def cancel(self, activity: Activity) -> None:
        """Close a coroutine and those that it gathers; their `finally` blocks run."""
        if not activity.open:
            return
        activity.open = False
        for child in activity.children or ():
            self.cancel(child)
        self.drop(activity)
        close(activity.program)
        close_unstarted(activity.job)
        if activity.parent is None:
            self.active.pop(activity.answer, None)

    def _resume(self, activity: Activity, value: object = None, error: BaseException | None = None) -> None:
        """Give a coroutine its reply, or throw its error, and run it to its next job."""
        while activity.open:
            activity.handle = None
            try:
                job = activity.program.send(value) if error is None else activity.program.throw(error)
            except StopIteration as stop:
                self._end(activity, stop.value, None)
                return
            except BaseException as problem:
                self._end(activity, None, as_exception(problem))
                if not isinstance(problem, Exception):
                    raise
                return
            try:
                self._wait_for(activity, job)
                return
            except Exception as problem:  # the job is wrong: the coroutine gets the error where it awaits it
                error = problem

    def _wait_for(self, activity: Activity, job: object) -> None:
        if not isinstance(job, Job):
            raise TypeError(f"a request awaited {job!r}; it can await only jobs of the engine")
        activity.job = job
        if isinstance(job, Gather):
            activity.rest, activity.children, activity.results = enumerate(job.programs), set(), {}
            activity.limit = job.limit or 1 << 30
            self._start_children(activity)
        else:
            self.queue(activity)

    def _start_children(self, activity: Activity) -> None:
        """Begin gathered coroutines up to the limit; the gathering one goes on when all are done."""
        children, rest = activity.children, activity.rest
        if children is None or rest is None:
            return
        activity.rest = None  # a child that ends at once must not begin the next one itself
        try:
            while activity.open and len(children) < activity.limit and (new := next(rest, None)) is not None:
                child = Activity(new[1], activity.answer, activity, new[0])
                children.add(child)
                self._resume(child)
        except BaseException as error:  # of the iterator that makes the coroutines
            self._fail(activity, as_exception(error))
            if not isinstance(error, Exception):
                raise
            return
        if activity.children is not children:  # a child has failed meanwhile
            return
        activity.rest = rest
        if not children:
            results, activity.children, activity.rest = activity.results, None, None
            self.replies.append((activity, [results[index] for index in sorted(results)], None))

    def _end(self, activity: Activity, value: object, error: Exception | None) -> None:
        activity.open = False
        parent = activity.parent
        if parent is None:
            self.active.pop(activity.answer, None)
            self.failures += error is not None
            activity.answer.finish(value, error)
        elif parent.children is not None:
            parent.children.discard(activity)
            if error is not None:
                self._fail(parent, error)
            else:
                parent.results[activity.index] = value
                self._start_children(parent)

    def _fail(self, activity: Activity, error: Exception) -> None:
        """Cancel what a coroutine gathers and throw the error of one of them."""
        children, activity.children, activity.rest = activity.children, None, None
        if children is None:  # it has failed already
            return
        for child in children:
            self.cancel(child)
        close_unstarted(activity.job)
        self.replies.append((activity, None, error))


def as_exception(error: BaseException) -> Exception:
    """The error of a request for what its coroutine raised: an interrupt of one thread must not end another."""
    if isinstance(error, Exception):
        return error
    canceled = CanceledError(f"the request was interrupted by {type(error).__name__}")
    canceled.__cause__ = error
    return canceled


def close(program: Program[object]) -> None:
    """End a coroutine. Its `finally` blocks run; they may not await, and their errors have no one to go to."""
    with suppress(Exception):
        program.close()


def close_unstarted(job: AnyJob | None) -> None:
    """End gathered coroutines that will not begin, so that Python does not warn about them."""
    if isinstance(job, Gather):
        for program in job.programs if isinstance(job.programs, list | tuple) else ():
            close(program)
        if isinstance(job.programs, Generator):
            with suppress(Exception):
                job.programs.close()
