"""Types in Python: a str is one text, paths are PathLike, and what is wrong gets one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from helpers.runs import tiny_run

import regard
from regard import api
from regard.errors import UserError

TEXTS = ["so good", "so bad"]
TINY: dict[str, Any] = {
    "model.size": "tiny", "train.steps": 2, "train.warmup": 1, "tokenizer.kind": "char", "train.tokens": 64,
    "train.tensorboard": False, "device": "cpu",
}  # fmt: skip


class OwnPath:
    """An os.PathLike that is no Path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two tasks."""
    place = tmp_path_factory.mktemp("runs")
    data: dict[str, Any] = {
        "classify": list(zip(TEXTS, ["pos", "neg"], strict=True)) * 4,
        "tag": [(["so", "good"], ["A", "B"]), (["so", "bad"], ["A", "C"])] * 4,
    }
    for task, examples in data.items():
        own = {"data.ngrams.order": 0} if task == "classify" else {}  # exports need it
        (place / task).symlink_to(tiny_run(task, data={"train": examples}, **TINY, **own))
    return place


FRAMES = [pd.DataFrame({"text": TEXTS}), pl.DataFrame({"text": TEXTS}), pa.table({"text": TEXTS})]


def test_the_sentences(folder):
    classify, tag = regard.load(OwnPath(folder / "classify")), regard.load(folder / "tag")
    for call, words in [
        (lambda: classify.predict(None), "the texts are None; expected a text as a str, or several in a list or another"),
        (lambda: classify.predict(["a", None]), "text 2 is None; expected a str"),
        (lambda: classify.predict(FRAMES[0]), "are a pandas DataFrame; expected a text as a str, or several in a list or"),
        (lambda: classify.predict(FRAMES[1]), "another iterable; give one of its columns"),
        (lambda: classify.predict(np.array([TEXTS])), "the texts are a ndarray of 2 dimensions"),
        (lambda: classify.score(TEXTS, ["pos", 1]), "label 2 is an int; expected a str"),
        (lambda: classify.score("a", ["pos"]), "score takes two texts or two lists of texts, not one of each"),
        (lambda: classify.score(TEXTS, iter(["pos"])), "there are 2 texts and 1 labels; each text needs its label, so"),
        (lambda: tag.predict([["a"], ["b", None]]), "sentence 2: word 2 is None; expected a str"),
        (lambda: tag.predict([["a"], 5]), "sentence 2: the words are an int"),
        (lambda: classify.similar("a", torch.zeros(3)), "the vectors are 3; expected texts × "),
        (lambda: classify.similar("a", torch.zeros(3, 1)), "the vectors are 3 × 1; expected texts × "),
    ]:  # fmt: skip
        with pytest.raises(UserError) as error:
            call()
        assert words in str(error.value) and "\n" not in str(error.value)


def test_a_str_is_one_text(folder):
    classify, tag = regard.load(folder / "classify"), regard.load(folder / "tag")
    assert classify.similar("so good", "so bad") == classify.similar(["so good"], ["so bad"])[0]
    assert len(classify.similar("so good", "so bad")) == 1
    assert torch.equal(classify.embed(pd.Series(TEXTS)), classify.embed(TEXTS)) and classify.embed("so").dim() == 1
    assert tag.predict([np.array(["so", "good"])]) == tag.predict([["so", "good"]])
    assert tag.predict("so good") == tag.predict(["so good"])[0]
    scores = classify.score(TEXTS, ["pos", "neg"])
    assert classify.score(pd.Series(TEXTS), np.array(["pos", "neg"])) == scores
    assert classify.score("so good", "pos") == pytest.approx(scores[0])


def test_paths(folder, tmp_path):
    text = tmp_path / "test.tsv"
    text.write_text("so good\tpos\nso bad\tneg\n" * 4)
    for given in (text, OwnPath(text), str(text), [text], [[OwnPath(text)]]):
        assert regard.load(folder / "classify").evaluate(given)["examples"] == 8
    recipe = tmp_path / "own.toml"
    recipe.write_text('base = "classify"\n')
    settings = {**TINY, "data.train": text, "start": folder / "classify"}
    del settings["model.size"]
    trained = regard.train(OwnPath(recipe), settings, out=OwnPath(tmp_path / "run"))
    assert trained is not None and trained.run.start == str(folder / "classify")
    assert regard.build(OwnPath(recipe), TINY) is not None
    assert regard.convert(OwnPath(folder / "classify"), to="huggingface", out=OwnPath(tmp_path / "hf"))
    runs = iter([OwnPath(folder / "classify"), str(tmp_path / "run")])
    compared = api.compare(runs, data=OwnPath(text))
    assert [each["run"] for each in compared["systems"]] == [str(folder / "classify"), str(tmp_path / "run")]


@pytest.mark.parametrize("value", [None, 5, b"runs/x", ["a"], object()])
def test_wrong_paths(value, folder, tmp_path):
    calls: list[Callable[[], Any]] = [
        lambda: regard.load(value),
        lambda: regard.train("classify", out=value),
        lambda: regard.convert(value, out=tmp_path / "x"),
        lambda: regard.convert(folder / "classify", out=value),
        lambda: regard.build(value),
        lambda: api.compare([value, value]),
        lambda: regard.load(folder / "classify", tune={"a": value}),
        lambda: regard.load(folder / "classify", tune=[value]),
    ]
    calls += [] if value is None else [lambda: regard.train(value, out=tmp_path / "x")]
    calls += [] if value is None or isinstance(value, list) else [lambda: regard.load(folder / "classify", tune=value)]
    for call in calls:
        with pytest.raises(UserError, match=r"is (None|a [a-z]+); expected a path: a str or an os.PathLike"):
            call()
    if not isinstance(value, list):
        with pytest.raises(UserError, match="expected a list of runs to compare|expected a path"):
            api.compare(value)


def test_wrong_settings(folder):
    for value in ([1], "train.steps", 5):
        with pytest.raises(UserError, match="expected a dict of settings by dotted key"):
            regard.load(folder / "classify", value)
    with pytest.raises(UserError, match="paths is a str; expected a list of runs to compare"):
        api.compare("runs/a")
