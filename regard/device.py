"""Choose the torch device of a run."""

import os

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
