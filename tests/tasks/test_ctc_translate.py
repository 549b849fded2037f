"""Translation by CTC: all tokens at once, with blanks in place of some copies of the source."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import small

import regard
from regard.config.run import resolve_run
from regard.decode.parallel import decoding as parallel
from regard.errors import UserError
from regard.parts.parallel.ctc import LOG_FLOOR
from regard.tasks.nat.ctc import CtcScore, path_logits
from regard.tasks.task import prepare

TEXTS = ["the cat sleeps.", "a dog", "one two three four five six seven", "x"]
CTC = {"model__family": "nat-ctc", "decode__kind": "argmax"}
QUICK = {"train__lr": 8e-3, "train__tokens": 500}


@pytest.fixture(scope="module")
def run() -> Path:
    return small.translator(90, 400, **CTC, **QUICK)


@pytest.fixture(scope="module")
def predictor(run: Path) -> Any:
    return regard.load(run)


def job_of(folder: Path, **settings: Any) -> Any:
    data = small.write_files(folder, train=40)
    own = {key.replace("__", "."): value for key, value in {**CTC, **settings}.items()}
    files = {"data.train": f"{data}/train.low,{data}/train.up", "train.steps": 1}
    return prepare(resolve_run("translate", {**small.TINY, **files, **own}).run, {}, torch.device("cpu"))


# --- data and loss ---------------------------------------------------------------------------------------------------


def test_batches_have_equally_many_copies_of_every_token(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    (batch, *_) = next(job.steps(0, 0)).micro_batches
    source, copies, target = batch["source"], batch["copies"], batch["target"]
    for row in range(len(source)):
        tokens = source.values[row][source.valid[row]].tolist()
        found = copies.values[row][copies.valid[row]].tolist()
        assert found == [token for token in tokens[:-1] for _ in range(3)]  # END is not copied
    assert batch.count == int(target.valid.sum())


def test_targets_that_do_not_fit_are_cut_and_reported(tmp_path: Path) -> None:
    """A source token has two copies. Equal neighbors of the target need a blank between them."""
    (tmp_path / "a").write_text("x\nx\nx x x x\n")
    (tmp_path / "b").write_text("x x\nx y\nx y x y\n")
    files = {"data.train": f"{tmp_path}/a,{tmp_path}/b", "tokenizer.kind": "space", "train.steps": 1}
    settings = {**small.TINY, **files, "model.family": "nat-ctc", "model.upsample": 2, "decode.kind": "argmax"}
    job = prepare(resolve_run("translate", settings).run, {}, torch.device("cpu"))
    dataset = job.make_dataset()
    lengths = [len(target) for _, target in dataset.encode([0, 1, 2])]
    assert lengths == [1, 2, 4] and dataset.shortened == {0}
    assert dataset.describe_shortened().endswith("and were cut (model.upsample)")


def test_loss_of_a_batch_is_the_sum_of_its_rows(tmp_path: Path) -> None:
    job = job_of(tmp_path, model__dropout=0.0)
    dataset = job.make_dataset()
    objective = job.objective.eval()
    together = objective(dataset.batch(np.arange(5), 0)).sum
    alone = [objective(dataset.batch(np.array([i]), 0)).sum for i in range(5)]
    assert torch.allclose(together, torch.stack(alone).sum(), rtol=1e-4)


@torch.no_grad()
def test_scores_sum_over_all_paths(predictor: Any) -> None:
    """Of two source tokens with three copies each: all paths of six places over few tokens."""
    source, target = [5, 6], [7, 8]
    job = CtcScore(
        predictor.modality.collate([np.array([*source, predictor.source.end])]), (predictor.target.start,), ()
    )
    logits, filled, _ = path_logits([job], predictor.engine.context)
    assert filled.sum() == 6 and not filled[0, 6:].any()
    logits = logits[0, :6].double()
    logits[:, [predictor.target.start, predictor.target.end]] = -torch.inf
    logprobs, pad = logits.log_softmax(-1), predictor.target.pad
    paths = itertools.product((pad, 7, 8), repeat=6)
    wanted = [
        sum(logprobs[i, token] for i, token in enumerate(p)) for p in paths if parallel.collapse_path(p, pad) == target
    ]
    (found,) = predictor.logprobs([source], [target])
    assert sum(found) == pytest.approx(torch.stack(wanted).logsumexp(0).item(), abs=1e-4)  # type: ignore[arg-type]
    assert len(found) == 3 and all(each <= 0 for each in found)


# --- decoding --------------------------------------------------------------------------------------------------------


def test_a_path_spells_its_text() -> None:
    assert parallel.collapse_path([0, 5, 5, 0, 5, 6, 6, 0], 0) == [5, 5, 6]
    values, valid = torch.tensor([[5, 6, 2], [7, 2, 0]]), torch.tensor([[True] * 3, [True, True, False]])
    copies, filled = parallel.upsample(values, valid, 2)
    assert [row[keep].tolist() for row, keep in zip(copies, filled, strict=True)] == [[5, 5, 6, 6], [7, 7]]


def test_a_limit_cuts_the_text(predictor: Any) -> None:
    tokens = predictor.target.encode([predictor.predict(TEXTS[2])])[0]
    assert len(tokens) > 2
    assert predictor.predict(TEXTS[2], max_tokens=2) == predictor.target.decode([tokens[:2]])[0]


def test_a_run_learns_to_write_capitals(run: Path) -> None:
    before = regard.load(small.translator(20, **CTC, **QUICK)).evaluate()
    found = regard.load(run).evaluate()
    assert found["loss"] < 0.3 * before["loss"] and found["bleu"] > 40


def test_details_align_tokens(predictor: Any) -> None:
    (found,) = predictor.predict(TEXTS[:1], details=True)
    assert len(found["tokens"]) == len(found["alignment"]["positions"]) == len(found["logprobs"]) - 1 > 0
    assert found["logprob"] <= sum(found["logprobs"]) + 1e-4  # one path beside all
    assert max(found["alignment"]["positions"]) < len(found["alignment"]["source"]) + 1


def test_attention_is_that_of_the_copies(predictor: Any) -> None:
    view = predictor.look(TEXTS[1])
    pieces = predictor.source.tokens(predictor.source.encode([TEXTS[1]])[0])
    assert view.target == [piece for piece in pieces for _ in range(3)] and view.logprobs == ()
    assert set(view.kinds) == {"encoder", "decoder", "cross", "order"}


def test_a_target_that_no_path_spells(predictor: Any) -> None:
    long = "A VERY LONG TEXT " * 9
    assert predictor.score("x", long) < LOG_FLOOR
    with pytest.raises(UserError, match="a target does not fit its source: .* need at least .* \\(model.upsample\\)"):
        predictor.align(["x"], [long])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decode.kind": "npd"}, 'decode.strategy.kind is "npd"; expected one of argmax'),
        ({"decode.min_tokens": 3}, "decode.min_tokens is not a key"),
    ],
)
def test_strategies_that_it_does_not_have(settings: dict[str, Any], message: str, run: Path) -> None:
    with pytest.raises(UserError, match=message):
        regard.load(run, settings).predict("a dog")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"train__objective__glancing": 0.5},
            "train.objective.glancing is not a key",
        ),
        ({"data__packed": True}, "data.packed is true, but model.family=nat-ctc trains on padded rows"),
    ],
)
def test_settings_that_it_does_not_use(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        job_of(tmp_path, **settings)
