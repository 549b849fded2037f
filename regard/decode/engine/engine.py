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
from heapq import heappop, heappush
from threading import Condition, Thread
from typing import Any, TypeVar

from .activity import Start
from .answer import Answer, EngineBusyError
from .generator import FairLock
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
        self.lock, self.wake = FairLock(), Condition()
        self.news = Condition()  # notified after every step of the serving thread
        self._waiting: deque[tuple[Start[Any], Answer[Any]]] = deque()
        self._canceled: deque[Answer[Any]] = deque()
        self._deadlines: list[tuple[float, int, Answer[Any]]] = []
        self._thread: Thread | None = None
        self._readers: ThreadPoolExecutor | None = None
        self.closed, self.steps = False, 0

    # --- requests ----------------------------------------------------------------------------------------------

    def submit(self, start: Start[R], stream: bool = True, seconds: float | None = None) -> Answer[R]:
        """Queue a request, which is canceled after `seconds`. Never waits for a step."""
        if self.closed or len(self._waiting) >= self.max_waiting:
            problem = "the engine is closed" if self.closed else f"{len(self._waiting)} requests wait; try again later"
            raise EngineBusyError(problem)
        answer: Answer[R] = Answer(self, stream)
        self._waiting.append((start, answer))
        if seconds is not None:
            with self.wake:
                heappush(self._deadlines, (time.monotonic() + seconds, answer.number, answer))
        self.notify()
        return answer

    def run(self, starts: Iterable[Start[R]], fail_fast: bool = False, batch: int | None = None) -> list[Answer[R]]:
        """Answer all of them, in closed batches of `batch` rows. Requests start as others end, so inputs are read late.

        `fail_fast` raises the first error and cancels the rest. Several threads may run at once: they share batches.
        """
        answers: list[Answer[R]] = []
        running: deque[Answer[R]] = deque()
        remaining, more = iter(starts), True
        failures = -1  # look at the answers after the first round
        try:
            while more or running:
                while more and len(self._waiting) + len(self.activities.active) < self.window:
                    if (start := next(remaining, None)) is None:
                        more = False
                        break
                    answer: Answer[R] = Answer(self, batch=batch, fail_fast=fail_fast)
                    answers.append(answer)
                    running.append(answer)
                    self._waiting.append((start, answer))
                self.advance()
                if fail_fast and self.activities.failures != failures:
                    failures = self.activities.failures
                    raise_first_error(answers)
                while running and running[0].done:
                    running.popleft()
        finally:  # also after an interrupt of the user
            for answer in running:
                answer.cancel()
        return answers

    def drain(self) -> None:
        """Run until nothing is left: open batches to their end, the rest in closed ones."""
        while self._waiting or self.activities.active:
            self.advance()

    def advance(self) -> None:
        """Offline: a step while an open batch runs, else closed batches of one stage. Beside a serving thread: wait."""
        if self.serving:
            self.notify()
            with self.news:
                self.news.wait(0.005)
            return
        with self.lock:
            if self.scheduler.open_pools:
                self.step()
            else:
                self._admit()
                self.scheduler.round()

    # --- steps -------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Admit requests, run one pass of bounded cost and one token for every row. False: there was nothing to do."""
        with self.lock:
            self.steps += 1
            self._admit()
            return self.scheduler.tick(self._readers) or bool(self._waiting)

    def _admit(self) -> None:
        """End requests that were canceled or are late; begin others as far as the window allows."""
        active = self.activities.active
        while self._deadlines and self._deadlines[0][0] < time.monotonic():
            with self.wake:
                late = heappop(self._deadlines)[2]
            late.cancel("the deadline of the request has passed")
        while self._canceled:
            if (answer := self._canceled.popleft()) in active:
                self.activities.cancel(active[answer])
        while self._waiting and len(active) < self.window:
            start, answer = self._waiting.popleft()
            if not answer.done:
                self.activities.begin(start, answer)

    # --- a server ----------------------------------------------------------------------------------------------

    def start(self) -> "Engine":
        """Step in a thread from now on; inputs are read in threads of their own."""
        self._readers = ThreadPoolExecutor(READERS, "regard-read")
        self._thread = Thread(target=self._serve, name="regard-engine", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Cancel everything and end the threads. Coroutines are closed, so that files are too."""
        self.closed = True
        self.notify()
        if self._thread is not None:
            self._thread.join()
        for answer in [*self.activities.active, *(answer for _, answer in self._waiting)]:
            answer.cancel()
        with self.lock:
            self._admit()
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)

    def discard(self, answer: Answer[Any]) -> None:
        """Close the coroutine of a canceled answer before the next step."""
        self._canceled.append(answer)
        self.notify()

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until a step of the serving thread makes something ready; False: not within `seconds`."""
        with self.news:
            return self.news.wait_for(lambda: ready() or not self.serving, seconds)

    def notify(self) -> None:
        """Wake the serving thread."""
        if self._thread is not None:
            with self.wake:
                self.wake.notify_all()

    @property
    def serving(self) -> bool:
        """True while a thread steps."""
        return self._thread is not None and self._thread.is_alive()

    def stats(self) -> dict[str, int]:
        """The state of the queues, and the jobs and batches so far, for metrics."""
        jobs, active = sum(map(len, self.scheduler.queues.values())), len(self.activities.active)
        counts = {
            "waiting": len(self._waiting),
            "active": active,
            "queued_jobs": jobs,
            "rows": self.scheduler.running_rows,
            "steps": self.steps,
            "failures": self.activities.failures,
        }
        counts |= {f"{kind}_jobs": count for kind, count in self.scheduler.jobs.items()}
        return counts | {f"{kind}_batches": count for kind, count in self.scheduler.batches.items()}

    def _serve(self) -> None:
        while not self.closed:
            going_on = self.step()
            with self.news:
                self.news.notify_all()
            if not going_on:
                with self.wake:
                    self.wake.wait_for(self._has_news, 0.02)

    def _has_news(self) -> bool:
        """True if the serving thread has something to do."""
        return bool(self.closed or self._waiting or self._canceled or self.scheduler.replies)


def raise_first_error(answers: Sequence[Answer[Any]]) -> None:
    """Raise the error of the first answer that has one."""
    for answer in answers:
        if answer.error is not None:
            raise answer.error
