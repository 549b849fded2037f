"""The translation objective: neither micro-batches nor packing change the gradients."""

import pytest
import torch
import torch._dynamo.testing
from helpers.losses import batch_loss

from regard.config.run import resolve_run
from regard.tasks.translate.task import TranslateJob, prepare

SMALL = {
    "data.examples": 400, "model.width": 32, "model.heads": 2, "model.layers": 1, "model.inner": 64, "model.dropout": 0.0,
    "train.tokens": 900, "train.objective.smoothing": 0.1,
}  # fmt: skip


def build_objective(**changes: object) -> TranslateJob:
    run = resolve_run("dates", {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}).run
    return prepare(run, {}, torch.device("cpu"))


def gradients(objective: TranslateJob) -> tuple[float, dict[str, torch.Tensor], int]:
    """The loss and the gradients of the first step, summed as in the training loop."""
    step, total = next(objective.steps(0, 0)), 0.0
    objective.model.train()
    for piece in step.micro_batches:
        loss = batch_loss(objective, piece) / step.count
        loss.backward()
        total += loss.item()
    return total, {name: each.grad for name, each in objective.model.named_parameters()}, len(step.micro_batches)


@pytest.mark.parametrize("pieces", [2, 5])
def test_accumulation_keeps_the_gradients(pieces):
    loss, whole, one = gradients(build_objective())
    other, parts, several = gradients(build_objective(train__accumulate=pieces))
    assert (one, several) == (1, pieces) and loss == pytest.approx(other, rel=1e-6)
    largest = max(each.abs().max() for each in whole.values())
    for name, each in whole.items():
        # The true gradient of a key bias is zero, so its rounding error is compared to the largest gradient.
        scale = largest if name.endswith("key.bias") else each.norm()
        assert (each - parts[name]).norm() <= 1e-5 * scale, name


def test_packing_keeps_the_gradients():
    from regard.data.datasets.collate import collate_pairs

    objective = build_objective()
    predictor = objective.predictor
    texts = [objective.splits["train"][i] for i in range(12)]
    sides = [
        predictor.source.encode([text[0] for text in texts]),
        predictor.target.encode([text[1] for text in texts]),
    ]
    found = {}
    for width in (0, 64):
        batch = collate_pairs(*sides, predictor.source, predictor.target, width)
        objective.model.zero_grad()
        loss = batch_loss(objective, batch)
        loss.backward()
        found[width] = loss.item(), [each.grad.clone() for each in objective.model.parameters()], len(batch["source"])
    assert found[64][2] < found[0][2] == 12 and found[0][0] == pytest.approx(found[64][0], rel=1e-5)
    for a, b in zip(found[0][1], found[64][1], strict=True):
        assert (a - b).abs().max() <= 1e-4 * max(float(a.abs().max()), 1.0)


@pytest.mark.parametrize("packed", [False, True])
def test_compiled_loss_serves_every_length(packed):
    """For any lengths at most two graphs per kind: a second one because both sides once had equal lengths."""
    from regard.data.datasets.collate import collate_pairs

    objective = build_objective()
    counter = torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(objective.objective.forward, dynamic=True, backend=counter)
    counts = []
    for source, target in ((9, 7), (8, 8), (5, 11), (17, 6), (12, 13), (3, 4)):
        ids = ([[5] * (source - i % 3) for i in range(12)], [[6] * (target - i % 3) for i in range(12)])
        batch = collate_pairs(*ids, objective.predictor.source, objective.predictor.target, 18 if packed else 0)
        with torch.no_grad():
            assert compiled(batch).sum.item() == pytest.approx(batch_loss(objective, batch).item(), rel=1e-5)
        counts.append(counter.frame_count)
    assert counts[1] == counts[-1] > 0
