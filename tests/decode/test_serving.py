"""The engine with its thread, as a server has it: threads submit, stream, wait and cancel; nothing waits forever."""

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.engines import double, engine_of, finish, forward, generate, greedy, head_of, is_idle, read, search
from helpers.generation import START, Letters, alone, build, random_request, source, worst_difference
from helpers.predictors import predictor_of

from regard.decode import Greedy, Sample, SearchRequest
from regard.decode.engine.answer import Answer, CanceledError, EngineBusyError, TextDelta
from regard.decode.engine.engine import Engine
from regard.decode.engine.jobs import Forward, Gather, Read
from regard.errors import UserError
from regard.tasks.generate.streams import TextStream

pytestmark = pytest.mark.filterwarnings("error")
PATIENCE = 60  # seconds after which a test that hangs fails


@pytest.fixture(scope="module")
def gpt() -> torch.nn.Module:
    return build("gpt")


@pytest.fixture
def serve() -> Iterator[Callable[..., Engine]]:
    """Makes engines whose threads run, and closes them."""
    engines: list[Engine] = []

    def start(*arguments: Any, **settings: Any) -> Engine:
        engines.append(engine_of(*arguments, **settings).start())
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
        assert is_idle(engine) and not engine.serving


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Threads take turns more often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def soon(ready: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


class Gate:
    """A function for `Read` that waits until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, raws: Sequence[Any]) -> list[Any]:
        self.entered.set()
        assert self.opened.wait(PATIENCE)
        return [*raws]


def text_of(answer: Answer[Any]) -> str:
    return "".join(delta.text for delta in answer if isinstance(delta, TextDelta))


# --- results and streams ---------------------------------------------------------------------------------------------


def test_clients_get_what_each_gets_alone(serve: Callable[..., Engine], gpt: torch.nn.Module) -> None:
    """16 threads, some of which cancel; a call of `run` beside them shares their batches; others ask for numbers."""
    dice = random.Random(1)
    requests = [random_request(dice, False, number) for number in range(24)]
    wanted, engine = [alone(gpt, request) for request in requests], serve(gpt, rows=24)

    def client(number: int) -> None:
        own, chosen = random.Random(number), number % len(requests)
        answer = engine.submit(search(requests[chosen]), stream=False)
        if own.random() < 0.3:
            time.sleep(own.random() / 100)
            answer.cancel()
        assert engine.stats()["rows"] <= 24
        try:
            assert worst_difference(answer.result(PATIENCE), wanted[chosen]) < 1e-5
        except CanceledError:
            assert own.random() >= 0

    def call(seed: int) -> None:
        answers = engine.run([search(request) for request in requests[seed : seed + 6]])
        for answer, best in zip(answers, wanted[seed : seed + 6], strict=True):
            assert worst_difference(answer.result(), best) < 1e-5

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(client, number) for number in range(60)] + [
            pool.submit(call, 6),
            pool.submit(call, 9),
        ]:
            future.result(PATIENCE)
    soon(lambda: is_idle(engine))


MIXED: list[tuple[str, dict[str, Any]]] = [
    ("so good", {"kind": "greedy", "max_tokens": 8}), ("so bad", {"kind": "beam", "beam": 3, "nbest": 2, "max_tokens": 6}),
    ("a very good day", {"kind": "sample", "seed": 3, "max_tokens": 8}), ("", {}), ("bad", {"prefix": "SO"}),
    ("bad", {"kind": "beam", "beam": 3, "include": ["A"], "max_tokens": 8}), ("so", {"exclude": ["A", "O"], "kind": "greedy"}),
    ("so good. So bad! A day.", {"split": True, "kind": "greedy", "max_tokens": 5}), ("so bad", {"kind": "greedy"}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_predictions_are_equal_offline_streamed_and_served() -> None:
    predictor = predictor_of("translate")
    predictor = predictor.with_model(predictor.model)  # with an engine of its own
    requests = [request for text, decode in MIXED for request in predictor.requests([text], details=True, **decode)]
    closed = predictor.predict_requests(requests)
    opened = [predictor.submit(request) for request in requests]
    finish(predictor.engine, opened)
    predictor.engine.start()
    served = [predictor.submit(request) for request in requests]
    streamed = [text_of(answer) for answer in served]
    for number, wanted in enumerate(closed):
        for result in (opened[number].result(), served[number].result(PATIENCE)):
            assert [one.text for one in result.nbest] == [one.text for one in wanted.nbest]
            assert [one.tokens for one in result.nbest] == [one.tokens for one in wanted.nbest]
            assert result.logprobs == pytest.approx(wanted.logprobs, abs=1e-3) and result.text == wanted.text
        assert streamed[number] == wanted.text
    assert predictor.predict("so good") == predictor_of("translate").predict("so good")  # beside the thread
    soon(lambda: is_idle(predictor.engine))
    predictor.engine.close()
    assert predictor.predict("so good") == predictor_of("translate").predict("so good")


def test_parts_of_a_stream_are_whole_characters() -> None:
    """Bytes as tokens split characters; samples of random bytes hit every case. Streams run side by side."""
    predictor, seen = predictor_of("translate"), set[str]()
    decode = {"kind": "sample", "temperature": 1.5, "max_tokens": 40, "min_tokens": 20, "nbest": 1}
    answers = [
        predictor.submit(request)
        for seed in range(6)
        for request in predictor.requests(["so good", "Grüße 日本"], seed=seed, **decode)
    ]
    for answer in answers:
        deltas = [delta.text for delta in answer if isinstance(delta, TextDelta)]
        text = answer.result().text
        assert "".join(deltas) == text and all(deltas) and len(deltas) > 1
        assert "�" not in deltas[0] or text.startswith("�")
        seen |= {character for character in text if len(character.encode()) > 1}
    assert seen and is_idle(predictor.engine)


@pytest.mark.parametrize("stop", [("a",), ("ab", "b"), ("aK", "e f", "M"), tuple("cdefghij")])
def test_no_part_of_a_stop_string_is_streamed(gpt: torch.nn.Module, stop: tuple[str, ...]) -> None:
    engine, stopped = engine_of(gpt), 0

    async def written(number: int, emit: Any) -> str:
        prompt = (START, 5 + number)
        stream = TextStream(Letters(), emit, prompt, stop)
        request = SearchRequest(prompt, None, Sample(1.2, seed=number), 20, stop=stop, min_tokens=4)
        (best,) = await generate(request, listener=stream.add)
        before, after = Letters().decode([[5 + number], [5 + number, *best.tokens]])
        text = after[len(before) :]
        text = text[: min((text.find(string) for string in stop if string in text), default=None)]
        stream.finish(text)
        return text

    answers = [engine.submit(lambda emit, n=n: written(n, emit)) for n in range(8)]
    for answer in answers:
        streamed = text_of(answer)
        assert streamed == answer.result() and not any(string in streamed for string in stop)
        stopped += len(streamed) < 19
    assert stopped and is_idle(engine)


def test_sentences_stream_in_order_and_are_decoded_side_by_side() -> None:
    predictor, rows, parts = predictor_of("translate"), 0, list[str]()
    text = "so good. So bad! A very good day. Bad."
    (request,) = predictor.requests([text], kind="greedy", split=True, max_tokens=8, min_tokens=5)
    answer = predictor.submit(request)
    for delta in answer:
        rows = max(rows, predictor.engine.stats()["rows"])
        parts.append(delta.text)
    result = answer.result()
    assert (
        "".join(parts) == result.text == " ".join(each.text for each in result.sentences) and len(result.sentences) == 4
    )
    assert rows == 4 and len(parts) > 8 and result.text == predictor.predict_requests([request])[0].text


def test_a_part_comes_before_the_end(serve: Callable[..., Engine], gpt: torch.nn.Module) -> None:
    engine = serve(gpt)

    async def program(emit: Any) -> str:
        await Read(double, 1)
        emit(TextDelta("first"))
        await Read(gate, 1)
        return "end"

    gate = Gate()
    answer = engine.submit(program)
    parts = iter(answer)
    assert next(parts) == TextDelta("first") and not answer.done
    gate.opened.set()
    assert [*parts] == [] and answer.result() == "end"
    with pytest.raises(TypeError, match="stream=False"):
        next(iter(engine.submit(read(double, 1), stream=False)))


# --- nobody is held up -----------------------------------------------------------------------------------------------


def test_a_slow_file_holds_nobody_up(serve: Callable[..., Engine], gpt: torch.nn.Module) -> None:
    """Neither tokens nor other inputs that are read at the same time."""
    engine, gate = serve(gpt), Gate()

    def careful(raws: Sequence[str]) -> list[str]:
        return [gate([raw])[0] if raw == "slow" else raw for raw in raws]

    async def program(raw: str) -> str:
        raw = await Read(careful, raw)
        await generate(SearchRequest((START, 5), None, Greedy(), 5))
        return raw

    with engine.lock:  # they arrive together
        slow, quick = (engine.submit(lambda emit, raw=raw: program(raw)) for raw in ("slow", "quick"))
        writing = engine.submit(greedy(6, count=20))
    assert quick.result(PATIENCE) == "quick" and writing.result(PATIENCE) and not slow.done
    broken = engine.submit(read(lambda raws: [1 // raw for raw in raws], 0))
    leaves = engine.submit(read(lambda raws: sys.exit("a library exits"), 0))
    with pytest.raises(ZeroDivisionError):
        broken.result(PATIENCE)
    with pytest.raises(CanceledError, match="interrupted by SystemExit"):
        leaves.result(PATIENCE)
    gate.opened.set()
    assert slow.result(PATIENCE) == "slow"


def test_an_idle_engine_sleeps(serve: Callable[..., Engine]) -> None:
    """Also while requests wait for one whose file is slow."""
    engine, gate = serve(window=1), Gate()
    blocked = engine.submit(read(gate, 1))
    waiting = [engine.submit(read(double, 1)) for _ in range(3)]
    gate.entered.wait(PATIENCE)
    time.sleep(0.1)
    steps = engine.stats()["steps"]
    time.sleep(0.2)
    assert engine.stats()["steps"] <= steps + 1 and engine.stats()["waiting"] == 3
    gate.opened.set()
    assert blocked.result(PATIENCE) == 1 and [answer.result(PATIENCE) for answer in waiting] == [2] * 3
    soon(lambda: is_idle(engine))
    time.sleep(0.1)
    steps = engine.stats()["steps"]
    time.sleep(0.2)
    assert engine.stats()["steps"] <= steps + 1


def test_waiting_is_bounded(serve: Callable[..., Engine]) -> None:
    engine, gate = serve(window=1, max_waiting=2), Gate()
    blocked = engine.submit(read(gate, 1))
    gate.entered.wait(PATIENCE)
    waiting = [engine.submit(read(double, number)) for number in range(2)]
    with pytest.raises(EngineBusyError, match="2 requests wait; try again later"):
        engine.submit(read(double, 9))
    waiting[0].cancel()
    soon(lambda: engine.stats()["waiting"] == 1)
    third = engine.submit(read(double, 3))
    with pytest.raises(EngineBusyError):
        engine.submit(read(double, 9))
    gate.opened.set()
    assert [answer.result(PATIENCE) for answer in (blocked, waiting[1], third)] == [1, 2, 6]


def test_a_deadline_passes_while_nothing_else_happens(serve: Callable[..., Engine]) -> None:
    """The thread sleeps; it wakes for a request whose file is slow, and for one that waits."""
    engine, gate, closed = serve(window=1), Gate(), list[str]()

    async def reading() -> None:
        try:
            await Read(gate, 1)
        finally:
            closed.append("file")

    late = engine.submit(lambda emit: reading(), seconds=0.3)
    waiting, patient = engine.submit(read(double, 1), seconds=0.1), engine.submit(read(double, 2), seconds=600)
    began = time.monotonic()
    for answer in (waiting, late):
        with pytest.raises(CanceledError, match="the deadline of the request has passed"):
            answer.result(PATIENCE)
    assert 0.2 < time.monotonic() - began < 20 and patient.result(PATIENCE) == 4 and closed == ["file"]
    with pytest.raises(TimeoutError, match="no result after 0.05 seconds"):
        gated = engine.submit(read(gate, 1))
        gated.result(0.05)
    gate.opened.set()
    assert gated.result(PATIENCE) == 1


# --- ends ------------------------------------------------------------------------------------------------------------


def test_close_ends_all_requests_and_a_closed_engine_starts_again(gpt: torch.nn.Module) -> None:
    """Requests that run, read and wait; threads that iterate and wait; a read that hangs does not hold it up."""
    engine, gate, closed, ends = engine_of(gpt, window=3), Gate(), list[str](), list[BaseException]()
    begun: list[Any] = []

    async def program(job: Any) -> Any:
        begun.append(job)
        try:
            return await Gather([job_of(job), job_of(job)])
        finally:
            closed.append("file")

    async def job_of(job: Any) -> Any:
        return await job

    endless = generate(SearchRequest((START, 5), None, Greedy(), 60, min_tokens=59))
    jobs = [Read(gate, 1), endless, Forward(head_of(lambda values: values), torch.zeros(1).numpy()), Read(gate, 1)]
    pending = [engine.submit(lambda emit, job=job: program(job)) for job in jobs]

    def wait(how: Callable[[Answer[Any]], Any], answer: Answer[Any]) -> None:
        try:
            how(answer)
        except CanceledError as error:
            ends.append(error)

    for answer in (pending[0], pending[3]):
        assert not answer.done
    engine.start()
    assert engine.start() is engine
    waits = [Answer.result, text_of, lambda answer: answer.result(PATIENCE)]
    threads = [threading.Thread(target=wait, args=(how, pending[number])) for how in waits for number in (0, 3)]
    for thread in threads:
        thread.start()
    soon(gate.entered.is_set)
    engine.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert {str(error) for error in ends} == {"the engine was closed"} and len(ends) == 6 and len(begun) >= 3
    assert len(closed) == len(begun) and is_idle(engine) and not engine.serving
    with pytest.raises(EngineBusyError, match="the engine is closed; start it again"):
        engine.submit(read(double, 1))
    assert engine.run([read(double, 4)])[0].result() == 8
    engine.close()
    engine.start()
    again = engine.submit(greedy(5))
    gate.opened.set()  # the old read ends now, and concerns nobody
    assert again.result(PATIENCE) and engine.submit(read(double, 2)).result(PATIENCE) == 4
    engine.close()
    assert is_idle(engine)


def test_calls_go_on_when_a_thread_begins_or_ends_to_serve(gpt: torch.nn.Module) -> None:
    """Requests that were submitted before `start`, and calls of `run` in the middle of their batches."""
    engine, sizes = engine_of(gpt), list[int]()

    def slowly(values: Sequence[float]) -> Sequence[float]:
        sizes.append(len(values))
        time.sleep(0.005)
        return values

    head = head_of(slowly)
    before = [engine.submit(greedy(5)) for _ in range(3)]
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(lambda: engine.run([forward(head, n) for n in range(40)], batch=1)) for _ in range(2)]
        soon(lambda: len(sizes) > 3)
        engine.start()
        for call in calls:
            assert [answer.result() for answer in call.result(PATIENCE)] == [*range(40)]
    assert len(sizes) == 80 and all(answer.result(PATIENCE) for answer in before)
    engine.close()


def test_a_fault_of_the_engine_ends_its_requests_and_it_goes_on(
    serve: Callable[..., Engine], gpt: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, gate = serve(gpt), Gate()
    blocked, other = engine.submit(read(gate, 1)), engine.submit(read(gate, 2))

    async def leaves() -> None:
        await Read(double, 1)
        sys.exit("a library exits")

    def fail_once() -> list[Any]:
        monkeypatch.undo()
        raise IndexError("a fault")

    gate.entered.wait(PATIENCE)
    monkeypatch.setattr(engine.scheduler, "_next_pass", fail_once)
    waiting = engine.submit(read(double, 1))
    for answer in (blocked, other, waiting):
        with pytest.raises(IndexError, match="a fault"):
            answer.result(PATIENCE)
    assert engine.submit(greedy(5)).result(PATIENCE)
    with pytest.raises(CanceledError, match="the request was interrupted by SystemExit"):
        engine.submit(lambda emit: leaves()).result(PATIENCE)
    assert engine.serving and engine.submit(greedy(5)).result(PATIENCE)
    gate.opened.set()


def test_an_answer_has_one_end(serve: Callable[..., Engine]) -> None:
    """It is canceled in the moment in which it is done: it has a result or an error, the same for all who ask."""
    engine, seen, delay = serve(), set[bool](), 2.0**-12
    for _ in range(300):
        answer = engine.submit(read(double, 3))
        time.sleep(delay)
        answer.cancel()
        delay *= 0.9 if answer.error is None else 1.1  # towards the moment in which it is done
        assert answer.done and (answer.value is None) == isinstance(answer.error, CanceledError)
        value, error = answer.value, answer.error
        seen.add(error is None)
        assert answer.finish(5) is False and (answer.value, answer.error) == (value, error)
    assert seen == {True, False}


@pytest.mark.parametrize("served", [False, True])
def test_a_request_is_canceled_while_a_thread_waits_for_it(gpt: torch.nn.Module, served: bool) -> None:
    """Others go on, also if that thread is the one that steps."""
    engine, ends = engine_of(gpt), list[str]()

    async def endless(emit: Any) -> None:
        while True:
            await generate(SearchRequest((START, 5), max_tokens=9))
            emit(TextDelta("more"))

    def wait(how: Callable[[Answer[Any]], Any]) -> None:
        with pytest.raises(CanceledError, match="the client has gone"):
            how(answer)
        ends.append("end")

    if served:
        engine.start()
    answer = engine.submit(endless)
    threads = [threading.Thread(target=wait, args=(how,)) for how in (Answer.result, text_of)]
    for thread in threads:
        thread.start()
    assert engine.submit(greedy(6)).result(PATIENCE) and not answer.done
    answer.cancel("the client has gone")
    for thread in threads:
        thread.join(PATIENCE)
    assert ends == ["end"] * 2
    soon(lambda: is_idle(engine))
    engine.close()


def test_a_stream_that_is_dropped_is_canceled() -> None:
    """Also by the garbage collector, which may come at any time, in any thread."""
    predictor = predictor_of("translate")
    for number in range(3):
        stream = predictor.stream("so good", kind="greedy", max_tokens=30, min_tokens=20, nbest=1)
        next(stream)
        assert predictor.engine.stats()["rows"] == 1
        if number:
            stream.close()
        else:
            del stream
        assert is_idle(predictor.engine)


def test_sources_are_read_and_searched_in_a_server(serve: Callable[..., Engine]) -> None:
    model = build("transformer")
    engine = serve(model, rows=8, capacity=64, budget=64)
    dice = random.Random(5)
    requests = [replace(random_request(dice, True, number), max_tokens=8) for number in range(10)]
    answers = [engine.submit(search(request)) for request in requests]
    for answer, request in zip(answers, requests, strict=True):
        assert worst_difference(answer.result(PATIENCE), alone(model, request)) < 1e-5
    with pytest.raises(UserError, match="needs 65 tokens, 1 of them for its prompt, and the generator has 64 per row"):
        engine.submit(search(SearchRequest((START,), source([5, 6]), Greedy(), 70))).result(PATIENCE)
