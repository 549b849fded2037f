"""`python -m benchmarks.word_times`: its recordings, and the content of its table of an untrained run."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from helpers.runs import tiny_run

import regard
from benchmarks import joined_words, word_times
from regard.messages.texts import TimedWord
from regard.synthetic.morse import MorseRecording


def test_words_are_compared_with_their_onsets(capsys):
    settings = {
        "model.width": 32, "model.heads": 2, "model.layers": 1, "model.decoder_layers": 1, "model.inner": 32,
        "data.examples": 200, "train.steps": 1, "train.tokens": 1600, "train.metric": "loss", "train.tensorboard": False,
    }  # fmt: skip
    word_times.main(str(tiny_run("whisper-morse", **settings)), count=3)
    first, head, *rows, last = capsys.readouterr().out.splitlines()
    assert first == "2 recordings, 0.000 transcribed without a mistake"  # one is longer than the window
    assert head.split()[:2] == ["words", "of"] and [row.split()[1:3] for row in rows][0] == ["known", "start"]
    assert int(rows[0].split()[0]) >= 2 and rows[2].split()[0] == "0"
    assert last.endswith(f"of {rows[0].split()[0]} words are in silence")


def test_errors_are_those_of_the_right_words():
    errors = {"known start": [], "known end": [], "silent": []}
    onsets = [[0.1, 0.2], [0.3, 0.5], [0.5, 0.9], [0.9, 1.0]]
    borders = word_times.word_borders(MorseRecording(None, 8000, onsets, "AB C"))
    assert borders == [(0.1, 0.5), (0.9, 1.0)]
    words = [TimedWord("AB", 0.15, 0.4), TimedWord("C", 1.0, 1.1)]
    word_times.add_errors(errors, "known", joined_words.TimedRecording(None, "AB C", borders), words)
    assert errors["known start"] == pytest.approx([0.05, 0.1]) and errors["known end"] == pytest.approx([-0.1, 0.1])
    assert errors["silent"] == [0.0, 1.0]


def test_recordings_are_words_with_known_silences(tmp_path, monkeypatch):
    """Its program is replaced: it writes a tone between silences to stdout."""
    commands = []

    def espeak(command, **named):
        commands.append(command)
        tone = np.concatenate([np.zeros(3000), 0.3 * np.sin(np.arange(6000)), np.zeros(2000)])
        soundfile.write(place := tmp_path / f"{hash((*command,))}.wav", tone, 22050)
        return SimpleNamespace(stdout=place.read_bytes())

    monkeypatch.setattr(subprocess, "run", espeak)
    monkeypatch.setattr(joined_words, "VOCABULARY", ("one", "two"))
    monkeypatch.setattr(joined_words, "COUNTS", {"train": 3, "valid": 1, "test": 4})
    joined_words.make_recordings(tmp_path / "out", joined_words.spoken_by_espeak())
    assert {command[-1] for command in commands} == {"one", "two"} and commands[0][:2] == ["espeak-ng", "-v"]
    recordings = joined_words.read_recordings(tmp_path / "out")
    assert len(recordings) == 4 and len((tmp_path / "out" / "train.tsv").read_text().splitlines()) == 4
    for recording in recordings:
        samples, rate = soundfile.read(recording.sound)
        assert len(recording.borders) == len(recording.text.split()) and {*recording.text.split()} <= {"one", "two"}
        inside = np.zeros(len(samples), bool)
        for start, end in recording.borders:
            assert end - start == pytest.approx(6000 / 22050, abs=0.03)
            inside[round(start * rate) : round(end * rate)] = True
        assert samples[inside].std() > 9 * samples[~inside].std() and start >= joined_words.MARGIN[0]


def test_a_run_is_made_and_measured(tmp_path, monkeypatch, capsys):
    """What the folder has already is kept."""
    made = []
    monkeypatch.setattr(word_times, "make_recordings", lambda folder, spoken: made.append(spoken))
    monkeypatch.setattr(word_times, "spoken_digits", lambda source, folder: {"digits of": source})
    monkeypatch.setattr(regard, "train", lambda recipe, settings, out, progress: made.append(settings["data.train"]))
    run = word_times.make_run(tmp_path, Path("fsdd"))
    assert made == [{"digits of": Path("fsdd")}, str(tmp_path / "train.tsv")] and run == str(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "test.json").write_text("[]")
    assert word_times.make_run(tmp_path, None) == run and len(made) == 2
    with pytest.raises(regard.UserError, match="give a RUN, or --spoken FOLDER to train one"):
        word_times.main()
