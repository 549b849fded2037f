"""`python -m benchmarks.align` on few dates: the content of its table."""

from datetime import timedelta

import pytest
from helpers import small
from helpers.runs import tiny_run

from benchmarks import align
from regard.synthetic import dates


def test_both_aligners_are_measured(capsys, monkeypatch, tmp_path):
    own = {"data.examples": 30, "train.steps": 1}
    run = tiny_run("dates", patches={"regard.synthetic.dates.HELD_OUT": 60}, **small.TINY | own)
    monkeypatch.setattr(dates, "HELD_OUT", 60)  # of fewer days: making dates takes longer than aligning them
    monkeypatch.setattr(dates, "FIRST_DAY", dates.LAST_DAY - timedelta(4000))
    align.main([str(run)], examples=100)
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["aligner", "symmetrization", "precision", "recall", "aer", "seconds"]
    assert [row.split()[-5] for row in rows] == 2 * list(align.KINDS)
    assert [row.split()[0] for row in rows] == ["IBM"] * 5 + ["attention"] * 5
    (tmp_path / "a.en").write_text("7:21 AM\n8:05 PM\n")
    (tmp_path / "a.de").write_text("07:21\n20:05\n")
    files = f"{tmp_path}/a.en,{tmp_path}/a.de"
    align.main([str(run)], pairs=files, fit=files)
    _, *rows_of_files = capsys.readouterr().out.splitlines()
    assert [row.split()[:2] for row in rows_of_files] == [["attention", kind] for kind in align.KINDS]
    assert 0 <= float(rows_of_files[0].split()[-2]) <= 1
    values = align.measure(None, "grow-diag-final-and", 100)
    assert values["aer"] == pytest.approx(float(rows[0].split()[-2]), abs=1e-4)
