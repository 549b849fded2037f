"""The gradients of one step equal direct autograd, whatever its micro-batches; dropout depends on their numbers only."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.parts.inputs import Inputs
from regard.training.objective import AnyObjective, LossSum, Objective, StepObjective
from regard.training.ranks import Ranks
from regard.training.step import GradientStep

CPU = torch.device("cpu")
ROWS, WIDTH = 12, 6


class SquaredError(Objective):
    """A sum over rows, with dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 1))
        self.unused = nn.Parameter(torch.zeros(2))  # the head of another task

    def forward(self, batch: Batch) -> LossSum:
        return LossSum((self.model(batch["left"].values) - batch["right"].values.sum(1, True)).square().sum())


class Contrastive(StepObjective):
    """Every row of `left` belongs to the same row of `right`, among all rows of the step."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 4))
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        scale = self.scale.exp().repeat(len(batch["left"]))
        return {"left": self.model(batch["left"].values), "right": self.model(batch["right"].values), "scale": scale}

    def loss(self, features: Mapping[str, Tensor]) -> LossSum:
        logits = features["left"] @ features["right"].T * features["scale"].mean()
        return LossSum(nn.functional.cross_entropy(logits, torch.arange(len(logits)), reduction="sum"))


OBJECTIVES = {"sum": SquaredError, "contrastive": Contrastive}


def micro_batches(count: int, seed: int = 5) -> list[Batch]:
    """The same rows, cut into `count` unequal micro-batches."""
    generator = torch.Generator().manual_seed(seed)
    sides = [torch.randn(ROWS, WIDTH, generator=generator) for _ in range(2)]
    bounds = [0, *sorted({(i * i * ROWS) // (count * count) or i for i in range(1, count)}), ROWS]
    batches = []
    for number, (first, last) in enumerate(zip(bounds, bounds[1:], strict=False)):
        left, right = (Inputs("frames", side[first:last]) for side in sides)
        batches.append(Batch({"left": left, "right": right}, last - first, number))
    return batches


def gradients(objective: AnyObjective) -> dict[str, Tensor]:
    return {name: each.grad.clone() for name, each in objective.named_parameters() if each.grad is not None}


def direct(objective: AnyObjective) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean loss of all rows at once, and its gradients by autograd."""
    (batch,) = micro_batches(1)
    found = objective(batch)
    loss = (objective.loss(found) if isinstance(objective, StepObjective) else found).sum / ROWS
    loss.backward()
    return loss.detach(), gradients(objective)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_gradients_equal_direct_autograd(kind: str, count: int) -> None:
    loss, wanted = direct(OBJECTIVES[kind](0.0))
    objective = OBJECTIVES[kind](0.0)
    batches = micro_batches(count)
    found = GradientStep(objective, CPU).run(1, batches)
    assert len(batches) == count and found.count == ROWS
    torch.testing.assert_close(found.loss, loss, rtol=1e-6, atol=1e-6)
    assert list(gradients(objective)) == list(wanted)
    torch.testing.assert_close(gradients(objective), wanted, rtol=1e-5, atol=1e-6)
    if count == 1:
        assert all(torch.equal(each, wanted[name]) for name, each in gradients(objective).items())


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_dropout_depends_on_seed_step_and_micro_batch_number(kind: str) -> None:
    def run(seed: int, step: int, earlier: int, shift: int = 0) -> dict[str, Tensor]:
        objective = OBJECTIVES[kind](0.5)
        torch.rand(earlier)
        batches = [Batch(each.inputs, each.count, (each.number + shift) % 2) for each in micro_batches(2)]
        GradientStep(objective, CPU, seed).run(step, batches)
        return gradients(objective)

    first = run(1, 1, 0)
    assert all(torch.equal(each, first[name]) for name, each in run(1, 1, 9).items())
    for other in (run(2, 1, 0), run(1, 2, 0), run(1, 1, 0, shift=1)):
        assert not torch.equal(other["model.0.weight"], first["model.0.weight"])


def test_both_passes_of_a_step_objective_draw_the_same_dropout() -> None:
    """The surrogate gradients are those of the features that the loss has seen."""
    objective, seen = Contrastive(0.5), []
    objective.register_forward_hook(lambda module, given, features: seen.append(features["left"].detach()))
    GradientStep(objective, CPU).run(3, micro_batches(2))
    assert len(seen) == 4 and torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])


def test_a_batch_that_does_not_count_adds_nothing() -> None:
    for kind in OBJECTIVES.values():
        alone, objective = kind(0.5), kind(0.5)
        batches = micro_batches(2)
        idle = Batch(batches[0].inputs, batches[0].count, 2, counted=False)
        GradientStep(alone, CPU).run(1, batches)
        found = GradientStep(objective, CPU).run(1, [*batches, idle])
        assert found.count == ROWS
        torch.testing.assert_close(gradients(objective), gradients(alone), rtol=1e-6, atol=1e-7)


def test_processes_without_a_micro_batch_are_reported() -> None:
    assert Ranks(1, 4).idle_note(4) == Ranks().idle_note(1) == []
    (note,) = Ranks(0, 4).idle_note(1)
    assert note.startswith("3 of 4 processes idle, because a step has 1 micro-batch;") and note.endswith(
        "set train.accumulate=4, or a multiple"
    )


def test_a_compiled_objective_can_be_switched_off() -> None:
    objective, calls = SquaredError(0.0), []
    step = GradientStep(objective, CPU, compiled=lambda batch: calls.append(1) or objective.forward(batch))
    first = step.run(1, micro_batches(2)).loss
    step.compile(False)
    assert torch.equal(step.run(1, micro_batches(2)).loss, first) and len(calls) == 2


def test_micro_batches_are_moved_once() -> None:
    moved = []

    class Moving(Batch):
        def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
            moved.append(self.number)
            return super().to(device, non_blocking)

    for kind in OBJECTIVES.values():
        moved.clear()
        GradientStep(kind(0.0), CPU).run(1, [Moving(each.inputs, each.count, each.number) for each in micro_batches(2)])
        assert moved == [0, 1]
