"""Recordings on the command line: train, predict, eval, align-audio and look; mistakes are one sentence, exit code 2."""

import io
import json
import struct
import wave
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import soundfile
from helpers import reads
from helpers.runs import copy_run, tiny_run

import regard
from regard.cli import main
from regard.synthetic import morse
from regard.training import curves

RATE = morse.RATE
TINY = [
    "model.width=16", "model.heads=2", "model.layers=1", "model.inner=32", "model.channels=4", "data.bins=12", "data.hop=10",
    "train.steps=2", "train.warmup=1", "train.tokens=800", "train.eval_every=2", "train.save_every=2", "train.metric=cer",
    "train.tensorboard=false", "device=cpu", "decode.max_tokens=6", "decode.beam=2",
]  # fmt: skip
TEXTS = ["E", "TEA", "A TEST", "IT IS", "SEAT", "EAST", "TASTE", "SITE"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module", autouse=True)
def no_curves() -> Any:
    with mock.patch.object(curves, "draw", lambda folder: None):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings, some with a text beside, tables of them, and a run that was trained on a table."""
    path = tmp_path_factory.mktemp("sounds")
    (path / "all").mkdir()
    for number, text in enumerate(TEXTS):
        recording = morse.encode_morse(text, np.random.default_rng(number), morse.MorseSettings(24))
        soundfile.write(path / "all" / f"{number}.wav", recording.samples, RATE)
        (path / "all" / f"{number}.txt").write_text(text + "\n")
    rows = [f"all/{number}.wav\t{text}\n" for number, text in enumerate(TEXTS)]
    (path / "train.tsv").write_text("path\ttext\n" + "".join(rows[:6]))
    (path / "test.tsv").write_text("path\ttext\n" + "".join(rows[6:]))
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.*")}
    tables = {"data.train": "{files}/train.tsv", "data.valid": "{files}/test.tsv"}
    copy_run(tiny_run("transcribe", files, **dict(each.split("=", 1) for each in TINY), **tables), path / "run")
    return path


@pytest.fixture(scope="module")
def texts_run() -> Path:
    """A classifier of texts."""
    return reads.stored_run("classify", train__steps=2)


def lines(capsys: Capture, *arguments: object) -> list[str]:
    assert main([str(each) for each in arguments]) == 0
    return capsys.readouterr().out.splitlines()


def refused(capsys: Capture, *arguments: object, words: str) -> None:
    assert main([str(each) for each in arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error, error
    assert error.startswith("regard: ") and "Traceback" not in error and error.count("\n") == 0, error


# --- train and eval --------------------------------------------------------------------------------------------------


def test_training_on_a_table_and_on_a_folder(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    table = ["train", "transcribe", f"data.train={folder / 'train.tsv'}", f"data.valid={folder / 'test.tsv'}", *TINY]
    assert main([*table, "--out", str(tmp_path / "one")]) == 0
    report = capsys.readouterr().err
    assert "train: 6 examples" in report and "valid: 0.00 hours of sound" in report and "cer" in report
    assert main(["train", "transcribe", f"data.train={folder / 'all'}", "data.holdout=0.25", *TINY, "--dry"]) == 0
    facts = capsys.readouterr().out
    assert "train: 6 examples" in facts and "vocabulary " in facts and "parameters " in facts
    assert main(["train", "transcribe", "data.bins=30", "--dry"]) == 0
    assert "no data were read: a vocabulary of" in capsys.readouterr().out
    assert main(["train", "transcribe", "data.noise=0.5", "--show"]) == 0
    shown = capsys.readouterr().out
    assert "noise" in shown and "curriculum" in shown and "command line" in shown
    assert main(["train", "--resume", "--out", str(tmp_path / "one"), "train.steps=3"]) == 0
    assert "finished after 3 steps" in capsys.readouterr().err


def test_evaluation(folder: Path, capsys: Capture) -> None:
    found = dict(line.rsplit(" ", 1) for line in lines(capsys, "eval", folder / "run", "--data", folder / "test.tsv"))
    assert found["examples"] == "2" and {"wer", "cer", "exact", "loss"} <= {*found}
    (line,) = lines(capsys, "eval", folder / "run", "--data", folder / "all", "--json", "eval.normalize=english")
    metrics = json.loads(line)
    assert metrics["examples"] == 8 and metrics["normalize"] == "english" and metrics["words"] == 10
    compared = lines(capsys, "eval", folder / "run", folder / "run", "--data", folder / "test.tsv")
    assert any("wer" in line for line in compared)


# --- predict ---------------------------------------------------------------------------------------------------------


def test_a_line_for_every_recording(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, a folder, a table and names from stdin."""
    files, run = [folder / "all" / f"{number}.wav" for number in range(len(TEXTS))], folder / "run"
    wanted = regard.load(run).predict([*map(str, files)])
    assert lines(capsys, "predict", run, *files) == wanted == lines(capsys, "predict", run, folder / "all")
    assert lines(capsys, "predict", run, folder / "test.tsv") == wanted[6:]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("".join(f"{each}\n" for each in files).encode())))
    assert lines(capsys, "predict", run) == wanted
    assert lines(capsys, "predict", run, *files, "decode.batch=3") == wanted
    several = [line.split("\t") for line in lines(capsys, "predict", run, *files[:2], "decode.nbest=2")]
    assert [len(cells) for cells in several] == [2, 2] and [cells[0] for cells in several] == wanted[:2]


def test_records(folder: Path, capsys: Capture) -> None:
    files = [folder / "all" / f"{number}.wav" for number in (1, 2)]
    records = [json.loads(line) for line in lines(capsys, "predict", folder / "run", *files, "--json")]
    assert [record.pop("path") for record in records] == [*map(str, files)]
    assert records[0]["text"] == regard.load(folder / "run").predict(str(files[0]))
    keys = [
        "text", "score", "logprob", "finish", "length", "given", "missing", "tokens", "logprobs", "alternatives",
        "alignment", "nbest", "usage", "segments", "seconds", "language", "notices",
    ]  # fmt: skip
    assert [*records[0]] == keys and records[0]["seconds"] == pytest.approx(soundfile.info(files[0]).duration, abs=1e-3)


def test_a_recording_that_cannot_be_read_keeps_the_answers_before_it(
    folder: Path, capsys: Capture, tmp_path: Path
) -> None:
    files, bad, run = [folder / "all" / f"{number}.wav" for number in range(3)], tmp_path / "bad.wav", folder / "run"
    bad.write_bytes(files[0].read_bytes()[:1000])
    wanted = lines(capsys, "predict", run, *files)
    assert main(["predict", str(run), *map(str, [*files[:2], bad, files[2]])]) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines() == wanted[:2] and "bad.wav is truncated" in captured.err
    assert main(["predict", str(run), *map(str, [*files[:2], bad, files[2]]), "data.invalid=skip"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [*wanted[:2], "", wanted[2]]  # transcripts alone
    assert "1 file cannot be read (data.invalid=skip)" in captured.err


@pytest.mark.filterwarnings("always")
def test_silence_is_an_empty_line_and_a_notice(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    for number, samples in enumerate((np.zeros(RATE), np.full(1, 0.2))):
        soundfile.write(tmp_path / f"{number}.wav", samples, RATE)
    assert main(["predict", str(folder / "run"), str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "\n\n" and captured.err.count("the recording is silent and has no transcript") == 2


# --- align-audio and look --------------------------------------------------------------------------------------------


def test_word_times(folder: Path, capsys: Capture) -> None:
    """Of a text that is given, of the one beside the recording, and of a table."""
    run, sound = folder / "run", folder / "all" / "2.wav"
    words = regard.load(run).align(str(sound), "A TEST").alignment.words
    wanted = [f"{each.start:.3f}\t{each.end:.3f}\t{each.word}" for each in words]
    assert [each.word for each in words] == ["A", "TEST"]
    assert lines(capsys, "align-audio", run, sound, "A  TEST") == wanted == lines(capsys, "align-audio", run, sound)
    found = [line.split("\t") for line in lines(capsys, "align-audio", run, folder / "train.tsv")]
    assert len(found) == 8 and [cells[-1] for cells in found] == " ".join(TEXTS[:6]).split()
    assert ["\t".join(cells[1:]) for cells in found][2:4] == wanted and "train.tsv:4" in found[2][0]
    assert len(lines(capsys, "align-audio", run, folder / "all")) == 10
    (line,) = lines(capsys, "align-audio", run, sound, "--json")
    record = json.loads(line)
    assert [*record] == ["path", "text", "score", "words"] and record["words"] == [asdict(each) for each in words]


def test_look_reads_a_recording(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    sound, out = folder / "all" / "2.wav", tmp_path / "a.png"
    assert lines(capsys, "look", folder / "run", sound, "TEST", "--out", out) == [f"picture {out}"]
    assert out.stat().st_size > 1000
    refused(capsys, "look", folder / "run", tmp_path / "no.wav", "--out", out, words="no.wav does not exist")


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_of_training(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    table, out = tmp_path / "list.tsv", tmp_path / "run"
    command = ["train", "transcribe", f"data.train={table}", *TINY, "--out", out]
    (tmp_path / "text.wav").write_text("no sound")
    (tmp_path / "a.m4a").write_bytes(b"\x01\x02\x80\x81" * 20)
    soundfile.write(tmp_path / "none.wav", np.zeros(0), RATE)
    soundfile.write(tmp_path / "nan.wav", np.array([0.1, np.nan, 0.2]), RATE, "FLOAT")
    good = folder / "all" / "0.wav"
    for row, words in (
        ("gone.wav\tE", f"{table}:2: there is no recording {tmp_path}/gone.wav; correct the path or the line, or set"),
        ("text.wav\tE", f"{table}:2: {tmp_path}/text.wav cannot be read as sound: it is text; give WAV"),
        ("a.m4a\tE", "a.m4a cannot be read as sound: its name says M4A (AAC); convert it to WAV or FLAC, such as with"),
        (f"{good}\t ", f"{table}:2: the transcript is empty; write what is said, or set data.invalid=skip"),
        ("none.wav\tE", "none.wav has no samples; expected at least one"),
        ("nan.wav\tE", "nan.wav has a sample that is no finite number after 0.00 s"),
    ):
        table.write_text(f"{good}\tE\n{row}\n")
        refused(capsys, *command, words=words)
        assert not out.exists()
    assert main(["train", "transcribe", f"data.train={table}", "data.invalid=skip", *TINY, "--dry"]) == 0
    assert "1 recordings left out because they cannot be read" in capsys.readouterr().out
    for settings, words in (
        (["data.snr=30,5"], "data.snr is (30.0, 5.0); expected the smaller number first"),
        (["data.vtlp=[1.2,0.8]"], "data.vtlp is (1.2, 0.8); expected the smaller number first"),
        (["data.bin_width=20", "data.bin_masks=1"], "data.bin_width is 20, above data.bins=12; lower it"),
        (["data.speed=1,3"], "data.speed is 3; expected at most 2"),
        (["data.rate=500"], "data.rate is 500; expected at least 1000"),
        (["data.hop=30"], "data.hop is 30; expected at most 25"),
        (["decode.nbest=3"], "decode.strategy.n is 3, above decode.strategy.size=2; raise the size"),
    ):
        refused(capsys, "train", "transcribe", *TINY, *settings, "--dry", words=words)
    words = "model.family=vit cannot be used for the task transcribe"
    refused(capsys, "train", "transcribe", "model.family=vit", "--dry", words=words)
    refused(capsys, "train", "transcribe", f"data.train={good}", words="is a recording without its transcript; give a")
    refused(capsys, "train", "transcribe", "data.train=a.tsv,b.tsv", words="are in one place, but 2 were given, separ")


def test_a_recording_of_ten_hours_is_left_out(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    """Its header tells its length: it is never decoded. The file has a hole in place of its samples."""
    size = 10 * 3600 * RATE
    with open(tmp_path / "long.wav", "wb") as file:
        file.write(struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, RATE, RATE, 1, 8, b"data", size))  # fmt: skip
        file.truncate(44 + size)
    with wave.open(str(tmp_path / "long.wav")) as file:
        assert file.getnframes() == size
    rows = "".join(f"{folder}/all/{number}.wav\t{text}\n" for number, text in enumerate(TEXTS))
    (tmp_path / "list.tsv").write_text(f"long.wav\tE\n{rows}")
    command = ["train", "transcribe", f"data.train={tmp_path / 'list.tsv'}", *TINY, "--out", str(tmp_path / "run")]
    assert main(command) == 0
    report = capsys.readouterr().err
    assert "train: 8 examples" in report
    assert "1 recordings left out because they are longer than data.max_seconds=30" in report
    (tmp_path / "list.tsv").write_text("long.wav\tE\n")
    refused(capsys, *command[:-1], tmp_path / "no", words="longer than data.max_seconds=30")


def test_mistakes_with_a_run(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    run, sound = folder / "run", folder / "all" / "2.wav"
    (tmp_path / "words.txt").write_text("some words\n")
    (tmp_path / "text.wav").write_text("no sound")
    (tmp_path / "alone.wav").write_bytes(sound.read_bytes())
    (tmp_path / "none").mkdir()
    for arguments, words in (
        (["predict", run, tmp_path / "gone.wav"], "gone.wav"),
        (["predict", run, tmp_path / "words.txt"], "words.txt cannot be read as sound: it is text; give WAV"),
        (["predict", run, tmp_path / "text.wav"], "text.wav cannot be read as sound: it is text; give WAV"),
        (["predict", run, tmp_path / "none"], "has no recordings; expected files such as .wav, .flac or .mp3"),
        (["predict", run, sound, "decode.kind=ctc", "decode.prefix=A"], "decode.prefix and decode.exclude need a sea"),
        (["predict", run, sound, "--top", "2"], "--top is for runs that predict labels or words"),
        (["predict", run, "--prompt", "a"], "--prompt"),
        (["predict", run, sound, "--embed"], "embed"),
        (["eval", run, "--data", sound], "is a recording without its transcript; give a table with the columns"),
        (["eval", run, "--data", tmp_path / "gone.tsv"], "gone.tsv"),
        (["score", run, sound], "score reads texts, and this run reads other files; score them in Python"),
        (["align-audio", run, sound, "çedilla"], "has characters that this run does not know; write it as in the tra"),
        (["align-audio", run, sound, " "], "the text is empty, so there is nothing to align"),
        (["align-audio", run, sound, "TEA" * 99], "the recording is too short for its text"),
        (["align-audio", run, tmp_path / "alone.wav"], "are not known; give them after it, or in the file"),
        (["align-audio", run, tmp_path / "gone.wav"], "there is no file"),
        (["align-audio", run, tmp_path / "gone.wav", "A"], "gone.wav does not exist"),
        (["align-audio", run, tmp_path / "text.wav", "A"], "text.wav cannot be read as sound: it is text"),
        (["align-audio", run, tmp_path / "none"], "has no recordings"),
        (["convert", run, "--to", "huggingface", "--out", tmp_path / "out"], "model.family is speech; expected"),
    ):
        refused(capsys, *arguments, words=words)


def test_a_run_without_ctc(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    settings = [f"data.train={folder / 'train.tsv'}", *TINY, "model.ctc.weight=0", "train.metric=loss"]
    assert main(["train", "transcribe", *settings, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    sound, words = folder / "all" / "2.wav", "needs CTC, and this run was trained without; train with model.ctc.weight="
    assert len(lines(capsys, "predict", tmp_path / "run", sound)) == 1
    refused(capsys, "predict", tmp_path / "run", sound, "decode.kind=ctc", words=f"decode.strategy=ctc {words}")
    refused(capsys, "align-audio", tmp_path / "run", sound, words=f"word times {words}")


def test_recordings_for_texts(folder: Path, texts_run: Path, capsys: Capture) -> None:
    sound = folder / "all" / "2.wav"
    words = "2.wav is a .wav file, which is no text; this task reads text; use a run of the task transcribe"
    refused(capsys, "predict", texts_run, sound, words=words)
    refused(capsys, "eval", texts_run, "--data", sound, words=words)
    refused(capsys, "train", "classify", f"data.train={sound}", words=words)
    words = "align-audio is for runs of the task transcribe, and this one is of classify"
    refused(capsys, "align-audio", texts_run, sound, "A", words=words)
