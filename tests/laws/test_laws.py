"""Laws of every family, at size tiny and with every slot variant."""

import pytest
import torch
from helpers.families import CASES, LOOSE, config, ids, kind, loud, some

from regard.config.run import family_of
from regard.look import record_attention
from regard.parts.losses import smoothed_cross_entropy
from regard.training.checkpoint import load_model, save_model

CLOSE = 1e-4


@pytest.fixture(params=CASES, ids=" ".join)
def case(request):
    return request.param


@pytest.fixture
def it(case):
    """A model behind the interface of its kind."""
    return kind(*case)(loud(*case))


@pytest.fixture(params=[case for case in CASES if kind(*case).writes], ids=" ".join)
def writer(request):
    """A model that generates token by token."""
    return kind(*request.param)(loud(*request.param))


@torch.no_grad()
def test_shapes(it):
    assert it.read(ids(2, 5)).shape == (2, 5, it.vocab)


@torch.no_grad()
def test_rows_are_batch_invariant(it):
    texts = some(9, 4, 6)
    together, other = it.together(texts), it.together(texts, fill=7)
    for row, text in enumerate(texts):
        assert (together[row] - it.alone(text, row)).abs().max() < CLOSE
        assert (together[row] - other[row]).abs().max() < CLOSE


@torch.no_grad()
def test_later_tokens_change_nothing(writer):
    tokens = ids(2, 8)
    before = writer.read(tokens)
    tokens[:, 5:] = ids(2, 3)
    after = writer.read(tokens)
    assert (before[:, :5] - after[:, :5]).abs().max() < 1e-5 and (before[:, 5:] - after[:, 5:]).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("capacity", [None, 24], ids=["growing", "static"])
def test_cached_equals_uncached(writer, capacity):
    """Prompts of different lengths, steps, a chunk in which one row waits."""
    cache, said = writer.start(3, capacity), [[], [], []]
    for lengths in ((4, 2, 3), (1, 1, 1), (1, 1, 1), (3, 0, 2), (1, 1, 1)):
        tokens = ids(3, max(lengths))
        valid = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        found = writer.model.step(tokens, cache, None if valid.all() else valid)
        for row, length in enumerate(lengths):
            said[row] += tokens[row, :length].tolist()
            wanted = writer.read(torch.tensor([said[row]]), rows=torch.tensor([row]))[0]
            assert length == 0 or (found[row, :length] - wanted[-length:]).abs().max() < CLOSE
    assert (cache.lengths - cache.prefix_length).tolist() == [10, 5, 8]  # not counting what stands before every text


@torch.no_grad()
def test_packed_equals_separate(it, case):
    texts = some(6, 3, 8)
    if "packed" in LOOSE.get(case, ()):
        with pytest.raises(ValueError, match="cannot pack"):
            it.packed(texts)
        return
    for found, wanted in zip(it.packed(texts), it.together(texts), strict=True):
        assert (found - wanted).abs().max() < CLOSE


@torch.no_grad()
def test_save_and_load_is_identity(it, case, tmp_path):
    save_model(it.model, tmp_path / "model.safetensors", 7)
    fresh = family_of(case[0]).Model(config(*case)).eval()
    assert load_model(fresh, tmp_path / "model.safetensors") == 7
    assert all(a.equal(b) for a, b in zip(it.model.state_dict().values(), fresh.state_dict().values(), strict=True))
    tokens = ids(2, 5)
    assert kind(*case)(fresh).read(tokens).equal(it.read(tokens))


def test_overfits_one_batch_and_a_seed_repeats(case):
    tokens = ids(4, 6)
    told, asked = tokens[:, :-1], tokens[:, 1:]
    finals = []
    for _ in range(2):
        torch.manual_seed(5)
        model = family_of(case[0]).Model(config(*case, dropout=0.1))
        it, optimizer = kind(*case)(model), torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(80):
            loss = smoothed_cross_entropy(it.read(told), asked) / asked.numel()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        finals.append([each.detach().clone() for each in model.parameters()])
        model.eval()
        with torch.no_grad():
            assert (it.read(told).argmax(-1) == asked).float().mean() > 0.9
    assert all(a.equal(b) for a, b in zip(*finals, strict=True))


@torch.no_grad()
def test_recorded_weights_equal_the_attention(it, case):
    """Rows of recorded weights sum to one over visible keys, and recording does not change the output."""
    texts = some(6, 3)
    plain = it.together(texts)
    with record_attention(it.model) as maps:
        assert all((a - b).abs().max() < 1e-5 for a, b in zip(it.together(texts), plain, strict=True))
    assert sorted(maps) == sorted(it.paths())
    for path, weights in maps.items():
        assert (weights.sum(-1) - 1).abs().max() < 1e-5 or "recorded" in LOOSE.get(case, ())
        assert weights.masked_select(it.hidden(path, texts)).abs().max() == 0
