"""Limits of a training: a limit that is given replaces the recipe's, schedules run to the one that binds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import reads
from test_resume import run_content, train_interrupted
from test_train import BATCH, EXAMPLES, Task, light, records, trained  # noqa: F401

from regard.api import resolve
from regard.config.run import change_settings, load_config
from regard.config.train import Train
from regard.data.datasets.corpus import ContiguousSampler, WindowSampler
from regard.training import loop
from regard.training.schedules import Limits

LIMITS = ("steps", "epochs", "minutes")


# --- which limits hold ---


def limits_of(resolved: Any) -> tuple[float, ...]:
    return tuple(getattr(resolved.run.train, name) for name in LIMITS)


@pytest.mark.parametrize(
    ("given", "expected", "origin"),
    [
        ({}, (800, 0, 0), "recipe classify"),
        ({"train.epochs": "2000"}, (0, 2000, 0), "replaced by train.epochs"),
        ({"train.minutes": 1.5}, (0, 0, 1.5), "replaced by train.minutes"),
        ({"train.epochs": 3, "train.steps": 9}, (9, 3, 0), "command line"),
        ({"train.epochs": 3, "train.minutes": 2}, (0, 3, 2), "replaced by train.epochs"),
        ({"train.epochs": 0}, (800, 0, 0), "recipe classify"),
        ({"train": {"epochs": 4}}, (0, 4, 0), "replaced by train.epochs"),
    ],
)
def test_a_limit_replaces_those_of_the_recipe(given: Any, expected: Any, origin: str) -> None:
    resolved = resolve("classify", given)
    assert limits_of(resolved) == expected
    assert resolved.origin["train.steps"] == origin
    assert f"train.steps = {expected[0]}" in resolved.show() and f"# {origin}" in resolved.show()


def test_a_recipe_of_the_user_replaces_the_limits_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "classify"\n[train]\nepochs = 5\n')
    mine = str(tmp_path / "mine.toml")
    assert limits_of(resolve(mine)) == (0, 5, 0)
    assert limits_of(resolve(mine, {"train.steps": 7})) == (7, 0, 0)


def test_a_limit_replaces_that_of_a_resumed_run() -> None:
    run = load_config(resolve("classify").run.dump())
    longer = change_settings(run, {"train.epochs": 3}, only=("train",))
    assert (longer.train.steps, longer.train.epochs) == (0, 3)
    assert change_settings(run, {"train.lr": 1e-4}, only=("train",)).train.steps == 800


# --- schedules ---


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_epochs_decay_as_their_steps_do(tmp_path: Path, schedule: str) -> None:
    steps = 3 * EXAMPLES // BATCH
    for name, limit in (("steps", {"steps": steps}), ("epochs", {"steps": 0, "epochs": 3})):
        trained(tmp_path / name, schedule=schedule, log_every=1, **limit)
    assert run_content(tmp_path / "steps") == run_content(tmp_path / "epochs")
    assert records(tmp_path / "epochs", "train")[-1]["lr"] == pytest.approx(0, abs=1e-12)


def test_a_resumed_run_by_epochs_equals_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"steps": 0, "epochs": 3, "schedule": "linear", "log_every": 1}
    trained(tmp_path / "whole", **settings)
    train_interrupted(tmp_path / "broken", 8, Task(**settings), monkeypatch)
    trained(tmp_path / "broken", resume=True, **settings)
    assert run_content(tmp_path / "whole") == run_content(tmp_path / "broken")


def test_the_first_limit_binds() -> None:
    limits = Limits(Train(steps=100, epochs=2, warmup=10, lr=1.0, schedule="linear"))
    assert limits.learning_rate(55, 0, 0) == pytest.approx(0.5)
    limits.plan(60)
    assert limits.learning_rate(35, 0, 0) == pytest.approx(0.5) and limits.learning_rate(60, 0, 0) == 0
    limits.plan(1000)
    assert limits.learning_rate(35, 0, 0) == pytest.approx(0.5) and limits.progress(30, 0) == 0.5
    assert not limits.reached(60, 0) and limits.reached(100, 0)  # the epochs end by their data


class Clock(Task):
    """A task with a clock: ten seconds a step, of which the first also takes a minute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **train: Any) -> None:
        super().__init__(**train)
        self.now = 0.0
        monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: self.now))

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        self.now += 10 if self.now else 70
        return super().loss(model, batch)


@pytest.mark.parametrize("stop", [0, 7, 17])
def test_minutes_decay_by_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    """The warm-up takes 100 of 300 seconds. A resumed run goes on where the time stood."""
    settings: Any = {"steps": 0, "minutes": 5, "warmup": 4, "lr": 1.0, "schedule": "linear", "log_every": 1}
    settings |= {"clip": 1e-9, "save_every": 5, "eval_every": 99}
    if stop:
        train_interrupted(tmp_path, stop, Clock(monkeypatch, **settings), monkeypatch)
    task = Clock(monkeypatch, **settings)
    task.now = 1e6 if stop else 0.0
    trained(tmp_path, task, resume=True)
    rates = [record["lr"] for record in records(tmp_path, "train")]
    assert len(rates) == 24
    # step i begins after 70 + 10 (i - 2) seconds; the last step of the warm-up, after 90
    expected = [0.25, 0.5, 0.75, 1.0, *(1 - (70 + 10 * (i - 2) - 90) / 210 for i in range(5, 25))]
    assert rates == pytest.approx(expected)


def test_a_first_step_is_at_the_peak_without_a_warmup() -> None:
    for schedule in ("cosine", "linear", "wsd"):
        assert Limits(Train(minutes=1, warmup=0, lr=1.0, schedule=schedule)).learning_rate(1, 0.0, 0.0) == 1


# --- the end of the warm-up ---


@pytest.mark.parametrize(
    ("settings", "foreseen", "steps"),
    [
        ({"steps": 4}, True, 4),
        ({"steps": 0, "epochs": 1}, True, 5),
        ({"steps": 6}, False, None),
        ({"steps": 0, "minutes": 1e-9}, False, 1),
    ],
)
def test_ending_inside_the_warmup_warns(tmp_path: Path, settings: Any, foreseen: bool, steps: int | None) -> None:
    trained(tmp_path, warmup=6, **settings)
    notes = [record["text"] for record in records(tmp_path, "note")]
    expected = (
        f"after {steps} steps, inside the warm-up of 6: the learning rate only reaches {100 * (steps or 0) / 6:.0f} %"
    )
    assert any(f"the training will end {expected}" in note for note in notes) == foreseen
    assert any(f"the training has ended {expected}" in note for note in notes) == (steps is not None)


# --- planned steps ---


@pytest.mark.parametrize("recipe", ["classify", "tag", "masked"])
def test_planned_steps_are_those_that_come(tmp_path: Path, recipe: str) -> None:
    reads.train_run(recipe, tmp_path, train__epochs=2, train__warmup=1, train__log_every=1, train__schedule="linear")
    train = records(tmp_path / "run", "train")
    assert train[-1]["lr"] == pytest.approx(0, abs=1e-9) and train[-2]["lr"] > 0
    assert train[-1]["epoch"] == 1 and {record["epoch"] for record in train} == {0, 1}


@pytest.mark.parametrize("sampler", [WindowSampler, ContiguousSampler])
@pytest.mark.parametrize("tokens", [7, 100, 1003])
def test_planned_steps_of_running_text_are_exact(sampler: Any, tokens: int) -> None:
    corpus = type("Ids", (), {"__len__": lambda self: tokens})()
    planned = sampler(corpus, SimpleNamespace(max_tokens=10), Train(batch=3))
    steps = [len(list(planned.plan(pool))) for epoch in range(12) for pool in planned.pools(epoch)]
    assert planned.planned_steps(12) == sum(steps)
    assert np.ptp(steps) <= 1


def test_several_pools_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.data.loading import sampler
    from regard.tasks.task import prepare

    monkeypatch.setattr(sampler, "POOL_SIZE", 70)
    files = reads.write_texts(tmp_path / "train.tsv", reads.labeled_examples(300, 1))
    run = resolve("classify", {**reads.TINY, "data.train": str(files), "train.tokens": 100}).run
    job = prepare(run, {}, torch.device("cpu"))
    assert job.planned_steps(2) == pytest.approx(sum(len(list(job.steps(epoch, 0))) for epoch in (0, 1)), rel=0.1)
