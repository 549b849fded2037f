"""The teaching model equals torch's own encoder with the same weights, and the paper's formulas."""

import math

import pytest
import torch
from helpers.inputs import inputs
from torch import nn

from regard.families import lm

SHAPE = {"vocab": 61, "width": 36, "heads": 3, "layers": 3, "inner": 50}


def pair(tied: bool) -> tuple[lm.Model, nn.TransformerEncoder]:
    torch.manual_seed(4)
    ours = lm.Model(lm.Config(**SHAPE, tied=tied)).eval()
    for each in ours.parameters():
        each.data = each.data * 2 if each.dim() > 1 else each.data + 0.2 * torch.randn_like(each)
    layer = nn.TransformerEncoderLayer(36, 3, 50, activation="relu", batch_first=True, norm_first=False)
    theirs = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    for mine, other in zip(ours.stack.layers, theirs.layers, strict=True):
        attention, maps = mine.attention, (mine.attention.query, mine.attention.key, mine.attention.value)
        other.self_attn.in_proj_weight.data = torch.cat([each.weight.data for each in maps])
        other.self_attn.in_proj_bias.data = torch.cat([each.bias.data for each in maps])
        for one, its in (
            (attention.out, other.self_attn.out_proj), (mine.feed.into, other.linear1), (mine.feed.out, other.linear2),
            (mine.attention_residual.norm, other.norm1), (mine.feed_residual.norm, other.norm2),
        ):  # fmt: skip
            its.load_state_dict(one.state_dict())
    return ours, theirs


def embed_by_formula(model: lm.Model, tokens: torch.Tensor) -> torch.Tensor:
    """Embeddings times √width plus the paper's sinusoid."""
    x = model.embed.weight[tokens] * math.sqrt(36)
    for position in range(tokens.size(1)):
        for i in range(18):
            angle = position / 10000 ** (2 * i / 36)
            x[:, position, 2 * i] += math.sin(angle)
            x[:, position, 2 * i + 1] += math.cos(angle)
    return x


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
def test_lm_equals_torch_encoder(tied):
    ours, theirs = pair(tied)
    tokens, valid = torch.randint(61, (3, 13)), torch.arange(13) < torch.tensor([[13], [5], [9]])
    causal = torch.ones(13, 13, dtype=torch.bool).triu(1)
    wanted = theirs(embed_by_formula(ours, tokens), mask=causal)
    assert (ours.decode(inputs(tokens)) - wanted).abs().max() <= 1e-5
    padded = theirs(embed_by_formula(ours, tokens), mask=causal, src_key_padding_mask=~valid)
    assert (ours.decode(inputs(tokens, valid)) - padded)[valid].abs().max() <= 1e-5
    head = ours.embed.weight if tied else ours.head.weight
    assert (ours(inputs(tokens)) - (wanted @ head.T + ours.head.bias)).abs().max() <= 1e-4
    assert (ours.head.weight is ours.embed.weight) == tied


def test_dropout_is_placed_as_in_torch():
    ours, theirs = lm.Model(lm.Config(**SHAPE, dropout=0.3)), nn.TransformerEncoderLayer(36, 3, 50, dropout=0.3)
    layer = ours.stack.layers[0]
    assert theirs.self_attn.dropout == layer.attention.kernel.dropout == 0.3
    mine = [part.p for part in layer.modules() if isinstance(part, nn.Dropout)]
    assert mine == [part.p for part in theirs.modules() if isinstance(part, nn.Dropout)] == [0.3] * 3
    assert ours.dropout.p == 0.3
    assert ours.context is None and ours.new_memory(2) is None


def test_sizes_and_refused_widths():
    assert lm.SIZES["base"] == {"width": 256, "heads": 8, "layers": 4, "inner": 512}
    with pytest.raises(ValueError, match="width 37 does not divide into 3 heads"):
        lm.Config(**SHAPE | {"width": 37})
    with pytest.raises(ValueError, match="need an even width, not 39"):
        lm.Config(**SHAPE | {"width": 39})


def test_window_radius_per_layer():
    c = lm.Config.model_validate({"vocab": 50, "layers": 2, "attention": {"kind": "window", "radius": [3, 5]}})
    assert [layer.attention.kernel.radius for layer in lm.Model(c).stack.layers] == [3, 5]
    with pytest.raises(ValueError, match="radius"):
        lm.Config.model_validate({"vocab": 50, "layers": 3, "attention": {"kind": "window", "radius": [3, 5]}})
