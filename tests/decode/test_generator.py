"""The generator: whatever else it runs, a request gets what it would get alone; offline, streaming, canceled."""

import random
from dataclasses import replace

import pytest
import torch
from helpers.engines import generate
from helpers.generation import (  # fmt: skip
    END,
    MODELS,
    PAD_AND_START,
    SOURCED,
    START,
    TOKENIZER,
    alone,
    build,
    generator,
    random_request,
    source,
    worst_difference,
)
from torch import nn

from regard.decode import Beam, Generator, Greedy, Sample, SearchRequest, SearchSettings, Suppress, run_search
from regard.decode.engine import prefill
from regard.decode.search import beam as beam_search
from regard.decode.search.constraints import Constraints
from regard.errors import UserError
from regard.parts.inputs import Inputs

NO_END = Suppress([END])


def talkative(name: str) -> nn.Module:
    """A model whose texts do not end soon."""
    model = build(name)
    model.head.bias.data[END] = -2.0
    return model


def run_open(engine: Generator, requests: list[SearchRequest], dice: random.Random) -> list:
    """Submit requests a few at a time while others are under way."""
    handles, waiting = [], list(requests)
    while waiting or not all(handle.done for handle in handles):
        for _ in range(min(len(waiting), dice.choice([0, 1, 1, 3]))):
            handles.append(engine.submit(waiting.pop(0)))
        engine.tick()
    return handles


@pytest.mark.parametrize("name", MODELS)
def test_joining_requests_equal_those_alone(name):
    """Every strategy, filter and kind of cache; requests join at any time."""
    model, dice = build(name), random.Random(name)
    requests = [random_request(dice, name in SOURCED, number) for number in range(12)]
    handles = run_open(generator(model, rows=14, capacity=40), requests, dice)
    for handle, request in zip(handles, requests, strict=True):
        assert worst_difference(handle.result(), alone(model, request)) < 1e-5, request


@pytest.mark.parametrize("name", ["transformer", "rnn", "gpt", "window", "mixed ensemble", "prefix gpt"])
def test_joining_requests_over_a_fixed_cache(name):
    """As on a GPU, where shapes do not change."""
    model, dice = build(name), random.Random(name)
    requests = [random_request(dice, name in SOURCED, number) for number in range(8)]
    engine = generator(model, rows=14, capacity=40)
    engine._batch.fixed = True
    for handle in run_open(engine, requests, dice):
        assert worst_difference(handle.result(), alone(model, handle.request)) < 1e-5, handle.request
    assert engine._batch.cache.fixed and not engine._batch.used


LONG = [[*range(4, 4 + 29)], [*range(7, 7 + 17)], [*range(4, 44)], [9, 8, 7]]


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "PART", 8)
    monkeypatch.setattr(prefill, "LEAST", 8)


@pytest.mark.parametrize("strategy", [Greedy(), Sample(n=2), Beam(3, 2)], ids=str)
@pytest.mark.parametrize("name", ["gpt", "window", "gru", "xl", "mixed ensemble", "prefix gpt"])
def test_long_prompts_are_read_in_parts_beside_the_running_batch(name, strategy, short_parts):
    """Others run on meanwhile; with parts that do and do not divide the prompt."""
    model = build(name)
    requests = [SearchRequest((START, *text), None, strategy, 9) for text in LONG]
    engine = generator(model, rows=12, capacity=120)
    short = engine.submit(SearchRequest((START, 5), None, Greedy(), 30, filters=(NO_END,)))
    engine.tick()
    handles, reading = [engine.submit(request) for request in requests], 0
    while engine.busy:
        before = len(short.tokens)
        engine.tick()
        if engine._long is not None:
            reading += 1
            assert short.done or len(short.tokens) == before + 1
    assert reading == (0 if name == "xl" else 3 + 2 + 5)  # of 4, 3 and 6 parts, the last ends it
    for handle, request in zip(handles, requests, strict=True):
        assert worst_difference(handle.result(), alone(model, request)) < 1e-5


def test_a_long_prompt_may_be_canceled_or_fail(short_parts):
    model = build("gpt")
    request = SearchRequest((START, *LONG[0]), None, Greedy(), 9)
    engine = generator(model, rows=4, capacity=80)
    first, second = engine.submit(request), engine.submit(request)
    engine.tick()
    assert engine._long is not None and engine.running_rows == 1
    first.cancel()
    assert engine._long is None and engine.running_rows == 0 and first.finish == "canceled"
    assert worst_difference(second.result(), alone(model, request)) < 1e-5
    broken, other = engine.submit(replace(request, prompt=(START, *LONG[0], 10**6))), engine.submit(request)
    with pytest.raises(IndexError):
        broken.result()
    assert worst_difference(other.result(), alone(model, request)) < 1e-5 and not engine.busy


def test_prompts_of_similar_length_are_read_together():
    lengths = [20, 600, 21, 3, 24, 640, 4]
    groups = prefill.groups_by_length([SearchRequest((1,) * length) for length in lengths])
    assert [[lengths[number] for number in group] for group in groups] == [[3, 4], [20, 21, 24], [600, 640]]
    sources = [SearchRequest((1,), source([5] * length)) for length in (4, 40, 5)]
    assert prefill.groups_by_length(sources) == [[0, 2], [1]]


@pytest.mark.parametrize("name", ["transformer", "gpt", "rnn", "ensemble"])
def test_free_rows_are_given_up_and_taken_again(name):
    model, sourced = build(name), name in SOURCED
    lengths = [3, 3, 3, 3, 3, 3, 30, 3, 3]
    requests = [
        SearchRequest((START, 5 + n), source([7 + n, 8]) if sourced else None, Greedy(), length, filters=(NO_END,))
        for n, length in enumerate(lengths)
    ]
    engine, rows = generator(model, rows=16, capacity=60), []
    handles = [engine.submit(request) for request in requests]
    while engine.busy:
        engine.tick()
        rows.append(0 if engine._batch.step is None else len(engine._batch.step.tokens))
        if len(rows) == 8:
            handles += [engine.submit(request) for request in requests[:3]]
    assert rows[0] == 9 and rows[6] == 1 and rows[9] == 4 and rows[-2] == 1
    for handle in handles:
        assert worst_difference(handle.result(), alone(model, handle.request)) < 1e-5


@pytest.mark.parametrize("strategy", [Greedy(), Sample(n=2), Beam(3, 2)], ids=str)
def test_tables_grow_with_the_text(strategy, monkeypatch):
    model = build("gpt")
    requests = [SearchRequest((START, 5 + n), None, strategy, 40, filters=(NO_END,)) for n in range(3)]
    wanted = [alone(model, request) for request in requests]
    monkeypatch.setattr(beam_search, "FIRST_TOKENS", 4)
    engine = generator(model, rows=12, capacity=2000)
    handles, sizes = [engine.submit(requests[0])], set()
    for request in requests[1:]:
        for _ in range(6):
            engine.tick()
        handles.append(engine.submit(request))
    while engine.busy:
        engine.tick()
        sizes |= {search.state.capacity for search in engine._batch.searches.values()}
    assert max(sizes) == 64 and min(sizes) < 64
    for handle, best in zip(handles, wanted, strict=True):
        assert worst_difference(handle.result(), best) < 1e-5


@pytest.mark.parametrize("strategy", [Greedy(), Sample(top_k=20), Sample(n=3), Beam(3, 2)], ids=str)
def test_agreeing_requests_share_a_search(strategy):
    """Requests with equal settings and rows of their own in its tables: prompts, banned phrases, seeds and limits."""
    model, dice = talkative("transformer"), random.Random(1)
    requests = []
    for number in range(9):
        prefix = tuple(dice.choices(range(4, 50), k=number % 3))
        banned = tuple(tuple(dice.choices(range(4, 50), k=k)) for k in (1, 1, 2)) + ((*prefix, 9), (*prefix, 20))
        own = strategy
        if isinstance(strategy, Sample):
            own = replace(
                strategy, seed=number % 4, temperature=1 + number / 9, top_p=1 - number / 20, top_k=9 * number
            )
        requests.append(
            SearchRequest(
                (START, *prefix),
                source(dice.choices(range(4, 50), k=5)),
                own,
                8 + number,
                (),
                1.2 + number / 10,
                ("q", "ab")[: 1 + number % 2],
                Constraints(prefix, number % 2 == 0, (), (), banned),
            )  # fmt: skip
        )
    wanted = [alone(model, request) for request in requests]
    banned = [(*best[0].tokens[:2],) or (9,) for best in wanted]  # spellings that matter
    requests = [
        replace(request, constraints=replace(request.constraints, banned=(*request.constraints.banned, spelling)))
        for request, spelling in zip(requests, banned, strict=True)
    ]
    engine, handles = generator(model, rows=30, capacity=40), []
    for request in requests:
        handles.append(engine.submit(request))
        engine.tick()
        assert len(engine._batch.searches) <= 1
    engine.drain()
    found = [alone(model, request) for request in requests]
    assert all(worst_difference(each.result(), best) < 1e-5 for each, best in zip(handles, found, strict=True))
    assert sum(a[0].tokens != b[0].tokens for a, b in zip(found, wanted, strict=True)) >= 5


def test_two_hundred_requests():
    """They join one running batch of 24 rows; tokens are equal to each alone, scores to 1e-5, without any near-tie."""
    model, dice = build("transformer", layers=1), random.Random(0)
    requests = [random_request(dice, True, number) for number in range(200)]
    handles = run_open(generator(model, rows=24, capacity=40), requests, dice)
    worst = [worst_difference(handle.result(), alone(model, handle.request)) for handle in handles]
    print("largest difference of scores", max(worst))
    assert max(worst) < 1e-5, [handles[i].request for i, each in enumerate(worst) if each >= 1e-5]
    assert len({len(handle.tokens) for handle in handles}) >= 6


@pytest.mark.parametrize("name", ["t5", "window", "ensemble"])
def test_closed_batches_equal_search(name):
    """`drain` groups requests that agree and gives exactly what `search` gives for their batch."""
    model, dice, sourced = build(name), random.Random(1), name in SOURCED
    texts = [[dice.randrange(4, 50) for _ in range(dice.randint(1, 9))] for _ in range(7)]
    engine, handles = generator(model, rows=64), []
    for text in texts:
        prompt, read = ((START,), source([*text, END])) if sourced else ((START, *text), None)
        handles += [
            engine.submit(SearchRequest(prompt, read, strategy, 12))
            for strategy in (Greedy(), Beam(3, 2, 0.6), Beam(4))
        ]
    engine.drain()
    order = sorted(range(7), key=lambda i: -len(texts[i]))
    rows = [[*texts[i], END] if sourced else [START, *texts[i]] for i in order]
    longest = max(map(len, rows))
    table = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    valid = torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]
    for kind, beam in enumerate(
        ({"beam": 1, "early_stopping": "first"}, {"beam": 3, "nbest": 2, "length_penalty": 0.6}, {"beam": 4})
    ):
        settings = SearchSettings(END, filters=PAD_AND_START, **beam)
        with torch.no_grad():
            cache = model.start(Inputs("tokens", table, valid) if sourced else None, 7, None)
        prompt = (torch.full((7, 1), START), None) if sourced else (table, valid)
        found = run_search(model, cache, prompt[0], torch.full((7,), 12), settings, prompt[1])
        assert [handles[3 * i + kind].result() for i in order] == found


@pytest.mark.parametrize("name", MODELS)
def test_a_fixed_open_batch_keeps_its_tensors(name):
    """Steps, and rows that join and leave, move no tensor of the cache: a captured step stays valid."""
    model, found = build(name), []
    engine = generator(model, rows=4, capacity=40)
    engine._batch.fixed = True
    read = source([5, 6, 7, END]) if name in SOURCED else None
    handles = [engine.submit(SearchRequest((START, i), read, max_tokens=30, filters=(NO_END,))) for i in (5, 6, 7, 8)]
    for i in range(4):
        engine.tick()
        handles[i].cancel()
        engine.submit(SearchRequest((START, 9, 10), read, max_tokens=30, filters=(NO_END,)))
        engine.tick()
        found.append(engine._batch.step._addresses())
    assert found[0] == found[1] == found[2] == found[3] and len(found[0][0]) >= 3


def test_a_listener_gets_the_tokens_of_the_result():
    """As they become final: one by one, or all of a beam at the end."""
    model = talkative("gpt")
    engine = generator(model, rows=8, capacity=40)
    requests = [
        SearchRequest((START, 5, i), max_tokens=15, strategy=strategy)
        for i in (4, 9)
        for strategy in (Greedy(), Sample(seed=i), Beam(2), Beam(1))
    ]
    parts = [[] for _ in requests]
    handles = [
        engine.submit(generate(request, listener=own.append)) for request, own in zip(requests, parts, strict=True)
    ]
    engine.tick()
    engine.tick()
    assert parts[0] == [alone(model, requests[0])[0].tokens[:2], alone(model, requests[0])[0].tokens[2:3]]
    assert not handles[0].done and not parts[2]
    engine.drain()
    for handle, request, own in zip(handles, requests, parts, strict=True):
        assert sum(own, []) == handle.result()[0].tokens == handle.tokens == alone(model, request)[0].tokens
        assert len(own) == (1 if isinstance(request.strategy, Beam) else len(handle.tokens) - 1)


def test_canceled_requests_leave_the_others_alone():
    model, dice = build("transformer"), random.Random(5)
    requests = [replace(random_request(dice, True, i), max_tokens=14) for i in range(16)]
    engine = generator(model, rows=12, capacity=30)
    handles = [engine.submit(request) for request in requests]
    for i in range(3):
        engine.tick()
        handles[4 * i + 1].cancel()
    assert not handles[15].done
    handles[15].cancel()  # it may still wait
    engine.drain()
    for i, (handle, request) in enumerate(zip(handles, requests, strict=True)):
        if handle.finish == "canceled":
            assert handle.result() == [] and i in (1, 5, 9, 15)
        else:
            assert worst_difference(handle.result(), alone(model, request)) < 1e-5
    assert handles[15].finish == "canceled" and sum(handle.finish == "canceled" for handle in handles) >= 2
    handles[0].cancel()
    assert handles[0].finish != "canceled" and handles[0].result()


def test_why_a_text_ended():
    model, engine = build("gpt"), None
    model.head.bias.data[END] = -1e9
    text = alone(model, SearchRequest((START, 5), max_tokens=10))[0].tokens
    letters = TOKENIZER.tokenizer.decode([text])[0]
    for settings, context, wanted in (
        ({"max_tokens": 10}, None, "length"),
        ({"max_tokens": 10}, 8, "context"),
        ({"max_tokens": 10, "stop": (letters[3:5],)}, None, "stop"),
        ({"max_tokens": 10, "stop": (letters[8:10],)}, None, "stop"),
    ):
        for capacity in (None, 20):
            engine = generator(model, rows=2, capacity=capacity, context=context)
            handle = engine.submit(SearchRequest((START, 5), **settings))
            engine.drain()
            assert handle.tokens == text[: len(handle.tokens)] and handle.finish == wanted
            assert len(handle.tokens) == {"length": 10, "context": 7}.get(wanted, len(handle.tokens))
    model.head.bias.data[END] = 1e9
    handle = generator(model).submit(SearchRequest((START, 5)))
    assert handle.result()[0].tokens == [] and handle.finish == "end"


def test_requests_above_the_capacity_are_refused():
    engine = generator(build("gpt"), rows=4, capacity=16, context=12)
    for request, message in (
        (
            SearchRequest((START,), strategy=Beam(5), max_tokens=3),
            "needs 5 rows and the generator has 4; ask for fewer",
        ),
        (SearchRequest((START,), strategy=Sample(n=9), max_tokens=3), "needs 9 rows and the generator has 4"),
        (SearchRequest((START,) * 9, max_tokens=30), None),  # the context ends it
        (SearchRequest((START,) * 13, max_tokens=2), "prompt has 13 tokens and the model's context is 12; shorten it"),
    ):
        if message is None:
            engine.submit(request)
            continue
        with pytest.raises(UserError, match=message):
            engine.submit(request)
    with pytest.raises(UserError, match=r"needs 17 tokens, 1 of them for its prompt, and the generator has 16 per row"):
        generator(build("lm"), rows=4, capacity=16).submit(SearchRequest((START,), max_tokens=16))
    engine.drain()
    for mistake, message in (
        ({"prompt": ()}, "the prompt has no token"),
        ({"max_tokens": 0}, "max_tokens is 0; expected at least 1"),
        ({"constraints": TOKENIZER.encode("", ("ab",), ())}, "required phrases need the strategy Beam"),
    ):
        with pytest.raises(ValueError, match=message):
            SearchRequest(**{"prompt": (START,)} | mistake)
    with pytest.raises(ValueError, match="need the tokenizer"):
        Generator(build("gpt"), END).submit(SearchRequest((START,), stop=("a",)))


def test_a_failing_request_ends_and_the_others_go_on():
    """A token beyond the vocabulary fails in the prefill, and only its own request."""
    model = talkative("gpt")
    engine = generator(model, rows=4, capacity=30)
    good = engine.submit(SearchRequest((START, 7), max_tokens=12))
    engine.tick()
    bad = engine.submit(SearchRequest((START, 70), max_tokens=12))
    engine.tick()
    assert bad.done and isinstance(bad.error, IndexError) and good.error is None
    with pytest.raises(IndexError):
        bad.result()
    engine.submit(bad.request)
    assert worst_difference(good.result(), alone(model, good.request)) < 1e-5  # the failure of another changes nothing
    late = generator(model)
    handles = [late.submit(request) for request in (good.request, bad.request, good.request)]
    late.drain()  # the closed batch is halved until the failing request is alone
    assert [isinstance(handle.error, IndexError) for handle in handles] == [False, True, False]
    assert all(worst_difference(handles[i].result(), alone(model, good.request)) < 1e-5 for i in (0, 2))


def test_sources_of_any_modality_are_stacked():
    from regard.decode.engine.requests import stack_sources

    frames = [Inputs("frames", torch.randn(1, n, 3)) for n in (4, 2)]
    both = stack_sources(frames, 3, torch.device("cpu"))
    assert both.values.shape == (2, 7, 3) and both.valid.sum(1).tolist() == [4, 2]
    assert torch.equal(both.values[1, :2], frames[1].values[0]) and not both.values[1, 2:].any()
    assert stack_sources(frames[:1] * 2, 0, torch.device("cpu")).valid is None  # nothing is padded
    pixels = [Inputs("pixels", torch.randn(1, 3, h, w)) for h, w in ((4, 6), (5, 2))]
    both = stack_sources(pixels, 0, torch.device("cpu"))
    assert both.values.shape == (2, 3, 5, 6) and both.valid.shape == (2, 5, 6)
    assert both.valid[1, :, :2].all() and both.valid.sum((1, 2)).tolist() == [24, 10]


def test_samples_depend_on_their_input_and_seed():
    model = build("gpt")
    request = SearchRequest((START, 5, 6), strategy=Sample(n=3), max_tokens=12)
    first = alone(model, request)
    assert alone(model, replace(request, key="text")) != first == alone(model, replace(request))
    assert alone(model, replace(request, strategy=Sample(n=3, seed=2))) != first
    assert worst_difference(alone(model, replace(request, strategy=Sample(n=2))), first[:2]) < 1e-5
    assert Constraints() == request.constraints
