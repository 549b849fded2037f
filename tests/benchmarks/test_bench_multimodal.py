"""`python -m benchmarks multimodal`: mixed micro-batches beside those of one kind."""

import json

import torch

from benchmarks import multimodal
from benchmarks.__main__ import main


def test_multimodal(capsys):
    assert main(["multimodal", "--device", "cpu", "--size", "tiny", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bench"] == "multimodal"
    assert [section["name"] for section in found["sections"]] == ["training", "small-steps"]
    for section in found["sections"]:
        assert section["unit"] == "positions/s"
        assert [way["name"] for way in section["ways"]] == ["mixed", "text", "images", "sound"]
        assert [each["peer"] for each in section["ratios"]] == ["text", "images", "sound"]
        assert all(way["median"] > 0 for way in section["ways"])


def test_batches_have_as_many_positions_as_the_encoder_reads():
    workload = multimodal.make_workload("tiny", torch.device("cpu"))
    config = multimodal.omni.Config.model_validate(workload.model)
    model = multimodal.omni.Model(config)
    for kind in multimodal.KINDS:
        batch = multimodal.make_batch(kind, workload, config, 300)
        states = model.encode(batch["source"]).states
        assert states.shape[:2] == (len(batch["source"]), multimodal.row_positions(kind, workload, config))
    assert multimodal.make_workload("base", torch.device("cuda")).model["width"] == 512
