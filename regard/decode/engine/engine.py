"""The engine: one per loaded model, alive as long as it. It runs requests, which are coroutines that await jobs.

    engine.run(starts)        offline: closed batches over all requests (predict)
    for delta in answer       a stream: steps until this answer is done; others go on beside it
    engine.start()            a server: a thread steps; any number of threads submit, iterate and cancel

A result never depends on other requests, and neither does an error: a batch that fails is halved until one job fails.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from heapq import heapify, heappop, heappush
from threading import Condition, Lock, Thread, get_ident
from typing import TypeVar

from .activity import Start, as_exception, close
from .answer import Answer, AnyAnswer, CanceledError, EngineBusyError
from .jobs import ModelContext
from .scheduler import Scheduler

R = TypeVar("R")
READERS = 4  # threads that read inputs in a server


class Engine:
    """Runs the requests of one model.

    `window`: requests whose inputs are in memory at once; `max_waiting`: how many others may wait. `rows` and
    `capacity` limit the open batch of a server; None: it has what its requests need. `budget`: the cost of one pass.
    """

    def __init__(
        self,
        context: ModelContext,
        *,
        window: int = 1 << 16,
        max_waiting: int = 1024,
        rows: int | None = None,
        capacity: int | None = None,
        budget: int = 4096,
    ) -> None:
        self.context, self.window, self.max_waiting = context, window, max_waiting
        self.scheduler = Scheduler(context, rows, capacity, budget)
        self.activities = self.scheduler.activities
        self.lock = FairLock()  # of the thread that steps
        self.wake = Condition()  # of the queues below; notified when the serving thread has something to do
        self.news = Condition()  # notified after every step of the serving thread
        self._waiting: deque[tuple[Start[object], AnyAnswer]] = deque()
        self._canceled: deque[AnyAnswer] = deque()
        self._deadlines: list[tuple[float, int, AnyAnswer]] = []
        self._thread: Thread | None = None
        self._readers: ThreadPoolExecutor | None = None
        self.serving = self.closed = False  # serving: a thread steps
        self.steps = 0

    # --- requests ----------------------------------------------------------------------------------------------

    def submit(self, start: Start[R], stream: bool = True, seconds: float | None = None) -> Answer[R]:
        """Queue a request, which is canceled after `seconds`. Never waits for a step."""
        answer: Answer[R] = Answer(self, stream)
        with self.wake:
            if self.closed:
                raise EngineBusyError("the engine is closed; start it again")
            if len(self._waiting) >= self.max_waiting:
                raise EngineBusyError(f"{len(self._waiting)} requests wait; try again later")
            self._waiting.append((start, answer))
            if seconds is not None:
                self._add_deadline(seconds, answer)
            self.wake.notify_all()
        return answer

    def run(self, starts: Iterable[Start[R]], fail_fast: bool = False, batch: int | None = None) -> list[Answer[R]]:
        """Answer all of them, in closed batches of `batch` rows. Requests start as others end, so inputs are read late.

        `fail_fast` raises the first error and cancels the rest. Several threads may run at once: they share batches.
        """
        answers: list[Answer[R]] = []
        running: deque[Answer[R]] = deque()
        new: deque[tuple[Start[R], Answer[R]]] = deque()
        remaining, more, call = iter(starts), True, object() if fail_fast else None
        failures = -1  # look at the answers after the first batch
        try:
            while more or running:
                while more and len(self.activities.active) + len(new) < self.window:
                    if (start := next(remaining, None)) is None:
                        more = False
                    else:
                        answer: Answer[R] = Answer(self, batch=batch, call=call)
                        new.append((start, answer))
                        answers.append(answer)
                        running.append(answer)
                if new:
                    with self.lock:
                        while new:
                            self.activities.begin(*new.popleft())
                self.advance()
                if fail_fast and self.activities.failures != failures:
                    failures = self.activities.failures
                    raise_first_error(answers)
                while running and running[0].done:
                    running.popleft()
        finally:  # also after an interrupt of the user
            self._cancel(running, "the call has ended with an error")
            for start, _ in new:  # Python warns about coroutines that never begin
                with suppress(Exception):
                    close(start(None))
        return answers

    def advance(self) -> None:
        """Offline: a closed batch, and a step while an open batch runs. Beside a serving thread: wait for it."""
        self._refuse_nested()
        if self.serving:
            self.notify()
            with self.news:
                self.news.wait(0.005)
            return
        with self.lock:
            streaming = bool(self.scheduler.open_pools)
            if streaming:
                self._step()
            if self.scheduler.planned or not streaming:
                self._admit()
                self.scheduler.run_batch()
            self._close_canceled()

    # --- steps -------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Admit requests, run one pass of bounded cost and one token for every row. False: there was nothing to do."""
        self._refuse_nested()
        with self.lock:
            return self._step()

    def _step(self) -> bool:
        self.steps += 1
        self._admit()
        busy = self.scheduler.tick(self._read if self.serving else None)
        if not busy and self.scheduler.planned:  # by a thread that no longer runs them
            self.scheduler.run_batch()
            busy = True
        self._close_canceled()
        return busy

    def _admit(self) -> None:
        """Close requests that were canceled or are late; begin others as far as the window allows."""
        late, now = list[AnyAnswer](), time.monotonic()
        with self.wake:
            while self._deadlines and self._deadlines[0][0] <= now:
                late.append(heappop(self._deadlines)[2])
        self._cancel(late, "the deadline of the request has passed")
        self._close_canceled()
        while self._can_begin:
            start, answer = self._waiting.popleft()
            if not answer.done:
                self.activities.begin(start, answer)

    @property
    def _can_begin(self) -> bool:
        return bool(self._waiting) and len(self.activities.active) < self.window

    def _close_canceled(self) -> None:
        """Close the coroutines of canceled answers."""
        active, waiting = self.activities.active, False
        while self._canceled:
            if (activity := active.get(self._canceled.popleft())) is None:
                waiting = True
            else:
                self.activities.cancel(activity)
        if waiting:
            with self.wake:
                self._waiting = deque(entry for entry in self._waiting if not entry[1].done)
        if not active:
            self.scheduler.forget()

    def _cancel(self, answers: Iterable[AnyAnswer], reason: str) -> None:
        if canceled := [answer for answer in answers if answer.finish(None, CanceledError(reason))]:
            self.discard(canceled)

    def _refuse_nested(self) -> None:
        """A coroutine or a job that waited for its own engine would wait forever."""
        if self.lock.held:
            raise RuntimeError("a request cannot run others of its engine; let it await their jobs")

    # --- a server ----------------------------------------------------------------------------------------------

    def start(self) -> "Engine":
        """Step in a thread from now on; inputs are read in threads of their own."""
        with self.lock:
            if not self.serving:
                self.closed, self.serving = False, True
                self.scheduler.forget_plan()
                self._readers = ThreadPoolExecutor(READERS, "regard-read")
                self._thread = Thread(target=self._serve, name="regard-engine", daemon=True)
                self._thread.start()
        return self

    def close(self) -> None:
        """Cancel all requests and end the threads. Coroutines are closed, so that files are too.

        `submit` is refused until `start`; `run` goes on working, without a thread.
        """
        self._refuse_nested()
        self.closed = True
        self.notify()
        if self._thread is not None:
            self._thread.join()
        self._end_all(CanceledError("the engine was closed"))
        readers, self._readers = self._readers, None
        if readers is not None:  # a read that hangs must not hold this up
            readers.shutdown(wait=False, cancel_futures=True)

    def discard(self, answers: Iterable[AnyAnswer]) -> None:
        """Close the coroutines of canceled answers: now if no thread steps, else before the next step."""
        self._canceled.extend(answers)
        self.notify()
        with self.news:
            self.news.notify_all()
        if not (self.serving or self.lock.held) and self.lock.acquire(blocking=False):
            try:
                self._close_canceled()
            finally:
                self.lock.release()

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until the serving thread has made something ready; False: not within `seconds`, or none serves."""
        self._refuse_nested()
        with self.news:
            self.news.wait_for(lambda: ready() or not self.serving, seconds)
        return ready()

    def notify(self) -> None:
        """Wake the serving thread."""
        with self.wake:
            self.wake.notify_all()

    def stats(self) -> dict[str, int]:
        """The state of the queues, and the jobs and batches so far, for metrics. Any thread may ask."""
        scheduler = self.scheduler
        counts = {
            "waiting": len(self._waiting),
            "active": len(self.activities.active),
            "queued_jobs": sum(map(len, [*scheduler.queues.values(), *scheduler.planned])),
            "rows": scheduler.running_rows,
            "steps": self.steps,
            "failures": self.activities.failures,
        }
        counts |= {f"{kind}_jobs": count for kind, count in [*scheduler.jobs.items()]}
        return counts | {f"{kind}_batches": count for kind, count in [*scheduler.batches.items()]}

    def _serve(self) -> None:
        try:
            while not self.closed:
                try:
                    busy = self.step()
                except BaseException as error:  # of the engine itself, or an `exit` in a request: nobody waits forever
                    self._end_all(error)
                    busy = False
                with self.news:
                    self.news.notify_all()
                with self.wake:
                    if not (busy or self._has_news):
                        self.wake.wait(self._seconds_to_deadline())
            self._end_all(CanceledError("the engine was closed"))
        finally:
            self.serving = False
            with self.news:
                self.news.notify_all()

    @property
    def _has_news(self) -> bool:
        return bool(self.closed or self._can_begin or self._canceled or self.activities.replies)

    def _seconds_to_deadline(self) -> float | None:
        return max(0.0, self._deadlines[0][0] - time.monotonic()) if self._deadlines else None

    def _add_deadline(self, seconds: float, answer: AnyAnswer) -> None:
        """Answers that are done leave the heap when they are most of it."""
        if len(self._deadlines) > 64 + 2 * (len(self._waiting) + len(self.activities.active)):
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapify(self._deadlines)
        heappush(self._deadlines, (time.monotonic() + seconds, answer.number, answer))

    def _read(self, work: Callable[[], None]) -> None:
        """Read an input in a thread of its own."""
        assert self._readers is not None
        self._readers.submit(work).add_done_callback(lambda _: self.notify())

    def _end_all(self, error: BaseException) -> None:
        """End every request with an error."""
        with self.lock:
            with self.wake:
                answers = [*self.activities.active, *(answer for _, answer in self._waiting)]
            ended = as_exception(error)
            self._canceled.extend(answer for answer in answers if answer.finish(None, ended))
            self._close_canceled()
            self.scheduler.pools.clear()  # frees their caches


def raise_first_error(answers: Sequence[AnyAnswer]) -> None:
    """Raise the error of the first answer that has one."""
    for answer in answers:
        if answer.error is not None:
            raise answer.error


class FairLock:
    """A reentrant lock. A waiting thread comes before the one that has just released it."""

    def __init__(self) -> None:
        self._turn, self._lock = Lock(), Lock()  # the thread that is next holds `_turn`
        self._owner: int | None = None
        self._depth = 0

    @property
    def held(self) -> bool:
        """True in the thread that holds it."""
        return self._owner == get_ident()

    def acquire(self, blocking: bool = True) -> bool:
        """Hold it, once more if this thread does; False: another thread does, or waits, and this one should not."""
        if not self.held:
            if not self._turn.acquire(blocking):
                return False
            try:
                if not self._lock.acquire(blocking):
                    return False
            finally:
                self._turn.release()
            self._owner = get_ident()
        self._depth += 1
        return True

    def release(self) -> None:
        """Give it back."""
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
