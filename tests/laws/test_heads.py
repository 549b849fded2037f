"""Laws of heads over every family: muting equals zeroed output columns, pruning equals muting, filling equals pruning."""

import copy

import pytest
import torch
from helpers.families import CASES, MEDIA_CASES, case_subject
from torch import nn

from regard.adapt import lora, tune
from regard.adapt.heads import HeadName, all_heads, head_sites, parse_heads, remaining_heads
from regard.adapt.mute import HeadGates, HeadMeans, muted_copy, shared_copy
from regard.adapt.precision import apply_precision
from regard.adapt.prune import fill_heads, prune_heads, remove_heads
from regard.config.tuning import Lora
from regard.errors import UserError
from regard.parts import Inputs

FIRST = list({case[0]: case for case in reversed(CASES + MEDIA_CASES)}.values())
SPECIAL = [
    ("gpt", "modern"), ("gpt", "buckets"), ("bert", "lowrank"), ("bert", "favor"), ("bert", "additive"), ("xl", "same"),
    ("detr", "anchors"), ("longformer", "several"), ("transformer", "buckets"),
]  # fmt: skip
SUBJECTS = {case: case_subject(case) for case in [*FIRST, *SPECIAL]}
WITH_HEADS = [case for case, subject in SUBJECTS.items() if head_sites(subject.module)]
every_case = pytest.mark.parametrize("case", WITH_HEADS, ids=" ".join)


def outputs(subject, model: nn.Module, given: Inputs) -> torch.Tensor:
    subject.module = model
    return torch.cat([row.flatten() for row in subject.read(given)])


def chosen_heads(model: nn.Module) -> list[HeadName]:
    """The second head of every other site; if heads share key heads, one of each group."""
    found = []
    for site in head_sites(model)[::2]:
        group = site.first.heads // site.first.key_heads
        found += site.heads[1::group] if group > 1 else site.heads[1:2]
    return found


def zeroed_by_hand(model: nn.Module, heads: list[HeadName]) -> nn.Module:
    """A copy whose output projections ignore these heads."""
    twin = copy.deepcopy(model)
    for site in head_sites(twin):
        width = site.first.head_width
        for place, head in enumerate(site.heads):
            if head in heads:
                site.out.weight.data[:, place * width : (place + 1) * width] = 0
    return twin


@torch.no_grad()
@every_case
def test_muting_equals_zeroed_columns_and_pruning_equals_muting(case):
    subject = SUBJECTS[case]
    model, given = subject.module, subject.probe.batch(subject.sample(8, 5))  # with padding
    before, heads = outputs(subject, model, given), chosen_heads(model)
    wanted = outputs(subject, zeroed_by_hand(model, heads), given)
    muted = outputs(subject, muted_copy(model, heads), given)
    assert (muted - wanted).abs().max() < 1e-5
    assert (wanted - before).abs().max() > 1e-4
    assert torch.equal(outputs(subject, model, given), before)  # the model itself does not change
    pruned = prune_heads(subject.family.Model(subject.config), [str(head) for head in heads]).eval()
    twin = copy.deepcopy(model)
    remove_heads(twin, heads)
    pruned.load_state_dict(twin.state_dict())  # the names define the shapes
    assert sum(map(torch.numel, pruned.parameters())) < sum(map(torch.numel, model.parameters()))
    assert all_heads(head_sites(pruned)) == [each for each in all_heads(head_sites(model)) if each not in heads]
    assert (outputs(subject, pruned, given) - wanted).abs().max() < 1e-5
    full = fill_heads(subject.family.Model(subject.config).eval(), pruned)
    assert (outputs(subject, full, given) - wanted).abs().max() < 1e-5
    subject.module = model


@torch.no_grad()
@pytest.mark.parametrize("case", [("gpt", "modern"), ("xl", "paper"), ("transformer", "paper"), ("t5", "later")])
def test_muted_and_pruned_models_decode_with_a_cache(case):
    subject = SUBJECTS[case]
    model, heads = subject.module, chosen_heads(subject.module)
    twin = copy.deepcopy(model)
    remove_heads(twin, heads)
    tokens = torch.randint(4, 40, (2, 5), generator=torch.Generator().manual_seed(1))
    for each in (muted_copy(model, heads), twin):
        subject.module = each
        whole, cache = subject.write(tokens), subject.start(2, None)
        steps = torch.cat([subject.step(tokens[:, i : i + 1], cache) for i in range(5)], 1)
        assert (steps - whole).abs().max() < 1e-4
    subject.module = model


@torch.no_grad()
def test_means_are_those_of_valid_tokens_and_replace_head_outputs():
    subject = SUBJECTS["bert", "paper"]
    model = subject.module
    copied = shared_copy(model)
    means, long, short = HeadMeans(copied), *subject.sample(8, 5)
    outputs(subject, copied, subject.probe.batch([long, short]))  # padding does not count
    seen: list[torch.Tensor] = []
    watched = shared_copy(model)
    site = head_sites(watched)[0]
    site.out.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][0]))
    for example in (long, short):
        outputs(subject, watched, subject.probe.batch([example]))
    wanted = torch.cat(seen).mean(0)
    found = means.means()
    assert (found[site.path] - wanted).abs().max() < 1e-5
    gated = shared_copy(model)
    gates = HeadGates(gated)
    gates.mute(site.heads, found)
    site = head_sites(gated)[0]
    site.out.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][0]))
    outputs(subject, gated, subject.probe.batch([short]))
    assert (seen[-1] - wanted).abs().max() < 1e-5
    gates.mute([])
    alone = subject.probe.batch([short])
    assert torch.equal(outputs(subject, gated, alone), outputs(subject, model, alone))


@torch.no_grad()
def test_muting_works_over_lora_and_int8():
    subject = case_subject(("gpt", "gpt2"))
    given = subject.probe.batch(subject.sample(6))
    model = tune.attach(subject.module, Lora(rank=2, pattern="out$"))
    for each in lora.branches(model):
        each[2].up.data.normal_()
    heads = chosen_heads(model)
    muted = outputs(subject, muted_copy(model, heads), given)
    lora.merge(model)
    assert (muted - outputs(subject, zeroed_by_hand(tune.keep_merged(model), heads), given)).abs().max() < 1e-4
    small = apply_precision(copy.deepcopy(model), "int8")
    before = outputs(subject, small, given)
    assert (outputs(subject, muted_copy(small, heads), given) - muted).abs().max() < 0.1 * muted.abs().max()
    assert torch.equal(outputs(subject, small, given), before)


def test_names_of_heads():
    bert, seq2seq = SUBJECTS["bert", "paper"].module, SUBJECTS["transformer", "paper"].module
    assert list(map(str, parse_heads("2.1, 1.*,2.1", bert))) == ["1.1", "1.2", "2.1"]
    assert list(map(str, parse_heads("cross.1.4,encoder.2.1", seq2seq))) == ["encoder.2.1", "cross.1.4"]
    for model, text, message in (
        (bert, "3", "--mute has '3'; expected layer.head such as 1.1"),
        (bert, "1.2;1.3", "expected layer.head"),
        (bert, "9.1", "layer 9 has no such attention; expected 1 to 2"),
        (bert, "1.9", "layer 1 has no head 9; expected 1 to 2"),
        (bert, "cross.1.1", "this model has no cross attention"),
        (seq2seq, "1.1", "several kinds of attention; write encoder.1.1"),
        (SUBJECTS["cnn", "translator"].module.encoder, "1.1", "has no attention heads"),
    ):
        with pytest.raises(UserError, match=message.replace(".", r"\.")):
            parse_heads(text, model)


def test_a_layer_keeps_a_head_and_key_heads_keep_equal_groups():
    with pytest.raises(UserError, match="are all heads of that layer; keep one of them"):
        prune_heads(case_subject(("bert", "paper")).module, ["1.*"])
    model = case_subject(("gpt", "modern")).module  # two key heads serve two heads each
    with pytest.raises(UserError, match="key heads that serve 2 heads each, such as 1.1, 1.2; remove whole groups"):
        prune_heads(model, ["1.1"])
    assert head_sites(prune_heads(model, ["1.1", "1.2"]))[0].first.key_heads == 1


def test_named_heads_keep_their_place_after_pruning():
    model = case_subject(("whisper", "paper")).module
    assert remaining_heads(model, "cross", [(0, 2), (1, 3)]) == [(0, 2), (1, 3)]
    prune_heads(model, ["cross.1.1", "cross.2.4"])
    assert remaining_heads(model, "cross", [(0, 2), (1, 3)]) == [(0, 1)]
