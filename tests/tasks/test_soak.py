"""Threads that call everything at once, on engines with and without a thread of their own: each call gets what it gets
alone, and nothing is left of any.

A small version runs with the other tests, the long one by `make soak`.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from helpers.compare import close_to, value_of
from helpers.predictors import BEAM, CASES, GREEDY, SAMPLE, TINY, predictor_of
from helpers.runs import tiny_run

import regard
from regard.adapt import tune
from regard.config.tuning import Lora
from regard.decode.engine.answer import CanceledError
from regard.runs.pretrained import Pretrained
from regard.runs.tuned import AdapterSwitch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
THREADS = 8
Call = Callable[[random.Random], Any]
CANCELED = "canceled"  # by its own call


@pytest.fixture(scope="module")
def adapters() -> AdapterSwitch:
    """Translators over one base, tuned by LoRA with random weights."""
    case, predictors = CASES["translate"], dict[str, Any]()
    data = {"train": [*case.rows], "valid": [*case.rows]}
    folder = str(tiny_run(case.task, data=data, **TINY, **case.settings))
    pretrained = Pretrained(folder, regard.load)
    for number, name in enumerate("ab"):
        predictor = predictors[name] = regard.load(folder)
        pretrained.share_weights(predictor.model, predictor.device)
        tune.attach(predictor.model, Lora(rank=2, pattern="."))
        torch.manual_seed(number)
        for parameter in predictor.model.tune.parameters():
            parameter.data.normal_(0, 0.5)
        predictor.model.eval()
    return AdapterSwitch(predictors)


@pytest.fixture(scope="module")
def predictors(adapters: AdapterSwitch) -> Iterator[dict[str, Any]]:
    """Each has an engine of its own; those of `translate` and of adapter a have a thread."""
    copies = {name: predictor_of(name) for name in ("translate", "language", "classify")}
    copies = {name: predictor.with_model(predictor.model) for name, predictor in copies.items()}
    found = {**copies, **adapters.predictors}
    for name in ("translate", "a"):
        found[name].engine.start()
    yield found
    for name in ("translate", "a"):
        found[name].engine.close()


def submitted(predictor: Any, request: Any) -> Call:
    """A request whose parts are read, and which is canceled at any time, or not at all."""

    def call(dice: random.Random) -> Any:
        answer = predictor.submit(request)
        if dice.random() < 0.5:
            if dice.random() < 0.5:
                time.sleep(dice.random() / 50)
            else:
                next(iter(answer), None)
            answer.cancel()
        try:
            return answer.result(60)
        except CanceledError:
            return CANCELED

    return call


def streamed(predictor: Any, item: Any, decode: dict[str, Any]) -> Call:
    def call(dice: random.Random) -> Any:
        stream = predictor.stream(item, **{**decode, "nbest": 1})
        if dice.random() < 0.3:
            next(stream, None)
            stream.close()
            return CANCELED
        return "".join(stream)

    return call


def all_calls(predictors: dict[str, Any], adapters: AdapterSwitch) -> dict[str, Call]:
    """Calls by name."""
    calls: dict[str, Call] = {}
    for name, predictor in predictors.items():
        case = CASES[name] if name in CASES else CASES["translate"]
        items, ways = [*case.items[:2]], [{}, {"top": 2}] if name == "classify" else [GREEDY, BEAM, SAMPLE]
        for number, item in enumerate(items):
            for way, decode in enumerate(ways):
                place, (request,) = f"{name} {number} {way}", predictor.requests([item], **decode)
                calls[f"predict {place}"] = partial(alone, predictor.predict, [item, "so"], details=True, **decode)
                calls[f"submit {place}"] = submitted(predictor, request)
                if name != "classify":
                    calls[f"stream {place}"] = streamed(predictor, item, decode)
                if name in adapters.predictors:
                    calls[f"switch submit {place}"] = submitted(adapters, replace(request, adapter=name))
                    calls[f"switch predict {place}"] = partial(alone, adapters.predict, item, adapter=name, **decode)
        targets = [] if case.whole else [[*(case.targets or ())][:2]]
        calls[f"score {name}"] = partial(alone, predictor.score, items, *targets, details=True)
        calls[f"look {name}"] = partial(alone, predictor.look, items[0])
    return calls


def alone(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A call without chance: the last argument is the dice."""
    return method(*arguments[:-1], **named)


def run_calls(predictors: dict[str, Any], adapters: AdapterSwitch, count: int) -> None:
    """Every thread makes so many calls."""
    calls, never = all_calls(predictors, adapters), random.Random()
    never.random = lambda: 1.0  # type: ignore[method-assign]  # cancels nothing
    expected = {name: value_of(call(never)) for name, call in calls.items()}
    assert len({str(expected[f"predict {name} 0 0"]) for name in ("translate", "a", "b")}) == 3

    def work(seed: int) -> dict[str, int]:
        dice, ends = random.Random(seed), {"result": 0, CANCELED: 0}
        for name in dice.choices([*calls], k=count):
            found = value_of(calls[name](dice))
            ends[CANCELED if found == CANCELED else "result"] += 1
            assert found == CANCELED or found == close_to(expected[name], 1e-3), name
        return ends

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            ends = [*pool.map(work, range(THREADS))]
    finally:
        sys.setswitchinterval(interval)
    assert sum(end["result"] for end in ends) > count and sum(end[CANCELED] for end in ends) > count / 4
    for predictor in predictors.values():
        end = time.monotonic() + 20
        while predictor.engine.stats()["active"] and time.monotonic() < end:
            time.sleep(0.01)  # a server closes what was canceled in its next step
        stats = predictor.engine.stats()
        assert not any(stats[name] for name in ("rows", "active", "waiting", "queued_jobs")), stats


def test_threads_that_call_everything_get_what_each_gets_alone(
    predictors: dict[str, Any], adapters: AdapterSwitch
) -> None:
    run_calls(predictors, adapters, 19)


@pytest.mark.soak
def test_a_thousand_calls(predictors: dict[str, Any], adapters: AdapterSwitch) -> None:
    run_calls(predictors, adapters, 125)
