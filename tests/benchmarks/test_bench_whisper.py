"""`python -m benchmarks whisper` beside Hugging Face."""

import json
from typing import Any

import pytest

from benchmarks import bench, whisper
from benchmarks.__main__ import main
from regard.errors import UserError


def test_whisper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whisper", "--device", "cpu", "--size", "tiny", "--rounds", "2", "--json"]) == 0
    out, progress = capsys.readouterr()
    found = json.loads(out)
    assert (found["bench"], found["size"], found["notes"]) == ("whisper", "tiny", [])
    ways = {section["name"]: [way["name"] for way in section["ways"]] for section in found["sections"]}
    peers = {"transcribing": "HF generate", "decoding": "HF generate", "features": "HF WhisperFeatureExtractor"}
    assert ways == {f"{part}, {rows} at once": ["regard", peer] for part, peer in peers.items() for rows in (1, 3)}
    for section in found["sections"]:
        assert all(len(way["rates"]) == 2 and way["median"] > 0 for way in section["ways"])
        assert section["name"] in progress  # figures appear as they come
        assert "same tokens" in section["facts"][1] or "differ by at most" in section["facts"][1]


@pytest.mark.parametrize("part", ["decoding", "features"])
def test_a_missing_peer_is_left_out(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whisper, "installed", lambda package, notes: notes.append(f"{package} is not there"))
    report = bench("whisper", "cpu", "tiny", 1, part)
    assert all([*section.rates] == ["regard"] for section in report.sections)
    assert report.notes == ["transformers is not there"]


def test_what_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = whisper.make_workload("tiny")
    whole = [[*range(workload.tokens)]]
    with pytest.raises(UserError, match="HF gave 5 tokens instead of 6, so nothing was timed"):
        whisper.compare({"regard": whole, "HF": [whole[0][1:]]}, workload)
    with pytest.raises(UserError, match="HF gave 0 of 1 texts as regard does in fp32, so nothing was timed"):
        whisper.compare({"regard": whole, "HF": [whole[0][::-1]]}, workload)

    def louder(*given: Any) -> Any:
        return theirs(*given) + 0.01

    theirs = whisper.their_features
    monkeypatch.setattr(whisper, "their_features", louder)
    with pytest.raises(UserError, match=r"the features differ by 1.0e-02, so nothing was timed"):
        bench("whisper", "cpu", "tiny", 1, "features")
