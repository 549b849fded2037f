"""Laws that every family keeps, at size tiny and in every filling of its slots."""

import pytest
import torch

from regard.config import family_of
from regard.families import FAMILIES
from regard.parts import Cross, Mask
from regard.parts.losses import smoothed
from regard.tasks.translate import states
from regard.training.checkpoint import load_model, save_model

VARIANTS = {
    "transformer": {
        "paper": {},
        "prenorm": {"prenorm": True},
        "additive": {"attention": {"kind": "additive"}},
        "unscaled": {"attention": {"kind": "dense", "scaled": False}},
        "learned": {"positions": {"kind": "learned", "tokens": 64}},
        "rotary": {"positions": {"kind": "rotary"}},
        "buckets": {"positions": {"kind": "buckets"}},
        "gated rms": {"feed": {"kind": "gated"}, "norm": {"kind": "rms"}, "prenorm": True},
        "untied": {"tied": False, "target_vocab": 41, "biased": True, "decoder_layers": 1},
    }
}
CASES = [(family, name) for family in FAMILIES for name in VARIANTS[family]]
VOCAB, CLOSE = 53, 1e-4


def config(family: str, name: str, **other):
    module = family_of(family)
    return module.Config.model_validate(
        {"vocab": VOCAB, "size": "tiny", **module.SIZES["tiny"], **VARIANTS[family][name], **other}
    )


@pytest.fixture(params=CASES, ids=lambda case: " ".join(case))
def model(request):
    """Weights are larger than at birth, so that attention is not flat and mistakes show."""
    torch.manual_seed(1)
    made = family_of(request.param[0]).Model(config(*request.param))
    for each in made.parameters():
        each.data = each.data * 1.5 if each.dim() > 1 else each.data + 0.2 * torch.randn_like(each)
    return made.eval()


def ids(rows: int, tokens: int):
    return torch.randint(4, 40, (rows, tokens))


def ragged(*lengths: int):
    return torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]


@torch.no_grad()
def test_shapes(model):
    assert model(ids(2, 7), ids(2, 5)).shape == (2, 5, model.head.out_features)


@torch.no_grad()
def test_padding_and_batch_mates_change_nothing(model):
    source, target = ids(3, 9), ids(3, 6)
    real = ragged(9, 4, 6)
    together = model(source, target, Mask(keys=real))
    other = model(source.masked_fill(~real, 7), target, Mask(keys=real))
    for row, length in enumerate((9, 4, 6)):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        assert (together[row] - alone[0]).abs().max() < CLOSE
        assert (together[row] - other[row]).abs().max() < CLOSE


@torch.no_grad()
def test_the_future_changes_nothing(model):
    source, target = ids(2, 7), ids(2, 8)
    before = model(source, target)
    target[:, 5:] = ids(2, 3)
    after = model(source, target)
    assert (before[:, :5] - after[:, :5]).abs().max() < 1e-5 and (before[:, 5:] - after[:, 5:]).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("capacity", [None, 24])
def test_cached_is_uncached(model, capacity):
    source, target, real = ids(3, 8), ids(3, 10), ragged(8, 3, 5)
    whole = model(source, target, Mask(keys=real))
    cache = model.start(source, Mask(keys=real), capacity)
    parts = [model.step(part, cache) for part in target.split([4, 1, 1, 3, 1], 1)]
    assert (torch.cat(parts, 1) - whole).abs().max() < CLOSE


@torch.no_grad()
def test_packed_is_separate(model):
    from regard.data.batches import pair
    from regard.data.tokenizers import Text

    sources, targets = [ids(1, n)[0].tolist() for n in (6, 3, 8, 2)], [ids(1, n)[0].tolist() for n in (5, 7, 1, 4)]
    packed, padded = (pair(sources, targets, Text, Text, width) for width in (16, 0))
    assert len(packed.source) < len(padded.source)
    found, wanted = model.logits(states(model, packed)), model.logits(states(model, padded))
    seen = 0
    for row in range(len(sources)):
        length = len(targets[row]) + 1
        at = (packed.target_in == 1).nonzero()[
            [i for i, (r, c) in enumerate((packed.target_in == 1).nonzero().tolist())
             if packed.target_out[r, c : c + length].tolist() == [*targets[row], 2]][0]
        ]  # fmt: skip
        r, c = at.tolist()
        assert (found[r, c : c + length] - wanted[row, :length]).abs().max() < CLOSE
        seen += length
    assert seen == int(packed.target_real.sum())


def test_save_and_load_is_identity(model, tmp_path, request):
    save_model(model, tmp_path / "model.safetensors", 7)
    fresh = (
        family_of(request.node.callspec.params["model"][0]).Model(config(*request.node.callspec.params["model"])).eval()
    )
    assert load_model(fresh, tmp_path / "model.safetensors") == 7
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True))
    source, target = ids(2, 5), ids(2, 4)
    assert model(source, target).equal(fresh(source, target))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_overfits_one_batch_and_a_seed_repeats(case):
    source, target = ids(4, 7), ids(4, 6)
    told, asked = target[:, :-1], target[:, 1:]
    finals = []
    for _ in range(2):
        torch.manual_seed(5)
        model = family_of(case[0]).Model(config(*case, dropout=0.1))
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(60):
            loss = smoothed(model(source, told), asked) / asked.numel()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        finals.append([each.detach().clone() for each in model.parameters()])
        with torch.no_grad():
            assert (model.eval()(source, told).argmax(-1) == asked).float().mean() > 0.9
    assert all(a.equal(b) for a, b in zip(*finals, strict=True))


@torch.no_grad()
def test_recorded_attention_is_the_attention(model):
    """The visible path: rows sum to one over what is visible, and the output does not change by being watched."""
    from regard.look import recording

    source, target, real = ids(2, 6), ids(2, 5), ragged(6, 3)
    plain = model(source, target, Mask(keys=real))
    with recording(model) as maps:
        assert model(source, target, Mask(keys=real)).equal(plain)
    assert len(maps) == len(model.encoder.layers) + 2 * len(model.decoder.layers)
    for path, weights in maps.items():
        assert (weights.sum(-1) - 1).abs().max() < 1e-5
        if path.startswith("encoder") or path.endswith("cross"):
            assert weights[1, :, :, 3:].abs().max() == 0
        else:
            assert weights.triu(1).abs().max() == 0
    decoded = model.decode(target, Cross(model.encode(source, Mask(keys=real)), Mask(keys=real)))
    assert model.logits(decoded).equal(plain)
