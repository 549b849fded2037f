"""The gradients of one optimizer step: any objective, any number of micro-batches and processes."""

from typing import TYPE_CHECKING

import torch

from ..data.batch import Batch
from ..errors import UserError
from . import checkpoint
from .protocols import Stateful, StepLike

if TYPE_CHECKING:
    from .loop import Trainer


import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .objective import AnyObjective, Forward, LossSum, Objective, StepObjective
from .optim import autocast
from .ranks import ALONE, Ranks

Features: TypeAlias = Mapping[str, Tensor]


class CompiledObjective(nn.Module):
    """The objective as the loop calls it: compiled while `enabled`."""

    def __init__(self, objective: AnyObjective, compiled: Forward) -> None:
        super().__init__()
        self.objective, self.compiled, self.enabled = objective, compiled, True

    def forward(self, batch: Batch) -> LossSum | dict[str, Tensor]:
        output: LossSum | dict[str, Tensor] = self.compiled(batch) if self.enabled else self.objective(batch)
        return output


@dataclass(frozen=True)
class StepLoss:
    """The mean loss of a step over all processes, still on the device, and its count."""

    loss: Tensor
    count: int


class GradientStep:
    """Adds the gradient of a step's mean loss to every parameter.

    Dropout is seeded by (seed, step, micro-batch number): it depends neither on the process that runs a micro-batch
    nor on what ran there before. Seeding does not wait for the device.
    """

    def __init__(
        self,
        objective: AnyObjective,
        device: torch.device,
        seed: int = 0,
        precision: str = "fp32",
        ranks: Ranks = ALONE,
        compiled: Forward | None = None,
    ) -> None:
        self.objective, self.device, self.seed, self.precision, self.ranks = objective, device, seed, precision, ranks
        self.to_device = DeviceCopy(device)
        self.switch = CompiledObjective(objective, compiled) if compiled else None
        self.module: nn.Module = self.switch or objective
        if ranks.world > 1:  # a task may leave some parameters without gradient, such as another task's head
            self.module = DistributedDataParallel(self.module, broadcast_buffers=False, find_unused_parameters=True)

    def compile(self, enabled: bool) -> None:
        """Run the compiled objective from now on, or the plain one."""
        if self.switch:
            self.switch.enabled = enabled

    def run(self, step: int, micro_batches: Sequence[Batch]) -> StepLoss:
        """`micro_batches` are this process's share of the step; all processes have equally many."""
        counted = [batch for batch in micro_batches if batch.counted]
        terms = list(micro_batches[0].counts)
        local_counts = [
            sum(batch.count for batch in counted),
            *(sum(batch.counts[term] for batch in counted) for term in terms),
        ]
        count, *others = self.ranks.total(local_counts)
        if isinstance(self.objective, StepObjective):
            return StepLoss(self._whole_step(self.objective, step, micro_batches, max(count, 1)), count)
        divisors = {term: max(total, 1) / self.ranks.world for term, total in zip(terms, others, strict=True)}
        return StepLoss(self._sum(self.objective, step, micro_batches, max(count, 1), divisors), count)

    def _sum(
        self,
        objective: Objective,
        step: int,
        micro_batches: Sequence[Batch],
        count: int,
        divisors: Mapping[str, float],
    ) -> Tensor:
        """Divide before backward, so that results do not depend on the number of micro-batches and processes."""
        total, last = torch.zeros((), device=self.device), len(micro_batches) - 1
        divisor = count / self.ranks.world  # DDP takes the mean over the processes
        for place, batch in enumerate(micro_batches):
            with self._reduced(place == last):
                with self._forward(step, batch):
                    loss_sum: LossSum = self.module(objective.bind(self.to_device(batch)))
                    loss = loss_sum.sum / divisor
                    for name, term in loss_sum.terms.items():
                        loss = loss + term / divisors[name]
                loss = loss if batch.counted else loss * 0.0
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return self.ranks.add(total / self.ranks.world) if self.ranks.world > 1 else total

    def _whole_step(self, objective: StepObjective, step: int, micro_batches: Sequence[Batch], count: int) -> Tensor:
        """GradCache (2101.06983): features without a graph, the loss of all of them, and each micro-batch again."""
        objective.prepare()
        if len(micro_batches) == self.ranks.world == 1:
            with self._forward(step, micro_batches[0]):
                loss = objective.loss(self.module(self.to_device(micro_batches[0]))).sum / count
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()
        batches = [self.to_device(batch) for batch in micro_batches]
        with torch.no_grad():
            parts = [self._features(step, batch) for batch in batches]
        tables, rows = self._gather(batches, parts)
        with autocast(self.device, self.precision):
            loss = objective.loss(tables).sum / count
        loss.backward()  # type: ignore[no-untyped-call]
        for place, (batch, batch_rows) in enumerate(zip(batches, rows, strict=True)):
            with self._reduced(place == len(batches) - 1):
                features = {name: x for name, x in self._features(step, batch).items() if x.requires_grad}
                gradients = [
                    _gradient(tables[name])[batch_rows] * self.ranks.world
                    if batch.counted
                    else torch.zeros_like(feature)
                    for name, feature in features.items()
                ]
                torch.autograd.backward(list(features.values()), gradients)
        return loss.detach()

    def _features(self, step: int, batch: Batch) -> dict[str, Tensor]:
        with self._forward(step, batch):
            features: dict[str, Tensor] = self.module(batch)
        return features

    def _gather(self, batches: Sequence[Batch], parts: Sequence[Features]) -> tuple[dict[str, Tensor], list[slice]]:
        """The features of the whole step by name, in the order of micro-batch numbers, and the rows of each batch.

        Each process fills in its own rows. A batch that does not count has none.
        """
        sizes = [0] * (len(batches) * self.ranks.world)
        for batch, part in zip(batches, parts, strict=True):
            sizes[batch.number] = len(next(iter(part.values()))) if batch.counted else 0
        ends = torch.tensor(self.ranks.total(sizes)).cumsum(0).tolist()
        rows = [slice(ends[batch.number] - sizes[batch.number], ends[batch.number]) for batch in batches]
        tables = {}
        for name, first in parts[0].items():
            table = first.new_zeros(ends[-1], *first.shape[1:])
            for batch, part, batch_rows in zip(batches, parts, rows, strict=True):
                if batch.counted:
                    table[batch_rows] = part[name]
            tables[name] = self.ranks.add(table).requires_grad_(table.is_floating_point())
        return tables, rows

    def _forward(self, step: int, batch: Batch) -> AbstractContextManager[object]:
        seed_dropout(self.device, self.seed, step, batch.number)
        return autocast(self.device, self.precision)

    def _reduced(self, last: bool) -> AbstractContextManager[object]:
        """DDP reduces the gradients once per step, with the last micro-batch."""
        if isinstance(self.module, DistributedDataParallel) and not last:
            return self.module.no_sync()
        return nullcontext()


def seed_dropout(device: torch.device, seed: int, step: int, number: int) -> None:
    """Seed the generators of the CPU and of this device in some 20 µs; torch.manual_seed takes 300 µs without a GPU."""
    value = random.Random(f"{seed} {step} {number}").getrandbits(63)
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(value)
    elif device.type == "mps":
        torch.mps.manual_seed(value)


def _gradient(features: Tensor) -> Tensor:
    return torch.zeros_like(features) if features.grad is None else features.grad


def compute_gradients(trainer: "Trainer", number: int, step: StepLike) -> StepLoss:
    """Add up the gradients of the micro-batches of step `number`."""
    if not trainer.state.compiled:
        return trainer.gradients.run(number, step.micro_batches)
    before, objective_state = checkpoint.rng_state(), trainer.objective_state()
    try:
        return trainer.gradients.run(number, step.micro_batches)
    except UserError:
        raise
    except Exception as error:  # any compiler failure; an error of the task itself recurs below
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if trainer.ranks.world > 1:  # the other processes wait for the compiled step
            raise UserError(f"torch.compile failed ({reason}); set train.compile=false") from error
        trainer.note(f"torch.compile failed ({reason}); training continues without it")
        trainer.state.compiled = False
        trainer.gradients.compile(False)
        trainer.optimizer.zero_grad()
        checkpoint.restore_rng_state(before)
        if isinstance(trainer.objective, Stateful):
            trainer.objective.load_state(objective_state)
        return trainer.gradients.run(number, step.micro_batches)


LARGE_BYTES = 1 << 20  # smaller batches reach a GPU without waiting for it


class DeviceCopy:
    """Copies batches to a device. Large ones go through pinned memory, so that a GPU computes meanwhile.

    Each copy waits for the previous one, so at most two batches are pinned at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copied: torch.cuda.Event | None = None  # after the last large batch

    def __call__(self, batch: Batch) -> Batch:
        if self.device.type != "cuda" or sum(inputs.nbytes for inputs in batch.inputs.values()) < LARGE_BYTES:
            return batch.to(self.device, non_blocking=self.device.type == "cuda")
        if self._copied is not None:
            self._copied.synchronize()
        moved = batch.pin().to(self.device, non_blocking=True)
        self._copied = torch.cuda.current_stream(self.device).record_event()
        return moved
