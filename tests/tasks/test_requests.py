"""Requests and results: their JSON schema, settings that are refused, notices, and what predictors can do."""

import json
import warnings
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

import regard
from regard.config.decode import Seq2SeqDecode
from regard.config.strategies import Beam, Greedy, Sample
from regard.decode import Suppress
from regard.errors import UserError
from regard.messages import labels, speech, texts, verbs
from regard.messages.base import Request, Result
from regard.messages.labels import ClassifyRequest, MaskedRequest, TagRequest
from regard.messages.texts import LanguageRequest, TranslateRequest
from regard.tasks.notices import Notice, warn_once
from regard.tasks.predictor import Embedding, Predictor, Streaming

OLD = Path(__file__).parents[1] / "old"
TYPES = [
    kind
    for module in (texts, speech, labels, verbs)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Request | Result) and kind.__module__ == module.__name__
]
TEXTS = ["The dog", "It will rain in the evening.", "the people sold apples", "Yes"]


@pytest.fixture(scope="module")
def load():
    """Predictors of old runs, each loaded once."""
    loaded: dict[str, Predictor] = {}
    return lambda name: loaded.setdefault(name, regard.load(OLD / name))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_type_has_a_json_schema(kind):
    schema = TypeAdapter(kind).json_schema()
    described = schema["$defs"][kind.__name__] if "$ref" in schema else schema
    assert set(described["properties"]) == {field.name for field in fields(kind)}
    assert json.loads(json.dumps(schema)) == schema
    with pytest.raises(FrozenInstanceError):
        kind.__new__(kind).anything = 1


def test_requests_are_read_from_json():
    read = TypeAdapter(TranslateRequest).validate_json
    strategy = {"kind": "beam", "size": 3, "n": 2}
    request = read(json.dumps({"source": "a cat", "strategy": strategy, "include": ["cat"], "details": True}))
    assert request == TranslateRequest("a cat", strategy=Beam(3, 2), include=("cat",), details=True)
    assert read('{"source": "a", "strategy": {"kind": "greedy"}}').strategy == Greedy()
    assert read('{"source": "a"}').strategy is None
    for wrong in ('{"source": "a", "strategy": {"kind": "lucky"}}', '{"source": 1}', "{}"):
        with pytest.raises(ValidationError):
            read(wrong)


def test_wrong_settings_of_a_request_are_refused(load):
    translate, language = load("translate-cnn"), load("language-gpt")
    plain = TranslateRequest("a", strategy=Greedy(), include=())
    for wrong, message in (
        (
            replace(plain, strategy=Sample(temperature=0.0)),
            r"decode.strategy.temperature is 0\.0; expected more than 0",
        ),
        (replace(plain, include=("cat",)), "decode.include needs beam search but decode.strategy is greedy"),
        (replace(plain, max_tokens=-1), "decode.max_tokens is -1; expected at least 0"),
        (replace(plain, adapter="a"), "a request names the adapter 'a', but this predictor has none"),
    ):
        with pytest.raises(UserError, match=message):
            translate.predict_requests([plain, wrong])
    with pytest.raises(ValueError, match=r"decode\.strategy\.n is 3, above decode\.strategy\.size=2; raise the size"):
        Beam(2, 3)
    with pytest.raises(UserError, match="decode.stop has an empty string"):
        language.predict_requests([LanguageRequest("a", stop=("",))])
    with pytest.raises(UserError, match="a language model scores whole texts, so score takes no targets"):
        language.score("a", "b")


def test_notices_belong_to_their_results(load):
    long = "the dog " * 80
    empty, cut, plain = load("classify-bert").predict_requests(
        [ClassifyRequest(each) for each in (" ", long, "The dog")]
    )
    assert empty.notices == ("the text is empty and gets no label",) and empty.label is None
    assert cut.notices[0].startswith("the text has more than 62 tokens and was cut there") and not plain.notices
    cut, plain = load("masked-bert").predict_requests([MaskedRequest(f"<mask> {long}"), MaskedRequest("The dog")])
    assert "more than 46 tokens" in cut.notices[0] and plain.notices == ("the text has no <mask> and stays as it is",)
    assert plain.text == "The dog" and plain.masks == ()
    long_prompt, short = load("language-xl").predict_requests([LanguageRequest(long), LanguageRequest("The")])
    assert "the model remembers the last 12" in long_prompt.notices[0] and not short.notices
    request = TranslateRequest("The dog", strategy=Beam(2), include=("mars",), max_tokens=8)
    results = load("translate-cnn").predict_requests([request, replace(request, details=True)])
    missing = [each for each in results if each.missing]
    assert [bool(each.notices) for each in results] == [each in missing and not each.tokens for each in results]


def test_notices_of_one_kind_are_one_warning():
    def notice(size: int) -> Notice:
        return Notice(f"size {size}", lambda count, total: f"{count} of {total}, up to {size}", topic="size", size=size)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_once([notice(2), notice(7), notice(3), "plain", "plain"], 9)
    assert [str(each.message) for each in seen] == ["3 of 9, up to 7", "plain"]


def test_labels_tags_and_masks(load):
    (result,) = load("classify-bert").predict_requests([ClassifyRequest("The dog", top=1)])
    assert (
        result.label == load("classify-bert").predict("The dog", top=0) == result.top[0].label and len(result.top) == 1
    )
    words, text = load("tag-bert").predict_requests([TagRequest(("The", "dog"), top=2), TagRequest("The dog")])
    assert words.tags == text.tags and words.text is None and text.text.count("/") == 2
    assert len(words.top) == 2 and words.top[0][0].probability == words.probabilities[0] and text.top == ()
    (filled,) = load("masked-bert").predict_requests([MaskedRequest("The <mask> is [MASK]", top=3)])
    assert [len(each) for each in filled.masks] == [3, 3]


def test_what_predictors_can_do(load):
    assert isinstance(load("classify-bert"), Embedding) and not isinstance(load("classify-bert"), Streaming)
    assert isinstance(load("language-gpt"), Streaming) and not isinstance(load("language-gpt"), Embedding)


def test_a_prompt_without_a_possible_token_has_an_empty_continuation(load):
    predictor = load("language-gpt").with_model(load("language-gpt").model)  # with an engine of its own
    predictor.filters = (Suppress(range(predictor.tokenizer.size)),)
    for kind in ("greedy", "sample", "beam"):
        assert predictor.predict(["The", "A"], kind=kind, nbest=1) == ["", ""]
        record = predictor.predict("The", kind=kind, nbest=1, details=True)
        assert (record["text"], record["finish"], record["score"], record["nbest"]) == ("", None, None, [])
    assert predictor.predict("The", kind="sample", nbest=2) == []


def test_a_negative_number_of_candidates_is_refused(load):
    for name, request in (
        ("classify-bert", ClassifyRequest("The dog", top=-1)),
        ("tag-bert", TagRequest(("The", "dog"), top=-1)),
        ("masked-bert", MaskedRequest("The <mask>", top=-1)),
    ):
        with pytest.raises(UserError, match="a request has top=-1; expected 0 or more"):
            load(name).predict_requests([request])


def test_a_batch_is_a_number_in_any_form(load):
    wanted = load("classify-bert").predict(TEXTS, top=0)
    assert all(load("classify-bert").predict(TEXTS, top=0, batch=batch) == wanted for batch in (2, 2.0, "2"))
    with pytest.raises(UserError, match=r"decode\.batch is"):
        load("classify-bert").predict(TEXTS, batch=2.5)


def test_a_strategy_that_the_family_does_not_declare_is_refused(monkeypatch):
    from regard.families import transformer

    class GreedyDecode(Seq2SeqDecode):
        strategy: Greedy = Greedy()

    monkeypatch.setattr(
        transformer, "SPEC", replace(transformer.SPEC, settings={"translate": {"decode": GreedyDecode}})
    )
    predictor = regard.load(OLD / "format-1")  # a run of a beam search, which the family no longer has
    assert predictor.predict(TEXTS[0]) == predictor.predict(TEXTS[0], kind="greedy") != ""
    with pytest.raises(UserError, match='decode.strategy.kind is "beam"; expected one of greedy'):
        predictor.predict(TEXTS[0], kind="beam")


def test_an_empty_text_has_no_attention(load):
    for name in ("translate-cnn", "language-gpt"):
        with pytest.raises(UserError, match="the text is empty and has no attention to show; give a sentence"):
            load(name).look(" ")
