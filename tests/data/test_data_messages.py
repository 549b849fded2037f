"""Sentences for data that cannot be read, from the functions that make them."""

import math
from types import SimpleNamespace

import pytest

import regard
from regard.data.files.in_memory import IN_MEMORY
from regard.data.files.open import matching_files, missing_file
from regard.data.source import InMemorySource
from regard.data.sources.data_files import as_data_files, evaluation_files
from regard.data.sources.holdout import hold_out
from regard.data.tables.arrow import read_arrow_file, spool
from regard.errors import UserError
from regard.tasks.classify.problems import Regression
from regard.tasks.notices import require_finite
from regard.training import lock
from regard.training.lock import RunLock

TINY = {"model.size": "tiny", "train.steps": 1, "train.warmup": 1, "tokenizer.kind": "char", "train.tensorboard": False}


@pytest.mark.parametrize("data", [3, b"bytes", {"a", "b"}, object()])
def test_data_of_another_type(data):
    with pytest.raises(UserError, match=f"data.train is an? {type(data).__name__}; "):
        as_data_files(data, "data.train")


def test_empty_data():
    with pytest.raises(UserError, match="the data are empty; give at least one example"):
        evaluation_files("")
    with pytest.raises(UserError, match="data.train is an iterable without records; give at least one"):
        spool(iter([]), "data.train")


def test_records_of_other_shapes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for rows, words in (
        ([("a", "b"), 3], "record 2 is a int; expected tuples"),
        ([("a", "b"), "c"], "record 2 is .*; give equal ones"),
    ):
        with pytest.raises(UserError, match=f"data.train: {words}"):
            spool(iter(rows), "data.train")
    with pytest.raises(UserError, match="no table holds them .*; give the same fields and types to all"):
        spool(iter([{"a": 1}, {"a": "text"}]), "data.train")


def test_a_damaged_table(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(
        UserError, match="a.parquet is not a whole Parquet or Arrow file .*; create or download it again"
    ):
        read_arrow_file(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="b.parquet cannot be read: .*; check its name and content"):
        read_arrow_file(tmp_path / "b.parquet")


def test_data_of_another_program():
    raise_it = missing_file(f"list of 3 {IN_MEMORY}")
    assert "the data are a list of 3 records in memory of another program; give them again" in str(raise_it)
    with pytest.raises(UserError, match="there is no file nowhere.txt; check the name"):
        matching_files("nowhere.txt")


def test_nothing_is_left_to_train_on():
    one = InMemorySource("a.tsv", [("a", "b")])
    with pytest.raises(UserError, match="data.holdout=0.5 of 1 examples .a.tsv. leaves none to train on; lower it"):
        hold_out(one, 0.5, "train", False)


@pytest.mark.parametrize(
    "records, words",
    [
        ([("a", "x"), ("b",)], "1 values, and the first record has 2"),
        ([{"text": "a", "label": "x"}, ("b", "y")], "a tuple, and the first record is a dict"),
        ([3.5, 4.5], "its first record is a float; expected tuples, dicts or texts"),
        ({"text": ["a", "b"], "label": ["x"]}, "the columns differ in length: 1, 2; give equal ones"),
    ],
)
def test_records_in_memory_that_differ(tmp_path, records, words):
    with pytest.raises(UserError, match=words):
        regard.train("classify", TINY, out=tmp_path / "run", data={"train": records})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_outputs_that_are_not_finite(value):
    with pytest.raises(UserError, match="the model gives numbers that are not finite"):
        require_finite([1.0, value])


def test_a_regressor_has_no_probability():
    with pytest.raises(UserError, match="this model gives a number for a text and no probability; use predict"):
        Regression.targets(SimpleNamespace(), "a", True, 1)


def test_a_lock_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lock.os, "open", refuse)
    with (
        pytest.raises(UserError, match="cannot be written .Permission denied.; choose another path"),
        RunLock(tmp_path),
    ):
        pass
