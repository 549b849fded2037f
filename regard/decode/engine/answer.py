"""The answer to a submitted request: parts of it while it runs, its result, its error, and cancellation."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from .engine import Engine

R = TypeVar("R")
NUMBERS = count()


class EngineBusyError(Exception):
    """Too many requests wait, or the engine is closed."""


class CanceledError(Exception):
    """The request was canceled, or its deadline has passed."""


@dataclass(frozen=True)
class TextDelta:
    """Text that no later token can change: whole characters, no part of a stop string. Together they are the text."""

    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class SegmentDelta:
    """A finished segment of a recording, after its text."""

    start: float  # in seconds
    end: float
    text: str
    kind: Literal["segment"] = "segment"


@dataclass(frozen=True)
class ProgressDelta:
    """How much of a long input has been read."""

    done: float  # in seconds
    total: float
    kind: Literal["progress"] = "progress"


Delta: TypeAlias = TextDelta | SegmentDelta | ProgressDelta
Emit: TypeAlias = Callable[[Delta], None]


class Answer(Generic[R]):
    """A submitted request. Threads may iterate, wait and cancel at the same time.

    Without a serving thread, the thread of the caller steps the engine. An answer has no lock of its own, which would
    cost 10 µs per request: waiting threads share the condition of the engine.
    """

    __slots__ = ("_deltas", "_engine", "batch", "done", "error", "fail_fast", "number", "value")

    def __init__(
        self, engine: "Engine", stream: bool = False, batch: int | None = None, fail_fast: bool = False
    ) -> None:
        self.number, self._engine = next(NUMBERS), engine
        self.fail_fast = fail_fast  # an error of its batch ends all requests of its call
        self.batch = batch  # rows of its closed batches; None: as many as the model's context says
        self.value: R | None = None
        self.error: BaseException | None = None
        self.done = False
        self._deltas: deque[Delta] | None = deque() if stream else None

    @property
    def emit(self) -> Emit | None:
        """Where the coroutine of the request puts its parts; None: nobody reads them."""
        return None if self._deltas is None else self._deltas.append

    def finish(self, value: R | None, error: BaseException | None = None) -> None:
        """Called by the engine, once. `done` is set last: other threads read it without a lock."""
        if not self.done:
            self.value, self.error = value, error
            self.done = True

    def cancel(self, reason: str = "the request was canceled") -> None:
        """Give up the request. Its coroutine is closed before the next step and frees what it holds."""
        if not self.done:
            self.finish(None, CanceledError(reason))
            self._engine.discard(self)

    def __iter__(self) -> Iterator[Delta]:
        """The parts, as they come; then the error, if there is one."""
        deltas = self._deltas
        if deltas is None:
            raise TypeError("this request was submitted with stream=False, so it has no parts")
        while True:
            done = self.done  # read before the deltas: none comes after it
            while deltas:
                yield deltas.popleft()
            if done:
                break
            if self._engine.serving:
                self._engine.wait(lambda: self.done or bool(deltas))
            else:
                self._engine.step()
        if self.error is not None:
            raise self.error

    def result(self, seconds: float | None = None) -> R:
        """The result; raises the error of this request. Without a serving thread it runs the engine."""
        if self._engine.serving and not self._engine.wait(lambda: self.done, seconds):
            raise TimeoutError(f"the request has no result after {seconds} seconds")
        while not self.done:
            self._engine.advance()
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # `finish` has set it
