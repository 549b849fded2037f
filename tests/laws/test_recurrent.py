"""Recurrence and convolution against torch with equal weights and against formulas."""

from typing import Any

import pytest
import torch
from helpers.inputs import inputs
from prototypes.checks import close, ragged
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import regard
from regard.decode import SearchSettings, run_search
from regard.families import cnn, rnn
from regard.parts import Mask, Stack
from regard.parts import recurrent as recurrent_part
from regard.parts.layer import Layer, Residual
from regard.parts.recurrent import (
    CELLS,
    GatedConvolution,
    Recurrence,
    standalone_convolution,
    standalone_recurrence,
    unpack_rows,
    unpack_segments,
)
from regard.training.checkpoint import load_model, save_model

EVERY = pytest.mark.parametrize("cell", CELLS)
LENGTHS = [11, 4, 7, 1]


def reader(cell: str, bidirectional: bool, width: int = 10) -> tuple[Recurrence, nn.Module]:
    """Ours and torch's, with the same weights."""
    torch.manual_seed(3)
    ours = Recurrence(width, cell, bidirectional)
    theirs = CELLS[cell](width, ours.width, batch_first=True, bidirectional=bidirectional)
    for mine, end in ((ours.forth, ""), (ours.back, "_reverse")):
        for name, weight in mine.named_parameters() if mine is not None else ():
            weight.data.mul_(2)
            getattr(theirs, name + end).data.copy_(weight)
    return ours, theirs


# --- Recurrence ------------------------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("bidirectional", [False, True], ids=["forth", "both"])
@pytest.mark.parametrize("stretch", [recurrent_part.MAX_TOKENS, 4], ids=["at once", "in stretches"])
@torch.no_grad()
def test_recurrence_equals_torch(cell, bidirectional, stretch, monkeypatch):
    monkeypatch.setattr(recurrent_part, "MAX_TOKENS", stretch)
    ours, theirs = reader(cell, bidirectional)
    x, valid = torch.randn(4, 11, 10), ragged(LENGTHS)
    close(ours.read_all(x, Mask()), theirs(x)[0], 1e-6)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    wanted = pad_packed_sequence(theirs(packed)[0], batch_first=True)[0]
    close(ours.read_all(x, Mask(key_valid=valid))[valid], wanted[valid], 1e-6)
    left = valid.flip(1)
    other = torch.randn(4, 11, 10).masked_scatter(left[..., None], x[valid])
    close(ours.read_all(other, Mask(key_valid=left))[left], wanted[valid], 1e-6)


@EVERY
@torch.no_grad()
def test_packed_texts_start_from_zero_state(cell):
    """Segments of different lengths in two rows with padding; none depends on another."""
    ours, theirs = reader(cell, bidirectional=True)
    x = torch.randn(2, 9, 10)
    segments = torch.tensor([[0, 0, 0, 0, 1, 2, 2, -1, -1], [5, 5, 5, 5, 5, 5, 3, 3, 3]])
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, [2, 8]] = False  # padding among the tokens of a text
    found = ours.read_all(x, Mask(segments=segments, key_valid=valid))
    for row in range(2):
        for each in segments[row].unique():
            own = (segments[row] == each) & valid[row]
            close(found[row, own], theirs(x[row, own][None])[0][0], 1e-6)


def test_padding_and_other_segments_have_no_gradient():
    ours, _ = reader("lstm", bidirectional=True)
    x, valid = torch.randn(2, 9, 10, requires_grad=True), ragged([9, 5])
    ours.read_all(x, Mask(key_valid=valid))[valid].square().sum().backward()
    assert x.grad[~valid].abs().max() == 0 and x.grad[valid].abs().amax(-1).min() > 0
    x.grad = None
    segments = torch.tensor([[0] * 4 + [1] * 5, [0] * 9])
    ours.read_all(x, Mask(segments=segments))[0, :4].square().sum().backward()
    assert x.grad[0, 4:].abs().max() == 0 == x.grad[1].abs().max() and x.grad[0, :4].abs().amax(-1).min() > 0


def test_unpack_and_scatter_back():
    valid = torch.tensor([[False, True, True, False], [True, True, True, True]])
    lay = unpack_rows(valid)
    numbers = torch.arange(8).view(2, 4, 1)
    assert lay.gather(numbers)[..., 0].tolist() == [[1, 2, 0, 3], [4, 5, 6, 7]] and lay.lengths.tolist() == [2, 4]
    assert lay.scatter_back(lay.gather(numbers)).equal(numbers)
    assert lay.reversed().gather(numbers)[..., 0].tolist() == [[2, 1, 0, 3], [7, 6, 5, 4]]
    assert lay.reversed().scatter_back(lay.reversed().gather(numbers)).equal(numbers)
    texts = unpack_segments(torch.tensor([[0, 0, 1, 1], [1, 1, 1, -1]]), None)
    assert sorted(texts.lengths.tolist()) == [1, 2, 2, 3] and texts.source.shape == (4, 3)
    assert texts.scatter_back(texts.gather(numbers)).equal(numbers)
    assert texts.reversed().scatter_back(texts.reversed().gather(numbers)).equal(numbers)


@EVERY
def test_carried_state_equals_whole_text(cell):
    """Windows read one after another in training give the outputs of the whole text, without gradients between them."""
    ours, theirs = reader(cell, bidirectional=False)
    x, memory = torch.randn(3, 12, 10), ours.layer_cache(None, 3)
    whole, parts = theirs(x)[0], []
    for part in x.split([5, 1, 6], 1):
        parts.append(ours(part, None, None, Mask(), None, memory))
        parts[-1].square().sum().backward()
        assert not memory.h.requires_grad
    close(torch.cat(parts, 1), whole, 1e-6)
    memory.reset(torch.tensor([False, True, False]))
    again = ours(x[:, :4], None, None, Mask(), None, memory)
    close(again[1], theirs(x[1:2, :4])[0][0], 1e-6)
    assert (again[0] - theirs(x[:1, :4])[0][0]).abs().max() > 1e-3


@torch.no_grad()
def test_step_updates_state_in_place():
    """CUDA graphs need fixed addresses."""
    ours, _ = reader("lstm", bidirectional=False)
    memory = ours.layer_cache(None, 3)
    places = memory.h.data_ptr(), memory.c.data_ptr()
    for tokens in (4, 1, 1):
        ours(torch.randn(3, tokens, 10), None, None, Mask(key_valid=ragged([tokens, 1, tokens])), None, memory)
    memory.reorder(torch.tensor([2, 0, 0]))
    assert (memory.h.data_ptr(), memory.c.data_ptr()) == places and memory.h[1].equal(memory.h[2])
    layer = GatedConvolution(10, 5, causal=True)
    last = layer.layer_cache(None, 3)
    place = last.past.data_ptr()
    for tokens in (4, 1):
        layer(torch.randn(3, tokens, 10), None, None, Mask(key_valid=ragged([tokens, 0, 1], tokens)), None, last)
    last.reorder(torch.tensor([2, 0, 0]))
    assert last.past.data_ptr() == place and last.past.shape == (3, 4, 10)


# --- Convolution -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_gated_convolution_equals_torch(size, causal):
    ours, x = GatedConvolution(6, size, causal), torch.randn(3, 9, 6)
    weight = ours.into.weight.view(12, size, 6).transpose(1, 2)  # (out, in, size)
    sides = (size - 1, 0) if causal else (size // 2, size // 2)
    wanted = F.glu(F.conv1d(F.pad(x.transpose(1, 2), sides), weight, ours.into.bias), 1).transpose(1, 2)
    close(ours.read_all(x, Mask()), wanted, 1e-6)
    segments = torch.tensor([[0] * 4 + [1] * 5] * 3)
    separate = torch.cat([ours.read_all(x[:, :4], Mask()), ours.read_all(x[:, 4:], Mask())], 1)
    close(ours.read_all(x, Mask(segments=segments)), separate, 1e-6)


def test_invalid_mixers_are_refused():
    with pytest.raises(ValueError, match="a convolution over 4 tokens has no middle; use 3 or 5"):
        GatedConvolution(6, 4)
    with pytest.raises(ValueError, match="width 7 cannot be halved between two directions; use 6 or 8"):
        Recurrence(7, bidirectional=True)
    for mixer in (GatedConvolution(8, 3), Recurrence(8, bidirectional=True)):
        with pytest.raises(ValueError, match="reads later tokens and cannot be causal"):
            Stack([Layer(mixer, None, lambda: Residual(nn.LayerNorm(8)))], causal=True)


@pytest.mark.parametrize("make", [standalone_recurrence, standalone_convolution])
def test_standalone_mixers(make):
    layer, x = make(8), torch.randn(2, 7, 8)
    close(layer(x, Mask(key_valid=ragged([7, 3])))[1, :3], layer(x[1:, :3])[0], 1e-6)
    assert layer(x).shape == x.shape


# --- Whole models ----------------------------------------------------------------------------------------------------

SHAPE = {"vocab": 47, "target_vocab": 41, "width": 12, "heads": 2, "layers": 2, "decoder_layers": 3, "dropout": 0.0}


def a_model(family: Any, **changes: Any) -> nn.Module:
    torch.manual_seed(7)
    model = family.Model(family.Config(**SHAPE | changes)).eval()
    for each in model.parameters():
        each.data = each.data * 2 if each.dim() > 1 else each.data + 0.2 * torch.randn_like(each)
    return model


def naive_lstm(layer: nn.Module, x: Tensor) -> Tensor:
    """(tokens, width), by the formulas."""
    h, c, out = torch.zeros(layer.hidden_size), torch.zeros(layer.hidden_size), []
    for each in x:
        gates = layer.weight_ih_l0 @ each + layer.bias_ih_l0 + layer.weight_hh_l0 @ h + layer.bias_hh_l0
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        out.append(h)
    return torch.stack(out)


def norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias


def naive_look(part: nn.Module, x: Tensor, source: Tensor) -> Tensor:
    """Additive attention of every x to every source token, head by head."""
    heads = []
    q, k, v = (m.weight @ y.T + m.bias[:, None] for m, y in ((part.query, x), (part.key, source), (part.value, source)))
    for rows in torch.arange(len(q)).chunk(part.heads):
        scores = torch.stack([part.kernel.score.weight[0] @ (q[rows, t, None] + k[rows]).tanh() for t in range(len(x))])
        heads.append(scores.softmax(-1) @ v[rows].T)
    return torch.cat(heads, -1) @ part.out.weight.T + part.out.bias


@torch.no_grad()
def test_rnn_translator_equals_its_formulas():
    model = a_model(rnn)
    source, target, valid = torch.randint(47, (3, 9)), torch.randint(41, (3, 6)), ragged([9, 4, 6])
    found = model(inputs(source, valid), inputs(target))
    for row in range(3):
        x = model.source.weight[source[row, valid[row]]]
        for layer in model.encoder.layers:
            y = norm(layer.attention_residual.norm, x)
            back = naive_lstm(layer.attention.back, y.flip(0)).flip(0)
            x = x + torch.cat([naive_lstm(layer.attention.forth, y), back], -1)
        memory = norm(model.encoder.norm, x)
        x = model.target.weight[target[row]]
        for layer in model.decoder.layers:
            x = x + naive_lstm(layer.attention.forth, norm(layer.attention_residual.norm, x))
            x = x + naive_look(layer.cross, norm(layer.cross_residual.norm, x), memory)
        close(found[row], norm(model.decoder.norm, x) @ model.head.weight.T, 1e-4)
    assert model.head.weight is model.target.weight


@torch.no_grad()
def test_cnn_translator_equals_its_formulas():
    """Attention by torch's own; convolutions by conv1d."""
    model = a_model(cnn, kernel_size=5)
    source, target = torch.randint(47, (3, 9)), torch.randint(41, (3, 6))

    def conv(part: GatedConvolution, x: Tensor, before: int, behind: int) -> Tensor:
        weight = part.into.weight.view(24, 5, 12).transpose(1, 2)
        return F.glu(F.conv1d(F.pad(x.transpose(1, 2), (before, behind)), weight, part.into.bias), 1).transpose(1, 2)

    x = model.encoder.add_positions(model.source.weight[source] * 12**0.5)
    for layer in model.encoder.layers:
        x = x + conv(layer.attention, layer.attention_residual.norm(x), 2, 2)
    memory, x = model.encoder.norm(x), model.decoder.add_positions(model.target.weight[target] * 12**0.5)
    for layer in model.decoder.layers:
        x = x + conv(layer.attention, layer.attention_residual.norm(x), 4, 0)
        theirs = nn.MultiheadAttention(12, 2, batch_first=True).eval()
        maps = layer.cross.query, layer.cross.key, layer.cross.value
        theirs.in_proj_weight.copy_(torch.cat([each.weight for each in maps]))
        theirs.in_proj_bias.copy_(torch.cat([each.bias for each in maps]))
        theirs.out_proj.load_state_dict(layer.cross.out.state_dict())
        x = x + theirs(layer.cross_residual.norm(x), memory, memory)[0]
    close(model(inputs(source), inputs(target)), model.decoder.norm(x) @ model.head.weight.T, 1e-4)


class Uncached:
    """The interface of a search; every step reads the whole text again."""

    def __init__(self, model: nn.Module, source: Tensor, valid: Tensor) -> None:
        self.model, self.source, self.real = model, source, valid
        self.fixed, self.said, self.beams = False, None, 1

    def step(self, tokens: Tensor, cache: Any, valid: Tensor | None = None) -> Tensor:
        new = tokens.reshape(-1, 1)
        self.said = new if self.said is None else torch.cat([self.said, new], 1)
        rows = torch.arange(len(self.source)).repeat_interleave(self.beams)
        source = inputs(self.source[rows], self.real[rows])
        return self.model(source, inputs(self.said))[:, -1].view(*tokens.shape, -1)

    def branch(self, beams: int, steps: int) -> None:
        self.beams, self.said = beams, self.said.repeat_interleave(beams, 0)

    def reorder(self, origin: Tensor) -> None:
        self.said = self.said[(torch.arange(len(origin))[:, None] * self.beams + origin).flatten()]

    def select(self, rows: Tensor) -> None:
        self.said = self.said.view(-1, self.beams, self.said.size(1))[rows].flatten(0, 1)
        self.source, self.real = self.source[rows], self.real[rows]


@pytest.mark.parametrize("family", [rnn, cnn], ids=["rnn", "cnn"])
@pytest.mark.parametrize(
    "how", [{"beam": 4, "nbest": 3}, {"beam": 1, "early_stopping": "first"}], ids=["beam", "greedy"]
)
@torch.no_grad()
def test_search_equals_uncached_search(family, how):
    model = a_model(family)
    model.head = nn.Linear(12, 41)
    model.head.weight.data = model.target.weight.data * 3
    model.head.bias.data[2] += 2.0
    source, valid = torch.randint(47, (6, 8)), ragged([8, 3, 5, 6, 2, 7])
    prompt, limits = torch.ones(6, 1, dtype=torch.long), torch.tensor([12, 5, 9, 14, 3, 8])
    plain = Uncached(model, source, valid)
    wanted = run_search(plain, plain, prompt, limits, SearchSettings(2, **how))
    for capacity in (None, 24):
        found = run_search(
            model, model.start(inputs(source, valid), len(source), capacity), prompt, limits, SearchSettings(2, **how)
        )
        assert [[each.tokens for each in some] for some in found] == [[each.tokens for each in some] for some in wanted]
    assert len({len(some[0].tokens) for some in wanted}) > 2


@pytest.mark.parametrize("family", [rnn, cnn], ids=["rnn", "cnn"])
def test_compiled_training_equals_eager(family):
    """torch.compile skips the fused LSTM and compiles the rest."""
    model = a_model(family, layers=1, decoder_layers=1)
    source, target, valid = torch.randint(47, (3, 9)), torch.randint(41, (3, 6)), ragged([9, 4, 6])
    grads = []
    for loss_of in (model, torch.compile(model, backend="aot_eager")):
        model.zero_grad()
        loss_of(inputs(source, valid), inputs(target)).square().mean().backward()
        grads.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
    close(*grads, 1e-5)


@EVERY
def test_initial_weights(cell):
    model = rnn.Model(rnn.Config(**SHAPE, cell=cell))
    layer = model.decoder.layers[0].attention.forth
    for gate in layer.weight_hh_l0.chunk(len(layer.weight_hh_l0) // 12):
        close(gate @ gate.T, torch.eye(12), 1e-5)
    biases = (layer.bias_ih_l0 + layer.bias_hh_l0).detach()
    wanted = torch.zeros_like(biases)
    if cell == "lstm":
        wanted[12:24] = 1.0
    assert biases.equal(wanted)


def test_parameter_count_matches_transformer_of_multi30k():
    def count(**settings: Any) -> int:
        return sum(each.numel() for each in regard.build("multi30k", settings).parameters())

    wanted = count()
    for family in ("rnn", "cnn"):
        assert abs(count(**{"model.family": family}) / wanted - 1) < 0.05


def test_flattened_weights_are_saved(tmp_path):
    """On a GPU a fused LSTM holds all its weights in one contiguous buffer."""
    model = a_model(rnn)
    layer = model.encoder.layers[0].attention.forth
    whole, at = torch.cat([each.detach().flatten() for each in layer.parameters()]), 0
    for each in layer.parameters():
        each.data, at = whole[at : at + each.numel()].view_as(each), at + each.numel()
    save_model(model, tmp_path / "model.safetensors", 1)
    fresh = rnn.Model(rnn.Config(**SHAPE))
    load_model(fresh, tmp_path / "model.safetensors")
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), fresh.state_dict().values(), strict=True))


def test_int8_skips_the_recurrence():
    from regard.adapt import precision

    model = rnn.Model(rnn.Config(**SHAPE | {"width": 64, "vocab": 200, "target_vocab": 0}))
    precision.apply_precision(model, "int8")
    assert isinstance(model.decoder.layers[0].cross.query, precision.Int8Linear) and isinstance(
        model.head, precision.Int8Linear
    )
    assert model.decoder.layers[0].attention.forth.weight_ih_l0.dtype == torch.float32
    other = cnn.Model(cnn.Config(**SHAPE | {"width": 64, "vocab": 200, "target_vocab": 0}))
    assert isinstance(precision.apply_precision(other, "int8").encoder.layers[0].attention.into, precision.Int8Linear)
