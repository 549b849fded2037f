"""Search equals exhaustive search and the one of transformers, and is batch-invariant."""

import itertools
from typing import Any

import pytest
import torch
import transformers as hf
from helpers.inputs import inputs
from torch import Tensor, nn

from regard.decode import ForcedEnd, Renormalize, SearchSettings, Suppress, run_search
from regard.decode.search.pool import TIE, blocked_topk, first_best, top_candidates
from regard.families import transformer
from regard.formats.huggingface.marian import FORMAT
from regard.formats.huggingface.weight_names import load_weights
from regard.parts import Cache, LayerCache

END = 0


class LastToken(LayerCache):
    def __init__(self, token: Tensor) -> None:
        self.token = token  # (rows,) the previous token


class Chain:
    """The smallest model that can be decoded: the next token depends on the row and on the last two tokens."""

    def __init__(self, rows: int, vocab: int, seed: int = 0, spread: float = 1.5) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.table = torch.randn(rows, vocab, vocab, vocab, generator=draw) * spread  # row, before, last, next
        self.rows = rows

    def start(self, rows: list[int]) -> Cache:
        which = LastToken(torch.tensor(rows))
        return Cache(len(rows), torch.device("cpu"), [which, LastToken(torch.zeros(len(rows), dtype=torch.long))])

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        row, before = cache.layers[0].token, cache.layers[1].token
        flat = tokens.reshape(-1)
        cache.layers[1].token = flat.clone()
        cache.advance(cache.next_mask(tokens))
        return self.table[row, before, flat].view(*tokens.shape, -1)

    def logprob(self, row: int, tokens: tuple[int, ...]) -> float:
        total, before, last = 0.0, 0, 1
        for token in tokens:
            total += self.table[row, before, last].log_softmax(-1)[token].item()
            before, last = last, token
        return total


def run(chain: Chain, rows: list[int], limits: list[int], **settings) -> list:
    prompt = torch.ones(len(rows), 1, dtype=torch.long)
    return run_search(chain, chain.start(rows), prompt, torch.tensor(limits), SearchSettings(END, **settings))


def everything(chain: Chain, row: int, vocab: int, limit: int, alpha: float) -> dict[tuple[int, ...], float]:
    """The score of every possible text."""
    every = {}
    for length in range(1, limit + 1):
        for body in itertools.product(range(1, vocab), repeat=length - 1):
            every[body] = chain.logprob(row, (*body, END)) / length**alpha
    for body in itertools.product(range(1, vocab), repeat=limit):  # cut by the limit
        every[body] = chain.logprob(row, body) / limit**alpha
    return every


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 1.0, 2.0])
def test_exact_equals_exhaustive_search(alpha):
    """With a beam that holds every prefix, the n-best list is that of trying everything."""
    vocab, limits = 4, [5, 3, 1]
    chain = Chain(3, vocab, spread=2.5)
    found = run(chain, [0, 1, 2], limits, beam=3**5, nbest=9, length_penalty=alpha, early_stopping="exact")
    for row, limit in enumerate(limits):
        every = everything(chain, row, vocab, limit, alpha)
        best = sorted(every.items(), key=lambda each: -each[1])[:9]
        assert [tuple(each.tokens) for each in found[row]] == [body for body, _ in best]
        assert [each.score for each in found[row]] == pytest.approx([score for _, score in best], abs=1e-5)
        assert all(each.ended == (len(each.tokens) < limit) for each in found[row])


def test_full_beam_beats_greedy_and_greedy_takes_the_best_token():
    chain = Chain(8, 6)
    rows, limits = list(range(8)), [9] * 8
    greedy = run(chain, rows, limits, beam=1, early_stopping="first")
    for row in rows:
        said, before, last = [], 0, 1
        while len(said) < 9:
            token = int(chain.table[row, before, last].argmax())
            if token == END:
                break
            said.append(token)
            before, last = last, token
        assert greedy[row][0].tokens == said
    whole = run(chain, rows, limits, beam=400, early_stopping="exact")
    assert all(whole[row][0].score >= greedy[row][0].score - 1e-6 for row in rows)
    assert any(whole[row][0].tokens != greedy[row][0].tokens for row in rows)


def test_greedy_equals_a_beam_of_one():
    """GreedySearch finds what BeamSearch finds, for rows that end early, late, at the limit or not at all."""
    from regard.decode.engine.closed_batch import build_search
    from regard.decode.search.beam import BeamSearch
    from regard.decode.search.greedy import GreedySearch

    chain, limits = Chain(40, 5, spread=1.5), [1 + i % 12 for i in range(40)]
    chain.table[8, :, :, 3] = chain.table[8, :, :, 1]  # ties
    for suppressed in ([], [END], [2, 3], [0, 1, 2, 3, 4]):
        how = SearchSettings(END, 1, 0.7, early_stopping="first", filters=(Suppress(suppressed),) if suppressed else ())
        found = []
        for kind in (GreedySearch, BeamSearch):
            state = kind(how, EmptyCache(), torch.tensor(limits))
            tokens, before = torch.ones(40, 1, dtype=torch.long), torch.zeros(40, dtype=torch.long)
            while tokens is not None:
                row, last = state.input_row, tokens[:, 0]
                tokens = state.step_and_drop(chain.table[row, before[row], last][:, None])
                before[row] = last
            found.append(state.results())
        assert type(build_search(how, EmptyCache(), torch.tensor(limits))) is GreedySearch
        assert [[(each.tokens, each.ended) for each in some] for some in found[0]] == [
            [(each.tokens, each.ended) for each in some] for some in found[1]
        ]
        scores = [[value for some in one for each in some for value in (each.score, each.logprob)] for one in found]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5) and len(scores[0]) == (0 if len(suppressed) == 5 else 80)


class EmptyCache:
    """A cache without content."""

    fixed = False

    def select(self, rows: Tensor) -> None: ...


def test_search_releases_its_graph(monkeypatch):
    """A search returns its captured graph when it is over or has been closed."""
    from regard.decode.engine import cuda_graph
    from regard.decode.engine.closed_batch import search_steps

    released = []
    monkeypatch.setattr(cuda_graph.EagerStep, "release", lambda self: released.append(self))
    torch.manual_seed(0)
    model = transformer.Model(transformer.Config(vocab=31, width=16, heads=2, layers=1, inner=32)).eval()
    source, prompt, limits = torch.randint(3, 31, (4, 5)), torch.ones(4, 1, dtype=torch.long), torch.full((4,), 6)
    with torch.no_grad():
        run_search(
            model,
            model.start(inputs(source), len(source)),
            prompt,
            limits,
            SearchSettings(2, 1, early_stopping="first"),
        )
        assert len(released) == 1
        states = search_steps(
            model,
            model.start(inputs(source), len(source)),
            prompt,
            limits,
            SearchSettings(2, 1, early_stopping="first"),
        )
        next(states)
        states.close()
    assert len(released) == 2


@pytest.mark.parametrize("stop", ["exact", "first", "heuristic"])
def test_rows_are_batch_invariant(stop):
    """Alone, in any batch, in any order and with its own limit, a row has the same n-best list."""
    chain, limits = Chain(24, 7), [3 + i % 9 for i in range(24)]
    how = {"beam": 4, "nbest": 3, "early_stopping": stop, "length_penalty": 0.8}
    alone = [run(chain, [row], [limits[row]], **how)[0] for row in range(24)]
    for order in (list(range(24)), list(range(23, -1, -1)), [5, 5, 7, 20], torch.randperm(24).tolist()):
        found = run(chain, order, [limits[row] for row in order], **how)
        for row, best in zip(order, found, strict=True):
            assert [each.tokens for each in best] == [each.tokens for each in alone[row]]
            assert [each.score for each in best] == pytest.approx([each.score for each in alone[row]], abs=1e-5)


def test_ties_go_to_the_first_token():
    scores = torch.tensor([[[0.0, -1.0, -1.0 + 4e-6, -3.0], [-1.0 - 4e-6, -2.0, -torch.inf, -torch.inf]]])
    best, token, beam = top_candidates(scores, 4)
    assert token.tolist() == [[0, 1, 2, 0]] and beam.tolist() == [[0, 0, 0, 1]]
    best, token, beam = top_candidates(scores, 2)  # also between the last one kept and the first one dropped
    assert token.tolist() == [[0, 1]] and best[0, 1] == -1.0
    best, token, beam = top_candidates(scores[:, 1:], 5)  # more than there are
    assert token.tolist()[0][:2] == [0, 1] and best[0, 2:].tolist() == [-torch.inf] * 3


@pytest.mark.parametrize("size", [1, 127, 500, 640, 2049, 20000])
@pytest.mark.parametrize("count", [1, 5, 10])
def test_blocked_topk(size, count):
    flat, count = torch.randn(3, size), min(count, size)
    flat[1, : size - 1] = -torch.inf  # a single finite value
    flat[2, -count:] = 9.0 + torch.arange(count)  # after the last whole block, or in the last block
    best, index = blocked_topk(flat, count)
    wanted = flat.topk(count)
    assert torch.equal(best, wanted.values) and torch.equal(flat.gather(1, index), best)
    assert torch.equal(index[::2], wanted.indices[::2]) and all(len(set(row)) == count for row in index.tolist())


@pytest.mark.parametrize("size", [1, 127, 128, 129, 500, 640, 20000])
def test_first_best(size):
    """The first index of those that tie, also without any finite value and after the last whole block."""
    flat = torch.randn(6, size).mul_(2).round_()
    flat[1] = -torch.inf
    flat[2, -1] = 99.0
    flat[3, -2:] = 99.0 + torch.tensor([0.0, TIE / 2])[-size:].sort().values
    flat[4, ::2] = -torch.inf
    best, index = first_best(flat)
    assert torch.equal(best[:, 0], flat.amax(1))
    assert index[:, 0].tolist() == (flat >= best - TIE).to(torch.uint8).argmax(1).tolist()


def test_filters():
    chain = Chain(4, 6)
    plain = run(chain, [0, 1, 2, 3], [6] * 4, beam=3, early_stopping="exact")
    common = max(range(1, 6), key=lambda token: sum(each[0].tokens.count(token) for each in plain))
    found = run(chain, [0, 1, 2, 3], [6] * 4, beam=3, early_stopping="exact", filters=(Suppress([common]),))
    assert all(common not in each[0].tokens for each in found) and any(common in each[0].tokens for each in plain)
    forced = run(
        chain, [0, 1, 2, 3], [2] * 4, beam=3, early_stopping="heuristic", filters=(Suppress([END]), ForcedEnd(END))
    )
    assert all(each[0].ended and len(each[0].tokens) == 1 for each in forced)
    cut = run(chain, [0], [2], beam=3, early_stopping="heuristic", filters=(Suppress([END]),))
    assert not cut[0][0].ended and len(cut[0][0].tokens) == 2
    even = run(chain, [0], [1], beam=1, early_stopping="first", filters=(Suppress([1, 2, 3, 4, 5]), Renormalize()))
    assert even[0][0].logprob == pytest.approx(0.0, abs=1e-6)


@pytest.fixture(scope="module")
def marian() -> tuple[nn.Module, nn.Module]:
    """A Marian of odd sizes whose texts end with END, and our model with its weights."""
    torch.manual_seed(0)
    config = hf.MarianConfig(
        vocab_size=61, d_model=36, encoder_layers=3, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=3,
        encoder_ffn_dim=50, decoder_ffn_dim=50, activation_function="swish", scale_embedding=True, pad_token_id=60,
        eos_token_id=0, decoder_start_token_id=60, forced_eos_token_id=0, max_position_embeddings=64,
    )  # fmt: skip
    theirs = hf.MarianMTModel(config).eval()
    for name, each in theirs.named_parameters():
        if "embed_positions" not in name:
            each.data = (
                each.data * 6 + 0.1 * torch.randn_like(each)
                if each.dim() > 1
                else each.data + 0.3 * torch.randn_like(each)
            )
    theirs.final_logits_bias.data.normal_()
    theirs.final_logits_bias.data[0, 0] += 3.5
    own: Any = FORMAT.from_huggingface(config.to_dict())
    ours = load_weights(
        transformer.Model(own), theirs.state_dict(), FORMAT.weights.names(own), FORMAT.weights.unused(own)
    )
    return theirs, ours


@pytest.mark.parametrize(
    "beams, early, alpha", [(1, False, 1.0), (4, False, 1.0), (4, True, 1.0), (5, False, 0.6), (3, True, 2.0)]
)
def test_beams_equal_transformers(marian, beams, early, alpha):
    theirs, ours = marian
    rows, limit = 12, 25
    lengths = torch.randint(1, 12, (rows,))
    valid = torch.arange(12)[None] < lengths[:, None]
    source = torch.randint(1, 60, (rows, 12)).masked_fill(~valid, 60)
    out = theirs.generate(
        input_ids=source, attention_mask=valid.long(), num_beams=beams, num_return_sequences=beams, max_length=limit + 1,
        early_stopping=early, length_penalty=alpha, bad_words_ids=[[60]], forced_eos_token_id=0, do_sample=False,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    settings = SearchSettings(
        0, beams, alpha, beams, "first" if early or beams == 1 else "heuristic", (Suppress([60]), ForcedEnd(0))
    )
    with torch.no_grad():
        cache = ours.start(inputs(source, valid), len(source))
    found = run_search(ours, cache, torch.full((rows, 1), 60), torch.full((rows,), limit), settings)
    texts = [[token for token in row[1:] if token not in (0, 60)] for row in out.sequences.tolist()]
    assert [each.tokens for best in found for each in best] == texts
    assert len({len(text) for text in texts}) > 1, "texts of one length would prove little"
    if beams > 1:
        scores = [each.score for best in found for each in best]
        assert scores == pytest.approx(out.sequences_scores.tolist(), abs=1e-4)


def test_growing_and_preallocated_caches_agree(marian):
    _, ours = marian
    source = torch.randint(1, 60, (4, 9))
    with torch.no_grad():
        caches = [ours.start(inputs(source), len(source)), ours.start(inputs(source), len(source), 32)]
    prompt, limits = torch.full((4, 1), 60), torch.tensor([20, 12, 7, 30])
    found = [run_search(ours, cache, prompt, limits, SearchSettings(0, 4, nbest=4)) for cache in caches]
    assert [[each.tokens for each in best] for best in found[0]] == [
        [each.tokens for each in best] for best in found[1]
    ]


@pytest.mark.parametrize("stop", ["exact", "heuristic", "first", "samples"])
@torch.no_grad()
def test_steps_keep_tensor_addresses(stop):
    """From the second step of a shape on, all tensors of the state keep their addresses: CUDA graphs need it."""
    from regard.decode import Sample, SamplingSettings
    from regard.decode.engine.closed_batch import build_search
    from regard.decode.engine.cuda_graph import TRANSIENT

    torch.manual_seed(0)
    model = transformer.Model(transformer.Config(vocab=31, width=16, heads=2, layers=2, inner=32)).eval()
    cache, limits = model.start(inputs(torch.randint(3, 31, (4, 5))), 4, 30), torch.tensor([12, 12, 12, 12])
    draw = SamplingSettings.of(torch.arange(12).view(4, 3), [Sample(n=3)] * 4) if stop == "samples" else None
    state = build_search(
        SearchSettings(2, 3, early_stopping="exact" if draw else stop, filters=(Suppress([2]),), sampling=draw),
        cache,
        limits,
    )
    scores = model.step(torch.ones(4, 1, dtype=torch.long), cache)[:, -1:]
    cache.branch(3, 12)
    tokens, seen = state.step_and_drop(scores), []

    def addresses() -> dict[str, int]:
        owners = {"state": state, "pool": getattr(state, "pool", None), "cache": cache, "layout": cache.layouts[0]}
        owners |= {f"layer {i}": layer for i, layer in enumerate(cache.layers)}
        return {
            f"{owner}.{name}": value.data_ptr()
            for owner, each in owners.items() if each is not None
            for name, value in vars(each).items() if isinstance(value, Tensor) and name not in TRANSIENT
        }  # fmt: skip

    for _ in range(6):
        tokens = state.step_and_drop(model.step(tokens, cache))
        seen.append(addresses())
    assert state.graph_safe and {
        "state.logprobs",
        "state.tokens",
        "state.active",
        "state.device_step",
        "layout.beam_ancestry",
    } <= set(seen[0])
    assert all(each == seen[0] for each in seen)
    assert state.device_step.tolist() == [7] * 4 and state.step == 7


def test_collected_state_has_every_tensor():
    """A later search copies every tensor of its state to the captured graph, for every rule."""
    from regard.decode import Sample, SamplingSettings
    from regard.decode.engine.closed_batch import build_search
    from regard.decode.engine.cuda_graph import collect_state

    for settings in (
        SearchSettings(2, 1, early_stopping="first"),
        SearchSettings(2, 3),
        SearchSettings(2, nbest=2, sampling=SamplingSettings.of(torch.arange(8).view(4, 2), [Sample(n=2)] * 4)),
    ):
        state = build_search(settings, EmptyCache(), torch.full((4,), 9))
        held = {name for name, each in vars(state).items() if isinstance(each, Tensor)}
        found = {entry.name for entry in collect_state({"state": state}) if entry.path.count(".") == 2}
        assert held <= found, held - found


@torch.no_grad()
def test_a_search_can_move_to_the_tensors_of_another():
    """The state of a search can be copied to the tensors of another with the same shapes, and the search continues."""
    from regard.decode.engine.closed_batch import build_search
    from regard.decode.engine.cuda_graph import collect_state, copy_into, state_signature

    torch.manual_seed(0)
    model = transformer.Model(transformer.Config(vocab=31, width=16, heads=2, layers=2, inner=32)).eval()
    sources = [torch.randint(3, 31, (4, 5)) for _ in range(2)]
    limits = torch.tensor([9, 12, 7, 3])

    def started(source: Tensor):
        cache = model.start(inputs(source, torch.ones_like(source, dtype=torch.bool)), len(source), 30)
        state = build_search(SearchSettings(2, 3, filters=(Suppress([0, 1]),)), cache, limits)
        scores = model.step(torch.ones(4, 1, dtype=torch.long), cache)[:, -1:]
        cache.branch(3, state.capacity)
        tokens = state.step_and_drop(scores)
        return state, cache, state.step_and_drop(model.step(tokens, cache))

    def finish(state, cache, tokens):
        while tokens is not None:
            tokens = state.step_and_drop(model.step(tokens, cache))
        return state.results()

    wanted = finish(*started(sources[1]))
    first, second = started(sources[0]), started(sources[1])
    entries = [[*collect_state({"state": state, "cache": cache})] for state, cache, _ in (first, second)]
    assert [state_signature(entry) for entry in entries[0]] == [state_signature(entry) for entry in entries[1]]
    before, after = ([entry for entry in some if isinstance(entry.value, Tensor)] for some in entries)
    paths = {entry.path for entry in before}
    assert {
        ".state.logprobs",
        ".state.tokens",
        ".state.device_step",
        ".state.input_row",
        ".state.pool.tokens",
        ".state.cache.lengths",
    } <= paths
    assert sum(path.endswith((".k", ".v")) for path in paths) == 8  # self and cross attention of two layers
    copy_into(after, [entry.value for entry in before])
    assert second[0].tokens is first[0].tokens and second[1].layers[0].k is first[1].layers[0].k
    assert finish(*second) == wanted and finish(*started(sources[0])) != wanted
