"""The answer to a submitted request: parts of it while it runs, its result, its error, and cancellation."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from .engine import Engine

R = TypeVar("R")
NUMBERS = count()
FINISHING = RLock()  # reentrant: the garbage collector may close a stream, which cancels its answer, at any time


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
    """A submitted request. One thread may iterate it while others wait for it or cancel it.

    Without a serving thread, the thread of the caller steps the engine. An answer has no condition of its own, which
    would cost 10 µs per request: waiting threads share that of the engine.
    """

    __slots__ = ("_deltas", "_engine", "batch", "call", "done", "error", "number", "value")

    def __init__(self, engine: "Engine", stream: bool = False, batch: int | None = None, call: object = None) -> None:
        self.number, self._engine = next(NUMBERS), engine
        self.call = call  # an error of a batch ends all requests of one call; None: only those that caused it
        self.batch = batch  # rows of its closed batches; None: as many as the model's context says
        self.value: R | None = None
        self.error: BaseException | None = None
        self.done = False
        self._deltas: deque[Delta] | None = deque() if stream else None

    @property
    def emit(self) -> Emit | None:
        """Where the coroutine of the request puts its parts; None: nobody reads them."""
        return None if self._deltas is None else self._deltas.append

    def finish(self, value: R | None, error: BaseException | None = None) -> bool:
        """Set the result or the error; False: it has one. `done` is set last: other threads read it without a lock."""
        with FINISHING:
            if self.done:
                return False
            self.value, self.error = value, error
            self.done = True
        return True

    def cancel(self, reason: str = "the request was canceled") -> None:
        """Give up the request. Its coroutine is closed before the next step and frees what it holds."""
        if self.finish(None, CanceledError(reason)):
            self._engine.discard([self])

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
            if not self._engine.wait(lambda: self.done or bool(deltas)):
                self._engine.step()
        if self.error is not None:
            raise self.error

    def result(self, seconds: float | None = None) -> R:
        """The result; raises the error of this request. Without a serving thread it runs the engine.

        After `seconds` it raises TimeoutError; the request goes on.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while not self.done:
            remaining = None if end is None else end - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise TimeoutError(f"the request has no result after {seconds} seconds")
            if not self._engine.wait(lambda: self.done, remaining):
                self._engine.advance()
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # `finish` has set it


AnyAnswer: TypeAlias = Answer[Any]
