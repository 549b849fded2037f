"""`python -m benchmarks tune` and `python -m benchmarks.tune` at the smallest size: the content of their tables."""

import json
import sys

import pytest
from helpers import reads

from benchmarks import bench
from benchmarks.tune import __main__ as table


def test_every_method_is_timed():
    report = bench("tune", "cpu", "tiny", 1, None)
    training, reading = report.values()["sections"]
    assert [way["name"] for way in training["ways"]] == ["full", "lora", "adapter", "prompt", "prefix"]
    assert [way["name"] for way in reading["ways"]] == ["base", "beside", "merged"]
    assert all(way["median"] > 0 for section in (training, reading) for way in section["ways"])
    counts = [int(fact.split(": ")[1].split()[0].replace(",", "")) for fact in training["facts"]]
    assert all(count < counts[0] / 5 for count in counts[1:]) and "ms a step" in training["facts"][1]
    assert "lora ×" in report.table() and "logits differ by" in report.table()


def test_scores_of_a_task(tmp_path, capfd):
    base = reads.stored_run("masked", train__steps=2)
    parts = [f"data.{name}={base.parent / name}.txt" for name in ("train", "valid", "test")]
    words = [*parts, "train.steps=6", "train.log_every=2", "device=cpu", "lora:tune.rank=2", "full:train.lr=1e-4"]
    command = ["classify", f"start={base}", *words, "--seeds", "1", "--kinds", "lora"]
    table.main([*command, "--out", str(tmp_path / "runs"), "--json"])
    found = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert list(found) == ["lora"] and 0 <= found["lora"][0]["score"] <= 1
    assert 0 < found["lora"][0]["trained"] < found["lora"][0]["every"] / 4
    assert 0 < found["lora"][0]["file"] < 0.03 and found["lora"][0]["step"] > 0 and found["lora"][0]["peak"] > 50
    about = json.loads((tmp_path / "runs/lora-1/run.json").read_text())["config"]
    assert about["tune"]["rank"] == 2 and about["train"]["lr"] == 1e-3 and about["train"]["seed"] == 1
    lines = [" ".join(row) for row in table.table_rows({"lora": found["lora"] * 2})]
    assert lines[0].split()[:2] == ["score", "seeds"] and "± 0.0000 2" in lines[1]


@pytest.mark.parametrize("word", ["steps", "lore:train.lr=1"])
def test_a_malformed_setting_is_an_error(word, monkeypatch):
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    with pytest.raises(
        SystemExit, match="is not a setting; expected key=value|lore is not a kind; expected one of full"
    ):
        table.main(["classify", word, "--seeds", "1"])


def test_an_error_of_a_training_is_printed(tmp_path, capfd):
    with pytest.raises(SystemExit) as end:
        table.main(["classify", "start=nowhere", "--seeds", "1", "--kinds", "lora", "--out", str(tmp_path)])
    assert end.value.code == 2
    output = capfd.readouterr().err
    assert output.startswith("regard: ") and "nowhere" in output and "Traceback" not in output


def test_step_seconds_excludes_evaluations():
    train = [{"event": "train", "step": step, "seconds": seconds} for step, seconds in ((1, 0.0), (3, 1.0), (5, 9.0))]
    assert (
        table.step_seconds([*train[:2], {"event": "valid"}, train[2], {"event": "train", "step": 9, "seconds": 13.0}])
        == 0.75
    )
