"""`python -m benchmarks.align` on few dates: the content of its table."""

from datetime import timedelta

import pytest
from helpers import small

import regard
from benchmarks import align
from regard.synthetic import dates


def test_both_aligners_are_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dates, "HELD_OUT", 60)  # of fewer days: making dates takes longer than aligning them
    monkeypatch.setattr(dates, "FIRST_DAY", dates.LAST_DAY - timedelta(4000))
    regard.train("dates", {**small.TINY, "data.examples": 30, "train.steps": 1}, out=tmp_path / "run")
    align.main([str(tmp_path / "run")], examples=300)
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["aligner", "symmetrization", "precision", "recall", "aer", "seconds"]
    assert [row.split()[-5] for row in rows] == 2 * list(align.KINDS)
    assert [row.split()[0] for row in rows] == ["IBM"] * 5 + ["attention"] * 5
    values = align.measure(None, "grow-diag-final-and", 300)
    assert values["aer"] == pytest.approx(float(rows[0].split()[-2]), abs=1e-4)
