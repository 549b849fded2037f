"""`python -m benchmarks vision`: models beside Hugging Face, images beside its processor, and checks of equality."""

import json

import pytest
import torch

from benchmarks import bench, vision
from benchmarks.__main__ import main
from regard.errors import UserError


def test_vision(capsys):
    assert main(["vision", "--device", "cpu", "--size", "tiny", "--rounds", "2", "--json"]) == 0
    out, progress = capsys.readouterr()
    found = json.loads(out)
    assert (found["bench"], found["size"], found["notes"]) == ("vision", "tiny", [])
    ways = {section["name"]: [way["name"] for way in section["ways"]] for section in found["sections"]}
    assert ways == {
        "ViT forward": ["regard", "HF"],
        "ViT training": ["regard", "HF"],
        "DETR forward": ["regard", "HF"],
        "images, evaluation": ["regard", "HF Pil"],
        "images, training": ["crop + flip", "crop + flip + RandAugment 2"],
    }
    for section in found["sections"]:
        assert all(len(way["rates"]) == 2 and way["median"] > 0 for way in section["ways"])
        assert len(section["ratios"]) == (0 if section["name"] == "images, training" else 1)
        assert section["name"] in progress  # figures appear as they come


def test_different_outputs_are_not_timed():
    models = {"regard": lambda x: x, "HF": lambda x: x + 1e-3}
    with pytest.raises(UserError, match=r"HF gave outputs that differ by 1.* nothing was timed"):
        vision.compare(models, torch.ones(2))
    with pytest.raises(UserError, match="regard gave outputs that differ by nan"):
        vision.compare({"regard": lambda x: x * torch.nan}, torch.ones(2))


def test_a_missing_peer_is_left_out(monkeypatch):
    monkeypatch.setattr(vision, "installed", lambda package, notes: notes.append(f"{package} is not there"))
    report = bench("vision", "cpu", "tiny", 1, "detr")
    assert [*report.sections[0].rates] == ["regard"] and report.notes == ["transformers is not there"]


def test_workloads():
    gpu, cpu = (vision.make_workload("base", torch.device(name)) for name in ("cuda", "cpu"))
    assert (gpu.batch, gpu.detr_batch, gpu.height) == (64, 8, 800) and cpu.batch < gpu.batch
    assert gpu.vit["width"] == 768 and gpu.vit["patch"] == 16


def test_photos_have_the_size_of_photographs(tmp_path):
    from PIL import Image

    paths = vision.write_photos(tmp_path, 2)
    assert Image.open(paths[0]).size == (500, 375) and paths[0].read_bytes() != paths[1].read_bytes()
    assert 30_000 < paths[0].stat().st_size < 100_000
