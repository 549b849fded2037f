"""Worker processes that run jobs ahead of their use, in order, through torch's DataLoader."""

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.util import Finalize
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, Dataset

from ...errors import UserError
from ...parts.inputs import Inputs
from ..batch import Batch

JOBS_AHEAD = 4  # per worker: bounds what is loaded and not used yet
SHARED_BYTES = 1 << 20  # tensors from this size on travel through shared memory
PARALLEL_TOKENIZERS = "TOKENIZERS_PARALLELISM"

Job = TypeVar("Job")
Result = TypeVar("Result")
DEAD: Any = object()  # replaces the result of a dead process


class Failure:
    """An exception in a worker. It is raised where the result would have been used."""

    def __init__(self, error: Exception) -> None:
        self.trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
            self.error = error
        except Exception:  # not every exception can be sent to another process
            self.error = RuntimeError(f"{type(error).__name__}: {error}")

    def reraise(self) -> None:
        if not isinstance(self.error, UserError):
            self.error.add_note(f"in a worker process (data.workers):\n{self.trace}")
        raise self.error


class SentBatch:
    """A batch on its way from a worker: small tensors travel as arrays, in one message.

    torch would move every tensor to shared memory, which takes a millisecond each and pays off for large ones only.
    """

    def __init__(self, batch: Batch) -> None:
        self.rest = replace(batch, inputs={})
        self.fields = {
            name: {key: _send(value) for key, value in vars(field).items()} for name, field in batch.inputs.items()
        }

    def receive(self) -> Batch:
        fields = {
            name: Inputs(**{key: _receive(value) for key, value in values.items()})
            for name, values in self.fields.items()
        }
        return replace(self.rest, inputs=fields)


def _send(value: Any) -> Any:
    small = isinstance(value, Tensor) and value.nbytes < SHARED_BYTES and value.dtype != torch.bfloat16
    return value.numpy() if small else value


def _receive(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


class JobResults(Dataset[object], Generic[Job, Result]):
    """Maps a job, as an index, to its result."""

    def __init__(self, run: Callable[[Job], Result]) -> None:
        self.run = run

    def __getitem__(self, job: Job) -> object:
        try:
            result = self.run(job)
            return SentBatch(result) if isinstance(result, Batch) else result
        except Exception as error:
            return Failure(error)


class JobQueue(Generic[Job]):
    """The sampler of the DataLoader, which iterates it anew for every call of `map`.

    The DataLoader holds the queue, not the jobs: they may refer to the `Workers`, which would then never end.
    """

    def __init__(self) -> None:
        self.jobs: Iterator[Job] = iter(())

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        return next(self.jobs)


class Workers(Generic[Job, Result]):
    """Processes that run jobs. They start with the first call of `map` and end with this object, or by `close`.

    They are forked: data set, index and tokenizers are inherited, not sent. That is safe because they use no GPU, no
    thread of the parent, and files only by `pread`. A system that cannot fork runs the jobs in this process.
    """

    def __init__(self, run: Callable[[Job], Result], count: int) -> None:
        self._run, self._count, self._queue = run, count, JobQueue[Job]()
        self._loader: DataLoader[object] | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results in order. It reads `jobs` a few ahead."""
        if "fork" not in multiprocessing.get_all_start_methods():
            yield from map(self._run, jobs)
            return
        self._queue.jobs = iterator = iter(jobs)
        try:
            yield from self._results(self._start())
        except Exception:
            self.close()
            raise
        finally:
            if self._queue.jobs is iterator:  # else another call of `map` has begun
                self._queue.jobs = iter(())

    def _results(self, results: Any) -> Iterator[Result]:
        while True:
            result, cause = DEAD, None
            try:
                result = next(results) if all(process.is_alive() for process in results._workers) else DEAD
            except StopIteration:
                return
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                cause = error
            if result is DEAD:
                raise _dead_worker(results) from cause
            if isinstance(result, Failure):
                result.reraise()
            received: Any = result.receive() if isinstance(result, SentBatch) else result
            yield received

    def close(self) -> None:
        """End the processes; the next call of `map` starts others."""
        if self._end:
            self._end()
        self._loader = self._end = None

    def _start(self) -> Iterator[object]:
        if self._loader is None:
            self._loader = DataLoader(
                JobResults(self._run),
                batch_size=None,
                sampler=self._queue,
                num_workers=self._count,
                prefetch_factor=JOBS_AHEAD,
                persistent_workers=True,
                collate_fn=_unchanged,
                worker_init_fn=_prepare_worker,
                multiprocessing_context="fork",
                generator=torch.Generator(),  # else it would draw from the generator of dropout
            )
        with _forking():
            results = iter(self._loader)
        if self._end is None:
            self._end = weakref.finalize(self, _end_workers, results, os.getpid())
        return results


def _unchanged(result: object) -> object:
    return result


def _prepare_worker(number: int) -> None:
    """Ignore signals: the parent handles them and ends training in order; the workers end with it."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    Finalize(None, _leave_results, (os.getppid(),), exitpriority=0)


def _leave_results(parent: int) -> None:
    """Exit at once if the parent was killed: the worker would wait forever for a reader of its results."""
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def _forking() -> Iterator[None]:
    """Set TOKENIZERS_PARALLELISM, else tokenizers in forked processes warn that they must not use threads.

    torch's handler of SIGCHLD would raise in the main thread at any time when a worker dies, so it is removed. A dead
    worker is noticed when the next result is due.
    """
    before = os.environ.get(PARALLEL_TOKENIZERS)
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGCHLD) if main else None
    os.environ[PARALLEL_TOKENIZERS] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PARALLEL_TOKENIZERS]
        else:
            os.environ[PARALLEL_TOKENIZERS] = before
        if main and handler is not None:
            signal.signal(signal.SIGCHLD, handler)


def _dead_worker(results: Any) -> UserError:
    """Kill the other workers, which may wait for a lock of the dead one, and return the error to raise."""
    codes = [process.exitcode for process in results._workers if not process.is_alive()]
    code = next((code for code in codes if code is not None), None)
    for process in results._workers:
        process.kill()
        process.join()
    results._shutdown = True
    if results._worker_pids_set:  # torch refuses another iterator at the same address otherwise
        _remove_worker_pids(id(results))
        results._worker_pids_set = False
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return UserError(
        f"a worker process of the data ended {how}, perhaps because memory ran out; use fewer (data.workers, now "
        f"{len(results._workers)}), or 0, and continue with --resume"
    )


def _end_workers(results: Any, parent: int) -> None:
    """Ask the workers to end; kill those that do not."""
    if os.getpid() != parent:  # a worker's copy
        return
    results._shutdown_workers()
    for process in results._workers:
        if process.is_alive():
            process.kill()
            process.join()
