"""data.holdout in every task: the splits are disjoint and complete, the same in every run, and fair."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.reads import TINY, labeled_examples

import regard
from regard.config.run import Run
from regard.data.source import InMemorySource, Source
from regard.data.sources.documents import open_documents
from regard.data.sources.holdout import hold_out
from regard.data.sources.mixture import Mixture
from regard.errors import UserError
from regard.tasks.base import open_lines
from regard.tasks.classify import task as classify
from regard.tasks.tag import task as tag
from regard.tasks.text2text.task import Text2TextPredictor
from regard.tasks.translate.task import data_split as pairs

PAIRS = [{"source": f"source {i}", "target": f"target {i}"} for i in range(40)]
LABELED = [(f"text {i}", "ab"[i >= 20]) for i in range(40)]  # sorted by class
TAGGED = [{"tokens": [f"w{i}", "x"], "tags": ["A", "B"]} for i in range(40)]
LINES = [{"text": f"line {i}"} for i in range(40)]

TASKS: dict[str, tuple[Any, Any]] = {
    "classify": (LABELED, classify.data_split),
    "tag": (TAGGED, tag.data_split),
    "translate": (PAIRS, pairs),
    "text2text": (PAIRS, Text2TextPredictor.data_split),
    "masked": (LINES, open_lines),
    "spans": (LINES, open_lines),
}


def run_of(task: str, data: Any, **settings: Any) -> Run:
    from regard.runs.load import merge_settings

    changes = merge_settings({}, {"data": {"train": data, "holdout": 0.2, **settings}})
    return regard.api.resolve(task, changes).run


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_disjoint_complete_and_repeatable(task: str) -> None:
    data, split = TASKS[task]
    run = run_of(task, data)
    train, valid = list(split(run, "train")), list(split(run, "valid"))
    everything = list(split(run_of(task, data, holdout=0.0), "train"))
    assert len(valid) == 8 and not set(train) & set(valid) and set(train) | set(valid) == set(everything)
    assert (list(split(run, "train")), list(split(run, "valid"))) == (train, valid)
    assert train == [each for each in everything if each in train]  # in their order
    if task in ("masked", "spans"):
        assert valid == everything[-8:]
    else:
        assert valid != everything[-8:]


def test_files_sorted_by_class_give_all_classes() -> None:
    run = run_of("classify", LABELED)
    for split in ("train", "valid"):
        assert {label for _, label in classify.data_split(run, split)} == {"a", "b"}


def test_running_text_holds_out_its_end() -> None:
    run = run_of("language", LINES)
    texts = {split: [part.text for part in open_documents(run.data, split).parts(None)] for split in ("train", "valid")}
    assert texts["train"] + texts["valid"] == [each["text"] for each in LINES] and 7 <= len(texts["valid"]) <= 9


def test_facts_name_the_share() -> None:
    examples = InMemorySource("data", [(str(i),) for i in range(10)])
    train, valid = (hold_out(examples, 0.25, split) for split in ("train", "valid"))
    assert (train.name, valid.name) == ("all but a random 25 % of data", "a random 25 % of data")
    assert train.counts["examples"] == len(train) == 8 and len(valid) == 2
    assert {train.location(i) for i in range(8)} | {valid.location(i) for i in range(2)} == {
        examples.location(i) for i in range(10)
    }
    assert train.fingerprint() != valid.fingerprint() == hold_out(examples, 0.25, "valid").fingerprint()
    assert train.fingerprint() != hold_out(examples, 0.25, "train", tail=True).fingerprint()
    assert train.text(0, 0) == train[0][0] and list(train.texts(0)) == [text for (text,) in train]


def test_every_task_of_a_mixture_gives_its_share() -> None:
    def task(name: str, count: int) -> Source:
        return InMemorySource(name, [(f"{name} {i}", "y") for i in range(count)])

    mixture = Mixture([("a: ", task("a", 100)), ("b: ", task("b", 10))], (1, 3))
    train, valid = (hold_out(mixture, 0.1, split) for split in ("train", "valid"))
    assert isinstance(train, Mixture) and isinstance(valid, Mixture)
    assert [len(each) for each in train.parts] == [90, 9] and [len(each) for each in valid.parts] == [10, 1]
    assert valid.prefixes == ["a: ", "b: "] and valid[10][0].startswith("b: b ")
    assert train.weights is not None and np.allclose(train.weights, [0.25, 0.75])
    assert not set(train) & set(valid) and set(train) | set(valid) == set(mixture)


def test_neighbors_stay_neighbors(tmp_path: Path) -> None:
    """Next-sentence pairs never cross a blank line, nor the border between the splits."""
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {i}\n" + "\n" * (i % 5 == 4) for i in range(20)))
    run = run_of("masked", str(path), next_sentence=True)
    train, valid = open_lines(run, "train"), open_lines(run, "valid")
    assert [text for (text,) in [*train, *valid]] == [f"line {i}" for i in range(20)] and len(valid) == 4
    assert [train.adjacent(i) for i in range(15)] == [i % 5 != 4 for i in range(15)]
    scattered = hold_out(train, 0.3, "train")
    numbers = [int(text.split()[1]) for (text,) in scattered]
    steps = zip(numbers, numbers[1:], strict=False)
    assert [scattered.adjacent(i) for i in range(len(numbers) - 1)] == [b == a + 1 and a % 5 != 4 for a, b in steps]


@pytest.mark.parametrize(("count", "share"), [(1, 0.1), (1, 0.9), (3, 0.9)])
def test_nothing_left_to_train_on(count: int, share: float) -> None:
    examples = InMemorySource("data", [(str(i),) for i in range(count)])
    words = rf"data.holdout={share:g} of {count} examples \(data\) leaves none to train on; lower it"
    with pytest.raises(UserError, match=words):
        hold_out(examples, share, "train")


def test_validation_data_win_over_a_share() -> None:
    run = run_of("classify", LABELED, valid=[("v", "a")])
    assert len(classify.data_split(run, "train")) == 40 and list(classify.data_split(run, "valid")) == [("v", "a")]


def test_a_resumed_run_keeps_its_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same records in another container continue the run; others are refused."""
    monkeypatch.setattr("regard.training.curves.draw", lambda folder: None)
    settings = {**TINY, "train.warmup": 1, "train.save_every": 2, "train.eval_every": 2, "data.holdout": 0.2}
    rows = labeled_examples(60, seed=3)
    records = [{"text": text, "label": label} for text, label in rows]
    regard.train("classify", {**settings, "train.steps": 4}, out=tmp_path / "whole", data={"train": rows})
    regard.train("classify", {**settings, "train.steps": 2}, out=tmp_path / "parts", data={"train": rows})
    more = {**settings, "train.steps": 4}
    with pytest.raises(UserError, match="data.train is not what .* was started with"):
        regard.train("classify", more, out=tmp_path / "parts", data={"train": rows[:-1]}, resume=True)
    regard.train("classify", more, out=tmp_path / "parts", data={"train": records}, resume=True)
    metrics = [(tmp_path / name / "metrics.jsonl").read_text().count('"valid"') for name in ("whole", "parts")]
    assert metrics == [2, 2]
