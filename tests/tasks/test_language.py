"""The task language: batch-invariant continuations and scores, exact metrics, bit-exact resuming."""

import json
import math
import warnings
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import causal, marian
from helpers.inputs import inputs
from helpers.losses import batch_loss
from torch.nn import functional as F

import regard
from regard.config.run import change_settings, resolve_run
from regard.config.strategies import Greedy
from regard.data.datasets.corpus import Corpus, evaluation_windows
from regard.decode.search.texts import without_incomplete
from regard.errors import UserError
from regard.messages.texts import LanguageRequest
from regard.parts.losses import smoothed_cross_entropy
from regard.tasks.language.scoring import corpus_nll, lm_metrics, spans
from regard.tasks.language.task import LanguageJob, LanguagePredictor, data_split, prepare
from regard.tasks.objectives import LanguageObjective

SMALL: dict[str, Any] = {
    "model.size": "tiny", "model.width": 32, "model.heads": 2, "model.layers": 2, "model.inner": 64, "model.dropout": 0.0, "device": "cpu",
    "tokenizer.vocab": 300, "data.max_tokens": 24, "train.batch": 16, "train.tensorboard": False, "train.objective.smoothing": 0.0, "decode.add_start": True,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "learned": {"model.positions.tokens": 24},
    "rotary": {"model.size": "modern-tiny", "model.key_heads": 1},
    "lm": {"model.family": "lm"},
    "xl": {"model.family": "xl", "model.memory": 20},
    "window": {"model.size": "modern-tiny", "model.attention.kind": "window", "model.attention.radius": 5},
    "favor": {"model.family": "lm", "model.attention.kind": "favor", "model.attention.features": 24},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Sentences as texts (.txt), as documents (.jsonl) and as lines."""
    folder = tmp_path_factory.mktemp("texts")
    for seed, (name, count) in enumerate({"train": 300, "valid": 30, "test": 40}.items()):
        lines = marian.sentences(count, seed)
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def objectives(files, cache):
    """Objectives by family and settings, built once, with slightly trained models."""
    built: dict[Any, LanguageJob] = {}

    def objective(family: str = "learned", **changes: Any) -> LanguageJob:
        key = family, tuple(sorted(changes.items()))
        if key not in built:
            own = {name.replace("__", "."): value for name, value in changes.items()}
            data = {"data.train": f"{files}/train.txt", "data.valid": f"{files}/valid.txt", "data.cache": cache}
            run = resolve_run("language", {**data, **SMALL, **FAMILIES[family], **own}).run
            built[key] = prepare(run, {}, torch.device("cpu"))
            train_briefly(built[key])
        return built[key]

    return objective


def train_briefly(objective: LanguageJob, epochs: int = 6) -> None:
    """So that generated texts are words and depend on the prompt."""
    optimizer = torch.optim.Adam(objective.model.parameters(), 5e-3)
    for step in chain(*(objective.steps(100 + epoch, 0) for epoch in range(epochs))):
        for piece in step.micro_batches:
            (batch_loss(objective, piece) / step.count).backward()
        optimizer.step()
        optimizer.zero_grad()


PROMPTS = ["the cat", "", "a bird sees the old tree.", "x", "the dog and the red house", "ü"]
DECODE: dict[str, dict[str, Any]] = {
    "greedy": {"kind": "greedy"},
    "beam": {"kind": "beam", "beam": 3},
    "sample": {"kind": "sample", "temperature": 0.9, "top_p": 0.9},
    "penalty": {"kind": "sample", "top_k": 30, "min_p": 0.02, "repetition_penalty": 1.4, "nbest": 3},
}


# --- continuations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DECODE)
@pytest.mark.parametrize("family", FAMILIES)
def test_continuations_are_batch_invariant(family, kind, objectives):
    """Alone, in batches of any size, shuffled, with prompts of other lengths: the same texts result."""
    predictor = objectives(family).predictor
    decode = {"max_tokens": 11, **DECODE[kind]}
    whole = predictor.predict(PROMPTS, **decode)
    assert whole == [predictor.predict(prompt, **decode) for prompt in PROMPTS]
    assert whole == predictor.predict(PROMPTS, batch=2, **decode)
    assert whole[::-1] == predictor.predict(PROMPTS[::-1], batch=4, **decode)
    texts = [text for each in whole for text in (each if isinstance(each, list) else [each])]
    assert len(set(texts)) > 1 and all(isinstance(text, str) for text in texts)


@pytest.mark.parametrize("kind", ["greedy", "beam", "sample"])
@pytest.mark.parametrize("family", FAMILIES)
def test_stream_equals_predict(family, kind, objectives):
    predictor = objectives(family).predictor
    for prompt in PROMPTS[:4:2] + PROMPTS[5:]:
        for stop in ((), ("e", "zz"), ("the",)):
            decode = {"max_tokens": 14, "stop": stop, **DECODE[kind]}
            pieces = list(predictor.stream(prompt, **decode))
            assert "".join(pieces) == predictor.predict(prompt, **decode)
            assert all(pieces) and (kind != "beam" or len(pieces) <= 1)
    many = list(predictor.stream("the cat", max_tokens=14, kind="greedy"))
    assert len(many) > 1
    with pytest.raises(UserError, match=r"decode.strategy.n is 2; a stream has one text"):
        predictor.stream("x", kind="sample", nbest=2)


def test_greedy_takes_the_likeliest_token(objectives):
    predictor = objectives("rotary").predictor
    record = predictor.predict("the cat", details=True, kind="greedy", max_tokens=30)
    (ids,) = predictor.tokenizer.encode(["the cat"])
    ids = [predictor.tokenizer.start, *ids]
    generated = []
    for _ in range(30):
        scores = predictor.model(inputs(torch.tensor([ids + generated])))[0, -1]
        scores[[predictor.tokenizer.pad, predictor.tokenizer.start]] = -torch.inf
        generated.append(int(scores.argmax()))
        if generated[-1] == predictor.tokenizer.end:
            break
    assert record["tokens"] == predictor.tokenizer.tokens(
        [each for each in generated if each != predictor.tokenizer.end]
    )


def test_samples_depend_on_seed_and_prompt(objectives):
    predictor = objectives("rotary").predictor
    many = predictor.predict("the cat", kind="sample", nbest=4, max_tokens=12)
    assert len(set(many)) > 1 and many[0] == predictor.predict("the cat", kind="sample", max_tokens=12)
    assert many == predictor.predict("the cat", kind="sample", nbest=4, max_tokens=12)
    assert many != predictor.predict("the cat", kind="sample", nbest=4, max_tokens=12, seed=2)
    cold = predictor.predict("the cat", kind="sample", temperature=1e-4, max_tokens=12)
    assert cold == predictor.predict("the cat", kind="greedy", max_tokens=12)
    assert cold == predictor.predict("the cat", kind="greedy", nbest=1, max_tokens=12)
    with pytest.raises(UserError, match="decode.strategy.top_k does not belong to decode.strategy=greedy, which has"):
        predictor.predict("the cat", kind="greedy", top_k=3)


def test_control_tokens_are_suppressed_except_end(objectives):
    found = objectives("rotary").predictor.predict(
        "x", details=True, kind="sample", temperature=50.0, nbest=50, max_tokens=40
    )
    generated = [piece for each in found["nbest"] for piece in each["tokens"]]
    assert len(generated) > 1000 and not {"<pad>", "<s>"} & set(generated)
    assert any(each["finish"] == "end" for each in found["nbest"])


def test_repetition_penalty(objectives):
    predictor = objectives("rotary").predictor
    plain, careful = (
        predictor.predict("the cat the cat", details=True, kind="greedy", max_tokens=20, repetition_penalty=penalty)
        for penalty in (1.0, 50.0)
    )
    known = set(careful["prompt_tokens"])
    assert not known & set(careful["tokens"]) and len(set(careful["tokens"])) == len(careful["tokens"])
    assert plain["tokens"] != careful["tokens"]


def test_details(objectives):
    predictor = objectives("learned").predictor
    one = predictor.predict(["the cat", ""], details=True, kind="sample", nbest=2, max_tokens=5)
    for record, prompt in zip(one, ["the cat", ""], strict=True):
        assert [record[key] for key in ("text", "finish", "logprob")] == [
            record["nbest"][0][key] for key in ("text", "finish", "logprob")
        ]
        ids = predictor.tokenizer.encode([prompt])[0]
        assert record["prompt_tokens"] == ["<s>", *predictor.tokenizer.tokens(ids)]
        assert record["usage"] == {"input": len(ids) + 1, "output": sum(each["length"] for each in record["nbest"])}
        for each in record["nbest"]:
            assert each["length"] == len(each["logprobs"])
            assert len(each["logprobs"]) == len(each["tokens"]) + (each["finish"] == "end")
            assert each["logprob"] == pytest.approx(sum(each["logprobs"]), abs=1e-5)
            assert each["score"] == pytest.approx(each["logprob"] / len(each["logprobs"]), abs=1e-4)
    json.dumps(one)


def end_soon(predictor: LanguagePredictor, bonus: float) -> Any:
    """A filter that makes END come sooner or never."""

    def filter(scores: torch.Tensor, context: Any) -> torch.Tensor:
        scores[:, :, predictor.tokenizer.end] += bonus
        return scores

    return filter


@pytest.mark.parametrize("family", ["learned", "xl"])
def test_alternatives_are_the_likeliest_tokens(family, objectives):
    """Those of the model, before filters, whatever the requests beside it ask for."""
    predictor = objectives(family).predictor
    requests = [
        LanguageRequest("the cat", strategy=Greedy(), max_tokens=5, details=True, alternatives=3),
        LanguageRequest("a bird", strategy=Greedy(), max_tokens=5, details=True),
        LanguageRequest("a bird", strategy=Greedy(), max_tokens=5, details=True, alternatives=1),
    ]
    several, none, one = predictor.predict_requests(requests)
    assert none.alternatives == () and one.logprobs == pytest.approx(none.logprobs, abs=1e-5)
    same_rest = {"alternatives": (), "nbest": (), "logprobs": (), "logprob": 0.0, "score": 0.0}
    assert replace(one, **same_rest) == replace(none, **same_rest)
    assert [len(each) for each in one.alternatives] == [1] * len(one.logprobs)
    ids = predictor.encode_texts(["the cat"])[0] + predictor.encode_texts([several.text])[0]
    assert len(several.alternatives) == len(several.logprobs) == several.length
    first = predictor.model(inputs(torch.tensor([[predictor.start_token, *ids]])))[0]
    for place, likeliest in enumerate(several.alternatives[:2], len(predictor.encode_texts(["the cat"])[0])):
        best = first[place].log_softmax(-1).topk(3)
        assert [each.token for each in likeliest] == predictor.tokenizer.tokens(best.indices.tolist())
        assert [each.logprob for each in likeliest] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_wrong_request_does_not_affect_the_others(objectives):
    predictor = objectives("learned").predictor
    long = " ".join(marian.sentences(9, 5))
    prompts = ["the cat", long, "x"]
    found = predictor.predict_each([LanguageRequest(prompt, strategy=Greedy(), max_tokens=4) for prompt in prompts])
    texts = predictor.predict(["the cat", "x"], kind="greedy", max_tokens=4)
    assert [found[0].text, found[2].text] == texts and isinstance(found[1], UserError)
    (ids,) = predictor.encode_texts([long])
    known = [predictor.start_token, *ids, predictor.tokenizer.end]
    (record,) = predictor.score([long], details=True)
    assert predictor.logprobs([known, [1]]) == [pytest.approx(record["logprobs"], abs=1e-4), []]


def with_filter(predictor: LanguagePredictor, filter: Any) -> LanguagePredictor:
    """A predictor over the same weights with one more filter."""
    filters = (*predictor.filters, filter)
    return LanguagePredictor(predictor.run, predictor.model, predictor.tokenizer, predictor.device, filters)


def test_why_a_text_ends(objectives):
    predictor = objectives("learned").predictor
    prompt = "the cat sees"
    read = len(predictor.tokenizer.encode([prompt])[0]) + 1
    predictor = with_filter(predictor, end_soon(predictor, -1e9))
    found = predictor.predict(prompt, details=True, kind="greedy", max_tokens=3)
    assert found["finish"] == "length" and len(found["tokens"]) == 3
    with pytest.warns(UserWarning, match="the text ends at the model's context of 24 tokens"):
        found = predictor.predict(prompt, details=True, kind="greedy", max_tokens=90)
    assert found["finish"] == "context" and len(found["tokens"]) == 24 - read + 1
    with pytest.warns(UserWarning, match="the text ends at the model's context") as caught:
        list(predictor.stream(prompt, kind="greedy", max_tokens=90))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = predictor.predict(prompt, details=True, kind="greedy", max_tokens=24 - read + 1)
    assert found["finish"] == "length"
    text = predictor.predict(prompt, kind="greedy", max_tokens=12)
    string = text[5:8]
    found = predictor.predict(prompt, details=True, kind="greedy", max_tokens=12, stop=[string])
    assert found["finish"] == "stop" and found["text"] == text[: text.index(string)]
    assert len(found["tokens"]) < 12
    predictor = with_filter(predictor, end_soon(predictor, 2e9))
    found = predictor.predict(prompt, details=True, kind="greedy")
    assert (found["finish"], found["text"], len(found["logprobs"])) == ("end", "", 1)


def test_texts_longer_than_the_context(objectives):
    long = " ".join(marian.sentences(9, 5))
    predictor = objectives("learned").predictor
    count = len(predictor.tokenizer.encode([long])[0]) + 1
    sentence = f"the prompt has {count} tokens and the model's context is 24; shorten it, or train with a longer"
    with pytest.raises(UserError, match=sentence):
        predictor.predict(["x", long])
    with pytest.raises(UserError, match=sentence):
        next(predictor.stream(long))
    with pytest.raises(UserError, match="the text has"):
        predictor.look(long)
    (ids,) = predictor.tokenizer.encode([long])
    full = predictor.tokenizer.decode([ids[:23]])[0]
    assert len(predictor.tokenizer.encode([full])[0]) == 23
    with pytest.warns(UserWarning):
        assert len(predictor.predict(full, details=True, kind="sample")["tokens"]) <= 1
    for family in ("rotary", "lm", "xl"):  # unlimited context
        found = objectives(family).predictor.predict([long, "x"], details=True, kind="sample", max_tokens=60)
        assert all(each["finish"] in ("end", "length") for each in found)


def test_add_start(objectives):
    predictor = objectives("rotary").predictor
    started, inner = (
        predictor.predict("the cat", details=True, kind="greedy", add_start=begin) for begin in (True, False)
    )
    assert started["prompt_tokens"] == ["<s>", *inner["prompt_tokens"]] and started["text"] != inner["text"]
    empty = [predictor.predict("", details=True, kind="greedy", add_start=begin) for begin in (True, False)]
    assert empty[0] == empty[1] and empty[0]["prompt_tokens"] == ["<s>"]


# --- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_score_is_the_log_probability_of_a_text(family, objectives):
    predictor = objectives(family).predictor
    texts = ["the cat sees.", "", "x", "a bird", "the old dog likes"]
    records = predictor.score(texts, details=True)
    for text, record in zip(texts, records, strict=True):
        ids = predictor.tokenizer.encode([text])[0]
        tokens = torch.tensor([[predictor.tokenizer.start, *ids, predictor.tokenizer.end]])
        with torch.no_grad():
            logits = predictor.model(inputs(tokens[:, :-1]))
        logprobs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[0, :, 0]
        assert record["logprobs"] == pytest.approx(logprobs.tolist(), abs=1e-4)
        assert record["tokens"] == [*predictor.tokenizer.tokens(ids), "■"]
        assert record["score"] == pytest.approx(float(logprobs.sum()), abs=1e-3)
    assert predictor.score(texts) == pytest.approx([record["score"] for record in records])
    assert predictor.score(texts[0]) == pytest.approx(records[0]["score"], abs=1e-5)


def test_probabilities_of_all_texts_add_up(objectives):
    """The probabilities of all continuations of START add up to one."""
    predictor = objectives("learned").predictor
    singles = [predictor.tokenizer.decode([[i]])[0] for i in range(4, 300)]
    heads = [record["logprobs"][0] for record in predictor.score(singles, details=True)]
    known = {i for i, text in enumerate(singles) if predictor.tokenizer.encode([text])[0] == [i + 4]}
    total = sum(math.exp(heads[i]) for i in known) + math.exp(predictor.score(""))
    assert 0.5 < total < 1 + 1e-5  # single bytes that are no text are missing


def test_spans_cover_a_text_once():
    for length in (1, 7, 8, 9, 50):
        for context in (None, 1, 2, 8, 100):
            found = list(spans(length, context))
            assert [i for span in found for i in range(span.new, span.last)] == list(range(length))
            assert all(span.last - span.first <= (context or length) for span in found)
            assert all(span.new - span.first == (context or 0) // 2 for span in found[1:])


def test_long_texts_are_scored_in_windows(objectives):
    predictor = objectives("learned").predictor
    long = " ".join(marian.sentences(9, 5))
    (record,) = predictor.score([long], details=True)
    ids = [predictor.tokenizer.start, *predictor.tokenizer.encode([long])[0], predictor.tokenizer.end]
    assert len(record["logprobs"]) == len(ids) - 1 > 60
    for place in (3, 23, 24, 35, 36, 50):  # the first window has 24 tokens, each later one 12 new ones
        first = 0 if place < 24 else 12 * (place // 12) - 12
        scores = predictor.model(inputs(torch.tensor([ids[first : place + 1]])))[0, -1].log_softmax(-1)
        assert record["logprobs"][place] == pytest.approx(float(scores[ids[place + 1]]), abs=1e-4)
    assert math.isfinite(objectives("xl").predictor.score(long))


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_over_documents_equal_their_scores(objectives, files):
    """With texts that fit into one window, nothing is cut and segments stay separate."""
    predictor = objectives("rotary", data__max_tokens=200, data__document="line").predictor
    lines = (files / "test.txt").read_text().splitlines()
    metrics = predictor.evaluate((((f"{files}/test.txt"),),))
    total = sum(predictor.score(lines))
    size = len("".join(lines))
    assert metrics["tokens"] == sum(map(len, predictor.tokenizer.encode(lines))) + len(lines)
    run = change_settings(predictor.run, {"data.max_tokens": 10**5})
    whole = LanguagePredictor(run, predictor.model, predictor.tokenizer, predictor.device).evaluate(
        ((f"{files}/test.txt",),)
    )
    assert whole["loss"] * whole["tokens"] == pytest.approx(-total, rel=1e-5)
    assert whole["bits_per_byte"] == pytest.approx(-total / math.log(2) / size, rel=1e-5) and whole["bytes"] == size
    assert whole["perplexity"] == pytest.approx(math.exp(whole["loss"]))
    assert metrics["policy"] == "non-overlapping 200" and "word_perplexity" not in metrics


def texts(objective: LanguageJob, name: str = "valid", **changes: Any) -> Corpus:
    run = objective.run.model_copy(update={"data": objective.run.data.model_copy(update=changes)})
    return data_split(run, name, objective.predictor.tokenizer, None)


def test_word_perplexity_counts_the_words_of_the_stream(objectives, files):
    objective = objectives("rotary", data__document="stream", tokenizer__kind="space", tokenizer__vocab=30)
    lines = (files / "valid.txt").read_text().splitlines()
    metrics = lm_metrics(
        corpus_nll(objective.model, objective.splits["valid"], objective.run.data, 30, torch.device("cpu")),
        texts(objective),
    )
    words = sum(len(line.split()) + 1 for line in lines)
    assert metrics["word_perplexity"] == pytest.approx(
        metrics["perplexity"], rel=1e-6
    )  # every word is one token, and so is <eos>
    one = objective.predictor.score("the cat", details=True)["logprobs"][0]  # as in the stream, after the end of a line
    with torch.no_grad():
        scores = objective.model(inputs(torch.tensor([[objective.predictor.tokenizer.end]])))[0, 0].log_softmax(-1)
    assert one == pytest.approx(float(scores[objective.predictor.tokenizer.encode(["the"])[0][0]]), abs=1e-5)
    objective = objectives("rotary", data__document="stream")
    found = corpus_nll(objective.model, objective.splits["valid"], objective.run.data, 300, torch.device("cpu"))
    own = lm_metrics(found, objective.splits["valid"])
    assert own["word_perplexity"] == pytest.approx(math.exp(found.nats / words)) and found.tokens > words


@pytest.mark.parametrize("stride", [5, 23, 24])
def test_overlapping_windows(stride, objectives):
    """Every token counts once: all of the first window, and the last `stride` tokens of each later one."""
    objective = objectives("learned")
    corpus, data = objective.splits["valid"], objective.run.data.model_copy(update={"stride": stride})
    found = corpus_nll(objective.model, corpus, data, 300, torch.device("cpu"))
    ids = torch.tensor([corpus.start, *corpus.ids.tolist()])
    total, done, begin = 0.0, 0, 0
    while done < len(corpus):
        end = min(begin + 24, len(corpus))
        with torch.no_grad():
            scores = objective.model(inputs(ids[None, begin:end]))[0].log_softmax(-1)
        total -= float(scores.gather(1, ids[begin + 1 : end + 1, None])[done - begin :].sum())
        done, begin = end, begin + stride
    assert found.nats == pytest.approx(total, rel=1e-5) and found.tokens == len(corpus) > 500
    assert found.policy == (f"stride {stride} of 24" if stride < 24 else "non-overlapping 24")


def test_validation_equals_evaluation(objectives, files):
    for family in FAMILIES:
        objective = objectives(family)
        valid = objective.validate()
        metrics = objective.predictor.evaluate(((f"{files}/valid.txt",),))
        assert {name: metrics[name] for name in valid} == pytest.approx(valid, rel=1e-6)
        assert metrics["policy"] == ("memory 20, segments of 24" if family == "xl" else "non-overlapping 24")


def test_memory_is_used_unless_a_stride_is_set(objectives):
    objective = objectives("xl")
    corpus, data = objective.splits["valid"], objective.run.data
    whole = corpus_nll(objective.model, corpus, data.model_copy(update={"max_tokens": 10**6}), 300, torch.device("cpu"))
    parts = corpus_nll(objective.model, corpus, data, 300, torch.device("cpu"))
    strided = corpus_nll(objective.model, corpus, data.model_copy(update={"stride": 24}), 300, torch.device("cpu"))
    assert strided.policy == "non-overlapping 24" and strided.tokens == parts.tokens == whole.tokens
    rows = list(evaluation_windows(corpus, 24, 0, 1))
    naive = sum(
        float(smoothed_cross_entropy(objective.model(row["text"]), row["labels"].values, row["labels"].valid))
        for row in rows
    )
    assert strided.nats == pytest.approx(naive, rel=1e-5) and abs(parts.nats - strided.nats) > 1e-2


# --- objectives ---------------------------------------------------------------------------------------------------------


def gradients(objective: LanguageJob) -> tuple[float, dict[str, torch.Tensor]]:
    """Of the first two steps together."""
    total, steps = 0.0, objective.steps(0, 0)
    objective.model.zero_grad()
    for _ in range(2):
        step = next(steps)
        for piece in step.micro_batches:
            loss = batch_loss(objective, piece) / step.count
            loss.backward()
            total += loss.item()
    return total, {name: each.grad.clone() for name, each in objective.model.named_parameters()}


@pytest.mark.parametrize("family", ["learned", "xl"])
def test_accumulation_keeps_the_gradients(family, objectives):
    """Also with memory, which every micro-batch has for its own rows."""
    one, several = objectives(family), objectives(family, train__accumulate=3)
    several.model.load_state_dict(one.model.state_dict())
    (loss, whole), (other, parts) = gradients(one), gradients(several)
    assert loss == pytest.approx(other, rel=1e-6)
    largest = max(each.abs().max() for each in whole.values())
    for name, each in whole.items():
        scale = largest if name.endswith("key.bias") else each.norm()
        assert (each - parts[name]).norm() <= 2e-5 * scale, name


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_is_cross_entropy(smoothing, objectives, files):
    objective = objectives("learned", train__objective__smoothing=smoothing, data__train=f"{files}/train.jsonl")
    step = next(objective.steps(0, 0))
    (batch,) = step.micro_batches
    text, labels, total = batch["text"], batch["labels"].values, 0.0
    assert text.segments is not None and step.count == text.values.numel()
    for row in range(len(text)):  # every document separately
        for number in text.segments[row].unique():
            own = text.segments[row] == number
            logits = objective.model(inputs(text.values[row][own][None]))[0]
            total += float(F.cross_entropy(logits, labels[row][own], label_smoothing=smoothing, reduction="sum"))
    assert float(batch_loss(objective, batch)) == pytest.approx(total, rel=1e-5)


def test_memory_carries_over_between_steps(objectives):
    """Steps with memory predict as one long step would, and validation has a separate memory."""
    objective = objectives("xl", model__memory=60, data__max_tokens=20)
    with torch.no_grad():
        steps = objective.steps(0, 0)
        batches = [next(steps).micro_batches[0] for _ in range(3)]
        losses = [
            float(batch_loss(objective, batches[0])),
            float(batch_loss(objective, batches[1])),
        ]
        objective.validate()
        losses.append(float(batch_loss(objective, batches[2])))
        tokens, targets = (torch.cat([each[name].values for each in batches], 1) for name in ("text", "labels"))
        scores = objective.model(inputs(tokens)).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    assert losses == pytest.approx([-float(each.sum()) for each in scores.split(20, 1)], rel=1e-5)


def test_no_validation_without_valid_data(files, cache):
    run = resolve_run("language", {**SMALL, "data.train": f"{files}/train.txt", "data.cache": cache}).run
    objective = prepare(run, {}, torch.device("cpu"))
    assert objective.validate() == {} and list(objective.splits) == ["train"]
    assert any("train.txt" in fact for fact in objective.describe_data())


@pytest.mark.parametrize("family", ["learned", "xl"])
def test_resuming_is_bit_exact(family, files, cache, tmp_path, monkeypatch):
    """Also the memory of a model, with micro-batches, in the middle of an epoch and at its end."""
    monkeypatch.setattr("regard.training.curves.draw", lambda folder: None)
    changes = {
        **SMALL, **FAMILIES[family], "model.dropout": 0.1, "data.train": f"{files}/train.txt", "data.cache": cache,
        "data.valid": f"{files}/valid.txt", "train.steps": 40, "train.save_every": 3, "train.eval_every": 5, "train.accumulate": 2,
        "train.keep": 50, "data.max_tokens": 24, "train.batch": 12,
    }  # fmt: skip
    regard.train("language", changes, out=tmp_path / "whole")

    class Stop(Exception):
        pass

    original = LanguageObjective.forward
    for life, at in enumerate((7, 5, 14)):
        calls = [0]

        def breaking(self: LanguageObjective, batch: Any, calls: Any = calls, at: int = at) -> Any:
            calls[0] += 1
            if calls[0] > 2 * at:
                raise Stop
            return original(self, batch)

        with monkeypatch.context() as patch:
            patch.setattr(LanguageObjective, "forward", breaking)
            with pytest.raises(Stop):
                regard.train("language", changes, out=tmp_path / "broken", resume=life > 0)
    regard.train("language", changes, out=tmp_path / "broken", resume=True)
    names = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.safetensors")]
    assert len(names) > 20 and ((Path("checkpoints/step-6/task.safetensors") in names) == (family == "xl"))
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes(), name
    epochs = {json.loads(path.read_text())["epoch"] for path in (tmp_path / "whole").glob("checkpoints/*/state.json")}
    assert len(epochs) > 1


def test_restored_memories(objectives):
    """A process without a micro-batch saves none; other rows than those of the checkpoint are refused."""
    objective, batch = objectives("xl").objective, next(objectives("xl").steps(0, 0)).micro_batches[0]
    objective.load_state({})
    with torch.no_grad():
        objective(objective.bind(batch))
    saved = objective.state()
    objective.load_state(saved)
    assert objective.state().keys() == saved.keys()
    objective.bind(replace(batch, number=1, counted=False))
    assert objective.state() == {}
    objective.load_state(saved)
    half = {name: replace(each, values=each.values[:8]) for name, each in batch.inputs.items()}
    with pytest.raises(
        UserError, match=r"micro-batch 1 of a step has 8 rows, and 16 have a memory .* train.accumulate"
    ):
        objective.bind(replace(batch, inputs=half))
    objective.load_state({})


def test_memory_after_a_failed_compilation(files, cache, tmp_path, monkeypatch):
    changes = {
        **SMALL, **FAMILIES["xl"], "data.train": f"{files}/train.txt", "data.cache": cache, "train.steps": 5, "train.accumulate": 2,
    }  # fmt: skip
    regard.train("language", changes, out=tmp_path / "plain")
    calls: list[int] = []

    def failing(loss: Any, **settings: Any) -> Any:
        def compiled(*given: Any) -> Any:
            calls.append(1)
            found = loss(*given)
            if len(calls) == at:
                raise RuntimeError("no luck")
            return found

        return compiled

    monkeypatch.setattr(torch, "compile", failing)
    for at in (1, 6):
        calls.clear()
        regard.train("language", {**changes, "train.compile": True}, out=tmp_path / f"compiled{at}")
        assert len(calls) == at
        for name in ("model", "task"):
            one, other = (
                tmp_path / run / f"checkpoints/step-5/{name}.safetensors" for run in ("plain", f"compiled{at}")
            )
            assert one.read_bytes() == other.read_bytes()


# --- against other implementations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [1.0, 1.7])
def test_greedy_equals_transformers(penalty, tmp_path):
    path, theirs = causal.gpt2(tmp_path / "gpt2")
    predictor = regard.load(path, {"decode.kind": "greedy", "device": "cpu"})
    prompts = ["the old cat", "a bird never likes the red house, and today", "x", "the dog the dog the dog", ""]
    ids = [row or [predictor.tokenizer.start] for row in predictor.tokenizer.encode(prompts)]
    tokens, real = causal.ragged(ids, left=True)
    outputs = theirs.generate(
        tokens, attention_mask=real.long(), do_sample=False, max_new_tokens=15, pad_token_id=0, eos_token_id=0,
        repetition_penalty=penalty,
    )[:, tokens.size(1) :].tolist()  # fmt: skip
    wanted = [row[: row.index(0)] if 0 in row else row for row in outputs]
    found = predictor.predict(prompts, details=True, max_tokens=15, repetition_penalty=penalty)
    texts = zip(predictor.tokenizer.decode(wanted), wanted, strict=True)  # a character that the limit cut is left out
    assert [each["text"] for each in found] == [
        without_incomplete(text, predictor.tokenizer, row) for text, row in texts
    ]
    assert [each["tokens"] for each in found] == [predictor.tokenizer.tokens(row) for row in wanted]
    assert found[0]["prompt_tokens"] == predictor.tokenizer.tokens(ids[0])  # GPT-2 has no START before a prompt
    if penalty == 1:
        whole = torch.tensor([[predictor.tokenizer.start, *ids[1], predictor.tokenizer.end]])
        mean = theirs(whole, labels=whole).loss.item()
        assert predictor.score(prompts[1]) == pytest.approx(-mean * (whole.size(1) - 1), rel=1e-5)


def test_ensemble_is_the_mean_of_probabilities(objectives, files):
    one, other = objectives("learned").predictor, objectives("lm").predictor
    predictor = LanguagePredictor.ensemble({"a": one, "b": other})
    assert predictor.context == 24
    text = "the cat sees the bird."
    wanted = [
        math.log((math.exp(a) + math.exp(b)) / 2)
        for a, b in zip(*(each.score(text, details=True)["logprobs"] for each in (one, other)), strict=True)
    ]
    assert predictor.score(text, details=True)["logprobs"] == pytest.approx(wanted, abs=1e-4)
    prompts = ["the cat", "", "a bird likes the"]
    assert LanguagePredictor.ensemble({"a": one, "c": one}).predict(
        prompts, kind="greedy", max_tokens=9
    ) == one.predict(prompts, kind="greedy", max_tokens=9)
    metrics = [each.evaluate(((f"{files}/test.txt",),))["loss"] for each in (one, other, predictor)]
    assert metrics[2] < max(metrics)
    with pytest.raises(UserError, match="a and b have different vocabularies"):
        LanguagePredictor.ensemble(
            {
                "a": one,
                "b": objectives(
                    "rotary", data__document="stream", tokenizer__kind="space", tokenizer__vocab=30
                ).predictor,
            }
        )


def test_look_is_causal(objectives, tmp_path):
    for family in FAMILIES:
        view = objectives(family).predictor.look("the cat", " sees")
        assert view.tokens[0] == "□" and "".join(view.tokens[1:]).replace("▁", " ") == "the cat sees"
        weights = torch.from_numpy(view.weights())
        assert weights.shape == (len(view.tokens), len(view.tokens))
        assert torch.allclose(weights.sum(1), torch.ones(len(weights)), atol=1e-5)
        assert weights.triu(1).abs().max() < 1e-6
    view.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="no attention to show"):
        objectives("lm").predictor.look(" ")
