"""Transformer-XL: segments with memory equal one text and the paper's formula; generation drops what training drops."""

import math

import pytest
import torch
from helpers.inputs import inputs
from torch import Tensor

from regard.decode import SearchSettings, run_search
from regard.families import xl
from regard.look import record_attention

SHAPE = {"vocab": 53, "width": 30, "heads": 3, "layers": 2, "inner": 44, "memory": 64, "dropout": 0.0}


def build(**changes) -> xl.Model:
    torch.manual_seed(2)
    model = xl.Model(xl.Config.model_validate(SHAPE | changes)).eval()
    for name, each in model.named_parameters():
        each.data = each.data * (5 if name.startswith(("embed", "head")) else 20) if each.dim() > 1 else each.data + 0.1
    return model


def segments(model: xl.Model, tokens: Tensor, lengths: list[int]) -> Tensor:
    """Logits of a text that is read in segments of these lengths."""
    cache = model.new_memory(len(tokens))
    return torch.cat([model(inputs(part), cache) for part in tokens.split(lengths, 1)], 1)


def assert_close(actual: Tensor, expected: Tensor, bound: float = 1e-4) -> None:
    assert actual.shape == expected.shape and (actual - expected).abs().max() <= bound, (actual - expected).abs().max()


FORMS = pytest.mark.parametrize("form", [{}, {"prenorm": True, "norm": "rms", "feed": "gated"}, {"same_length": True}], ids=["paper", "prenorm", "same"])  # fmt: skip


@FORMS
@torch.no_grad()
def test_segments_with_full_memory_equal_one_long_segment(form):
    model, tokens = build(**form), torch.randint(53, (3, 40))
    assert_close(segments(model, tokens, [10, 6, 1, 1, 22]), model(inputs(tokens)))


@FORMS
def test_memory_gets_no_gradient(form):
    """Embeddings used only by the first segment get no gradient from the second; its own and the key maps do."""
    model = build(tied=False, **form)
    first, second = torch.randint(0, 20, (2, 8)), torch.randint(20, 53, (2, 8))
    cache = model.new_memory(2)
    model.decode(inputs(first), cache)
    model(inputs(second), cache).square().sum().backward()
    assert model.embed.weight.grad[first.unique()].abs().max() == 0
    assert (model.embed.weight.grad[second.unique()].abs().amax(1) > 0).all()
    assert not any(memory.past.requires_grad for memory in cache.layers)
    alone = build(tied=False, **form)
    alone(inputs(second)).square().sum().backward()
    # Remembered inputs are projected again, so the key maps get gradient from them.
    for ours, other in zip(model.stack.layers, alone.stack.layers, strict=True):
        assert (ours.attention.key.weight.grad - other.attention.key.weight.grad).abs().max() > 1e-3


@torch.no_grad()
def test_saved_cache_state_loads_under_old_and_new_names():
    """Training checkpoints hold cache tensors by name; older ones say "books.0.at" for "layouts.0.positions"."""
    model, first, second = build(memory=9), torch.randint(53, (2, 12)), torch.randint(53, (2, 5))
    cache = model.new_memory(2)
    model(inputs(first), cache)
    state = cache.state()
    assert set(state) == {"lengths", "layers.0.past", "layers.1.past", "layouts.0.positions"}
    wanted = model(inputs(second), cache)
    for saved in (state, {name.replace("layouts.0.positions", "books.0.at"): each for name, each in state.items()}):
        other = model.new_memory(2)
        other.load_state(saved)
        assert all(other.state()[name].equal(each) for name, each in state.items())
        assert model(inputs(second), other).equal(wanted)


def naive(model: xl.Model, tokens: list[int], memory: int, segment: int, same: bool) -> Tensor:
    """The paper in plain loops, in float64: each segment attends to the last `memory` layer inputs before it."""
    width, heads = 30, 3
    each = width // heads

    def wave(distance: int) -> Tensor:
        angles = [distance / 10000 ** (2 * i / width) for i in range(width // 2)]
        return torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)], dtype=torch.float64)

    def norm(x: Tensor, part: torch.nn.LayerNorm) -> Tensor:
        x = (x - x.mean()) / (x.var(unbiased=False) + part.eps).sqrt()
        return x * part.weight.double() + part.bias.double()

    xs = [model.embed.weight[token].double() * math.sqrt(width) for token in tokens]
    for layer, own in zip(model.stack.layers, model.stack.positions, strict=True):
        q, k, v, o = (getattr(layer.attention, name).weight.double() for name in ("query", "key", "value", "out"))
        new = []
        for i, x in enumerate(xs):
            least = max(i // segment * segment - memory, 0)
            least = max(least, i - memory + 1) if same else least
            mixed = []
            for h in range(heads):
                part = slice(h * each, (h + 1) * each)
                query, scores = (q @ x)[part], []
                for j in range(least, i + 1):
                    content = (query + own.u[h, 0].double()) @ (k @ xs[j])[part]
                    position = (query + own.v[h, 0].double()) @ (own.key.weight.double() @ wave(i - j))[part]
                    scores.append((content + position) / math.sqrt(each))
                values = torch.stack([(v @ xs[j])[part] for j in range(least, i + 1)])
                mixed.append(torch.stack(scores).softmax(0) @ values)
            y = norm(x + o @ torch.cat(mixed), layer.attention_residual.norm)
            into, out = layer.feed.into, layer.feed.out
            inner = (into.weight.double() @ y + into.bias.double()).clamp(min=0)
            new.append(norm(y + out.weight.double() @ inner + out.bias.double(), layer.feed_residual.norm))
        xs = new
    return torch.stack([model.head.weight.double() @ x + model.head.bias.double() for x in xs])


@pytest.mark.parametrize("same", [False, True], ids=["longer and longer", "same length"])
@torch.no_grad()
def test_logits_equal_the_papers_formula(same):
    """Memory of five tokens and segments of four: the attended span begins inside a segment."""
    model, tokens = build(memory=5, same_length=same), torch.randint(53, (2, 14))
    logits = segments(model, tokens, [4, 4, 4, 2])
    for row in range(2):
        assert_close(logits[row].double(), naive(model, tokens[row].tolist(), 5, 4, same), 1e-4)
    assert (
        naive(model, tokens[0].tolist(), 5, 4, same) - naive(model, tokens[0].tolist(), 5, 4, not same)
    ).abs().max() > 0.1


@torch.no_grad()
def test_same_length_attends_to_equally_many_tokens():
    model, tokens = build(memory=6, same_length=True), torch.randint(53, (1, 30))
    cache = model.new_memory(1)
    for number, part in enumerate(tokens.split(10, 1)):
        with record_attention(model) as maps:
            model(inputs(part), cache)
        attended = (next(iter(maps.values())) > 0).sum(-1)[0, 0]
        assert attended.tolist() == (capped_counts(6) if number == 0 else [6] * 10)


def capped_counts(most: int) -> list[int]:
    return [min(i + 1, most) for i in range(10)]


@pytest.mark.parametrize("same", [False, True], ids=["longer and longer", "same length"])
@pytest.mark.parametrize("capacity", [None, 40], ids=["growing", "static"])
@torch.no_grad()
def test_generation_equals_reading_in_segments(capacity, same):
    """Far beyond the memory: the KV cache drops the same tokens as the memory of inputs."""
    model, tokens = build(memory=7, same_length=same), torch.randint(53, (3, 30))
    cache, lengths = model.start(None, 3, capacity), [9, 1, 1, 1, 4, *[1] * 14]
    parts = [model.step(part, cache) for part in tokens.split(lengths, 1)]
    assert_close(torch.cat(parts, 1), segments(model, tokens, lengths))
    assert all(memory.k.size(2) < 7 + 9 for memory in cache.layers)
    short = model.start(None, 3)
    assert_close(model.step(tokens[:, :7], short), model(inputs(tokens[:, :7])))


@torch.no_grad()
def test_generation_beyond_the_memory_is_batch_invariant():
    """Greedy and beam search over three times the memory, each row as if alone."""
    model = build(memory=7)
    rows = [torch.randint(53, (length,)).tolist() for length in (20, 3, 11)]
    for beam in (1, 3):
        settings = SearchSettings(end=52, beam=beam, early_stopping="heuristic")
        alone = [
            run_search(model, model.start(None, 1), torch.tensor([row]), torch.tensor([25]), settings)[0][0]
            for row in rows
        ]
        tokens = torch.tensor([row + [0] * (20 - len(row)) for row in rows])
        valid = torch.arange(20) < torch.tensor([[len(row)] for row in rows])
        hypotheses = run_search(model, model.start(None, 3), tokens, torch.tensor([25] * 3), settings, valid)
        assert [best[0].tokens for best in hypotheses] == [each.tokens for each in alone]
        assert all(
            best[0].score == pytest.approx(each.score, abs=1e-4) for best, each in zip(hypotheses, alone, strict=True)
        )
    assert model.context is None


@torch.no_grad()
def test_reset_clears_the_memory_of_a_row():
    model, old, new = build(memory=9), torch.randint(53, (2, 12)), torch.randint(53, (2, 14))
    cache = model.new_memory(2)
    model(inputs(old), cache)
    cache.reset(torch.tensor([True, False]))
    logits = torch.cat([model(inputs(part), cache) for part in new.split([3, 5, 6], 1)], 1)
    assert_close(logits[0], segments(model, new[:1], [3, 5, 6])[0])
    assert (logits[1] - segments(model, new[1:], [3, 5, 6])[0]).abs().max() > 0.1


@torch.no_grad()
def test_memory_changes_the_logits():
    model, tokens = build(memory=16), torch.randint(53, (2, 16))
    with_it, without = segments(model, tokens, [8, 8]), build(memory=0)
    assert (with_it[:, 8:] - model(inputs(tokens[:, 8:]))).abs().max() > 0.1
    assert without.new_memory(2) is None
    assert_close(without(inputs(tokens)), model(inputs(tokens)))
    cache = without.start(None, 2)
    assert_close(
        torch.cat([without.step(part, cache) for part in tokens.split([9, 1, 6], 1)], 1), without(inputs(tokens))
    )


def test_dropout_and_initial_values():
    torch.manual_seed(1)
    c = xl.Config.model_validate(SHAPE | {"width": 240, "heads": 4, "inner": 400, "tied": False, "dropout": 0.25, "attention": {"dropout": 0.5}})  # fmt: skip
    model = xl.Model(c)
    for name, each in model.named_parameters():
        if each.dim() > 1:
            assert each.std().item() == pytest.approx(0.02, rel=0.1), name
        else:
            assert (each == ("norm.weight" in name)).all(), name
    assert model.stack.layers[1].attention.kernel.dropout == 0.5
    states = model.train().decode(inputs(torch.randint(53, (4, 20))))
    assert (states == 0).float().mean() == pytest.approx(0.25, abs=0.02)  # also of the output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memory": 0, "same_length": True}, "model.memory is 0; set model.memory"),
        ({"attention": {"scaled": False}}, "model.attention.scaled is false"),
        ({"heads": 4}, "width 30 does not divide into 4 heads"),
        ({"memory": -1}, "greater than or equal to 0"),
    ],
)
def test_refused_settings(change, words):
    with pytest.raises(ValueError, match="validation error") as error:
        xl.Config.model_validate(SHAPE | change)
    assert words in str(error.value)
