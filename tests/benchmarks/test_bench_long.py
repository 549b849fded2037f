"""`python -m benchmarks long`: a row per program, and checks of equality."""

import pytest

from benchmarks import bench, long
from benchmarks.__main__ import main
from regard.errors import UserError


def test_long(capsys):
    assert main(["long", "--device", "cpu", "--size", "tiny", "--rounds", "2"]) == 0
    out = capsys.readouterr().out
    rows = [line.split("  ")[0] for line in out.splitlines()]
    assert rows.count("HF") == 3 and rows.count("regard") == 3 and "regard, blocks drawn" in rows
    assert "Longformer, first token global" in rows and "BigBird" in rows
    assert out.count("outputs differ by") == 3 and "in fp32" in out


def test_different_outputs_are_not_timed(monkeypatch):
    right = type(long.longformer.FORMAT).build_model

    def worse(*arguments):
        folder = right(*arguments)
        folder.model.encoder.layers[0].attention.near.kernel.radius += 1
        return folder

    monkeypatch.setattr(type(long.longformer.FORMAT), "build_model", worse)
    with pytest.raises(UserError, match="Longformer: outputs differ by .* in fp32, so nothing was timed"):
        bench("long", "cpu", "tiny", 1, "longformer")
