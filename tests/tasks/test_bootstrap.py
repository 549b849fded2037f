"""`regard eval A B`: the paired bootstrap of sacrebleu, which tests whether a difference is significant."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from helpers import marian, small
from helpers.runs import copy_run

import regard
from regard import api
from regard.api import compare
from regard.cli import main
from regard.errors import UserError
from regard.metrics.text import paired_bootstrap


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A trained run, and another one: the average of its checkpoints."""
    stored, folder = small.half_trained(), tmp_path_factory.mktemp("bootstrap")
    run = copy_run(stored, folder / "run")
    about = json.loads((run / "run.json").read_text())
    about["config"]["decode"] = {"kind": "greedy"}
    about["config"]["data"]["test"] = [[str(stored.parent / f"files/test.{side}")] for side in ("low", "up")]
    (run / "run.json").write_text(json.dumps(about))
    regard.convert(run, average=2, out=folder / "mean")
    return run, folder / "mean", small.sides_in(stored.parent / "files")["data.test"]


def test_equals_sacrebleu(tmp_path):
    """The numbers equal those of its command line, also for several references."""
    right = [text.upper() for text in marian.sentences(120)]
    draw = torch.Generator().manual_seed(3)
    dropped = lambda share: [  # noqa: E731
        " ".join(word for word in text.split() if torch.rand(1, generator=draw) > share) or "." for text in right
    ]
    systems, other = [dropped(0.3), dropped(0.25), dropped(0.05)], dropped(0.2)
    for name, texts in {"ref0": right, "ref1": other, **{f"s{i}": each for i, each in enumerate(systems)}}.items():
        (tmp_path / name).write_text("\n".join(texts) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", "ref0", "ref1", "-i", "s0", "s1", "s2", "--paired-bs", "-m", "bleu", "chrf",
         "ter", "--format", "text"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    wanted = [
        float(number) for three in re.findall(r"([\d.]+) \(([\d.]+) ± ([\d.]+)\)", done.stdout) for number in three
    ]
    chances = [float(number) for number in re.findall(r"p = ([\d.]+)", done.stdout)]
    signatures, found = paired_bootstrap(systems, [list(both) for both in zip(right, other, strict=True)])
    metrics = [result[name][key] for result in found for name in ("bleu", "chrf", "ter") for key in ("score", "mean", "interval")]  # fmt: skip
    assert metrics == pytest.approx(wanted, abs=0.051) and len(wanted) == 27  # sacrebleu rounds
    assert [result[name]["p"] for result in found[1:] for name in result] == pytest.approx(chances, abs=1e-4)
    assert all(signature in done.stdout for signature in signatures.values())
    assert signatures["bleu"].startswith("nrefs:2|bs:1000|seed:12345|case:mixed")
    assert found[2]["bleu"]["p"] < 0.01 and found[0]["bleu"]["p"] is None


def test_two_runs(runs, capsys):
    one, other, data = runs
    assert main(["eval", str(one), str(other), str(one), "--data", data, "decode.batch=16"]) == 0
    out = capsys.readouterr().out
    assert f"paired bootstrap against {one}" in out and out.count("bleu_signature") == 3 and "\nbleu signature " in out
    assert "nrefs:1|bs:1000|seed:12345" in out and " ± " in out
    assert main(["eval", str(one), str(other), str(one), "--data", data, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, second, third = found["systems"]
    metrics = regard.load(one).evaluate(small_sides(data))
    assert {key: first[key] for key in metrics} == metrics and first["run"] == str(one)
    assert first["bootstrap"]["bleu"]["p"] is None and 0 < second["bootstrap"]["bleu"]["p"] <= 1
    assert second["bleu"] == second["bootstrap"]["bleu"]["score"] != first["bleu"]
    assert third["bootstrap"]["chrf"]["p"] == 1.0  # the same run
    assert set(found["signatures"]) == {"bleu", "chrf", "ter"}


def small_sides(data: str):
    from regard.config.run import parse_data_files

    return parse_data_files(data)


def test_errors(runs, tmp_path, capsys, monkeypatch):
    one, other, data = runs
    copy = tmp_path / "copy"
    shutil.copytree(other, copy)
    about = json.loads((copy / "run.json").read_text())
    about["config"]["data"]["test"] = about["config"]["data"]["valid"]
    (copy / "run.json").write_text(json.dumps(about))
    with monkeypatch.context() as patch, pytest.raises(UserError, match="missing does not exist; give a run folder"):
        patch.setattr(api, "load", None)  # fails before any work
        compare([one, f"{one},{tmp_path}/missing"])
    with pytest.raises(UserError, match="have different test data; set one for all with --data"):
        compare([one, copy])
    assert compare([one, other])["systems"][1]["examples"] == 60
    assert main(["eval", str(one), "nowhere", "--data", data]) == 2
    assert "nowhere does not exist" in capsys.readouterr().err
