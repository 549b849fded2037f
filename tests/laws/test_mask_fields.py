"""Every kernel obeys a field of a mask, as dense attention does, or refuses it; also fields that do not exist yet."""

import pytest
import torch
from prototypes.checks import ragged
from prototypes.words import seen_by_pairs
from torch import Tensor, nn

from regard.parts import Mask, masks
from regard.parts.efficient import BlockSparseKernel, LowRankKernel, RandomFeatureKernel, WindowKernel
from regard.parts.kernels import AdditiveKernel, Kernel, SoftmaxKernel
from regard.parts.recurrent import SEQUENTIAL, GatedConvolution, Recurrence, StatefulMixer

TOKENS = 11
ORDER = torch.arange(TOKENS).expand(2, -1)
HALVES = (ORDER >= 5).long()
MASKS = {  # each field, with those that it needs to have a meaning
    "causal": Mask(causal=True),
    "exclude_self": Mask(exclude_self=True),
    "window": Mask(window=2),
    "positions": Mask(positions=ORDER + 3),
    "key_positions": Mask(causal=True, positions=ORDER, key_positions=ORDER + 2),
    "key_valid": Mask(key_valid=ragged([TOKENS, 6])),
    "segments": Mask(segments=HALVES),
    "key_segments": Mask(segments=HALVES, key_segments=1 - HALVES),
    "global_positions": Mask(window=1, global_positions=torch.tensor([[0, 4], [7, -1]])),
    "beam_ancestry": Mask(beam_ancestry=(ORDER[:, :, None] + ORDER[:, None]) % 3 > 0),
    "length_runs": Mask(segments=HALVES[:1], length_runs=((1, 5), (1, 6))),
}
KERNELS = {
    "softmax": SoftmaxKernel(),
    "additive": AdditiveKernel(8),
    "window": WindowKernel(16),
    "blocked window": WindowKernel(3, block=2),
    "dilated": WindowKernel(2, 2, block=2),
    "favor": RandomFeatureKernel(8, 32),
    "blocks": BlockSparseKernel(4, 1),
    "lowrank": LowRankKernel(3, 4, TOKENS + 3),
}
MIXERS = {
    "recurrence": Recurrence(8),
    "both directions": Recurrence(8, bidirectional=True),
    "convolution": GatedConvolution(8),
    "causal convolution": GatedConvolution(8, causal=True),
}


def attend(kernel: Kernel, x: Tensor, mask: Mask) -> Tensor:
    q, k, v = (x.flip(-1)[:, None], x[:, None], x.roll(1, -1)[:, None])
    return kernel(q, k, v, mask)[:, 0]


def read(mixer: StatefulMixer, x: Tensor, mask: Mask) -> Tensor:
    return mixer(x, x, x, mask)


def honored(part: nn.Module) -> set[str]:
    if isinstance(part, Kernel):
        return {*part.honors}
    return {*SEQUENTIAL} - ({"causal"} if not part.causal else set())


def test_the_law_knows_every_field() -> None:
    assert tuple(MASKS) == masks.FIELDS


@pytest.mark.parametrize("field", MASKS)
@pytest.mark.parametrize("name", [*KERNELS, *MIXERS])
@torch.no_grad()
def test_a_field_is_obeyed_or_refused(name: str, field: str) -> None:
    torch.manual_seed(1)
    part, run = (KERNELS[name], attend) if name in KERNELS else (MIXERS[name], read)
    mask, rows = MASKS[field], 1 if field == "length_runs" else 2
    x = torch.randn(rows, TOKENS, 8)
    if not {*mask.set_fields()} <= honored(part) or (name == "favor" and field == "segments"):
        with pytest.raises(ValueError, match="use|pad"):
            run(part, x, mask)
        return
    before, seen = run(part, x, mask), seen_by_pairs(mask, TOKENS, TOKENS, rows)[:, 0]
    for j in range(TOKENS):
        changed = x.clone()
        changed[:, j] += torch.randn(8)
        unseen = ~seen[:, :, j] & (ORDER[:rows] != j)  # the query at j itself changed
        if mask.key_valid is not None and name in MIXERS:
            unseen &= mask.key_valid  # padding has no output
        assert torch.allclose(before[unseen], run(part, changed, mask)[unseen], atol=1e-5), j


@pytest.mark.parametrize("name", [*KERNELS, *MIXERS])
@torch.no_grad()
def test_a_later_field_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that is added to `Mask` is refused by all that do not declare it, on every path."""
    monkeypatch.setattr(masks, "FIELDS", (*masks.FIELDS, "parity"))
    monkeypatch.setattr(Mask, "parity", 2, raising=False)
    part, run = (KERNELS[name], attend) if name in KERNELS else (MIXERS[name], read)
    for fields in ({}, {"causal": True}, {"key_valid": ragged([TOKENS, 6])}):
        if part.causal or "causal" not in fields:
            with pytest.raises(ValueError, match="Mask.parity|own pattern|cannot hide some|cannot leave some out"):
                run(part, torch.randn(2, TOKENS, 8), Mask(**fields))
