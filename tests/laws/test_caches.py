"""Cached decoding equals one uncached pass: every kind of cache, ragged, reordered, with beams, compiled."""

import pytest
import torch
import torch._inductor.config
from helpers.inputs import inputs
from prototypes.checks import SMALL, STEPPED, Largest, Stepped, alone, close, loud, ragged, stepped, writing
from torch import Tensor

from regard.families import transformer
from regard.parts import Cache, Mask
from regard.parts.cache import slots
from regard.parts.efficient import RandomFeatureKernel

CAPACITIES = pytest.mark.parametrize("capacity", [None, 40], ids=["growing", "static"])
EVERY = pytest.mark.parametrize("name", STEPPED)


class Texts:
    """The tokens of every row beside a cache; each step is compared with one uncached pass."""

    def __init__(self, it: Stepped, capacity: int | None) -> None:
        self.it, self.cache = it, it.start(capacity)
        self.said: list[list[int]] = [[] for _ in range(3)]
        self.origin = [0, 1, 2]  # which row of the beginning each row is

    def read(self, tokens: Tensor, valid: Tensor | None = None) -> None:
        logits = self.it.model.step(tokens, self.cache, valid)
        for row, said in enumerate(self.said):
            new = tokens[row] if valid is None else tokens[row][valid[row]]
            said += new.tolist()
            if len(new):
                got = logits[row] if valid is None else logits[row][valid[row]]
                close(got, self.it.full(torch.tensor([said]), self.origin[row])[0, -len(new) :])
        assert self.cache.lengths.tolist() == [len(said) for said in self.said]

    def put(self, rows: list[int], others: "Texts", origin: list[int]) -> None:
        self.cache.put(torch.tensor(rows), others.cache, torch.tensor(origin))
        new = [(list(others.said[i]), others.origin[i]) for i in origin]
        for row, (said, source) in zip(rows, new, strict=True):
            self.said[row], self.origin[row] = said, source

    def select(self, rows: list[int]) -> None:
        self.cache.select(torch.tensor(rows))
        self.said, self.origin = [list(self.said[r]) for r in rows], [self.origin[r] for r in rows]


@EVERY
@CAPACITIES
@torch.no_grad()
def test_cached_equals_uncached(name: str, capacity: int | None) -> None:
    """Ragged prompts; steps; rows swapped and repeated; an idle row; a ragged chunk that laps a ring of four."""
    texts = Texts(stepped(name), capacity)
    texts.read(torch.randint(50, (3, 7)), ragged([7, 3, 5]))
    for i in range(6):
        if i == 3:
            texts.select([2, 0, 2])
        texts.read(torch.randint(50, (3, 1)))
    texts.read(torch.randint(50, (3, 1)), torch.tensor([[True], [False], [True]]))
    texts.read(torch.randint(50, (3, 9)), ragged([2, 9, 5]))
    texts.select([1, 2])
    texts.read(torch.randint(50, (2, 1)))


@EVERY
@CAPACITIES
@torch.no_grad()
def test_left_padding(name: str, capacity: int | None) -> None:
    texts = Texts(stepped(name), capacity)
    texts.read(torch.randint(50, (3, 7)), ragged([7, 3, 5]).flip(1))
    texts.read(torch.randint(50, (3, 2)), torch.tensor([[True, True], [False, True], [False, False]]))
    texts.read(torch.randint(50, (3, 1)))


@EVERY
@CAPACITIES
@torch.no_grad()
def test_prompt_without_padding(name: str, capacity: int | None) -> None:
    """The first call needs no mask tensor; a long text outgrows its initial slots."""
    texts = Texts(stepped(name), capacity)
    texts.read(torch.randint(50, (3, 13)))
    texts.read(torch.randint(50, (3, 2)))
    for _ in range(3):
        texts.read(torch.randint(50, (3, 1)))
    texts.read(torch.randint(50, (3, 16)))
    texts.read(torch.randint(50, (3, 1)))


@EVERY
@CAPACITIES
@torch.no_grad()
def test_rows_are_reset_and_reused(name: str, capacity: int | None) -> None:
    """Continuous batching: a freed row reads a new prompt in the same call in which the others step."""
    texts = Texts(stepped(name), capacity)
    texts.read(torch.randint(50, (3, 6)))
    texts.cache.reset(torch.tensor([False, True, False]))
    texts.said[1] = []
    texts.read(torch.randint(50, (3, 4)), ragged([1, 4, 1], 4))
    for _ in range(6):
        texts.read(torch.randint(50, (3, 1)))


@EVERY
@pytest.mark.parametrize("sizes", [(None, None), (40, 40), (40, 24), (40, None)], ids=str)
@torch.no_grad()
def test_rows_of_another_cache_join(name: str, sizes: tuple[int | None, int | None]) -> None:
    """A text read elsewhere takes the place of a row, and a row is copied within its cache; the others continue."""
    it = stepped(name)
    texts, others = (Texts(it, capacity) for capacity in sizes)
    texts.read(torch.randint(50, (3, 6)), ragged([6, 2, 5]))
    others.read(torch.randint(50, (3, 9)), ragged([4, 9, 7]))
    others.read(torch.randint(50, (3, 1)))
    texts.put([1, 0], others, [2, 1])
    for _ in range(3):
        texts.read(torch.randint(50, (3, 1)))
    texts.put([2, 1], texts, [1, 2])
    texts.read(torch.randint(50, (3, 1)), torch.tensor([[True], [False], [True]]))
    texts.put([0], others, [0])
    for _ in range(4):
        texts.read(torch.randint(50, (3, 1)))
        others.read(torch.randint(50, (3, 1)))  # their cache is still their own


@EVERY
@CAPACITIES
@torch.no_grad()
def test_long_rows_leave(name: str, capacity: int | None) -> None:
    """Once the longest row has left, a growing cache reads no more slots than the others need."""
    it = stepped(name)
    texts, short = Texts(it, capacity), Texts(it, None)
    texts.read(torch.randint(50, (3, 19)), ragged([4, 19, 6]))
    short.read(torch.randint(50, (3, 3)))
    texts.put([1], short, [0])
    texts.cache.rebound(6)
    for _ in range(5):
        texts.read(torch.randint(50, (3, 1)))
    if name == "dense":
        assert texts.cache.layouts[0].read_size == (12 if capacity is None else None)


@torch.no_grad()
def test_sources_of_other_lengths_join() -> None:
    """The shorter source gets padding, also where one mask serves all rows or none is given."""
    torch.manual_seed(0)
    model = loud(transformer.Model(transformer.Config(**SMALL)), spread=1.5)
    sources = [torch.randint(50, (3, length)) for length in (6, 9, 4)]
    cache, *others = (model.start(inputs(source), len(source), 16) for source in sources)
    start = torch.ones(3, 1, dtype=torch.long)
    for each in (cache, *others):
        model.step(start, each)
    cache.put(torch.tensor([1]), others[0], torch.tensor([2]))
    cache.put(torch.tensor([0, 2]), others[1], torch.tensor([1, 1]))
    read = [sources[2][1], sources[1][2], sources[2][1]]
    tokens = torch.randint(50, (3, 3))
    for i in range(3):
        logits = model.step(tokens[:, i : i + 1], cache)
        for row, source in enumerate(read):
            said = torch.cat([start[row], tokens[row, : i + 1]])[None]
            close(logits[row], model(inputs(source[None]), inputs(said))[0, -1:])
    assert cache.cross.layer_caches[0].k.size(2) == 9 and cache.cross.mask.key_valid.sum(1).tolist() == [4, 9, 4]


def test_layers_of_one_kind_share_a_layout() -> None:
    for name, count in (("dense", 1), ("xl", 1), ("window", 1), ("mixed", 4)):
        assert len(set(map(id, stepped(name).start(40).layouts))) == count


@torch.no_grad()
def test_ring_writes_no_slot_twice() -> None:
    """A chunk longer than the ring: on a GPU the order of two writes to one slot would be undefined."""
    it, chunk = stepped("window"), torch.randint(50, (3, 9))
    cache = it.start(None)
    it.model.step(chunk, cache, ragged([9, 3, 6]))
    for row, length in zip(cache.layouts[0].target_slots.tolist(), (9, 3, 6), strict=True):
        written = [slot for slot in row if slot]  # 0 takes what need not be kept
        assert len(set(written)) == len(written) == min(length, 4)


@torch.no_grad()
def test_ring_is_capped_at_text_length() -> None:
    it, held = stepped("wide window"), []
    for capacity in (None, 40):
        cache = it.start(capacity)
        for tokens in (7, 1, 22):
            it.model.step(torch.randint(50, (3, tokens)), cache)
        held.append(cache.layers[0].k.size(2))
        cache.branch(2, steps=6)
        assert cache.layers[0].k.size(2) <= held[-1] + 16
    assert held == [64, 48]


@torch.no_grad()
def test_feature_sums_reset_their_scale() -> None:
    """Sums are scaled by the largest feature so far; with the old text's scale, a new text would underflow."""
    kernel, mask = RandomFeatureKernel(8, 32), Mask(causal=True)
    q, k, v = torch.randn(3, 2, 1, 5, 8)
    fresh, used = (kernel.layer_cache(None, 2, 1, 8, v) for _ in range(2))
    kernel(q, k, v, mask, layer_cache=used)
    used.reset(torch.tensor([True, True]))
    far = 30 * k  # the features of a long key are all small
    close(kernel(q, far, v, mask, layer_cache=used), kernel(q, far, v, mask, layer_cache=fresh), 1e-6)


# --- Beams stand side by side ----------------------------------------------------------------------------------------


class Beams(Texts):
    """Beams of every row; `said[row][beam]` holds the tokens of each beam after `reorder`."""

    def branch(self, beams: int, steps: int) -> None:
        self.cache.branch(beams, steps)
        self.beams = [[list(said) for _ in range(beams)] for said in self.said]

    def step(self, tokens: Tensor) -> None:
        logits = self.it.model.step(tokens, self.cache)  # (rows, beams, vocab)
        for row, beams in enumerate(self.beams):
            for beam, said in enumerate(beams):
                said.append(int(tokens[row, beam]))
            close(logits[row], self.it.full(torch.tensor(beams), self.origin[row])[:, -1])
        assert self.cache.lengths.tolist() == [len(beams[0]) for beams in self.beams]

    def reorder(self, origin: Tensor) -> None:
        self.cache.reorder(origin)
        pairs = zip(self.beams, origin.tolist(), strict=True)
        self.beams = [[list(beams[o]) for o in row] for beams, row in pairs]

    def keep(self, rows: list[int]) -> None:
        self.select(rows)
        self.beams = [[list(said) for said in self.beams[r]] for r in rows]


@EVERY
@CAPACITIES
@torch.no_grad()
def test_beams_equal_uncached(name: str, capacity: int | None) -> None:
    """Random parents, eleven steps (a ring of four wraps twice), rows swapped, repeated and dropped in between."""
    beams = Beams(stepped(name), capacity)
    beams.read(torch.randint(50, (3, 7)), ragged([7, 3, 5]))
    beams.read(torch.randint(50, (3, 1)))
    beams.branch(3, steps=11)
    for i in range(11):
        if i == 4:
            beams.keep([2, 0, 2])
        if i == 8:
            beams.keep([1, 2])
        rows = len(beams.said)
        if i:
            beams.reorder(torch.randint(3, (rows, 3)))
        beams.step(torch.randint(50, (rows, 3)))


@pytest.mark.parametrize("name", ["dense", "mixed", "t5"])
@torch.no_grad()
def test_unused_beam_slots_are_compacted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all beams continue one beam, little more than its own past is left in every row."""
    monkeypatch.setattr(slots, "COMPACT_EVERY", 3)
    beams = Beams(stepped(name), None)
    beams.read(torch.randint(50, (3, 4)), ragged([4, 2, 3]))
    beams.branch(5, steps=24)
    (layout,) = {id(layout): layout for layout in beams.cache.layouts if isinstance(layout, slots.DenseLayout)}.values()
    sizes = []
    for i in range(24):
        rows = len(beams.said)
        if i == 13:
            beams.keep([2, 0])
            rows = 2
        if i:
            last = torch.randint(5, (rows, 1)).expand(-1, 5) if i % 4 == 0 else torch.randint(5, (rows, 5))
            beams.reorder(last)
        beams.step(torch.randint(50, (rows, 5)))
        sizes.append(layout.read_size)
    past = max(len(beam[0]) for beam in beams.beams)
    assert past <= sizes[-1] < past + 5 * 8 and max(sizes) < 4 + 24 + 5 * 8  # never to be cleared away: 8 + 24 · 5


@torch.no_grad()
def test_independent_beams_only_grow() -> None:
    """Each sample continues itself: nothing is compacted, and the slots double when they run out."""
    beams = Beams(stepped("dense"), None)
    beams.read(torch.randint(50, (3, 2)))
    beams.branch(2, steps=40)
    before = beams.cache.layouts[0].slots
    for _ in range(40):
        beams.step(torch.randint(50, (3, 2)))
    assert beams.cache.layouts[0].read_size == 8 + 80 and before < 8 + 80 <= beams.cache.layouts[0].slots


@pytest.mark.parametrize("capacity", [8, 100], ids=["shorter than the beams", "longer than them"])
@pytest.mark.parametrize("name", ["dense", "window", "mixed"])
@torch.no_grad()
def test_beams_allocate_their_own_slots(name: str, capacity: int) -> None:
    """The capacity is for tokens before the branch; beams get slots of their own, more or fewer than before."""
    beams = Beams(stepped(name), capacity)
    beams.read(torch.randint(50, (3, 8)))
    beams.branch(2, steps=6)
    for i in range(6):
        if i:
            beams.reorder(torch.randint(2, (3, 2)))
        beams.step(torch.randint(50, (3, 2)))


@pytest.mark.parametrize("name", ["t5", "whisper", "rnn", "cnn"])
@torch.no_grad()
def test_beams_share_the_source(name: str) -> None:
    """One row of keys and values per source at the same addresses, for any number of beams."""
    it = stepped(name)
    cache = it.start(40)
    it.model.step(torch.randint(50, (3, 2)), cache)
    before = addresses(cache)
    cache.branch(4, steps=5)
    for _ in range(2):
        it.model.step(torch.randint(50, (3, 4)), cache)
        cache.reorder(torch.randint(4, (3, 4)))
    assert addresses(cache) == before
    assert all(memory.k.size(0) == 3 and memory.v.size(0) == 3 for memory in cache.cross.layer_caches)


def addresses(cache: Cache) -> list[int]:
    return [tensor.data_ptr() for memory in cache.cross.layer_caches for tensor in (memory.k, memory.v)]


# --- Compiled, and in lower precision --------------------------------------------------------------------------------


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def compiled_beside_eager(it: Stepped, beams: int, backend: str) -> int:
    """Compare compiled and eager steps of a static cache with reordered rows; return the number of graphs."""
    torch._dynamo.reset()
    step = torch.compile(it.model.step, fullgraph=True, backend=backend)
    prompt, valid = torch.randint(50, (3, 7)), ragged([7, 3, 5])
    caches = it.start(40), it.start(40)
    for cache in caches:
        it.model.step(prompt, cache, valid)
        if beams:
            cache.branch(beams, steps=10)
    torch._dynamo.utils.counters.clear()
    for i in range(8):
        origin, tokens = torch.randint(max(beams, 1), (3, max(beams, 1))), torch.randint(50, (3, max(beams, 1)))
        for cache in caches:
            if i == 3:
                cache.select(torch.tensor([2, 0, 0]))
            if beams and i:
                cache.reorder(origin)
        close(step(tokens, caches[0]), it.model.step(tokens, caches[1]))
    return graphs()


@pytest.mark.parametrize("beams", [0, 3], ids=["rows", "beams"])
@pytest.mark.parametrize("name", ["mixed", "additive", "xl", "t5", "rnn", "gru", "cnn", "whisper"])
@torch._dynamo.config.patch(allow_rnn=True)  # of a fused LSTM a step takes only the weights
@torch.no_grad()
def test_static_step_compiles_to_one_graph(name: str, beams: int) -> None:
    assert compiled_beside_eager(stepped(name), beams, "eager") == 1


# Only this process compiles, and without asking the compiler which vector instructions it knows.
@torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": False})
@torch.no_grad()
def test_compiled_step_equals_eager() -> None:
    assert compiled_beside_eager(alone(writing(layers=1)), 3, "inductor") == 1


@EVERY
@torch.no_grad()
def test_autocast_is_close_to_float32(name: str) -> None:
    """Uncached, cached and beam outputs in bfloat16 are close to float32."""
    it, ids = stepped(name), torch.randint(50, (3, 8))
    exact = torch.cat([it.full(ids[row : row + 1], row) for row in range(3)])
    bound = 0.1 * exact.abs().max().item()
    with torch.autocast("cpu", torch.bfloat16):
        cache = it.start(40)
        close(it.model.step(ids[:, :5], cache).float(), exact[:, :5], bound)
        close(it.model.step(ids[:, 5:6], cache).float(), exact[:, 5:6], bound)
        cache.branch(2, steps=2)
        for i in (6, 7):
            close(it.model.step(ids[:, i, None].repeat(1, 2), cache)[:, 1].float(), exact[:, i], bound)


@torch.no_grad()
def test_long_prompt_with_window_runs_in_blocks() -> None:
    """Ragged rows, a second long chunk after a full ring, and a step; no table of all pairs is built."""
    attention = {"kind": "window", "radius": [3, 2], "dilation": [1, 2]}
    model = loud(writing(attention=attention, positions="rotary"), spread=1.5)
    cache, said = model.start(None, 2), [[], []]
    for lengths in ((600, 420), (150, 500), (1, 1)):
        tokens = torch.randint(50, (2, max(lengths)))
        valid = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
        with Largest() as largest:
            found = model.step(tokens, cache, None if valid.all() else valid)
        assert largest.elements < 2 * 500 * 500
        for row, length in enumerate(lengths):
            said[row] += tokens[row, :length].tolist()
            wanted = model(inputs(torch.tensor([said[row]])))[0]
            close(found[row, :length], wanted[-length:])
