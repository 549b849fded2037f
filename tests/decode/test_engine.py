"""The engine without its thread: closed and open batches give equal results; errors, cancellation, deadlines and
interrupts belong to a request; nothing of it is left.
"""

import gc
import io
import random
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from helpers.engines import (
    FailingFilter,
    double,
    engine_of,
    finish,
    forward,
    generate,
    greedy,
    head_of,
    is_idle,
    read,
    search,
)
from helpers.generation import END, SOURCED, START, alone, build, random_request, source, worst_difference

from regard import progress
from regard.decode import Beam, Greedy, SearchRequest
from regard.decode.engine.answer import CanceledError, EngineBusyError, TextDelta
from regard.decode.engine.engine import Engine
from regard.decode.engine.generator import MAX_OVERTAKES
from regard.decode.engine.jobs import Forward, Gather, Job, ModelContext, Read
from regard.decode.engine.passes import Encode, Score
from regard.errors import UserError

pytestmark = pytest.mark.filterwarnings("error")  # such as coroutines that were never awaited
MANY = 10**6


@pytest.fixture(scope="module")
def gpt() -> torch.nn.Module:
    return build("gpt")


@pytest.fixture(scope="module")
def transformer() -> torch.nn.Module:
    return build("transformer")


# --- equal results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["transformer", "rnn", "mixed ensemble"])
def test_closed_and_open_batches_equal_each_request_alone(name: str) -> None:
    """All strategies and rules side by side; requests join while others run."""
    model, dice = build(name), random.Random(name)
    requests = [random_request(dice, name in SOURCED, number) for number in range(8)]
    wanted = [alone(model, request) for request in requests]
    engine = engine_of(model, rows=16)
    closed = [answer.result() for answer in engine.run(map(search, requests), batch=3)]
    opened = []
    for request in requests:
        opened.append(engine.submit(search(request)))
        engine.step()
    finish(engine, opened)
    for number, best in enumerate(wanted):
        assert worst_difference(closed[number], best) < 1e-5, requests[number]
        assert worst_difference(opened[number].result(), best) < 1e-5, requests[number]
    assert is_idle(engine) and engine.stats()["generate_jobs"] == 8


def test_encoders_are_batched_across_requests(transformer: torch.nn.Module) -> None:
    """Closed in one batch, open as the budget says; the rows have no padding."""
    rows = [source([*range(4, 6 + number % 3), END]) for number in range(12)]

    async def encode(number: int) -> tuple[torch.Tensor, list[float]]:
        encoded = await Encode(rows[number])
        return encoded.values, await Score(encoded, (START,), (5, 6), encoded=True)

    async def score(number: int) -> list[float]:
        return await Score(rows[number], (START,), (5, 6))

    engine = engine_of(transformer, budget=20)
    closed = [answer.result() for answer in engine.run((lambda emit, n=n: encode(n)) for n in range(12))]
    assert engine.stats()["encode_batches"] == engine.stats()["score_batches"] == 1
    opened = [engine.submit(lambda emit, n=n: encode(n)) for n in range(12)]
    finish(engine, opened)
    assert engine.stats()["encode_batches"] == 1 + 3 and engine.stats()["encode_jobs"] == 24
    (direct,) = engine.run([lambda emit: score(3)])
    for row, (states, logprobs), answer in zip(rows, closed, opened, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(states, transformer.encode(row).states, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(answer.result()[0], states, rtol=1e-4, atol=1e-4)
        assert answer.result()[1] == pytest.approx(logprobs, abs=1e-4) and len(logprobs) == 3
    assert direct.result() == pytest.approx(closed[3][1], abs=1e-4)


def test_requests_that_fall_behind_catch_up_before_new_ones_begin() -> None:
    """The lowest stage runs first, so that the others gather at higher ones."""
    sizes: list[int] = []

    def measure(values: Sequence[float]) -> Sequence[float]:
        sizes.append(len(values))
        return values

    head = head_of(measure)

    async def twice(number: int) -> None:
        await Read(double, number)
        for _ in range(1 + number % 3):  # some are asked again
            await Forward(head, torch.tensor([float(number)]).numpy())
        await Read(double, number)
        await Forward(head, torch.tensor([float(number)]).numpy())

    engine_of().run((lambda emit, n=n: twice(n)) for n in range(9))
    assert sizes == [9, 6, 3, 9]


# --- errors ----------------------------------------------------------------------------------------------------------


def tokens_of(raws: Sequence[Any]) -> list[tuple[int, ...]]:
    if any(raw == "file" for raw in raws):
        raise UserError("the file does not exist")
    return [(START, int(raw)) for raw in raws]


async def failing(place: str) -> Any:
    """A request that goes wrong somewhere."""
    if place == "before":
        raise UserError("no such language")
    prompt = await Read(tokens_of, "file" if place == "reading" else 5)
    if place == "long":
        prompt *= 40
    if place == "prefill":
        prompt = (START, 70)  # above the vocabulary
    filters = (FailingFilter(ValueError("in a filter"), [None] * MANY),) if place == "search" else ()
    await generate(SearchRequest(prompt, None, Greedy(), 9, filters))
    raise KeyError("after it")


PLACES = {
    "start": (UserError, "no such adapter"), "before": (UserError, "no such language"), "reading": (UserError, "file"),
    "long": (UserError, "80 tokens and the model's context is 64"), "prefill": (IndexError, "index"),
    "search": (ValueError, "in a filter"), "after": (KeyError, "after it"),
}  # fmt: skip


def failing_start(place: str) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    def start(emit: Any) -> Coroutine[Any, Any, Any]:
        if place == "start":
            raise UserError("no such adapter")
        return failing(place)

    return start


@pytest.mark.parametrize("way", ["closed", "open", "served"])
def test_an_error_belongs_to_one_request(gpt: torch.nn.Module, way: str) -> None:
    """Wherever it happens, the requests beside it get what each gets alone."""
    requests = [SearchRequest((START, 5 + number), max_tokens=9) for number in range(14)]
    mixed: list[Any] = [search(request) for request in requests]
    for number, place in enumerate(PLACES):
        mixed.insert(3 * number, failing_start(place))
    engine = engine_of(gpt, rows=32)
    if way == "closed":
        answers = engine.run(mixed)
    else:
        if way == "served":
            engine.start()
        answers = [engine.submit(start) for start in mixed]
        if way == "open":
            finish(engine, answers)
    bad = [answers[3 * number] for number in range(len(PLACES))]
    good = [answer for answer in answers if answer not in bad]
    for answer, request in zip(good, requests, strict=True):
        assert worst_difference(answer.result(60), alone(gpt, request)) < 1e-5
    for answer, (kind, words) in zip(bad, PLACES.values(), strict=True):
        with pytest.raises(kind, match=words):
            answer.result(60)
    assert is_idle(engine) and engine.stats()["failures"] == len(PLACES)
    engine.close()


def test_a_batch_that_fails_is_halved_until_one_request_fails() -> None:
    sizes: list[int] = []

    def careful(values: Sequence[float]) -> Sequence[float]:
        sizes.append(len(values))
        if 11 in values:
            raise MemoryError("too much")
        return values

    head = head_of(careful)
    answers = engine_of().run(forward(head, number) for number in range(16))
    assert [answer.value for answer in answers] == [number if number != 11 else None for number in range(16)]
    assert isinstance(answers[11].error, MemoryError) and sizes == [16, 8, 8, 4, 2, 2, 1, 1, 4]
    wrong = engine_of().run(forward(head_of(lambda values: values[:-1]), number) for number in range(3))
    assert all(isinstance(answer.error, ValueError) for answer in wrong)  # too few replies


def test_fail_fast_raises_the_first_mistake_before_anything_is_computed(gpt: torch.nn.Module) -> None:

    async def program() -> Any:
        return await generate(SearchRequest(await Read(tokens_of, 5)))

    engine, good = engine_of(gpt), lambda emit: program()
    for place in ("start", "before", "reading"):
        with pytest.raises(UserError, match=PLACES[place][1]):
            engine.run([good, good, failing_start(place)], fail_fast=True)
        assert "generate_jobs" not in engine.stats() and is_idle(engine)
    calls: list[int] = []

    def wrong(raws: Sequence[Any]) -> list[Any]:
        calls.append(len(raws))
        raise UserError("a mistake")

    with pytest.raises(UserError, match="a mistake"):
        engine.run([read(wrong, number) for number in range(64)], fail_fast=True)
    assert calls == [64]  # nobody needs to know which of them it was
    with pytest.raises(KeyError):
        engine.run([failing_start("after")] * 3, fail_fast=True)
    assert is_idle(engine)


def test_the_mistake_of_a_call_does_not_end_another_call_in_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads call at once, and their inputs are read together."""
    engine, results, sizes = engine_of(), dict[str, Any](), list[int]()

    def careful(raws: Sequence[Any]) -> Sequence[Any]:
        sizes.append(len(raws))
        if "bad" in raws:
            raise UserError("a mistake")
        return raws

    def call(name: str) -> None:
        try:
            results[name] = [answer.result() for answer in engine.run([read(careful, name)] * 2, fail_fast=True)]
        except UserError as error:
            results[name] = str(error)

    both, advance, arrived = threading.Barrier(2, timeout=30), engine.advance, set[int]()

    def advance_together() -> None:
        if (thread := threading.get_ident()) not in arrived:
            arrived.add(thread)
            both.wait()
        advance()

    monkeypatch.setattr(engine, "advance", advance_together)
    threads = [threading.Thread(target=call, args=(name,)) for name in ("bad", "good")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {"bad": "a mistake", "good": ["good", "good"]} and sizes[0] == 4


# --- what a request may await ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Longest(Job[str]):
    """A job of a plugin: the longest text of its batch, to see who shares one."""

    text: str
    kind: Any = "any"
    stage: ClassVar[int] = 8

    @property
    def cost(self) -> int:
        return len(self.text)

    def group(self) -> Hashable:
        return Longest, self.kind

    def run(self, jobs: Sequence["Longest"], context: ModelContext) -> list[str]:
        assert isinstance(context.model, torch.nn.Module)
        longest: str = max((job.text for job in jobs), key=len)
        return [longest] * len(jobs)


async def await_job(job: Any) -> Any:
    return await job


def test_a_plugin_adds_a_job() -> None:
    engine = engine_of(budget=5)
    texts = ["a", "bb", "ccc", "dddd"]
    jobs = [Longest(text, text in "dddd") for text in texts]
    assert [answer.result() for answer in engine.run((lambda emit, job=job: await_job(job)) for job in jobs)] == [
        "ccc", "ccc", "ccc", "dddd",
    ]  # fmt: skip
    batched = engine.run([lambda emit, text=text: await_job(Longest(text)) for text in texts], batch=2)
    assert [answer.result() for answer in batched] == ["bb", "bb", "dddd", "dddd"]
    opened = [engine.submit(lambda emit, text=text: await_job(Longest(text))) for text in texts]
    finish(engine, opened)  # as many as the budget has room for: 1 + 2, 3, 4
    assert [answer.result() for answer in opened] == ["bb", "bb", "ccc", "dddd"]
    assert engine.stats()["longest_jobs"] == 12


class Future:
    """Something that other libraries await."""

    def __await__(self) -> Iterator[str]:
        yield "a future"


@pytest.mark.parametrize("wrong", [Future(), Longest("a", []), Gather(3)], ids=["future", "group", "gather"])  # type: ignore[arg-type]
def test_a_coroutine_gets_the_error_of_a_wrong_job_where_it_awaits_it(wrong: Any) -> None:
    async def program(careful: bool) -> str:
        try:
            return str(await wrong)
        except TypeError as error:
            if not careful:
                raise
            return str(await Longest(str(error)))

    engine = engine_of()
    good, bad, other = engine.run([lambda emit: program(True), lambda emit: program(False), read(double, 4)])
    assert good.result() and isinstance(bad.error, TypeError) and other.result() == 8 and is_idle(engine)


def test_a_request_cannot_wait_for_its_own_engine() -> None:
    engine = engine_of()

    async def nested(how: Callable[[], Any]) -> None:
        how()

    for how in (
        lambda: engine.run([read(double, 1)]), lambda: engine.submit(read(double, 1)).result(), engine.step, engine.close,
    ):  # fmt: skip
        (answer,) = engine.run([lambda emit, how=how: nested(how)])
        with pytest.raises(RuntimeError, match="a request cannot run others of its engine; let it await their jobs"):
            answer.result()
    engine.step()
    assert is_idle(engine)


# --- coroutines in coroutines ----------------------------------------------------------------------------------------


class Children:
    """Coroutines that divide 60 by a number, and what happened to them."""

    def __init__(self) -> None:
        self.begun, self.ended, self.running, self.most = 0, list[int](), 0, 0

    async def child(self, number: int) -> int:
        self.begun, self.running = self.begun + 1, self.running + 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(number % 3):
                await Read(double, number)
            return int(await Read(lambda raws: [60 // raw for raw in raws], number))
        finally:
            self.running -= 1
            self.ended.append(number)

    async def parent(self, numbers: Any, limit: int = 0) -> Any:
        return await Gather((self.child(number) for number in numbers), limit)

    async def careful(self, numbers: Any, limit: int = 0) -> Any:
        try:
            return await Gather([self.child(number) for number in numbers], limit)
        except ZeroDivisionError:
            return self.running, await Read(double, 4)


@pytest.mark.parametrize("way", ["closed", "open"])
def test_gathered_results_are_in_order_and_inputs_are_lazy(way: str) -> None:
    engine, children = engine_of(), Children()
    numbers = [5, 4, 3, 2, 1, 6, 10]
    starts = [lambda emit: children.parent(numbers), lambda emit: children.parent(iter(numbers), 2)]
    answers = engine.run(starts[1:]) if way == "closed" else [engine.submit(starts[1])]
    finish(engine, answers)
    assert answers[0].result() == [60 // number for number in numbers] and children.most == 2
    (whole, empty) = engine.run([starts[0], lambda emit: children.parent([])])
    assert whole.result() == answers[0].result() and empty.result() == [] and children.most == len(numbers)
    endless = Children()
    stopped = engine.submit(lambda emit: endless.parent(iter(lambda: 5, None), 3))
    for _ in range(20):
        engine.step()
    stopped.cancel()
    assert 3 <= endless.begun < 60 and not endless.running and is_idle(engine)


@pytest.mark.parametrize("way", ["closed", "open"])
def test_the_first_error_of_gathered_coroutines_ends_the_others(way: str) -> None:
    engine, bad, good, caught = engine_of(), Children(), Children(), Children()
    numbers = iter([1, 2, 0, 5, 1, 1, 1])
    programs = [
        lambda emit: bad.parent(numbers, 4), lambda emit: good.parent([3, 2, 1]), lambda emit: caught.careful([1, 2, 0, 5], 2),
    ]  # fmt: skip
    answers = engine.run(programs) if way == "closed" else [engine.submit(program) for program in programs]
    finish(engine, answers)
    assert isinstance(answers[0].error, ZeroDivisionError) and answers[1].result() == [20, 30, 60]
    assert answers[2].result() == (0, 8) and not bad.running and not caught.running
    assert len(bad.ended) == bad.begun < 7 and [*numbers] != []  # the rest has not begun
    gc.collect()  # coroutines that never began would warn
    assert is_idle(engine)


def test_gathered_coroutines_nest_and_repeat() -> None:
    """Also when none of them awaits anything, however many there are."""

    async def instant(number: int) -> int:
        return number

    async def level(depth: int) -> int:
        if not depth:
            return int(await Read(double, 1))
        return sum(await Gather([level(depth - 1) for _ in range(2)]))

    async def repeat() -> int:
        total = 0
        for number in range(3000):
            total += sum(await Gather([instant(number)] if number % 2 else []))
        return total + sum(await Gather((instant(1) for _ in range(5000)), 3))

    async def broken() -> Any:
        def programs() -> Iterator[Any]:
            yield level(1)
            raise OSError("the disk is full")

        return await Gather(programs())

    async def late() -> Any:
        return await Gather(iter([level(0), instant(1), level(3)]), 2)

    engine = engine_of()
    answers = engine.run([lambda emit: level(7), lambda emit: repeat(), lambda emit: broken(), lambda emit: late()])
    assert [answers[0].result(), answers[1].result()] == [256, 1500**2 + 5000] and answers[3].result() == [2, 1, 16]
    assert isinstance(answers[2].error, OSError) and is_idle(engine)


# --- cancellation, deadlines, interrupts -----------------------------------------------------------------------------


def long(closed: list[str], name: str = "file") -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """A request that writes 60 tokens, and must close a file."""

    async def program(emit: Any) -> Any:
        try:
            await generate(
                SearchRequest((START, 5), None, Greedy(), 60, min_tokens=59),
                listener=lambda tokens: emit(TextDelta(str(len(tokens)))),
            )
        finally:
            closed.append(name)

    return program


def test_a_canceled_request_frees_its_rows_at_once(gpt: torch.nn.Module) -> None:
    engine, closed = engine_of(gpt), list[str]()
    first, second = engine.submit(long(closed)), engine.submit(long(closed))
    stream = iter(first)
    assert next(stream) == TextDelta("2") and engine.stats()["rows"] == 2 and not first.done
    first.cancel("the client has gone")
    assert engine.stats()["rows"] == 1 and closed == ["file"] and not second.done
    with pytest.raises(CanceledError, match="the client has gone"):
        list(stream)
    with pytest.raises(CanceledError, match="the client has gone"):
        first.result()
    waiting = engine.submit(long(closed))
    waiting.cancel()
    waiting.cancel()
    assert engine.stats()["waiting"] == 0 and closed == ["file"]
    second.cancel()
    assert is_idle(engine) and len(closed) == 2
    (done,) = engine.run([read(double, 2)])
    done.cancel()
    assert done.result() == 4


def test_the_end_of_a_canceled_coroutine_hurts_nobody() -> None:
    async def stubborn(how: str) -> None:
        try:
            await Read(double, 1)
            await Read(lambda raws: [1 // 0], 1)
        finally:
            if how == "error":
                raise OSError("cannot close")
            if how == "await":
                await Read(double, 2)

    engine = engine_of()
    answers = [engine.submit(lambda emit, how=how: stubborn(how)) for how in ("error", "await", "quiet")]
    engine.step()
    for answer in answers[:2]:
        answer.cancel()
    with pytest.raises(ZeroDivisionError):
        answers[2].result()
    assert is_idle(engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python reports the `await` in `finally`
        del answers, answer
        gc.collect()


def test_a_late_request_is_canceled(gpt: torch.nn.Module) -> None:
    """While it waits, while it writes, or before it begins; others go on."""
    engine, closed = engine_of(gpt, window=2), list[str]()
    first, second = engine.submit(long(closed), seconds=600), engine.submit(long(closed), seconds=0.2)
    third, never = engine.submit(greedy(5), seconds=0.0), engine.submit(greedy(5), seconds=0.1)
    engine.step()
    assert third.done and not never.done and engine.stats()["waiting"] == 1
    with pytest.raises(TimeoutError, match="no result after 0"):
        first.result(0)
    time.sleep(0.2)
    for late in (second, third, never):
        with pytest.raises(CanceledError, match="the deadline of the request has passed"):
            late.result()
    assert not first.done and engine.stats() | {"steps": 0, "rows": 1, "active": 1} == engine.stats() | {"steps": 0}
    assert len([*first]) > 50 and closed == ["file", "file"]
    for _ in range(300):  # those that are done leave the heap
        engine.submit(read(double, 1), seconds=600).result()
    assert len(engine._deadlines) < 100 and is_idle(engine)


class Interrupts:
    """Raises KeyboardInterrupt once, as Ctrl-C does."""

    def __init__(self) -> None:
        self.left = 1

    def __call__(self, *values: Any) -> Any:
        if self.left:
            self.left = 0
            raise KeyboardInterrupt
        return values[0] if values else None


INTERRUPTED: dict[str, Callable[[Interrupts], Callable[[Any], Any]]] = {}


def interrupted(function: Callable[[Interrupts, Any], Any]) -> Any:
    INTERRUPTED[function.__name__] = lambda interrupt: lambda emit: function(interrupt, emit)
    return function


@interrupted
def in_start(interrupt: Interrupts, emit: Any) -> Any:
    return interrupt()


@interrupted
async def in_coroutine(interrupt: Interrupts, emit: Any) -> Any:
    await Read(double, 1)
    interrupt()


@interrupted
async def in_reading(interrupt: Interrupts, emit: Any) -> Any:
    await Read(interrupt, 1)


@interrupted
async def in_a_pass(interrupt: Interrupts, emit: Any) -> Any:
    await Forward(head_of(interrupt), torch.zeros(1).numpy())


@interrupted
async def in_a_gathered_coroutine(interrupt: Interrupts, emit: Any) -> Any:
    await Gather([await_job(Read(double, 1)), in_coroutine(interrupt, emit)])


@interrupted
async def in_gathering(interrupt: Interrupts, emit: Any) -> Any:
    await Gather((await_job(Read(double, interrupt() or 1)) for _ in range(2)), 1)


@interrupted
async def in_a_search(interrupt: Interrupts, emit: Any) -> Any:
    await generate(SearchRequest((START, 5), None, Greedy(), 9, (interrupt,)))


@interrupted
async def in_a_listener(interrupt: Interrupts, emit: Any) -> Any:
    await generate(SearchRequest((START, 5), None, Greedy(), 9, min_tokens=8), listener=interrupt)


WAYS = [(place, way) for place in INTERRUPTED for way in ("closed", "open")]
WAYS.remove(("in_a_listener", "closed"))  # closed batches have no listeners


@pytest.mark.parametrize("place, way", WAYS)
def test_an_interrupt_ends_its_call_and_nothing_else(gpt: torch.nn.Module, place: str, way: str) -> None:
    """Requests of other threads, which share its batches, go on; later calls work."""
    engine, interrupt = engine_of(gpt), Interrupts()
    request, tokens = SearchRequest((START, 5), max_tokens=9, min_tokens=8), list[int]()

    async def beside(emit: Any) -> Any:
        await Gather([await_job(Read(double, 1)), await_job(Read(double, 2))])
        await Forward(head_of(lambda values: values), torch.zeros(1).numpy())
        return await generate(request, listener=tokens.extend)

    others = [engine.submit(beside) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        if way == "closed":
            engine.run([INTERRUPTED[place](interrupt)])
        else:
            answer = engine.submit(INTERRUPTED[place](interrupt))
            try:
                list(answer)
            finally:
                answer.cancel()
    assert not interrupt.left
    for other in others:
        assert worst_difference(other.result(), alone(gpt, request)) < 1e-5
    assert is_idle(engine) and engine.run([read(double, 3)])[0].result() == 6
    written = others[0].result()[0].tokens
    assert tokens in ([], written, written * 2) or sorted(tokens) == sorted(written * 2)  # none twice
    gc.collect()


def test_an_error_of_a_listener_ends_its_request(gpt: torch.nn.Module) -> None:
    engine, request = engine_of(gpt), SearchRequest((START, 5), None, Greedy(), 9, min_tokens=8)

    def broken(tokens: list[int]) -> None:
        raise BrokenPipeError("the client has gone")

    bad = engine.submit(search(request, listener=broken))
    good = engine.submit(search(request))
    finish(engine, [bad, good])
    assert isinstance(bad.error, BrokenPipeError) and worst_difference(good.result(), alone(gpt, request)) < 1e-5
    assert is_idle(engine)


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_inputs_are_made_as_others_end_and_waiting_is_bounded(gpt: torch.nn.Module) -> None:
    engine, made = engine_of(gpt, window=3, max_waiting=2), list[int]()

    def starts(count: int) -> Iterator[Any]:
        for number in range(count):
            assert engine.stats()["active"] < 3
            made.append(number)
            yield read(double, number)

    assert [answer.result() for answer in engine.run(starts(20))] == [2 * number for number in range(20)]
    running = [engine.submit(greedy(5, count=20)) for _ in range(2)]
    engine.step()
    running.append(engine.submit(greedy(5)))
    running += [engine.submit(greedy(5)), engine.submit(greedy(5))] if not engine.step() else [engine.submit(greedy(5))]
    running.append(engine.submit(greedy(5)))
    with pytest.raises(EngineBusyError, match="2 requests wait; try again later"):
        engine.submit(greedy(5))
    assert engine.run([read(double, 4)])[0].result() == 8  # `run` waits for its turn
    finish(engine, running)
    running = [engine.submit(greedy(5, count=20)) for _ in range(2)]
    running[0].cancel()
    engine.submit(read(double, 1)).result()  # a canceled request holds no place
    finish(engine, running)
    assert is_idle(engine)


def test_coroutines_that_do_not_begin_are_closed() -> None:
    engine, begun = engine_of(), list[int]()

    async def program(number: int) -> None:
        begun.append(number)

    def starts(count: int) -> Iterator[Any]:
        for number in range(count):
            made = program(number)
            yield lambda emit, made=made: made
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        engine.run(starts(5))
    gc.collect()
    assert not begun and is_idle(engine)


def test_a_wide_request_neither_blocks_nor_starves(gpt: torch.nn.Module) -> None:
    """It waits while others run, is passed a bounded number of times, and then gets its rows."""
    engine, ended = engine_of(gpt, rows=8, capacity=64), list[str]()

    async def named(name: str, strategy: Any, count: int) -> None:
        await generate(SearchRequest((START, 5), None, strategy, count, min_tokens=count - 1))
        ended.append(name)

    running = [engine.submit(lambda emit: named("long", Greedy(), 40))]
    engine.step()
    running.append(engine.submit(lambda emit: named("wide", Beam(8), 6)))
    running += [engine.submit(lambda emit: named("short", Greedy(), 3)) for _ in range(60)]
    finish(engine, running)
    before = ended[: ended.index("wide")].count("short")
    assert 8 < before <= MAX_OVERTAKES and ended.count("short") == 60
    above = engine.submit(search(SearchRequest((START,), None, Beam(9), 4)))
    finish(engine, [above])
    with pytest.raises(UserError, match="needs 9 rows and the generator has 8; ask for fewer hypotheses"):
        above.result()


def test_a_token_waits_for_one_bounded_pass(gpt: torch.nn.Module) -> None:
    """While a text is written, 40 passes of cost 100 arrive at a budget of 200: two per step, a token after each."""
    engine, log = engine_of(gpt, budget=200), list[str]()

    def note(values: Sequence[float]) -> Sequence[float]:
        log.append(f"pass {len(values)}")
        return values

    head = head_of(note, cost=100)
    writing = engine.submit(greedy(5, count=30, listener=lambda tokens: log.append("token")))
    engine.step()
    running = [engine.submit(forward(head, number)) for number in range(44)]
    for answer in running[::11]:
        answer.cancel()  # those that are canceled use nothing of the budget
    finish(engine, [*running, writing])
    places = [place for place, entry in enumerate(log) if entry != "token"]
    assert all(log[place] == "pass 2" and log[place + 1] == "token" for place in places) and len(places) == 20


def test_progress_is_shown_and_ends(gpt: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "PAUSES", {True: 0.0, False: 0.0})
    engine, stream = engine_of(gpt), io.StringIO()
    head = head_of(lambda values: values)
    with progress.show_progress(stream=stream):
        engine.run((greedy(5 + number) for number in range(5)), batch=2)
        lines = stream.getvalue().splitlines()
        assert [line.split("  ")[0] for line in lines] == [f"regard: texts written {done}/5" for done in (2, 4, 5)]
        with pytest.raises(KeyboardInterrupt):  # in the first of several batches
            engine.run(
                [search(SearchRequest((START, 5), None, Greedy(), 9, (Interrupts(),))) for _ in range(3)], batch=1
            )
        engine.run((forward(head, number) for number in range(4)), batch=2)
        assert "regard: inputs 4/4" in stream.getvalue()
        meter = progress.METER.get()
        assert meter is not None and not meter.busy
    assert is_idle(engine)


def test_a_long_call_lets_others_in_between_its_batches(gpt: torch.nn.Module) -> None:
    """A stream of another thread goes on, and a mistake ends the call before the other batches run."""
    engine, sizes, streamed = engine_of(gpt), list[int](), list[int]()

    def note(values: Sequence[float]) -> Sequence[float]:
        if not sizes:
            begun.set()
            other.join(0.2)
        sizes.append(len(values))
        if 3 in values:
            raise ValueError("a damaged row")
        return values

    def stream() -> None:
        begun.wait(20)
        for _ in engine.submit(long([], "b")):
            streamed.append(len(sizes))

    begun, other, head = threading.Event(), threading.Thread(target=stream), head_of(note)
    other.start()
    answers = engine.run((forward(head, number % 2) for number in range(40)), batch=1)
    other.join(30)
    assert all(answer.error is None for answer in answers) and len(streamed) > 50 and streamed[0] < 40
    sizes.clear()
    begun.set()
    with pytest.raises(ValueError, match="a damaged row"):
        engine.run((forward(head, number) for number in range(40)), batch=1, fail_fast=True)
    assert len(sizes) == 4 and is_idle(engine)


def test_nothing_is_left_of_random_requests(gpt: torch.nn.Module) -> None:
    """300 submissions of all kinds, some of which fail or are canceled at any time."""
    engine, dice = engine_of(gpt, rows=24, window=40), random.Random(3)
    requests = [replace(random_request(dice, False, number), max_tokens=6) for number in range(300)]
    running: list[Any] = []
    for number, request in enumerate(requests):
        kinds = [search(request), failing_start(dice.choice([*PLACES])), greedy(5, count=8)]
        running.append((engine.submit(dice.choices(kinds, (4, 1, 1))[0]), request))
        for _ in range(dice.choice((0, 0, 1, 2))):
            engine.step()
        if number % 3 == 0:
            dice.choice(running)[0].cancel()
    finish(engine, (answer for answer, _ in running))
    outcomes = {type(answer.error) for answer, _ in running}
    assert {type(None), CanceledError, UserError, ValueError, IndexError} <= outcomes
    assert is_idle(engine) and all(not pool._batch.used for pool in engine.scheduler.pools.values())
    assert (
        isinstance(engine, Engine)
        and worst_difference(engine.run([search(requests[0])])[0].result(), alone(gpt, requests[0])) < 1e-5
    )
