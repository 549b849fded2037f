"""The laws. Each takes a `Subject` and raises an AssertionError that states the violation. It may replace its model."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from ..families.spec import Output
from ..look import record_attention
from ..parts import Attention
from ..parts.inputs import Inputs, TensorKind
from ..parts.losses import smoothed_cross_entropy
from ..training.checkpoint import load_model, save_model
from .probes import PROBES
from .subjects import SUBJECTS, Subject, Writer

Law = Callable[[Subject], None]
CLOSE = 1e-4  # between two computations of the same numbers in another order


def require_close(actual: Tensor, expected: Tensor, problem: str, tolerance: float = CLOSE) -> None:
    """Raise BrokenLaw if two tensors differ."""
    difference = float((actual - expected).abs().max()) if actual.numel() else 0.0
    assert difference < tolerance, f"{problem} (the largest difference is {difference:.2g})"


@torch.no_grad()
def shapes(subject: Subject) -> None:
    """Outputs have the declared shape and are finite."""
    examples = subject.sample(5, 5)
    for row, example in zip(subject.batch(examples), examples, strict=True):
        actual, expected = tuple(row.shape), subject.output_shape(example)
        assert actual == expected, f"the output of a row has the shape {actual}, expected {expected}"
        assert row.isfinite().all(), "an output is not finite"


@torch.no_grad()
def determinism(subject: Subject) -> None:
    """A model in evaluation mode gives the same bits again."""
    inputs = subject.probe.batch(subject.sample(5, 3))
    for first, second in zip(subject.read(inputs), subject.read(inputs), strict=True):
        assert first.equal(second), "the same batch, read twice, has two outputs"


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
    assert isinstance(subject, Writer)
    tokens = torch.randint(4, 40, (2, 8))
    before = subject.write(tokens)
    tokens[:, 5:] = (tokens[:, 5:] + 3) % 36 + 4
    after = subject.write(tokens)
    require_close(before[:, :5], after[:, :5], "an output depends on a later token", 1e-5)
    assert (before[:, 5:] - after[:, 5:]).abs().max() > 1e-3, "the last outputs do not depend on their own tokens"


def growing_cache(subject: Subject) -> None:
    """Steps with a cache that grows equal reading the whole text at once."""
    compare_steps(subject, None)


def fixed_cache(subject: Subject) -> None:
    """Steps with a cache of fixed size equal reading the whole text at once."""
    compare_steps(subject, 24)


@torch.no_grad()
def compare_steps(subject: Subject, capacity: int | None) -> None:
    """Prompts of different lengths, steps, a chunk in which one row waits."""
    assert isinstance(subject, Writer)
    cache, texts = subject.start(3, capacity), [list[int]() for _ in range(3)]
    for lengths in ((4, 2, 3), (1, 1, 1), (1, 1, 1), (3, 0, 2), (1, 1, 1)):
        tokens = torch.randint(4, 40, (3, max(lengths)))
        valid = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        outputs = subject.step(tokens, cache, None if valid.all() else valid)
        for row, length in enumerate(lengths):
            texts[row] += tokens[row, :length].tolist()
            expected = subject.write(torch.tensor([texts[row]]), [row])[0]
            if length:
                require_close(outputs[row, :length], expected[-length:], "a step with a cache gives another output")
    counted = (cache.lengths - cache.prefix_length).tolist()  # without the prefix before every text
    assert counted == [10, 5, 8], f"the cache counts {counted} tokens, expected [10, 5, 8]"


@torch.no_grad()
def packing(subject: Subject) -> None:
    """Several examples in one row give the outputs of separate rows, or packed rows are refused."""
    examples = subject.sample(6, 3, 8)
    try:
        packed_outputs = subject.packed(examples)
    except ValueError as error:
        assert "cannot pack" in str(error), f"a packed row fails: {error}"
        return
    for packed, separate in zip(packed_outputs, subject.batch(examples), strict=True):
        require_close(packed, separate, "an example in a packed row has another output")


@torch.no_grad()
def saving(subject: Subject) -> None:
    """Saving and loading is the identity."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_model(subject.module, path, 7)
        fresh = subject.family.Model(subject.config).eval()
        assert load_model(fresh, path) == 7
    for (name, saved), loaded in zip(subject.module.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert saved.equal(loaded), f"{name} changes when it is saved and loaded"
    examples = subject.sample(5, 5)
    before, subject.module = subject.batch(examples), fresh
    after = subject.batch(examples)
    assert all(a.equal(b) for a, b in zip(before, after, strict=True)), "a loaded model gives another output"


def learning(subject: Subject) -> None:
    """The model overfits one batch, and a seed repeats its training."""
    inputs = subject.probe.batch(subject.sample(5, 5, 5, 5))
    with torch.no_grad():
        targets = torch.cat([torch.randint(4, 40, row.shape[:-1]).flatten() for row in subject.read(inputs)])
    has_dropout = "dropout" in type(subject.config).model_fields
    config = subject.config.model_copy(update={"dropout": 0.1} if has_dropout else {})
    finals = []
    for _ in range(2):
        torch.manual_seed(5)
        subject.module = subject.family.Model(config)
        share = overfit(subject, inputs, targets)
        assert share > 0.9, f"after 80 steps on one batch, {share:.0%} of its outputs are right, expected over 90%"
        finals.append([each.detach().clone() for each in subject.module.parameters()])
    assert all(a.equal(b) for a, b in zip(*finals, strict=True)), "the same seed gives other weights"


def overfit(subject: Subject, inputs: Inputs, targets: Tensor) -> float:
    """Train on one batch until over 90 % of its outputs are right, at most 80 steps, and return their share."""
    optimizer = torch.optim.Adam(subject.module.parameters(), 3e-3)
    share = 0.0
    for _ in range(8):
        subject.module.train()
        for _ in range(10):
            loss = smoothed_cross_entropy(flat_outputs(subject, inputs), targets) / len(targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        subject.module.eval()
        with torch.no_grad():
            share = float((flat_outputs(subject, inputs).argmax(-1) == targets).float().mean())
        if share > 0.9:
            break
    return share


def flat_outputs(subject: Subject, inputs: Inputs) -> Tensor:
    """(outputs of all rows, size)"""
    return torch.cat([row.view(-1, row.size(-1)) for row in subject.read(inputs)])


@torch.no_grad()
def recording(subject: Subject) -> None:
    """Recorded attention weights sum to one over visible keys, and recording changes no output."""
    inputs = subject.probe.batch(subject.sample(6, 3))
    plain = subject.read(inputs)
    with record_attention(subject.module) as maps:
        recorded = subject.read(inputs)
    for row, expected in zip(recorded, plain, strict=True):
        tolerance = 1e-5 * max(1.0, float(expected.abs().max()))  # weights are computed apart from the fused kernel
        require_close(row, expected, "recording changes the output", tolerance)
    parts = subject.module.named_modules()
    paths = sorted(path for path, part in parts if isinstance(part, Attention) and subject.runs(part))
    assert sorted(maps) == paths, f"the attention of {sorted(maps)} is recorded, expected {paths}"
    for path, weights in maps.items():
        if "recording" not in subject.exempt:
            require_close(weights.sum(-1), torch.ones(()), f"the weights of {path} do not sum to one", 1e-5)
        hidden = subject.hidden_pairs(path, weights, inputs)
        assert weights.masked_fill(~hidden, 0).abs().max() == 0, f"{path} gives weight to keys that are hidden"


ALL_LAWS: tuple[Law, ...] = (
    shapes, determinism, batch_invariance, causality, growing_cache, fixed_cache, packing, saving, learning, recording,
)  # fmt: skip
LAWS = {law.__name__: law for law in ALL_LAWS}
WRITER_LAWS = {"causality", "growing_cache", "fixed_cache"}  # of models that generate token by token


def laws_of(modality: TensorKind, output: Output) -> dict[str, Law]:
    """The laws that apply to models of this modality and output, cheap ones first."""
    absent = set() if issubclass(SUBJECTS[output], Writer) else set(WRITER_LAWS)
    if not (PROBES[modality].packs and SUBJECTS[output].packs):
        absent.add("packing")
    return {name: law for name, law in LAWS.items() if name not in absent}
