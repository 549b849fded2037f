"""`python -m benchmarks scaling`: growth, crossings and memory on known curves, and a line per variant in every output."""

import json

import pytest
import torch
from torch import nn

from benchmarks import bench, scaling
from benchmarks.__main__ import main
from regard.errors import UserError

LENGTHS = [512, 1024, 2048, 4096]


def test_growth_exponent() -> None:
    for power in (0.5, 1.0, 2.0):
        assert scaling.growth(LENGTHS, [3e-3 * n**power for n in LENGTHS], 512) == pytest.approx(power)
    bent = [1.0, 1.0, 2048.0**2, 4096.0**2]
    assert scaling.growth(LENGTHS, bent, 2048) == pytest.approx(2)
    assert scaling.growth(LENGTHS, bent, 512) > 3


def test_crossing_length() -> None:
    dense = [n**2.0 for n in LENGTHS]
    assert scaling.crossing(LENGTHS, dense, [1500.0 * n for n in LENGTHS]) == pytest.approx(1500)
    assert scaling.crossing(LENGTHS, dense, [1024.0 * n for n in LENGTHS]) == pytest.approx(1024)
    assert scaling.crossing(LENGTHS, dense, [100.0 * n for n in LENGTHS]) == 0
    assert scaling.crossing(LENGTHS, dense, [5000.0 * n for n in LENGTHS]) is None
    wavy = [d * share for d, share in zip(dense, (0.5, 2, 0.5, 0.25), strict=True)]  # faster, slower, then faster
    assert 1024 < scaling.crossing(LENGTHS, dense, wavy) < 2048
    formatted = [scaling.format_crossing(each, LENGTHS) for each in (None, 0.0, 1499.7)]
    assert formatted == ["not up to 4,096", "from 512 or less", "from 1,500 tokens"]


def test_peak_bytes_counts_live_tensors() -> None:
    class Holding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.zeros(3, 2**18)  # freed at once
            held = torch.zeros(2**18), torch.zeros(2**18)
            return x * (1 + len(held))

    x = torch.randn(4, requires_grad=True)
    assert 3 * 2**20 <= scaling.peak_bytes(Holding(), x) < 3 * 2**20 + 1000


def test_scaling(capsys, tmp_path) -> None:
    picture = tmp_path / "picture.png"
    options = ["scaling", "--device", "cpu", "--size", "tiny", "--rounds", "1"]
    assert main([*options, "--out", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, variant in scaling.VARIANTS.items():
        assert sum(line.startswith(f"{name} ") for line in lines) >= 4
        assert any(line.startswith(name) and variant.theory in line for line in lines)
    assert "peak MiB" in " ".join(lines) and picture.read_bytes().startswith(b"\x89PNG")
    assert main([*options, "--only", "layer", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (part,) = report["parts"]
    assert part["part"] == "layer" and part["lengths"] == [32, 64, 128] and set(part["ways"]) == set(scaling.VARIANTS)
    for own in part["ways"].values():
        assert len(own["seconds"]) == len(own["bytes"]) == 3 and min(own["seconds"]) > 0 and min(own["bytes"]) > 0
        assert own["bytes"] == sorted(own["bytes"])


def test_a_layer_needs_more_memory_than_its_attention() -> None:
    workload, found = scaling.make_workload("tiny", torch.device("cpu")), {}
    for part in scaling.PARTS:
        found[part] = scaling.measure(workload, part, 64, 1, torch.device("cpu"))
    assert all(found["layer"][name][1] > found["attention"][name][1] for name in scaling.VARIANTS)


def test_only_scaling_takes_out(tmp_path) -> None:
    with pytest.raises(UserError, match="--out takes a picture and the benchmark generate has none"):
        bench("generate", "cpu", "tiny", 1, None, tmp_path / "x.png")
    for wrong in (tmp_path, tmp_path / "none" / "x.png"):  # checked before anything is timed
        with pytest.raises(UserError, match="give a file name in an existing folder"):
            bench("scaling", "cpu", "usual", 1000, None, wrong)
    assert scaling.make_workload("usual", torch.device("cuda")).lengths[-1] == 65536
    assert scaling.make_workload("usual", torch.device("cpu")).lengths[-1] == 16384
