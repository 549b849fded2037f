"""Inference without padding equals inference with padding."""

import pytest
import torch

from regard.look import record_attention
from regard.parts import (
    AdditiveKernel,
    Attention,
    BucketPositions,
    ConvFeedForward,
    FeedForward,
    GatedFeedForward,
    Layer,
    LearnedPositions,
    Mask,
    Residual,
    RotaryPositions,
    SoftmaxKernel,
    Stack,
)
from regard.parts.efficient import WindowKernel

WIDTH, HEADS = 24, 4


class Special(Attention):
    """A subclass that does not opt in."""


def stack(kernel=None, feed=None, positions=None, causal=False, kind=Attention, **attention):
    torch.manual_seed(5)
    layers = [
        Layer(
            kind(WIDTH, HEADS, kernel() if kernel else SoftmaxKernel(), **attention),
            feed or FeedForward(WIDTH, 40, "gelu"),
            lambda: Residual(torch.nn.LayerNorm(WIDTH), False),
        )
        for _ in range(2)
    ]
    return Stack(layers, None, positions, causal).eval()


def shapes(model, x, mask):
    """The output of the stack, and the batch size and length of its kernels' queries."""
    seen = []
    hooks = [
        layer.attention.kernel.register_forward_pre_hook(
            lambda _, given: seen.append((given[0].size(0), given[0].size(2)))
        )
        for layer in model.layers
    ]
    found = model(x, mask)
    for hook in hooks:
        hook.remove()
    return found, seen


def padded(model, x, mask):
    model.flat = False
    try:
        return model(x, mask)
    finally:
        model.flat = True


def valid(*rows):
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


ROWS = {
    "right": valid("xxxxx", "xxx..", "xxxxx", "x....", "xxx.."),
    "left": valid("....x", "xxxxx", "..xxx"),
    "a row without a token": valid("xxx..", ".....", "xxxx."),
    "full": valid("xxxx", "xxxx"),
}
KINDS = {
    "plain": {},
    "unscaled": {"kernel": lambda: SoftmaxKernel(scale=1.0)},
    "shared key heads": {"key_heads": 2},
    "learned": {"positions": LearnedPositions(9, WIDTH)},
    "rotary": {"positions": RotaryPositions(WIDTH // HEADS)},
    "convolution": {"feed": ConvFeedForward(WIDTH, 40)},
}


@torch.no_grad()
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_unpadded_equals_padded(rows, kind):
    model = stack(**kind)
    x = model.add_positions(torch.randn(*rows.shape, WIDTH))
    found, asked = shapes(model, x, Mask(key_valid=rows))
    assert asked == [(1, int(rows.sum()))] * 2
    assert found.shape == x.shape and (found[~rows] == 0).all()
    assert (found - padded(model, x, Mask(key_valid=rows)))[rows].abs().max() < 1e-5


@torch.no_grad()
def test_unpadded_keeps_explicit_positions():
    rows, model = ROWS["right"], stack(positions=RotaryPositions(WIDTH // HEADS))
    x, at = torch.randn(5, 5, WIDTH), torch.randint(0, 50, (5, 5))
    for places in (at, at[:1]):
        mask = Mask(key_valid=rows, positions=places)
        found, asked = shapes(model, x, mask)
        assert asked == [(1, 17)] * 2
        assert (found - padded(model, x, mask))[rows].abs().max() < 1e-5
    assert (found - model(x, Mask(key_valid=rows)))[rows].abs().max() > 1e-3


SAID = {
    "causal": {"causal": True},
    "exclude_self": {"exclude_self": True},
    "window": {"window": 2},
    "segments": {"segments": torch.zeros(5, 5, dtype=torch.long)},
    "beam_ancestry": {"beam_ancestry": torch.ones(5, 5, 5, dtype=torch.bool)},
    "nothing": {"key_valid": None},
    "padding inside": {"key_valid": valid("xxxxx", "xx.xx", "xxxxx", "x....", "xxx..")},
    "padding inside, later": {"key_valid": valid("xxxxx", "xxxxx", "xxxxx", "x....", ".x.x.")},
}


@torch.no_grad()
@pytest.mark.parametrize("words", SAID.values(), ids=SAID)
def test_other_mask_rules_keep_padding(words):
    _, asked = shapes(stack(), torch.randn(5, 5, WIDTH), Mask(**{"key_valid": ROWS["right"], **words}))
    assert asked == [(5, 5)] * 2


STAY = {
    "a bias": {"positions": BucketPositions(HEADS)},
    "another kernel": {"kernel": lambda: AdditiveKernel(WIDTH // HEADS)},
    "a window": {"kernel": lambda: WindowKernel(3)},
    "somebody's attention": {"kind": Special},
    "a causal stack": {"causal": True},
}


@torch.no_grad()
@pytest.mark.parametrize("kind", STAY.values(), ids=STAY)
def test_unsupported_parts_keep_padding(kind):
    _, asked = shapes(stack(**kind), torch.randn(5, 5, WIDTH), Mask(key_valid=ROWS["right"]))
    assert asked == [(5, 5)] * 2


def test_training_keeps_padding():
    x = torch.randn(5, 5, WIDTH)
    found, asked = shapes(stack(), x, Mask(key_valid=ROWS["right"]))
    assert asked == [(5, 5)] * 2 and found.requires_grad


@torch.no_grad()
def test_recording_keeps_padding():
    model, x, rows = stack(), torch.randn(5, 5, WIDTH), ROWS["right"]
    with record_attention(model) as maps:
        model(x, Mask(key_valid=rows))
    assert maps["layers.1.attention"].shape == (5, HEADS, 5, 5)
    assert not maps["layers.1.attention"].masked_select(~rows[:, None, None]).any()
    with pytest.raises(RuntimeError, match="mine"), record_attention(model):
        raise RuntimeError("mine")
    assert shapes(model, x, Mask(key_valid=rows))[1] == [(1, 17)] * 2


@pytest.mark.parametrize("act", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward, ConvFeedForward])
def test_in_place_activation_equals_out_of_place(kind, act):
    feed, x = kind(WIDTH, 40, act=act), torch.randn(2, 5, WIDTH)
    before, expected = x.clone(), feed(x)
    with torch.no_grad():
        found = feed(x)
    assert found.equal(expected) and x.equal(before) and expected.requires_grad
