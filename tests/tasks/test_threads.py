"""Predictors are re-entrant: threads that predict, score, look and choose adapters at once get what each gets alone."""

import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.adapt import tune
from regard.config.tuning import Adapter, Lora, Prefix, Prompt
from regard.errors import UserError
from regard.look import record_attention
from regard.messages.labels import ClassifyRequest
from regard.runs.pretrained import Pretrained
from regard.runs.tuned import AdapterSwitch

OLD = Path(__file__).parents[1] / "old"
THREADS, CALLS = 8, 125  # per thread
PROMPTS = ["The dog", "It will rain", "In the evening the old man"]
METHODS = {
    "lora": Lora(rank=2, pattern="."), "adapter": Adapter(bottleneck=4), "prompt": Prompt(length=3), "prefix": Prefix(length=3),
}  # fmt: skip
GREEDY, BEAM = {"kind": "greedy", "nbest": 1, "max_tokens": 2}, {"kind": "beam", "beam": 2, "nbest": 2, "max_tokens": 2}
SAMPLE = {"kind": "sample", "nbest": 2, "max_tokens": 2, "seed": 3}
NEUTRAL = {"include": (), "exclude": (), "prefix": "", "split": False}


@pytest.fixture(scope="module")
def language() -> AdapterSwitch:
    """Language models over one base, each tuned by another method with random weights."""
    folder = str(OLD / "language-gpt")
    pretrained, predictors = Pretrained(folder, regard.load), {}
    for number, (kind, settings) in enumerate(METHODS.items()):
        predictor = predictors[kind] = regard.load(folder)
        pretrained.share_weights(predictor.model, predictor.device)
        tune.attach(predictor.model, settings)
        torch.manual_seed(number)
        for parameter in predictor.model.tune.parameters():
            parameter.data.normal_(0, 0.5)
        predictor.model.eval()
    return AdapterSwitch(predictors)


@pytest.fixture(scope="module")
def labels() -> AdapterSwitch:
    """Classifiers tuned over one base."""
    runs = {kind: OLD / f"tuned-{kind}" for kind in METHODS}
    return regard.load(OLD / "masked-bert", tune=runs, force=True)


def plain(value: Any) -> Any:
    """The value in a form that == compares."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if hasattr(value, "maps"):
        return {each.site.path: each.weights.tolist() for each in value.maps}
    return value


def near(one: Any, other: Any) -> bool:
    """Equal; numbers may differ by rounding, because threads share batches."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(near, one, other))
    return bool(one == (pytest.approx(other, rel=1e-4, abs=1e-5) if isinstance(other, float) else other))


def all_calls(language: AdapterSwitch, labels: AdapterSwitch) -> dict[str, Callable[[], Any]]:
    """Calls by name; each must give the same whatever runs beside it."""
    pairs = regard.load(OLD / "spans-t5", {"decode.temperature": 1.0, "decode.top_k": 0, "decode.top_p": 1.0})
    calls: dict[str, Callable[[], Any]] = {}
    for kind in METHODS:
        own, label = language[kind], labels[kind]
        for number, prompt in enumerate(PROMPTS):
            for name, decode in {"greedy": GREEDY, "beam": BEAM, "sample": SAMPLE}.items():
                calls[f"{kind} {name} {number}"] = lambda p=prompt, k=kind, d=decode: language.predict(
                    p, adapter=k, **d
                )
            calls[f"{kind} score {number}"] = lambda p=prompt, own=own: own.score(p)
            calls[f"{kind} look {number}"] = lambda p=prompt, own=own: own.look(p)
        calls[f"{kind} details"] = lambda own=own: own.predict(PROMPTS[1], details=True, **GREEDY)
        calls[f"{kind} label"] = lambda k=kind: labels.predict(PROMPTS, adapter=k, details=True)
        calls[f"{kind} label score"] = lambda label=label: label.score(PROMPTS[:1], [label.labels.names[0]])
        calls[f"{kind} label look"] = lambda label=label: label.look(PROMPTS[2])
        calls[f"{kind} embed"] = lambda label=label: label.embed(PROMPTS)
    for name, decode in {"greedy": GREEDY, "beam": BEAM, "sample": SAMPLE}.items():
        calls[f"pair {name}"] = lambda d=decode: pairs.predict(PROMPTS[:2], **d, **NEUTRAL)
        calls[f"pair details {name}"] = lambda d=decode: pairs.predict(PROMPTS[1], details=True, **d, **NEUTRAL)
    calls["pair look"] = lambda: pairs.look(PROMPTS[0], PROMPTS[1])
    calls["pair score"] = lambda: pairs.score(PROMPTS, PROMPTS)
    return calls


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_threads_get_what_each_gets_alone(language, labels):
    calls = all_calls(language, labels)
    expected = {name: plain(call()) for name, call in calls.items()}
    assert len({str(expected[f"{kind} greedy 2"]) for kind in METHODS}) > 1, "the adapters do not differ"
    numbers = count()

    def work(seed: int) -> list[str]:
        rng, wrong = random.Random(seed), []
        for name in rng.choices(list(calls), k=CALLS):
            if next(numbers) % 9 == 0:  # the selection of the switch does not matter to calls that name their adapter
                language.use(rng.choice(list(METHODS)))
            if not near(plain(calls[name]()), expected[name]):
                wrong.append(name)
        return wrong

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            wrong = [name for found in pool.map(work, range(THREADS)) for name in found]
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    tables = {id(each.model.embed.weight) for each in language.predictors.values()}
    assert len(tables) == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_requests_name_their_adapter(labels):
    requests = [ClassifyRequest(text, adapter=kind) for text in PROMPTS for kind in (*METHODS, None)]
    labels.use("prefix")
    results = labels.predict_requests(requests)
    for request, result in zip(requests, results, strict=True):
        (alone,) = labels[request.adapter or "prefix"].predict_requests([ClassifyRequest(request.text)])
        assert result.label == alone.label and result.probability == pytest.approx(alone.probability, abs=1e-5)
    assert labels.predict("a", adapter=None) == labels["prefix"].predict("a")
    for wrong in (lambda: labels["lore"], lambda: labels.predict("a", adapter="lore")):
        with pytest.raises(UserError, match="there is no tuned run 'lore' over this base; .* did you mean lora"):
            wrong()
    with pytest.raises(UserError, match="decode.adapter is not a key"):
        labels["lora"].predict("a", adapter="lora")


def test_a_recorder_sees_only_its_own_model_and_thread(language):
    one, other = language["lora"], language["adapter"]
    with record_attention(one.module) as maps:
        other.score(PROMPTS[0])
        with ThreadPoolExecutor(1) as pool:
            pool.submit(one.score, PROMPTS[0]).result()
        assert not maps
        one.score(PROMPTS[0])
        assert maps
