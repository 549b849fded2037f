"""Choose the torch device of a run, and the number of its threads on the CPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .errors import UserError


def resolve_device(name: str) -> torch.device:
    """The device named auto, cpu, cuda, cuda:1 or mps.

    auto is a CUDA device, or the CPU if there is none. It is the first one or, under torchrun, that of this process.
    """
    backend = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        device = (
            torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if backend == "cuda" else torch.device(backend)
        )
    except RuntimeError as error:
        raise UserError(f"device={name} is not a device; expected auto, cpu, cuda, cuda:1 (a number) or mps") from error
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        present = f"torch finds {count} CUDA device{'' if count == 1 else 's'}"
        raise UserError(
            f"device={name} is not available: {present}; use {'cuda:0' if count else 'device=cpu'}, or device=auto"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device=mps is not available: it needs a Mac with Apple silicon; use device=cpu or device=auto")
    return device


@dataclass
class ThreadCount:
    """The number of torch's threads in this process, by a run and before any run set it."""

    set: int = 0  # by the last run with `threads`; 0: by none
    before: int = 0


THREADS = ThreadCount()


def use_threads(count: int) -> None:
    """Let torch compute with `count` threads in this process; 0: as many as before any run set a number.

    A number that was set by `torch.set_num_threads` since then stays. The number changes the order of sums, so bits.
    """
    if THREADS.set != torch.get_num_threads():
        THREADS.set, THREADS.before = 0, torch.get_num_threads()
    if wanted := count or (THREADS.before if THREADS.set else 0):
        torch.set_num_threads(wanted)
    THREADS.set = count


@contextmanager
def kept_threads() -> Iterator[None]:
    """What is loaded in this context does not change the number of threads: it is a part of a run with its own."""
    count, state = torch.get_num_threads(), (THREADS.set, THREADS.before)
    try:
        yield
    finally:
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
        THREADS.set, THREADS.before = state
