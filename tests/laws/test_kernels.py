"""Every kernel against its formula in float64, and laws of all kernels under any mask."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prototypes.checks import Largest, close, ragged
from prototypes.words import SIZES, masks, seen_by_pairs
from torch import Tensor, nn
from torch.nn import functional as F

from regard.parts import (
    AddedTerms,
    AdditiveKernel,
    Attention,
    BucketPositions,
    FeedForward,
    Kernel,
    Layer,
    LearnedPositions,
    Mask,
    Positions,
    RelativePositions,
    Residual,
    RotaryPositions,
    SoftmaxKernel,
    Stack,
    flex,
    slots,
)
from regard.parts.efficient import BlockSparseKernel, GlobalAttention, LowRankKernel, RandomFeatureKernel, WindowKernel
from regard.parts.efficient.blocks import draw_blocks
from regard.parts.efficient.random_features import draw_directions


def three(queries: int, keys: int, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 8)
    q, k, v = (torch.randn(size, requires_grad=grad) for size in sizes)
    return q, k, v


def naive(scores: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Softmax in float64, one query at a time over its visible keys."""
    out = torch.zeros(*scores.shape[:3], v.size(-1), dtype=torch.float64)
    for b, h, i in product(*map(range, scores.shape[:3])):
        keys = seen[b, 0, i].nonzero()[:, 0]
        if len(keys):
            out[b, h, i] = scores[b, h, i, keys].softmax(0) @ v[b, h, keys].double()
    return out


def formula(kernel: Kernel, q: Tensor, k: Tensor) -> Tensor:
    q, k = q.double(), k.double()
    if isinstance(kernel, AdditiveKernel):
        return torch.tanh(q[:, :, :, None] + k[:, :, None]) @ kernel.score.weight.detach().double()[0]
    return q @ k.transpose(-2, -1) * (8**-0.5 if kernel.scale is None else kernel.scale)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize(
    "kernel", [SoftmaxKernel(), SoftmaxKernel(scale=1.0), AdditiveKernel(8)], ids=["scaled", "unscaled", "additive"]
)
@torch.no_grad()
def test_kernels_equal_their_formulas(kernel: Kernel, queries: int, keys: int, biased: bool) -> None:
    """In float64, for every field of a mask; `weights` times values equals the fused output."""
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
    "softmax": SoftmaxKernel(),
    "unscaled": SoftmaxKernel(scale=1.0),
    "additive": AdditiveKernel(8),
    "window": WindowKernel(3),
    "blocked window": WindowKernel(3, block=2),
    "favor": RandomFeatureKernel(8, 32),
    "blocks": BlockSparseKernel(2, 1),
    "lowrank": LowRankKernel(3, 4, 11),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_no_visible_key_gives_zeros(name: str, causal: bool) -> None:
    """Before the output map, exactly; and every gradient is finite."""
    kernel, (q, k, v) = KERNELS[name], three(10, 10, grad=True)
    if causal and not kernel.causal:
        pytest.skip("sees everything")
    out = kernel(q, k, v, Mask(causal=causal, key_valid=ragged([10, 0])))
    grads = torch.autograd.grad(out.square().sum(), [q, k, v, *kernel.parameters()])
    assert out[1].abs().max() == 0
    assert out[0].abs().max() > 0
    assert all(grad.isfinite().all() for grad in grads)
    if name not in ("favor", "blocks", "lowrank"):
        alone = kernel(q[:, :, :1], k[:, :, :1], v[:, :, :1], Mask(exclude_self=True, causal=causal))
        assert alone.abs().max() == 0


@pytest.mark.parametrize(
    "scheme", [BucketPositions(3, causal=True), RelativePositions(24, 3)], ids=["buckets", "relative"]
)
def test_no_visible_key_gives_zeros_with_bias(scheme: Positions) -> None:
    """Also in a complete attention module whose positions add to the scores."""
    attention, x = Attention(24, 3), torch.randn(2, 6, 24, requires_grad=True)
    attention.out = nn.Identity()
    mask = Mask(causal=True, key_valid=ragged([6, 0]))
    out = attention(x, x, x, mask, scheme.terms(x, mask, mask))
    grads = torch.autograd.grad(out.square().sum(), [x, *scheme.parameters(), attention.key.weight])
    assert out[1].abs().max() == 0
    assert all(grad.isfinite().all() for grad in grads)


def spaced(mask: Mask, tokens: int, radius: int, dilation: int) -> Mask:
    """The same pattern as a mask for a dense kernel: `radius` neighbors on each side, every `dilation`-th token."""
    gap = torch.arange(tokens)[:, None] - torch.arange(tokens)[None]
    met = (gap % dilation == 0).expand(2, -1, -1)
    if mask.global_positions is not None:
        met = met | mask.is_global(tokens)[:, None] | mask.is_global(tokens)[:, :, None]
    reach = radius * dilation if mask.window is None else min(radius * dilation, mask.window)
    return mask.replace(window=reach, beam_ancestry=met)


@pytest.mark.parametrize("tokens", [1, 4, 5, 23, 48])
@pytest.mark.parametrize(("radius", "dilation", "block"), [(5, 1, 4), (5, 1, 64), (2, 3, 4), (3, 2, 8), (60, 1, 4)])
@torch.no_grad()
def test_window_equals_dense_with_window_mask(tokens: int, radius: int, dilation: int, block: int) -> None:
    """Also with several query heads to a key head, and with a window larger than the text."""
    kernel = WindowKernel(radius, dilation, block)
    for name, mask in masks(tokens, tokens).items():
        if mask.beam_ancestry is not None or mask.key_segments is not None:  # words of a cache and of a cross-attention
            continue
        if dilation > 1 and mask.positions is not None and not (mask.positions.diff(dim=1) == 1).all():
            continue
        mask = mask.replace(global_positions=None)
        q, k, v = three(tokens, tokens)
        want = SoftmaxKernel()(q, k, v, spaced(mask, tokens, radius, dilation))
        close(kernel(q, k, v, mask), want, 1e-6)
        close(kernel.weights(q, k, mask) @ v, want, 1e-6)
        close(kernel(q, k[:, :1], v[:, :1], mask), kernel(q, k[:, :1].expand_as(k), v[:, :1].expand_as(v), mask), 1e-6)
        assert name


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dilation", "block"), [(1, 64), (1, 4), (2, 4)])
@torch.no_grad()
def test_window_with_global_positions_equals_dense(causal: bool, dilation: int, block: int) -> None:
    """Global queries are computed separately; all other queries equal the dense kernel."""
    q, k, v = three(33, 33)
    marks = torch.tensor([[3, 30, 0], [7, -1, -1]])
    segments = torch.tensor([[0] * 11 + [1] * 22, [0] * 33])
    for words in ({}, {"exclude_self": True}, {"key_valid": ragged([31, 6], 33)}, {"segments": segments}):
        mask = Mask(causal=causal, global_positions=marks, **words)
        rest = ~mask.is_global(33)
        got, want = (
            WindowKernel(5, dilation, block)(q, k, v, mask),
            SoftmaxKernel()(q, k, v, spaced(mask, 33, 5, dilation)),
        )
        close(got.transpose(1, 2)[rest], want.transpose(1, 2)[rest], 1e-6)


def twins(block: int = 4) -> tuple[GlobalAttention, Attention]:
    """A window with global positions and a dense attention, with equal projections for both kinds of query."""
    ours, dense = GlobalAttention(24, 3, 4, 1), Attention(24, 3)
    ours.near.kernel.block = block
    for part in ("query", "key", "value"):
        for look in (ours.near, ours.wide):
            getattr(look, part).load_state_dict(getattr(dense, part).state_dict())
    ours.out.load_state_dict(dense.out.state_dict())
    return ours, dense


@pytest.mark.parametrize("block", [4, 64])
@torch.no_grad()
def test_global_positions_attend_within_their_text(block: int) -> None:
    """The whole module then equals dense attention under the same mask."""
    (ours, dense), x = twins(block), torch.randn(2, 23, 24)
    marks, segments = torch.tensor([[3, 20, 0], [7, -1, -1]]), torch.tensor([[0] * 11 + [1] * 12, [0] * 23])
    for words in ({}, {"exclude_self": True}, {"key_valid": ragged([21, 6], 23)}, {"segments": segments}):
        mask = Mask(global_positions=marks, **words)
        close(ours(x, x, x, mask), dense(x, x, x, mask.replace(window=4)), 1e-6)
    first = Mask(global_positions=torch.zeros(2, 1, dtype=torch.long))
    close(ours(x, x, x, Mask()), ours(x, x, x, first), 0)
    ours.leading_globals = 0
    close(ours(x, x, x, Mask()), dense(x, x, x, Mask(window=4)), 1e-6)
    with pytest.raises(ValueError, match="cannot pack"):
        twins()[0](x, x, x, Mask(segments=segments))


@torch.no_grad()
def test_invalid_global_positions_are_ignored() -> None:
    (ours, dense), x = twins(), torch.randn(2, 17, 24)
    for marks in ([[3, 17, 99], [7, 7, -1]], [[3, 3, 99], [17, 7, 7]]):
        mask = Mask(global_positions=torch.tensor(marks))
        close(ours(x, x, x, mask), dense(x, x, x, Mask(global_positions=torch.tensor([[3], [7]]), window=4)), 1e-6)
    ours.leading_globals = 20  # more than there are tokens: all of them
    close(ours(x, x, x, Mask()), dense(x, x, x, Mask()), 1e-6)


@pytest.mark.parametrize("tokens", [23, 200])
@torch.no_grad()
def test_global_positions_keep_position_terms(tokens: int) -> None:
    """With rotary or added positions they still equal dense attention; a single row serves the batch."""
    (ours, dense), x = twins(), torch.randn(2, tokens, 24)
    marks = torch.tensor([[3, tokens - 1]])
    mask = Mask(key_valid=ragged([tokens, tokens - 9]))
    added = AddedTerms(torch.randn(1, tokens, 24), torch.randn(1, tokens, 24))
    for where in (RotaryPositions(8).terms(x, mask, mask), added):
        found = ours(x, x, x, mask.replace(global_positions=marks), where)
        wanted = dense(x, x, x, mask.replace(global_positions=marks.expand(2, -1), window=4), where)
        close(found[mask.key_valid], wanted[mask.key_valid], 1e-5)


@torch.no_grad()
def test_single_row_mask_tensors_broadcast() -> None:
    (q, k, v), at, segments = three(41, 41), torch.arange(41)[None], (torch.arange(41) > 20).long()[None]
    for words in (
        {"positions": at, "key_valid": ragged([41, 20])},
        {"positions": at + 5, "segments": segments, "key_valid": ragged([41, 20])},
    ):
        for causal in (False, True):
            mask = Mask(causal, **words)
            close(WindowKernel(5, block=4)(q, k, v, mask), SoftmaxKernel()(q, k, v, mask.replace(window=5)), 1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_window_memory_is_linear(causal: bool) -> None:
    """Also for the gradient: twice the text, twice the largest tensor."""
    sizes = []
    for tokens in (2000, 4000):
        q, k, v = (torch.randn(1, 2, tokens, 8, requires_grad=True) for _ in range(3))
        marks = None if causal else torch.tensor([[0, 700]])
        valid = torch.arange(tokens)[None] < tokens - 9
        with Largest() as largest:
            WindowKernel(16)(q, k, v, Mask(causal, global_positions=marks, key_valid=valid)).square().sum().backward()
        sizes.append(largest.elements)
    assert sizes[1] <= 2.1 * sizes[0] and sizes[1] < 4000 * 4000 / 10


def test_window_gradient_equals_dense() -> None:
    for kernel in (WindowKernel(5, 1, 4), WindowKernel(2, 2, 8)):
        q, k, v = three(41, 41, grad=True)
        mask = Mask(key_valid=ragged([41, 20]), global_positions=torch.tensor([[40], [-1]]))
        dense = SoftmaxKernel()(q, k, v, spaced(mask, 41, kernel.radius, kernel.dilation))
        rest = ~mask.is_global(41)
        wanted = torch.autograd.grad(dense.transpose(1, 2)[rest].square().sum(), [q, k, v])
        found = torch.autograd.grad(kernel(q, k, v, mask).transpose(1, 2)[rest].square().sum(), [q, k, v])
        for ours, theirs in zip(found, wanted, strict=True):
            close(ours, theirs, 1e-5)


@torch.no_grad()
def test_flex_window_mask_equals_window() -> None:
    """The block mask for FlexAttention has the same pairs, and its blocks cover just those."""
    marks, segments = torch.tensor([[3, 300], [-1, 7]]), (torch.arange(333) > 200).long().expand(2, -1)
    keys, texts = ragged([333, 150], 333), torch.tensor([[300, 33], [30, 303]])
    packed = {
        "segments": torch.stack([torch.arange(2).repeat_interleave(each) for each in texts]),
        "positions": torch.stack([torch.cat([torch.arange(n) for n in each.tolist()]) for each in texts]),
    }
    for words in ({}, {"causal": True}, {"global_positions": marks}, {"key_valid": keys, "global_positions": marks, "exclude_self": True},
                  {"segments": segments}, {"causal": True, "global_positions": marks, "key_valid": keys}, packed,
                  {"causal": True, **packed}, {"causal": True, "positions": 2 * torch.arange(333).expand(2, -1)}):  # fmt: skip
        for radius, dilation in ((20, 1), (240, 1), (255, 1), (7, 3)):
            mask, kernel = Mask(**words), WindowKernel(radius, dilation)
            blocks = kernel._flex_mask(mask, 333, torch.device("cpu"))
            seen = kernel._dense_mask(mask, 333, 333, torch.device("cpu")).visible(333, 333).expand(2, -1, -1, -1)[:, 0]
            flexed(blocks, seen, mask)
            if words is packed and radius == 255:  # inside a text most is plain
                assert int(blocks.full_kv_num_blocks.sum()) > 0 and len(blocks.kv_num_blocks) == 2


def flexed(blocks: Any, seen: Tensor, mask: Mask) -> None:
    """Check that `seen` (batch, tokens, tokens) equals the block mask."""
    tokens = seen.size(1)
    i = torch.arange(tokens)
    in_order(blocks)
    for row in range(len(seen)):
        told = blocks.mask_mod(torch.tensor(row), torch.tensor(0), i[:, None], i[None]).expand(tokens, tokens)
        rest = torch.ones(tokens, dtype=torch.bool) if mask.global_positions is None else ~mask.is_global(tokens)[row]
        assert told[rest].equal(seen[row][rest])
        table = F.pad(told, (0, -tokens % 128, 0, -tokens % 128)).unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
        some, count = table.any(3).any(1), blocks.shape[0]
        part, full = (
            dense_blocks(number[min(row, count - 1), 0], listed[min(row, count - 1), 0])
            for number, listed in ((blocks.kv_num_blocks, blocks.kv_indices),
                                   (blocks.full_kv_num_blocks, blocks.full_kv_indices))
        )  # fmt: skip
        assert not (part & full).any() and (part | full)[some].all()
        assert table.all(3).all(1)[full].all()
        if all(word is None for word in (mask.key_valid, mask.segments)) and not mask.causal:
            assert (part | full).sum() <= some.sum() + len(some)


def in_order(blocks: Any) -> None:
    """FlexAttention's kernels ignore strides."""
    names = ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices")
    assert all(getattr(blocks, f"{full}{name}").is_contiguous() for name in names for full in ("", "full_"))


def dense_blocks(number: Tensor, listed: Tensor) -> Tensor:
    chosen = torch.arange(listed.size(1))[None] < number[:, None]
    return torch.zeros_like(listed, dtype=torch.bool).scatter(1, listed.long(), chosen)


# --- BigBird's blocks --------------------------------------------------------------------------------------------------


def chosen_pairs(kernel: BlockSparseKernel, length: int, tokens: int, heads: int) -> Tensor:
    """(heads, tokens, tokens), block by block as in the paper: -inf, or the bias of a pair's score."""
    blocks, last = -(-length // kernel.size), -(-length // kernel.size) - 1
    picks = kernel.random_blocks(torch.tensor([blocks]), blocks, heads)[0].tolist()
    table = torch.full((heads, tokens, tokens), -torch.inf)
    for head, i, j in product(range(heads), range(length), range(length)):
        mine, other = i // kernel.size, j // kernel.size
        usual = other in (0, last, mine - 1, mine, mine + 1) or mine in (0, last)
        drawn = kernel.drawn and other in picks[head][mine]
        if length <= (5 + 2 * kernel.random) * kernel.size or usual or drawn:
            table[head, i, j] = 0.0
        if not kernel.drawn and other == 0 and 0 < mine < last and length > (5 + 2 * kernel.random) * kernel.size:
            table[head, i, j] = math.log(1 + kernel.random)
    return table


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize(("size", "random"), [(2, 1), (3, 2), (4, 0)])
@torch.no_grad()
def test_blocks_equal_their_pattern(size: int, random: int, drawn: bool) -> None:
    """Texts whose lengths are no multiple of the block, in one batch: each equals itself alone."""
    kernel = BlockSparseKernel(size, random, 5, drawn)
    for tokens, ends in (
        (41, None),
        (40, [40, 23]),
        (kernel.dense_limit + 1, [kernel.dense_limit + 1, 0]),
        (kernel.dense_limit, [4, 9]),
    ):
        q, k, v = three(tokens, tokens)
        mask = Mask() if ends is None else Mask(key_valid=ragged(ends, tokens))
        table = torch.stack([chosen_pairs(kernel, n, tokens, 3) for n in ends or [tokens] * 2])
        scores = q.double() @ k.double().transpose(-2, -1) * 8**-0.5 + table
        blind = scores.amax(-1, keepdim=True) == -torch.inf
        want = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
        valid = torch.ones(2, tokens, dtype=torch.bool) if ends is None else mask.key_valid
        found = kernel(q, k, v, mask).transpose(1, 2)[valid]
        close(found.double(), (want @ v.double()).transpose(1, 2)[valid], 1e-6)
        close(kernel.weights(q, k, mask).transpose(1, 2)[valid].double(), want.transpose(1, 2)[valid], 1e-6)
        shared = kernel(q, k[:, :1], v[:, :1], mask)
        close(shared, kernel(q, k[:, :1].expand_as(k), v[:, :1].expand_as(v), mask), 1e-6)


def test_drawn_blocks_differ_and_are_stable() -> None:
    kernel = BlockSparseKernel(2, 3, 7)
    picks = kernel.random_blocks(torch.tensor([12, 40]), 40, 4)
    assert picks[:1].equal(kernel.random_blocks(torch.tensor([12]), 40, 4))  # whoever else is there
    assert picks[:1, :, :12].equal(kernel.random_blocks(torch.tensor([12]), 12, 4))
    for row, blocks in enumerate((12, 40)):
        for head, i in product(range(4), range(1, blocks - 1)):
            some = picks[row, head, i].tolist()
            assert len({*some} - {0, blocks - 1, i - 1, i, i + 1}) == 3 and 0 < min(some) <= max(some) < blocks
    assert not picks[:, 0].equal(picks[:, 1])
    assert not picks.equal(BlockSparseKernel(2, 3, 8).random_blocks(torch.tensor([12, 40]), 40, 4))
    spread = torch.bincount(
        BlockSparseKernel(2, 3).random_blocks(torch.tensor([40]), 40, 400)[0, :, 5].flatten(), minlength=40
    )[8:39]
    assert (spread > 0).all()  # every other block is drawn by some head
    torch.library.opcheck(draw_blocks, (torch.tensor([12, 40]), 40, 4, 3, 7))  # compilers take it as one step


@torch.no_grad()
def test_all_blocks_equal_dense() -> None:
    q, k, v = three(30, 30)
    close(BlockSparseKernel(2, 5)(q, k, v, Mask()), SoftmaxKernel()(q, k, v, Mask()), 0)  # few blocks: all of them


def test_blocks_gradient_equals_pattern() -> None:
    for drawn in (True, False):
        kernel, (q, k, v) = BlockSparseKernel(3, 1, drawn=drawn), three(41, 41, grad=True)
        table = torch.stack([chosen_pairs(kernel, n, 41, 3) for n in (41, 30)])
        valid = ragged([41, 30])
        dense = (q @ k.transpose(-2, -1) * 8**-0.5 + table.masked_fill(~valid[:, None, :, None], 0.0)).softmax(-1) @ v
        found = kernel(q, k, v, Mask(key_valid=valid))
        both = (x.transpose(1, 2)[valid].square().sum() for x in (dense, found))
        for wanted, ours in zip(*(torch.autograd.grad(each, [q, k, v]) for each in both), strict=True):
            close(ours, wanted, 1e-5)


def test_blocks_memory_is_linear() -> None:
    sizes = []
    for tokens in (2000, 4000):
        q, k, v = (torch.randn(1, 2, tokens, 8, requires_grad=True) for _ in range(3))
        with Largest() as largest:
            BlockSparseKernel(16, 2)(q, k, v, Mask(key_valid=ragged([tokens - 9], tokens))).square().sum().backward()
        sizes.append(largest.elements)
    assert sizes[1] <= 2.1 * sizes[0] and sizes[1] < 4000 * 4000 / 10


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"causal": True}, "reads later tokens and cannot be causal"),
        ({"segments": torch.zeros(2, 9)}, "cannot pack"),
        ({"window": 3}, "can hide padding only"),
        ({"exclude_self": True}, "can hide padding only"),
        ({"global_positions": torch.zeros(2, 1)}, "can hide padding only"),
    ],
)
def test_blocks_refuse_other_masks(words: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        BlockSparseKernel()(*three(9, 9), Mask(**words))


@torch.no_grad()
def test_flex_block_mask_equals_blocks() -> None:
    for size, drawn, tokens in ((16, True, 400), (48, False, 700), (150, True, 1300)):
        kernel, q = BlockSparseKernel(size, 1, drawn=drawn), torch.randn(2, 2, tokens, 8)
        for keys in (None, ragged([tokens, tokens - 130])):
            blocks, score = kernel._flex_mask(Mask(key_valid=keys), q)
            in_order(blocks)
            seen, more = kernel._block_visibility(Mask(key_valid=keys), q)
            i = torch.arange(tokens)
            for row, head in product(range(2), range(2)):
                at = torch.tensor(row), torch.tensor(head), i[:, None], i[None]
                told = blocks.mask_mod(*at)
                own = seen[row % len(seen), head % seen.size(1)][i[:, None] // size, i[None] // size]
                assert told.equal(own if keys is None else own & keys[row])
                table = (
                    F.pad(told, (0, -tokens % 128, 0, -tokens % 128)).unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
                )
                place = row % blocks.shape[0], head % blocks.kv_num_blocks.size(1)
                asked = dense_blocks(blocks.kv_num_blocks[place], blocks.kv_indices[place])
                assert asked[table.any(3).any(1)].all() and (keys is not None or asked.equal(table.any(3).any(1)))
                if not drawn:
                    wanted = more[row % len(more), 0][i[:, None] // size, i[None] // size]
                    assert score(torch.zeros(()), *at).equal(wanted) and wanted.max() > 0
            assert (score is None) == drawn


@pytest.mark.parametrize("slot", [slots.Window(radius=9, globals=1), slots.Window(radius=5, dilation=2),
                                  slots.Blocks(size=4, random=1), slots.Blocks(size=4, random=1, drawn=False)],
                         ids=["globals", "dilated", "drawn", "undrawn"])  # fmt: skip
@torch.no_grad()
def test_compiled_code_uses_flex_in_one_graph(slot: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph that a GPU compiles, traced here without a compiler backend."""
    monkeypatch.setattr(flex, "is_compiling", lambda device: torch.compiler.is_compiling())
    attention, x, valid = slot.build(24, 3), torch.randn(2, 150, 24), ragged([150, 90])
    compiled = torch.compile(
        lambda x, valid: attention(x, x, x, Mask(key_valid=valid)), backend="eager", fullgraph=True
    )
    wanted = [attention(x, x, x, Mask(key_valid=keys)) for keys in (valid, None)]
    monkeypatch.delattr(WindowKernel, "_attend_blocks")
    monkeypatch.delattr(BlockSparseKernel, "_attend_row")
    close(compiled(x, valid)[valid], wanted[0][valid], 1e-5)
    close(compiled(x, None), wanted[1], 1e-5)


def quadratic(kernel: RandomFeatureKernel, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """The quadratic form in float64: the product of features for every pair."""
    pairs = kernel.log_features(q.double())[:, :, :, None] + kernel.log_features(k.double())[:, :, None]
    scores = pairs.logsumexp(-1).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v.double()


@pytest.mark.parametrize("chunk", [1, 7, 64, 200])
@torch.no_grad()
def test_favor_equals_its_quadratic_form(chunk: int) -> None:
    """For every chunk size; 140 tokens are more than a span of the small ones."""
    kernel, (q, k, v), valid = RandomFeatureKernel(8, 30, chunk), three(140, 140), ragged([140, 51])
    for causal in (False, True):
        seen = valid[:, None, None] & (torch.ones(140, 140).tril() if causal else torch.ones(140, 140)).bool()
        close(kernel(q, k, v, Mask(causal, key_valid=valid)).double(), quadratic(kernel, q, k, v, seen), 1e-5)
        close(kernel.weights(q, k, Mask(causal, key_valid=valid)) @ v, quadratic(kernel, q, k, v, seen).float(), 1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 64, 200])
@pytest.mark.parametrize("groups", [1, 3])
@torch.no_grad()
def test_favor_separates_packed_texts(chunk: int, groups: int) -> None:
    """Texts longer and shorter than a chunk, one ending with a span; the large one in between changes no scale."""
    kernel, (q, k, v) = RandomFeatureKernel(8, 30, chunk), three(140, 140)
    k, v = k[:, : 3 // groups], v[:, : 3 // groups]
    lengths = torch.tensor([[5, 107, 2, 26], [112, 1, 20, 7]])
    segments = torch.stack([torch.arange(4).repeat_interleave(row) for row in lengths])
    k = k * torch.where(segments == 1, 12.0, 1.0)[:, None, :, None]
    seen = (segments[:, :, None] == segments[:, None, :])[:, None] & torch.ones(140, 140).tril().bool()
    want = quadratic(kernel, q, *(x.repeat_interleave(groups, 1) for x in (k, v)), seen)
    close(kernel(q, k, v, Mask(True, segments=segments)).double(), want, 2e-5)


def test_favor_gradient_equals_quadratic_form() -> None:
    """Gradients of queries, keys and values equal the quadratic form, before and after a chunk border."""
    kernel, valid = RandomFeatureKernel(8, 30, chunk=3), ragged([60, 41])
    q, k, v = three(60, 60, grad=True)
    seen = valid[:, None, None] & torch.ones(60, 60).tril().bool()
    push = torch.randn(2, 3, 60, 8)
    ours = torch.autograd.grad((kernel(q, k, v, Mask(True, key_valid=valid)) * push).sum(), [q, k, v])
    want = torch.autograd.grad((quadratic(kernel, q, k, v, seen) * push).sum(), [q, k, v])
    for mine, theirs in zip(ours, want, strict=True):
        close(mine, theirs, 2e-4)


def estimates(features: int, orthogonal: bool) -> Tensor:
    """Relative errors of the estimate of exp(q·k/√d), (2000 draws, pairs)."""
    torch.manual_seed(3)
    q, k = 0.5 * torch.randn(2, 1, 1, 40, 8)
    kernel, errors = RandomFeatureKernel(8, features), []
    exact = (q * k).sum(-1).div(8**0.5).exp()
    for _ in range(2000):
        kernel.directions.copy_(draw_directions(features, 8, orthogonal=orthogonal))
        found = (kernel.log_features(q) + kernel.log_features(k)).exp().mean(-1)
        errors.append((found / exact - 1).flatten())
    return torch.stack(errors)


@torch.no_grad()
def test_favor_estimate_is_unbiased() -> None:
    """The mean over draws is exact; the error falls with the root of the features; orthogonal is better."""
    few, many, independent = estimates(8, True), estimates(32, True), estimates(8, False)
    assert (few.mean(0).abs() < 4.5 * few.std(0) / 2000**0.5).all() and few.std() < 1
    assert 1.7 < few.square().mean().sqrt() / many.square().mean().sqrt() < 2.3
    assert few.square().mean() < 0.9 * independent.square().mean()


@torch.no_grad()
def test_favor_converges_to_softmax() -> None:
    q, k, v = three(9, 9)
    q, k, mask, kernel = q / 2, k / 2, Mask(causal=True), RandomFeatureKernel(8, 2**16)
    assert (kernel(q, k, v, mask) - SoftmaxKernel()(q, k, v, mask)).abs().mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_favor_is_numerically_stable(dtype: torch.dtype) -> None:
    """One key whose features are e^100 times the others': it rules what comes behind it, and before it nothing changes,
    be it in the same chunk or not."""
    kernel, (q, k, v) = RandomFeatureKernel(8, 32, chunk=4), three(23, 23)
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
def test_favor_sums_in_float32_under_autocast() -> None:
    """The sums over spans add many small numbers, which bf16 would lose."""
    kernel, sums = RandomFeatureKernel(8, 32, chunk=4), []
    q, k, v = (x.bfloat16() for x in three(150, 150))
    for told in (False, True):
        memory = kernel.layer_cache(None, 2, k.size(1), 8, v)
        with torch.autocast("cpu", torch.bfloat16, enabled=told):
            kernel(q, k, v, Mask(causal=True), layer_cache=memory)
        sums.append(memory.sums)
    assert sums[0].dtype == torch.float32
    close(sums[0], sums[1], 1e-5)


@torch.no_grad()
def test_favor_compiles_to_one_graph() -> None:
    kernel, (q, k, v) = RandomFeatureKernel(8, 30, chunk=3), three(60, 60)
    segments = torch.arange(60).div(17, rounding_mode="floor").expand(2, -1)
    compiled = torch.compile(kernel, fullgraph=True, backend="eager")
    for mask in (Mask(), Mask(True), Mask(True, segments=segments), Mask(True, key_valid=ragged([60, 41]))):
        close(compiled(q, k, v, mask), kernel(q, k, v, mask), 1e-6)


def test_favor_directions_are_orthogonal_and_saved() -> None:
    kernel = RandomFeatureKernel(8, 20)
    block = F.normalize(kernel.directions[:8], dim=1)
    close(block @ block.T, torch.eye(8), 1e-5)
    assert "directions" in kernel.state_dict()
    exact = kernel.directions.clone()
    assert kernel.to(torch.bfloat16).directions.equal(exact)
    with pytest.raises(ValueError, match="0 features are too few; use 1 or more"):
        RandomFeatureKernel(8, 0)


def test_favor_redraw_depends_on_step_and_seed() -> None:
    one, other = (RandomFeatureKernel(8, 20, redraw=5) for _ in range(2))
    before = one.directions.clone()
    one.resample(4, 7)
    assert one.directions.equal(before) and not other.directions.equal(before)
    torch.manual_seed(1)
    one.resample(10, 7)
    other.resample(5, 7)
    assert one.directions.equal(other.directions)
    other.resample(10, 8)
    assert not one.directions.equal(other.directions)
    still = RandomFeatureKernel(8, 20)
    before = still.directions.clone()
    still.resample(1000, 7)
    assert still.directions.equal(before)


# --- Linformer ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", ["none", "heads", "key-value", "layers"])
@torch.no_grad()
def test_lowrank_with_identity_equals_dense(sharing: str) -> None:
    kernel, (q, k, v) = LowRankKernel(3, 11, 11, sharing), three(11, 11)
    for places in (kernel.keys, kernel.values):
        close(places.map(11), torch.eye(11).expand_as(places.weight), 1e-6)  # so it begins; with fewer places, as means
    close(kernel(q, k, v, Mask()), SoftmaxKernel()(q, k, v, Mask()), 1e-6)
    close(kernel.weights(q, k, Mask()), SoftmaxKernel().weights(q, k, Mask()), 1e-6)
    close(LowRankKernel(3, 2, 5).keys.map(5)[0], torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 1.5, 1.5]]) / 3, 1e-6)


@pytest.mark.parametrize("sharing", ["none", "heads", "key-value", "layers"])
@torch.no_grad()
def test_lowrank_equals_its_formula(sharing: str) -> None:
    """softmax(q (E k)ᵀ/√d) F v, with hidden tokens zeroed before E and F, and every token at its position."""
    kernel, (q, k, v), valid = LowRankKernel(3, 4, 13, sharing), three(9, 9), ragged([9, 5])
    for weight in kernel.parameters():
        weight.normal_(std=13 / 4)
    places = torch.stack([torch.arange(9), torch.randperm(13)[:9]])
    maps = 3 if sharing == "none" else 1
    assert kernel.keys.weight.shape == kernel.values.weight.shape == (maps, 4, 13)
    assert (kernel.keys is kernel.values) == (sharing in ("key-value", "layers"))
    for mask in (Mask(), Mask(key_valid=valid), Mask(key_valid=valid, positions=places)):
        at = mask.query_key_positions(9, 9)[0].expand(2, -1)
        want, shown = (
            torch.zeros(2, 3, 9, 8).double(),
            torch.ones(2, 9).bool() if mask.key_valid is None else mask.key_valid,
        )
        for b, h in product(range(2), range(3)):
            rows = shown[b].nonzero()[:, 0]
            e, f = (m.weight[h % maps][:, at[b, rows]].double() * (4 / 13) for m in (kernel.keys, kernel.values))
            looks = (q[b, h].double() @ (e @ k[b, h, rows].double()).T / 8**0.5).softmax(-1)
            want[b, h] = looks @ (f @ v[b, h, rows].double())
        close(kernel(q, k, v, mask).double(), want, 1e-5)
        if mask.positions is None:
            close((kernel.weights(q, k, mask) @ v).double(), want, 1e-5)


def test_lowrank_shares_projections_among_layers() -> None:
    def stack(sharing: str) -> Stack:
        slot = slots.Lowrank(rank=3, tokens=9, sharing=sharing)
        layers = [Layer(slot.build(12, 2), FeedForward(12, 12), lambda: Residual(nn.LayerNorm(12))) for _ in range(3)]
        return Stack(layers, positions=LearnedPositions(30, 12))

    for sharing, maps in (("none", 6), ("heads", 6), ("key-value", 3), ("layers", 1)):
        made = stack(sharing)
        names = [name for name, _ in made.named_parameters() if "kernel" in name]
        assert len(names) == maps and made.context == 9
    first, *rest = (layer.attention.kernel for layer in made.layers)
    assert all(kernel.keys is first.keys and kernel.values is first.keys for kernel in rest)
    out = made(torch.randn(2, 9, 12), Mask())
    (grad,) = torch.autograd.grad(out.sum(), [first.keys.weight])
    assert grad.abs().max() > 0


def test_lowrank_and_favor_refuse_unsupported_masks() -> None:
    q, k, v = three(9, 9)
    packed = Mask(segments=torch.zeros(2, 9, dtype=torch.long))
    lowrank, favor = LowRankKernel(3, 4, 8), RandomFeatureKernel(8, 4)
    with pytest.raises(ValueError, match=r"a text of 9 tokens is longer than the 8 positions of lowrank attention"):
        lowrank(q, k, v, Mask())
    with pytest.raises(ValueError, match=r"lowrank attention .* cannot pack; set data.packed=false"):
        LowRankKernel(3, 4, 9)(q, k, v, packed)
    for mask in (Mask(causal=True), Mask(exclude_self=True), Mask(window=3)):
        with pytest.raises(ValueError, match="lowrank attention projects all positions together and cannot hide some"):
            LowRankKernel(3, 4, 9)(q, k, v, mask)
    with pytest.raises(ValueError, match=r"favor attention .* cannot pack; set data.packed=false"):
        favor(q, k, v, packed)
    for mask in (Mask(exclude_self=True), Mask(window=3)):
        with pytest.raises(ValueError, match="favor attention sums over all positions and cannot leave some out"):
            favor(q, k, v, mask)
    for slot, name in ((slots.Lowrank(), "LowRankKernel"), (slots.Favor(), "RandomFeatureKernel")):
        layer = Layer(slot.build(12, 2), FeedForward(12, 12), lambda: Residual(nn.LayerNorm(12)))
        for scheme in (BucketPositions(2), RelativePositions(12, 2)):
            with pytest.raises(ValueError, match=f"{name} has no scores that {type(scheme).__name__} could add to"):
                Stack([layer], positions=scheme)
    layer = Layer(slots.Lowrank().build(12, 2), FeedForward(12, 12), lambda: Residual(nn.LayerNorm(12)))
    with pytest.raises(ValueError, match="LowRankKernel reads later tokens and cannot be causal; use it in an encoder"):
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
        exclude_self=flags["others"],
        window=reach,
        key_valid=some(2, 2, tokens).bool() if flags["keys"] else None,
        segments=some(3, 2, tokens).sort(1).values if flags["segments"] else None,
        global_positions=torch.stack([torch.randperm(tokens, generator=generator)[:2] for _ in range(2)])
        if flags["globals"]
        else None,
        positions=torch.arange(tokens).expand(2, -1) + some(9, 2, 1) if flags["at"] else None,
    )
    return mask, tokens


@settings(max_examples=150, deadline=None, derandomize=True)
@given(drawn(), st.sampled_from(sorted(KERNELS)), st.integers(0, 10))
@torch.no_grad()
def test_hidden_keys_change_nothing(drawn: tuple[Mask, int], name: str, place: int) -> None:
    """Changing a hidden key and its value changes no query; a query without a visible key gets zeros."""
    (mask, tokens), kernel, j = drawn, KERNELS[name], place % drawn[1]
    if name in ("favor", "blocks", "lowrank"):
        mask = mask.replace(exclude_self=False, window=None, segments=None, global_positions=None)
    if name in ("blocks", "lowrank"):
        mask = mask.replace(causal=False)
    if name == "lowrank":
        mask = mask.replace(positions=None)
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 2, tokens, 8) for _ in range(3))
    other_k, other_v = k.clone(), v.clone()
    other_k[:, :, j] += 3 * torch.randn(2, 2, 8)
    other_v[:, :, j] += 100
    if name == "blocks" and tokens > kernel.dense_limit:
        return  # its pattern has a test of its own
    narrow = mask if "window" not in name else mask.replace(window=min(3, 3 if mask.window is None else mask.window))
    seen = seen_by_pairs(narrow, tokens, tokens)[:, 0]  # (rows, queries, keys)
    before, after = (kernel(q, *pair, mask).transpose(1, 2) for pair in ((k, v), (other_k, other_v)))
    usual = (
        ~mask.is_global(tokens)
        if mask.global_positions is not None and "window" in name
        else torch.ones(2, tokens).bool()
    )
    assert (before[~seen.any(-1) & usual] == 0).all()
    unmoved = ~seen[:, :, j] & usual
    assert torch.allclose(before[unmoved], after[unmoved], atol=1e-5 if name == "favor" else 1e-6)
    moved = seen[:, :, j] & usual
    assert ((before - after).abs().amax((-2, -1)) > 0)[moved].all() or name == "favor"
