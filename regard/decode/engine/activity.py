"""Running coroutines: each waits for a job, or for other coroutines that it gathers."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from .answer import Answer, Emit
from .generator import Handle
from .jobs import Gather, Job, Program

R = TypeVar("R")
Start: TypeAlias = Callable[[Emit | None], Program[R]]  # makes the coroutine of a request when its turn comes


class Activity:
    """A coroutine, what it waits for, and what it gathers."""

    __slots__ = (
        "answer",
        "children",
        "handle",
        "index",
        "job",
        "limit",
        "open",
        "parent",
        "program",
        "rest",
        "results",
    )

    def __init__(
        self, program: Program[Any], answer: Answer[Any], parent: "Activity | None" = None, index: int = 0
    ) -> None:
        self.program, self.answer, self.parent, self.index = program, answer, parent, index
        self.job: Job[Any] | None = None
        self.handle: Handle | None = None  # of a search
        self.open = True
        self.rest: Iterator[tuple[int, Program[Any]]] | None = None  # gathered coroutines that have not begun
        self.children: set[Activity] | None = None
        self.results: dict[int, Any] = {}
        self.limit = 0


class Activities:
    """All coroutines of an engine. `queue` gets one that waits for a job; `drop` gets one that was canceled."""

    def __init__(self, queue: Callable[[Activity], None], drop: Callable[[Activity], None]) -> None:
        self.queue, self.drop = queue, drop
        self.active: dict[Answer[Any], Activity] = {}
        self.failures = 0  # requests that failed so far

    def begin(self, start: Start[Any], answer: Answer[Any]) -> None:
        """Start the coroutine of a request and run it to its first job."""
        try:
            program = start(answer.emit)
        except Exception as error:
            self.failures += 1
            answer.finish(None, error)
            return
        self.active[answer] = activity = Activity(program, answer)
        self.resume(activity)

    def resume(self, activity: Activity, value: Any = None, error: BaseException | None = None) -> None:
        """Give a coroutine its reply, or throw its error, and run it to its next job."""
        if not activity.open:
            return
        activity.handle = None
        try:
            job = activity.program.send(value) if error is None else activity.program.throw(error)
            if not isinstance(job, Job):
                raise TypeError(f"a request awaited {job!r}; it can await only jobs of the engine")
        except StopIteration as stop:
            self._end(activity, stop.value, None)
        except Exception as problem:
            self._end(activity, None, problem)
        else:
            activity.job = job
            if isinstance(job, Gather):
                activity.rest, activity.children, activity.results = enumerate(job.programs), set(), {}
                activity.limit = job.limit or 1 << 30
                self._start_children(activity)
            else:
                self.queue(activity)

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

    def _start_children(self, activity: Activity) -> None:
        """Begin gathered coroutines up to the limit; resume the gathering one when all are done."""
        children, rest = activity.children, activity.rest
        if children is None or rest is None:
            return
        activity.rest = None  # a child that ends at once must not begin the next one itself
        try:
            while activity.open and len(children) < activity.limit and (new := next(rest, None)) is not None:
                child = Activity(new[1], activity.answer, activity, new[0])
                children.add(child)
                self.resume(child)
        except Exception as error:  # of the iterator that makes the coroutines
            self._fail(activity, error)
            return
        if activity.children is not children:  # a child has failed meanwhile
            return
        activity.rest = rest
        if not children:
            results, activity.children, activity.rest = activity.results, None, None
            self.resume(activity, [results[index] for index in sorted(results)])

    def _end(self, activity: Activity, value: Any, error: BaseException | None) -> None:
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

    def _fail(self, activity: Activity, error: BaseException) -> None:
        """Cancel what a coroutine gathers and throw the error of one of them."""
        children, activity.children, activity.rest = activity.children or set(), None, None
        for child in children:
            self.cancel(child)
        close_unstarted(activity.job)
        self.resume(activity, error=error)


def close(program: Program[Any]) -> None:
    """End a coroutine; its `finally` blocks run, and may not await."""
    with suppress(RuntimeError):
        program.close()


def close_unstarted(job: Job[Any] | None) -> None:
    """End gathered coroutines that will not begin, so that Python does not warn about them."""
    if isinstance(job, Gather) and isinstance(job.programs, list | tuple):
        for program in job.programs:
            close(program)
