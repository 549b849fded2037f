"""Which device a run uses."""

import torch

from .errors import UserError


def resolve_device(name: str) -> torch.device:
    """The device called auto, cpu, cuda, cuda:1 or mps; auto is the first CUDA device if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device={name} is no device; expected auto, cpu, cuda, cuda:1 (a number) or mps") from error
    if found.type == "cuda" and (found.index or 0) >= (count := torch.cuda.device_count()):
        there = f"torch sees {count} CUDA device{'' if count == 1 else 's'}"
        raise UserError(
            f"device={name} is not there: {there}; use {'cuda:0' if count else 'device=cpu'}, or device=auto"
        )
    if found.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device=mps is not there: it needs a Mac with Apple silicon; use device=cpu or device=auto")
    return torch.device("cuda", 0) if name == "cuda" else found
