"""Several processes that train together, as torchrun starts them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Value = TypeVar("Value")
CPU = torch.device("cpu")
TIMEOUT = timedelta(days=1)  # while process 0 validates or saves, the others wait; torchrun ends them if it fails


@dataclass(frozen=True)
class Ranks:
    """One process, or several that share every step. Only the first one writes files, logs and prints."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, numbers: Sequence[int]) -> list[int]:
        """The sums over all processes; the device is not involved."""
        if self.world == 1:
            return list(numbers)
        summed = torch.tensor(numbers, dtype=torch.long)
        dist.all_reduce(summed)
        totals: list[int] = summed.tolist()
        return totals

    def add(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def share(self, value: Value) -> Value:
        """The value of the first process, in all of them."""
        if self.world == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, device=CPU)
        return values[0]

    def merge(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The named tensors of all processes together."""
        if self.world == 1:
            return tensors
        parts: list[dict[str, Tensor]] = [{}] * self.world
        dist.all_gather_object(parts, {name: tensor.cpu() for name, tensor in tensors.items()})
        return {name: tensor for part in parts for name, tensor in part.items()}

    @contextmanager
    def first_in_turn(self) -> Iterator[None]:
        """Let the first process go first: it writes caches that the others then read."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    def idle_note(self, micro_batches: int) -> list[str]:
        """A note if a step has fewer micro-batches than there are processes."""
        if micro_batches >= self.world:
            return []
        return [
            f"{self.world - micro_batches} of {self.world} processes idle, because a step has {micro_batches} "
            f"micro-batch{'es' if micro_batches > 1 else ''}; set train.accumulate={self.world}, or a multiple"
        ]

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.total([0])


ALONE = Ranks()


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that torchrun started, by gloo on CPUs and NCCL on GPUs; without torchrun, yield ALONE."""
    started = dist.is_available() and dist.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not started or dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
