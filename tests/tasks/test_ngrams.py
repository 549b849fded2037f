"""N-grams beside the class head: of any family, from data.ngrams, a start or an older run."""

import math
import random
from pathlib import Path

import pytest
import torch

import regard
from regard.adapt.ngrams import NGRAMS_MODULE, ngrams_of
from regard.parts import Inputs

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
