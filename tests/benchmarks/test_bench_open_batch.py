"""`python -m benchmarks.open_batch`: a line per case."""

import re

from benchmarks import open_batch


def test_a_figure_for_every_case(capsys, monkeypatch):
    monkeypatch.setattr(open_batch.torch, "set_num_threads", lambda count: None)
    open_batch.main(["--size", "tiny", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(re.search(r": -?\d+\.\d\d \(", line) for line in lines)
