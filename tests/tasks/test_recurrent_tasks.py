"""Recurrent and convolutional models in every task that they support: training, prediction, metrics, errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import marian, reads, small

import regard
from regard.config.family import family_of
from regard.config.run import resolve_run
from regard.data.datasets.collate import collate_pairs
from regard.decode.engine.passes import logits
from regard.errors import UserError
from regard.parts.losses import smoothed_cross_entropy
from regard.processors.text.tokenizers import TrainedTokenizer
from regard.tasks.translate import task as translate

FAMILIES = pytest.mark.parametrize("family", ["rnn", "cnn"])
TINY = {
    "model.size": "tiny", "model.width": 32, "model.heads": 2, "model.layers": 1, "model.dropout": 0.0, "tokenizer.vocab": 300,
    "train.steps": 40, "train.tokens": 500, "train.lr": 1e-2, "train.warmup": 10, "train.save_every": 20, "train.eval_every": 20,
    "train.tensorboard": False, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = small.write_files(tmp_path_factory.mktemp("files"), train=150, valid=10, test=10)
    for task, write, make in (
        ("classify", reads.write_texts, reads.labeled_examples),
        ("tag", reads.write_columns, reads.tagged_examples),
    ):
        for seed, (split, count) in enumerate({"train": 200, "valid": 20, "test": 40}.items()):
            write(folder / f"{task}.{split}.txt", make(count, seed))
    for split, lines in {"train": 300, "valid": 40, "test": 30}.items():
        text = [f"{'abcdefg'[i % 7]} is {['one', 'two', 'three'][i % 3]}" for i in range(lines)]
        (folder / f"language.{split}.txt").write_text("\n".join(text) + "\n")
    return folder


def train_run(files: Path, out: Path, task: str, family: str, **settings: Any) -> Any:
    own = {key.replace("__", "."): value for key, value in settings.items()}
    names = {split: f"{files}/{task}.{split}.txt" for split in ("train", "valid", "test")}
    if task == "translate":
        names = {split: f"{files}/{split}.low,{files}/{split}.up" for split in names}
    sides = {f"data.{split}": name for split, name in names.items()}
    return regard.train(task, {**TINY, **sides, "model.family": family, **own}, out=out)


@FAMILIES
def test_translate(files, tmp_path, family):
    predictor = train_run(
        files, tmp_path / "run", "translate", family, train__metric="chrf", decode__beam=2, model__head="tag"
    )
    metrics = predictor.evaluate()
    assert 0 < metrics["loss"] < 3.5 and metrics["examples"] == 10  # the chance level is ln 300
    run = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert run["model"]["head"] == "target" and run["model"]["family"] == family
    again = regard.load(tmp_path / "run")
    texts = marian.sentences(3, 9)
    assert again.predict(texts) == predictor.predict(texts)
    alone = [again.predict(text) for text in texts]
    assert again.predict(texts) == alone  # batch-invariant
    for record in again.predict(texts, details=True, kind="greedy"):  # no END at the limit
        means = [sum(some) / len(some) for some in (record["logprobs"], record["logprobs"][:-1]) if some]
        assert min(abs(record["score"] - mean) for mean in means) < 1e-4
        assert len(record["alignment"]["positions"]) == len(record["tokens"])
    view = again.look(texts[0], texts[0].upper())
    assert [each.site.path for each in view.maps] == ["decoder.layers.0.cross"]
    assert view.cross().shape == (len(view.target), len(view.source))
    assert (view.cross().sum(1) - 1).abs().max() < 1e-4
    view.save(tmp_path / "look.png")
    assert (tmp_path / "look.png").stat().st_size > 1000
    with pytest.raises(
        UserError, match=f"cannot become --to huggingface: model.family is {family}; expected transformer"
    ):
        regard.convert(tmp_path / "run", out=tmp_path / "hf", to="huggingface")


@FAMILIES
def test_packed_and_padded_pairs_have_equal_gradients(family):
    """Packing changes neither the loss nor the gradients."""
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 20, (24,), generator=draw).tolist()
    texts = [torch.randint(4, 97, (length,), generator=draw).tolist() for length in lengths]
    module = family_of(family)
    model = module.Model(module.Config(vocab=97, width=32, heads=2, layers=2, dropout=0.0))
    found = []
    for width in (0, 64):
        batch = collate_pairs(texts[:12], texts[12:], TrainedTokenizer, TrainedTokenizer, width)
        assert (batch["source"].segments is not None) == bool(width)
        model.zero_grad()
        labels = batch["labels"]
        loss = smoothed_cross_entropy(logits(model, batch), labels.values, labels.valid)
        loss.backward()
        found.append(torch.cat([loss.detach()[None], *(each.grad.flatten() for each in model.parameters())]))
    assert (found[0] - found[1]).abs().max() < 1e-3 * found[0].abs().max()


@FAMILIES
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_classify_and_tag(files, tmp_path, family, task):
    predictor = train_run(files, tmp_path / "run", task, family)
    metrics = predictor.evaluate()
    assert metrics["accuracy"] > max(0.85, metrics["majority"])
    again = regard.load(tmp_path / "run")
    text = "so the cat a happy day" if task == "classify" else "the cat sees some house"
    assert again.predict([text, "a day"]) == [predictor.predict(text), predictor.predict("a day")]
    assert again.run.model.head == {"classify": "class", "tag": "tag"}[task] and again.run.model.labels > 1
    with pytest.raises(UserError, match="this model has no attention, so there is nothing to look at"):
        again.look(text)
    assert again.embed([text]).shape == (1, 32)


@FAMILIES
def test_language(files, tmp_path, family):
    own = {
        "data__max_tokens": 32,
        "data__document": "file",
        "data__cache": str(tmp_path / "cache"),
        "tokenizer__kind": "char",
    }
    predictor = train_run(files, tmp_path / "run", "language", family, **own)
    metrics = predictor.evaluate()
    assert metrics["loss"] < 1.5
    assert metrics["policy"] == {"rnn": "state, segments of 32", "cnn": "non-overlapping 32"}[family]
    again, prompts = (
        regard.load(tmp_path / "run", decode={"max_tokens": 12, "add_start": False}),
        ["a is", "b is two\nc"],
    )
    for how in ({"kind": "beam", "beam": 3, "nbest": 2}, {"kind": "greedy"}, {"kind": "sample", "seed": 3}):
        assert again.predict(prompts, **how) == [again.predict(each, **how) for each in prompts]
    for each in again.predict(prompts, kind="greedy", details=True):
        assert each["logprob"] == pytest.approx(each["score"] * len(each["logprobs"]), abs=1e-3)


def test_carried_state_is_resumed(files, tmp_path):
    """A resumed training continues with the state of its rows and has the weights of an uninterrupted one."""
    own = {
        "data__max_tokens": 16,
        "data__cache": str(tmp_path / "cache"),
        "train__save_every": 3,
        "train__accumulate": 2,
    }
    whole = train_run(files, tmp_path / "whole", "language", "rnn", train__steps=6, **own)
    train_run(files, tmp_path / "parts", "language", "rnn", train__steps=3, **own)
    names = {f"data.{split}": f"{files}/language.{split}.txt" for split in ("train", "valid", "test")}
    flat = {key.replace("__", "."): value for key, value in own.items()}
    parts = regard.train(
        "language", {**TINY, **names, **flat, "model.family": "rnn", "train.steps": 6}, out=tmp_path / "parts", resume=True
    )  # fmt: skip
    assert all(
        a.equal(b) for a, b in zip(whole.model.state_dict().values(), parts.model.state_dict().values(), strict=True)
    )


def test_without_carried_state(files, tmp_path):
    own = {"data__max_tokens": 32, "data__cache": str(tmp_path / "cache"), "train__steps": 2}
    predictor = train_run(files, tmp_path / "run", "language", "rnn", model__carry_state=False, **own)
    assert predictor.model.new_memory(2) is None and predictor.evaluate()["policy"] == "non-overlapping 32"


def test_bf16_training(files, tmp_path):
    own = {
        "data__max_tokens": 16,
        "data__cache": str(tmp_path / "cache"),
        "train__precision": "bf16",
        "train__steps": 4,
    }
    carried = train_run(files, tmp_path / "carried", "language", "rnn", **own)
    assert carried.evaluate()["loss"] < 5
    for family in ("rnn", "cnn"):
        predictor = train_run(files, tmp_path / family, "translate", family, train__precision="bf16", train__steps=10)
        assert predictor.evaluate()["loss"] < 5.7
        other = regard.load(tmp_path / family, precision="bf16")
        assert other.score("a cat", "A CAT") == pytest.approx(predictor.score("a cat", "A CAT"), rel=0.05)


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("family", ["cnn", "transformer"])
def test_pairs_longer_than_the_positions(tmp_path, family, packed):
    """Training leaves them out and reports it, requests are refused, and outputs end at the last position."""
    for name, texts in {"train": ["a b c"] * 40 + ["a b c d " * 9], "valid": ["a b"], "long": ["d c b a " * 9]}.items():
        for side in ("low", "up"):
            lines = "\n".join(text.upper() if side == "up" else text for text in texts)
            (tmp_path / f"{name}.{side}").write_text(lines + "\n")
    names = {split: f"{tmp_path}/{split}.low,{tmp_path}/{split}.up" for split in ("train", "valid", "long")}
    places = {"model.positions.kind": "learned", "model.positions.tokens": 14, "data.packed": packed}
    own = {**TINY, **places, "model.family": family, "train.steps": 4, "tokenizer.kind": "char"}
    predictor = regard.train(
        "translate", {**own, "data.train": names["train"], "data.valid": names["valid"]}, out=tmp_path / "run"
    )
    left = "1 of 41 examples left out because they have a side of more than 14 tokens (model.positions.tokens)"
    assert any(left in fact for fact in facts_of(names["train"], own))
    long = "a b c d " * 9
    for ask in (
        lambda: predictor.predict(["a", long]),
        lambda: predictor.score("a", long),
        lambda: predictor.look("a", long),
        lambda: predictor.predict("a", prefix=long),
    ):
        with pytest.raises(
            UserError,
            match=r"(a text|decode.prefix.*) has \d+ tokens with END and the model has 14 positions; shorten",
        ):
            ask()
    for how in ({"kind": "greedy"}, {"kind": "beam", "beam": 3}, {"kind": "greedy", "prefix": "A B"}):
        record = predictor.predict("a b c a b", details=True, max_tokens=50, **how)
        assert len(record["tokens"]) <= 14
    with pytest.raises(UserError, match=r"a text of data.valid has \d+ tokens with END and the model has 14 positions"):
        regard.train(
            "translate", {**own, "data.train": names["train"], "data.valid": names["long"]}, out=tmp_path / "x"
        )
    with pytest.raises(UserError, match="have a side of more than 14 tokens; raise model.positions.tokens"):
        regard.train("translate", {**own, "data.train": names["long"]}, out=tmp_path / "y")
    assert not (tmp_path / "x").exists() and not (tmp_path / "y").exists()


def facts_of(train: str, own: dict[str, Any]) -> list[str]:
    """The data facts of an objective after an epoch."""
    objective = translate.prepare(resolve_run("translate", {**own, "data.train": train}).run, {}, torch.device("cpu"))
    list(objective.steps(0, 0))
    return objective.describe_data()


WRONG = {
    "an unknown cell": ({"model.family": "rnn", "model.cell": "ltsm"}, 'model.cell is "ltsm"; expected one of lstm, gru, rnn; did you mean lstm?'),
    "no middle": ({"model.family": "cnn", "model.kernel_size": 4}, "model.kernel_size is 4; expected an odd number, so that both sides have as many neighbors"),
    "no neighbors": ({"model.family": "cnn", "model.kernel_size": 0}, "model.kernel_size is 0; expected at least 1"),
    "an odd width": ({"model.family": "rnn", "model.width": 33, "model.heads": 3}, "width 33 cannot be halved between two directions; use 32 or 34 (model.width)"),
    "uneven heads": ({"model.family": "rnn", "model.width": 34, "model.heads": 4}, "width 34 does not divide into 4 heads; use 32 or 36 (model.width)"),
    "odd places": ({"model.family": "cnn", "model.width": 33, "model.heads": 3}, "sinusoidal positions need an even width, not 33; use 34 (model.width)"),
    "another's setting": ({"model.family": "rnn", "model.kernel_size": 3}, "model.kernel_size is not a key"),
    "another size": ({"model.family": "cnn", "model.size": "big"}, 'model.size is "big"; expected one of tiny, small, base'),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_invalid_settings(case):
    settings, sentence = WRONG[case]
    with pytest.raises(UserError) as error:
        resolve_run("translate", settings)
    assert sentence in str(error.value)


def test_unsupported_tasks_are_refused():
    for family in ("rnn", "cnn"):
        with pytest.raises(
            UserError, match=f"model.family={family} cannot be used for the task masked; expected one of bert"
        ):
            regard.build("masked", {"model.family": family})
        assert {"encode", "start"} <= set(dir(regard.build("text2text", {"model.family": family})))
    with pytest.raises(UserError, match=r"cannot be used for the task language; expected one of .*rnn, cnn"):
        regard.build("language", {"model.family": "bert"})
