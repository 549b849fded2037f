"""`python -m benchmarks speech` beside Hugging Face, and the data sets of `benchmarks.speech_data`."""

import json
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from benchmarks import bench, speech, speech_data
from benchmarks.__main__ import main
from regard.cli.runner import run_app
from regard.config.data.sound import SoundData
from regard.data.sources.sounds import TRANSCRIBED_SOUNDS
from regard.errors import UserError


def test_speech(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speech", "--device", "cpu", "--size", "tiny", "--rounds", "2", "--json"]) == 0
    out, progress = capsys.readouterr()
    found = json.loads(out)
    assert (found["bench"], found["size"], found["notes"]) == ("speech", "tiny", [])
    ways = {section["name"]: [way["name"] for way in section["ways"]] for section in found["sections"]}
    assert ways == {
        "training": ["regard", "regard with CTC", "HF Speech2Text"],
        "greedy": ["regard", "HF generate"],
        f"beam {speech.BEAM}": ["regard", "regard with CTC", "HF generate"],
        "frames": ["regard", "HF Speech2Text"],
    }
    for section in found["sections"]:
        assert all(len(way["rates"]) == 2 and way["median"] > 0 for way in section["ways"])
        assert section["name"] in progress  # figures appear as they come


def test_a_missing_peer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech, "installed", lambda package, notes: notes.append(f"{package} is not there"))
    report = bench("speech", "cpu", "tiny", 1, "frames")
    assert [*report.sections[0].rates] == ["regard"] and report.notes == ["transformers is not there"]


def test_what_is_not_timed() -> None:
    workload, notes = speech.make_workload("tiny", torch.device("cpu")), list[str]()
    with pytest.raises(UserError, match="HF gave 3 tokens instead of 4, so nothing was timed"):
        speech.check_lengths("HF", [3], workload)

    def fail(number: int) -> float:
        raise RuntimeError("no such kernel\nmore")

    assert not speech.runs("HF generate", fail, notes) and speech.runs("HF", lambda number: 1.0, notes)
    assert notes == ["HF generate cannot run here, so it was not timed: no such kernel"]
    with pytest.raises(RuntimeError):
        speech.runs("regard", fail, notes)


def test_workloads() -> None:
    gpu, cpu = (speech.make_workload("small", torch.device(name)) for name in ("cuda", "cpu"))
    assert gpu.model["width"] == 256 and cpu.batch <= gpu.batch and cpu.frames <= gpu.frames
    frames, valid, tokens = speech.sample_batch(cpu, 3)
    assert frames.shape == (3, cpu.frames, 80) and tokens.shape == (3, cpu.tokens)
    assert int(valid.sum(1).max()) == cpu.frames and int(valid.sum(1).min()) >= cpu.frames * 3 // 4


# --- data sets -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with the names of the Free Spoken Digit Dataset: of every digit and speaker a take of each split."""
    folder = tmp_path_factory.mktemp("digits") / "recordings"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for digit in range(2):
        for speaker in speech_data.SPEAKERS:
            for take in (0, 5, 10):
                samples = rng.normal(0, 0.1, 800 + 100 * digit)
                soundfile.write(folder / f"{digit}_{speaker}_{take}.wav", samples, speech_data.RATE)
    return folder


def run(*arguments: object) -> None:
    assert run_app(speech_data.app, "speech_data", [str(each) for each in arguments]) == 0


def read(table: Path) -> list[tuple[str, str]]:
    head, *rows = table.read_text().splitlines()
    assert head == "path\ttext"
    return [(cells[0], cells[1]) for cells in (row.split("\t") for row in rows)]


@pytest.mark.parametrize("archive", [False, True])
def test_spoken_digits(archive: bool, digits: Path, tmp_path: Path) -> None:
    source = digits
    if archive:
        source = tmp_path / "recordings.tar.xz"
        with tarfile.open(source, "w:xz") as file:
            file.add(digits, "recordings")
    (tmp_path / "out").mkdir()
    run("fsdd", source, tmp_path / "out")
    tables = {split: read(tmp_path / "out" / f"{split}.tsv") for split in ("train", "valid", "test")}
    assert {split: len(rows) for split, rows in tables.items()} == {"train": 12, "valid": 12, "test": 12}
    takes = {split: {Path(path).stem.split("_")[2] for path, _ in rows} for split, rows in tables.items()}
    assert takes == {"train": {"10"}, "valid": {"5"}, "test": {"0"}}
    assert all(text == speech_data.WORDS[int(Path(path).name[0])] for rows in tables.values() for path, text in rows)
    without, only = (read(tmp_path / "out" / f"{name}-theo.tsv") for name in ("without", "only"))
    assert len(without) == 10 and len(only) == 6 and all("_theo_" in path for path, _ in only)
    assert not any("_theo_" in path for path, _ in without) and len(read(tmp_path / "out/without-theo-valid.tsv")) == 10
    assert len(TRANSCRIBED_SOUNDS.open([[str(tmp_path / "out" / "train.tsv")]], SoundData())) == 12


@pytest.mark.parametrize("by", ["speakers", "takes"])
def test_strings_of_digits(by: str, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_data, "STRINGS", {"train": 4, "valid": 2, "test": 3})
    used: list[tuple[set[str], set[str]]] = []  # speakers and splits of the recordings, for every string
    make = speech_data.make_string

    def noted(recordings: Any, rng: Any) -> Any:
        used.append(({each.speaker for each in recordings}, {each.split for each in recordings}))
        return make(recordings, rng)

    monkeypatch.setattr(speech_data, "make_string", noted)
    run("strings", digits, tmp_path / by, "--by", by)
    tables = {split: read(tmp_path / by / f"{split}.tsv") for split in speech_data.STRINGS}
    assert {split: len(rows) for split, rows in tables.items()} == speech_data.STRINGS
    for rows in tables.values():
        for path, text in rows:
            count, info = len(text.split()), soundfile.info(path)
            assert 3 <= count <= 7 and {*text.split()} <= {"zero", "one"} and info.samplerate == speech_data.RATE
            least = count * 0.1 + (count + 1) * speech_data.GAP[0]
            assert least - 0.01 < info.duration < count * 0.12 + (count + 1) * speech_data.GAP[1]
    whole, splits = {*speech_data.SPEAKERS}, {"train", "valid", "test"}
    last = {*speech_data.SPEAKERS[-2:]}
    owned = {"train": (whole - last, splits), "valid": ({"theo"}, splits), "test": ({"yweweler"}, splits)}
    wanted = owned if by == "speakers" else {split: (whole, {split}) for split in owned}
    assert used == [wanted[split] for split, count in speech_data.STRINGS.items() for _ in range(count)]


def test_sentences_spoken_by_espeak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program is replaced: it writes a WAV file to stdout."""
    commands: list[list[str]] = []

    def espeak(command: list[str], **named: Any) -> SimpleNamespace:
        assert named == {"capture_output": True, "check": True}
        commands.append(command)
        soundfile.write(place := tmp_path / f"{len(commands)}-{hash(command[-1])}.wav", np.full(2205, 0.1), 22050)
        return SimpleNamespace(stdout=place.read_bytes())

    monkeypatch.setattr(subprocess, "run", espeak)
    source = tmp_path / "source"
    source.mkdir()
    sentences = [
        "The dog's here, now!",
        "Two 2 dogs",
        "One",
        "A dog. A cat?",
        "A dog. A cat?",
        "one two three four five",
    ]
    for split in ("train", "valid", "test"):
        (source / f"{split}.tsv").write_text("".join(f"{each}\tein Hund\n" for each in sentences))
    run("spoken", source, tmp_path / "out", "--train", 1, "--words", 4, "--rate", 8000, "--suffix", ".wav")
    tables = {name: read(tmp_path / "out" / f"{name}.tsv") for name in ("train", "valid", "test", "unseen")}
    assert {name: len(rows) for name, rows in tables.items()} == {"train": 1, "valid": 2, "test": 2, "unseen": 2}
    assert {text for _, text in tables["test"]} == {"the dog's here now", "a dog a cat"}
    info = soundfile.info(tables["train"][0][0])
    assert (info.samplerate, info.frames) == (8000, 800)
    assert all(command[:2] == ["espeak-ng", "-v"] and command[5] == "--stdout" for command in commands)
    voices = [command[2] for command in commands]
    assert not {*voices[:5]} & {*speech_data.UNSEEN} and {*voices[5:]} <= {*speech_data.UNSEEN}
