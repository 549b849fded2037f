"""Laws of families that write all tokens at once: what their encoders predict, and which positions a decoder reads."""

import pytest
import torch
from helpers.families import CASES, Case, case_subject

from regard.look import record_attention
from regard.parts import Inputs, Mask
from regard.testing import check_family

PARALLEL = [case for case in CASES if case[0] in ("nat", "nat-ctc", "cmlm")]
PREDICTING = [case for case in PARALLEL if case[0] != "nat-ctc"]  # a length or fertilities


@pytest.mark.parametrize("name", ["nat", "nat-ctc", "cmlm"])
def test_check_family(name: str) -> None:
    laws = check_family(name)
    assert len(laws) == 7 and any("batch_invariance" in law for law in laws)


@pytest.mark.parametrize("case", PREDICTING, ids=" ".join)
@torch.no_grad()
def test_padding_changes_no_fertility_and_no_length(case: Case) -> None:
    subject = case_subject(case)
    model, examples = subject.module, subject.sample(9, 4)
    by_token = getattr(subject.config, "fertilities", False)
    predict = model.fertility_logits if by_token else model.length_logits
    classes = subject.config.max_fertility if by_token else subject.config.max_length
    together = predict(model.encode(subject.probe.batch(examples, fill=7)))
    assert together.size(-1) == classes + 1
    for row, example in enumerate(examples):
        alone = predict(model.encode(subject.probe.batch([example])))[0]
        own = together[row, : len(example)] if by_token else together[row]
        assert own.shape == alone.shape and (own - alone).abs().max() < 1e-4


@pytest.mark.parametrize("case", PARALLEL, ids=" ".join)
@torch.no_grad()
def test_decoders_read_in_both_directions(case: Case) -> None:
    """NAT's self-attention excludes its own position, that of Mask-Predict does not."""
    subject = case_subject(case)
    inputs = subject.probe.batch(subject.sample(7, 7))
    with record_attention(subject.module) as maps:
        subject.read(inputs)
    own = [weights for path, weights in maps.items() if path.startswith("decoder.") and path.endswith(".attention")]
    order = [weights for path, weights in maps.items() if path.endswith(".order")]
    assert len(order) == (len(own) if case[0] != "cmlm" and subject.config.positional else 0)
    for weights in own:
        diagonal = weights.diagonal(dim1=-2, dim2=-1)
        assert (diagonal.abs().max() == 0) == (case[0] != "cmlm")
        assert weights.triu(1).max() > 0 and weights.tril(-1).max() > 0
    for weights in order:
        assert weights.diagonal(dim1=-2, dim2=-1).min() > 0
        assert weights[0].equal(weights[1])  # it depends on positions alone


@torch.no_grad()
def test_no_value_reaches_its_own_position() -> None:
    subject = case_subject(("nat", "paper"))
    attention, x, values = subject.module.decoder.layers[0].attention, torch.randn(1, 6, 128), torch.randn(1, 6, 128)
    other = values.clone()
    other[0, 2] += 1
    change = attention(x, x, values, Mask(exclude_self=True)) - attention(x, x, other, Mask(exclude_self=True))
    assert change[0, 2].abs().max() == 0 and change[0, 3].abs().max() > 0


@torch.no_grad()
def test_one_copy_attends_to_nothing_else() -> None:
    """A decoder of one token has no other position to attend to: the output is finite."""
    subject = case_subject(("nat", "paper"))
    source = subject.probe.batch(subject.sample(5))
    states = subject.module.decode(Inputs("tokens", torch.tensor([[7]])), subject.module.encode(source))
    assert states.shape[:2] == (1, 1) and states.isfinite().all()
