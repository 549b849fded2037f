"""Runs with pruned heads: they equal muted ones, train on, are tuned and exported."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf

import regard
from regard.adapt.heads import head_sites
from regard.cli import main
from regard.data.sources.dependencies import read_trees
from regard.errors import UserError
from regard.parts import Inputs
from regard.training import curves

TREES = Path(__file__).parents[2] / "docs" / "sentences.conllu"
TEXTS = [(" ".join(tree.words), "long" if len(tree.words) > 8 else "short") for tree in read_trees(TREES)]
SMALL = {
    "model.size": "tiny", "model.width": 32, "model.heads": 4, "model.layers": 2, "model.inner": 32,
    "data.ngrams.order": 0, "tokenizer.vocab": 280, "train.tokens": 400, "train.steps": 2, "train.tensorboard": False,
    "device": "cpu",
}  # fmt: skip
HEADS = "1.2,2.1,2.4"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A BERT classifier whose tokenizer transformers can read, and the same without some heads."""
    folder = tmp_path_factory.mktemp("pruned")
    patch = pytest.MonkeyPatch()
    patch.setattr(curves, "draw", lambda folder: None)
    own = SMALL | {"tokenizer.kind": "wordpiece", "tokenizer.normalize": "lower"}
    regard.train("classify", own, data={"train": TEXTS}, out=folder / "whole")
    regard.prune(folder / "whole", heads=HEADS, out=folder / "pruned")
    yield folder
    patch.undo()


def test_a_pruned_run_equals_the_muted_one(folders, capsys):
    pruned, whole = regard.load(folders / "pruned"), regard.load(folders / "whole")
    muted = whole.muted(HEADS)
    assert pruned.run.pruned_heads == ("1.2", "2.1", "2.4")
    assert [len(site.heads) for site in head_sites(pruned.module)] == [3, 2]
    tokens = Inputs("tokens", torch.tensor([[1, 20, 30, 40, 2]]))
    with torch.no_grad():
        found, wanted, full = (each.module(tokens) for each in (pruned, muted, whole))
    assert (found - wanted).abs().max() < 1e-5 and not torch.equal(full, wanted)
    assert main(["prune", str(folders / "pruned"), "--heads", "1.1", "--out", str(folders / "again")]) == 0
    assert "1 removed, 4 left: 1.1" in capsys.readouterr().out
    again = regard.load(folders / "again")  # heads keep their numbers
    assert [str(head) for head in head_sites(again.module)[0].heads] == ["1.3", "1.4"]
    with torch.no_grad():
        assert (again.module(tokens) - whole.muted(f"1.1,{HEADS}").module(tokens)).abs().max() < 1e-5


def test_a_pruned_run_trains_on_and_is_tuned(folders):
    settings = {"start": str(folders / "pruned"), "train.steps": 2, "train.tokens": 400, "train.tensorboard": False}
    tuned = regard.train("classify", settings, data={"train": TEXTS}, device="cpu", out=folders / "more")
    assert tuned.run.pruned_heads == ("1.2", "2.1", "2.4")
    assert [len(site.heads) for site in head_sites(tuned.module)] == [3, 2]
    lora = regard.train(
        "classify",
        settings | {"tune.kind": "lora", "tune.rank": 2},
        data={"train": TEXTS},
        device="cpu",
        out=folders / "lora",
    )
    assert lora.predict(TEXTS[0][0]) in ("long", "short")
    with pytest.raises(UserError, match="is tuned over another model by lora; prune its base, or merge it first"):
        regard.prune(folders / "lora", heads="1.1", out=folders / "x")
    with pytest.raises(UserError, match="is tuned over a pruned model, which PEFT cannot load"):
        regard.convert(folders / "lora", to="peft", out=folders / "x")


def test_the_export_has_zeros_for_pruned_heads(folders):
    report = regard.convert(folders / "pruned", to="huggingface", out=folders / "hf")
    assert report["heads"] == "3 pruned heads are zeros: the format has as many heads in every layer"
    theirs = hf.AutoModelForSequenceClassification.from_pretrained(folders / "hf").eval()
    predictor = regard.load(folders / "pruned")
    (row,) = predictor.texts.rows([TEXTS[0][0]])
    tokens = torch.tensor(row.tolist())[None].long()
    with torch.no_grad():
        assert (theirs(tokens).logits - predictor.module(Inputs("tokens", tokens))).abs().max() < 1e-5
    weight = theirs.bert.encoder.layer[0].attention.output.dense.weight
    assert not weight[:, 8:16].any() and weight[:, :8].any()


def test_the_least_useful_heads(folders, tmp_path):
    effects = {"1.1": 0.3, "1.2": 0.0, "1.3": -0.1, "1.4": 0.2, "2.1": 0.01, "2.2": 0.0, "2.3": 0.005, "2.4": 0.002}
    path = tmp_path / "effect.json"
    path.write_text(json.dumps({"heads": [{"head": name, "zero": value} for name, value in effects.items()]}))
    report = regard.prune(folders / "whole", heads="least:3", effect=path, out=tmp_path / "out")
    assert report["heads"].endswith("1.3, 1.2, 2.2")
    for heads, effect, message in (
        ("least:7", path, "only 6 can go: every layer keeps one"),
        ("least:x", path, "expected least: and a number"),
        ("least:3", None, "which needs --effect FILE; write it with"),
        ("least:3", TREES, "is not an effect file; write one"),
        ("1.1", path, "--effect is for --heads least:K, but --heads is 1.1"),
        ("1.7", None, "--heads has 1.7, but layer 1 has no head 7"),
    ):
        with pytest.raises(UserError, match=message):
            regard.prune(folders / "whole", heads=heads, effect=effect, out=tmp_path / "x")
    path.write_text('{"heads": [{"head": "1.1", "zero": 1}]}')
    with pytest.raises(UserError, match=r"has no effect of head 1\.2; measure this run"):
        regard.prune(folders / "whole", heads="least:1", effect=path, out=tmp_path / "x")
    for run, out, message in ((tmp_path, "x", "is not a run folder"), (folders / "whole", "out", "exists; choose")):
        with pytest.raises(UserError, match=message):
            regard.prune(run, heads="1.1", out=tmp_path / out)


def test_a_run_with_wrong_names_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"pruned_heads has 9\.1, but layer 9 has no such attention"):
        regard.train("classify", SMALL | {"pruned_heads": "9.1"}, data={"train": TEXTS}, out=tmp_path / "x")
