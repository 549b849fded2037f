"""The task language: a text's continuation and score are its own, figures are what they say, a run goes on bit by bit."""

import json
import math
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import causal, marian
from torch.nn import functional as F

import regard
from regard.config.run import change_settings, resolve
from regard.data.corpus import Corpus, evaluation_windows
from regard.errors import UserError
from regard.tasks.language import LanguageObjective, LanguagePredictor, part, prepare
from regard.tasks.lm_scoring import corpus_nll, lm_metrics, spans

SMALL: dict[str, Any] = {
    "model.size": "tiny", "model.width": 32, "model.heads": 2, "model.layers": 2, "model.inner": 64, "model.dropout": 0.0, "device": "cpu",
    "tokenizer.vocab": 300, "data.max_tokens": 24, "train.batch": 16, "train.tensorboard": False, "train.smoothing": 0.0, "decode.add_start": True,
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
    """Sentences: many to learn from, as one text each (.txt), as documents (.jsonl) and as lines."""
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
def lessons(files, cache):
    """Lessons by family and settings, made once. Their models have learnt a little."""
    made: dict[Any, LanguageObjective] = {}

    def lesson(family: str = "learned", **changes: Any) -> LanguageObjective:
        key = family, tuple(sorted(changes.items()))
        if key not in made:
            own = {name.replace("__", "."): value for name, value in changes.items()}
            data = {"data.train": f"{files}/train.txt", "data.valid": f"{files}/valid.txt", "data.cache": cache}
            run = resolve("language", {**data, **SMALL, **FAMILIES[family], **own}).run
            made[key] = prepare(run, None, torch.device("cpu"))[0]
            teach(made[key])
        return made[key]

    return lesson


def teach(lesson: LanguageObjective, epochs: int = 6) -> None:
    """So that what is written are words, and depends on what was read."""
    optimizer = torch.optim.Adam(lesson.model.parameters(), 5e-3)
    for update in chain(*(lesson.steps(100 + epoch, 0) for epoch in range(epochs))):
        for piece in update.micro_batches:
            (lesson.loss(lesson.model, piece) / update.count).backward()
        optimizer.step()
        optimizer.zero_grad()


PROMPTS = ["the cat", "", "a bird sees the old tree.", "x", "the dog and the red house", "ü"]
HOW: dict[str, dict[str, Any]] = {
    "greedy": {"kind": "greedy"},
    "beam": {"kind": "beam", "beam": 3},
    "sample": {"kind": "sample", "temperature": 0.9, "top_p": 0.9},
    "penalty": {"kind": "sample", "top_k": 30, "min_p": 0.02, "repetition_penalty": 1.4, "nbest": 3},
}


# --- continuations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_continuation_is_its_own(family, how, lessons):
    """Alone, in batches of any size, shuffled, with prompts of other lengths: the same texts."""
    writer = lessons(family).writer
    asked = {"max_tokens": 11, **HOW[how]}
    whole = writer.predict(PROMPTS, **asked)
    assert whole == [writer.predict(prompt, **asked) for prompt in PROMPTS]
    assert whole == writer.predict(PROMPTS, batch=2, **asked)
    assert whole[::-1] == writer.predict(PROMPTS[::-1], batch=4, **asked)
    texts = [text for each in whole for text in (each if isinstance(each, list) else [each])]
    assert len(set(texts)) > 1 and all(isinstance(text, str) for text in texts)


@pytest.mark.parametrize("how", ["greedy", "beam", "sample"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_stream_gives_the_same_text_in_pieces(family, how, lessons):
    writer = lessons(family).writer
    for prompt in PROMPTS[:4:2] + PROMPTS[5:]:
        for until in ((), ("e", "zz"), ("the",)):
            asked = {"max_tokens": 14, "stop": until, **HOW[how]}
            pieces = list(writer.stream(prompt, **asked))
            assert "".join(pieces) == writer.predict(prompt, **asked)
            assert all(pieces) and (how != "beam" or len(pieces) <= 1)
    many = list(writer.stream("the cat", max_tokens=14, kind="greedy"))
    assert len(many) > 1
    with pytest.raises(UserError, match=r"decode.nbest is 2 and a stream is of one text"):
        writer.stream("x", kind="sample", nbest=2)


def test_greedy_says_the_likeliest_token_each_time(lessons):
    writer = lessons("rotary").writer
    record = writer.predict("the cat", details=True, kind="greedy", max_tokens=30)
    (ids,) = writer.tokenizer.encode(["the cat"])
    ids = [writer.tokenizer.start, *ids]
    said = []
    for _ in range(30):
        scores = writer.model(torch.tensor([ids + said]))[0, -1]
        scores[[writer.tokenizer.pad, writer.tokenizer.start]] = -torch.inf
        said.append(int(scores.argmax()))
        if said[-1] == writer.tokenizer.end:
            break
    assert record["pieces"] == writer.tokenizer.pieces([each for each in said if each != writer.tokenizer.end])


def test_samples_come_from_seed_and_prompt(lessons):
    writer = lessons("rotary").writer
    many = writer.predict("the cat", kind="sample", nbest=4, max_tokens=12)
    assert len(set(many)) > 1 and many[0] == writer.predict("the cat", kind="sample", max_tokens=12)
    assert many == writer.predict("the cat", kind="sample", nbest=4, max_tokens=12)
    assert many != writer.predict("the cat", kind="sample", nbest=4, max_tokens=12, seed=2)
    cold = writer.predict("the cat", kind="sample", temperature=1e-4, max_tokens=12)
    assert cold == writer.predict("the cat", kind="greedy", max_tokens=12)
    assert cold == writer.predict("the cat", kind="greedy", temperature=0.5, top_k=3, max_tokens=12)  # passed over


def test_control_is_never_said_but_for_the_end(lessons):
    found = lessons("rotary").writer.predict(
        "x", details=True, kind="sample", temperature=50.0, nbest=50, max_tokens=40
    )
    said = [piece for each in found["nbest"] for piece in each["pieces"]]
    assert len(said) > 1000 and not {"<pad>", "<s>"} & set(said)
    assert any(each["ended"] == "end" for each in found["nbest"])


def test_a_penalty_avoids_what_was_said(lessons):
    writer = lessons("rotary").writer
    plain, careful = (
        writer.predict("the cat the cat", details=True, kind="greedy", max_tokens=20, repetition_penalty=penalty)
        for penalty in (1.0, 50.0)
    )
    known = set(careful["prompt_pieces"])
    assert not known & set(careful["pieces"]) and len(set(careful["pieces"])) == len(careful["pieces"])
    assert plain["pieces"] != careful["pieces"]


def test_details_tell_all(lessons):
    writer = lessons("learned").writer
    one = writer.predict(["the cat", ""], details=True, kind="sample", nbest=2, max_tokens=5)
    for record, prompt in zip(one, ["the cat", ""], strict=True):
        assert [record[key] for key in ("text", "ended", "logprob")] == [
            record["nbest"][0][key] for key in ("text", "ended", "logprob")
        ]
        for each in record["nbest"]:
            ids = writer.tokenizer.encode([prompt])[0]
            assert each["prompt_pieces"] == ["<s>", *writer.tokenizer.pieces(ids)]
            assert len(each["logprobs"]) == len(each["pieces"]) + (each["ended"] == "end")
            assert each["logprob"] == pytest.approx(sum(each["logprobs"]), abs=1e-5)
            assert each["score"] == pytest.approx(each["logprob"] / len(each["logprobs"]), abs=1e-4)
    json.dumps(one)


def end_soon(writer: LanguagePredictor, bonus: float) -> Any:
    """A filter under which END comes sooner or never."""

    def filter(scores: torch.Tensor, moment: Any) -> torch.Tensor:
        scores[:, :, writer.tokenizer.end] += bonus
        return scores

    return filter


def test_how_a_text_ends(lessons, monkeypatch):
    writer = lessons("learned").writer
    prompt = "the cat sees"
    read = len(writer.tokenizer.encode([prompt])[0]) + 1
    monkeypatch.setattr(writer, "filters", (*writer.filters, end_soon(writer, -1e9)))
    found = writer.predict(prompt, details=True, kind="greedy", max_tokens=3)
    assert found["ended"] == "max" and len(found["pieces"]) == 3
    with pytest.warns(UserWarning, match="the text ends where the model's context of 24 tokens does"):
        found = writer.predict(prompt, details=True, kind="greedy", max_tokens=90)
    assert found["ended"] == "context" and len(found["pieces"]) == 24 - read + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = writer.predict(prompt, details=True, kind="greedy", max_tokens=24 - read + 1)
    assert found["ended"] == "max"
    text = writer.predict(prompt, kind="greedy", max_tokens=12)
    string = text[5:8]
    found = writer.predict(prompt, details=True, kind="greedy", max_tokens=12, stop=[string])
    assert found["ended"] == "stop" and found["text"] == text[: text.index(string)]
    assert len(found["pieces"]) < 12
    monkeypatch.setattr(writer, "filters", (*writer.filters, end_soon(writer, 2e9)))
    found = writer.predict(prompt, details=True, kind="greedy")
    assert (found["ended"], found["text"], len(found["logprobs"])) == ("end", "", 1)


def test_what_is_longer_than_the_context(lessons):
    long = " ".join(marian.sentences(9, 5))
    writer = lessons("learned").writer
    count = len(writer.tokenizer.encode([long])[0]) + 1
    sentence = f"prompt 2 has {count} tokens and the model's context is 24; shorten it, or train with a longer"
    with pytest.raises(UserError, match=sentence):
        writer.predict(["x", long])
    with pytest.raises(UserError, match="prompt 1 has"):
        writer.stream(long)
    with pytest.raises(UserError, match="the text has"):
        writer.look(long)
    (ids,) = writer.tokenizer.encode([long])
    full = writer.tokenizer.decode([ids[:23]])[0]
    assert len(writer.tokenizer.encode([full])[0]) == 23
    with pytest.warns(UserWarning):
        assert len(writer.predict(full, details=True, kind="sample")["pieces"]) <= 1
    for family in ("rotary", "lm", "xl"):  # no end
        found = lessons(family).writer.predict([long, "x"], details=True, kind="sample", max_tokens=60)
        assert all(each["ended"] in ("end", "max") for each in found)


def test_a_prompt_begins_a_text_or_comes_from_its_middle(lessons):
    writer = lessons("rotary").writer
    begun, inner = (writer.predict("the cat", details=True, kind="greedy", add_start=begin) for begin in (True, False))
    assert begun["prompt_pieces"] == ["<s>", *inner["prompt_pieces"]] and begun["text"] != inner["text"]
    empty = [writer.predict("", details=True, kind="greedy", add_start=begin) for begin in (True, False)]
    assert empty[0] == empty[1] and empty[0]["prompt_pieces"] == ["<s>"]


# --- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_score_is_the_probability_of_a_text(family, lessons):
    writer = lessons(family).writer
    texts = ["the cat sees.", "", "x", "a bird", "the old dog likes"]
    records = writer.score(texts, details=True)
    for text, record in zip(texts, records, strict=True):
        ids = writer.tokenizer.encode([text])[0]
        tokens = torch.tensor([[writer.tokenizer.start, *ids, writer.tokenizer.end]])
        with torch.no_grad():
            logits = writer.model(tokens[:, :-1])
        logprobs = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[0, :, 0]
        assert record["logprobs"] == pytest.approx(logprobs.tolist(), abs=1e-4)
        assert record["pieces"] == [*writer.tokenizer.pieces(ids), "■"]
        assert record["score"] == pytest.approx(float(logprobs.sum()), abs=1e-3)
    assert writer.score(texts) == pytest.approx([record["score"] for record in records])
    assert writer.score(texts[0]) == pytest.approx(records[0]["score"], abs=1e-5)


def test_all_texts_together_are_certain(lessons):
    """Over everything that can stand behind START, probabilities add up to one."""
    writer = lessons("learned").writer
    singles = [writer.tokenizer.decode([[i]])[0] for i in range(4, 300)]
    heads = [record["logprobs"][0] for record in writer.score(singles, details=True)]
    known = {i for i, text in enumerate(singles) if writer.tokenizer.encode([text])[0] == [i + 4]}
    total = sum(math.exp(heads[i]) for i in known) + math.exp(writer.score(""))
    assert 0.5 < total < 1 + 1e-5  # bytes that are no text by themselves are not among them


def test_spans_cover_a_text_once():
    for length in (1, 7, 8, 9, 50):
        for context in (None, 1, 2, 8, 100):
            found = list(spans(0, length, context))
            assert [i for span in found for i in range(span.new, span.last)] == list(range(length))
            assert all(span.last - span.first <= (context or length) for span in found)
            assert all(span.new - span.first == (context or 0) // 2 for span in found[1:])


def test_a_long_text_is_scored_in_windows(lessons):
    writer = lessons("learned").writer
    long = " ".join(marian.sentences(9, 5))
    (record,) = writer.score([long], details=True)
    ids = [writer.tokenizer.start, *writer.tokenizer.encode([long])[0], writer.tokenizer.end]
    assert len(record["logprobs"]) == len(ids) - 1 > 60
    for place in (3, 23, 24, 35, 36, 50):  # the first window has 24, each later one 12 that are new
        first = 0 if place < 24 else 12 * (place // 12) - 12
        scores = writer.model(torch.tensor([ids[first : place + 1]]))[0, -1].log_softmax(-1)
        assert record["logprobs"][place] == pytest.approx(float(scores[ids[place + 1]]), abs=1e-4)
    assert math.isfinite(lessons("xl").writer.score(long))


# --- figures ---------------------------------------------------------------------------------------------------------


def test_figures_over_documents_are_those_of_their_scores(lessons, files):
    """Texts that fit into one window: nothing is cut, and none sees another."""
    writer = lessons("rotary", data__max_tokens=200, data__document="line").writer
    lines = (files / "test.txt").read_text().splitlines()
    told = writer.evaluate((((f"{files}/test.txt"),),))
    total = sum(writer.score(lines))
    size = len("".join(lines))
    assert told["tokens"] == sum(map(len, writer.tokenizer.encode(lines))) + len(lines)
    run = change_settings(writer.run, {"data.max_tokens": 10**5})
    whole = LanguagePredictor(run, writer.model, writer.tokenizer, writer.device).evaluate(((f"{files}/test.txt",),))
    assert whole["loss"] * whole["tokens"] == pytest.approx(-total, rel=1e-5)
    assert whole["bits_per_byte"] == pytest.approx(-total / math.log(2) / size, rel=1e-5) and whole["bytes"] == size
    assert whole["perplexity"] == pytest.approx(math.exp(whole["loss"]))
    assert told["policy"] == "non-overlapping 200" and "word_perplexity" not in told


def texts(lesson: LanguageObjective, name: str = "valid", **changes: Any) -> Corpus:
    run = lesson.run.model_copy(update={"data": lesson.run.data.model_copy(update=changes)})
    return part(run, name, lesson.writer.tokenizer, None)


def test_words_of_a_stream_are_counted_as_distributed(lessons, files):
    lesson = lessons("rotary", data__document="stream", tokenizer__kind="space", tokenizer__vocab=30)
    lines = (files / "valid.txt").read_text().splitlines()
    told = lm_metrics(
        corpus_nll(lesson.model, lesson.parts["valid"], lesson.run.data, 30, torch.device("cpu")), texts(lesson)
    )
    words = sum(len(line.split()) + 1 for line in lines)
    assert told["word_perplexity"] == pytest.approx(
        told["perplexity"], rel=1e-6
    )  # every word is one token, so is <eos>
    one = lesson.writer.score("the cat", details=True)["logprobs"][0]  # as in the stream: behind the end of a line
    with torch.no_grad():
        scores = lesson.model(torch.tensor([[lesson.writer.tokenizer.end]]))[0, 0].log_softmax(-1)
    assert one == pytest.approx(float(scores[lesson.writer.tokenizer.encode(["the"])[0][0]]), abs=1e-5)
    pieces = lessons("rotary", data__document="stream")
    found = corpus_nll(pieces.model, pieces.parts["valid"], pieces.run.data, 300, torch.device("cpu"))
    own = lm_metrics(found, pieces.parts["valid"])
    assert own["word_perplexity"] == pytest.approx(math.exp(found.nats / words)) and found.tokens > words


@pytest.mark.parametrize("stride", [5, 23, 24])
def test_windows_that_overlap_see_more(stride, lessons):
    """Every token once: the first window whole, of each later one the last `stride` tokens."""
    lesson = lessons("learned")
    corpus, data = lesson.parts["valid"], lesson.run.data.model_copy(update={"stride": stride})
    found = corpus_nll(lesson.model, corpus, data, 300, torch.device("cpu"))
    ids = torch.tensor([corpus.start, *corpus.ids.tolist()])
    total, done, begin = 0.0, 0, 0
    while done < len(corpus):
        end = min(begin + 24, len(corpus))
        with torch.no_grad():
            scores = lesson.model(ids[None, begin:end])[0].log_softmax(-1)
        total -= float(scores.gather(1, ids[begin + 1 : end + 1, None])[done - begin :].sum())
        done, begin = end, begin + stride
    assert found.nats == pytest.approx(total, rel=1e-5) and found.tokens == len(corpus) > 500
    assert found.policy == (f"stride {stride} of 24" if stride < 24 else "non-overlapping 24")


def test_validation_is_evaluation(lessons, files):
    for family in FAMILIES:
        lesson = lessons(family)
        valid = lesson.validate(lesson.model)
        told = lesson.writer.evaluate(((f"{files}/valid.txt",),))
        assert {name: told[name] for name in valid} == pytest.approx(valid, rel=1e-6)
        assert told["policy"] == ("memory 20, segments of 24" if family == "xl" else "non-overlapping 24")


def test_memory_is_used_and_a_stride_does_without(lessons):
    lesson = lessons("xl")
    corpus, data = lesson.parts["valid"], lesson.run.data
    whole = corpus_nll(lesson.model, corpus, data.model_copy(update={"max_tokens": 10**6}), 300, torch.device("cpu"))
    parts = corpus_nll(lesson.model, corpus, data, 300, torch.device("cpu"))
    blind = corpus_nll(lesson.model, corpus, data.model_copy(update={"stride": 24}), 300, torch.device("cpu"))
    assert blind.policy == "non-overlapping 24" and blind.tokens == parts.tokens == whole.tokens
    rows = list(evaluation_windows(corpus, 24, 0, 1))
    naive = -sum(
        float(lesson.model(row.tokens).log_softmax(-1).gather(-1, row.targets[..., None])[..., 0][row.valid].sum())
        for row in rows
    )
    assert blind.nats == pytest.approx(naive, rel=1e-5) and abs(parts.nats - blind.nats) > 1e-2


# --- lessons ---------------------------------------------------------------------------------------------------------


def gradients(lesson: LanguageObjective) -> tuple[float, dict[str, torch.Tensor]]:
    """Of the first two updates together."""
    total, updates = 0.0, lesson.steps(0, 0)
    lesson.model.zero_grad()
    for _ in range(2):
        update = next(updates)
        for piece in update.micro_batches:
            loss = lesson.loss(lesson.model, piece) / update.count
            loss.backward()
            total += loss.item()
    return total, {name: each.grad.clone() for name, each in lesson.model.named_parameters()}


@pytest.mark.parametrize("family", ["learned", "xl"])
def test_accumulation_gives_the_gradients_of_one_big_batch(family, lessons):
    """Also with memory, which every piece has of its own rows."""
    one, several = lessons(family), lessons(family, train__accumulate=3)
    several.model.load_state_dict(one.model.state_dict())
    (loss, whole), (other, parts) = gradients(one), gradients(several)
    assert loss == pytest.approx(other, rel=1e-6)
    largest = max(each.abs().max() for each in whole.values())
    for name, each in whole.items():
        scale = largest if name.endswith("key.bias") else each.norm()
        assert (each - parts[name]).norm() <= 2e-5 * scale, name


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_cross_entropy(smoothing, lessons, files):
    lesson = lessons("learned", train__smoothing=smoothing, data__train=f"{files}/train.jsonl")
    update = next(lesson.steps(0, 0))
    (turn,) = update.micro_batches
    batch, total = turn.batch, 0.0
    assert batch.segments is not None and update.count == batch.tokens.numel()
    for row in range(len(batch.tokens)):  # every document by itself
        for number in batch.segments[row].unique():
            own = batch.segments[row] == number
            logits = lesson.model(batch.tokens[row][own][None])[0]
            total += float(F.cross_entropy(logits, batch.targets[row][own], label_smoothing=smoothing, reduction="sum"))
    assert float(lesson.loss(lesson.model, turn)) == pytest.approx(total, rel=1e-5)


def test_memory_goes_on_from_update_to_update(lessons):
    """Two updates with memory predict as one long one would, and the memory of an evaluation is another."""
    lesson = lessons("xl", model__memory=60, data__max_tokens=20)
    with torch.no_grad():
        updates = lesson.steps(0, 0)
        turns = [next(updates).micro_batches[0] for _ in range(3)]
        losses = [float(lesson.loss(lesson.model, turns[0])), float(lesson.loss(lesson.model, turns[1]))]
        lesson.validate(lesson.model)
        losses.append(float(lesson.loss(lesson.model, turns[2])))
        tokens, targets = (
            torch.cat([getattr(turn.batch, name) for turn in turns], 1) for name in ("tokens", "targets")
        )
        scores = lesson.model(tokens).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    assert losses == pytest.approx([-float(each.sum()) for each in scores.split(20, 1)], rel=1e-5)


def test_without_valid_data_nothing_is_measured(files, cache):
    run = resolve("language", {**SMALL, "data.train": f"{files}/train.txt", "data.cache": cache}).run
    lesson = prepare(run, None, torch.device("cpu"))[0]
    assert lesson.validate(lesson.model) == {} and list(lesson.parts) == ["train"]
    assert any("train.txt" in fact for fact in lesson.describe_data())


@pytest.mark.parametrize("family", ["learned", "xl"])
def test_a_resumed_run_is_the_uninterrupted_one(family, files, cache, tmp_path, monkeypatch):
    """Bit for bit: also the memory of a model that has one, with pieces, in the middle of an epoch and at its end."""
    monkeypatch.setattr("regard.training.curves.draw", lambda folder: None)
    changes = {
        **SMALL, **FAMILIES[family], "model.dropout": 0.1, "data.train": f"{files}/train.txt", "data.cache": cache,
        "data.valid": f"{files}/valid.txt", "train.steps": 40, "train.save_every": 3, "train.eval_every": 5, "train.accumulate": 2,
        "train.keep": 50, "data.max_tokens": 24, "train.batch": 12,
    }  # fmt: skip
    regard.train("language", changes, out=tmp_path / "whole")

    class Stop(Exception):
        pass

    original = LanguageObjective.loss
    for life, at in enumerate((7, 5, 14)):
        calls = [0]

        def breaking(self: LanguageObjective, model: Any, turn: Any, calls: Any = calls, at: int = at) -> Any:
            calls[0] += 1
            if calls[0] > 2 * at:
                raise Stop
            return original(self, model, turn)

        with monkeypatch.context() as patch:
            patch.setattr(LanguageObjective, "loss", breaking)
            with pytest.raises(Stop):
                regard.train("language", changes, out=tmp_path / "broken", resume=life > 0)
    regard.train("language", changes, out=tmp_path / "broken", resume=True)
    names = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*.safetensors")]
    assert len(names) > 20 and ((Path("checkpoints/step-6/task.safetensors") in names) == (family == "xl"))
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes(), name
    epochs = {json.loads(path.read_text())["epoch"] for path in (tmp_path / "whole").glob("checkpoints/*/state.json")}
    assert len(epochs) > 1


def test_an_update_that_could_not_be_compiled_is_not_remembered_twice(files, cache, tmp_path, monkeypatch):
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


# --- beside others ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [1.0, 1.7])
def test_greedy_text_is_that_of_transformers(penalty, tmp_path):
    path, theirs = causal.gpt2(tmp_path / "gpt2")
    writer = regard.load(path, {"decode.kind": "greedy", "device": "cpu"})
    prompts = ["the old cat", "a bird never likes the red house, and today", "x", "the dog the dog the dog", ""]
    ids = [row or [writer.tokenizer.start] for row in writer.tokenizer.encode(prompts)]
    tokens, real = causal.ragged(ids, left=True)
    made = theirs.generate(
        tokens, attention_mask=real.long(), do_sample=False, max_new_tokens=15, pad_token_id=0, eos_token_id=0,
        repetition_penalty=penalty,
    )[:, tokens.size(1) :].tolist()  # fmt: skip
    wanted = [row[: row.index(0)] if 0 in row else row for row in made]
    found = writer.predict(prompts, details=True, max_tokens=15, repetition_penalty=penalty)
    assert [each["text"] for each in found] == writer.tokenizer.decode(wanted)
    assert [each["pieces"] for each in found] == [writer.tokenizer.pieces(row) for row in wanted]
    assert found[0]["prompt_pieces"] == writer.tokenizer.pieces(ids[0])  # no START: GPT-2 has none before a prompt
    if penalty == 1:
        whole = torch.tensor([[writer.tokenizer.start, *ids[1], writer.tokenizer.end]])
        mean = theirs(whole, labels=whole).loss.item()
        assert writer.score(prompts[1]) == pytest.approx(-mean * (whole.size(1) - 1), rel=1e-5)


def test_an_ensemble_is_the_mean_of_probabilities(lessons, files):
    one, other = lessons("learned").writer, lessons("lm").writer
    writer = LanguagePredictor.ensemble({"a": one, "b": other})
    assert writer.context == 24
    text = "the cat sees the bird."
    wanted = [
        math.log((math.exp(a) + math.exp(b)) / 2)
        for a, b in zip(*(each.score(text, details=True)["logprobs"] for each in (one, other)), strict=True)
    ]
    assert writer.score(text, details=True)["logprobs"] == pytest.approx(wanted, abs=1e-4)
    prompts = ["the cat", "", "a bird likes the"]
    assert LanguagePredictor.ensemble({"a": one, "c": one}).predict(
        prompts, kind="greedy", max_tokens=9
    ) == one.predict(prompts, kind="greedy", max_tokens=9)
    told = [each.evaluate(((f"{files}/test.txt",),))["loss"] for each in (one, other, writer)]
    assert told[2] < max(told)
    with pytest.raises(UserError, match="a and b have different vocabularies"):
        LanguagePredictor.ensemble(
            {
                "a": one,
                "b": lessons("rotary", data__document="stream", tokenizer__kind="space", tokenizer__vocab=30).writer,
            }
        )


def test_look_sees_the_past_alone(lessons, tmp_path):
    for family in FAMILIES:
        view = lessons(family).writer.look("the cat", " sees")
        assert view.tokens[0] == "□" and "".join(view.tokens[1:]).replace("▁", " ") == "the cat sees"
        weights = view.weights()
        assert weights.shape == (len(view.tokens), len(view.tokens))
        assert torch.allclose(weights.sum(1), torch.ones(len(weights)), atol=1e-5)
        assert weights.triu(1).abs().max() < 1e-6
    view.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="nothing to look at"):
        lessons("lm").writer.look(" ")
