"""Masks, positions, layers, stacks and initialization against formulas, tables of papers and torch."""

import math
from dataclasses import fields
from itertools import product

import pytest
import torch
from prototypes.checks import close, ragged
from prototypes.words import SIZES, masks, seen_by_pairs
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.whisper.modeling_whisper import sinusoids

from regard.parts import Attention, Cross, Dropout, FeedForward, GatedFeedForward, Layer, Mask, Residual, Stack, slots
from regard.parts.attention import fuse_projections
from regard.parts.init import glorot, initialize, normal, ones, zeros
from regard.parts.positions import (
    NO_POSITIONS,
    BucketPositions,
    GridPositions,
    LearnedPositions,
    Positions,
    RelativePositions,
    RotaryPositions,
    SinusoidPositions,
    shift_scores,
)

# --- Masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_mask_tensor_equals_pairwise_rules(queries: int, keys: int) -> None:
    for name, mask in masks(queries, keys).items():
        seen, want = mask.visible(queries, keys), seen_by_pairs(mask, queries, keys)
        got = torch.ones_like(want) if seen is None else seen.expand_as(want)
        assert got.equal(want), name


def test_causal_only_needs_no_tensor() -> None:
    assert Mask(causal=True).causal_only
    assert not Mask().causal_only
    assert Mask().visible(3, 3) is None
    for name, mask in masks(5, 5).items():
        assert mask.replace(causal=True).causal_only == (name in ("nothing", "causal"))


def test_mask_select_rows() -> None:
    mask = Mask(causal=True, positions=torch.arange(4)[None], key_valid=ragged([4, 2, 3]))
    picked = mask.select(torch.tensor([2, 0]))
    assert picked.key_valid.equal(ragged([3, 4], 4))
    assert picked.positions.equal(mask.positions)  # one row that serves all
    assert picked.causal


def test_cached_mask_builds_each_form_once() -> None:
    mask = Mask(exclude_self=True)
    sight = mask.memoized()
    assert sight.visible(4, 4) is sight.visible(4, 4)
    assert mask.visible(4, 4) is not mask.visible(4, 4)


# --- Positions -------------------------------------------------------------------------------------------------------


def test_sinusoid_equals_the_paper() -> None:
    table = SinusoidPositions(32).vectors(torch.arange(600))
    for place, pair in product((0, 1, 7, 599), range(16)):
        angle = place / 10000 ** (2 * pair / 32)
        want = torch.tensor([math.sin(angle), math.cos(angle)])
        close(table[place, 2 * pair : 2 * pair + 2], want)


def test_sinusoid_halves_equals_marian() -> None:
    theirs = MarianSinusoidalPositionalEmbedding(600, 32)
    theirs.weight.data.copy_(theirs.create_weight())
    close(SinusoidPositions(32, "halves").vectors(torch.arange(600)), theirs.weight)


def test_sinusoid_whisper_equals_whisper() -> None:
    close(SinusoidPositions(32, "whisper").vectors(torch.arange(1500)), sinusoids(1500, 32), 1e-6)


@pytest.mark.parametrize("scheme", [SinusoidPositions(8), RotaryPositions(8)])
def test_frequency_rates_are_never_rounded(scheme: Positions) -> None:
    """Rates stay float32 in a bfloat16 model."""
    before = scheme.rate.clone()
    assert nn.Sequential(scheme).bfloat16()[0].rate.equal(before)
    assert scheme.add_to_input(torch.zeros(1, 3, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "scheme",
    [SinusoidPositions(8), SinusoidPositions(8, "halves"), LearnedPositions(20, 8), LearnedPositions(20, 8, skip=3)],
)
def test_explicit_positions_equal_default_positions(scheme: Positions) -> None:
    x, at = torch.randn(2, 6, 8), torch.tensor([[3, 1, 0, 2, 7, 7], [0, 1, 2, 3, 4, 5]])
    with torch.no_grad():
        whole = scheme.add_to_input(torch.zeros(1, 20, 8))[0]
        close(scheme.add_to_input(x, at), x + whole[at], 1e-6)
        close(scheme.add_to_input(x)[1], scheme.add_to_input(x, at)[1], 1e-6)


def test_skipped_table_rows_are_unused() -> None:
    learned = LearnedPositions(5, 8, skip=2)
    assert learned.table.weight.shape == (7, 8)
    close(learned.add_to_input(torch.zeros(1, 5, 8))[0], learned.table.weight[2:], 0)


def test_rotary_equals_llama() -> None:
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, max_position_embeddings=600)
    at, x = torch.tensor([[0, 1, 2, 50, 599], [7, 7, 3, 0, 1]]), torch.randn(2, 5, 32)
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    cos, sin = LlamaRotaryEmbedding(config)(x, at)
    mask = Mask(positions=at)
    ours = RotaryPositions(8).terms(x, mask, mask).rotate(q, k)
    for got, want in zip(ours, apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        close(got, want)


def test_rotary_depends_on_distance_only() -> None:
    """Also if keys and queries have different positions."""
    rotary, x, q, k = RotaryPositions(8), torch.randn(1, 3, 32), torch.randn(1, 4, 3, 8), torch.randn(1, 4, 5, 8)
    scores = []
    for by in (0, 40):
        mask = Mask(positions=torch.tensor([[4, 5, 6]]) + by, key_positions=torch.arange(5)[None] + by)
        turned_q, turned_k = rotary.terms(x, mask, mask).rotate(q, k)
        scores.append(turned_q @ turned_k.transpose(-2, -1))
    close(*scores)
    assert (scores[0] - q @ k.transpose(-2, -1)).abs().max() > 0.1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 20)])
def test_buckets_equal_t5(causal: bool, buckets: int, far: int) -> None:
    gap = torch.arange(-400, 401)
    want = T5Attention._relative_position_bucket(gap, not causal, buckets, far)
    assert BucketPositions(4, buckets, far, causal)._bucket(gap).equal(want)


def test_bucket_bias_includes_the_mask() -> None:
    scheme, x = BucketPositions(4, causal=True), torch.randn(2, 5, 32)
    mask = Mask(causal=True, key_valid=ragged([5, 3]))
    where = scheme.terms(x, mask, mask)
    bias = where.bias(torch.randn(2, 4, 5, 8))
    assert where.includes_mask
    assert (bias > -torch.inf).equal(seen_by_pairs(mask, 5, 5).expand_as(bias))


def test_shift_equals_gather() -> None:
    """For positions 0, 1, 2… one padded copy gives the same scores, except for later keys."""
    own, x, q = RelativePositions(32, 4), torch.randn(2, 9, 32), torch.randn(2, 4, 9, 8)
    nn.init.normal_(own.v)
    plain, told = Mask(causal=True), Mask(causal=True, positions=torch.arange(9).expand(2, -1))
    a, b = own.terms(x, plain, plain), own.terms(x, told, told)
    assert a.distances is None
    assert b.distances is not None
    close(a.bias(q).tril(), b.bias(q).tril(), 1e-6)
    scores = torch.arange(9.0).expand(9, 9)  # the score of a distance is the distance
    close(shift_scores(scores[None, None])[0, 0].tril(), (torch.arange(9.0)[:, None] - torch.arange(9.0)).tril(), 0)


def test_grid_positions_count_valid_pixels() -> None:
    """Padding below and to the right does not change valid pixels."""
    valid = torch.zeros(1, 4, 5, dtype=torch.bool)
    valid[:, :3, :4] = True
    small = GridPositions(16)(torch.ones(1, 3, 4, dtype=torch.bool)).view(1, 3, 4, 16)
    close(GridPositions(16)(valid).view(1, 4, 5, 16)[:, :3, :4], small, 1e-5)


# --- Attention, layers and stacks are torch.nn's ---------------------------------------------------------------------


def copy_attention(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for linear, weight, bias in zip((ours.query, ours.key, ours.value), weights, biases, strict=True):
        linear.load_state_dict({"weight": weight, "bias": bias})
    ours.out.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def test_attention_equals_torch() -> None:
    theirs, ours, x, y = nn.MultiheadAttention(32, 4, batch_first=True), Attention(32, 4), *torch.randn(2, 2, 7, 32)
    nn.init.normal_(theirs.in_proj_bias)
    copy_attention(ours, theirs)
    valid, later = ragged([7, 4]), torch.ones(7, 7).triu(1).bool()
    close(ours(x, y, x, Mask()), theirs(x, y, x)[0], 1e-6)  # three different inputs
    close(ours(x, y[:, :5], y[:, :5], Mask()), theirs(x, y[:, :5], y[:, :5])[0], 1e-6)
    close(ours(x, x, x, Mask(key_valid=valid)), theirs(x, x, x, key_padding_mask=~valid)[0], 1e-6)
    close(ours(x, x, x, Mask(causal=True)), theirs(x, x, x, attn_mask=later)[0], 1e-6)
    both = theirs(x, x, x, key_padding_mask=~valid, attn_mask=later)[0]
    close(ours(x, x, x, Mask(causal=True, key_valid=valid)), both, 1e-6)
    close(
        ours(x, None, None, Mask(key_valid=valid), layer_cache=ours.project_source(y)),
        theirs(x, y, y, key_padding_mask=~valid)[0],
        1e-6,
    )


def copy_layer(ours: Layer, theirs: nn.Module) -> None:
    copy_attention(ours.attention, theirs.self_attn)
    residuals = [ours.attention_residual, ours.feed_residual]
    if ours.cross is not None:
        copy_attention(ours.cross, theirs.multihead_attn)
        residuals.insert(1, ours.cross_residual)
    for i, residual in enumerate(residuals, 1):
        residual.norm.load_state_dict(getattr(theirs, f"norm{i}").state_dict())
    ours.feed.into.load_state_dict(theirs.linear1.state_dict())
    ours.feed.out.load_state_dict(theirs.linear2.state_dict())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("first", [False, True], ids=["norm last", "norm first"])
def test_encoder_and_decoder_equal_torch(first: bool) -> None:
    theirs = nn.Transformer(32, 4, 2, 2, 64, 0.0, "relu", batch_first=True, norm_first=first)
    for p in theirs.parameters():
        nn.init.normal_(p, 0.0, 0.3)

    def layer(cross: Attention | None = None) -> Layer:
        return Layer(Attention(32, 4), FeedForward(32, 64), lambda: Residual(nn.LayerNorm(32), first), cross)

    encoder = Stack([layer(), layer()], nn.LayerNorm(32))
    decoder = Stack([layer(Attention(32, 4)), layer(Attention(32, 4))], nn.LayerNorm(32), causal=True)
    for ours, other in ((encoder, theirs.encoder), (decoder, theirs.decoder)):
        ours.norm.load_state_dict(other.norm.state_dict())
        for mine, its in zip(ours.layers, other.layers, strict=True):
            copy_layer(mine, its)
    source, target, valid, later = *torch.randn(2, 2, 7, 32), ragged([7, 4]), torch.ones(7, 7).triu(1).bool()
    want = theirs(source, target, None, later, None, ~valid, ~valid, ~valid)  # in training mode: no fast path
    mask = Mask(key_valid=valid)
    close(decoder(target, mask, Cross(encoder(source, mask), mask))[valid], want[valid], 1e-5)


def test_norms_and_gates_equal_their_formulas() -> None:
    x = torch.randn(2, 3, 8)
    norm = slots.RMSNorm().build(8)
    nn.init.normal_(norm.weight)
    close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight, 1e-6)
    close(
        slots.LayerNorm().build(8)(x),
        (x - x.mean(-1, keepdim=True)) / (x.var(-1, False, keepdim=True) + 1e-5).sqrt(),
        1e-6,
    )
    gated = GatedFeedForward(8, 12, "silu")
    close(gated(x), (F.silu(x @ gated.gate.weight.T) * (x @ gated.into.weight.T)) @ gated.out.weight.T, 1e-6)
    assert gated.into.bias is None


@pytest.mark.parametrize("act", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations(act: str) -> None:
    x, feed = torch.randn(2, 3, 8), FeedForward(8, 12, act)
    h = x @ feed.into.weight.T + feed.into.bias
    cubic = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    normal_cdf = 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))
    want = {"relu": h.clamp(min=0), "gelu": normal_cdf, "gelu_tanh": cubic, "silu": h * h.sigmoid()}[act]
    close(feed(x), want @ feed.out.weight.T + feed.out.bias, 1e-6)


def test_dropout_works_only_in_training() -> None:
    """In attention weights, inside the feed-forward and on every residual."""
    x = torch.randn(2, 7, 32)
    for attention in (slots.Dense(dropout=0.5), slots.Additive(dropout=0.5)):
        part = attention.build(32, 4)
        assert not part(x, x, x, Mask()).equal(part(x, x, x, Mask()))
        assert part.eval()(x, x, x, Mask()).equal(part(x, x, x, Mask()))
    for feed in (FeedForward(32, 64, dropout=0.5), Residual(nn.Identity(), dropout=0.5)):
        change = (lambda y: y,) if isinstance(feed, Residual) else ()
        assert not feed(x, *change).equal(feed(x, *change))
        assert feed.eval()(x, *change).equal(feed(x, *change))


def test_stack_yields_layer_outputs() -> None:
    layers = [Layer(Attention(32, 4), FeedForward(32, 64), lambda: Residual(nn.LayerNorm(32))) for _ in range(3)]
    stack, x = Stack(layers, nn.LayerNorm(32)), torch.randn(2, 5, 32)
    outs = list(stack.layer_outputs(x, Mask()))
    assert len(outs) == 3
    close(outs[0], layers[0](x, Mask(), NO_POSITIONS), 0)
    close(stack(x, Mask()), stack.norm(outs[-1]), 0)
    assert stack.add_positions(x).equal(x)


@pytest.mark.parametrize("attention", [slots.Dense(), slots.Additive(), slots.Window(radius=2)])
def test_stack_builds_each_mask_once(attention: slots.Dense, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of layers; a padded batch would otherwise build (batch, n, n) in each of them."""
    built, build = [], Mask._visible
    monkeypatch.setattr(Mask, "_visible", lambda mask, *size: built.append(mask) or build(mask, *size))
    layers = [Layer(attention.build(32, 4), FeedForward(32, 64), lambda: Residual(nn.LayerNorm(32))) for _ in range(3)]
    Stack(layers)(torch.randn(2, 5, 32), Mask(key_valid=ragged([5, 3])))
    assert (
        len([mask for mask in built if mask.beam_ancestry is None]) == 1
    )  # `kin` alone is a form that a window had already


# --- Slots, beginnings, refusals -------------------------------------------------------------------------------------


def test_slot_values_are_frozen_and_named_by_kind() -> None:
    kinds = [
        value for value in vars(slots).values() if isinstance(value, type) and hasattr(value, "__pydantic_config__")
    ]
    assert len(kinds) == 17
    for kind in kinds:
        value = kind()
        assert [f.name for f in fields(value)][0] == "kind"
        with pytest.raises(AttributeError):
            value.kind = "other"
        with pytest.raises(TypeError):
            kind(4)  # a bare number would say nothing


def test_slots_pass_their_settings_to_parts() -> None:
    assert slots.Dense(scaled=False, dropout=0.3).build(32, 4).kernel.scale == 1.0
    assert slots.Dense(dropout=0.3).build(32, 4).kernel.dropout == 0.3
    assert slots.Window(radius=7).build(32, 4).kernel.radius == 7
    assert slots.Window(radius=7, globals=2).build(32, 4).leading_globals == 2
    listed = slots.Window(radius=(3, 4), dilation=(1, 5))
    assert [slots.for_layer(listed, i).build(32, 4).kernel.radius for i in (0, 1)] == [3, 4]
    assert [slots.for_layer(listed, i).build(32, 4).kernel.dilation for i in (0, 1)] == [1, 5]
    assert slots.Window(radius=3, dilation=2, named=True).build(32, 4).near.kernel.dilation == 2
    assert slots.for_layer(slots.Dense(), 1) == slots.Dense()
    assert slots.Favor(features=24).build(32, 4).kernel.directions.shape == (24, 8)
    assert slots.Favor(redraw=7).build(32, 4).kernel.redraw == 7
    lowrank = slots.Lowrank(rank=3, tokens=9, sharing="none", dropout=0.2).build(32, 4).kernel
    assert lowrank.keys.weight.shape == (4, 3, 9) and lowrank.inner.dropout == 0.2 and lowrank.context == 9
    assert slots.Favor(features=24).build(32, 4, head_width=6).kernel.directions.shape == (24, 6)
    assert slots.Additive().build(32, 4, head_width=6).kernel.score.in_features == 6
    assert slots.Learned(tokens=9).build(32, 4, True).table.num_embeddings == 9
    close(slots.Rotary(base=100.0).build(32, 4, True).rate, 100.0 ** (-torch.arange(0, 8, 2) / 8), 1e-7)
    buckets = slots.Buckets(buckets=16, far=50).build(32, 4, True)
    assert (buckets.buckets, buckets.far, buckets.causal, buckets.biased) == (16, 50, True, True)
    assert slots.Feed(act="silu", dropout=0.2).build(8, 12).act == "silu"
    assert slots.Gated(dropout=0.2).build(8, 12).dropout.p == 0.2


def test_first_matching_initialization_rule_wins() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(400, 50), "out": nn.Linear(200, 300), "norm": nn.LayerNorm(200)})
    lines = {r"table\.weight": normal(0.5), r"norm\.weight": ones, r".*weight": glorot, r".*bias": zeros}
    initialize(model, lines)
    assert abs(model["table"].weight.std().item() - 0.5) < 0.01
    assert model["norm"].weight.eq(1).all()
    assert model["out"].bias.eq(0).all()
    limit = math.sqrt(6 / (200 + 300))
    assert limit * 0.99 < model["out"].weight.abs().max() <= limit
    with pytest.raises(LookupError, match=r"'norm\.weight'"):
        initialize(model, {r"table\.weight": ones, r"out\..*": zeros, r"norm": ones})


@pytest.mark.parametrize("size", [1, 3, 5])
def test_convolutional_feed_equals_torch(size: int) -> None:
    """Padding and tokens of other texts count as zeros, like torch's padding at the ends."""
    feed = slots.Convolution(size=size, act="gelu").build(12, 20).eval()
    theirs = nn.Conv1d(12, 20, size, padding=size // 2)
    theirs.weight.data = feed.into.weight.data.unflatten(1, (size, 12)).permute(0, 2, 1)  # (inner, width, size)
    theirs.bias.data = feed.into.bias.data

    def wanted(x: torch.Tensor) -> torch.Tensor:
        return feed.out(F.gelu(theirs(x.transpose(1, 2)).transpose(1, 2)))

    x, valid = torch.randn(2, 7, 12), ragged([7, 4])
    close(feed(x), wanted(x), 1e-5)
    found = feed(x, Mask(key_valid=valid))
    close(found[0], wanted(x[:1])[0], 1e-5)
    close(found[1, :4], wanted(x[1:, :4])[0], 1e-5)
    segments = torch.tensor(
        [[0, 0, 0, 1, 1, 2, -1], [5, 5, 5, 5, 5, 5, 0]]
    )  # numbers need not begin at 0, nor end with it
    found = feed(x, Mask(segments=segments))
    for part in (slice(0, 3), slice(3, 5), slice(5, 6)):
        close(found[0, part], wanted(x[:1, part])[0], 1e-5)
    close(found[1, :6], wanted(x[1:, :6])[0], 1e-5)


def a_stack(
    attention: slots.Window | slots.Favor, positions: Positions | list[Positions] | None = None, causal: bool = False
) -> Stack:
    layer = Layer(attention.build(32, 4), FeedForward(32, 64), lambda: Residual(nn.LayerNorm(32)))
    return Stack([layer], positions=positions, causal=causal)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Attention(100, 8), "width 100 does not divide into 8 heads; use 96 or 104"),
        (lambda: SinusoidPositions(7), "even width, not 7"),
        (lambda: RotaryPositions(7), "even head width, not 7"),
        (
            lambda: a_stack(slots.Window(), BucketPositions(4)),
            "WindowKernel has no scores that BucketPositions could add to",
        ),
        (lambda: slots.Window(radius=(3, 4)).build(32, 4), "a list has a number per layer"),
        (
            lambda: slots.check_layer_lists(slots.Window(radius=(3, 4)), 3),
            "model.attention.radius lists 2 numbers for 3",
        ),
        (
            lambda: slots.check_layer_lists(slots.Window(dilation=(3,)), 2),
            "model.attention.dilation lists 1 numbers for 2",
        ),
        (lambda: slots.Window(dilation=(1, 0)), "model.attention.dilation is 0; expected at least 1"),
        (lambda: slots.check_causal(slots.Window(named=True), None), "model.attention.named is true"),
        (
            lambda: a_stack(slots.Favor(), [RelativePositions(32, 4)]),
            "RandomFeatureKernel has no scores that RelativePositions could add to",
        ),
        (
            lambda: a_stack(slots.Window(globals=1), causal=True),
            "GlobalAttention reads later tokens and cannot be causal",
        ),
        (
            lambda: Stack(
                [Layer(Attention(32, 4), slots.Convolution().build(32, 64), lambda: Residual(nn.LayerNorm(32)))],
                causal=True,
            ),
            "ConvFeedForward reads later tokens and cannot be causal; use it in an encoder",
        ),
        (lambda: slots.Convolution(size=4), "model.feed.size is 4; expected an odd number"),
        (lambda: slots.Convolution(size=-1), "model.feed.size is -1; expected at least 1"),
    ],
)
def test_invalid_combinations_are_refused_at_build_time(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_invalid_masks_are_refused_at_call_time() -> None:
    x, segments = torch.randn(2, 5, 32), torch.zeros(2, 5, dtype=torch.long)
    favor, longformer = slots.Favor().build(32, 4), slots.Window(radius=2, globals=1).build(32, 4)
    with pytest.raises(ValueError, match="cannot pack; set data.packed=false"):
        favor(x, x, x, Mask(segments=segments))
    for mask in (Mask(exclude_self=True), Mask(window=2)):
        with pytest.raises(ValueError, match="cannot leave some out"):
            favor(x, x, x, mask)
    with pytest.raises(ValueError, match="name the global positions"):
        longformer(x, x, x, Mask(segments=segments))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropout_rate_and_mean(share):
    part, x = Dropout(share), torch.full((1001, 997), 3.0, requires_grad=True)
    torch.manual_seed(4)
    out = part(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert (out == 0).float().mean().item() == pytest.approx(share, abs=0.003)
    assert out.mean().item() == pytest.approx(3.0, rel=0.01)
    assert (grad * 3 - out).abs().max() < 1e-5
    hidden = out == 0
    for axis in (0, 1):  # in no row and no column more than chance would
        assert (hidden.float().mean(axis) - share).abs().max() < 0.08
    assert (hidden[:, :-1] & hidden[:, 1:]).float().mean().item() == pytest.approx(share**2, abs=0.005)
    torch.manual_seed(4)
    assert part(x).equal(out) and not part(x).equal(out)
    assert part.eval()(x) is x and Dropout(0.0)(x) is x


def test_dropout_near_one_is_finite():
    assert Dropout(0.999999)(torch.ones(9)).isfinite().all() and Dropout(0.3)(torch.ones(0, 5)).shape == (0, 5)


def test_rotation_keeps_the_dtype():
    """Under autocast the input of a stack is float32, and kernels need one dtype for query, key and value."""
    where = RotaryPositions(8).terms(torch.zeros(1, 5, 16), Mask(), Mask())
    q, k = where.rotate(*(torch.randn(1, 2, 5, 8).bfloat16() for _ in range(2)))
    assert q.dtype == k.dtype == torch.bfloat16


@torch.no_grad()
def test_padding_mask_builds_no_position_table():
    from prototypes.checks import Largest

    with Largest() as seen:
        Mask(key_valid=torch.ones(1, 600, dtype=torch.bool)).visible(600, 600)
    assert seen.elements <= 600, seen.elements


@pytest.mark.parametrize("bias", [True, False])
def test_fused_projections_change_nothing(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One product gives the outputs and gradients of three; layers with hooks, such as LoRA's, are called themselves."""
    monkeypatch.setattr("regard.parts.attention.FUSED_DEVICES", ("cpu",))
    torch.manual_seed(1)
    attention, x = Attention(24, 4, key_heads=2, bias=bias), torch.randn(2, 5, 24, requires_grad=True)

    def run() -> list[torch.Tensor]:
        attention.zero_grad()
        out = attention(x, x, x, Mask())
        (grad,) = torch.autograd.grad(out.square().sum(), x, retain_graph=True)
        out.square().sum().backward()
        return [out, grad, *(each.grad.clone() for each in attention.parameters())]

    plain = run()
    fuse_projections(attention)
    with monkeypatch.context() as inner:
        inner.setattr(attention.query, "forward", None)  # it is not called
        for found, wanted in zip(run(), plain, strict=True):
            assert torch.allclose(found, wanted, atol=1e-5)
    attention.query.register_forward_hook(lambda module, args, out: out + 1)
    assert not torch.allclose(attention(x, x, x, Mask()), plain[0], atol=1e-3)
