"""One law over the predictors of all tasks; the cases are in helpers/predictors.py.

An item alone = in a batch = in any form and iterable; details tell of the answer; requests of one call have their own
settings; what is wrong ends with one sentence and changes nothing; threads get what each gets alone; a stream = its
whole; scores, attention, embeddings and metrics agree with each other.
"""

import json
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from helpers.predictors import CASES, Case, known_items, predictor_of
from pydantic import TypeAdapter, ValidationError

from regard.config.registry import TASKS
from regard.errors import UserError
from regard.messages.base import message_adapter, to_json
from regard.messages.media import Image, Item, Sound
from regard.messages.verbs import EmbedRequest, LookRequest, ScoreRequest, SimilarRequest
from regard.processors.sound.read import Samples
from regard.tasks.predictor import Embedding, Streaming
from regard.tasks.verbs import submit_json, verbs_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
every_case = pytest.mark.parametrize("name", CASES)


def cases_with(test: Callable[[str], Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for name in CASES if test(name)])


of_texts = cases_with(lambda name: isinstance(CASES[name].items[0], str) or name == "tag")
scored = cases_with(lambda name: CASES[name].targets is not None or CASES[name].whole)
not_scored = cases_with(lambda name: CASES[name].targets is None and not CASES[name].whole)
ENSEMBLES = {"language", "translate", "text2text", "spans"}  # tasks whose predictors form ensembles
STREAMING = {*ENSEMBLES, "caption", "multitask", "transcribe"}  # tasks whose predictors stream
INPUTS = {"text", "image", "audio"}  # fields of a multitask request, one of which is given
EMBEDDING = {"classify", "tag", "masked", "classify-image", "contrastive"}  # and those that give vectors
ITERABLES: list[Callable[[list[Any]], Any]] = [tuple, iter, lambda items: (each for each in items)]
TEXT_ITERABLES: list[Callable[[list[Any]], Any]] = [
    np.array, lambda texts: np.array(texts, object), pd.Series, pl.Series, pa.array,
    lambda texts: pa.chunked_array([texts]), lambda texts: dict.fromkeys(texts).keys(),
]  # fmt: skip


def same(found: Any, wanted: Any) -> None:
    """Equal values, whose numbers may differ by rounding."""
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            same(found[key], value)
    elif isinstance(wanted, list | tuple):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif hasattr(wanted, "__dataclass_fields__"):
        assert type(found) is type(wanted)
        same(vars(found), vars(wanted))
    else:
        assert found == (pytest.approx(wanted, rel=1e-4, abs=1e-4) if isinstance(wanted, float) else wanted)


def alone(predictor: Any, item: Any, **named: Any) -> Any:
    """The prediction of one item, also of one that only a list can tell from several."""
    return predictor.predict(item, **named) if predictor.is_item(item) else predictor.predict([item], **named)[0]


def exact_fields(value: Any, case: Case) -> Any:
    """A value without the rounded fields of all its records."""
    if isinstance(value, list):
        return [exact_fields(each, case) for each in value]
    if isinstance(value, dict):
        return {key: exact_fields(each, case) for key, each in value.items() if key not in case.rounded}
    return value


def one_sentence(words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(UserError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def ways_of(name: str) -> list[dict[str, Any]]:
    return [{}, *CASES[name].decode]


# --- batches and forms -----------------------------------------------------------------------------------------------


@every_case
def test_an_item_alone_is_predicted_as_in_a_batch(name: str) -> None:
    """In batches of any size and in any order; each way to ask changes something."""
    predictor, case, answers = predictor_of(name), CASES[name], list[str]()
    items = [*case.items]

    def predict(items: list[Any], **decode: Any) -> Any:
        return exact_fields(predictor.predict(items, details=True, **decode), case)

    for decode in ways_of(name):
        together = predict(items, **decode)
        same([predict([item], **decode)[0] for item in items], together)
        for batch in (2,) if decode else (1, 2, "3", 2.0):
            same(predict(items[::-1], **{**decode, "batch": batch})[::-1], together)
        assert len({str(each) for each in together}) > 1, "all items have the same answer"
        answers.append(str([(each, case.answer(each, decode)) for each in together]))
    same([alone(predictor, item) for item in items], predictor.predict(items))
    assert len({*answers}) == len(answers), "a way to ask changes nothing"


@cases_with(lambda name: CASES[name].forms is not Case.forms)
def test_every_form_of_an_item_gives_the_same(name: str, tmp_path: Path) -> None:
    predictor, case = predictor_of(name), CASES[name]
    forms = case.forms(case.items[0], tmp_path)
    wanted = alone(predictor, case.items[0], details=True)
    same([alone(predictor, form, details=True) for form in forms], [wanted] * len(forms))
    same(predictor.predict(forms, details=True), [wanted] * len(forms))


@every_case
def test_any_iterable_has_several_items(name: str) -> None:
    predictor, items = predictor_of(name), [*CASES[name].items]
    wanted = predictor.predict(items)
    for make in ITERABLES + (TEXT_ITERABLES if isinstance(items[0], str) else []):
        same(predictor.predict(make(items)), wanted)
    assert predictor.predict([]) == predictor.predict(iter(())) == predictor.predict((), details=True) == []


# --- requests and results --------------------------------------------------------------------------------------------


@every_case
def test_details_tell_of_the_answer(name: str) -> None:
    """Both are made of the result; records are JSON, and so are results."""
    predictor, case = predictor_of(name), CASES[name]
    for decode in ways_of(name):
        requests = predictor.requests([*case.items], details=True, **decode)
        results = predictor.predict_requests(requests)
        pairs = [*zip(requests, results, strict=True)]
        records = [to_json(result) for _, result in pairs]
        same(predictor.predict([*case.items], details=True, **decode), records)
        json.dumps(records, allow_nan=False)
        for item, pair, record in zip(case.items, pairs, records, strict=True):
            case.check(predictor, item, record, decode)
            answer = predictor.plain_result(*pair)
            if answer is not pair[1]:  # the result itself
                same(answer, case.answer(record, decode))
        read = TypeAdapter(type(results[0]))
        assert read.validate_json(read.dump_json(results[0])) == results[0]


@every_case
def test_requests_have_their_own_settings(name: str) -> None:
    """One call answers as separate ones. A request that sets nothing has the settings of the run."""
    predictor, items = predictor_of(name), [*CASES[name].items[:2]]
    requests = [
        request
        for number, decode in enumerate(ways_of(name))
        for request in predictor.requests(items, details=number % 2 == 0, **decode)
    ]
    results = predictor.predict_requests(requests, batch=3)
    for request, result in zip(requests, results, strict=True):
        same(predictor.predict_requests([request])[0], result)
        assert bool(getattr(result, "logprobs", ())) == getattr(request, "details", False)
    unset = [
        replace(
            each, **{field.name: None for field in fields(each) if field.default is None and field.name not in INPUTS}
        )
        for each in requests[:2]
    ]
    if name == "multitask":  # the task is part of an item
        unset = [replace(each, task=own.task) for each, own in zip(unset, requests, strict=False)]
    same(predictor.predict_requests(unset), results[:2])
    known = {field.name for field in fields(unset[0])}
    for number, decode in enumerate(ways_of(name)):
        own = {key: tuple(value) if isinstance(value, list) else value for key, value in decode.items()}
        if len(own) == 1 and own.keys() <= known:  # it sets one thing
            changed = [replace(each, details=number % 2 == 0) if "details" in known else each for each in unset]
            changed = [replace(each, **own) for each in changed]
            same(predictor.predict_requests(changed), results[2 * number : 2 * number + 2])
    assert len({str(result) for result in results}) > len(items)


# --- mistakes --------------------------------------------------------------------------------------------------------


@every_case
def test_what_is_wrong_ends_with_one_sentence_and_changes_nothing(name: str, tmp_path: Path) -> None:
    predictor, case = predictor_of(name), CASES[name]
    items = [*case.items]
    wanted = predictor.predict(items)
    for item, words in case.wrong(tmp_path):
        one_sentence(words, lambda item=item: predictor.predict([items[0], item]))
        one_sentence(words, lambda item=item: alone(predictor, item))
    for decode, words in case.wrong_decode:
        one_sentence(words, lambda decode=decode: predictor.predict(items, **decode))
    requests = predictor.requests(items)
    named = replace(requests[1], adapter="a")
    one_sentence(
        "a request names the adapter 'a', but this predictor has none",
        lambda: predictor.predict_requests([requests[0], named]),
    )
    one_sentence("decode.nothing is not a key", lambda: predictor.predict(items, nothing=1))
    if case.task not in ENSEMBLES:
        words = "a and b cannot form an ensemble; only models that generate texts can"
        one_sentence(words, lambda: predictor.ensemble({"a": predictor, "b": predictor}))
    assert predictor.predict(items) == wanted


@cases_with(lambda name: CASES[name].noticed)
def test_a_notice_belongs_to_its_item(name: str) -> None:
    """It is a warning, and changes nothing of the items beside it."""
    predictor, case = predictor_of(name), CASES[name]
    first = case.items[0]
    for item, words, answer, known in case.noticed:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = predictor.predict([first, item, item])
        shown = [str(each.message) for each in seen]
        assert any(re.search(words, each) for each in shown) if words else not shown
        same(found[0], alone(predictor, first))
        assert answer is None or found[1:] == [answer] * 2
        plain, noticed = predictor.predict_requests(predictor.requests([first, item]))
        assert not plain.notices and bool(noticed.notices) == bool(words)
        (record,) = predictor.predict([item], details=True)
        same(predictor.predict([first, item], details=True)[1], record)
        assert known.items() <= record.items() if known else True


FRAMES = [pd.DataFrame({"text": ["a"]}), pl.DataFrame({"text": ["a"]}), pa.table({"text": ["a"]})]
NO_TEXTS = [None, 5, 1.5, b"so good", bytearray(b"x"), {"a": "b"}, {"x"}, Path("x"), object(), True, *FRAMES]
NO_TEXTS += [np.array([["a", "b"]]), np.array("x")]
WRONG_INSIDE = [["a", None], ["a", 5], ("a", b"b"), ["a", ["b"]], pd.Series(["a", float("nan")]), ["a", {"b": 1}]]
WRONG_INSIDE += [["a", Path("b")], torch.zeros(2), np.array([1, 2])]


@of_texts
def test_what_is_no_text_is_refused(name: str) -> None:
    """By every public method: one sentence names the type, and the position if it is inside."""
    predictor, case = predictor_of(name), CASES[name]
    texts = ["so good", "so bad"]
    methods: list[Callable[[Any], Any]] = [predictor.predict, predictor.requests]
    if case.whole:
        methods.append(predictor.score)
    if case.targets:
        pair = [*case.targets[:2]]
        methods += [lambda x: predictor.score(x, pair), lambda x: predictor.score(texts, x)]
    if isinstance(predictor, Embedding):
        methods += [predictor.embed, lambda x: predictor.similar(x, texts), lambda x: predictor.similar(texts, x)]
    for method in methods:
        for value in NO_TEXTS:
            words = r"the (text|source|label|target|sentence|prompt)s are|not one of each"
            one_sentence(words, lambda method=method, value=value: method(value))
        for value in WRONG_INSIDE:
            if name != "tag" or not isinstance(value, list) or value[1] != ["b"]:
                words = r" [12] is (None|an? )|[12]: the words are (None|an? )|vectors"
                one_sentence(words, lambda method=method, value=value: method(value))
    for method in [predictor.look] + ([predictor.stream] if isinstance(predictor, Streaming) else []):
        for value in [*NO_TEXTS, texts]:
            one_sentence(r"the (text|item) is (None|an? )", lambda method=method, value=value: method(value))
    if case.look is not None:
        one_sentence("the target is an int; expected a str", lambda: predictor.look("so", 5))


# --- threads and streams ---------------------------------------------------------------------------------------------


def exact(value: Any) -> Any:
    """The value in a form that == compares."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return {each.site.path: each.weights.tolist() for each in value.maps} if hasattr(value, "maps") else value


def calls_of(name: str, folder: Path) -> list[Callable[[], Any]]:
    """Calls of all methods."""
    predictor, case = predictor_of(name), CASES[name]
    calls = [
        lambda item=item, decode=decode: alone(predictor, item, details=True, **decode)
        for number, decode in enumerate(ways_of(name))
        for item in [case.items[number % len(case.items)]]
    ]
    calls.append(lambda: predictor.predict([*case.items]))
    calls += [lambda form=form: predictor.predict([form]) for form in case.forms(case.items[0], folder)[:3]]
    look = case.items[0] if name != "tag" else "so good"
    calls.append(lambda: exact(predictor.look(look)))
    if case.look is not None:
        calls.append(lambda: exact(predictor.look(look, case.look)))
    if case.targets is not None:
        calls.append(lambda: predictor.score(known_items(case), [*(case.targets or ())]))
    if case.whole:
        calls.append(lambda: predictor.score([*case.items]))
    if isinstance(predictor, Embedding):
        texts = [*case.items] if name != "tag" else ["so good", "bad"]
        calls.append(lambda: exact(predictor.embed(texts)))
    if isinstance(predictor, Streaming):
        calls.append(lambda: "".join(predictor.stream(case.items[0], nbest=1)))  # threads share steps, so parts differ
    return calls


@contextmanager
def quick_switches() -> Iterator[None]:
    """Threads take turns more often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@every_case
def test_threads_get_what_each_gets_alone(name: str, tmp_path: Path) -> None:
    calls = calls_of(name, tmp_path)
    wanted = [call() for call in calls]

    def work(seed: int) -> list[int]:
        chosen = random.Random(seed).choices(range(len(calls)), k=4)
        for number in chosen:
            same(calls[number](), wanted[number])  # threads share batches, so numbers differ by rounding
        return chosen

    with quick_switches(), ThreadPoolExecutor(8) as pool:
        assert all(len(chosen) == 4 for chosen in pool.map(work, range(8)))


@cases_with(lambda name: CASES[name].task in STREAMING)
def test_a_stream_is_its_whole(name: str) -> None:
    predictor, case = predictor_of(name), CASES[name]
    for decode in ways_of(name):
        if decode.get("split"):
            continue
        for item in case.items:
            pieces = [*predictor.stream(item, **{**decode, "nbest": 1})]
            assert "".join(pieces) == predictor.predict(item, **{**decode, "nbest": 1}) and all(pieces)
    if not predictor.run.model.family.startswith(("nat", "cmlm")):
        for kind in ("beam",) if case.task == "transcribe" else ("sample", "beam"):
            one_sentence(
                "decode.strategy.n is 2; a stream has one text",
                lambda kind=kind: predictor.stream("a", kind=kind, nbest=2),
            )
        assert any(len([*predictor.stream(item, kind="greedy", max_tokens=6)]) > 1 for item in case.items)


# --- scores ----------------------------------------------------------------------------------------------------------


@scored
def test_a_score_alone_is_that_of_a_batch(name: str) -> None:
    predictor, case = predictor_of(name), CASES[name]
    items, targets = known_items(case), [] if case.targets is None else [[*case.targets]]
    together = predictor.score(items, *targets)
    pairs = [*zip(items, *targets, strict=True)]
    same([predictor.score(*pair) for pair in pairs], together)
    assert max(together) <= 0 and len({*together}) == len(items)
    records = predictor.score(items, *targets, details=True)
    same([predictor.score(*pair, details=True) for pair in pairs], records)
    same([each["score"] for each in records], together)
    for record in records:
        if record["logprobs"]:
            assert sum(record["logprobs"]) == pytest.approx(record["score"], abs=1e-4)
            assert len(record["tokens"]) == len(record["logprobs"]) and max(record["logprobs"]) <= 0
    same(predictor.score(iter(items), *(iter(each) for each in targets)), together)
    if case.whole:
        one_sentence("score takes no targets", lambda: predictor.score(items[0], "a"))
        return
    both, several, texts = case.pair
    for given in ((items, targets[0][0]), (items[0], targets[0]), (items[0],), (items,)):
        one_sentence(
            f"score takes {both}( or|, or) .*, not one of (both|each)", lambda given=given: predictor.score(*given)
        )
    counts = f"there are {len(items)} {several} and 1 {texts}; (give|each)"
    one_sentence(counts.replace("texts and", "(texts|sources) and"), lambda: predictor.score(items, targets[0][:1]))
    if case.unknown:
        one_sentence(case.unknown, lambda: predictor.score(items, ["a label"] * len(items)))


@not_scored
def test_a_task_without_probabilities_says_so(name: str) -> None:
    words = "gives no probability of one text given another; use eval or predict"
    predictor = predictor_of(name)
    one_sentence(words, lambda: predictor.score(CASES[name].items[0], "a"))
    one_sentence(words, lambda: predictor.run_all(predictor.answer_score, [ScoreRequest(Item("a"), "a")]))


@cases_with(lambda name: CASES[name].targets is not None and name != "whisper")  # its details are of segments
def test_the_score_of_an_answer_is_in_its_details(name: str) -> None:
    """Where the tokens of its text are those that were written."""
    predictor, case, checked = predictor_of(name), CASES[name], 0
    items = known_items(case)
    for decode in ways_of(name):
        for item, record in zip(items, predictor.predict(items, details=True, **decode), strict=True):
            if "probability" in record:
                assert predictor.score(item, record["label"]) == pytest.approx(np.log(record["probability"]), abs=1e-4)
                checked += 1
                continue
            scored = predictor.score(item, record["text"], details=True)
            if scored["tokens"][:-1] == record["tokens"]:
                logprobs = record["logprobs"]
                assert logprobs == pytest.approx(scored["logprobs"][: len(logprobs)], rel=1e-3, abs=1e-3)
                checked += len(logprobs) >= len(record["tokens"]) > 0
    assert checked


# --- attention and vectors -------------------------------------------------------------------------------------------


@every_case
def test_attention_is_over_the_axes_and_sums_to_one(name: str) -> None:
    predictor, case = predictor_of(name), CASES[name]
    items = [each for each in known_items(case) if not isinstance(each, str) or each] if name != "tag" else ["so good"]
    for item in items[:3]:
        for target in [()] if case.look is None else [(), (case.look,)]:
            view = predictor.look(item, *target)
            first = predictor.look(item, *target, layer=1)
            assert view.maps and {each.layer for each in first.maps} == {1}
            for each in view.maps:
                torch.testing.assert_close(each.weights.sum(-1), torch.ones(each.weights.shape[:-1]))
                if name != "nat-ctc":  # its maps have the copies of END, too
                    assert each.weights.shape[1:] == (len(each.queries), len(each.keys))
            for each in first.maps:
                torch.testing.assert_close(each.weights, view.layer_map(1, each.kind).weights)
    if case.look is None and case.folder is None and not isinstance(predictor, Streaming):
        one_sentence("generates no text, so it takes no target", lambda: predictor.look(items[0], "a"))
    if isinstance(items[0], str) and not isinstance(predictor, Streaming):
        one_sentence("the text is empty", lambda: predictor.look(" "))


@cases_with(lambda name: CASES[name].task in EMBEDDING)
def test_a_vector_alone_is_that_of_a_batch(name: str) -> None:
    predictor, case = predictor_of(name), CASES[name]
    items = [*case.items] if name != "tag" else ["so good", "bad", "a very good day"]
    vectors = predictor.embed(items)
    same(vectors, torch.stack([predictor.embed(item) for item in items]))
    same(predictor.embed(items, batch=2), vectors)
    same(predictor.embed(iter(items)), vectors)
    same(vectors.norm(dim=1), torch.ones(len(items)))
    cosines = vectors @ vectors.T
    for number, ranked in enumerate(predictor.similar(items, items)):
        assert {place for place, _ in ranked} == {*range(len(items))}
        values = [value for _, value in ranked]
        assert values == sorted(values, reverse=True)
        same(values, [float(cosines[number, place]) for place, _ in ranked])
    same(predictor.similar(items[0], items, top=2), predictor.similar(items, items)[0][:2])
    one_sentence("there is no .* to compare with", lambda: predictor.similar(items[0], []))


# --- evaluation ------------------------------------------------------------------------------------------------------


@every_case
def test_metrics_are_those_of_predictions_and_files(name: str, tmp_path: Path) -> None:
    predictor, case = predictor_of(name), CASES[name]
    rows = [*case.rows]
    metrics = predictor.evaluate(rows)
    wanted = case.metrics(predictor, rows)
    same({key: metrics[key] for key in wanted}, wanted)
    files = predictor.evaluate(case.write(rows, tmp_path))
    timeless = lambda found: {key: value for key, value in found.items() if key != "seconds"}  # noqa: E731
    same(timeless(files), timeless(metrics))
    same(timeless(predictor.evaluate(rows)), timeless(metrics))
    assert predictor.evaluate(rows[:1]) != metrics


@every_case
def test_what_a_predictor_can_do(name: str) -> None:
    predictor, task = predictor_of(name), CASES[name].task
    assert isinstance(predictor, Streaming) == (task in STREAMING)
    assert isinstance(predictor, Embedding) == (task in EMBEDDING)


def test_every_task_has_a_case() -> None:
    assert {case.task for case in CASES.values()} == {*TASKS}


# --- JSON ------------------------------------------------------------------------------------------------------------


@every_case
def test_a_request_as_json_gets_the_same_answer(name: str) -> None:
    """Also those of the other verbs; each has schemas that say something of every field."""
    predictor, case = predictor_of(name), CASES[name]
    verbs = verbs_of(predictor)
    assert {"predict", "look"} <= {*verbs}
    assert ("score" in verbs) == (case.targets is not None or case.whole)
    assert ("embed" in verbs and "similar" in verbs) == (case.task in EMBEDDING)
    for verb in verbs.values():
        for schema in verb.schemas().values():
            assert not silent_fields(schema), silent_fields(schema)
    for decode in ways_of(name)[:3]:
        for request in predictor.requests([*case.items[:2]], **decode):
            body = message_adapter(type(request)).dump_json(request)
            same(submit_json(predictor, "predict", body).result(), predictor.predict_requests([request])[0])
    with pytest.raises(ValidationError, match=r"[Uu]nexpected"):
        submit_json(predictor, "predict", b'{"unknown": 1, ' + body[1:])
    one_sentence("has no verb 'fly'", lambda: submit_json(predictor, "fly", body))


ITEMS = {
    "a text": Item("a cat"),
    "an image": Item(image=Image(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))),
    "a recording": Item(audio=Sound(Samples(np.sin(np.arange(9000, dtype=np.float32)), 8000))),
}
READS_SEVERAL = {"multitask": ITEMS.keys(), "contrastive": {"a text", "an image"}}


def reads(name: str) -> Iterable[str]:
    """What the model of a case reads, as messages call it."""
    images = {"classify-image", "detect", "caption"}
    task = CASES[name].task
    modality = "an image" if task in images else "a recording" if task == "transcribe" else "a text"
    return READS_SEVERAL.get(task, {modality})


@cases_with(lambda name: CASES[name].task != "multitask")
def test_items_of_another_modality_are_refused(name: str) -> None:
    """By every verb; a text is never taken for the name of a file."""
    predictor = predictor_of(name)
    target = None if CASES[name].whole else next(iter(CASES[name].targets or ()), None)
    for noun in ITEMS.keys() - reads(name):
        requests = {
            "look": LookRequest(ITEMS[noun]), "embed": EmbedRequest(ITEMS[noun]), "score": ScoreRequest(ITEMS[noun], target),
        }  # fmt: skip
        for verb in requests.keys() & verbs_of(predictor).keys():
            body = message_adapter(type(requests[verb])).dump_json(requests[verb])
            one_sentence(
                rf"was given {noun}; give|the text is an? (Image|Sound); expected a str",
                lambda verb=verb, body=body: submit_json(predictor, verb, body).result(),
            )


@cases_with(lambda name: CASES[name].task in EMBEDDING)
def test_wrong_requests_for_vectors_are_refused(name: str) -> None:
    predictor = predictor_of(name)
    item = next(ITEMS[noun] for noun in reads(name))
    one_sentence(
        "a request has pooling='middle'; (expected|leave it out)",
        lambda: predictor.run_all(predictor.answer_embed, [EmbedRequest(item, pooling="middle")]),
    )
    if "normalize" not in dict(predictor.run.decode):
        one_sentence(
            "a request has normalize=False; leave it out: vectors of this model have length 1",
            lambda: predictor.run_all(predictor.answer_embed, [EmbedRequest(item, normalize=False)]),
        )
    one_sentence(
        "there is no (text|image|item) to compare with; give at least one",
        lambda: predictor.run_all(predictor.answer_similar, [SimilarRequest(item, ())]),
    )


def silent_fields(schema: Any, path: str = "") -> list[str]:
    """Where a schema says nothing, as that of Any does."""
    if isinstance(schema, list):
        return [place for number, each in enumerate(schema) for place in silent_fields(each, f"{path}/{number}")]
    if not isinstance(schema, dict):
        return []
    properties = schema.get("properties", {})
    silent = [f"{path}/{key}" for key, each in properties.items() if not {*each} - {"title", "default", "description"}]
    return silent + [place for key, each in schema.items() for place in silent_fields(each, f"{path}/{key}")]


# --- requests beside bad ones ----------------------------------------------------------------------------------------


def bad_requests(predictor: Any, case: Case, request: Any, folder: Path) -> list[Any]:
    """Five requests that fail: while they are read, or because of what they ask."""
    bad = []
    for item, _ in case.wrong(folder):
        with suppress(UserError):  # some are refused before there is a request
            bad += predictor.requests([item])
    names = {field.name for field in fields(request)}
    bad += [replace(request, **{name: -1}) for name in ("max_tokens", "top") if name in names]
    return (bad[:4] + [replace(request, adapter="a")] * 5)[:5]


@every_case
def test_five_bad_requests_among_eleven_good_ones_fail_alone(name: str, tmp_path: Path) -> None:
    """In one call, and in a server."""
    predictor, case = predictor_of(name), CASES[name]
    plain, changed = (predictor.requests([*case.items], **decode) for decode in ways_of(name)[:2])
    requests = ([*plain, *changed] * 6)[:11]
    wanted = [predictor.predict_requests([request])[0] for request in requests[: len(plain) + len(changed)]]
    numbers = {3 * number: request for number, request in enumerate(bad_requests(predictor, case, plain[0], tmp_path))}
    for number, request in numbers.items():
        requests.insert(number, request)
    server = predictor.with_model(predictor.model)
    server.engine.start()
    answers = [server.submit(request) for request in requests]
    for found in (predictor.predict_each(requests, batch=4), [outcome(answer) for answer in answers]):
        assert {number for number, result in enumerate(found) if isinstance(result, UserError)} == {*numbers}
        good = [result for number, result in enumerate(found) if number not in numbers]
        same(good, ([*wanted] * 6)[:11])
    server.engine.close()
    for engine in (server.engine, predictor.engine):
        stats = engine.stats()
        assert not stats["rows"] and not stats["active"] and not stats["queued_jobs"]


def outcome(answer: Any) -> Any:
    """The result or the error of a submitted request."""
    try:
        return answer.result(60)
    except UserError as error:
        return error
