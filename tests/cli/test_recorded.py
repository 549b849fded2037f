"""The command line prints what it printed before: same keys in the same order, same texts, same notices."""

import io
import json
import re
import sys
import warnings
from pathlib import Path

import pytest

from regard.cli import app as cli

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text(encoding="utf-8"))
NUMBER = re.compile(r"-?\d+\.\d+(e-?\d+)?")


def split_numbers(text: str) -> tuple[str, list[float]]:
    """The text without its decimal numbers, and these: their last digits depend on the machine."""
    return NUMBER.sub("#", text), [float(match.group()) for match in NUMBER.finditer(text)]


@pytest.mark.parametrize("call", RECORDED, ids=lambda call: " ".join(call["arguments"][:3]))
def test_output_is_as_recorded(call, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[1] / "old")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(call["stdin"].encode())))
    warnings.simplefilter("always")  # else Python shows a warning once per place
    assert cli.main(call["arguments"]) == 0
    out, err = capsys.readouterr()
    (words, numbers), (known, expected) = split_numbers(out), split_numbers(call["out"])
    assert words == known
    assert numbers == pytest.approx(expected, abs=1e-4)
    assert err == call["err"]
