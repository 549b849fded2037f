"""The objectives of families that write all tokens at once: fine-tuning by a teacher, and R-Drop."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import small

import regard
from regard.config.losses import FertilityLoss, MaskPredictLoss
from regard.config.run import resolve_run
from regard.data.datasets.collate import pad_tokens
from regard.decode.parallel.copies import TokenCopying, limit_fertilities
from regard.errors import UserError
from regard.parts import Inputs
from regard.tasks.parallel.data import FertilityDataset
from regard.tasks.parallel.objectives import (
    FertilityObjective,
    FrozenTeacher,
    MaskPredictObjective,
    TaughtFertilityObjective,
    random_places,
)
from regard.tasks.task import prepare

TEXTS = ["the cat sleeps.", "a dog", "one two three four five six seven", "x"]
NAT = {"model.family": "nat", "decode.kind": "argmax"}
CMLM = {"model.family": "cmlm", "decode.kind": "mask-predict"}


@pytest.fixture(scope="module")
def teacher() -> Path:
    return small.translator()


@pytest.fixture(scope="module")
def taught(teacher: Path) -> Path:
    """A run with the tokenizers of the teacher."""
    own = {
        "model__family": "nat",
        "decode__kind": "argmax",
        "train__objective__teacher": str(teacher),
        "tokenizer__vocab": 100,
    }
    return small.translator(**own)


# --- fine-tuning by a teacher ----------------------------------------------------------------------------------------


def taught_objective(teacher: Path, taught: Path, weight: float) -> tuple[Any, Any]:
    teacher_run, student = regard.load(teacher), regard.load(taught)
    frozen = FrozenTeacher(teacher_run.model, teacher_run.target.start, teacher_run.target.end, student.writer.hidden)
    settings = SimpleNamespace(smoothing=0.0, glancing=0.0, teacher_weight=weight)  # a weight of 1 is no setting
    return TaughtFertilityObjective(student.model, settings, frozen), student


def job_batch(student: Any) -> Any:
    run = student.run
    dataset = FertilityDataset(
        student.data_split(run, "train"), student.source, student.target, run.data, run.train, None, 50
    )
    return dataset.batch(np.arange(6), 0)


@torch.no_grad()
def brute_force(objective: Any, student: Any, row: list[int], copies: list[int]) -> tuple[float, float]:
    """Divergence and cost of one source and its copies, token by token and word by word."""
    teacher_run, source = objective.teacher.model, Inputs("tokens", torch.tensor([row]))
    written = [student.target.start]
    divergence, cost = 0.0, 0.0
    logits = torch.zeros(0)
    if copies:
        logits = student.model.logits(
            student.model.decode(Inputs("tokens", torch.tensor([copies])), student.model.encode(source))
        )[0]
        logits[:, student.writer.hidden] = -torch.inf
    for place in [*logits.softmax(-1).tolist(), None]:
        states = teacher_run.decode(Inputs("tokens", torch.tensor([written])), teacher_run.encode(source))
        judged = teacher_run.logits(states)[0, -1].log_softmax(-1).tolist()
        if place is None:
            cost -= judged[student.target.end]
            break
        for p, q in zip(place, judged, strict=True):
            divergence += p * (np.log(p) - q) if p else 0.0
            cost -= p * q
        written.append(int(np.argmax(place)))
    return divergence, cost / (len(copies) + 1)


@torch.no_grad()
def test_divergence_and_cost_equal_a_plain_loop(teacher: Path, taught: Path) -> None:
    """Σ p log (p / p of the teacher), and the mean of -Σ p log p of the teacher with END; the second row has no copies."""
    objective, student = taught_objective(teacher, taught, 0.25)
    rows = [[*ids, student.source.end] for ids in student.source.encode(TEXTS[:2])]
    source = pad_tokens([np.array(row) for row in rows], student.source.pad)
    width = source.values.size(1)
    fertility = torch.tensor([[1, 0, 2] + [0] * (width - 3), [0] * width])
    copies = [[rows[0][0], rows[0][2], rows[0][2]], []]
    encoded, taught_states = student.model.encode(source), objective.teacher.model.encode(source)
    wanted = [brute_force(objective, student, row, own) for row, own in zip(rows, copies, strict=True)]
    found = objective.cost(source, fertility, encoded, taught_states)
    assert found.tolist() == pytest.approx([cost for _, cost in wanted], rel=1e-4)
    valid = torch.tensor([[True] * 3, [False] * 3])
    known = Inputs("tokens", torch.tensor([copies[0], [0] * 3]), valid)
    found = objective.divergence(known, encoded, taught_states)
    assert found.tolist() == pytest.approx([divergence for divergence, _ in wanted], rel=1e-4, abs=1e-6)


def test_the_loss_is_the_weighted_sum_of_its_parts(teacher: Path, taught: Path) -> None:
    """(1 - λ) · plain + λ · (divergence for the fertilities of the data + (cost - baseline) · log p)."""
    objective, student = taught_objective(teacher, taught, 0.25)
    batch, model = job_batch(student), student.model
    torch.manual_seed(1)
    found = objective(batch)
    plain = FertilityObjective(model, FertilityLoss(smoothing=0.0))(batch)
    encoded, judged = model.encode(batch["source"]), objective.teacher.model.encode(batch["source"])
    copying = TokenCopying(model.fertility_logits(encoded), encoded.valid)
    torch.manual_seed(1)
    sampled, logprobs = copying.random()
    within = [limit_fertilities(each, objective.copy_limits(batch["source"])) for each in (sampled, copying.mean())]
    costs = [objective.cost(batch["source"], each, encoded, judged) for each in within]
    own = objective.divergence(batch["copies"], encoded, judged).sum() + ((costs[0] - costs[1]) * logprobs).sum()
    assert found.sum.item() == pytest.approx((0.75 * plain.sum + 0.25 * own).item(), rel=1e-4)
    assert found.terms["fertility"].item() == pytest.approx(0.75 * plain.terms["fertility"].item(), rel=1e-4)


def test_each_term_trains_its_part(teacher: Path, taught: Path) -> None:
    """The divergence reaches the decoder, the policy gradient only fertilities and encoder; the teacher has none."""
    objective, student = taught_objective(teacher, taught, 1.0)
    batch, model = job_batch(student), student.model
    decoder, fertility = model.decoder.layers[0].cross.query.weight, model.fertility.weight
    encoded, judged = model.encode(batch["source"]), objective.teacher.model.encode(batch["source"])
    torch.manual_seed(1)
    objective.policy_loss(batch["source"], encoded, judged).backward(retain_graph=True)
    assert decoder.grad is None and fertility.grad.abs().max() > 0
    fertility.grad = None
    objective.divergence(batch["copies"], encoded, judged).sum().backward()
    assert decoder.grad.abs().max() > 0 and fertility.grad is None
    assert all(each.grad is None for each in objective.teacher.model.parameters())
    objective.train()
    assert not objective.teacher.model.training  # no dropout
    assert list(objective.state_dict()) == [f"model.{name}" for name in model.state_dict()]
    objective, student = taught_objective(teacher, taught, 0.0)
    plain = FertilityObjective(student.model, FertilityLoss(smoothing=0.0))(batch)
    assert objective(batch).sum.item() == pytest.approx(plain.sum.item(), rel=1e-4)


def test_the_cost_of_no_token_is_that_of_end(teacher: Path, taught: Path) -> None:
    """An empty translation is not free: the teacher has to find END likely."""
    objective, student = taught_objective(teacher, taught, 1.0)
    source = job_batch(student)["source"]
    teacher_run = objective.teacher.model
    with torch.no_grad():
        found = objective.cost(
            source, torch.zeros_like(source.values), student.model.encode(source), teacher_run.encode(source)
        )
        start = Inputs("tokens", torch.full((len(source), 1), student.target.start))
        ends = teacher_run.logits(teacher_run.decode(start, teacher_run.encode(source)))[:, 0].log_softmax(-1)[
            :, student.target.end
        ]
    assert found.tolist() == pytest.approx((-ends).tolist(), rel=1e-4)


def test_copies_stay_within_the_positions(teacher: Path, taught: Path) -> None:
    objective, student = taught_objective(teacher, taught, 1.0)
    batch, teacher_run = job_batch(student), objective.teacher
    source = batch["source"]
    assert objective.copy_limits(source).tolist() == (2 * source.valid.sum(1) + 16).tolist()
    objective.teacher = FrozenTeacher(teacher_run.model, teacher_run.start, teacher_run.end, teacher_run.hidden, 4)
    assert objective.copy_limits(source).max() == 3
    with torch.no_grad():
        encoded, taught_states = student.model.encode(source), teacher_run.model.encode(source)
        cut = Inputs("tokens", batch["copies"].values[:, :3], batch["copies"].valid[:, :3])
        found = [objective.divergence(each, encoded, taught_states) for each in (batch["copies"], cut)]
    assert torch.allclose(*found)


def test_the_policy_gradient_prefers_better_fertilities() -> None:
    """A model whose cost grows with the number of copies learns to make fewer."""
    logits = torch.zeros(1, 3, 4, requires_grad=True)
    optimizer = torch.optim.SGD([logits], 0.05)
    torch.manual_seed(1)
    for _ in range(200):
        copying = TokenCopying(logits, None)
        sampled, chosen = copying.random()
        cost, baseline = sampled.sum(1).float(), copying.mean().sum(1).float()
        loss = ((cost - baseline) * chosen).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert TokenCopying(logits, None).mean().sum() <= 1


# --- Mask-Predict ----------------------------------------------------------------------------------------------------


def job_of(folder: Path, family: dict[str, str], **settings: Any) -> Any:
    data = small.write_files(folder, train=40)
    sides = {"data.train": f"{data}/train.low,{data}/train.up"}
    own = {f"train.objective.{key}": value for key, value in settings.items()}
    run = resolve_run("translate", {**small.TINY, "train.steps": 1, **sides, **family, **own}).run
    return prepare(run, {}, torch.device("cpu"))


def first_batch(job: Any) -> Any:
    return next(job.steps(0, 0)).micro_batches[0]


def test_random_places() -> None:
    valid = torch.tensor([[True] * 5 + [False] * 3, [True] * 8, [False] * 8])
    found = random_places(valid, torch.tensor([[2], [8], [1]]))
    assert found.sum(1).tolist() == [2, 8, 0] and not (found & ~valid).any()


def test_rdrop_adds_the_divergence_of_two_passes(tmp_path: Path) -> None:
    job = job_of(tmp_path, CMLM, rdrop=2.0)
    assert isinstance(job.objective, MaskPredictObjective) and job.objective.rdrop == 2.0
    settings = MaskPredictLoss(smoothing=job.run.train.objective.smoothing)
    batch, plain = first_batch(job), MaskPredictObjective(job.objective.model, settings)
    job.objective.eval()  # without dropout, both passes agree
    assert job.objective(batch).sum.item() == pytest.approx(plain(batch).sum.item(), rel=1e-5)
    job.objective.train()
    for dropout in [each for each in job.objective.modules() if hasattr(each, "p")]:
        dropout.p = 0.5
    torch.manual_seed(1)
    found = job.objective(batch).sum.item()
    job.objective.rdrop = 1e-9
    torch.manual_seed(1)
    none = job.objective(batch).sum.item()
    assert found > none + 0.1
    with pytest.raises(UserError, match="train.objective.rdrop is not a key"):
        job_of(tmp_path, NAT, rdrop=1.0)
