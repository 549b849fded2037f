"""N-grams beside the class head: of any family, from data.ngrams, a start or an older run; what they contribute."""

import json
import math
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers.runs import tiny_run

import regard
from regard.adapt.ngrams import NGRAMS_MODULE, ngrams_of
from regard.cli import main
from regard.errors import UserError
from regard.measure.attribution import saliency
from regard.measure.deletion import deletion_report
from regard.measure.head_effect import measure_effect
from regard.measure.ngram_report import report_ngrams
from regard.parts import Inputs
from regard.parts.ngrams import SMOOTHING, NGramCounts

SMALL = {
    "model.width": 16, "model.heads": 2, "model.layers": 1, "data.ngrams.buckets": 50, "data.examples": 60,
    "data.locales": "de,en", "tokenizer.vocab": 300, "train.steps": 1, "train.warmup": 1, "train.tensorboard": False,
    "eval.baseline": False, "device": "cpu",
}  # fmt: skip
TEXT = Inputs("tokens", torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]]), torch.tensor([[True] * 4, [True] * 3 + [False]]))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ngrams") / "classifier"
    regard.train("classify", SMALL, out=out, progress=False)
    return out


@pytest.mark.parametrize("name", ["bert", "longformer", "bigbird", "rnn", "cnn"])
def test_every_family_of_texts_takes_them(name):
    settings = {**SMALL, "model.family": name, "model.size": "tiny"}
    torch.manual_seed(1)
    model = regard.build("classify", settings).eval()
    torch.manual_seed(1)
    alone = regard.build("classify", {**settings, "data.ngrams.order": 0}).eval()
    counts = ngrams_of(model)
    assert counts is not None and ngrams_of(alone) is None
    added = {key for key in model.state_dict() if key.startswith(f"{NGRAMS_MODULE}.")}
    assert model.state_dict().keys() - added == alone.state_dict().keys()  # the other names do not change
    counts.texts += 2
    counts.totals += torch.tensor([2.0, 1, 3])
    with torch.no_grad():
        assert torch.equal(model(TEXT), alone(TEXT) + counts(TEXT))
        assert not torch.equal(model(TEXT), alone(TEXT))


def test_a_start_brings_its_own(classifier, tmp_path):
    plain = tmp_path / "plain"
    regard.train(
        "masked",
        {key: value for key, value in SMALL.items() if "ngrams" not in key and key != "eval.baseline"},
        out=plain,
        progress=False,
    )
    for start, order in ((classifier, 2), (plain, 0)):
        resolved = regard.resolve("classify", {"start": str(start)})
        assert resolved.run.data.ngrams.order == order
        assert resolved.origin["data.ngrams.order"] == f"start {start}"
    assert regard.resolve("classify", {"start": str(plain), "data.ngrams.order": 1}).run.data.ngrams.order == 1
    settings = {
        "start": str(classifier),
        "train.steps": 1,
        "train.tensorboard": False,
        "device": "cpu",
        "data.examples": 20,
    }
    tagger = regard.train("tag", settings, out=tmp_path / "tagger", progress=False)  # it has no such setting
    assert not any(key.startswith(NGRAMS_MODULE) for key in tagger.model.state_dict())
    assert "ngrams" not in type(tagger.run.data).model_fields


@pytest.mark.parametrize("kind", ["lora", "adapter", "prompt", "prefix"])
def test_a_classifier_with_them_can_be_tuned(classifier, tmp_path, kind):
    settings = {
        key: value for key, value in SMALL.items() if not key.startswith(("model.", "tokenizer.", "data.ngrams"))
    }
    settings |= {"start": str(classifier), "tune.kind": kind, **({"tune.length": 2} if kind.startswith("pr") else {})}
    tuned = regard.train("classify", settings, out=tmp_path / kind, progress=False)
    texts = ["4 May", "Montag, der 3. Juni 2004"]  # of different lengths
    again = regard.load(tmp_path / kind, device="cpu")
    assert again.predict(texts, top=2) == tuned.predict(texts, top=2)
    assert [again.predict(text) for text in texts] == again.predict(texts)


def test_the_former_key_is_read():
    run = regard.resolve("classify", {"model.ngrams.order": 3, "model.ngrams": {"words": False}}).run
    assert (run.data.ngrams.order, run.data.ngrams.words, run.data.ngrams.characters) == (3, False, 5)


@pytest.mark.parametrize("several", [False, True])
def test_training_texts_are_scored_without_their_own_counts(several, tmp_path, caplog):
    """Labels drawn at random cannot be known: a text with its own counts would nearly always get its label."""
    rng = random.Random(1)
    words = [f"{first}{second}" for first in "kstplm" for second in ("a", "e", "o")]
    rows = [("".join(rng.choices(words, k=3)), rng.choice("xy")) for _ in range(240)]
    data = [(text, [label]) if several else (text, label) for text, label in rows]
    settings = {**SMALL, "data.ngrams.buckets": 4096, "data.problem_type": "multi_label" if several else "single_label"}
    settings |= {"data.holdout": 0.25, "train.lr": 1e-9, "tokenizer.vocab": 400}
    regard.train("classify", settings, out=tmp_path / "run", data={"train": data}, progress=False)
    predictor = regard.load(tmp_path / "run", device="cpu")

    def exact(outputs: torch.Tensor) -> float:
        found = (outputs > (0.0 if several else -math.log(2))).tolist()
        return sum(row == [label == "x", label == "y"] for row, (_, label) in zip(found, rows, strict=True)) / len(rows)

    assert exact(predictor.outputs([(text,) for text, _ in rows])) > 0.75
    caplog.set_level("INFO")
    metrics = predictor.evaluate(data)
    assert metrics["examples"] == 240 and metrics["accuracy"] < 0.65
    assert "these are training texts: each is scored without its own n-gram counts" in caplog.text
    assert predictor.evaluate(data[::-1])["accuracy"] == exact(predictor.outputs([(text,) for text, _ in rows]))


# --- what they contribute --------------------------------------------------------------------------------------------

LABELED = [
    ("a good film", "glad"),
    ("a bad film", "sad"),
    ("good good actors", "glad"),
    ("bad actors", "sad"),
    ("so bad", "sad"),
]
PAIRS = [
    (f"{who} is {what}", f"{who} is {'not ' * no}{what}", "no" if no else "yes")
    for who in ("Ada", "Bo")
    for what in ("in", "out")
    for no in (0, 1)
]


SETTINGS = {
    "model__width": 16, "model__heads": 2, "model__layers": 1, "tokenizer__vocab": 290, "train__steps": 1, "train__warmup": 1,
    "train__tensorboard": False, "eval__baseline": False, "device": "cpu",
}  # fmt: skip


def table_run(header: str, rows: list[tuple[str, ...]], **settings) -> Path:
    """A run that is tested on its texts in another order: `evaluate` would leave their own counts out in the same."""
    lines = [json.dumps(dict(zip(header.split(), row, strict=True))) for row in rows]
    files = {"train.jsonl": "\n".join(lines), "test.jsonl": "\n".join(lines[::-1])}
    places = {f"data__{split}": f"{{files}}/{split}.jsonl" for split in ("train", "test")}
    with torch.enable_grad():
        return tiny_run("classify", files, **places, **SETTINGS, **settings)


def labeled_run(**settings) -> Path:
    return table_run("text label", LABELED, **settings)


def pairs_run() -> Path:
    return table_run("premise hypothesis label", PAIRS)


def row_of(predictor, *texts: str) -> Inputs:
    return predictor.texts.collate([predictor.texts.read([texts])[0].row])


@torch.no_grad()
@pytest.mark.parametrize(
    "make, items", [(labeled_run, [("so good",), ("x",)]), (pairs_run, [("Ada is in", "Bo is not up"), ("Bo", "")])]
)
def test_contributions_sum_to_the_logits(make, items):
    predictor = regard.load(make())
    ngrams = ngrams_of(predictor.model)
    assert ngrams.spells and (ngrams.overlap is not None) == predictor.pairs
    batch = predictor.texts.collate([predictor.texts.read([item])[0].row for item in items])  # with padding
    terms = ngrams.terms(batch)
    assert torch.allclose(terms.logits, ngrams(batch), atol=1e-5)
    by_token = terms.by_token(batch.values.size(1)).float()
    assert torch.allclose(by_token.sum(1) + terms.constant, ngrams(batch), atol=1e-5)
    assert not by_token[~batch.valid].any() and by_token[batch.valid].any()


def counted(rows: list[list[int]], labels: list[int]):
    """The counts of tokens and of pairs of tokens, without a table: (n-gram, label) -> texts."""
    counts: Counter = Counter()
    for row, label in zip(rows, labels, strict=True):
        counts.update({(gram, label) for gram in grams(row)})
    return counts


def grams(row: list[int]) -> list[tuple[int, ...]]:
    return [(token,) for token in row] + [*zip(row, row[1:], strict=False)]


def by_hand(row: list[int], counts: Counter, totals: list[int]) -> tuple[list[list[float]], list[list[float]]]:
    """The contributions to both labels of each token, and the logits without the constant."""
    found, parts = grams(row), [[0.0, 0.0] for _ in row]
    for number, gram in enumerate(found):
        first = number if number < len(row) else number - len(row)
        for label in (0, 1):
            share = totals[label] / sum(totals)
            with_it, others = counts[gram, label], counts[gram, 1 - label]
            ratio = math.log((with_it + SMOOTHING * share) / (others + SMOOTHING * (1 - share)))
            ratio -= math.log(share / (1 - share))
            for place in range(first, first + len(gram)):
                parts[place][label] += ratio / math.sqrt(len(found)) / len(gram)
    return parts, [sum(part[label] for part in parts) for label in (0, 1)]


@torch.no_grad()
def test_contributions_are_those_counted_by_hand_also_without_a_token():
    """Deleting a token deletes all n-grams that hold it, and makes one of its neighbors."""
    rows, labels = [[1, 5, 6, 2], [1, 5, 7, 2], [1, 8, 5, 6, 2]], [0, 1, 0]
    model = NGramCounts(20, 2, order=2, buckets=1 << 16)
    for row, label in zip(rows, labels, strict=True):
        model.count(
            Inputs("tokens", torch.tensor([row])), torch.nn.functional.one_hot(torch.tensor([label]), 2).float()
        )
    counts, totals, text = counted(rows, labels), [2, 1], [1, 8, 5, 7, 6, 2]
    for left_out in (None, *range(len(text))):
        row = [token for place, token in enumerate(text) if place != left_out]
        terms = model.terms(Inputs("tokens", torch.tensor([row])))
        parts, logits = by_hand(row, counts, totals)
        assert torch.allclose(terms.by_token(len(row))[0].float(), torch.tensor(parts), atol=1e-5)
        assert torch.allclose(terms.logits - terms.constant, torch.tensor([logits]), atol=1e-5)


@torch.no_grad()
def test_words_that_the_first_text_lacks():
    predictor = regard.load(pairs_run())
    ngrams = ngrams_of(predictor.model)
    for texts, words in (
        (("Ada is in", "Ada is not in"), 1),
        (("Ada is in", "is Ada in"), 0),
        (("Ada is on", "on Ada no"), 1),
        (("Ada", "Bo is up"), 3),
    ):
        missing, features = ngrams.missing_words(row_of(predictor, *texts))
        assert missing.sum() == words and (features[0, 0] > 0) == (words > 0)
    assert not ngrams.missing_words(row_of(predictor, "Ada"))[0].any()


@torch.no_grad()
def test_a_view_has_both_parts(tmp_path, capsys):
    predictor = regard.load(labeled_run())
    view = predictor.look("a good film")
    decision, logits = view.decision, predictor.model(row_of(predictor, "a good film"))[0]
    ids = [predictor.labels.ids[label] for label in decision.labels]
    assert decision.labels[0] == predictor.predict("a good film")
    both = torch.tensor(decision.encoder) + torch.tensor(decision.ngrams)
    assert torch.allclose(both, logits[ids], atol=1e-5)
    columns = torch.tensor(decision.contributions).sum(0) + torch.tensor(decision.constant)
    assert torch.allclose(columns, torch.tensor(decision.ngrams), atol=1e-5) and list(decision.tokens) == view.tokens
    assert sum(decision.lead) == pytest.approx(float(both[0] - both[1]), abs=1e-5)
    named = {(entry.kind, entry.text) for entries in decision.top for entry in entries}
    assert {text for kind, text in named if kind == "word"} & {"good", "a", "film"}
    assert all(text.strip("▁ ") in "<s> a good film</s>" or "<" in text for kind, text in named if kind == "characters")
    for name in ("v.json", "v.html"):
        assert main(["look", str(labeled_run()), "a good film", "--out", str(tmp_path / name)]) == 0
        assert decision.summary in capsys.readouterr().out
        assert json.dumps(decision.summary)[1:-1] in (tmp_path / name).read_text()
    plain = labeled_run(data__ngrams__order=0)
    assert regard.load(plain).look("a good film").decision is None


@torch.no_grad()
def test_pairs_are_explained_as_pairs(capsys):
    predictor, texts = regard.load(pairs_run()), ("Ada is in", "Bo is out")
    row = predictor.texts.read([texts])[0].row.tolist()
    names = predictor.tokenizer.tokens(row)
    assert predictor.look(texts).tokens == list(predictor.look(texts).decision.tokens) == names
    found = saliency(predictor, texts)
    assert found.tokens == names and found.output == predictor.predict([texts])[0]
    assert found.logprob == pytest.approx(predictor.score([texts], [found.output])[0], abs=1e-5)
    assert deletion_report(predictor, examples=2).texts == 2
    assert main(["look", str(pairs_run()), *texts, "--saliency"]) == 0
    assert "n-grams carry" in capsys.readouterr().out
    with pytest.raises(UserError, match="this model reads pairs; give"):
        predictor.look("Ada")


@torch.no_grad()
def test_heads_do_not_explain_ngrams(capsys):
    predictor = regard.load(labeled_run())
    report = measure_effect(predictor)
    with pytest.warns(UserWarning, match="the n-grams beside the encoder still decide"):
        assert report.without_heads == predictor.muted("1.*").evaluate()["accuracy"]
    names, texts = predictor.labels.names, [text for text, _ in LABELED]
    logits = [ngrams_of(predictor.model)(row_of(predictor, text)) + predictor.model.classes.bias for text in texts]
    hits = [names[int(row.argmax())] == label for row, (_, label) in zip(logits, LABELED, strict=True)]
    assert report.ngrams_alone == sum(hits) / len(hits)
    assert main(["look", str(labeled_run()), "--effect"]) == 0
    assert f"{report.ngrams_alone:.4f} from n-grams alone" in capsys.readouterr().out


def test_top_ngrams_of_texts_and_of_data(capsys):
    predictor = regard.load(labeled_run())
    report = report_ngrams(predictor)
    assert report.texts == len(LABELED) and [*report.top] == [*predictor.labels.names]
    assert "bad" in {entry.text for entry in report.top["sad"]} - {entry.text for entry in report.top["glad"]}
    one = report_ngrams(predictor, ["so bad"])
    assert (one.encoder, one.ngrams) == pytest.approx(predictor.look("so bad").decision.lead)
    assert main(["look", str(labeled_run()), "--ngrams", "--examples", "3"]) == 0
    assert "3 texts" in capsys.readouterr().out
    for arguments, message in (
        (["--ngrams", "--examples", "0"], "expected 1 or more"),
        ([" ", "--ngrams"], "all texts are empty"),
    ):
        assert main(["look", str(labeled_run()), *arguments]) == 2
        assert message in capsys.readouterr().err
    plain = labeled_run(data__ngrams__order=0)
    with pytest.raises(UserError, match="--ngrams lists the n-grams beside the encoder of a classifier"):
        report_ngrams(regard.load(plain))
