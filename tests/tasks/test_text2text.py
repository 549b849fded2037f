"""Text to text: mixtures of tasks with prefixes and weights; span corruption with T5's sentinels."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers import reads
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.config.data.texts import MixData, SpanData, TokenizerConfig
from regard.config.train import Train
from regard.data.datasets.spans import SpanCorruptor, SpanDataset, random_composition
from regard.data.loading.loader import Loader
from regard.data.source import InMemorySource
from regard.data.sources.mixture import Mixture, open_mixture
from regard.errors import UserError
from regard.processors.text.tokenizers import sentinel, train_tokenizer
from regard.synthetic.mixture import make_mixture

SMALL = {key: value for key, value in reads.TINY.items() if key not in ("model.heads", "tokenizer.vocab")} | {
    "model.heads": 2, "model.head_width": 16, "train.steps": 3, "train.eval_every": 3, "train.save_every": 3,
}  # fmt: skip


# --- mixtures --------------------------------------------------------------------------------------------------------


def pairs(folder: Path, name: str, count: int) -> Path:
    path = folder / name
    path.write_text("".join(f"{name[0]}{i}\t{name[0].upper()}{i}\n" for i in range(count)))
    return path


def mixed(folder: Path, **data) -> Mixture:
    files = [(str(pairs(folder, "a.tsv", 30)),), (str(pairs(folder, "b.tsv", 10)),)]
    return open_mixture(files, MixData(prefixes=("one: ", "two: "), **data), references=False)


def test_each_task_has_its_prefix(tmp_path):
    examples = mixed(tmp_path)
    assert len(examples) == 40 and examples[0] == ("one: a0", "A0") and examples[30] == ("two: b0", "B0")
    assert examples.location(31).endswith("b.tsv:2") and examples.counts["examples"] == 40
    assert sorted(examples.order(np.random.default_rng(1))) == list(range(40))
    other = open_mixture(
        [(str(tmp_path / "b.tsv"),), (str(tmp_path / "a.tsv"),)], MixData(prefixes=("one: ", "two: ")), False
    )
    assert other.fingerprint() != examples.fingerprint() == mixed(tmp_path).fingerprint()


def test_mixture_weights(tmp_path):
    examples = mixed(tmp_path, weights=(1, 3))
    orders = [examples.order(np.random.default_rng([1, epoch])) for epoch in range(50)]
    second = np.concatenate(orders) >= 30
    assert all(len(order) == 40 for order in orders) and second.mean() == pytest.approx(0.75, abs=0.03)
    once = Counter(orders[0].tolist())
    assert max(once[i] for i in range(30)) == 1 and {once[i] for i in range(30, 40)} <= {2, 3, 4}
    assert (examples.order(np.random.default_rng([1, 0])) == orders[0]).all()
    few = Mixture([("x", examples.parts[0]), ("y", examples.parts[1])], (1e-9, 1))
    assert (few.order(np.random.default_rng(1)) >= 30).all()


@pytest.mark.parametrize(
    ("data", "files", "words"),
    [
        ({}, 2, "2 files are given without prefixes to tell their tasks apart; set data.prefixes"),
        ({"prefixes": "a: "}, 2, "data.prefixes has 1 entries and there are 2 files"),
        ({"prefixes": "a: ,b: ", "weights": (1, 2, 3)}, 2, "data.weights has 3 entries and there are 2 files"),
    ],
)
def test_invalid_mixtures(tmp_path, data, files, words):
    named = [(str(pairs(tmp_path, f"{letter}.tsv", 5)),) for letter in "ab"[:files]]
    with pytest.raises(UserError) as error:
        open_mixture(named, MixData(**data), False)
    assert words in str(error.value)


def test_one_task_without_prefix_from_jsonl(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"source": "x", "target": "y"}\n')
    assert open_mixture([(str(tmp_path / "a.jsonl"),)], MixData(), False)[0] == ("x", "y")
    (tmp_path / "empty.tsv").write_text("\n")
    with pytest.raises(UserError, match="holds no example"):
        open_mixture([(str(tmp_path / "empty.tsv"),)], MixData(), False)


def test_embedded_tasks():
    examples = make_mixture(MixData(examples=90), "train")
    assert examples.prefixes == ["to de: ", "to fr: ", "language: "] and [len(each) for each in examples.parts] == [
        30,
        30,
        30,
    ]
    assert examples[0][0].startswith("to de: ") and len(examples[70][1]) == 2
    with pytest.raises(UserError, match="data.locales=en names one language"):
        make_mixture(MixData(locales=("en",)), "train")


def test_training_and_metrics_by_task(tmp_path):
    files = ",".join(str(pairs(tmp_path, f"{letter}.tsv", 20)) for letter in "ab")
    data = {
        "data.train": files,
        "data.valid": files,
        "data.prefixes": "up: ,high: ",
        "data.weights": [1, 2],
        "tokenizer.vocab": 300,
    }
    predictor = regard.train("text2text", {**SMALL, **data}, out=tmp_path / "run")
    assert predictor.run.model.family == "t5" and isinstance(predictor.predict("up: a1"), str)
    metrics = predictor.evaluate(regard.config.run.parse_data_files(files))
    assert list(metrics["tasks"]) == ["up: ", "high: "] and set(metrics["tasks"]["up: "]) == {"bleu", "chrf", "exact"}
    assert str(metrics["tasks"]).splitlines()[1].startswith("  up: ") and metrics["examples"] == 40
    again = regard.load(tmp_path / "run")
    assert again.predict(["up: a1", "high: b2"]) == predictor.predict(["up: a1", "high: b2"])
    with pytest.raises(UserError, match="this run has no test data; name some, such as --data test.tsv"):
        predictor.evaluate()


# --- spans -----------------------------------------------------------------------------------------------------------

MARKS = [sentinel(number) for number in reversed(range(10))]
BYTES = train_tokenizer(TokenizerConfig(kind="byte"), [], control=MARKS)


def test_sentinels_descend_from_the_top():
    assert BYTES.sentinels == [BYTES.size - 1 - number for number in range(10)]
    assert BYTES.encode(["<extra_id_0>a"])[0] == [BYTES.size - 1, 4 + ord("a")]


@given(st.integers(1, 120), st.floats(0.05, 0.9), st.floats(1, 8), st.integers(0, 5))
def test_source_and_target_restore_the_text(length, share, span, seed):
    corruptor, ids = SpanCorruptor(BYTES, SpanData(masked=share, span=span)), np.arange(4, 4 + length, dtype=np.int32)
    source, target = (side.tolist() for side in corruptor.corrupt(ids, np.random.default_rng(seed)))
    marks = [piece for piece in source if piece in BYTES.sentinels]
    count = len(marks)
    assert (
        marks == BYTES.sentinels[:count]
        and [piece for piece in target if piece in BYTES.sentinels] == BYTES.sentinels[: count + 1]
    )
    assert target[0] == BYTES.sentinels[0] and target[-1] == BYTES.sentinels[count] and count >= 1
    held = {
        mark: target[target.index(mark) + 1 : target.index(after)]
        for mark, after in zip(target_marks(target), target_marks(target)[1:], strict=False)
    }
    assert all(held.values())
    whole = [piece for each in source for piece in held.get(each, [each])]
    assert whole == ids.tolist()
    assert sum(map(len, held.values())) == min(max(round(share * length), 1), length)
    places = [i for i, piece in enumerate(source) if piece in BYTES.sentinels]
    assert all(b - a > 1 for a, b in zip(places, places[1:], strict=False))  # no two spans touch


def target_marks(target: list[int]) -> list[int]:
    return [piece for piece in target if piece in BYTES.sentinels]


def test_mean_span_length():
    corruptor, chance = (
        SpanCorruptor(
            train_tokenizer(TokenizerConfig(kind="byte"), [], control=[sentinel(i) for i in reversed(range(100))]),
            SpanData(),
        ),
        np.random.default_rng(1),
    )
    counts = [
        len(target) - 1 - 15
        for _, target in (corruptor.corrupt(np.arange(4, 104, dtype=np.int32), chance) for _ in range(20))
    ]
    assert set(counts) == {5}  # 15 tokens in spans of 3


def test_random_partitions():
    chance = np.random.default_rng(1)
    seen = Counter(tuple(random_composition(3, 2, chance)) for _ in range(4000))
    assert set(seen) == {(0, 3), (1, 2), (2, 1), (3, 0)} and min(seen.values()) > 880
    assert random_composition(5, 1, chance).tolist() == [5]


def test_missing_sentinels_are_refused(tmp_path):
    with pytest.raises(UserError, match="the tokenizer has 0 sentinels"):
        SpanCorruptor(train_tokenizer(TokenizerConfig(kind="byte"), []), SpanData())
    files = str(pairs(tmp_path, "a.tsv", 20))
    regard.train("text2text", {**SMALL, "data.train": files, "tokenizer.vocab": 300}, out=tmp_path / "t5")
    (tmp_path / "a.txt").write_text("some lines of text\n" * 5)
    with pytest.raises(
        UserError, match="the tokenizer has 0 sentinels .* train without `start`, or from a T5 that has them"
    ):
        regard.train(
            "spans",
            {"data.train": str(tmp_path / "a.txt"), "start": str(tmp_path / "t5"), "train.steps": 1},
            out=tmp_path / "x",
        )


def test_rows_too_short_for_targets_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a text\n")
    with pytest.raises(UserError, match="data.max_tokens=3 leaves no room for a target, .*; use at least 4"):
        regard.train("spans", {"data.train": str(tmp_path / "a.txt"), "data.max_tokens": 3}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert SpanDataset(InMemorySource("x", [("a",)]), SpanCorruptor(BYTES, SpanData()), SpanData(max_tokens=4), Train())


def test_spans_differ_by_epoch():
    texts = ["a text that is long enough to be cut", "short one"] * 5
    data = SpanData(max_tokens=20)
    dataset = SpanDataset(
        InMemorySource("made", [(text,) for text in texts]), SpanCorruptor(BYTES, data), data, Train(tokens=200)
    )
    loader = Loader.of(dataset)
    first, second = ([piece for step in loader.steps(epoch) for piece in step.micro_batches] for epoch in (0, 1))
    again = [piece for step in loader.steps(0) for piece in step.micro_batches]
    one, same, other = ([piece["source"].values for piece in pieces] for pieces in (first, again, second))
    assert all(a.equal(b) for a, b in zip(one, same, strict=True))
    assert not all(a.shape == b.shape and a.equal(b) for a, b in zip(one, other, strict=False))
    assert all(a.size(1) <= 20 for a in one)
    assert all((piece["target"].values[:, 0] == BYTES.start).all() for piece in first)
    assert loader.report()[0].startswith("5 of 10 lines have more than 19 tokens, and each epoch reads a window")
    sources, targets = dataset.encode_all(1)
    assert len(sources) == 10 and all(target[0] == BYTES.sentinels[0] for target in targets)


def test_spans_then_text_to_text(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(f"line number {i} of a text" for i in range(40)))
    data = {"data.train": str(tmp_path / "a.txt"), "data.valid": str(tmp_path / "a.txt"), "tokenizer.vocab": 400}
    predictor = regard.train("spans", {**SMALL, **data}, out=tmp_path / "spans")
    assert isinstance(predictor.predict("line <extra_id_0> of a text"), str)
    checked = regard.convert(tmp_path / "spans", to="huggingface", out=tmp_path / "folder")["checked"]
    assert "32 of 32 texts equal" in checked and regard.load(tmp_path / "folder").source.sentinels
    metrics = predictor.evaluate(((str(tmp_path / "a.txt"),),))
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"])) and metrics["examples"] == 40
    files = str(pairs(tmp_path, "b.tsv", 20))
    fine = {
        "data.train": files,
        "start": str(tmp_path / "spans"),
        "train.steps": 1,
        "train.lr": 1e-12,
        "train.tensorboard": False,
        "device": "cpu",
    }
    other = regard.train("text2text", fine, out=tmp_path / "fine")
    assert other.source.sentinels == predictor.source.sentinels and len(other.source.sentinels) == 100
    for one, two in zip(other.model.state_dict().values(), predictor.model.state_dict().values(), strict=True):
        assert (one - two).abs().max() < 1e-6
