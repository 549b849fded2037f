"""Losses, schedules, and the training loop on a tiny synthetic task: its records and its errors."""

import copy
import io
import json
import math
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from regard.config.train import Constant, Cosine, Linear, Noam, Train, WarmupStableDecay
from regard.data.batch import Batch
from regard.device import resolve_device
from regard.errors import UserError
from regard.families import transformer, vit
from regard.parts.inputs import Inputs
from regard.parts.losses import smoothed_cross_entropy
from regard.training import checkpoint, curves, loop, progress, run_loop
from regard.training import optim as optim
from regard.training.objective import LossSum, Objective
from regard.training.schedules import learning_rate
from regard.training.stop_signal import StopSignal

VOCAB, EXAMPLES, BATCH = 23, 40, 8
draw = curves.draw


class Net(nn.Module):
    """A small model with what makes resuming hard: dropout, a tied tensor, a norm, a buffer, an unused parameter."""

    def __init__(self, width: int = 16, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, VOCAB)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(4.0))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.dropout(torch.relu(self.inner(self.norm(self.embed(tokens))))))


@dataclass(frozen=True)
class Step:
    micro_batches: list[Batch]
    index: int
    tokens: int
    examples: list[int]


class ToyObjective(Objective):
    """The loss of a task, which subclasses override."""

    def __init__(self, task: "Task", model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Batch) -> LossSum:
        return LossSum(self.task.loss(self.model, batch))


class Task:
    """Maps every symbol to another; rows have different lengths."""

    static_shapes = False
    objective: Objective

    def __init__(self, **train: Any) -> None:
        defaults = {"steps": 20, "lr": 1e-2, "warmup": 5, "save_every": 5, "eval_every": 5, "tensorboard": False}
        self.run: Any = SimpleNamespace(task="translate", train=Train(**{**defaults, **train}), device="cpu")
        generator = torch.Generator().manual_seed(7)
        self.tokens = torch.randint(0, VOCAB, (EXAMPLES, 6), generator=generator)
        self.targets = (self.tokens * 5 + 3) % VOCAB
        self.valid = torch.arange(6) < torch.randint(2, 7, (EXAMPLES, 1), generator=generator)
        self.requested: list[tuple[int, int]] = []
        self.facts: list[str] = []

    def of(self, model: nn.Module) -> "Task":
        """This task, with a model to train."""
        self.objective = ToyObjective(self, model)
        return self

    def describe_data(self) -> list[str]:
        return list(self.facts)

    def steps(self, epoch: int, index: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
        self.requested.append((epoch, index))
        order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(epoch))
        for start in range(index, EXAMPLES, BATCH):
            rows = order[start : start + BATCH]
            parts = enumerate(rows.chunk(self.run.train.accumulate))
            micro_batches = [self.micro_batch(some, number) for number, some in parts]
            yield Step(micro_batches, start + len(rows), int(self.valid[rows].sum()), rows.tolist())

    def planned_steps(self, epochs: int) -> float:
        return epochs * EXAMPLES / BATCH

    def align(self, epoch: int, index: int) -> int:
        return index // BATCH * BATCH

    def micro_batch(self, rows: Tensor, number: int) -> Batch:
        text = Inputs("tokens", self.tokens[rows])
        labels = Inputs("tokens", self.targets[rows], self.valid[rows])
        return Batch({"text": text, "labels": labels}, int(self.valid[rows].sum()), number, tuple(rows.tolist()))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        labels = batch["labels"]
        return smoothed_cross_entropy(model(batch["text"].values), labels.values, labels.valid, 0.1)

    def validate(self) -> dict[str, float]:
        torch.rand(3)  # an evaluation may use random numbers; it must not matter
        logits = self.objective.model(self.tokens[:16])
        loss = float(smoothed_cross_entropy(logits, self.targets[:16], self.valid[:16]) / self.valid[:16].sum())
        exact = float((logits.argmax(-1) == self.targets[:16]).float().mean())
        return {"loss": loss, "perplexity": math.exp(loss), "exact": exact}


class WithoutValidation(Task):
    def validate(self) -> dict[str, float]:
        return {}


def net(seed: int = 1, **settings: Any) -> Net:
    torch.manual_seed(seed)
    return Net(**settings)


def folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    if not (path / "run.json").exists():
        (path / "run.json").write_text('{"format": 3, "config": {}, "processors": {}}')
    return path


def trained(path: Path, task: Task | None = None, resume: bool = False, model: Net | None = None, **train: Any) -> Any:
    return run_loop((task or Task(**train)).of(model or net()), folder(path), resume=resume, progress=False)


def records(path: Path, event: str) -> list[dict[str, Any]]:
    return [record for record in progress.read_records(path / "metrics.jsonl") if record["event"] == event]


def step_of(path: Path) -> int:
    with safe_open(path / "model.safetensors", framework="pt") as file:
        assert set(file.metadata()) == {"step"}
        return int(file.metadata()["step"])


def checkpoints(path: Path) -> list[int]:
    return sorted(int(each.name[5:]) for each in (path / "checkpoints").iterdir())


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use one thread, and skip curves.png: drawing takes longer than the training."""
    monkeypatch.setattr(curves, "draw", lambda folder: None)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- losses ---


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_cross_entropy_matches_torch_over_valid_positions(smoothing: float) -> None:
    logits = torch.randn(3, 5, 11, dtype=torch.float64, requires_grad=True)
    targets, valid = torch.randint(0, 11, (3, 5)), torch.rand(3, 5) < 0.6
    valid[0, 0] = True
    expected = F.cross_entropy(logits[valid], targets[valid], label_smoothing=smoothing, reduction="sum")
    (wanted,) = torch.autograd.grad(3 * expected, logits)
    found = smoothed_cross_entropy(logits, targets.masked_fill(~valid, -100), valid, smoothing)
    (gradient,) = torch.autograd.grad(3 * found, logits)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-12)
    assert not gradient[~valid].any()
    torch.testing.assert_close(smoothed_cross_entropy(logits[valid], targets[valid], smoothing=smoothing), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_smoothed_cross_entropy_is_the_same_when_compiled(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the code path for the compiler without compiling it."""
    logits = torch.randn(37, 11, requires_grad=True)
    targets, weights = torch.randint(0, 11, (37,)), torch.rand(37) > 0.3
    found = []
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda value=compiling: value)
        loss = smoothed_cross_entropy(logits, targets, weights, smoothing)
        found.append((loss.detach(), *torch.autograd.grad(2 * loss, logits)))
    torch.testing.assert_close(found[0], found[1])


def test_smoothed_cross_entropy_is_float32_inside_autocast() -> None:
    logits = (torch.randn(64, 500) * 4).bfloat16().requires_grad_()
    targets = torch.randint(0, 500, (64,))
    with torch.autocast("cpu", torch.bfloat16):
        found = smoothed_cross_entropy(logits, targets, smoothing=0.1)
    expected = F.cross_entropy(logits.double(), targets, label_smoothing=0.1, reduction="sum")
    assert found.dtype == torch.float32
    assert abs(found.item() / expected.item() - 1) < 1e-6  # a bfloat16 softmax is off by 1e-3
    found.backward()
    (wanted,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(logits.grad, wanted)


# --- schedules ---

ROOT = math.sqrt(0.5)
GOLDEN = [  # schedule, warmup, steps, {step: fraction of the peak}, computed by hand
    (Noam(), 4, 0, {1: 0.25, 2: 0.5, 3: 0.75, 4: 1, 9: 2 / 3, 16: 0.5, 64: 0.25}),
    (Noam(), 0, 0, {1: 1, 4: 0.5}),
    (Constant(), 4, 0, {1: 0.25, 3: 0.75, 4: 1, 5: 1, 10**6: 1}),
    (Constant(), 0, 0, {1: 1, 9: 1}),
    (Cosine(), 4, 12, {2: 0.5, 4: 1, 6: (1 + ROOT) / 2, 8: 0.5, 10: (1 - ROOT) / 2, 12: 0, 13: 0}),
    (Cosine(floor=0.1), 4, 12, {4: 1, 8: 0.55, 12: 0.1, 99: 0.1}),
    (Cosine(), 0, 4, {1: (1 + ROOT) / 2, 2: 0.5, 4: 0}),
    (Linear(), 4, 12, {1: 0.25, 4: 1, 6: 0.75, 8: 0.5, 12: 0, 13: 0}),
    (Linear(floor=0.5), 4, 12, {4: 1, 8: 0.75, 12: 0.5}),
    (WarmupStableDecay(decay=0.25), 4, 12, {1: 0.25, 4: 1, 9: 1, 10: 2 / 3, 11: 1 / 3, 12: 0}),
    (WarmupStableDecay(decay=1), 4, 12, {4: 1, 8: 0.5, 12: 0}),
    (Linear(), 20, 10, {5: 0.25, 10: 0.5}),  # the training ends during the warm-up
]


@pytest.mark.parametrize(("schedule", "warmup", "steps", "expected"), GOLDEN)
def test_schedules_match_the_golden_table(schedule: Any, warmup: int, steps: int, expected: dict[int, float]) -> None:
    at = learning_rate(schedule, 0.002, warmup, steps)
    assert {i: at(i) for i in expected} == pytest.approx(
        {i: 0.002 * factor for i, factor in expected.items()}, abs=1e-15
    )


def test_noam_matches_the_paper() -> None:
    width, warmup = 512, 4000
    at = learning_rate(Noam(), (width * warmup) ** -0.5, warmup, 0)
    for i in (1, 17, 3999, 4000, 4001, 100_000):
        assert at(i) == pytest.approx(width**-0.5 * min(i**-0.5, i * warmup**-1.5), rel=1e-12)


@pytest.mark.parametrize("schedule", [Cosine(), Linear(), WarmupStableDecay()])
def test_a_decaying_schedule_requires_train_steps(schedule: Any) -> None:
    with pytest.raises(UserError, match=r"train\.schedule\.kind=\w+ .* train\.steps is 0; set train\.steps"):
        learning_rate(schedule, 1.0, 4, 0)


# --- device and optimizer ---


def test_device() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type in ("cpu", "cuda")
    for name, words in (("cuda:99", "torch finds"), ("quantum", "is not a device"), ("mps", "Apple silicon")):
        if name == "mps" and torch.backends.mps.is_available():
            continue
        with pytest.raises(UserError, match=f"device={name} .*{words}"):
            resolve_device(name)


def test_weight_decay_excludes_norms_and_biases() -> None:
    model = net()
    settings = Train(optimizer={"kind": "adamw", "decay": 0.5, "betas": (0.8, 0.9), "eps": 1e-7}).optimizer
    found = optim.build_optimizer(model, settings)
    decayed = {id(each): group["weight_decay"] for group in found.param_groups for each in group["params"]}
    assert {name: decayed[id(each)] for name, each in model.named_parameters()} == {
        "embed.weight": 0.5, "inner.weight": 0.5,
        "norm.weight": 0.0, "norm.bias": 0.0, "inner.bias": 0.0, "head.bias": 0.0, "unused": 0.0,
    }  # fmt: skip
    assert type(found) is torch.optim.AdamW
    assert (found.defaults["betas"], found.defaults["eps"]) == ((0.8, 0.9), 1e-7)


def test_layers_below_learn_more_slowly_and_positions_do_not_decay(tmp_path: Path) -> None:
    image = {"image": 8, "patch": 4, "width": 8, "heads": 2, "layers": 3, "inner": 8, "head": "class", "labels": 2}
    model = vit.Model(vit.Config(**image))
    settings = Train(optimizer={"kind": "adamw", "decay": 0.5, "layer_decay": 0.5}).optimizer
    groups = optim.build_optimizer(model, settings).param_groups
    found = {id(each): (group["rate_scale"], group["weight_decay"]) for group in groups for each in group["params"]}
    of = {name: found[id(each)] for name, each in model.named_parameters()}
    assert len(of) == len(found) and of["first"] == of["positions.table"] == (0.0625, 0.0)
    assert of["patches.project.weight"] == (0.0625, 0.5)
    weights = [of[f"encoder.layers.{number}.feed.{name}.weight"] for number in range(3) for name in ("into", "out")]
    assert weights == [(scale, 0.5) for scale in (0.125, 0.125, 0.25, 0.25, 0.5, 0.5)]
    assert of["encoder.norm.weight"] == (1, 0) and of["classes.weight"] == (1, 0.5)
    shape = {"vocab": 9, "width": 8, "heads": 2, "layers": 2, "decoder_layers": 2, "inner": 8}
    both = transformer.Model(transformer.Config(**shape))
    scales = optim.rate_scales(both, 0.5)
    assert {scales[name] for name in scales if name.startswith("encoder.layers.0")} == {0.0625}
    assert {scales[name] for name in scales if name.startswith("decoder.layers.1")} == {0.5}
    with pytest.raises(UserError, match="layer_decay is 0.5, but the model has no stack of layers; scale the rates"):
        optim.rate_scales(net(), 0.5)


def test_frozen_parameters_stay_and_a_fully_frozen_model_is_refused(tmp_path: Path) -> None:
    model = net()
    model.inner.requires_grad_(False)
    before = model.inner.weight.clone()
    trained(tmp_path, model=model)
    assert torch.equal(model.inner.weight, before)
    with pytest.raises(UserError, match="nothing to train"):
        trained(tmp_path / "x", model=net().requires_grad_(False))


def test_a_step_matches_torch_adam(tmp_path: Path) -> None:
    task, model, twin = Task(steps=3, schedule="constant", warmup=2, clip=0.5), net(dropout=0), net(dropout=0)
    run_loop(task.of(model), folder(tmp_path), resume=False, progress=False)
    adam = torch.optim.Adam(twin.parameters(), betas=(0.9, 0.98), eps=1e-9)
    for number, step in zip((1, 2, 3), task.steps(0, 0), strict=False):
        text, labels = (step.micro_batches[0][name] for name in ("text", "labels"))
        logits = twin(text.values)[labels.valid]
        F.cross_entropy(logits, labels.values[labels.valid], label_smoothing=0.1).backward()
        norm = nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        adam.param_groups[0]["lr"] = 1e-2 * min(number / 2, 1)
        adam.step()
        adam.zero_grad()
        assert norm > 0.5  # clipping is active
    for (name, own), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("micro_batches", [2, 3, 8])
def test_accumulated_gradients_equal_those_of_one_batch(tmp_path: Path, micro_batches: int) -> None:
    def gradients(accumulate: int) -> tuple[float, dict[str, Tensor]]:
        task, model = Task(accumulate=accumulate), net(dropout=0)
        trainer = loop.Trainer(task.of(model), tmp_path)
        step = next(task.steps(0, 0))
        assert len(step.micro_batches) == accumulate
        loss = trainer.compute_gradients(1, step).loss.item()
        return loss, {name: each.grad for name, each in model.named_parameters() if each.grad is not None}

    (whole_loss, whole), (loss, cut) = gradients(1), gradients(micro_batches)
    assert loss == pytest.approx(whole_loss, rel=1e-6)
    assert whole.keys() == cut.keys()
    for name, expected in whole.items():
        assert (cut[name] - expected).norm() <= 1e-5 * expected.norm(), name


# --- the loop ---


def test_training_learns_and_writes_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "draw", draw)
    seen: list[dict[str, Any]] = []
    task = Task(steps=60, log_every=10, eval_every=25, save_every=20, keep=2, tensorboard=True)
    outcome = run_loop(task.of(net()), folder(tmp_path), resume=False, on_event=seen.append, progress=False)
    assert (outcome.status, outcome.steps, outcome.best_step) == ("finished", 60, 60)
    assert outcome.best is not None and outcome.best < 1.5  # chance level: ln 23 = 3.1
    assert checkpoints(tmp_path) == [40, 60]
    assert [record["step"] for record in records(tmp_path, "train")] == [1, 10, 20, 30, 40, 50, 60]
    assert [record["step"] for record in records(tmp_path, "valid")] == [25, 50, 60]  # and not twice at the end
    assert records(tmp_path, "train")[0]["loss"] == pytest.approx(math.log(VOCAB), abs=2.5)
    assert records(tmp_path, "train")[2]["lr"] == pytest.approx(1e-2 * math.sqrt(5 / 20))
    first = records(tmp_path, "train")[0]
    assert {"loss", "lr", "norm", "tokens_per_second", "seconds", "epoch"} <= set(first) and 0 <= first[
        "data_wait"
    ] <= 1
    assert records(tmp_path, "end")[0]["status"] == "finished"
    assert seen == progress.read_records(tmp_path / "metrics.jsonl")
    weights = json.loads((tmp_path / "run.json").read_text())
    assert weights == {
        "format": 3,
        "config": {},
        "processors": {},
        "weights": {"step": 60, "metric": "loss", "value": outcome.best},
    }
    assert step_of(tmp_path) == 60
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    names = {path.name for path in (tmp_path / "checkpoints/step-60").iterdir()}
    assert names == {"model.safetensors", "optimizer.safetensors", "state.json"}


def test_tensorboard_has_the_records(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(tmp_path, steps=10, log_every=5, tensorboard=True)
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    kept = {record["step"]: record["loss"] for record in records(tmp_path, "train")}
    shown = {scalar.step: scalar.value for scalar in board.Scalars("train/loss")}
    assert shown == pytest.approx(kept, rel=1e-6)
    assert [scalar.step for scalar in board.Scalars("valid/perplexity")] == [5, 10]


def test_the_logged_loss_is_the_mean_per_token_since_the_last_record(tmp_path: Path) -> None:
    task = Task(steps=4, log_every=3, lr=1e-30, warmup=1)  # so small that the weights do not change
    model = net(dropout=0)
    with torch.no_grad():
        steps = list(task.steps(0, 0))[:4]
        sums = [float(task.loss(model, step.micro_batches[0])) for step in steps]
    counts = [step.tokens for step in steps]
    run_loop(task.of(model), folder(tmp_path), resume=False, progress=False)
    found = {record["step"]: record["loss"] for record in records(tmp_path, "train")}
    assert len(set(counts)) > 1
    expected = {1: sums[0] / counts[0], 3: sum(sums[1:3]) / sum(counts[1:3]), 4: sums[3] / counts[3]}
    assert found == pytest.approx(expected, rel=1e-5)


def test_evaluation_and_log_frequency_do_not_change_the_weights(tmp_path: Path) -> None:
    trained(tmp_path / "a", steps=12, eval_every=1, log_every=1)
    trained(tmp_path / "b", steps=12, eval_every=12, log_every=12, save_every=12)
    final = "checkpoints/step-12/model.safetensors"
    assert (tmp_path / "a" / final).read_bytes() == (tmp_path / "b" / final).read_bytes()


def test_seeds(tmp_path: Path) -> None:
    final = "checkpoints/step-20/model.safetensors"
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.rand(len(name) + seed)  # earlier random numbers must not matter
        trained(tmp_path / name, seed=seed)
    a, b, c = ((tmp_path / name / final).read_bytes() for name in "abc")
    assert a == b != c


def test_epochs_end_the_training_and_resume_in_the_data(tmp_path: Path) -> None:
    task = Task(steps=0, epochs=3)
    outcome = run_loop(task.of(net()), folder(tmp_path), resume=False, progress=False)
    assert (outcome.status, outcome.steps) == ("finished", 3 * EXAMPLES // BATCH)
    assert task.requested == [(0, 0), (1, 0), (2, 0)]
    more = Task(steps=0, epochs=4)
    assert run_loop(more.of(net()), folder(tmp_path), resume=True, progress=False).steps == 4 * EXAMPLES // BATCH
    assert more.requested == [(2, EXAMPLES), (3, 0)]


def test_minutes_count_over_resumed_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    class Slow(Task):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            now[0] += 10
            return super().loss(model, batch)

        def validate(self) -> dict[str, float]:
            now[0] += 4
            return super().validate()

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    ended = []
    for minutes in (1, 1, 2):  # step 5 and the last one are evaluated, for 4 s
        now[0] += 1000  # time between the parts does not count
        outcome = trained(tmp_path, Slow(steps=0, minutes=minutes, log_every=5), resume=True)
        ended.append((outcome.status, outcome.steps, outcome.seconds))
    assert ended == [("finished", 6, 68), ("finished", 6, 68), ("finished", 11, 126)]
    assert [record["seconds"] for record in records(tmp_path, "train")] == [10, 50, 64, 108, 122]
    assert (
        trained(tmp_path / "short", Slow(steps=0, minutes=1e-9)).steps == 1
    )  # at least one step, so that there are weights to keep


def test_an_epoch_without_examples_is_an_error(tmp_path: Path) -> None:
    class Empty(Task):
        def steps(self, epoch: int, index: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
            return iter(())

    with pytest.raises(UserError, match=r"epoch 0 has no training example; check data\.train"):
        trained(tmp_path, Empty())


class Scripted(Task):
    """Its validation metrics are given in advance."""

    def __init__(self, metrics: list[float], name: str = "loss", **train: Any) -> None:
        super().__init__(metric=name, eval_every=2, **train)
        self.metrics, self.name = metrics, name

    def validate(self) -> dict[str, float]:
        return {"loss": 9.0, self.name: self.metrics.pop(0)}


def test_patience_stops_early_and_the_best_weights_are_kept(tmp_path: Path) -> None:
    outcome = trained(tmp_path, Scripted([5.0, 3.0, 4.0, float("nan"), 3.5, 1.0], patience=3))
    assert (outcome.status, outcome.steps, outcome.best, outcome.best_step) == ("early", 10, 3.0, 4)
    assert step_of(tmp_path) == 4
    assert json.loads((tmp_path / "run.json").read_text())["weights"] == {"step": 4, "metric": "loss", "value": 3.0}
    again = trained(tmp_path, Scripted([], patience=3), resume=True)
    assert (again.status, again.steps) == ("early", 10)


def test_other_metrics_are_higher_is_better(tmp_path: Path) -> None:
    outcome = trained(tmp_path, Scripted([0.1, 0.3, 0.3, 0.2, 0.1], "exact", steps=10))
    assert (outcome.best, outcome.best_step, step_of(tmp_path)) == (0.3, 4, 4)


def test_an_unknown_metric_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.metric is bleu and the evaluation gives loss, perplexity, exact"):
        trained(tmp_path, metric="bleu")


def test_without_valid_data_the_newest_weights_are_published(tmp_path: Path) -> None:
    seen = []

    class Recording(WithoutValidation):
        def steps(self, epoch: int, index: int, rank: int = 0, world: int = 1) -> Iterator[Step]:
            for step in super().steps(epoch, index):
                yield step
                seen.append(step_of(tmp_path) if (tmp_path / "model.safetensors").exists() else None)

    outcome = trained(tmp_path, Recording(steps=12))
    assert seen == [None] * 4 + [5] * 5 + [10] * 2
    assert (outcome.best, step_of(tmp_path)) == (None, 12)
    assert json.loads((tmp_path / "run.json").read_text())["weights"] == {"step": 12, "metric": None, "value": None}


def test_bf16_keeps_float32_weights(tmp_path: Path) -> None:
    kinds = set()

    class Recording(Task):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            kinds.add(model(batch["text"].values).dtype)
            return super().loss(model, batch)

    model = net()
    outcome = trained(tmp_path, Recording(precision="bf16", steps=60), model=model)
    assert kinds == {torch.bfloat16}
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert outcome.best is not None and outcome.best < 1.5  # chance level: ln 23 = 3.1


def test_deterministic_algorithms_are_enabled_during_training_only(tmp_path: Path) -> None:
    seen = set()

    class Recording(Task):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            seen.add(torch.are_deterministic_algorithms_enabled())
            return super().loss(model, batch)

    trained(tmp_path, Recording(deterministic=True))
    assert seen == {True}
    assert not torch.are_deterministic_algorithms_enabled()


# --- torch.compile: whether it is used is stored in the checkpoint ---


def test_a_failing_compile_falls_back_for_the_rest_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "plain", steps=10)

    def breaking(loss: Any, **settings: Any) -> Any:
        def broken(batch: Batch) -> LossSum:
            torch.rand(5)  # dropout may have used random numbers before the failure
            loss(batch).sum.backward()
            raise RuntimeError("no compiler here\nand a long story")

        return broken

    monkeypatch.setattr(torch, "compile", breaking)
    trained(tmp_path / "broken", steps=5, compile=True)
    (note,) = records(tmp_path / "broken", "note")
    assert note["text"] == "torch.compile failed (no compiler here); training continues without it"
    state = json.loads((tmp_path / "broken/checkpoints/step-5/state.json").read_text())
    assert state["compiled"] is False

    calls: list[int] = []  # it would work now, but must not be used
    monkeypatch.setattr(torch, "compile", lambda loss, **settings: lambda *given: calls.append(1) or loss(*given))
    trained(tmp_path / "broken", resume=True, steps=10, compile=True)
    assert not calls
    final = "checkpoints/step-10/model.safetensors"
    assert (tmp_path / "plain" / final).read_bytes() == (tmp_path / "broken" / final).read_bytes()


def test_compile_is_used_when_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(torch, "compile", lambda loss, **settings: lambda *given: calls.append(1) or loss(*given))
    trained(tmp_path, steps=5, compile=True)
    trained(tmp_path, resume=True, steps=8, compile=True)
    assert len(calls) == 8
    assert json.loads((tmp_path / "checkpoints/step-8/state.json").read_text())["compiled"] is True


# --- non-finite values ---


class Poisoned(Task):
    """Step 8 (the third of epoch 1) has a non-finite loss or gradient."""

    poison = "nan"
    start = 16

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(1))
        loss = super().loss(model, batch)
        if list(batch.examples) != order[self.start : self.start + BATCH].tolist():
            return loss
        return loss * float(self.poison) if self.poison != "gradient" else loss + model.unused.sub(1).abs().sqrt().sum()


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("poison", ["nan", "inf", "gradient"])
def test_a_nonfinite_step_is_skipped_and_reported(tmp_path: Path, poison: str, deferred: bool) -> None:
    model = net()
    task = Poisoned(steps=20, save_every=6, eval_every=100, log_every=10, clip=0.0 if poison == "inf" else 1.0)
    task.poison = poison
    trainer = loop.Trainer(task.of(model), folder(tmp_path))
    trainer.finite.deferred = deferred
    trainer.prepare(resume=False)
    kept: dict[int, Tensor] = {}
    original_step = trainer.step

    def recording_step(epoch: int, data: Any) -> None:
        kept[trainer.state.step] = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        original_step(epoch, data)

    trainer.step = recording_step  # type: ignore[method-assign]
    with pytest.raises(UserError) as caught, progress.EventLog(tmp_path, 0) as event_log, StopSignal() as stop:
        trainer.run(event_log, [], stop)
    text = str(caught.value)
    what = "the gradient norm is nan" if poison == "gradient" else f"the loss is {poison}"
    numbers = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(1))[16:21].tolist()
    where = f"epoch 1, examples 17 to 24: data indices {', '.join(map(str, numbers))}, …"
    assert what in text and f"at step 8 ({where}), and the step was skipped" in text
    assert f"{tmp_path / 'checkpoints' / 'step-6'} is good" in text and "train.lr (now 0.01)" in text
    assert ("train.clip=1 (now off)" in text) == (poison == "inf")
    now = nn.utils.parameters_to_vector(model.parameters())
    assert now.isfinite().all()
    if deferred:  # detected two steps later; only the bad step was skipped
        assert torch.equal(kept[8], kept[7]) and not torch.equal(kept[9], kept[8])
    else:
        assert torch.equal(now, kept[7])
    assert checkpoints(tmp_path) == [6]
    assert not records(tmp_path, "valid")
    with pytest.raises(UserError, match="at step 8 .*step-6 is good"):
        trained(tmp_path, task, resume=True)


def test_a_nonfinite_step_is_reported_before_a_save(tmp_path: Path) -> None:
    task = Poisoned(save_every=6, eval_every=100, log_every=100)
    task.start = 0
    trainer = loop.Trainer(task.of(net()), folder(tmp_path))
    trainer.finite.deferred = True
    trainer.prepare(resume=False)
    with pytest.raises(UserError) as caught, progress.EventLog(tmp_path, 0) as event_log, StopSignal() as stop:
        trainer.run(event_log, [], stop)
    assert "the loss is nan at step 6 (epoch 1, examples 1 to 8: " in str(caught.value)
    assert "there is no checkpoint yet" in str(caught.value)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("settings", [{"save_every": 1}, {"eval_every": 1}])
def test_nonfinite_weights_are_never_saved(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(UserError, match=r"after step 1 the weights are not finite; there is no checkp"):
        trained(tmp_path, warmup=0, schedule="constant", lr=3e38, **settings)
    assert not list(tmp_path.rglob("*.safetensors"))


# --- signals ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_returns(tmp_path: Path, number: signal.Signals) -> None:
    def strike(record: dict[str, Any]) -> None:
        if record["step"] == 7 and record["event"] == "train":
            signal.raise_signal(number)

    before = signal.getsignal(number)
    outcome = run_loop(Task(log_every=1).of(net()), folder(tmp_path), resume=False, on_event=strike, progress=False)
    assert (outcome.status, outcome.steps) == ("stopped", 7)
    assert signal.getsignal(number) == before
    assert checkpoints(tmp_path) == [5, 7]
    assert "--resume" in records(tmp_path, "note")[-1]["text"]
    assert trained(tmp_path, resume=True).status == "finished"
    trained(tmp_path / "whole")
    for name in ("model.safetensors", "checkpoints/step-20/optimizer.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    def strike(record: dict[str, Any]) -> None:
        if record["step"] == 7 and record["event"] == "train":
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_loop(Task(log_every=1).of(net()), folder(tmp_path), resume=False, on_event=strike, progress=False)
    assert signal.getsignal(signal.SIGINT) == before
    assert checkpoints(tmp_path) == [5]


def test_a_second_interrupt_while_saving_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at once; the half-written checkpoint is removed and the one before is resumed."""
    write, struck = checkpoint._write, []

    def strike(record: dict[str, Any]) -> None:
        if record["step"] == 7 and record["event"] == "train" and not struck:
            struck.append(7)
            signal.raise_signal(signal.SIGINT)

    def interrupted_write(path: Path, *given: Any) -> None:
        write(path, *given)
        if struck and path.name == "optimizer.safetensors":
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write", interrupted_write)
        with pytest.raises(KeyboardInterrupt):
            run_loop(Task(log_every=1).of(net()), folder(tmp_path), resume=False, on_event=strike, progress=False)
    assert checkpoints(tmp_path) == [5] and not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]
    assert trained(tmp_path, resume=True, log_every=1).status == "finished"
    trained(tmp_path / "whole", log_every=1)
    for name in ("model.safetensors", "checkpoints/step-20/optimizer.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_outcome_names_the_signal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it

    def strike(record: dict[str, Any]) -> None:
        if record["event"] == "train":
            signal.raise_signal(signal.SIGHUP)

    try:
        outcome = run_loop(Task(log_every=3).of(net()), folder(tmp_path), resume=False, on_event=strike, progress=False)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (outcome.status, outcome.signal) == ("stopped", signal.SIGHUP)
    assert trained(tmp_path, resume=True).signal == 0


def test_stopping_before_any_evaluation_still_saves_weights(tmp_path: Path) -> None:
    def strike(record: dict[str, Any]) -> None:
        if record["event"] == "train":
            signal.raise_signal(signal.SIGTERM)

    run_loop(Task(eval_every=100).of(net()), folder(tmp_path), resume=False, on_event=strike, progress=False)
    assert step_of(tmp_path) == 1


def test_training_runs_outside_the_main_thread(tmp_path: Path) -> None:
    found: list[Any] = []
    worker = threading.Thread(target=lambda: found.append(trained(tmp_path)))
    worker.start()
    worker.join()
    assert found[0].status == "finished"


# --- progress output ---


def test_plain_lines_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_loop(Task(steps=10, log_every=5).of(net()), folder(tmp_path), resume=False)
    output = capsys.readouterr()
    assert output.out == "" and "\x1b" not in output.err and "\r" not in output.err
    header, *lines = output.err.splitlines()
    assert header == "device cpu, 698 parameters; 10 steps"
    assert (
        lines[0].startswith("step 1/10  epoch 1  loss ")
        and lines[0].endswith(" tokens/s")
        and "  lr 2.00e-03  " in lines[0]
    )
    assert lines[1].startswith("step 5  valid  loss ") and "perplexity" in lines[1]  # step 5 itself came too soon after
    assert re.fullmatch(r"finished after 10 steps in 0:00:0\d", lines[-1])


def test_plain_lines_are_throttled_and_show_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    lines = progress.PlainProgress(stream, pause=3)
    for step in range(10, 60, 10):
        lines.show({"event": "train", "step": step, "loss": 2.0, "lr": 1e-3, "tokens_per_second": 1234.5}, step / 1000)
        now[0] += 2
    shown = stream.getvalue().splitlines()
    assert [line.split()[1] for line in shown] == ["10", "30", "50"]
    assert shown[1] == "step 30  loss 2.0000  lr 1.00e-03  1,234 tokens/s  0:03:14 left"  # 4 s for 20 steps of 1000


def test_progress_false_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_progress_bar_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    run_loop(Task(log_every=1).of(net()), folder(tmp_path), resume=False)
    shown = stream.getvalue()
    assert "step 20" in shown and "tokens/s" in shown and "left" in shown and "…" not in shown
    assert "step 20  valid  loss" in shown and "finished after 20 steps" in shown


def test_curves_without_evaluations_and_without_records(tmp_path: Path) -> None:
    assert draw(tmp_path) is None
    lines = [{"step": 1, "event": "train", "loss": 3.0, "lr": 0.1}, {"step": 2, "event": "valid", "loss": None}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 3, "eve')
    assert draw(tmp_path) == tmp_path / "curves.png"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_nonfinite_metrics_are_written_as_null(tmp_path: Path) -> None:
    trained(tmp_path, Scripted([float("nan")] * 9, steps=4))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    values = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [each["loss"] for each in values if each["event"] == "valid"] == [None, None]
    assert step_of(tmp_path) == 4  # no best weights, so the newest


def test_facts_about_the_data_are_reported_once(tmp_path: Path) -> None:
    task = Task(steps=12)
    task.facts = ["40 examples"]
    steps_of = task.steps

    def finding(epoch: int, index: int, *share: int) -> Iterator[Step]:
        task.facts = ["40 examples", "3 too long"]  # known after the first epoch
        yield from steps_of(epoch, index, *share)

    task.steps = finding  # type: ignore[method-assign]
    trained(tmp_path, task)
    trained(tmp_path, task, resume=True)
    reported = [(record["step"], record["text"]) for record in records(tmp_path, "note")]
    assert reported[:2] == [(0, "40 examples"), (5, "3 too long")] and not any(
        len(text) < 12 for _, text in reported[2:]
    )


def weights_of(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_checkpoints_are_averaged_at_the_end(tmp_path: Path) -> None:
    task = Task(steps=20, save_every=4, eval_every=100, keep=1, average=3)
    task.validate = dict  # type: ignore[method-assign, assignment]
    trained(tmp_path, task)
    paths = [tmp_path / "checkpoints" / f"step-{step}" / "model.safetensors" for step in (12, 16, 20)]
    parts, found = [weights_of(path) for path in paths], weights_of(tmp_path / "model.safetensors")
    for name, tensor in found.items():
        assert torch.allclose(tensor, sum(part[name] for part in parts) / 3, atol=1e-6), name  # type: ignore[arg-type]
    assert not all(found[name].equal(parts[-1][name]) for name in found)


@pytest.mark.parametrize("better", [True, False])
def test_averaged_checkpoints_are_published_only_if_better(tmp_path: Path, better: bool) -> None:
    task = Task(steps=12, save_every=4, eval_every=4, average=2)
    values = iter([5.0, 4.0, 3.0, 2.0 if better else 3.5])
    task.validate = lambda: {"loss": next(values)}  # type: ignore[method-assign, assignment]
    outcome = trained(tmp_path, task)
    last = weights_of(tmp_path / "checkpoints" / "step-12" / "model.safetensors")
    found = weights_of(tmp_path / "model.safetensors")
    assert outcome.best == (2.0 if better else 3.0)
    assert all(found[name].equal(last[name]) for name in last) != better
    valid = records(tmp_path, "valid")[-1]
    assert (
        valid["averaged"] == 2 and json.loads((tmp_path / "run.json").read_text())["weights"]["value"] == outcome.best
    )


def test_ema_is_evaluated_published_and_resumed(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    task = Task(steps=14, ema=0.9, save_every=5, eval_every=7)
    seen: list[dict[str, Tensor]] = []
    validate = task.validate
    task.validate = lambda: seen.append(copy.deepcopy(task.objective.model.state_dict())) or validate()  # type: ignore
    trained(whole, task)
    trained(parts, Task(steps=7, ema=0.9, save_every=5, eval_every=7))
    trained(parts, Task(steps=14, ema=0.9, save_every=5, eval_every=7), resume=True)
    for name in (
        "model.safetensors",
        "checkpoints/step-14/optimizer.safetensors",
        "checkpoints/step-14/model.safetensors",
    ):
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name
    own = weights_of(whole / "checkpoints" / "step-14" / "model.safetensors")
    mean = weights_of(whole / "checkpoints" / "step-14" / "optimizer.safetensors")
    assert all(seen[-1][name].equal(mean[f"{name}/ema"]) for name in own if f"{name}/ema" in mean)
    assert not seen[-1]["inner.weight"].equal(own["inner.weight"])


def test_ema_formula(tmp_path: Path) -> None:
    from regard.training.finish import MovingAverage

    weight = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    moving, expected = MovingAverage(optimizer, 0.5), None
    for step, value in enumerate((1.0, 3.0, 2.0), 1):
        weight.grad = torch.zeros(1)
        optimizer.step()
        weight.data.fill_(value)
        moving.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = value if expected is None else decay * expected + (1 - decay) * value
        assert optimizer.state[weight]["ema"].item() == pytest.approx(expected)
    with moving.averaged_weights():
        assert weight.item() == pytest.approx(expected)
    assert weight.item() == 2.0
