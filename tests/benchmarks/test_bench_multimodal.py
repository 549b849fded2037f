"""`python -m benchmarks multimodal`: mixed micro-batches beside those of one kind; manifests of real data sets."""

import gzip
import json
import struct

import numpy as np
import soundfile
import torch

from benchmarks import mixed_data, multimodal
from benchmarks.__main__ import main
from regard.cli.runner import run_app
from regard.config.data.mixed import MultitaskData
from regard.data.sources.manifest import open_manifests


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


def test_manifests_of_real_data_sets(tmp_path, monkeypatch):
    """Each split has its own examples, and the files that it names can be read."""
    for name in mixed_data.TEXTS.values():
        for language in ("en", "de"):
            with gzip.open(tmp_path / f"{name}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write("".join(f"{name} {language} {number}\n" for number in range(2)))
    for split, count in (("train", 5), ("t10k", 2)):
        for kind, array in (
            ("images-idx3", np.full((count, 4, 4), 7, np.uint8)),
            ("labels-idx1", np.arange(count, dtype=np.uint8)),
        ):
            head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
            (tmp_path / f"{split}-{kind}-ubyte").write_bytes(head + array.tobytes())
    for take in (0, 5, 10):
        soundfile.write(tmp_path / f"3_theo_{take}.wav", np.zeros(800), 8000)
    monkeypatch.setattr(mixed_data, "VALID_IMAGES", 2)
    assert run_app(mixed_data.app, "mixed_data", [*[str(tmp_path)] * 3, str(tmp_path / "out")]) == 0
    sizes = {}
    for split in mixed_data.TEXTS:
        for kind in ("text", "image", "audio"):
            lines = open_manifests([[str(tmp_path / "out" / f"{split}-{kind}.jsonl")]], MultitaskData())
            sizes[split, kind] = len(lines)
    assert list(sizes.values()) == [2, 3, 1, 2, 2, 1, 2, 2, 1]
    (line,) = [json.loads(each) for each in (tmp_path / "out/test-audio.jsonl").read_text().splitlines()]
    assert line["target"] == "three" and line["audio"].endswith("3_theo_0.wav")
    first = json.loads((tmp_path / "out/valid-image.jsonl").read_text().splitlines()[0])
    assert first == {"image": "images/train/00003.png", "target": "dress"}
