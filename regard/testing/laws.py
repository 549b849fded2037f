"""The laws. Each takes a `Subject` and raises an AssertionError that says what is wrong. It may replace its model."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from ..look import record_attention
from ..parts import Attention
from ..parts.losses import smoothed_cross_entropy
from ..processors.base import Array
from ..training.checkpoint import load_model, save_model
from .subjects import Subject, Writer

CLOSE = 1e-4  # between two computations of the same numbers in another order


def require_close(found: Tensor, wanted: Tensor, problem: str, tolerance: float = CLOSE) -> None:
    difference = float((found - wanted).abs().max()) if found.numel() else 0.0
    assert difference < tolerance, f"{problem} (the largest difference is {difference:.2g})"


@torch.no_grad()
def shapes(subject: Subject) -> None:
    """An output has the declared size and is finite."""
    for row in subject.batch(subject.sample(5, 5)):
        assert row.size(-1) == subject.size, f"an output has {row.size(-1)} values, expected {subject.size}"
        assert row.isfinite().all(), "an output is not finite"


@torch.no_grad()
def batch_invariance(subject: Subject) -> None:
    """Neither padding nor the other rows of a batch change the output of a row."""
    examples = subject.sample(9, 4, 6)
    together, refilled = subject.batch(examples), subject.batch(examples, fill=7)
    for row, example in enumerate(examples):
        require_close(together[row], subject.alone(example, row), "the output of a row depends on the other rows")
        require_close(together[row], refilled[row], "the output of a row depends on its padding")


@torch.no_grad()
def causality(subject: Subject) -> None:
    """Later tokens change no earlier output."""
    if not isinstance(subject, Writer):
        return
    tokens = torch.randint(4, 40, (2, 8))
    before = subject.write(tokens)
    tokens[:, 5:] = (tokens[:, 5:] + 3) % 36 + 4
    after = subject.write(tokens)
    require_close(before[:, :5], after[:, :5], "an output depends on a later token", 1e-5)
    assert (before[:, 5:] - after[:, 5:]).abs().max() > 1e-3, "the last outputs do not depend on their own tokens"


@torch.no_grad()
def caching(subject: Subject) -> None:
    """Steps with a cache, growing or of fixed size, equal reading the whole text at once."""
    if not isinstance(subject, Writer):
        return
    for capacity in (None, 24):
        cache, texts = subject.start(3, capacity), [list[int]() for _ in range(3)]
        for lengths in ((4, 2, 3), (1, 1, 1), (1, 1, 1), (3, 0, 2), (1, 1, 1)):  # prompts, steps, a row that waits
            tokens = torch.randint(4, 40, (3, max(lengths)))
            valid = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
            found = subject.step(tokens, cache, None if valid.all() else valid)
            for row, length in enumerate(lengths):
                texts[row] += tokens[row, :length].tolist()
                wanted = subject.write(torch.tensor([texts[row]]), [row])[0]
                if length:
                    require_close(found[row, :length], wanted[-length:], "a step with a cache gives another output")
        counted = (cache.lengths - cache.prefix_length).tolist()  # without what stands before every text
        assert counted == [10, 5, 8], f"the cache counts {counted} tokens, expected [10, 5, 8]"


@torch.no_grad()
def packing(subject: Subject) -> None:
    """Several examples in one row give the outputs of separate rows, or packed rows are refused."""
    examples = subject.sample(6, 3, 8)
    try:
        found = subject.packed(examples)
    except ValueError as error:
        assert "cannot pack" in str(error), f"a packed row fails: {error}"
        return
    for packed, separate in zip(found or (), subject.batch(examples), strict=found is not None):
        require_close(packed, separate, "an example in a packed row has another output")


@torch.no_grad()
def saving(subject: Subject) -> None:
    """Saving and loading is the identity."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_model(subject.module, path, 7)
        fresh = subject.family.Model(subject.config).eval()
        assert load_model(fresh, path) == 7
    for (name, one), other in zip(subject.module.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert one.equal(other), f"{name} changes when it is saved and loaded"
    examples = subject.sample(5, 5)
    before, subject.module = subject.batch(examples), fresh
    after = subject.batch(examples)
    assert all(a.equal(b) for a, b in zip(before, after, strict=True)), "a loaded model gives another output"


def learning(subject: Subject) -> None:
    """The model overfits one batch, and a seed repeats its training."""
    examples = subject.sample(5, 5, 5, 5)
    with torch.no_grad():
        targets = [torch.randint(4, 40, row.shape[:-1]) for row in subject.batch(examples)]
    has_dropout = "dropout" in type(subject.config).model_fields
    config = subject.config.model_copy(update={"dropout": 0.1} if has_dropout else {})
    finals = []
    for _ in range(2):
        torch.manual_seed(5)
        subject.module = subject.family.Model(config)
        finals.append(overfit(subject, examples, targets))
        subject.module.eval()
        with torch.no_grad():
            found = [row.argmax(-1) == target for row, target in zip(subject.batch(examples), targets, strict=True)]
        share = float(torch.stack(found).float().mean())
        assert share > 0.9, f"after 80 steps on one batch, {share:.0%} of its outputs are right, expected over 90%"
    assert all(a.equal(b) for a, b in zip(*finals, strict=True)), "the same seed gives other weights"


def overfit(subject: Subject, examples: list[Array], targets: list[Tensor]) -> list[Tensor]:
    """Train 80 steps on one batch and return the weights."""
    parameters = list(subject.module.parameters())
    optimizer = torch.optim.Adam(parameters, 3e-3)
    for _ in range(80):
        pairs = zip(subject.batch(examples), targets, strict=True)
        losses = [smoothed_cross_entropy(row.view(-1, subject.size), target.view(-1)) for row, target in pairs]
        loss = torch.stack(losses).sum() / sum(target.numel() for target in targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [each.detach().clone() for each in parameters]


@torch.no_grad()
def recording(subject: Subject) -> None:
    """Recorded attention weights sum to one over visible keys, and recording changes no output."""
    inputs = subject.probe.batch(subject.sample(6, 3))
    plain = subject.read(inputs)
    with record_attention(subject.module) as maps:
        recorded = subject.read(inputs)
    for row, wanted in zip(recorded, plain, strict=True):
        require_close(row, wanted, "recording changes the output", 1e-5)
    paths = sorted(path for path, part in subject.module.named_modules() if isinstance(part, Attention))
    assert sorted(maps) == paths, f"the attention of {sorted(maps)} is recorded, expected {paths}"
    for path, weights in maps.items():
        if "recording" not in subject.exempt:
            require_close(weights.sum(-1), torch.ones(()), f"the weights of {path} do not sum to one", 1e-5)
        hidden = weights.masked_select(subject.hidden_keys(path, weights, inputs))
        assert hidden.abs().sum() == 0, f"{path} gives weight to keys that are hidden"


LAWS: dict[str, Callable[[Subject], None]] = {
    law.__name__: law for law in (shapes, batch_invariance, causality, caching, packing, saving, learning, recording)
}
