"""Threads: programs let them spin briefly, and the key `threads` sets their number, which determines the bytes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import small
from torch import nn

import regard
from regard import device as devices
from regard.cli import main
from regard.config.run_folder import read_run
from regard.device import kept_threads, use_threads
from regard.errors import UserError
from regard.runs import load as loading
from regard.threads import SETTINGS, VARIABLES, limit_spinning
from regard.training import curves

OLD = Path(__file__).parents[1] / "old"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins with one thread that no run has set, and leaves the number that it found."""
    monkeypatch.setattr(curves, "draw", lambda folder: None)
    monkeypatch.setattr(devices, "THREADS", devices.ThreadCount())
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- waiting ---


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not imported torch, whose user has set nothing."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch")


def test_threads_limit_spinning(fresh: None) -> None:
    assert limit_spinning() and {name: os.environ[name] for name in SETTINGS} == SETTINGS
    assert not limit_spinning()  # it is set now


@pytest.mark.parametrize("name", VARIABLES)
def test_a_setting_of_the_user_wins(fresh: None, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "active")
    assert not limit_spinning() and {key: os.environ.get(key) for key in VARIABLES if key in os.environ} == {
        name: "active"
    }


def test_nothing_is_set_after_torch_is_imported(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert not limit_spinning() and not set(VARIABLES).intersection(os.environ)


def test_the_tests_limit_spinning() -> None:
    assert set(VARIABLES).intersection(os.environ)


def run_python(*arguments: str) -> str:
    clean = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    clean |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, *arguments], env=clean, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def test_programs_set_it_and_imports_do_not(tmp_path: Path) -> None:
    show = "import os, sys; print([os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules])"
    assert run_python("-c", f"import regard, regard.cli, regard.demo, regard.config.run; {show}") == "[None, False]"
    plugin = tmp_path / "plugin.py"  # is loaded after torch
    plugin.write_text(show)
    found = run_python("-m", "regard", "--plugin", str(plugin), "list")
    assert found.splitlines()[:1] == ["['passive', True]"]  # it was set before, else it would not be


# --- the number in a process ---


def test_a_run_without_a_number_uses_that_of_the_process() -> None:
    use_threads(0)
    assert torch.get_num_threads() == 1
    use_threads(2)
    assert torch.get_num_threads() == 2
    use_threads(3)
    assert torch.get_num_threads() == 3
    use_threads(0)
    assert torch.get_num_threads() == 1  # as before any run
    use_threads(3)
    torch.set_num_threads(2)  # by the user
    use_threads(0)
    assert torch.get_num_threads() == 2
    use_threads(1)
    use_threads(0)
    assert torch.get_num_threads() == 2


def test_parts_of_a_run_keep_its_number() -> None:
    use_threads(2)
    with kept_threads():
        use_threads(3)
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == 2
    use_threads(0)
    assert torch.get_num_threads() == 1


# --- runs ---


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("threads", [1, 2])
def test_equal_numbers_give_equal_bytes(tmp_path: Path, threads: int) -> None:
    """Also with worker processes, and in two halves: the number is stored, and a resumed run keeps it."""
    settings: dict[str, Any] = {"threads": threads, "train__save_every": 2, "train__eval_every": 2}
    whole = small.train_translator(tmp_path / "whole", 4, 150, **settings)
    assert torch.get_num_threads() == threads and read_run(whole)["config"]["threads"] == threads
    torch.set_num_threads(3)
    again = small.train_translator(tmp_path / "again", 4, 150, data__workers=1, **settings)
    assert weights(again) == weights(whole)

    halves, seen = tmp_path / "halves", set()
    shutil.copytree(whole, halves)
    shutil.rmtree(halves / "checkpoints" / "step-4")
    torch.set_num_threads(3)
    regard.train(out=halves, resume=True, callbacks=[lambda context: seen.add(torch.get_num_threads())])
    assert seen == {threads} and weights(halves) == weights(whole)


def test_a_resumed_or_loaded_run_can_change_the_number(tmp_path: Path) -> None:
    run = small.train_translator(tmp_path, 2, 100, threads=2)
    regard.train(out=run, resume=True, threads=1, train={"steps": 3})
    assert torch.get_num_threads() == 1 and read_run(run)["config"]["threads"] == 1
    assert regard.load(run, threads=3).run.threads == 3 and torch.get_num_threads() == 3
    assert regard.load(run).run.threads == 1 and torch.get_num_threads() == 1
    assert main(["predict", str(run), str(tmp_path / "files" / "test.low"), "threads=2"]) == 0
    assert torch.get_num_threads() == 2
    loading.load_on_cpu(run)
    assert torch.get_num_threads() == 2  # to convert it, or to start from it


def test_the_number_of_a_start_is_not_that_of_the_run(tmp_path: Path) -> None:
    first, seen = small.train_translator(tmp_path, 1, 100, threads=2), set()
    regard.train(
        "translate", {"start": str(first), "train.steps": 1, "train.tensorboard": False, "device": "cpu"},
        out=tmp_path / "second", callbacks=[lambda context: seen.add(torch.get_num_threads())],
    )  # fmt: skip
    assert seen == {1} and read_run(tmp_path / "second")["config"]["threads"] == 0


def test_former_runs_tuned_runs_and_folders_load() -> None:
    assert "threads" not in json.loads((OLD / "classify-bert" / "run.json").read_text(encoding="utf-8"))["config"]
    assert regard.load(OLD / "classify-bert").run.threads == 0 and torch.get_num_threads() == 1
    assert regard.load(OLD / "classify-bert", threads=2).run.threads == 2 and torch.get_num_threads() == 2
    regard.load(OLD / "masked-bert", tune=OLD / "tuned-lora", force=True, threads=3)
    assert torch.get_num_threads() == 3


def test_a_folder_of_another_format_gets_the_number(tmp_path: Path) -> None:
    regard.convert(OLD / "masked-bert", out=tmp_path / "hf", to="huggingface")
    assert torch.get_num_threads() == 1
    regard.load(tmp_path / "hf", threads=2)
    assert torch.get_num_threads() == 2


def test_fit_has_the_key_too(tmp_path: Path) -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            seen.add(torch.get_num_threads())
            return (self.weight * batch).square().mean()

    seen: set[int] = set()
    regard.fit(Square(), [torch.ones(2)], out=tmp_path / "run", train={"steps": 1, "tensorboard": False}, threads=2)
    assert seen == {2} and read_run(tmp_path / "run")["config"]["threads"] == 2


@pytest.mark.parametrize(
    "value, sentence",
    [
        (-1, "threads is -1"), (1025, "threads is 1025"), ("two", 'threads is "two"'), (1.5, "threads is 1.5"),
        (True, "threads is true"),
    ],
)  # fmt: skip
def test_bad_numbers_are_one_sentence(value: Any, sentence: str) -> None:
    for call in (
        lambda: regard.resolve("dates", {"threads": value}),
        lambda: regard.load(OLD / "tag-bert", threads=value),
    ):
        with pytest.raises(UserError) as error:
            call()
        assert str(error.value).startswith(sentence) and "\n" not in str(error.value)
    assert torch.get_num_threads() == 1
