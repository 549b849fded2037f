"""`python -m benchmarks.align` on few dates: the content of its table."""

from datetime import timedelta

import pytest
from helpers import small
from helpers.runs import tiny_run

from benchmarks import align
from regard.synthetic import dates


def test_both_aligners_are_measured(capsys, monkeypatch):
    own = {"data.examples": 30, "train.steps": 1}
    run = tiny_run("dates", patches={"regard.synthetic.dates.HELD_OUT": 60}, **small.TINY | own)
    monkeypatch.setattr(dates, "HELD_OUT", 60)  # of fewer days: making dates takes longer than aligning them
    monkeypatch.setattr(dates, "FIRST_DAY", dates.LAST_DAY - timedelta(4000))
    align.main([str(run)], examples=100)
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["aligner", "symmetrization", "precision", "recall", "aer", "seconds"]
    assert [row.split()[-5] for row in rows] == 2 * list(align.KINDS)
    assert [row.split()[0] for row in rows] == ["IBM"] * 5 + ["attention"] * 5
    values = align.measure(None, "grow-diag-final-and", 100)
    assert values["aer"] == pytest.approx(float(rows[0].split()[-2]), abs=1e-4)
