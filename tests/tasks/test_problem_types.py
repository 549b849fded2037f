"""Classification of pairs, with several labels, with numbers, with many classes and with class weights."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import bert
from helpers.runs import tiny_run
from safetensors import safe_open

import regard
from regard import UserError
from regard.cli.app import main
from regard.config.data.texts import TokenizerConfig
from regard.config.losses import LabelLoss
from regard.data.datasets.rows import encode_rows, pad_texts
from regard.messages.labels import MultiLabelRequest
from regard.metrics.bag_of_words import BagOfWords, Tfidf, fit_linear
from regard.metrics.labels import multi_label_metrics
from regard.parts import Inputs
from regard.parts.ngrams import NGramCounts
from regard.processors.targets import NumberProcessor
from regard.processors.text.tokenizers import train_tokenizer
from regard.tasks.classify.ngrams import spell_tokens
from regard.tasks.objectives import LabelObjective, MultiLabelObjective

WORDS = ["red", "green", "blue", "one", "two", "three", "four", "five"]
TINY = {
    "model.width": 16,
    "model.heads": 2,
    "model.inner": 16,
    "model.layers": 1,
    "tokenizer.vocab": 270,
    "train.steps": 3,
    "train.eval_every": 3,
    "train.tensorboard": False,
    "device": "cpu",
}


def sentences(count: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=5)) for _ in range(count)]


PAIRS = [
    {"premise": a, "hypothesis": b, "label": "same" if a.split()[0] == b.split()[0] else "other"}
    for a, b in zip(sentences(40, 1), sentences(40, 2), strict=True)
]
SETS = [{"text": text, "label": sorted({*text.split()} & {"red", "one"})} for text in sentences(40)]
NUMBERS = [{"text": text, "label": text.count("e") + i / 100} for i, text in enumerate(sentences(40))]
DATA = {"pairs": PAIRS, "sets": SETS, "numbers": NUMBERS}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, rows in DATA.items():
        own = {"data.ngrams.order": 0} if name == "pairs" else {}
        run = tiny_run("classify", data={"train": rows, "valid": rows}, **TINY, **own)
        (folder / name).symlink_to(run)
    return folder


# --- what training finds out about the data --------------------------------------------------------------------------


def test_the_data_show_what_they_are_and_a_run_keeps_it(runs):
    found = {name: regard.load(runs / name, device="cpu").run for name in DATA}
    assert found["pairs"].data.pairs == "yes" and found["pairs"].data.problem_type == "auto"
    assert found["sets"].data.problem_type == "multi_label" and found["sets"].train.metric == "accuracy"
    assert found["numbers"].data.problem_type == "regression" and found["numbers"].train.metric == "rmse"
    notes = [json.loads(line).get("text", "") for line in (runs / "numbers" / "metrics.jsonl").read_text().splitlines()]
    assert "train: data.problem_type=regression; train.metric=rmse" in notes
    lines = (runs / "sets" / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines if '"event": "valid"' in line][-1]
    assert metrics["event"] == "valid" and metrics["bag_of_words"] == 1.0 and 0 < metrics["majority"] < 1


def test_training_resumes_to_the_same_bytes(runs, tmp_path):
    for name in ("sets", "numbers"):
        data = {"train": DATA[name], "valid": DATA[name]}
        for steps, resume in ((2, False), (3, True)):
            settings = {**TINY, "train.steps": steps, "train.schedule": "constant"}
            regard.train("classify", settings, out=tmp_path / name, data=data, resume=resume, progress=False)
        whole = {**TINY, "train.schedule": "constant", "train.save_every": 2}
        regard.train("classify", whole, out=tmp_path / f"{name}-whole", data=data, progress=False)
        files = [
            next((tmp_path / each / "checkpoints").glob("step-*3")) / "model.safetensors"
            for each in (name, f"{name}-whole")
        ]
        assert files[0].read_bytes() == files[1].read_bytes()


# --- answers -----------------------------------------------------------------------------------------------------------


def test_pairs_alone_and_in_a_batch(runs, capsys, tmp_path):
    predictor = regard.load(runs / "pairs", device="cpu")
    items = [(row["premise"], row["hypothesis"]) for row in PAIRS[:7]]
    assert [predictor.predict(item) for item in items] == predictor.predict(items)
    labels = predictor.predict(items)
    scores = predictor.score(items, labels)
    assert scores[0] == pytest.approx(predictor.score(items[0], labels[0]), abs=1e-5) and max(scores) < 0
    assert predictor.evaluate(PAIRS)["examples"] == 40
    table = tmp_path / "in.tsv"
    table.write_text("premise\thypothesis\n" + "".join(f"{a}\t{b}\n" for a, b in items))
    assert main(["predict", str(runs / "pairs"), str(table), "device=cpu"]) == 0
    assert capsys.readouterr().out.split() == labels
    (tmp_path / "in.txt").write_text("".join(f"{a}\t{b}\n" for a, b in items))
    assert main(["predict", str(runs / "pairs"), str(tmp_path / "in.txt"), "device=cpu"]) == 0
    assert capsys.readouterr().out.split() == labels
    scored = "".join(f"{a}\t{b}\t{label}\n" for (a, b), label in zip(items, labels, strict=True))
    (tmp_path / "scored.tsv").write_text(scored)
    assert main(["score", str(runs / "pairs"), str(tmp_path / "scored.tsv"), "device=cpu"]) == 0
    assert [float(line) for line in capsys.readouterr().out.split()] == pytest.approx(scores, abs=1e-4)
    (tmp_path / "in.txt").write_text("one text\n")
    assert main(["predict", str(runs / "pairs"), str(tmp_path / "in.txt"), "device=cpu"]) == 2
    assert "in.txt:1 has 0 tabs; expected text, text_pair with tabs between" in capsys.readouterr().err
    for wrong, words in (
        ("one text", "text 1 is one text, and this model reads pairs; give (text, text_pair)"),
        ([("a", "b", "c")], "text 1 has 3 texts; expected a text, or a pair of texts"),
        ([3], "text 1 is an int; expected a str"),
    ):
        with pytest.raises(UserError) as error:
            predictor.predict(wrong)
        assert words in str(error.value)
    with pytest.raises(UserError, match="there are 1 texts and 2 labels; each text needs its label"):
        predictor.score(items[:1], ["same", "other"])


def test_several_labels(runs, capsys, tmp_path):
    predictor = regard.load(runs / "sets", device="cpu")
    texts = [row["text"] for row in SETS[:5]]
    found = predictor.predict(texts, details=True)
    assert [predictor.predict(text, details=True)["labels"] for text in texts] == [each["labels"] for each in found]
    assert all(label["probability"] >= 0.5 for each in found for label in each["labels"]) and len(found[0]["top"]) == 2
    every = predictor.predict(texts, threshold=0.0)
    assert all(sorted(each) == ["one", "red"] for each in every) and len(predictor.predict(texts[0], top=1)) == 1
    total = np.exp(predictor.score([texts[0]] * 4, [[], ["red"], "one", "red,one"])).sum()
    assert total == pytest.approx(1, abs=1e-5)  # all sets of labels
    metrics = predictor.evaluate(SETS)
    assert {"accuracy", "f1", "micro_f1", "majority", "bag_of_words"} <= metrics.keys()
    (tmp_path / "in.txt").write_text(f"{texts[0]}\n\n")
    assert main(["predict", str(runs / "sets"), str(tmp_path / "in.txt"), "device=cpu", "--details"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[0])["labels"] == found[0]["labels"] and json.loads(lines[1])["labels"] == []
    for call, words in (
        (lambda: predictor.score(texts[:1], [["blue"]]), "'blue' is no label of this run; it has one, red"),
        (lambda: predictor.score(texts[:2], [["red"]]), "there are 2 texts and 1 lists of labels"),
        (lambda: predictor.score(texts[:1], [{"red": 1}]), 'a target is {"red": 1}; expected a list of labels'),
        (
            lambda: predictor.predict_requests([MultiLabelRequest(texts[0], threshold=1.5)]),
            "a request has threshold=1.5; expected at least 0 and less than 1",
        ),
    ):
        with pytest.raises(UserError) as error:
            call()
        assert words in str(error.value)


def test_numbers(runs):
    predictor = regard.load(runs / "numbers", device="cpu")
    values = predictor.predict([row["text"] for row in NUMBERS])
    gold = [row["label"] for row in NUMBERS]
    metrics = predictor.evaluate(NUMBERS)
    assert metrics["rmse"] == pytest.approx(float(np.sqrt(np.mean((np.array(values) - gold) ** 2))), rel=1e-4)
    assert abs(np.mean(values) - np.mean(gold)) < 1  # it begins at their mean
    assert NumberProcessor().decode(torch.tensor(2.5)) == 2.5
    with pytest.raises(UserError, match="the target is 'x', and this model predicts numbers; give a number"):
        NumberProcessor().encode("x")


# --- other programs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [("sets", "multi_label_classification"), ("numbers", "regression")])
def test_exports_are_those_of_transformers(runs, tmp_path, name, kind):
    hf = pytest.importorskip("transformers")
    data = {"train": DATA[name]}
    regard.train("classify", {**TINY, "data.ngrams.order": 0}, out=tmp_path / "run", data=data, progress=False)
    regard.convert(tmp_path / "run", to="huggingface", out=tmp_path / "hf")
    model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    assert model.config.problem_type == kind
    ours, again = regard.load(tmp_path / "run", device="cpu"), regard.load(tmp_path / "hf", device="cpu")
    texts = [row["text"] for row in DATA[name][:4]]
    assert again.run.data.problem_type == ours.run.data.problem_type
    inputs = hf.AutoTokenizer.from_pretrained(tmp_path / "hf")(texts, padding=True, return_tensors="pt")
    theirs = model(**inputs).logits.detach()
    if name == "numbers":
        assert theirs[:, 0].tolist() == pytest.approx(ours.predict(texts), rel=1e-4)
        assert again.predict(texts) == pytest.approx(ours.predict(texts), rel=1e-4)
    else:
        found = ours.predict(texts, details=True)
        best = [max(each["top"], key=lambda one: one["probability"])["probability"] for each in found]
        assert theirs.sigmoid().amax(1).tolist() == pytest.approx(best, rel=1e-4)


def test_pairs_are_encoded_as_by_transformers(tmp_path):
    hf = pytest.importorskip("transformers")
    path = bert.folder(tmp_path / "x", "BertForSequenceClassification", num_labels=3)
    predictor = regard.load(path, {"data.pairs": "yes"}, device="cpu")
    tokenizer, items = hf.AutoTokenizer.from_pretrained(path), [("the cat", "a b the"), ("cat " * 40, "a " * 9)]
    rows = [each.row for each in predictor.texts.read(items)]
    for item, row in zip(items, rows, strict=True):
        theirs = tokenizer(*item, truncation="longest_first", max_length=predictor.texts.room + 3)
        assert sorted(row.tolist()) == sorted(theirs["input_ids"]) and len(row) == len(theirs["input_ids"])
    theirs = tokenizer([items[0][0]], [items[0][1]], return_tensors="pt")
    ours = predictor.texts.collate(rows[:1])
    assert ours.values.tolist() == theirs["input_ids"].tolist()
    assert ours.token_types is not None and ours.token_types.tolist() == theirs["token_type_ids"].tolist()
    model = hf.AutoModelForSequenceClassification.from_pretrained(path).eval()
    logprobs = model(**theirs).logits.detach().log_softmax(-1)[0]
    label = predictor.labels.names[1]
    assert predictor.score([items[0]], [label])[0] == pytest.approx(float(logprobs[1]), abs=1e-4)


def test_the_bag_of_words_is_that_of_scikit_learn(tmp_path):
    text = pytest.importorskip("sklearn.feature_extraction.text")
    linear = pytest.importorskip("sklearn.linear_model")
    texts, draw = sentences(90), np.random.default_rng(1)
    theirs = text.TfidfVectorizer(ngram_range=(1, 2))
    rows = theirs.fit_transform(texts)
    tfidf = Tfidf.of(texts)
    assert tfidf.vocabulary == list(theirs.get_feature_names_out())
    assert abs(tfidf.rows(texts) - rows).max() < 1e-6
    for targets in (draw.integers(0, 2, 90), draw.integers(0, 4, 90)):
        wanted = linear.LogisticRegression(C=10, tol=1e-8, max_iter=1000).fit(rows, targets).decision_function(rows)
        several = targets.max() > 1
        found = fit_linear(rows, targets if several else targets[:, None], "single_label", 10).scores(rows)
        wanted = wanted - wanted.mean(1, keepdims=True) if several else wanted[:, None]
        found = found - found.mean(1, keepdims=True) if several else found
        assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()
    numbers = draw.normal(size=90)
    ridge = linear.Ridge(alpha=0.1).fit(rows, numbers).predict(rows)
    assert np.abs(fit_linear(rows, numbers[:, None], "regression", 10).scores(rows)[:, 0] - ridge).max() < 0.02
    baseline = next(BagOfWords.fits(texts, [each.split()[0] for each in texts], "single_label", (10.0,)))
    baseline.save(tmp_path / "b")
    assert BagOfWords.load(tmp_path / "b").predict(texts) == baseline.predict(texts)
    everywhere = next(BagOfWords.fits(texts, [["one", *each.split()[:1]] for each in texts], "multi_label", (10.0,)))
    assert all("one" in labels for labels in everywhere.predict(texts))
    for words in (texts[:6], ["a", "b", "c", "d", "e", "f"]):  # the latter are no words
        (one,) = BagOfWords.fits(words, "xxxxxx", "single_label", (1.0,))  # of the first texts of sorted data
        (several,) = BagOfWords.fits(words, "xyxzxx", "single_label", (1.0,))
        assert one.predict(["a", words[0]]) == ["x", "x"] == several.predict(["a", "b"])


def test_without_scikit_learn_only_the_baseline_is_missing(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    settings = {**TINY, "train.steps": 2}
    regard.train("classify", settings, out=tmp_path / "without", data={"train": SETS, "valid": SETS}, progress=False)
    notes = (tmp_path / "without" / "metrics.jsonl").read_text()
    assert "no bag of words beside the scores: scikit-learn, which fits it, is not installed; pip install" in notes
    assert "bag_of_words" in regard.load(runs / "sets", device="cpu").evaluate(SETS)  # a stored one needs no fit
    monkeypatch.undo()
    regard.train("classify", settings, out=tmp_path / "with", data={"train": SETS, "valid": SETS}, progress=False)
    assert "no bag of words" not in (tmp_path / "with" / "metrics.jsonl").read_text()
    assert (tmp_path / "with" / "baseline.safetensors").exists() > (
        tmp_path / "without" / "baseline.safetensors"
    ).exists()
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("with", "without")]
    assert weights[0] == weights[1]


def test_metrics_of_several_labels_equal_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(2)
    ours, gold = (draw.integers(0, 2, (30, 4)) for _ in range(2))
    names = "abcd"
    sets = [[[names[i] for i in np.flatnonzero(row)] for row in table] for table in (ours, gold)]
    found = multi_label_metrics(*sets)
    assert found["f1"] == pytest.approx(metrics.f1_score(gold, ours, average="macro"))
    assert found["micro_f1"] == pytest.approx(metrics.f1_score(gold, ours, average="micro"))
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(gold, ours))


# --- parts -------------------------------------------------------------------------------------------------------------


def test_ngrams_are_naive_bayes_and_leave_out_the_own_text():
    tokens = torch.tensor([[1, 5, 6, 2], [1, 5, 7, 2], [1, 8, 7, 2], [1, 8, 6, 2]])
    own = torch.nn.functional.one_hot(torch.tensor([0, 0, 1, 1])).float()
    part = NGramCounts(10, 2, 2, 1000)
    part.count(Inputs("tokens", tokens), own)
    logits = part(Inputs("tokens", tokens)).detach()
    assert (logits.argmax(1) == torch.tensor([0, 0, 1, 1])).all()
    alone = NGramCounts(10, 2, 2, 1000)
    alone.count(Inputs("tokens", tokens[1:]), own[1:])
    left_out = part(Inputs("tokens", tokens), own).detach()[0]
    again = part.totals.clone()
    alone.totals.copy_(again)  # the share of a label stays
    assert torch.allclose(left_out, alone(Inputs("tokens", tokens[:1])).detach()[0], atol=1e-5)
    padded = torch.cat([tokens, torch.zeros(4, 3, dtype=torch.long)], 1)
    valid = torch.arange(7)[None] < torch.full((4, 1), 4)
    assert torch.allclose(part(Inputs("tokens", padded, valid)).detach(), logits, atol=1e-6)
    unseen = part(Inputs("tokens", torch.tensor([[9, 9]]))).detach()
    assert unseen.abs().max() < 1e-6  # both labels are equally frequent


def test_words_and_pairs_of_words_are_ngrams():
    """The rows of a text differ from those of another exactly by the words and pairs that it does not share."""
    texts = ["unfilmable filmed, a filmable film", "a filmed filmable un film", "film films un able"]
    settings = TokenizerConfig(vocab=270)
    for kind in ("bpe", "wordpiece"):
        tokenizer = train_tokenizer(settings.model_copy(update={"kind": kind}), texts * 3)
        part = NGramCounts(tokenizer.size, 2, 2, 1 << 20, words=True)
        part.set_spelling(spell_tokens(tokenizer, tokenizer.size))

        def word_rows(*texts, tokenizer=tokenizer, part=part):
            """The rows of the words of each text, and of their pairs."""
            encoded = [row for row, _ in encode_rows(tokenizer, [(text,) for text in texts], 99)]
            rows, valid = part.rows(pad_texts(encoded, tokenizer, 2))
            return [
                [set(a[i][b[i]].tolist()) for a, b in zip(rows[2:], valid[2:], strict=True)] for i in range(len(texts))
            ]

        (words, pairs), (more, others) = word_rows(
            "ablefilm unfilmablefilm", "a b, unfilmablefilm ablefilm unfilmablefilm"
        )
        assert len(tokenizer.encode(["ablefilm"])[0]) > 1
        assert len(words) == 4 and words < more  # two words, START and END; after a space or not
        assert len(pairs) == 3 and len(pairs & others) == 2  # all but START and the first word
        assert word_rows("ablefilm unfilmablefilm") == [[words, pairs]]  # padding changes nothing
        assert word_rows("a")[0][0] == {tokenizer.start, *tokenizer.encode(["a"])[0], tokenizer.end}


def test_tokens_of_a_tokenizer_without_spaces_are_words():
    class Words:
        size, pad, start, end, unk = 6, 0, 1, 2, 3

        def tokens(self, ids):
            return ["<pad>", "<s>", "</s>", "<unk>", "good", "film"]

    stems, joins, letters = spell_tokens(Words(), 8)
    assert stems.tolist() == list(range(8)) and not joins[0].any()
    assert [chr(number) for number in letters[5] if number > 0] == [*"▁film"]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "char"])
def test_characters_are_ngrams_across_tokens(kind):
    texts = ["a filmable film", "the able film", "unfilmable"]
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab=270), texts * 3)
    part = NGramCounts(tokenizer.size, 2, 1, 1 << 20, characters=3)
    part.set_spelling(spell_tokens(tokenizer, tokenizer.size))

    def rows(*texts):
        rows, valid = part.rows(pad_texts([r for r, _ in encode_rows(tokenizer, texts, 99)], tokenizer, 2))
        return [set(row[kept].tolist()) for row, kept in zip(rows[-1], valid[-1], strict=True)]

    (one,), first = rows(("able film",)), kind == "wordpiece"
    assert len(one) == len("able film") + first and rows(("able film",), ("the able filmable",))[0] == one
    inner = rows(("the able filmable",))[0] & one
    assert len(inner) == len({"abl", "ble", "le ", "e f", " fi", "fil", "ilm"} | ({" ab"} if first else set()))
    second = rows(("able film", "able film"))[0]
    assert one < second and len(second - one) >= len(one) - 1  # a second text has n-grams of its own
    assert rows(("",)) == [set()]  # START and END alone


def test_weights_are_those_of_torch():
    class Fixed(torch.nn.Module):
        classes = torch.nn.Linear(1, 3)

    logits, targets = torch.randn(8, 3), torch.randint(3, (8,))
    weights = [0.5, 2.0, 1.0]
    own = LabelObjective(Fixed(), LabelLoss(smoothing=0.1), weights)
    wanted = torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)
    assert torch.allclose(own.loss(logits, targets), (torch.tensor(weights)[targets] * wanted).sum())
    several = (torch.rand(8, 3) > 0.5).float()
    found = MultiLabelObjective(Fixed(), LabelLoss(smoothing=0.0), weights).loss(logits, several) / 8
    assert torch.allclose(found, torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weights))(logits, several))


def test_the_longer_text_of_a_pair_is_cut_first():
    tokenizer = train_tokenizer(TokenizerConfig(kind="char", vocab=30), ["abcd"])
    ((row, cut), (whole, fits)) = encode_rows(tokenizer, [("a" * 9, "b" * 3), ("ab", "c")], 7)
    assert len(row) == 10 and cut and not fits and len(whole) == 6
    inputs = pad_texts([row, whole], tokenizer, 2)
    assert inputs.token_types is not None and inputs.token_types.sum(1).tolist() == [4, 2]
    assert pad_texts([row], tokenizer, 1).token_types is None


# --- many classes, weights, bad input ------------------------------------------------------------------------------------


def test_more_than_a_thousand_classes(tmp_path):
    rows = [(f"{WORDS[i % 8]} item {i % 1010}", f"class {i % 1010}") for i in range(2100)]
    settings = {**TINY, "train.steps": 1, "eval.baseline": False}
    predictor = regard.train("classify", settings, out=tmp_path / "run", data={"train": rows}, progress=False)
    assert len(predictor.labels) == 1010 and not (tmp_path / "run" / "baseline.safetensors").exists()
    with safe_open(tmp_path / "run" / "model.safetensors", "pt") as file:
        assert file.get_tensor("ngrams.counts").numel() <= 1 << 22
    metrics = predictor.evaluate(rows[:1100])
    assert len(str(metrics["labels"]).splitlines()) < 110 and "bag_of_words" not in metrics
    with pytest.raises(UserError) as error:
        predictor.score(["a"], ["nothing"])
    assert len(str(error.value)) < 300


def test_class_weights(tmp_path):
    rows = [(text, "rare" if i % 8 == 0 else "usual") for i, text in enumerate(sentences(40))]
    for weights in ("balanced", "rare:3"):
        settings = {**TINY, "data.class_weights": weights}
        assert regard.train("classify", settings, out=tmp_path / weights[:4], data={"train": rows}, progress=False)
    settings = {**TINY, "data.class_weights": "balanced"}
    assert regard.train("classify", settings, out=tmp_path / "sets", data={"train": SETS}, progress=False)


def mistakes() -> list[tuple[str, list, dict, str]]:
    texts = sentences(12)
    labeled = [(text, "ab"[i % 2]) for i, text in enumerate(texts)]
    numbers = [(text, i / 7) for i, text in enumerate(texts)]
    return [
        ("weights", labeled, {"data.class_weights": "c:2"}, "data.class_weights has 'c', which is no label of data.train; expected a, b"),
        ("form", labeled, {"data.class_weights": "a"}, "data.class_weights has 'a'; expected balanced, or a label, a colon"),
        ("no classes", numbers, {"data.class_weights": "balanced", "data.problem_type": "regression"}, "data.problem_type=regression has no classes"),
        ("number", [*numbers, ("a b", "good")], {"data.problem_type": "regression"}, "no number under 'label' but \"good\""),
        ("list", [*labeled, ("a b", "[x")], {"data.problem_type": "multi_label"}, "no list of labels under 'label' but \"[x\", which is no list in JSON"),
        ("none", [(text, "") for text in texts], {"data.problem_type": "multi_label"}, "has a label; choose the column that holds the labels"),
        ("one text", labeled, {"data.pairs": "yes"}, "2 columns, expected at least 3 (data.columns)"),
        ("rdrop", SETS, {"train.objective.rdrop": 1}, "train.objective.rdrop=1 compares the probabilities of one label"),
    ]  # fmt: skip


@pytest.mark.parametrize("case", mistakes(), ids=lambda case: case[0])
def test_mistakes_get_one_sentence(case, tmp_path):
    _, rows, settings, words = case
    with pytest.raises(UserError) as error:
        regard.train("classify", {**TINY, **settings}, out=tmp_path / "run", data={"train": rows}, progress=False)
    assert words in str(error.value) and not (tmp_path / "run").exists()


def test_missing_labels_are_counted_and_no_labels_allowed(tmp_path: Path):
    lines = [f"{text}\t{'ab'[i % 2] if i % 3 else ''}" for i, text in enumerate(sentences(12))]
    (tmp_path / "a.tsv").write_text("\n".join(lines) + "\n")
    settings = {**TINY, "data.train": str(tmp_path / "a.tsv"), "data.header": "no"}
    regard.train("classify", settings, out=tmp_path / "one", progress=False)
    notes = (tmp_path / "one" / "metrics.jsonl").read_text()
    assert "4 examples left out because a side is empty" in notes
    predictor = regard.train("classify", {**settings, "data.delimiter": ";"}, out=tmp_path / "sets", progress=False)
    assert "train: 12 examples" in (tmp_path / "sets" / "metrics.jsonl").read_text() and len(predictor.labels) == 2
