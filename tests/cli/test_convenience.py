"""Explanations, info, quiet, JSON and progress of the command line."""

import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import reads
from helpers.runs import copy_run

import regard
from regard import progress
from regard.cli import main
from regard.config.explain import explain_setting
from regard.config.run import resolve_run
from regard.recipes import recipe_names

KEY = re.compile(r"[a-z][a-z0-9_]*")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that a test resumes."""
    stored = reads.stored_run("classify", train__steps=4, train__eval_every=2)
    return copy_run(stored.parent, tmp_path_factory.mktemp("runs") / "classify") / "run"


def cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    return code, *capsys.readouterr()


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = cli(capsys, "train", "classify", "--explain", "train.lr", "train.lr=0.1")
    assert code == 0 and out.splitlines() == [
        "train.lr: peak learning rate",
        "  range    a number, more than 0",
        "  default  0.0005",
        "  value    0.1 (command line)",
    ]
    code, out, _ = cli(capsys, "train", "classify", "--explain", "train.schedule", "--json")
    kind, floor = map(json.loads, out.splitlines())
    assert kind["range"] == "one of noam, cosine, linear, constant, wsd" and kind["default"] == "noam"
    assert kind["origin"] == "recipe classify" and floor["range"] == "a number, at least 0, less than 1"
    for key, hint in (("train.lrr", "did you mean train.lr?"), ("lr", "did you mean train.lr?")):
        code, _, message = cli(capsys, "train", "classify", "--explain", key)
        assert (code, message) == (2, f"regard: {key} is not a key; {hint}\n")
    code, _, message = cli(capsys, "train", "classify", "--explain", "xyzxyz")
    assert code == 2 and "`regard train classify --show all` lists the keys" in message
    assert cli(capsys, "train", "--explain", "train.lr")[0] == 2


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_key_of_every_recipe_has_a_meaning(recipe: str) -> None:
    resolved = resolve_run(recipe)
    records = explain_setting(recipe, resolved, "all")
    assert [record["key"] for record in records] == list(resolved.origin)
    assert not [record["key"] for record in records if not record["meaning"]]


def test_explain_names_the_choices_of_registered_parts_and_the_kinds_of_slots(
    capsys: pytest.CaptureFixture[str],
) -> None:
    resolved = resolve_run("nat")
    ranges = {record["key"]: record["range"] for record in explain_setting("nat", resolved, "all")}
    assert ranges["model.size"] == "one of tiny, small, base, big"
    assert ranges["train.metric"] == "one of loss, perplexity, bleu, chrf, exact"
    assert "translate" in ranges["task"] and "nat-ctc" in ranges["model.family"]
    assert ranges["tokenizer.kind"] == "one of bpe, unigram, wordpiece, word, space, char, byte"
    _, out, _ = cli(capsys, "train", "translate", "--explain", "train.schedule.kind")
    assert out.splitlines()[2] == "           noam: The rate falls with the inverse square root of the step"


def test_info(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = cli(capsys, "info", str(run), "--json")
    facts = json.loads(out)
    assert code == 0 and (facts["task"], facts["family"], facts["steps"], facts["status"]) == (
        "classify",
        "bert",
        4,
        "finished",
    )
    predictor = regard.load(run)
    assert facts["parameters"] == sum(each.numel() for each in predictor.module.parameters())
    assert facts["bytes"] == sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    assert facts["versions"]["torch"] == torch.__version__ and facts["metrics"]["step"] == 4
    assert set(facts["data"]) == {"train", "valid", "test"} and facts["processors"] == {
        "text": "text",
        "label": "labels",
    }
    code, out, _ = cli(capsys, "info", str(run))
    assert "task classify\n" in out and "metrics accuracy" in out and f"parameters {facts['parameters']:,}\n" in out
    (tmp_path / "x").mkdir()
    code, _, message = cli(capsys, "info", str(tmp_path / "x"))
    assert code == 2 and "is not a run folder: it has no run.json; give one that `regard train` wrote" in message


def keys(value: Any) -> set[str]:
    """All keys inside a JSON value; those of tables by label or by setting are names of the data, not ours."""
    if isinstance(value, list):
        return {key for each in value for key in keys(each)}
    if not isinstance(value, dict):
        return set()
    named = ("labels", "confusion", "origin", "recipes", "families", "processors")
    return {*value, *(key for name, each in value.items() if name not in named for key in keys(each))}


def test_json_keys_have_no_spaces_or_hyphens(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    test = str(run.parent / "test.txt")
    for arguments in (
        ["info", str(run), "--json"], ["list", "--json"], ["eval", str(run), "--json"],
        ["predict", str(run), test, "--json"], ["score", str(run), test, "--json", "data.format=tsv"],
        ["convert", str(run), "--to", "huggingface", "--out", str(tmp_path / "hf"), "--json"],
        ["train", "--resume", "--out", str(run), "--json", "--quiet"],
    ):  # fmt: skip
        code, out, message = cli(capsys, *arguments)
        assert code == 0, message
        for line in out.splitlines():
            assert all(map(KEY.fullmatch, keys(json.loads(line)))), (arguments[0], keys(json.loads(line)))
    for line in [*(run / "metrics.jsonl").read_text().splitlines(), (run / "run.json").read_text()]:
        assert all(map(KEY.fullmatch, keys(json.loads(line))))


def test_help_and_quiet(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(capsys, "-h")[1].startswith("Usage: regard") and "--explain" in cli(capsys, "train", "-h")[1]
    loud, quiet = cli(capsys, "eval", str(run)), cli(capsys, "eval", str(run), "--quiet")
    assert loud[:2] == quiet[:2] and loud[2] and quiet[2] == ""
    assert cli(capsys, "-q", "train", "--resume", "--out", str(run))[1:] == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def work(stream: io.StringIO, seconds: float) -> str:
        with progress.show_progress(stream=stream):
            for some in progress.track([[1, 2]] * 5, "texts", 10, len):
                now[0] += seconds
                list(progress.track(some, "inner"))  # it does not report inside
            progress.report_stage("writing")
        return stream.getvalue()

    assert work(io.StringIO(), 0.1) == ""  # quick work shows nothing
    assert work(io.StringIO(), 10.0).splitlines() == [
        "regard: texts 2/10  0:00:40 left", "regard: texts 6/10  0:00:20 left", "regard: texts 10/10  0:00:00 left",
        "regard: writing",
    ]  # fmt: skip
    shown = work(Terminal(), 1.0)
    assert "texts 6/10" in shown and shown.count(progress.CLEAR) == 5 and progress.METER.get() is None
    with progress.show_progress(quiet=True):
        assert list(progress.track([1], "x")) == [1] and progress.METER.get() is None
