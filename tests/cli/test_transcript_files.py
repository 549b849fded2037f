"""Transcripts in files: regard predict --out and --format. Mistakes are one sentence, exit code 2."""

import io
import json
import sys
import tarfile
from copy import copy
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import soundfile
from helpers.runs import tiny_run

import regard
from regard.cli import files as recording_files
from regard.cli import main
from regard.cli.transcript_files import NAMES, needs_words
from regard.config.run import change_settings
from regard.formats.subtitles import FORMATS
from regard.synthetic import morse
from regard.tasks.transcribe.task import TranscribePredictor

TINY = {
    "model.width": 16, "model.heads": 2, "model.layers": 1, "model.inner": 32, "model.channels": 4, "data.bins": 12, "data.hop": 10,
    "data.examples": 50, "train.steps": 1, "train.warmup": 1, "train.tokens": 1200, "train.eval_every": 1, "train.save_every": 1,
    "train.metric": "loss", "train.tensorboard": False, "device": "cpu", "decode.max_tokens": 9, "decode.min_tokens": 5,
    "decode.kind": "greedy", "decode.segment": 1.5,
}  # fmt: skip
CLASSIFIER = Path(__file__).parents[1] / "old" / "classify-bert"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run() -> Path:
    """A run that writes nonsense of five tokens or more for every segment of 1.5 seconds."""
    return tiny_run("transcribe", patches={"regard.synthetic.morse.HELD_OUT": 4}, **TINY)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder with talk.wav, and with a.wav and b/a.flac in the folder new."""
    monkeypatch.chdir(tmp_path)
    Path("new/b").mkdir(parents=True)
    for number, name in enumerate(("talk.wav", "new/a.wav", "new/b/a.flac")):
        recording = morse.encode_morse("CQ DE W1AW", np.random.default_rng(number))
        soundfile.write(name, recording.samples, recording.rate)
    return tmp_path


def lines(capsys: Capture, *arguments: object) -> list[str]:
    assert main([str(each) for each in arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


def refused(capsys: Capture, *arguments: object, words: str) -> None:
    assert main([str(each) for each in arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error, error
    assert error.startswith("regard: ") and "Traceback" not in error and error.count("\n") == 0, error


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_suffix_chooses_the_format(run: Path, place: Path, capsys: Capture) -> None:
    predictor = regard.load(run)
    (result,) = predictor.predict_requests(predictor.requests(["talk.wav"]))
    assert len(result.segments) > 1 and all(each.nbest[0].text.strip() for each in result.segments)
    for name, write in FORMATS.items():
        out = f"out.{name.upper() if name == 'srt' else name}"
        assert lines(capsys, "predict", run, "talk.wav", "--out", out) == [f"talk.wav\t{out}"]
        assert Path(out).read_bytes() == write(result).encode()
    assert Path("out.txt").read_text().count("\n") == len(result.segments)
    printed = lines(capsys, "predict", run, "talk.wav", "--json")
    assert lines(capsys, "predict", run, "talk.wav", "--out", "out.json") == ["talk.wav\tout.json"]
    assert Path("out.json").read_text().splitlines() == printed and json.loads(printed[0])["alignment"]["words"]
    assert names(place) == ["new/a.wav", "new/b/a.flac", *(f"out.{each}" for each in ("SRT", "json", "tsv", "txt", "vtt")), "talk.wav"]  # fmt: skip


def test_several_files_of_one_recording(run: Path, place: Path, capsys: Capture) -> None:
    """A recording is transcribed once for all its files. They replace older ones."""
    Path("talk.srt").write_text("old")
    with mock.patch.object(TranscribePredictor, "predict_requests", autospec=True, side_effect=TranscribePredictor.predict_requests) as called:  # fmt: skip
        lines(capsys, "predict", run, "talk.wav", "--out", "talk.srt", "--out", "talk.txt")
        assert called.call_count == 1
    assert Path("talk.srt").read_text().startswith("1\n00:00:0") and Path("talk.txt").is_file()


def test_a_folder_has_a_file_for_every_recording(run: Path, place: Path, capsys: Capture) -> None:
    """It is created if its name ends with / or if --format is given. Equal names get numbers."""
    found = lines(capsys, "predict", run, "new", "talk.wav", "--out", "subs/", "--format", "srt,txt")
    assert names(Path("subs")) == ["a-2.srt", "a-2.txt", "a.srt", "a.txt", "talk.srt", "talk.txt"]
    assert found[:4] == [f"new/{row}" for row in ("a.wav\tsubs/a.srt", "a.wav\tsubs/a.txt", "b/a.flac\tsubs/a-2.srt", "b/a.flac\tsubs/a-2.txt")]  # fmt: skip
    texts = regard.load(run).predict(["new/a.wav", "new/b/a.flac"])
    assert [" ".join(Path(f"subs/{each}.txt").read_text().split()) for each in ("a", "a-2")] == [" ".join(each.split()) for each in texts]  # fmt: skip
    assert lines(capsys, "predict", run, "new", "--out", "other", "--format", "vtt", "decode.batch=1")
    assert lines(capsys, "predict", run, "new", "--out", "other", "--format", "json")  # an existing folder
    assert names(Path("other")) == ["a-2.json", "a-2.vtt", "a.json", "a.vtt"]
    assert json.loads(Path("other/a-2.json").read_text())["path"] == "new/b/a.flac"
    lines(capsys, "predict", run, "new/a.wav", "--out", "new", "--format", "srt")
    assert Path("new/a.srt").is_file()  # beside the recording


def test_archives_tables_and_stdin(run: Path, place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open("new.tar", "w") as archive:
        archive.add("new")
    Path("list.tsv").write_text("path\ttext\nnew/a.wav\tA\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"talk.wav\n")))
    lines(capsys, "predict", run, "--out", "talk.vtt")
    lines(capsys, "predict", run, "new.tar", "--out", "one/", "--format", "srt")
    lines(capsys, "predict", run, "list.tsv", "--out", "list.srt")
    assert names(Path("one")) == ["a-2.srt", "a.srt"] and Path("talk.vtt").read_text().startswith("WEBVTT\n")
    assert Path("list.srt").read_text() == Path("one/a.srt").read_text()


@pytest.mark.filterwarnings("always")
def test_silence(run: Path, place: Path, capsys: Capture) -> None:
    soundfile.write("silence.wav", np.zeros(8000), 8000)
    assert main(["predict", str(run), "silence.wav", "--out", "out", "--format", ",".join(FORMATS)]) == 0
    assert "silence.wav: the recording is silent and has no transcript" in capsys.readouterr().err
    contents = [Path(f"out/silence.{name}").read_text() for name in FORMATS]
    assert contents == ["", "WEBVTT\n", "start\tend\ttext\n", ""]


def test_word_times_are_computed_only_for_what_shows_them(run: Path, place: Path, capsys: Capture) -> None:
    predictor = regard.load(run)
    long = copy(predictor)
    long.run = change_settings(predictor.run, {"decode": {"segment": 0.0}})
    assert [name for name in NAMES if needs_words({name}, predictor.longest_segment)] == ["json"]
    assert [name for name in NAMES if needs_words({name}, long.longest_segment)] == ["srt", "vtt", "json"]
    asked: list[bool] = []

    async def answer(self: TranscribePredictor, request: Any, emit: Any = None) -> Any:
        asked.append(request.details)
        return await original(self, request, emit)

    original = TranscribePredictor.answer
    with mock.patch.object(TranscribePredictor, "answer", answer):
        for out, segment in (("a.srt", 0), ("a.srt", 1.5), ("a.tsv", 0), ("a.txt", 0), ("a.json", 1.5)):
            lines(capsys, "predict", run, "talk.wav", "--out", out, f"decode.segment={segment}")
    assert asked == [True, False, False, False, True]


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_a_failure_keeps_what_is_there(run: Path, place: Path, capsys: Capture) -> None:
    """The files of the recordings before a damaged one stay; an older file is not replaced."""
    Path("bad.wav").write_bytes(Path("talk.wav").read_bytes()[:1000])
    Path("bad.srt").write_text("old")
    refused(capsys, "predict", run, "bad.wav", "--out", "bad.srt", words="bad.wav is truncated")
    assert Path("bad.srt").read_text() == "old"
    sounds = ["talk.wav", "bad.wav", "new/a.wav"]
    refused(capsys, "predict", run, *sounds, "--out", "subs/", "--format", "srt", words="bad.wav is truncated")
    assert names(Path("subs")) == ["talk.srt"]
    assert main(["predict", str(run), *sounds, "--out", "subs/", "--format", "srt", "data.invalid=skip"]) == 0
    captured = capsys.readouterr()
    assert names(Path("subs")) == ["a.srt", "talk.srt"] and len(captured.out.splitlines()) == 2
    assert "bad.wav is truncated" in captured.err and "1 file cannot be read (data.invalid=skip)" in captured.err
    assert not [name for name in names(place) if name.endswith(".tmp")]


def test_outputs_are_checked_before_the_work(place: Path, capsys: Capture) -> None:
    Path("file").write_text("")
    for arguments, words in (
        (["--out", "talk.mp4"], "--out talk.mp4 has no known suffix; expected that of srt, vtt, tsv, txt or json, or a "),
        (["--out", "talk"], "--out talk has no known suffix"),
        (["--out", "gone/talk.srt"], "--out gone/talk.srt cannot be written; give a file or folder in an existing folder"),
        (["--out", "gone/subs/", "--format", "srt"], "--out gone/subs/ cannot be written; give a file or folder in an"),
        (["--out", "file/", "--format", "srt"], "--out file/ cannot be written; give a folder with another name than that file"),
        (["--out", "new"], "--out new is a folder; choose its files with --format srt, vtt, tsv, txt or json"),
        (["--out", "subs/"], "--out subs/ is a folder; choose its files with --format"),
        (["--out", "a.srt", "--format", "srt"], "--out a.srt names a file, whose suffix chooses the format; leave --for"),
        (["--format", "srt"], "--format names the files of a folder; give the folder too, such as --out subtitles/"),
        (["--out", "new", "--format", "srt,doc"], "--format has 'doc'; expected srt, vtt, tsv, txt or json, or several"),
        (["--out", "a.json", "--json"], "--details and --out cannot be combined"),
        (["--out", "a.srt", "--embed"], "--embed and --out cannot be combined"),
        (["--out", "a.srt", "--prompt", "a"], "--prompt and --out cannot be combined"),
        (["--out", "a.srt", "--coco", "a.json"], "--coco and --out cannot be combined"),
        (["--out", "a.srt", "--draw", "drawn"], "--draw and --out cannot be combined"),
    ):  # fmt: skip
        refused(capsys, "predict", "no-run", "talk.wav", *arguments, words=words)


def test_one_file_is_for_one_recording(
    run: Path, place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "--out all.srt is for one recording, and several are given; for several, name a folder, such as --out all/ --"
    )
    with mock.patch.object(TranscribePredictor, "predict_requests", side_effect=AssertionError):
        refused(capsys, "predict", run, "new", "--out", "all.srt", words=f"{words}format srt")
        refused(capsys, "predict", run, "talk.wav", "new/a.wav", "--out", "all.srt", words=words)
        refused(capsys, "predict", run, "new", "--out", "all.json", words="--format json; --json prints them all")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
        refused(capsys, "predict", run, "--out", "all.srt", words="is for one recording, and none is given")
    assert not Path("all.srt").exists()


def test_what_was_given_is_never_replaced(run: Path, place: Path, capsys: Capture) -> None:
    """Neither the table that names the recordings, nor the text beside a recording."""
    for name in ("list.tsv", "new/a.tsv"):
        Path(name).write_text(f"path\ttext\n{place}/new/a.wav\tA\n")
    Path("new/a.txt").write_text("the true words\n")
    words = "list.tsv is an input and would be replaced; choose another name (--out)"
    refused(capsys, "predict", run, "list.tsv", "--out", "./list.tsv", words=words)
    refused(
        capsys, "predict", run, "new/a.tsv", "--out", "new", "--format", "tsv", words="new/a.tsv is an input and wou"
    )
    words = "new/a.txt lies beside new/a.wav and may be its transcript; choose another folder (--out)"
    refused(capsys, "predict", run, "new/a.wav", "--out", "new/", "--format", "txt", words=words)
    assert Path("new/a.txt").read_text() == "the true words\n" and Path("list.tsv").read_text().startswith("path")
    lines(capsys, "predict", run, "new/a.wav", "--out", "new/a.txt")  # named in full
    assert Path("new/a.txt").read_text() != "the true words\n"


def test_other_tasks(place: Path, capsys: Capture) -> None:
    Path("a.txt").write_text("a\n")
    words = (
        "--out and --format are for runs of the task transcribe, and this one is of classify; write its output to a "
    )
    refused(capsys, "predict", CLASSIFIER, "a.txt", "--out", "b.txt", words=words)


def test_options_of_settings_that_a_run_lacks(place: Path, capsys: Capture) -> None:
    Path("a.txt").write_text("a\n")
    refused(capsys, "predict", CLASSIFIER, "a.txt", "--language", "de", words="decode.language is not a key")
    refused(capsys, "predict", CLASSIFIER, "a.txt", "--task", "translate", words="decode.task is not a key")


# --- progress --------------------------------------------------------------------------------------------------------


def test_a_terminal_shows_the_position_in_a_recording(
    run: Path, place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one line, which is erased at the end; elsewhere nothing is shown."""
    lines(capsys, "predict", run, "talk.wav")
    assert main(["predict", str(run), "talk.wav"]) == 0 and capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(recording_files, "PAUSE", 0.0)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["predict", str(run), "talk.wav"]) == 0
    shown = capsys.readouterr().err.split(recording_files.CLEAR)
    length = soundfile.info("talk.wav").duration
    assert shown[0] == shown[-1] == "" and len(shown) > 3
    assert shown[1:-1] == sorted(shown[1:-1]) and shown[1] == f"talk.wav  0:00:01 of 0:00:{round(length):02}"
    recording_files.RecordingProgress(sys.stderr).show("n" * 60, 1.0, 3723.0)
    assert capsys.readouterr().err == f"{recording_files.CLEAR}{'n' * 19}  0:00:01 of 1:02:03"
