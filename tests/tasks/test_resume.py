"""Checkpoints and weights are restored bit for bit after any interruption. Also a script: see `train_and_kill`."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from test_train import (  # noqa: F401
    Net,
    Task,
    ToyObjective,
    WithoutValidation,
    checkpoints,
    folder,
    light,
    net,
    records,
    step_of,
    trained,
)
from torch import nn

from regard import files
from regard.errors import UserError
from regard.parts import Mask
from regard.parts.efficient import RandomFeatureKernel
from regard.training import checkpoint, curves, load_model, progress, save_model
from regard.training.finish import averaged_checkpoints

SETTINGS: dict[str, Any] = {"steps": 80, "save_every": 2, "eval_every": 3, "keep": 2, "log_every": 4}


def run_content(path: Path) -> dict[str, Any]:
    """The content of a run folder without times."""
    content: dict[str, Any] = {}
    for file in path.rglob("*"):
        name = str(file.relative_to(path))
        if file.name == "state.json":
            content[name] = {**json.loads(file.read_text()), "seconds": 0}
        elif file.name == "metrics.jsonl":
            timed = ("seconds", "tokens_per_second", "data_wait")
            kept = [record for record in progress.read_records(file) if record["event"] in ("train", "valid")]
            content[name] = [{key: value for key, value in record.items() if key not in timed} for record in kept]
        elif file.is_file():
            content[name] = file.read_bytes()
    return content


# --- killed repeatedly ---


class RandomFeatureNet(Net):
    """A model with random features, which training redraws."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = RandomFeatureKernel(8, 12, redraw=3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = torch.unflatten(self.embed(tokens), -1, (2, 8)).transpose(1, 2)
        return self.head(self.dropout(self.mix(x, x, x, Mask(causal=True)).transpose(1, 2).flatten(2)))


def test_random_features_are_in_the_checkpoint(tmp_path):
    """Features depend on step and seed: a resumed run draws the same, and reading the model draws none."""
    torch.manual_seed(1)
    first = RandomFeatureNet()
    initial = {name: each.clone() for name, each in first.state_dict().items()}
    trained(tmp_path / "whole", model=first, steps=10, save_every=2, eval_every=5, keep=5)
    for steps in (4, 10):
        torch.manual_seed(steps)
        model = RandomFeatureNet()
        if steps == 4:
            model.load_state_dict(initial)
        trained(tmp_path / "halves", model=model, resume=steps > 4, steps=steps, save_every=2, eval_every=5, keep=5)
    features = []
    for step in (2, 4, 6, 8, 10):
        name = f"checkpoints/step-{step}/model.safetensors"
        whole, halves = (load_file(tmp_path / each / name) for each in ("whole", "halves"))
        assert all(whole[key].equal(halves[key]) for key in whole)
        features.append(whole["mix.directions"])
    same = [a.equal(b) for a, b in zip([initial["mix.directions"], *features], features, strict=False)]
    assert same == [True, False, False, True, False]  # redrawn before the steps 3, 6 and 9
    average = {key: each.clone() for key, each in model.state_dict().items()}
    paths = checkpoint.latest_checkpoints(tmp_path / "whole", 3)
    with averaged_checkpoints(model, paths):
        assert model.mix.directions.equal(features[-1]) and not model.embed.weight.equal(average["embed.weight"])
    assert model.mix.directions.equal(average["mix.directions"])


def train_and_kill(root: Path, seed: int = 3) -> None:
    """Train once undisturbed and once killed many times. Each run is a forked child, so torch is imported once."""
    chance = random.Random(seed)
    torch.set_num_threads(1)  # a forked child has no other threads and would wait for them
    curves.draw = lambda folder: None  # type: ignore[assignment]
    trained(root / "warm", steps=1)  # the first optimizer imports half of torch
    train_in_child(root / "whole", "nothing", 0)
    kills: Counter[str] = Counter()
    while sum(kills.values()) < 24:
        cause = chance.choice(["update", "replace", "replaced", "fsync", "save", "remove", "record", "time", "time"])
        if train_in_child(
            root / "killed", cause, chance.randint(1, {"fsync": 20, "save": 3, "remove": 9}.get(cause, 5))
        ):
            break
        kills[cause] += 1
    train_in_child(root / "killed", "nothing", 0)
    print(json.dumps(kills))


def train_in_child(path: Path, cause: str, number: int) -> bool:
    """Train in a child process; True if it finished before it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            kill_at_call(cause, number)
            os.write(writer, b".")
            trained(path, resume=True, **SETTINGS)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(3)
    os.read(reader, 1)
    if cause == "time":
        time.sleep(random.Random(number + time.monotonic_ns()).uniform(0.002, 0.03))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a child ended in an error")
    return os.WIFEXITED(status)


def kill_at_call(cause: str, number: int) -> None:
    """Kill this process at the `number`-th call of a function."""
    places: dict[str, tuple[Any, str, Callable[..., Any] | None]] = {
        "update": (Task, "loss", None),
        "replace": (os, "replace", None),
        "replaced": (os, "replace", os.replace),
        "fsync": (os, "fsync", None),
        "save": (checkpoint, "save_file", save_half),
        "remove": (files, "remove", remove_half),
        "record": (progress.EventLog, "write", record_half),
    }
    if cause not in places:
        return
    place, name, last = places[cause]
    original, calls = getattr(place, name), [0]

    def counting(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            if last:
                last(*given, **named)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*given, **named)

    setattr(place, name, counting)


def save_half(tensors: Any, path: Path, metadata: Any) -> None:
    save_file(tensors, path.parent / ".tmpAbC123", metadata)  # safetensors' own temporary name
    whole = (path.parent / ".tmpAbC123").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def remove_half(path: Path) -> None:
    for inner in list(path.rglob("*.safetensors"))[:1]:
        inner.unlink()


def record_half(log: Any, *given: Any, **named: Any) -> None:
    log.file.write(b'{"step": 3, "event": "tr')


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_a_run_killed_twenty_times_ends_with_the_same_bytes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    kills = json.loads(done.stdout)
    assert sum(kills.values()) >= 20, kills
    assert sum(kills[cause] for cause in ("replace", "replaced", "fsync", "save") if cause in kills) >= 5, kills
    whole, killed = run_content(tmp_path / "whole"), run_content(tmp_path / "killed")
    assert set(whole) == set(killed)  # no temporary file is run_content
    assert "checkpoints/step-80/optimizer.safetensors" in whole
    assert [name for name in whole if whole[name] != killed[name]] == []


# --- resumed in one process ---


class Interrupted(Exception):
    pass


def train_interrupted(path: Path, at: int, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train and raise an exception in the middle of step `at`."""
    calls = [0]
    original = task.loss

    def breaking(model: nn.Module, batch: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise Interrupted
        return original(model, batch)

    with monkeypatch.context() as patch:
        patch.setattr(task, "loss", breaking)
        with pytest.raises(Interrupted):
            trained(path, task)


@pytest.mark.parametrize("settings", [{}, {"precision": "bf16"}, {"optimizer": "adamw", "schedule": "cosine"}])
@pytest.mark.parametrize("at", [3, 8, 16])
def test_a_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, at: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path / "whole", log_every=3, **settings)
    train_interrupted(tmp_path / "broken", at, Task(log_every=3, **settings), monkeypatch)
    outcome = trained(tmp_path / "broken", resume=True, model=net(seed=1 if at < 5 else 99), log_every=3, **settings)
    assert outcome.status == "finished"
    assert run_content(tmp_path / "whole") == run_content(tmp_path / "broken")


def test_all_random_generators_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy

    class Noisy(Task):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            return super().loss(model, batch) * (1 + random.random() + numpy.random.standard_normal() / 10)

    trained(tmp_path / "whole", Noisy())
    train_interrupted(tmp_path / "broken", 8, Noisy(), monkeypatch)
    random.random()
    numpy.random.rand(3)
    trained(tmp_path / "broken", Noisy(), resume=True)
    assert run_content(tmp_path / "whole") == run_content(tmp_path / "broken")


class StatefulTask(Task):
    """A task whose loss depends on carried state: a sum over all earlier tokens."""

    def __init__(self, **train: Any) -> None:
        super().__init__(**train)
        self.seen = torch.zeros(2)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        self.seen[0] += 1
        self.seen[1] += batch["text"].values.sum()
        return super().loss(model, batch) * (1 + (self.seen[1] % 7) / 10)

    def of(self, model: nn.Module) -> "StatefulTask":
        self.objective = StatefulObjective(self, model)
        return self


class StatefulObjective(ToyObjective):
    task: StatefulTask

    def state(self) -> dict[str, torch.Tensor]:
        return {"seen": self.task.seen.clone()} if self.task.seen[0] else {}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.task.seen = state.get("seen", torch.zeros(2)).clone()


@pytest.mark.parametrize("at", [3, 8])
def test_the_state_of_a_task_is_restored(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "whole", StatefulTask())
    train_interrupted(tmp_path / "broken", at, StatefulTask(), monkeypatch)
    resumed = StatefulTask()
    trained(tmp_path / "broken", resumed, resume=True)
    assert run_content(tmp_path / "whole") == run_content(tmp_path / "broken") and resumed.seen[0] == 20
    assert load_file(tmp_path / "whole/checkpoints/step-20/task.safetensors")["seen"][0] == 20
    damaged = tmp_path / "whole/checkpoints/step-20/task.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    messages: list[str] = []
    assert (
        checkpoint.newest_checkpoint(tmp_path / "whole", messages.append).name == "step-15"
        and "task.safetensors" in messages[0]
    )


def test_the_state_of_a_task_is_restored_after_a_failed_compiled_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled step that fails halfway has already advanced the state."""
    trained(tmp_path / "plain", StatefulTask(accumulate=2))

    def breaking(loss: Any, **settings: Any) -> Any:
        calls = [0]

        def failing(*given: Any) -> Any:
            calls[0] += 1
            value = loss(*given)
            if calls[0] == 6:
                raise RuntimeError("out of luck")
            return value

        return failing

    monkeypatch.setattr(torch, "compile", breaking)
    trained(tmp_path / "compiled", StatefulTask(accumulate=2, compile=True))
    name = "checkpoints/step-20/{}.safetensors"
    for part in ("model", "optimizer", "task"):
        assert (tmp_path / "plain" / name.format(part)).read_bytes() == (
            tmp_path / "compiled" / name.format(part)
        ).read_bytes()


def test_best_metric_and_patience_are_restored(tmp_path: Path) -> None:
    """Best metric and waited evaluations are part of a checkpoint."""
    whole, parts = _FallingMetric(), _FallingMetric()
    trained(tmp_path / "whole", whole)
    for steps in (4, 8, 12, 20):
        parts.run.train = whole.run.train.model_copy(update={"steps": steps})
        outcome = trained(tmp_path / "parts", parts, resume=True)
    assert (outcome.status, outcome.steps, outcome.best_step) == ("early", 14, 6)
    assert step_of(tmp_path / "parts") == step_of(tmp_path / "whole") == 6


class _FallingMetric(Task):
    def __init__(self) -> None:
        super().__init__(eval_every=2, save_every=4, patience=4)
        self.losses = iter([5.0, 4.0, 3.0, 3.5, 3.4, 3.3, 3.2, 1.0])

    def validate(self) -> dict[str, float]:
        return {"loss": next(self.losses)}


def test_an_evaluation_after_the_last_checkpoint_is_stored(tmp_path: Path) -> None:
    """At step 20 the checkpoint comes first and the final evaluation after it."""
    trained(tmp_path, steps=20, save_every=5, eval_every=7)
    state = json.loads((tmp_path / "checkpoints/step-20/state.json").read_text())
    assert state["evaluated"] == 20
    trained(tmp_path, resume=True, steps=20, save_every=5, eval_every=7)
    assert [record["step"] for record in records(tmp_path, "valid")] == [7, 14, 20]


def test_records_after_the_checkpoint_are_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_interrupted(tmp_path, 9, Task(log_every=1), monkeypatch)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "event": "tra')
    assert records(tmp_path, "train")[-1]["step"] == 8
    trained(tmp_path, resume=True, log_every=1)
    assert [record["step"] for record in records(tmp_path, "train")] == list(range(1, 21))
    assert "resuming after step 5" in [record["text"] for record in records(tmp_path, "note")]


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    trained(tmp_path, steps=5)
    (tmp_path / ".model.safetensors.123.tmp").write_bytes(b"x")
    (tmp_path / ".tmpXyZ").write_bytes(b"x")
    (tmp_path / "checkpoints/.step-9.123.tmp").mkdir()
    (tmp_path / "checkpoints/.step-9.123.tmp/model.safetensors").write_bytes(b"x")
    trained(tmp_path, resume=True, steps=6)
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_missing_best_weights_are_chosen_again(tmp_path: Path) -> None:
    trained(tmp_path, steps=10)
    (tmp_path / "model.safetensors").unlink()
    trained(tmp_path, resume=True, steps=12)
    assert step_of(tmp_path) == 12


# --- damaged ---


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("model.safetensors", cut, "model.safetensors has changed since it was written"),
        ("optimizer.safetensors", flip, "optimizer.safetensors has changed since it was written"),
        ("optimizer.safetensors", Path.unlink, "optimizer.safetensors is missing"),
        ("state.json", cut, "state.json is incomplete"),
        ("state.json", Path.unlink, "state.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(
    tmp_path: Path, name: str, damage: Callable[[Path], None], words: str
) -> None:
    trained(tmp_path / "whole")
    trained(tmp_path / "hurt", steps=12)
    damage(tmp_path / "hurt/checkpoints/step-12" / name)
    trained(tmp_path / "hurt", resume=True)
    expected = f"checkpoint step-12 is damaged ({words}) and was renamed to step-12.damaged; resuming from step-10"
    assert expected in [record["text"] for record in records(tmp_path / "hurt", "note")]
    assert sorted(path.name for path in (tmp_path / "hurt/checkpoints").iterdir()) == [
        "step-10", "step-12.damaged", "step-15", "step-20",
    ]  # fmt: skip
    for name in ("checkpoints/step-20/model.safetensors", "checkpoints/step-20/optimizer.safetensors"):
        assert (tmp_path / "hurt" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_training_does_not_restart_if_all_checkpoints_are_damaged(tmp_path: Path) -> None:
    trained(tmp_path, steps=10)
    for path in (tmp_path / "checkpoints").iterdir():
        cut(path / "model.safetensors")
    before = run_content(tmp_path)
    with pytest.raises(
        UserError, match=r"step-10 is damaged .* step-5 is damaged .* remove .*checkpoints to start from"
    ):
        trained(tmp_path, resume=True)
    assert run_content(tmp_path) == before


def test_a_checkpoint_of_another_shape(tmp_path: Path) -> None:
    trained(tmp_path, steps=5)
    with pytest.raises(
        UserError, match=r"model\.safetensors does not fit this model: embed\.weight has shape \(23, 16\)"
    ):
        trained(tmp_path, resume=True, model=Net(width=8))


# --- a full disk ---


@pytest.mark.parametrize("where", ["model", "optimizer", "sync", "publish"])
def test_a_full_disk_keeps_earlier_checkpoints(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "whole", WithoutValidation())
    saves, fsync = [0], os.fsync

    def failing_save(tensors: Any, path: Path, metadata: Any) -> None:
        saves[0] += 1  # three per checkpoint: best weights, model, optimizer
        if saves[0] == {"publish": 4, "model": 5, "optimizer": 6}.get(where):
            path.write_bytes(b"half of it")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save_file(tensors, path, metadata)

    def failing_sync(handle: int) -> None:
        if where == "sync" and saves[0] == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", failing_save)
        patch.setattr(os, "fsync", failing_sync)
        with pytest.raises(UserError, match="no space left while writing [^;]*(step-10|model.safetensors); free some"):
            trained(tmp_path / "full", WithoutValidation())
    assert checkpoints(tmp_path / "full") == [5]
    assert checkpoint.newest_checkpoint(tmp_path / "full", pytest.fail) == tmp_path / "full/checkpoints/step-5"
    assert step_of(tmp_path / "full") == (5 if where == "publish" else 10)
    assert not [path for path in (tmp_path / "full").rglob("*") if path.name.startswith(".")]
    trained(tmp_path / "full", WithoutValidation(), resume=True)
    assert run_content(tmp_path / "full") == run_content(tmp_path / "whole")


def test_a_full_disk_while_writing_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def write(self, line: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with progress.EventLog(folder(tmp_path), 0) as log:
        log.file = Full()  # type: ignore[assignment]
        with pytest.raises(UserError, match="no space left while writing"):
            log.write("train", 1, loss=1.0)


# --- weights ---


def test_weights_round_trip_and_equal_weights_give_equal_bytes(tmp_path: Path) -> None:
    model, other = net(seed=1), net(seed=2)
    save_model(model, tmp_path / "a.safetensors", 7)
    assert load_model(other, tmp_path / "a.safetensors") == 7
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert other.head.weight is other.embed.weight
    save_model(other, tmp_path / "b.safetensors", 7)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_tied_tensors_are_stored_once_by_their_first_name(tmp_path: Path) -> None:
    save_model(net(), tmp_path / "model.safetensors", 0)
    assert set(load_file(tmp_path / "model.safetensors")) == {
        "embed.weight", "head.bias", "inner.bias", "inner.weight", "norm.bias", "norm.weight", "table", "unused",
    }  # fmt: skip


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    model, path = net(), tmp_path / "model.safetensors"
    tensors = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
    before = {name: value.clone() for name, value in tensors.items()}
    bad: list[tuple[dict[str, Any], str]] = [
        ({**tensors, "extra": torch.ones(1)}, "extra is not in the model"),
        ({**tensors, "unused": torch.ones(4)}, r"unused has shape \(4,\) and the model's has \(3,\)"),
        ({name: value for name, value in tensors.items() if name != "inner.bias"}, "inner.bias is missing"),
        ({"x": torch.ones(1)}, "embed.weight is missing; head.bias is missing; inner.bias is missing and 6 more"),
    ]
    for content, words in bad:
        save_file({name: value + 1 for name, value in content.items()}, path)
        with pytest.raises(UserError, match=f"model.safetensors does not fit this model: .*{words}"):
            load_model(model, path)
    assert all(torch.equal(before[name], value) for name, value in tensors.items())  # nothing was loaded partially


def test_weights_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(UserError, match="model.safetensors does not exist"):
        load_model(net(), path)
    save_model(net(), path, 0)
    whole = path.read_bytes()
    pickles = (b"\x80\x04" + whole[2:], b"PK\x03\x04" * 99)
    for content in (b"", whole[:5], whole[:100], whole[:-1], bytes(len(whole)), *pickles):
        path.write_bytes(content)
        with pytest.raises(UserError, match="model.safetensors is truncated or damaged"):
            load_model(net(), path)


def test_overwriting_weights_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_model(net(), path, 1)
    before = path.read_bytes()

    def failing(tensors: Any, draft: Path, metadata: Any) -> None:
        draft.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", failing)
    with pytest.raises(UserError, match="no space left"):
        save_model(net(seed=2), path, 2)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_former_optimizer_file_name_is_read(tmp_path: Path) -> None:
    """Older runs have optimiser.safetensors, also in the checksums of state.json."""
    trained(tmp_path / "whole", steps=10)
    trained(tmp_path / "parts", steps=5)
    path = tmp_path / "parts/checkpoints/step-5"
    (path / "optimizer.safetensors").rename(path / "optimiser.safetensors")
    state = path / "state.json"
    state.write_text(state.read_text().replace("optimizer.safetensors", "optimiser.safetensors"))
    trained(tmp_path / "parts", resume=True, steps=10)
    for name in ("model.safetensors", "checkpoints/step-10/optimizer.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


if __name__ == "__main__":
    train_and_kill(Path(sys.argv[1]))
