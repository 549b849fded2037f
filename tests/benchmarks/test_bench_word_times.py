"""`python -m benchmarks.word_times` on an untrained run: the content of its table."""

import pytest
from helpers.runs import tiny_run

from benchmarks import word_times
from regard.synthetic.morse import MorseRecording


def test_words_are_compared_with_their_onsets(capsys):
    settings = {
        "model.width": 32, "model.heads": 2, "model.layers": 1, "model.decoder_layers": 1, "model.inner": 32,
        "data.examples": 200, "train.steps": 1, "train.tokens": 1600, "train.metric": "loss", "train.tensorboard": False,
    }  # fmt: skip
    word_times.main([str(tiny_run("whisper-morse", **settings))], count=3)
    first, head, *rows = capsys.readouterr().out.splitlines()
    assert first == "2 recordings, 0.000 transcribed without a mistake"  # one is longer than the window
    assert head.split()[:2] == ["words", "of"] and [row.split()[1:3] for row in rows][0] == ["known", "start"]
    assert int(rows[0].split()[0]) >= 2 and rows[2].split()[0] == "0"


def test_errors_are_those_of_the_right_characters():
    errors = {"known start": [], "known end": []}
    onsets = [[0.1, 0.2], [0.3, 0.5], [0.5, 0.9], [0.9, 1.0]]
    recording = MorseRecording(None, 8000, onsets, "AB C")
    words = [{"word": "AB", "start": 0.15, "end": 0.4}, {"word": "C", "start": 0.8, "end": 1.1}]
    word_times.add_errors(errors, "known", recording, words)
    assert errors["known start"] == pytest.approx([0.05, -0.1]) and errors["known end"] == pytest.approx([-0.1, 0.1])
