"""An encoder with one label is a regressor: its number is the logit of transformers, and it is exported as one."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import transformers as hf
from helpers import bert, long, reads
from helpers.parity import change_config

import regard
from regard.cli import main
from regard.errors import UserError
from regard.formats.convert import exporters
from regard.formats.huggingface.labels import PROBLEM_TYPE
from regard.metrics.regression import ranks, regression_metrics

TEXTS = ["the cat sat", "Hello world!", "unaffable", "a b c"]
FOLDERS: dict[str, tuple[Any, str]] = {
    "bert": (bert.folder, "BertForSequenceClassification"),
    "longformer": (long.longformer, "LongformerForSequenceClassification"),
    "bigbird": (long.bigbird, "BigBirdForSequenceClassification"),
}


def theirs(path: Path, kind: str, texts: list[str]) -> list[float]:
    """The logits of transformers, each text alone."""
    model, ours = getattr(hf, kind).from_pretrained(path).eval(), regard.load(path, device="cpu")
    assert model.config.num_labels == 1
    rows = [[ours.tokenizer.start, *ids, ours.tokenizer.end] for ids in ours.tokenizer.encode(texts)]
    with torch.no_grad():
        return [model(torch.tensor([row])).logits.item() for row in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert.folder(tmp_path_factory.mktemp("regression") / "x", "BertForSequenceClassification", num_labels=1)


@pytest.mark.parametrize("family", FOLDERS)
@pytest.mark.parametrize("problem", [None, "regression"])
def test_the_number_is_the_logit_of_transformers(family: str, problem: str | None, tmp_path: Path) -> None:
    write, kind = FOLDERS[family]
    path = write(tmp_path / "x", kind, num_labels=1, problem_type=problem)
    ours, wanted = regard.load(path, device="cpu"), theirs(path, kind, TEXTS)
    assert ours.predict(TEXTS) == pytest.approx(wanted, abs=1e-4) and len({f"{each:.3f}" for each in wanted}) > 2
    assert ours.predict(TEXTS[0]) == pytest.approx(wanted[0], abs=1e-4)
    (record,) = ours.predict(TEXTS[:1], details=True)
    assert record["value"] == pytest.approx(wanted[0], abs=1e-4) and record["notices"] == []
    assert ours.embed(TEXTS).shape == (4, 36)


def test_the_command_prints_numbers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(["the cat sat", "", "unaffable"]) + "\n")
    first, last = theirs(folder, "BertForSequenceClassification", ["the cat sat", "unaffable"])
    capsys.readouterr()
    assert main(["predict", str(folder), str(texts), "device=cpu"]) == 0
    out, err = capsys.readouterr()
    lines = out.split("\n")
    assert lines[1] == lines[3] == "" and "empty" in err
    assert [float(lines[0]), float(lines[2])] == pytest.approx([first, last], abs=1e-4)
    assert main(["predict", str(folder), str(texts), "--details", "device=cpu"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["value"] for each in records] == [pytest.approx(first, abs=1e-4), None, pytest.approx(last, abs=1e-4)]
    assert main(["predict", str(folder), str(texts), "--top", "2", "device=cpu"]) == 2
    assert "decode.top is 2, but this model has no labels to rank" in capsys.readouterr().err
    assert main(["score", str(folder), str(texts), "device=cpu"]) == 2
    assert "this model gives a number for a text and no probability; use predict, or eval" in capsys.readouterr().err


def test_metrics(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = [0.5, -2.0, 3.25, 0.5]
    data = tmp_path / "test.tsv"
    data.write_text("".join(f"{text}\t{number}\n" for text, number in zip(TEXTS, gold, strict=True)))
    found = theirs(folder, "BertForSequenceClassification", TEXTS)
    metrics = regard.load(folder, device="cpu").evaluate(((str(data),),))
    assert metrics["examples"] == 4
    assert metrics["mse"] == pytest.approx(np.mean((np.array(found) - gold) ** 2), rel=1e-4)
    assert metrics["pearson"] == pytest.approx(scipy.stats.pearsonr(found, gold).statistic, abs=1e-4)
    assert metrics["spearman"] == pytest.approx(scipy.stats.spearmanr(found, gold).statistic)
    capsys.readouterr()
    assert main(["eval", str(folder), "--data", str(data), "device=cpu"]) == 0
    assert f"pearson {metrics['pearson']:.4f}" in capsys.readouterr().out
    assert main(["eval", str(folder), str(folder), "--data", str(data), "--json"]) == 0
    systems = json.loads(capsys.readouterr().out)["systems"]
    assert systems[0]["mse"] == systems[1]["mse"] == pytest.approx(metrics["mse"])
    for wrong in ("good", "nan"):
        data.write_text(f"the cat\t1\na b\t{wrong}\n")
        assert main(["eval", str(folder), "--data", str(data)]) == 2
        err = capsys.readouterr().err
        assert f"test.tsv:2: no number under 'label' but \"{wrong}\"; correct it, or set data.invalid=skip" in err


def test_metrics_equal_scipy_and_leave_out_what_does_not_exist() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        ours, gold = draw.integers(0, 6, 12).astype(float), draw.normal(size=12)
        found = regression_metrics(list(ours), list(gold))
        assert (ranks(ours) == scipy.stats.rankdata(ours)).all()
        assert found["spearman"] == pytest.approx(scipy.stats.spearmanr(ours, gold).statistic)
        assert found["pearson"] == pytest.approx(scipy.stats.pearsonr(ours, gold).statistic)
        assert found["mae"] == pytest.approx(np.abs(ours - gold).mean())
    assert regression_metrics([1.0, 1.0], [0.0, 3.0]) == {"mse": 2.5, "rmse": 2.5**0.5, "mae": 1.5}


@pytest.mark.parametrize("family", ["bert", "longformer"])
def test_an_export_stays_a_regressor(family: str, tmp_path: Path) -> None:
    write, kind = FOLDERS[family]
    path = write(tmp_path / "x", kind, num_labels=1, id2label={0: "stars"}, label2id={"stars": 0})
    ours, out = regard.load(path, device="cpu"), tmp_path / "out"
    (exporter,) = exporters("huggingface")[family]
    exporter.write(ours, out, "fp32")
    assert "transformers" in exporter.verify(ours, out, "fp32")
    config = json.loads((out / "config.json").read_text())
    assert config["problem_type"] == "regression" and config["id2label"] == {"0": "stars"}
    assert theirs(out, kind, TEXTS) == pytest.approx(theirs(path, kind, TEXTS), abs=1e-4)
    loss = getattr(hf, kind).from_pretrained(out)(torch.tensor([[1, 5, 2]]), labels=torch.tensor([0.5])).loss
    assert torch.isfinite(loss)  # transformers continues it as a regressor
    classifier = SimpleNamespace(head="class", labels=2)
    assert exporter.unsupported(ours.run.model) == [] and not PROBLEM_TYPE.write(classifier)


def test_other_problem_types_are_refused(tmp_path: Path) -> None:
    path = bert.folder(tmp_path / "x", "BertForSequenceClassification", num_labels=3)
    for kind, words in (
        ("regression", "problem_type is 'regression' with 3 labels; regard reads regressors of one number"),
        ("ranking", "problem_type is 'ranking'; expected one of single_label_classification, multi_label_"),
    ):
        change_config(path, problem_type=kind)
        with pytest.raises(UserError, match=words):
            regard.load(path)


def test_a_classifier_may_start_from_a_regressor(folder: Path, tmp_path: Path) -> None:
    data = reads.write_texts(tmp_path / "train.txt", reads.labeled_examples(40, 0))
    settings = {"start": str(folder), "data.train": str(data), "train.steps": 1, "train.tensorboard": False}
    run = regard.train("classify", settings | {"device": "cpu"}, out=tmp_path / "run")
    assert run.predict("so happy") in ("glad", "sad") and run.run.model.labels == 2
