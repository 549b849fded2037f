"""Masked words and next sentences: BERT's masking rule, the task, embeddings and similarity."""

import io
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import reads
from helpers.inputs import inputs
from helpers.losses import batch_loss

import regard
from regard.api import compare
from regard.cli import app as cli
from regard.config.data.texts import MaskData, TokenizerConfig
from regard.config.run import resolve
from regard.config.train import Train
from regard.data.datasets.collate import IGNORED
from regard.data.datasets.masking import IS_NEXT, NOT_NEXT, MaskedDataset, Masker, fit_lengths
from regard.data.loading.loader import Loader
from regard.data.rng import ExampleRng
from regard.data.source import InMemorySource
from regard.data.sources.lines import line_examples
from regard.errors import UserError
from regard.processors.text.tokenizers import MASK, train_tokenizer
from regard.tasks.masked import task as masked


@pytest.fixture(scope="module")
def run() -> Path:
    return reads.stored_run("masked", train__steps=300, train__eval_every=300)


@pytest.fixture(scope="module")
def predictor(run):
    return regard.load(run)


TEXTS = ["the cat sees some houses and finds a day", "a good cat", "some new words here are long enough to be cut"] * 40
BYTES = train_tokenizer(TokenizerConfig(kind="byte"), [], control=(MASK,))


def build_loader(texts=TEXTS, train=None, context=None, tokenizer=BYTES, **data) -> Loader:
    settings = MaskData(**data)
    dataset = MaskedDataset(
        InMemorySource("made", [(text,) for text in texts]),
        Masker(tokenizer, settings),
        settings,
        train or Train(tokens=600),
        context,
    )
    return Loader.of(dataset)


def draws(texts: int, epoch: int = 0) -> ExampleRng:
    return ExampleRng.of(1, epoch, np.arange(texts))


# --- the masking rule --------------------------------------------------------------------------------------------------------


def test_80_10_10_rule():
    masker = Masker(BYTES, MaskData(masked=0.2))
    ids = np.arange(4, 244, dtype=np.int32)
    fates = Counter()
    for epoch in range(100):
        shown, hidden = masker.mask_texts([(ids, np.arange(240))], draws(1, epoch))
        chosen = hidden != IGNORED
        assert chosen.sum() == 48 and (hidden[chosen] == ids[chosen]).all() and (shown[~chosen] == ids[~chosen]).all()
        fates["mask"] += int((shown[chosen] == BYTES.mask).sum())
        fates["same"] += int((shown[chosen] == ids[chosen]).sum())
        fates["other"] += int(((shown[chosen] != BYTES.mask) & (shown[chosen] != ids[chosen])).sum())
        assert shown.min() >= 4
    shares = {name: count / 4800 for name, count in fates.items()}
    assert shares["mask"] == pytest.approx(0.8, abs=0.02) and shares["same"] == pytest.approx(0.1, abs=0.015)
    assert shares["other"] == pytest.approx(0.1, abs=0.015)


def pieces(length: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(length, 9, np.int32), np.arange(length)


def test_masks_15_percent_and_at_least_one_token():
    masker = Masker(BYTES, MaskData())
    for length, wanted in ((1, 1), (3, 1), (10, 2), (100, 15)):
        assert (masker.mask_texts([pieces(length)], draws(1))[1] != IGNORED).sum() == wanted
    assert [len(each) for each in masker.mask_texts([pieces(0)], draws(1))] == [0, 0]
    _, hidden = masker.mask_texts([pieces(length) for length in (0, 1, 10, 0, 100, 3, 0)], draws(7))
    shares = [int((part != IGNORED).sum()) for part in np.split(hidden, [1, 11, 111])]
    assert shares == [1, 2, 15, 1]  # each text has its own share, whatever surrounds it


def test_positions_are_masked_uniformly():
    masker = Masker(BYTES, MaskData())
    _, hidden = masker.mask_texts([pieces(20)] * 2000, draws(2000))
    hits = (hidden.reshape(2000, 20) != IGNORED).sum(0)
    assert hits.min() > 240 and hits.max() < 360  # 300 on average


def test_whole_word_masking():
    masker = Masker(BYTES, MaskData(whole_words=True, masked=0.3))
    ((ids, groups),) = masker.encode_groups(["the cat sees some houses and finds a day"])
    assert BYTES.decode([ids.tolist()]) == ["the cat sees some houses and finds a day"] and groups.max() == 8
    _, hidden = masker.mask_texts([(ids, groups)] * 50, draws(50))
    for chosen in hidden.reshape(50, -1) != IGNORED:
        for word in range(9):
            assert len(set(chosen[groups == word])) == 1
        assert 1 <= chosen.sum() <= round(0.3 * len(ids)) or len(set(groups[chosen])) == 1


def test_random_replacements_are_no_control_tokens():
    masker = Masker(BYTES, MaskData())
    assert set(masker.ordinary_ids) == set(range(4, BYTES.size)) - {BYTES.mask}


def test_a_tokenizer_without_mask_is_refused():
    with pytest.raises(UserError, match="the tokenizer has no <mask>, which task masked needs"):
        Masker(train_tokenizer(TokenizerConfig(kind="byte"), []), MaskData())


# --- the sampler ---------------------------------------------------------------------------------------------------------


def same(one, other) -> bool:
    return all(
        a["text"].values.equal(b["text"].values) and a["labels"].values.equal(b["labels"].values)
        for a, b in zip(one.micro_batches, other.micro_batches, strict=True)
    )


def test_masking_differs_by_epoch_and_resumes():
    steps = list(build_loader().steps(0))
    assert sorted(i for step in steps for i in step.examples) == list(range(len(TEXTS)))
    assert all(same(a, b) for a, b in zip(build_loader().steps(0), steps, strict=True))
    assert all(same(a, b) for a, b in zip(build_loader().steps(0, steps[1].index), steps[2:], strict=True))
    texts = {}
    for epoch in (0, 1):
        for step in build_loader().steps(epoch):
            (piece,) = step.micro_batches
            text, originals = piece["text"], piece["labels"].values
            assert step.count == int((originals != IGNORED).sum())
            for i, row, labels, real in zip(step.examples, text.values, originals, text.valid, strict=True):
                whole = torch.where(labels != IGNORED, labels, row)[real][1:-1]
                assert BYTES.decode([whole.tolist()]) == [TEXTS[i]]
                assert (
                    row[0] == BYTES.start
                    and labels[0] == IGNORED
                    and row[real][-1] == BYTES.end
                    and labels[real][-1] == IGNORED
                )
                texts.setdefault(i, set()).add(tuple(labels.tolist()))
    assert sum(len(each) == 2 for each in texts.values()) > 100


def test_long_lines_are_read_in_windows():
    loader = build_loader(["abcdefghijklmnopqrstuvwxyz", "short"], max_tokens=12)
    seen = set()
    for epoch in range(30):
        for step in loader.steps(epoch):
            (piece,) = step.micro_batches
            assert piece["text"].values.size(1) <= 12
            for i, row, labels in zip(step.examples, piece["text"].values, piece["labels"].values, strict=True):
                if i == 0:
                    whole = BYTES.decode([torch.where(labels != IGNORED, labels, row).tolist()])[0]
                    assert len(whole) == 10 and whole in "abcdefghijklmnopqrstuvwxyz"
                    seen.add(whole)
    assert len(seen) > 8
    assert loader.report()[0].startswith("1 of 2 lines have more than 10 tokens, and each epoch reads a window of them")


def test_pairs_of_lines():
    texts = [f"line {i:02}" for i in range(40)]
    answers = Counter()
    for epoch in range(5):
        for step in build_loader(texts, next_sentence=True, train=Train(batch=8)).steps(epoch):
            (piece,) = step.micro_batches
            text = piece["text"]
            assert text.token_types is not None
            for i, row, labels, kinds, real, answer in zip(
                step.examples,
                text.values,
                piece["labels"].values,
                text.token_types,
                text.valid,
                piece["next_sentence"].values,
                strict=True,
            ):
                whole = torch.where(labels != IGNORED, labels, row)[real]
                ends = (whole == BYTES.end).nonzero()[:, 0].tolist()
                assert len(ends) == 2 and kinds[real].tolist() == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0])
                first, second = BYTES.decode([whole[: ends[0]].tolist(), whole[ends[0] :].tolist()])
                assert (
                    first == texts[i] and (labels[: ends[0]] != IGNORED).any() and (labels[ends[0] :] != IGNORED).any()
                )
                if answer == IS_NEXT:
                    assert second == texts[i + 1]
                answers[int(answer), i == 39] += 1
    assert answers[IS_NEXT, True] == 0 and answers[NOT_NEXT, True] == 5  # no line follows the last one
    assert 70 < answers[IS_NEXT, False] < 125


def test_documents_end_at_blank_lines_and_file_ends(tmp_path):
    for name, text in (("a", "1\n2\n\n3\n"), ("b", "4\n5\n")):
        (tmp_path / name).write_text(text)
    read = line_examples(((str(tmp_path / "?"),),), MaskData())
    assert [text for (text,) in read] == list("12345")
    assert [read.adjacent(i) for i in range(4)] == [True, False, False, True]
    with pytest.raises(UserError, match="text has one side, but 2 were given"):
        line_examples((("a",), ("b",)), MaskData())


def test_the_longer_text_is_cut():
    assert (
        fit_lengths([5, 5], 20) == [5, 5]
        and fit_lengths([30, 5], 20) == [15, 5]
        and sum(fit_lengths([30, 29], 20)) == 20
    )
    assert abs(np.subtract(*fit_lengths([30, 29], 20))) <= 1 and fit_lengths([30], 7) == [7]


# --- the task --------------------------------------------------------------------------------------------------------


def test_training_and_metrics(run, predictor):
    metrics = predictor.evaluate()
    fresh = masked.restore(predictor.run, run, torch.device("cpu"))
    assert metrics["loss"] < 0.75 * fresh.evaluate()["loss"] and metrics["examples"] == 50
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"])) and 0.2 < metrics["accuracy"] < 1
    assert predictor.evaluate() == metrics  # the masking is fixed


def test_predict_fills_masks(predictor):
    filled = predictor.predict("the cat <mask>")
    assert filled.startswith("the cat") and "<mask>" not in filled and len(filled) > len("the cat")
    assert predictor.predict("the cat [MASK]") == filled
    record = predictor.predict("a <mask> <mask>", details=True, top=3)
    assert len(record["masks"]) == 2 and [len(each) for each in record["masks"]] == [3, 3]
    assert record["masks"][0][0][1] >= record["masks"][0][1][1]
    with pytest.warns(UserWarning, match="1 of 2 texts have no <mask> and stay as they are"):
        assert predictor.predict(["The  cat", "a <mask>"])[0] == "The  cat"
    with pytest.warns(UserWarning, match="more than 126 tokens and was cut|no <mask>"):
        predictor.predict("a " * 300 + "<mask> <mask>")


def test_next_sentence_prediction(tmp_path):
    """The second line of each pair contains the number of the first."""
    text = "".join(f"{word} one\n{word} two\n\n" for word in ("cat", "dog", "sun", "sea") * 20)
    (tmp_path / "a.txt").write_text(text)
    settings = {
        "data.train": str(tmp_path / "a.txt"),
        "data.valid": str(tmp_path / "a.txt"),
        "data.next_sentence": True,
        "train.steps": 20,
    }
    regard.train("masked", {**reads.TINY, **settings}, out=tmp_path / "run")
    predictor = regard.load(tmp_path / "run")
    assert predictor.run.model.next_sentence and 0 <= predictor.evaluate(((str(tmp_path / "a.txt"),),))["follows"] <= 1
    objective = masked.prepare(resolve("masked", {**reads.TINY, **settings}).run, {}, torch.device("cpu"))
    step = next(objective.steps(0, 0))
    (piece,) = step.micro_batches
    labels = piece["labels"].values
    words = torch.nn.functional.cross_entropy(
        objective.model.logits(objective.model.encode(piece["text"]).states[labels != IGNORED]),
        labels[labels != IGNORED],
    )
    pairs = torch.nn.functional.cross_entropy(
        objective.model.next_sentence_logits(objective.model.encode(piece["text"])),
        piece["next_sentence"].values,
    )
    assert float(batch_loss(objective, piece).detach() / step.count) == pytest.approx(
        float((words + pairs).detach()), rel=1e-5
    )


# --- embeddings ------------------------------------------------------------------------------------------------------


def test_embeddings(predictor):
    texts = ["the cat", "a good day and more", "the cat"]
    vectors = predictor.embed(texts)
    assert vectors.shape == (3, 32) and torch.allclose(vectors.norm(dim=1), torch.ones(3), atol=1e-5)
    assert torch.allclose(vectors[0], vectors[2], atol=1e-5) and predictor.embed("the cat").shape == (32,)
    row = torch.tensor([[1, *predictor.tokenizer.encode(["the cat"])[0], 2]])
    with torch.no_grad():
        states = predictor.model.encode(inputs(row)).states[0]
    assert torch.allclose(predictor.embed("the cat", normalize=False), states.mean(0), atol=1e-5)
    assert torch.allclose(predictor.embed("the cat", pooling="first", normalize=False), states[0], atol=1e-5)
    assert torch.allclose(predictor.embed("the cat", pooling="max", normalize=False), states.amax(0), atol=1e-5)
    assert predictor.embed([]).shape == (0, 32)


def test_similar(predictor):
    texts = ["a good day", "the cat sees", "a good day here"]
    (ranked,) = predictor.similar(["a good day"], texts)
    assert ranked[0][0] == 0 and ranked[0][1] == pytest.approx(1, abs=1e-5)
    assert sorted(place for place, _ in ranked) == [0, 1, 2] and ranked[1][1] >= ranked[2][1]
    assert [place for place, _ in predictor.similar("a good day", texts, top=2)] == [place for place, _ in ranked[:2]]
    vectors = predictor.embed(texts)
    assert float(vectors[0] @ vectors[2]) == pytest.approx(dict(ranked)[2], abs=1e-5)
    with pytest.raises(UserError, match="there is no text to compare with"):
        predictor.similar("a", [])


def run_cli(capsys, monkeypatch, stdin: str, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    capsys.readouterr()
    code = cli.main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--embed", "--similar", "x"), "--embed and --similar cannot be combined"),
        (("--embed", "--details"), "--embed and --details cannot be combined"),
        (("--similar", "x", "--details"), "--similar and --details cannot be combined"),
        (("--prompt", "x", "--embed"), "--prompt and --embed cannot be combined; give one of them"),
    ],
)
def test_exclusive_output_options(capsys, monkeypatch, flags, words):
    code, out, err = run_cli(capsys, monkeypatch, "a\n", "predict", "run", *flags)
    assert (code, out) == (2, "") and words in err


def test_next_sentence_needs_two_token_types(tmp_path):
    settings = {**reads.TINY, "data.next_sentence": True, "model.token_types": 1}
    with pytest.raises(UserError, match=r"data.next_sentence needs two token types and model.token_types is 1"):
        regard.train("masked", settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_score_is_refused(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "lines").write_text("a day\n")
    code, _, err = run_cli(capsys, monkeypatch, "", "score", run, tmp_path / "lines")
    assert code == 2 and "task masked gives no probability of one text given another; use eval or predict" in err


def test_comparing_two_tasks_is_refused(run, tmp_path):
    (tmp_path / "lines").write_text("a day\nthe cat\n")
    regard.train("language", {"model.size": "tiny", "data.train": str(tmp_path / "lines"), "train.steps": 1,
                              "train.tensorboard": False, "data.max_tokens": 8}, out=tmp_path / "lm")  # fmt: skip
    with pytest.raises(UserError, match="has task masked and .*lm has task language; compare runs of one task"):
        compare([run, tmp_path / "lm"], data=((str(tmp_path / "lines"),),))


def test_command_line(run, predictor, tmp_path, capsys, monkeypatch):
    code, out, _ = run_cli(capsys, monkeypatch, "the cat\na day\n", "predict", run, "--embed")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and np.allclose(found, predictor.embed(["the cat", "a day"]).numpy(), atol=1e-6)
    code, out, _ = run_cli(capsys, monkeypatch, "the cat\n", "predict", run, "--embed", "decode.pooling=first")
    assert np.allclose(json.loads(out), predictor.embed("the cat", pooling="first").numpy(), atol=1e-6)
    (tmp_path / "lines").write_text("a day\nthe cat\nso so\n")
    code, out, _ = run_cli(
        capsys, monkeypatch, "the cat\n", "predict", run, "--similar", tmp_path / "lines", "--top", "2"
    )
    rows = [line.split("\t") for line in out.splitlines()]
    assert len(rows) == 2 and rows[0] == ["the cat", "1.0000", "the cat"] and float(rows[1][1]) < 1
    (tmp_path / "none").write_text("")
    assert run_cli(capsys, monkeypatch, "x\n", "predict", run, "--similar", tmp_path / "none")[0] == 2
    assert run_cli(capsys, monkeypatch, "x\n", "predict", run, "--similar", tmp_path / "gone")[0] == 2
    code, out, _ = run_cli(capsys, monkeypatch, "", "eval", run, run)
    assert code == 0 and out.count("perplexity") == 2
    code, _, err = run_cli(capsys, monkeypatch, "", "eval", run, "--out", tmp_path / "a.png")
    assert code == 2 and "this run predicts no labels" in err


@pytest.mark.parametrize("recipe", ["classify", "tag", "masked"])
def test_a_resumed_run_has_the_same_bytes(tmp_path, recipe):
    settings = {
        "train.save_every": 3,
        "train.eval_every": 3,
        "train.tokens": 300,
        "model.dropout": 0.1,
        "train.schedule.kind": "constant",
    }
    whole = reads.train_run(recipe, tmp_path / "whole", **settings, train__steps=6)
    resumed = reads.train_run(recipe, tmp_path / "resumed", **settings, train__steps=3)
    files = {f"data.{name}": str(tmp_path / "resumed" / f"{name}.txt") for name in ("train", "valid", "test")}
    regard.train(recipe, {**reads.TINY, **settings, **files, "train.steps": 6}, out=resumed, resume=True)
    name = "checkpoints/step-6/model.safetensors"
    assert (resumed / name).read_bytes() == (whole / name).read_bytes()
