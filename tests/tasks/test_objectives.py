"""The training side of translation: cutting an update into pieces, or packing it, changes nothing that is learnt."""

import pytest
import torch
import torch._dynamo.testing

from regard.config.run import resolve
from regard.tasks.translate import TranslateObjective, prepare

SMALL = {
    "data.examples": 400, "model.width": 32, "model.heads": 2, "model.layers": 1, "model.inner": 64, "model.dropout": 0.0,
    "train.tokens": 900, "train.smoothing": 0.1,
}  # fmt: skip


def lesson(**changes: object) -> TranslateObjective:
    run = resolve("dates", {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}).run
    return prepare(run, None, torch.device("cpu"))[0]


def gradients(lesson: TranslateObjective) -> tuple[float, dict[str, torch.Tensor], int]:
    """The loss and the gradients of the first update, as the loop adds them up."""
    update, total = next(lesson.steps(0, 0)), 0.0
    lesson.model.train()
    for piece in update.micro_batches:
        loss = lesson.loss(lesson.model, piece) / update.count
        loss.backward()
        total += loss.item()
    return total, {name: each.grad for name, each in lesson.model.named_parameters()}, len(update.micro_batches)


@pytest.mark.parametrize("pieces", [2, 5])
def test_accumulation_gives_the_gradients_of_one_big_batch(pieces):
    loss, whole, one = gradients(lesson())
    other, parts, several = gradients(lesson(train__accumulate=pieces))
    assert (one, several) == (1, pieces) and loss == pytest.approx(other, rel=1e-6)
    largest = max(each.abs().max() for each in whole.values())
    for name, each in whole.items():
        # The true gradient of a key's bias is zero, so rounding is all there is: it is held against the largest of all.
        scale = largest if name.endswith("key.bias") else each.norm()
        assert (each - parts[name]).norm() <= 1e-5 * scale, name


def test_packing_changes_nothing():
    from regard.data.collate import collate_pairs

    taught = lesson()
    translator = taught.translator
    texts = [taught.parts["train"][i] for i in range(12)]
    sides = [
        translator.source.encode([text[0] for text in texts]),
        translator.target.encode([text[1] for text in texts]),
    ]
    found = {}
    for width in (0, 64):
        batch = collate_pairs(*sides, translator.source, translator.target, width)
        taught.model.zero_grad()
        loss = taught.loss(taught.model, batch)
        loss.backward()
        found[width] = loss.item(), [each.grad.clone() for each in taught.model.parameters()], len(batch.source)
    assert found[64][2] < found[0][2] == 12 and found[0][0] == pytest.approx(found[64][0], rel=1e-5)
    for a, b in zip(found[0][1], found[64][1], strict=True):
        assert (a - b).abs().max() <= 1e-4 * max(float(a.abs().max()), 1.0)


@pytest.mark.parametrize("packed", [False, True])
def test_compiled_code_serves_every_length(packed):
    """Whatever the lengths are, two graphs at most of each kind: one more than one where sides happened to be equal."""
    from regard.data.collate import collate_pairs

    taught = lesson()
    counter = torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    loss = torch.compile(taught.loss, dynamic=True, backend=counter)
    counts = []
    for source, target in ((9, 7), (8, 8), (5, 11), (17, 6), (12, 13), (3, 4)):
        ids = ([[5] * (source - i % 3) for i in range(12)], [[6] * (target - i % 3) for i in range(12)])
        batch = collate_pairs(*ids, taught.translator.source, taught.translator.target, 18 if packed else 0)
        with torch.no_grad():
            assert loss(taught.model, batch).item() == pytest.approx(taught.loss(taught.model, batch).item(), rel=1e-5)
        counts.append(counter.frame_count)
    assert counts[1] == counts[-1] > 0
