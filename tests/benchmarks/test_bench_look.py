"""`python -m benchmarks look`: the content of its report."""

import json

import pytest

from benchmarks import look
from benchmarks.__main__ import main


def test_look(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "browser_milliseconds", lambda path, rounds: 7)
    assert main(["look", "--device", "cpu", "--size", "tiny", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["bench"], found["size"]) == ("look", "tiny") and [row["weights"] for row in found["rows"]] == [
        "random",
        "peaked",
    ]
    random, peaked = found["rows"]
    assert (
        random["nats per head"] >= peaked["nats per head"] and 0 < random["MB"] < 1 and random["ms to interactive"] == 7
    )
