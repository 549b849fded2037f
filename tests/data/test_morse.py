"""Morse code: the table, its timing, noise, and recordings that depend on split and number alone."""

from typing import Any

import numpy as np
import pytest

from regard.errors import UserError
from regard.synthetic.morse import CODES, RATE, MorseSettings, MorseSource, encode_morse, make_morse

QUIET = MorseSettings(snr=float("inf"))


def encode(text: str, **settings: Any) -> Any:
    values = {"snr": float("inf")} | settings
    return encode_morse(text, np.random.default_rng(5), MorseSettings(**values))


def loudness(samples: np.ndarray, width: int = 40) -> np.ndarray:
    """The mean amplitude of every 5 milliseconds."""
    return np.abs(samples[: len(samples) // width * width]).reshape(-1, width).mean(1)


def listen(recording: Any, unit: float) -> str:
    """The text of a quiet recording, from the lengths of tones and gaps."""
    loud = loudness(recording.samples) > 0.25 * loudness(recording.samples).max()
    edges = np.flatnonzero(np.diff(loud.astype(int)))
    lengths = np.diff(edges) * 0.005 / unit
    letters = {code: character for character, code in CODES.items()}
    text, code = "", ""
    for number, length in enumerate([*lengths, 9.0]):
        if number % 2 == 0:
            code += "-" if length > 2 else "."
        elif length > 1.75:
            text, code = text + letters[code] + (" " if length > 4.5 else ""), ""
    return text.strip()


def test_the_table_has_one_code_per_character() -> None:
    assert len(CODES) == len(set(CODES.values())) == 26 + 10 + 13
    assert CODES["S"] == "..." and CODES["O"] == "---" and CODES["@"] == ".--.-." and CODES['"'] == ".-..-."


def test_a_word_of_paris_has_fifty_dots() -> None:
    two = encode("paris paris", speed=20, silence=(0.0, 0.0))
    assert two.text == "PARIS PARIS" and two.rate == RATE
    assert two.onsets[6, 0] == pytest.approx(3.0)  # twenty words a minute
    assert len(two.samples) / RATE == pytest.approx(3 + 43 / 50 * 3, abs=0.001)
    assert np.diff(two.onsets[5])[0] == pytest.approx(7 * 0.06)  # the space is the gap


@pytest.mark.parametrize("speed", [15, 30])
def test_a_recording_can_be_read(speed: float) -> None:
    text = 'CQ CQ DE W1AW/P = THE (QUICK) FOX\'S NO. 5, 73? A@B:C-D + "E"'
    plain = encode(text, speed=speed, drift=10.0, fading=0.5)
    assert listen(plain, 1.2 / speed) == plain.text == text
    by_hand = encode(text, speed=speed, jitter=0.06, dash=3.2, spacing=1.1, pitch=850.0)
    assert listen(by_hand, 1.2 / speed) == text
    assert not np.allclose(by_hand.onsets, encode(text, speed=speed).onsets)


def test_onsets_are_where_the_sound_is() -> None:
    recording = encode("a test 5", speed=25, jitter=0.1, silence=(0.5, 0.2))
    assert recording.onsets.shape == (8, 2) and recording.onsets[0, 0] == 0.5
    assert (recording.onsets[1:, 0] >= recording.onsets[:-1, 1]).all()
    loud = loudness(recording.samples) > 0.01
    for character, (start, end) in zip(recording.text, recording.onsets, strict=True):
        inside = loud[int(start / 0.005) + 1 : int(end / 0.005)]
        assert inside.any() != (character == " ") and (character not in "ET" or inside.all())
    assert not loud[:98].any() and len(recording.samples) / RATE == pytest.approx(
        recording.onsets[-1, 1] + 0.2, abs=1e-3
    )


def test_noise_pitch_and_soft_edges() -> None:
    noisy, quiet = encode("T" * 20, snr=6.0), encode("T" * 20)
    noise = noisy.samples[: int(0.29 * RATE)]
    assert noise.std() == pytest.approx(0.3 / np.sqrt(2) * 10 ** (-6 / 20), rel=0.05)
    start, end = (quiet.onsets[0] * RATE).astype(int)
    tone = quiet.samples[start:end]
    spectrum = np.abs(np.fft.rfft(tone * np.hanning(len(tone)), 1 << 15))
    assert spectrum.argmax() * RATE / (1 << 15) == pytest.approx(600, abs=2) and np.abs(tone).max() <= 0.3001
    assert np.abs(np.diff(quiet.samples)).max() < 1.05 * 0.3 * 2 * np.pi * 600 / RATE  # no click
    assert quiet.samples.dtype == np.float32


def test_examples_are_a_pure_function_of_split_and_number() -> None:
    splits = make_morse(50)
    assert [len(splits[name]) for name in ("train", "valid", "test")] == [50, 300, 300]
    train = MorseSource("train", 50)
    for index in (0, 7, 49):
        sound, text = train[index]
        again, _ = make_morse(80)["train"][index]
        assert (sound.samples == again.samples).all() and sound.rate == RATE and np.abs(sound.samples).max() <= 1
        assert train.text(index, 1) == text and train.length(index) == len(sound.samples)
        assert train.seconds(index) == len(sound.samples) / RATE
    texts = {name: [examples.text(index, 1) for index in range(50)] for name, examples in splits.items()}
    assert len({*texts["valid"], *texts["test"]}) > 95  # those of train are often single characters
    assert all(1 <= len(text.split()) <= 6 for text in texts["train"])
    assert train.location(1) == "embedded train Morse code, recording 2"
    assert train.fingerprint() == "morse train 50" != splits["valid"].fingerprint()


def test_texts_have_every_character_and_no_recording_is_long() -> None:
    examples = MorseSource("train", 1200)
    assert {*"".join(examples.text(index, 1) for index in range(1200))} == {*CODES, " "}
    for split, least, most in (("train", 1, 5), ("valid", 3, 12)):
        examples = MorseSource(split, 400)
        seconds = [examples.seconds(index) for index in range(400)]
        assert max(seconds) < 30 and least < np.mean(seconds) < most and min(seconds) > 0.3, split


def test_texts_and_settings_that_cannot_be_keyed() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(UserError, match="the text 'NAÏVE %' has % Ï, for which there is no Morse code; expected lett"):
        encode_morse("naïve %", rng)
    with pytest.raises(UserError, match="the text '' is empty; expected letters"):
        encode_morse(" \n", rng)
    with pytest.raises(UserError, match="Morse code of speed=0 and pitch=600 cannot be made; expected 1 to 100 words"):
        MorseSettings(speed=0)
    with pytest.raises(UserError, match="pitch=3999 cannot be made; .* and 50 to 4000 Hz"):
        MorseSettings(pitch=3999, drift=5)
    assert len(encode_morse("e", rng, QUIET).samples) > 0 and len(encode_morse("e", rng).onsets) == 1
