"""`python -m benchmarks.classify` at its smallest size: both programs train from the same weights."""

import pytest

from benchmarks import classify


def test_both_programs_are_measured(capsys):
    pytest.importorskip("accelerate")
    classify.main(classify.Settings(examples=40, steps=2, batch=8, seeds=(1,)), ("pairs", "number"))
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["task", "metric", "program"]
    assert [row.split()[0] for row in rows] == ["pairs", "pairs", "number", "number"]
    assert all(-1 <= float(row.split()[-1]) <= 1 for row in rows)
