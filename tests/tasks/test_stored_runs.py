"""The store of tiny runs that the tests share."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import reads, runs

import regard

FILES = {"a/train.tsv": "good day\tglad\nbad day\tsad\n" * 5}
SETTINGS = {**reads.TINY, "data.train": "{files}/a/train.tsv", "train.steps": 1, "train.eval_every": 1}


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks that were trained, for an empty store and a package of one file."""
    found: list[str] = []

    def train(place: Path, task: str, *rest: Any) -> None:
        found.append(task)
        (place / "errors").mkdir(parents=True)
        (place / "run").mkdir()
        (place / "run" / "run.json").write_text("{}")
        (place / "listing.json").write_text(runs.json.dumps(runs.listing(place)))

    (tmp_path / "regard").mkdir()
    (tmp_path / "regard" / "one.py").write_text("1")
    monkeypatch.setattr(runs, "train", train)
    monkeypatch.setattr(runs, "FOLDER", tmp_path / "store")
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(runs, "USED", set())
    runs.code_folder.cache_clear()
    yield found
    runs.code_folder.cache_clear()


def test_a_run_is_trained_once_for_its_settings(trained: list[str]) -> None:
    first = runs.tiny_run("a", {"x": "1"}, data={"train": [("a", 1)]}, train__steps=1)
    assert first == runs.tiny_run("a", {"x": "1"}, data={"train": [("a", 1)]}, **{"train.steps": 1})
    assert trained == ["a"]
    others = [
        runs.tiny_run("b", {"x": "1"}, data={"train": [("a", 1)]}, train__steps=1),
        runs.tiny_run("a", {"x": "2"}, data={"train": [("a", 1)]}, train__steps=1),
        runs.tiny_run("a", {"x": b"1"}, data={"train": [("a", 1)]}, train__steps=1),
        runs.tiny_run("a", {"x": "1"}, data={"train": [("a", 2)]}, train__steps=1),
        runs.tiny_run("a", {"x": "1"}, data={"train": [("a", 1)]}, train__steps=2),
        runs.tiny_run("a", {"x": "1"}, data={"train": [("a", 1)]}, patches={"x": 1}, train__steps=1),
    ]
    assert len({first, *others}) == 7 == len(trained)
    with pytest.raises(TypeError, match="give plain values"):
        runs.tiny_run("a", data={"train": object()})


def test_a_folder_is_made_once_for_its_arguments(trained: list[str], tmp_path: Path) -> None:
    assert runs.tiny_folder(make_folder, tmp_path / "a", size=1) == tmp_path / "a"
    (tmp_path / "a" / "number").write_text("changed")
    numbers = [
        (runs.tiny_folder(make_folder, tmp_path / name, size=size) / "number").read_text()
        for name, size in (("b", 1), ("c", 2), ("d", 1))
    ]
    assert numbers == ["1", "2", "1"] and MADE == [1, 2]


MADE: list[int] = []


def make_folder(path: Path, size: int) -> None:
    MADE.append(size)
    path.mkdir()
    (path / "number").write_text(f"{size}")


def test_other_code_trains_again(trained: list[str], tmp_path: Path) -> None:
    found = [runs.tiny_run("a")]
    for name, text in (("one.py", "2"), ("two.py", "3"), ("recipe.toml", "4")):
        (tmp_path / "regard" / name).write_text(text)
        runs.code_folder.cache_clear()
        found += [runs.tiny_run("a"), runs.tiny_run("a")]
    assert len(trained) == 4 == len(set(found)) and all(path.exists() for path in found)


def test_old_versions_are_removed(trained: list[str], tmp_path: Path) -> None:
    old, recent = [], []
    for number in range(8):
        (tmp_path / "regard" / "one.py").write_text(f"{number}")
        runs.code_folder.cache_clear()
        place = runs.tiny_run("a").parent.parent
        (old if number < 4 else recent).append(place)
        if number < 4:
            os.utime(place, (number, number))
    assert not any(place.exists() for place in old) and all(place.exists() for place in recent)


def test_processes_at_once_train_once(trained: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = runs.train

    def slowly(place: Path, *rest: Any) -> None:
        with open(tmp_path / "trained", "a") as file:
            file.write("x")
        time.sleep(0.2)
        train(place, *rest)

    monkeypatch.setattr(runs, "train", slowly)
    children = []
    for _ in range(3):
        if not (child := os.fork()):
            try:
                os._exit(0 if (runs.tiny_run("a") / "run.json").exists() else 1)
            finally:
                os._exit(2)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert (tmp_path / "trained").read_text() == "x"


def test_what_a_killed_process_left_is_replaced(trained: list[str]) -> None:
    run = runs.tiny_run("a")
    (run.parent / "listing.json").unlink()
    (run / "half").write_text("x")
    assert runs.tiny_run("a") == run and not (run / "half").exists() and trained == ["a", "a"]


def test_a_changed_run_is_found_and_trained_again(trained: list[str], tmp_path: Path) -> None:
    run = runs.tiny_run("a")
    copy = runs.copy_run(run, tmp_path / "copy")
    (copy / "more").write_text("x")
    runs.check_used()
    (run / "more").write_text("x")
    with pytest.raises(AssertionError, match=r"a test wrote run/more into .*; let it take copy_run"):
        runs.check_used()
    assert not (runs.tiny_run("a") / "more").exists() and trained == ["a", "a"]
    (run / "run.json").write_text("[]")
    with pytest.raises(AssertionError, match="wrote run/run.json into"):
        runs.tiny_run("a")


def test_a_stored_run_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained or not, it changes no random number, and the lines that made an error while it was trained are known."""
    monkeypatch.setattr(runs, "FOLDER", tmp_path / "store")
    monkeypatch.setattr(runs, "USED", set())
    train, numbers = regard.train, []

    def train_with_error(*arguments: Any, **named: Any) -> Any:
        (Path(os.environ[runs.ERRORS]) / "1").write_text("0 1 x\n")
        return train(*arguments, **named)

    monkeypatch.setattr(regard, "train", train_with_error)
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(runs.ERRORS, str(tmp_path / name))
        torch.manual_seed(3)
        run = runs.tiny_run("classify", FILES, **SETTINGS)
        numbers.append(torch.rand(1).item())
        assert regard.load(run).predict("good day") in ("glad", "sad")
        assert [path.read_text() for path in (tmp_path / name).iterdir()] == ["0 1 x\n"]
    assert numbers[0] == numbers[1] and not (run / "curves.png").exists()
    train("classify", {**SETTINGS, "data.train": str(run.parent / "a/train.tsv")}, out=tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
