"""Every kernel against its formula in float64, and the laws they all keep whatever the mask says."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seams.checks import close, ragged
from seams.words import SIZES, masks, seen_by_pairs
from torch import Tensor, nn
from torch.nn import functional as F

from regard.parts import (
    Additive,
    Attention,
    Bucketed,
    Feed,
    Kernel,
    Layer,
    Learned,
    Mask,
    Positions,
    Relative,
    Residual,
    Softmax,
    Stack,
    slots,
)
from regard.parts.efficient import Band, GlobalAttention, LowRank, RandomFeatures
from regard.parts.efficient.features import draw


def three(queries: int, keys: int, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 8)
    q, k, v = (torch.randn(size, requires_grad=grad) for size in sizes)
    return q, k, v


def naive(scores: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """softmax in float64, one query at a time over what it sees."""
    out = torch.zeros(*scores.shape[:3], v.size(-1), dtype=torch.float64)
    for b, h, i in product(*map(range, scores.shape[:3])):
        keys = seen[b, 0, i].nonzero()[:, 0]
        if len(keys):
            out[b, h, i] = scores[b, h, i, keys].softmax(0) @ v[b, h, keys].double()
    return out


def formula(kernel: Kernel, q: Tensor, k: Tensor) -> Tensor:
    q, k = q.double(), k.double()
    if isinstance(kernel, Additive):
        return torch.tanh(q[:, :, :, None] + k[:, :, None]) @ kernel.score.weight.detach().double()[0]
    return q @ k.transpose(-2, -1) * (8**-0.5 if kernel.scale is None else kernel.scale)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("kernel", [Softmax(), Softmax(scale=1.0), Additive(8)], ids=["scaled", "unscaled", "additive"])
@torch.no_grad()
def test_kernels_are_their_formula(kernel: Kernel, queries: int, keys: int, biased: bool) -> None:
    """In float64, for every word of a mask; and the visible path mixes to what the fused one does."""
    for name, mask in masks(queries, keys).items():
        q, k, v = three(queries, keys)
        bias = torch.randn(2, 3, queries, keys) if biased else None
        scores = formula(kernel, q, k) + (0 if bias is None else bias.double())
        want = naive(scores, v, seen_by_pairs(mask, queries, keys))
        close(kernel(q, k, v, mask, bias).double(), want, 2e-6)
        weights = kernel.weights(q, k, mask, bias)
        close((weights @ v).double(), want, 2e-6)
        total = weights.sum(-1)
        assert ((total - 1).abs().lt(1e-6) | total.eq(0)).all(), name


KERNELS = {
    "softmax": Softmax(),
    "unscaled": Softmax(scale=1.0),
    "additive": Additive(8),
    "window": Band(3),
    "favor": RandomFeatures(8, 32),
    "lowrank": LowRank(3, 4, 11),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_seeing_nothing_gives_zeros(name: str, causal: bool) -> None:
    """Before the output map, exactly; and every gradient is finite."""
    kernel, (q, k, v) = KERNELS[name], three(10, 10, grad=True)
    if causal and not kernel.causal:
        pytest.skip("sees everything")
    out = kernel(q, k, v, Mask(causal=causal, keys=ragged([10, 0])))
    grads = torch.autograd.grad(out.square().sum(), [q, k, v, *kernel.parameters()])
    assert out[1].abs().max() == 0
    assert out[0].abs().max() > 0
    assert all(grad.isfinite().all() for grad in grads)
    if name not in ("favor", "lowrank"):
        alone = kernel(q[:, :, :1], k[:, :, :1], v[:, :, :1], Mask(others=True, causal=causal))
        assert alone.abs().max() == 0


@pytest.mark.parametrize("scheme", [Bucketed(3, causal=True), Relative(24, 3)], ids=["buckets", "relative"])
def test_seeing_nothing_gives_zeros_under_a_bias(scheme: Positions) -> None:
    """Also through a whole attention, whose positions add to the scores."""
    attention, x = Attention(24, 3), torch.randn(2, 6, 24, requires_grad=True)
    attention.out = nn.Identity()
    mask = Mask(causal=True, keys=ragged([6, 0]))
    out = attention(x, x, x, mask, scheme.where(x, mask, mask))
    grads = torch.autograd.grad(out.square().sum(), [x, *scheme.parameters(), attention.key.weight])
    assert out[1].abs().max() == 0
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("tokens", [1, 4, 5, 23])
@torch.no_grad()
def test_window_is_dense_with_reach(tokens: int) -> None:
    kernel = Band(5)
    for name, mask in masks(tokens, tokens).items():
        if mask.kin is not None or mask.keys_segments is not None:  # words of a cache and of a cross-attention
            continue
        mask = mask.but(globals=None, reach=None)
        q, k, v = three(tokens, tokens)
        want = Softmax()(q, k, v, mask.but(reach=5))
        close(kernel(q, k, v, mask), want, 1e-6)
        close(kernel.weights(q, k, mask) @ v, want, 1e-6)
        assert name


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_window_with_global_positions_is_dense(causal: bool) -> None:
    """Where global positions ask, Longformer asks apart; everyone else agrees with the dense kernel."""
    q, k, v = three(23, 23)
    marks = torch.tensor([[3, 20, 0], [7, -1, -1]])
    segments = torch.tensor([[0] * 11 + [1] * 12, [0] * 23])
    for words in ({}, {"others": True}, {"keys": ragged([21, 6], 23)}, {"segments": segments}):
        mask = Mask(causal=causal, globals=marks, **words)
        rest = ~mask.marked(23)
        got, want = Band(5)(q, k, v, mask), Softmax()(q, k, v, mask.but(reach=5))
        close(got.transpose(1, 2)[rest], want.transpose(1, 2)[rest], 1e-6)


@torch.no_grad()
def test_global_positions_see_everything_of_their_text() -> None:
    """Equal projections for both kinds of query: the whole module is then dense attention under the same words."""
    ours, dense, x = GlobalAttention(24, 3, 4, 1), Attention(24, 3), torch.randn(2, 23, 24)
    for part in ("query", "key", "value"):
        for look in (ours.near, ours.wide):
            getattr(look, part).load_state_dict(getattr(dense, part).state_dict())
    ours.out.load_state_dict(dense.out.state_dict())
    marks, segments = torch.tensor([[3, 20, 0], [7, -1, -1]]), torch.tensor([[0] * 11 + [1] * 12, [0] * 23])
    for words in ({}, {"others": True}, {"keys": ragged([21, 6], 23)}, {"segments": segments}):
        mask = Mask(globals=marks, **words)
        close(ours(x, x, x, mask), dense(x, x, x, mask.but(reach=4)), 1e-6)
    first = Mask(globals=torch.zeros(2, 1, dtype=torch.long))
    close(ours(x, x, x, Mask()), ours(x, x, x, first), 0)


def quadratic(kernel: RandomFeatures, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """What favor stands for, in float64: every product of features, one pair after the other."""
    pairs = kernel.log_features(q.double())[:, :, :, None] + kernel.log_features(k.double())[:, :, None]
    scores = pairs.logsumexp(-1).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v.double()


@pytest.mark.parametrize("chunk", [1, 7, 64, 200])
@torch.no_grad()
def test_favor_is_its_quadratic_form(chunk: int) -> None:
    """At every size of a chunk; 140 tokens are more than a span of the small ones."""
    kernel, (q, k, v), real = RandomFeatures(8, 30, chunk), three(140, 140), ragged([140, 51])
    for causal in (False, True):
        seen = real[:, None, None] & (torch.ones(140, 140).tril() if causal else torch.ones(140, 140)).bool()
        close(kernel(q, k, v, Mask(causal, keys=real)).double(), quadratic(kernel, q, k, v, seen), 1e-5)
        close(kernel.weights(q, k, Mask(causal, keys=real)) @ v, quadratic(kernel, q, k, v, seen).float(), 1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 64, 200])
@pytest.mark.parametrize("groups", [1, 3])
@torch.no_grad()
def test_favor_keeps_packed_texts_apart(chunk: int, groups: int) -> None:
    """Texts longer and shorter than a chunk, one that ends with a span; the loud one in between changes no unit."""
    kernel, (q, k, v) = RandomFeatures(8, 30, chunk), three(140, 140)
    k, v = k[:, : 3 // groups], v[:, : 3 // groups]
    lengths = torch.tensor([[5, 107, 2, 26], [112, 1, 20, 7]])
    segments = torch.stack([torch.arange(4).repeat_interleave(row) for row in lengths])
    k = k * torch.where(segments == 1, 12.0, 1.0)[:, None, :, None]
    seen = (segments[:, :, None] == segments[:, None, :])[:, None] & torch.ones(140, 140).tril().bool()
    want = quadratic(kernel, q, *(x.repeat_interleave(groups, 1) for x in (k, v)), seen)
    close(kernel(q, k, v, Mask(True, segments=segments)).double(), want, 2e-5)


def test_favor_learns_through_every_chunk() -> None:
    """Gradients, too, are those of the quadratic form: queries, keys and values, before and behind a border."""
    kernel, real = RandomFeatures(8, 30, chunk=3), ragged([60, 41])
    q, k, v = three(60, 60, grad=True)
    seen = real[:, None, None] & torch.ones(60, 60).tril().bool()
    push = torch.randn(2, 3, 60, 8)
    ours = torch.autograd.grad((kernel(q, k, v, Mask(True, keys=real)) * push).sum(), [q, k, v])
    want = torch.autograd.grad((quadratic(kernel, q, k, v, seen) * push).sum(), [q, k, v])
    for mine, theirs in zip(ours, want, strict=True):
        close(mine, theirs, 2e-4)


def estimates(features: int, orthogonal: bool) -> Tensor:
    """Relative errors of exp(q·k/√d) by so many features, (2000 draws, pairs)."""
    torch.manual_seed(3)
    q, k = 0.5 * torch.randn(2, 1, 1, 40, 8)
    kernel, errors = RandomFeatures(8, features), []
    exact = (q * k).sum(-1).div(8**0.5).exp()
    for _ in range(2000):
        kernel.directions.copy_(draw(features, 8, orthogonal=orthogonal))
        found = (kernel.log_features(q) + kernel.log_features(k)).exp().mean(-1)
        errors.append((found / exact - 1).flatten())
    return torch.stack(errors)


@torch.no_grad()
def test_favor_estimates_the_kernel_without_bias() -> None:
    """The mean over draws is the kernel; the error falls with the root of the features; orthogonal is better."""
    few, many, independent = estimates(8, True), estimates(32, True), estimates(8, False)
    assert (few.mean(0).abs() < 4.5 * few.std(0) / 2000**0.5).all() and few.std() < 1
    assert 1.7 < few.square().mean().sqrt() / many.square().mean().sqrt() < 2.3
    assert few.square().mean() < 0.9 * independent.square().mean()


@torch.no_grad()
def test_favor_nears_softmax_with_more_features() -> None:
    q, k, v = three(9, 9)
    q, k, mask, kernel = q / 2, k / 2, Mask(causal=True), RandomFeatures(8, 2**16)
    assert (kernel(q, k, v, mask) - Softmax()(q, k, v, mask)).abs().mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_favor_keeps_its_range(dtype: torch.dtype) -> None:
    """One key whose features are e^100 times the others': it rules what comes behind it, and before it nothing changes,
    be it in the same chunk or not."""
    kernel, (q, k, v) = RandomFeatures(8, 32, chunk=4), three(23, 23)
    for loud in (0, 2, 21):
        big = k.clone()
        big[:, :, loud] = 30 * F.normalize(kernel.directions[0], dim=0)
        out = kernel(q.to(dtype), big.to(dtype), v.to(dtype), Mask(causal=True))
        assert out.isfinite().all() and out.dtype == dtype
        seen = torch.ones(23, 23).tril().bool()
        bound = 1e-4 if dtype == torch.float32 else 0.1
        want = quadratic(kernel, q, k, v, seen)
        close(out[:, :, :loud].double(), want[:, :, :loud], bound) if loud else None
        close(out[:, :, loud:].double(), quadratic(kernel, q, big, v, seen)[:, :, loud:], bound)


@torch.no_grad()
def test_favor_compiles_to_one_graph() -> None:
    kernel, (q, k, v) = RandomFeatures(8, 30, chunk=3), three(60, 60)
    segments = torch.arange(60).div(17, rounding_mode="floor").expand(2, -1)
    compiled = torch.compile(kernel, fullgraph=True, backend="eager")
    for mask in (Mask(), Mask(True), Mask(True, segments=segments), Mask(True, keys=ragged([60, 41]))):
        close(compiled(q, k, v, mask), kernel(q, k, v, mask), 1e-6)


def test_favor_directions_are_orthogonal_and_kept() -> None:
    kernel = RandomFeatures(8, 20)
    block = F.normalize(kernel.directions[:8], dim=1)
    close(block @ block.T, torch.eye(8), 1e-5)
    assert "directions" in kernel.state_dict()
    exact = kernel.directions.clone()
    assert kernel.to(torch.bfloat16).directions.equal(exact)
    with pytest.raises(ValueError, match="0 features estimate nothing; use 1 or more"):
        RandomFeatures(8, 0)


def test_favor_is_drawn_anew_by_step_and_seed_alone() -> None:
    one, other = (RandomFeatures(8, 20, redraw=5) for _ in range(2))
    before = one.directions.clone()
    one.renew(4, 7)
    assert one.directions.equal(before) and not other.directions.equal(before)
    torch.manual_seed(1)
    one.renew(10, 7)
    other.renew(5, 7)
    assert one.directions.equal(other.directions)
    other.renew(10, 8)
    assert not one.directions.equal(other.directions)
    still = RandomFeatures(8, 20)
    before = still.directions.clone()
    still.renew(1000, 7)
    assert still.directions.equal(before)


# --- Linformer ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", ["none", "heads", "key-value", "layers"])
@torch.no_grad()
def test_lowrank_with_identity_is_dense(sharing: str) -> None:
    kernel, (q, k, v) = LowRank(3, 11, 11, sharing), three(11, 11)
    for places in (kernel.keys, kernel.values):
        assert places.weight.equal(torch.eye(11).expand_as(places.weight))  # so it begins; with fewer places, as means
    close(kernel(q, k, v, Mask()), Softmax()(q, k, v, Mask()), 1e-6)
    close(kernel.weights(q, k, Mask()), Softmax().weights(q, k, Mask()), 1e-6)
    close(LowRank(3, 2, 5).keys.weight[0], torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 1.5, 1.5]]) / 3, 1e-6)


@pytest.mark.parametrize("sharing", ["none", "heads", "key-value", "layers"])
@torch.no_grad()
def test_lowrank_is_its_formula(sharing: str) -> None:
    """softmax(q (E k)ᵀ/√d) F v, with what is hidden zero before the maps, and every token at its own place."""
    kernel, (q, k, v), real = LowRank(3, 4, 13, sharing), three(9, 9), ragged([9, 5])
    for weight in kernel.parameters():
        weight.normal_()
    places = torch.stack([torch.arange(9), torch.randperm(13)[:9]])
    maps = 3 if sharing == "none" else 1
    assert kernel.keys.weight.shape == kernel.values.weight.shape == (maps, 4, 13)
    assert (kernel.keys is kernel.values) == (sharing in ("key-value", "layers"))
    for mask in (Mask(), Mask(keys=real), Mask(keys=real, at=places)):
        at = mask.places(9, 9)[0].expand(2, -1)
        want, shown = torch.zeros(2, 3, 9, 8).double(), torch.ones(2, 9).bool() if mask.keys is None else mask.keys
        for b, h in product(range(2), range(3)):
            rows = shown[b].nonzero()[:, 0]
            e, f = (m.weight[h % maps][:, at[b, rows]].double() for m in (kernel.keys, kernel.values))
            looks = (q[b, h].double() @ (e @ k[b, h, rows].double()).T / 8**0.5).softmax(-1)
            want[b, h] = looks @ (f @ v[b, h, rows].double())
        close(kernel(q, k, v, mask).double(), want, 1e-5)
        if mask.at is None:
            close((kernel.weights(q, k, mask) @ v).double(), want, 1e-5)


def test_lowrank_shares_one_map_among_layers() -> None:
    def stack(sharing: str) -> Stack:
        slot = slots.Lowrank(rank=3, tokens=9, sharing=sharing)
        layers = [Layer(slot.build(12, 2), Feed(12, 12), lambda: Residual(nn.LayerNorm(12))) for _ in range(3)]
        return Stack(layers, positions=Learned(30, 12))

    for sharing, maps in (("none", 6), ("heads", 6), ("key-value", 3), ("layers", 1)):
        made = stack(sharing)
        names = [name for name, _ in made.named_parameters() if "kernel" in name]
        assert len(names) == maps and made.context == 9
    first, *rest = (layer.attention.kernel for layer in made.layers)
    assert all(kernel.keys is first.keys and kernel.values is first.keys for kernel in rest)
    out = made(torch.randn(2, 9, 12), Mask())
    (grad,) = torch.autograd.grad(out.sum(), [first.keys.weight])
    assert grad.abs().max() > 0


def test_what_lowrank_and_favor_cannot_do_is_refused() -> None:
    q, k, v = three(9, 9)
    packed = Mask(segments=torch.zeros(2, 9, dtype=torch.long))
    lowrank, favor = LowRank(3, 4, 8), RandomFeatures(8, 4)
    with pytest.raises(ValueError, match=r"a text of 9 tokens is longer than the 8 places that lowrank attention maps"):
        lowrank(q, k, v, Mask())
    with pytest.raises(ValueError, match=r"lowrank attention .* cannot pack; set data.packed=false"):
        LowRank(3, 4, 9)(q, k, v, packed)
    for mask in (Mask(causal=True), Mask(others=True), Mask(reach=3)):
        with pytest.raises(ValueError, match="lowrank attention maps all positions together and cannot hide some"):
            LowRank(3, 4, 9)(q, k, v, mask)
    with pytest.raises(ValueError, match=r"favor attention .* cannot pack; set data.packed=false"):
        favor(q, k, v, packed)
    for mask in (Mask(others=True), Mask(reach=3)):
        with pytest.raises(ValueError, match="favor attention sums all positions up and cannot leave some out"):
            favor(q, k, v, mask)
    for slot, name in ((slots.Lowrank(), "LowRank"), (slots.Favor(), "RandomFeatures")):
        layer = Layer(slot.build(12, 2), Feed(12, 12), lambda: Residual(nn.LayerNorm(12)))
        for scheme in (Bucketed(2), Relative(12, 2)):
            with pytest.raises(ValueError, match=f"{name} has no scores for {type(scheme).__name__} positions"):
                Stack([layer], positions=scheme)
    layer = Layer(slots.Lowrank().build(12, 2), Feed(12, 12), lambda: Residual(nn.LayerNorm(12)))
    with pytest.raises(ValueError, match="LowRank sees later tokens and cannot be causal; use it in an encoder"):
        Stack([layer], causal=True)


# --- A property: what is hidden does not matter ----------------------------------------------------------------------


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Mask, int]:
    """Any mask of self-attention over two rows."""
    tokens, generator = draw(st.integers(1, 11)), torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    flags = {word: draw(st.booleans()) for word in ("causal", "others", "keys", "at", "segments", "globals")}
    reach = draw(st.none() | st.integers(0, 5))

    def some(most: int, *size: int) -> Tensor:
        return torch.randint(most, size, generator=generator)

    mask = Mask(
        causal=flags["causal"],
        others=flags["others"],
        reach=reach,
        keys=some(2, 2, tokens).bool() if flags["keys"] else None,
        segments=some(3, 2, tokens).sort(1).values if flags["segments"] else None,
        globals=torch.stack([torch.randperm(tokens, generator=generator)[:2] for _ in range(2)])
        if flags["globals"]
        else None,
        at=torch.arange(tokens).expand(2, -1) + some(9, 2, 1) if flags["at"] else None,
    )
    return mask, tokens


@settings(max_examples=150, deadline=None, derandomize=True)
@given(drawn(), st.sampled_from(sorted(KERNELS)), st.integers(0, 10))
@torch.no_grad()
def test_what_is_hidden_does_not_matter(drawn: tuple[Mask, int], name: str, place: int) -> None:
    """Changing a key and its value changes no query that does not see it, and whoever sees nothing gets zeros."""
    (mask, tokens), kernel, j = drawn, KERNELS[name], place % drawn[1]
    if name in ("favor", "lowrank"):
        mask = mask.but(others=False, reach=None, segments=None, globals=None)
    if name == "lowrank":
        mask = mask.but(causal=False, at=None)
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 2, tokens, 8) for _ in range(3))
    other_k, other_v = k.clone(), v.clone()
    other_k[:, :, j] += 3 * torch.randn(2, 2, 8)
    other_v[:, :, j] += 100
    narrow = mask if name != "window" else mask.but(reach=min(3, 3 if mask.reach is None else mask.reach))
    seen = seen_by_pairs(narrow, tokens, tokens)[:, 0]  # (rows, queries, keys)
    before, after = (kernel(q, *pair, mask).transpose(1, 2) for pair in ((k, v), (other_k, other_v)))
    usual = ~mask.marked(tokens) if mask.globals is not None and name == "window" else torch.ones(2, tokens).bool()
    assert (before[~seen.any(-1) & usual] == 0).all()
    unmoved = ~seen[:, :, j] & usual
    assert torch.allclose(before[unmoved], after[unmoved], atol=1e-5 if name == "favor" else 1e-6)
    moved = seen[:, :, j] & usual
    assert ((before - after).abs().amax((-2, -1)) > 0)[moved].all() or name == "favor"
