"""NaN weights are refused by name when they are loaded; outputs that are not finite give a sentence and exit code 2."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import bert, causal, marian, reads
from safetensors.torch import load_file, save_file

import regard
from regard.cli import main
from regard.errors import UserError
from regard.files import json_line
from regard.parts.finite import nonfinite_name

NOT_FINITE = "the model gives numbers that are not finite"


def change_weights(path: Path, name: str, change: Callable[[torch.Tensor], Any]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors[name])
    save_file(tensors, path / "model.safetensors", {"format": "pt", "step": "1"})


def refused(words: str, call: Callable[[], object]) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert words in str(error.value) and "\n" not in str(error.value)


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(
    tmp_path: Path, value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bert.folder(tmp_path / "x", "BertForSequenceClassification")
    name = "bert.encoder.layer.1.output.dense.weight"
    change_weights(path, name, lambda weight: weight[2].fill_(value))
    (tmp_path / "texts").write_text("the cat\n")
    for more in ([], ["--details"]):
        capsys.readouterr()
        assert main(["predict", str(path), str(tmp_path / "texts"), *more]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert f"'{name.removeprefix('bert.')}' of the checkpoint has NaN or infinite values; fetch the folder" in err


def test_weights_of_a_run_are_checked_too(tmp_path: Path) -> None:
    run = reads.train_run("classify", tmp_path, train__steps=1)
    change_weights(run, "classes.weight", lambda weight: weight[0].fill_(math.nan))
    refused(f"classes.weight in {run / 'model.safetensors'} has NaN or infinite values", lambda: regard.load(run))


def test_weights_of_an_adapter_are_checked_too(tmp_path: Path) -> None:
    from regard.formats.peft import read

    tensors = {"base_model.model.a.lora_A.weight": torch.tensor([[1.0, math.nan]])}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    refused("'base_model.model.a.lora_A.weight' of", lambda: read._read_tensors(tmp_path))


def test_large_weights_are_finite() -> None:
    assert nonfinite_name({"a": torch.full((4,), 3e38), "b": torch.tensor([1, 2])}) is None
    assert nonfinite_name({"a": torch.zeros(3), "b": torch.tensor([3e38, 3e38, math.inf])}) == "b"


# --- outputs ---------------------------------------------------------------------------------------------------------


def overflow(weight: torch.Tensor) -> None:
    """Finite weights whose products are not."""
    weight.copy_(weight.sign() * 3e38)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("BertForSequenceClassification", "classifier.weight"),
        ("BertForTokenClassification", "classifier.weight"),
        ("BertForMaskedLM", "cls.predictions.transform.LayerNorm.weight"),
    ],
)
def test_encoders(tmp_path: Path, kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = bert.folder(tmp_path / "x", kind)
    change_weights(path, name, overflow)
    predictor = regard.load(path, device="cpu")
    for details in (False, True):
        refused(NOT_FINITE, lambda details=details: predictor.predict(["the [MASK] sat"], details=details))  # type: ignore[misc]
    columns = {
        "classify": "the cat\tLABEL_0\na dog\tLABEL_1\n",
        "tag": "the LABEL_0\ncat LABEL_1\n\n",
        "masked": "the cat\n" * 9,
    }
    file = tmp_path / "test.tsv"
    file.write_text(columns[predictor.run.task])
    refused(NOT_FINITE, lambda: predictor.evaluate(((str(file),),)))
    if predictor.run.task == "classify":
        refused(NOT_FINITE, lambda: predictor.score(["the cat"], ["LABEL_1"]))
    file.write_text("the [MASK] sat\n")
    assert main(["predict", str(path), str(file), "--details", "device=cpu"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and NOT_FINITE in err


def test_embeddings(tmp_path: Path) -> None:
    path = bert.folder(tmp_path / "x")
    change_weights(path, "embeddings.LayerNorm.weight", overflow)
    predictor = regard.load(path, device="cpu")
    refused(NOT_FINITE, lambda: predictor.embed(["the cat"]))
    refused(NOT_FINITE, lambda: predictor.similar("the cat", ["a", "b"]))


def test_language_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = causal.llama(tmp_path / "x")
    change_weights(path, "lm_head.weight", overflow)
    predictor = regard.load(path, device="cpu")
    for kind in ("greedy", "beam", "sample"):
        decode = {"kind": kind, "max_tokens": 4}
        refused(NOT_FINITE, lambda decode=decode: predictor.predict(["the cat"], **decode))  # type: ignore[misc]
        refused(NOT_FINITE, lambda decode=decode: list(predictor.stream("the cat", **decode)))  # type: ignore[misc]
    refused(NOT_FINITE, lambda: predictor.score(["the cat"]))
    (tmp_path / "text.txt").write_text("the cat sees the dog\n" * 3)
    refused(NOT_FINITE, lambda: predictor.evaluate(((str(tmp_path / "text.txt"),),)))
    assert main(["predict", str(path), "--prompt", "the cat", "device=cpu"]) == 2
    assert NOT_FINITE in capsys.readouterr().err


@pytest.mark.parametrize("taught", [True, False])  # numbers of the first step are finite, or not
def test_translators(taught: bool, tmp_path: Path) -> None:
    path = marian.folder(tmp_path / "x", taught=taught)
    change_weights(path, "model.decoder.layers.2.final_layer_norm.weight", overflow)
    predictor = regard.load(path, device="cpu")
    for decode in ({}, {"kind": "greedy"}):
        refused(NOT_FINITE, lambda decode=decode: predictor.predict(["the cat"], **decode))  # type: ignore[misc]
        refused(NOT_FINITE, lambda decode=decode: list(predictor.stream("the cat", **decode)))  # type: ignore[misc]
    refused(NOT_FINITE, lambda: predictor.score(["the cat"], ["THE CAT"]))


def test_json_has_no_nan() -> None:
    value = {"a": [1.0, math.nan, (math.inf, "x")], "b": {"c": -math.inf, "d": None}, "e": "é"}
    with pytest.warns(UserWarning, match="a number is NaN or infinite, which JSON does not have; it is null"):
        line = json_line(value)
    assert json.loads(line) == {"a": [1.0, None, [None, "x"]], "b": {"c": None, "d": None}, "e": "é"}
    assert json_line({"a": 1.5, "b": "é"}) == '{"a": 1.5, "b": "é"}'
