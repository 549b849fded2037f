"""Matching data: properties of the texts, and which attention kinds learn them."""

import json

import numpy as np
import pytest
import torch
from helpers.inputs import inputs
from helpers.runs import tiny_run
from torch.nn import functional as F

import regard
from benchmarks import matching as bench
from regard.config.run import resolve_run
from regard.errors import UserError
from regard.synthetic import matching
from regard.synthetic.matching import CLOSING, KINDS, LABELS, OPENING, WORDS, MatchingSource, make_matching
from regard.tasks.classify import task as classify


@pytest.mark.parametrize("words", [32, 126, 1001])
def test_a_text_has_two_marks_at_its_ends(words: int) -> None:
    for part, made in make_matching(words, 40, seed=1).items():
        for index in range(40):
            text, label = made[index]
            said = np.array(text.split(" "))
            opening, closing = (np.isin(said, kinds).nonzero()[0] for kinds in (OPENING, CLOSING))
            assert len(said) == words and label == LABELS[index % 2], part
            for places in (opening, closing):
                assert len(places) == words // 8 == np.ptp(places) + 1 and len(set(said[places])) == 1
            assert opening[-1] < words // 4 and closing[0] >= words - words // 4
            assert closing[0] - opening[-1] > words // 2 - 2
            same = OPENING.index(said[opening[0]]) == CLOSING.index(said[closing[0]])
            assert same == (label == "equal")


def test_word_counts_do_not_predict_the_label() -> None:
    """Logistic regression on word counts is at chance; on pairs of marks it is right."""

    def counted(some: MatchingSource) -> tuple[torch.Tensor, torch.Tensor]:
        rows = np.stack([np.bincount(some.row(i), minlength=len(WORDS)) for i in range(len(some))])
        return torch.from_numpy(rows).float() / 8, torch.arange(len(some)) % 2

    def accuracy(features: torch.Tensor, labels: torch.Tensor, new: torch.Tensor, right: torch.Tensor) -> float:
        model = torch.nn.Linear(features.size(1), 2)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        for _ in range(150):
            optimizer.zero_grad()
            F.cross_entropy(model(features), labels).backward()
            optimizer.step()
        return float((model(new).argmax(1) == right).float().mean())

    (x, y), (new, right) = (counted(MatchingSource(part, 126, 4000, 1)) for part in ("train", "test"))
    assert abs(accuracy(x, y, new, right) - 0.5) < 0.05
    pairs = lambda some: (some[:, :KINDS, None] * some[:, None, KINDS : 2 * KINDS]).flatten(1)  # noqa: E731
    assert accuracy(pairs(x), y, pairs(new), right) > 0.99
    for label in (0, 1):  # every kind is equally frequent with either label
        often = (x[y == label, : 2 * KINDS] > 0).float().mean(0)
        assert (often - 1 / KINDS).abs().max() < 0.03


def test_splits_and_seeds() -> None:
    one, other = make_matching(126, 30, seed=1), make_matching(126, 30, seed=2)
    assert one["train"][3] == one["train"][3] != one["train"][5] and one["train"][4] != one["valid"][4]
    assert one["train"][3] != other["train"][3] and one["valid"][3] == other["valid"][3]
    assert one["train"].fingerprint() == make_matching(126, 30, seed=1)["train"].fingerprint()
    prints = {each.fingerprint() for each in (*one.values(), other["train"], make_matching(126, 31, 1)["train"])}
    assert len(prints) == 5 and len(one["test"]) == 1000
    assert one["train"].location(4) == "embedded train marks, example 5"
    assert set(" ".join(MatchingSource("train", 126, 20000, 1).texts(0)).split(" ")) == set(WORDS)
    with pytest.raises(UserError, match="data.max_tokens=33 leaves 31 words for the marks; use at least 34"):
        make_matching(31, 30, seed=1)


FEW = {
    "data.max_tokens": 96, "data.examples": 4000, "model.width": 96, "model.heads": 4, "model.inner": 192, "train.batch": 48,
    "train.steps": 8, "train.eval_every": 4, "train.warmup": 2, "train.tensorboard": False, "device": "cpu",
}  # fmt: skip


@pytest.fixture
def few_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "HELD_OUT", 60)


@pytest.mark.usefixtures("few_held_out")
@pytest.mark.parametrize("kind", ["window", "blocks", "favor", "lowrank"])
def test_every_kind_of_attention_classifies(kind: str) -> None:
    """Train, load, predict: labels of new texts do not depend on the batch."""
    few = {
        "lowrank": {"model.attention.tokens": 96},
        "blocks": {"model.attention.size": 4},
    }  # with larger blocks, a text is one block
    own = {"model.attention.kind": kind, **few.get(kind, {}), "data.examples": 400, "train.batch": 8, "train.steps": 2}
    system = regard.load(tiny_run("matching", patches={"regard.synthetic.matching.HELD_OUT": 60}, **FEW | own))
    assert kind != "blocks" or system.model.encoder.layers[0].attention.kernel.dense_limit < 96
    texts = [text for text, _ in MatchingSource("test", 94, 6, 1)]
    together, alone = system.predict(texts, details=True), [system.predict(text, details=True) for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one["label"] == other["label"] and one["probability"] == pytest.approx(other["probability"], abs=1e-5)
    assert len(system.tokenizer.encode(texts[:1])[0]) == 94


def test_texts_too_long_for_lowrank_are_truncated(tmp_path) -> None:
    run = resolve_run("matching", {**FEW, "model.attention.kind": "lowrank", "model.attention.tokens": 60}).run
    objective = classify.prepare(run, {}, torch.device("cpu"))
    assert objective.model.context == 60
    next(iter(objective.steps(0, 0)))
    assert any("texts have more than 58 tokens and were cut there" in fact for fact in objective.describe_data())
    with pytest.raises(ValueError, match="a text of 61 tokens is longer than the 60 positions of lowrank attention"):
        objective.model.encode(inputs(torch.zeros(1, 61, dtype=torch.long)))


def test_benchmark_trains_each_kind(capsys) -> None:
    few = [f"{key}={value}" for key, value in FEW.items() if key not in ("data.max_tokens", "train.tensorboard")]
    shorter = ["train.steps=1", "train.batch=2", "data.examples=100", "decode.batch=64", "model.width=32"]
    only = [bench.CONTROL, "globals", "lowrank"]
    assert bench.main([*(f"--only={way}" for way in only), "--tokens", "34", "--json", *few, *shorter]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["way"] for each in told["ways"]] == only and told["tokens"] == 34
    assert all(0.3 < each["accuracy"] < 0.7 and each["examples"] == 1000 for each in told["ways"])
    seen = {way: bench.variant_settings(way, 4096, {}) for way in bench.VARIANTS}
    assert seen["window"]["model.attention.radius"] == 64 and seen["lowrank"]["model.attention.tokens"] == 4096


def test_benchmark_trains_short_texts_first(capsys, monkeypatch) -> None:
    seen = []

    def fit(objective, folder, **others):
        model = objective.model
        weights = [{name: each.clone() for name, each in model.state_dict().items()}]
        outcome = bench_fit(objective, folder, **others)
        weights.append({name: each.clone() for name, each in model.state_dict().items()})
        seen.append((objective.run.data.max_tokens, objective.predictor.tokenizer.backend.to_str(), *weights))
        return outcome

    bench_fit = bench.run_loop
    monkeypatch.setattr(bench, "run_loop", fit)
    few = ["model.width=32", "model.heads=4", "model.inner=64", "train.steps=2", "train.batch=8", "data.examples=100"]
    assert bench.main(["--only=lowrank", "--tokens=68", "--short=34", "device=cpu", *few]) == 0
    assert "68 tokens after 34, 1,000 texts" in capsys.readouterr().out
    (short, words, first, learned), (long, same, begun, _) = seen
    assert (short, long) == (34, 68) and words == same
    assert all(begun[name].equal(learned[name]) for name in learned) and not all(
        first[name].equal(learned[name]) for name in learned
    )


@pytest.mark.parametrize("wrong", [["--tokens", "20"], ["train.stepz=3"], ["foo"]])
def test_benchmark_errors(wrong: list[str], capsys) -> None:
    assert bench.main(["--only=window", *wrong]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("regard: ")


@pytest.mark.learn
@pytest.mark.parametrize("way", ["window", "globals", "favor", "lowrank"])
def test_matching_is_learned(way: str, tmp_path) -> None:
    """Texts of 96 tokens: kinds that span the whole text learn the task, two layers of a window do not."""
    own = {key: value for key, value in FEW.items() if key != "data.max_tokens"}
    found = bench.train(
        way, 96, tmp_path / "run",
        {**own, "data.examples": 20000, "train.steps": 400, "train.warmup": 50, "train.eval_every": 400},
    )  # fmt: skip
    print(f"{way} {found['seconds']:.0f} s, accuracy {found['accuracy']:.3f}")
    assert found["accuracy"] >= 0.9 if way != "window" else 0.4 < found["accuracy"] < 0.6
