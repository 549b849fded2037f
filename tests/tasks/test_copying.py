"""Families that copy the source: only a length is predicted, glancing training, weights of a teacher."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import small

import regard
from regard.alignment.fertility import fertilities
from regard.config.run import resolve_run
from regard.decode.parallel.copies import EvenCopying
from regard.errors import UserError
from regard.parts.parallel.fertility import even_fertilities
from regard.parts.parallel.length import LengthHead
from regard.tasks.parallel.objectives import FertilityObjective
from regard.tasks.task import prepare

TEXTS = ["the cat sleeps.", "a dog", "one two three four five six seven", "x"]
NAT = {"model__family": "nat", "decode__kind": "argmax"}


@pytest.fixture(scope="module")
def teacher() -> Path:
    return small.translator()


@pytest.fixture(scope="module")
def even() -> Path:
    own = {**NAT, "model__fertilities": False, "model__max_length": 40, "train__objective__glancing": 0.5}
    return small.translator(**own)


def job_of(folder: Path, **settings: Any) -> Any:
    data = small.write_files(folder, train=40)
    sides = {"data.train": f"{data}/train.low,{data}/train.up"}
    own = {key.replace("__", "."): value for key, value in {**NAT, **settings}.items()}
    run = resolve_run("translate", {**small.TINY, "train.steps": 1, **sides, **own}).run
    return prepare(run, {}, torch.device("cpu"))


# --- lengths ---------------------------------------------------------------------------------------------------------


def test_even_fertilities_follow_the_diagonal() -> None:
    rng = np.random.default_rng(1)
    sizes, lengths = torch.from_numpy(rng.integers(1, 9, 60)), torch.from_numpy(rng.integers(0, 25, 60))
    found = even_fertilities(lengths, sizes, 10)
    for row, size, length in zip(found, sizes.tolist(), lengths.tolist(), strict=True):
        wanted = np.bincount(np.arange(length) * size // max(length, 1), minlength=10)  # copy j reads token ⌊j n / m⌋
        assert row.tolist() == wanted.tolist()
        assert row[:size].tolist() == fertilities(np.full(length, -1), size, 99).tolist()


def test_lengths_are_also_predicted_as_differences() -> None:
    """What is likely for one source length is likely for another, shifted by the difference."""
    head = LengthHead(4, 9)
    head.length.weight.data.zero_()
    head.length.bias.data.zero_()
    states, valid = torch.ones(2, 5, 4), torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    short, long = head(states, valid)
    assert short.shape == (10,) and torch.equal(short[:8], long[2:])
    assert torch.equal(head(states[:1], None)[0], long)
    assert torch.equal(head(torch.ones(1, 30, 4), None)[0], head(torch.ones(1, 40, 4), None)[0])  # beyond the longest


def test_even_copying_has_a_beam_of_lengths() -> None:
    logits = torch.tensor([[0.0, 0.1, 5.0, 4.0, 6.0]])
    copying = EvenCopying(logits, torch.tensor([2]), 3)
    assert copying.likeliest().tolist() == [[2, 2, 0]]
    assert copying.several(torch.zeros(1, 6, dtype=torch.long))[0].sum(1).tolist() == [4, 2, 3, 1, 4, 4]
    spread, logprob = copying.of_length(torch.tensor([3]))
    assert spread.tolist() == [[2, 1, 0]] and logprob.item() == pytest.approx(logits.log_softmax(-1)[0, 3].item())
    assert copying.mean().sum() == round(float((logits.softmax(-1) * torch.arange(5)).sum()))
    drawn, chosen = copying.random()
    assert chosen.item() == pytest.approx(logits.log_softmax(-1)[0, int(drawn.sum())].item())


def test_models_without_fertilities_decode(even: Path, teacher: Path) -> None:
    predictor = regard.load(even)
    assert not any("fertility" in name for name in predictor.model.state_dict())
    for decode in ({}, {"kind": "average"}, {"kind": "npd", "samples": 50, "teacher": str(teacher)}):
        together = predictor.predict(TEXTS, **decode)
        assert together == [predictor.predict(text, **decode) for text in TEXTS] and any(together)
    assert predictor.score(TEXTS[0], "THE CAT") < 0
    assert predictor.evaluate()["loss"] > 0


def test_batches_without_fertilities(tmp_path: Path) -> None:
    job = job_of(tmp_path, model__fertilities=False)
    (batch, *_) = next(job.steps(0, 0)).micro_batches
    assert batch.counts == {"length": len(batch["source"])}
    assert batch.count == int(batch["copies"].valid.sum()) == len(batch["labels"].values)
    assert set(job.objective(batch).terms) == {"length"}
    short = job_of(tmp_path / "short", model__fertilities=False, model__max_length=25)
    assert all(batch["copies"].values.size(1) <= 25 for step in short.steps(0, 0) for batch in step.micro_batches)


def test_a_pair_without_source_has_no_target(tmp_path: Path) -> None:
    job = job_of(tmp_path, model__fertilities=False)
    own = job.make_dataset()
    own.examples = [("", "A B"), ("a b", "")]
    empty, silent = own.encode([0, 1])
    assert [len(each) for each in empty] == [1, 0, 1] and len(silent[1]) == 0
    assert own.collate([empty, silent]).count == 0


def test_a_distilled_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    data = small.write_files(tmp_path, train=40)
    whole = (data / "train.up").read_bytes()
    (data / "cut.up").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="the sides of the data differ in length"):
        job_of(tmp_path, data__train=f"{data}/train.low,{data}/cut.up")


# --- glancing --------------------------------------------------------------------------------------------------------


def test_glancing_shows_a_share_of_the_wrong_tokens(tmp_path: Path) -> None:
    job = job_of(tmp_path, train__objective__glancing=0.5)
    objective = job.objective
    assert isinstance(objective, FertilityObjective) and objective.glancing == 0.5
    model = objective.model.eval()
    (batch, *_) = next(job.steps(0, 0)).micro_batches
    copies, labels, encoded = batch["copies"], batch["labels"], model.encode(batch["source"])
    torch.manual_seed(1)
    shown = objective.glance(copies, encoded, labels)
    right = torch.full(copies.values.shape, -1).flatten()
    right[labels.positions] = labels.values
    right = right.view_as(copies.values)
    assert torch.equal(shown[shown >= 0], right[shown >= 0])
    guessed = model.logits(model.decode(copies, encoded)).argmax(-1)
    wrong = ((guessed != right) & copies.valid).sum(1)
    assert (shown >= 0).sum(1).tolist() == [int(count * 0.5 + 0.5) for count in wrong.tolist()]
    assert not torch.equal(shown, objective.glance(copies, encoded, labels))  # drawn at random


def test_shown_tokens_are_read_and_not_learned(tmp_path: Path) -> None:
    """The loss is that of the other tokens, with the embeddings of the shown ones as inputs of the decoder."""
    job = job_of(tmp_path, train__objective__glancing=0.9, tokenizer__joint=False)
    objective, model = job.objective, job.objective.model.eval()
    (batch, *_) = next(job.steps(0, 0)).micro_batches
    copies, labels, encoded = batch["copies"], batch["labels"], model.encode(batch["source"])
    torch.manual_seed(3)
    found = objective(batch)
    torch.manual_seed(3)
    shown = objective.glance(copies, encoded, labels)
    x = model.source(copies.values)
    x[shown >= 0] = model.target(shown[shown >= 0])
    x = model.decoder.add_positions(x * model.scale, None)
    states = model.decoder(x, copies.mask().replace(exclude_self=True), encoded.cross(copies)).flatten(0, 1)
    learned = shown.flatten()[labels.positions] < 0
    logits = model.logits(states[labels.positions])[learned]
    wanted = torch.nn.functional.cross_entropy(
        logits, labels.values[learned], reduction="sum", label_smoothing=job.run.train.objective.smoothing
    )
    assert 0 < learned.sum() < len(learned) and found.sum.item() == pytest.approx(wanted.item(), rel=1e-4)


def test_glancing_under_autocast_trains_all_weights(tmp_path: Path) -> None:
    job = job_of(tmp_path, train__objective__glancing=0.5)
    (batch, *_) = next(job.steps(0, 0)).micro_batches
    with torch.autocast("cpu", torch.bfloat16):
        found = job.objective(batch)
    (found.sum + sum(found.terms.values())).backward()
    assert all(each.grad is not None and each.grad.abs().max() > 0 for each in job.objective.parameters())


# --- weights of a teacher --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [NAT, {"model__family": "cmlm", "decode__kind": "mask-predict"}], ids=str)
def test_runs_begin_with_weights_of_their_teacher(family: dict[str, str], teacher: Path, tmp_path: Path) -> None:
    job = job_of(tmp_path, **family, train__objective__teacher=str(teacher), train__objective__teacher_init=True)
    own, theirs = job.predictor.model.state_dict(), regard.load(teacher).model.state_dict()
    equal = [name for name in theirs if own[name].equal(theirs[name])]
    assert len(equal) == len(theirs)  # the same wiring, but for the heads of lengths and positional attention
    assert (
        f"{len(own.keys() & theirs.keys())} of {len(own)} weights begin with those of {teacher}" in job.describe_data()
    )


def test_mistakes(teacher: Path, even: Path, tmp_path: Path) -> None:
    for settings, words in [
        ({"train__objective__teacher_init": True}, "train.objective.teacher_init is true, but no run teaches"),
        (
            {"model__family": "transformer", "decode__kind": "beam", "train__objective__glancing": 0.5},
            "train.objective.glancing is not a key",
        ),
    ]:
        with pytest.raises(UserError) as error:
            job_of(tmp_path, **settings)
        assert words in str(error.value)
    settings = {key: value for key, value in small.TINY.items() if not key.startswith(("model.", "tokenizer."))}
    own = {
        "start": str(even),
        "model.family": "nat",
        "train.objective.teacher": str(teacher),
        "train.objective.teacher_init": True,
    }
    with pytest.raises(UserError, match="but the weights are those of start="):
        regard.train("translate", {**settings, **own, "train.steps": 1, "decode.kind": "argmax"}, out=tmp_path / "r")
