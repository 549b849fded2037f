"""Recordings with known word borders: words that are spoken one by one and joined with silences of known lengths.

The words are spoken by espeak-ng in several voices, or they are the recordings of the Free Spoken Digit Dataset.
"""

import itertools
import json
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import resample_poly

from regard.processors.sound.read import read_sound

from .speech_data import RATE, SEEN, UNSEEN, unpack, write_rows, write_sound
from .speech_data import WORDS as DIGITS

COUNTS = {"train": 1500, "valid": 60, "test": 100}  # recordings
WORDS = 1, 5  # of a recording
GAP, MARGIN = (0.03, 0.6), (0.05, 1.5)  # seconds between two words; before the first and after the last
NOISE = 20.0, 45.0  # signal-to-noise ratio of every second recording in decibels; the others have digital silence
TRIM = 40.0  # decibels below the loudest frame where a word begins and ends
FRAME = 0.01  # seconds
VOCABULARY = (
    *DIGITS, "red", "blue", "green", "yellow", "white", "black", "north", "south", "east", "west", "monday", "friday",
    "sunday", "open", "close", "start", "stop", "window", "table", "kitchen", "water", "coffee", "music", "quickly",
    "tomorrow", "yesterday", "please", "remember", "mountain", "river",
)  # fmt: skip
Spoken = Mapping[str, Sequence[np.ndarray]]  # the recordings of each word


@dataclass(frozen=True)
class TimedRecording:
    """A recording, its text, and where its words begin and end in seconds."""

    sound: Any
    text: str
    borders: list[tuple[float, float]]


def make_recordings(out: Path, spoken: Mapping[str, Spoken]) -> None:
    """The recordings of each split with their table, and `test.json` with the borders of the words of the test."""
    for number, (split, words) in enumerate(spoken.items()):
        rng, recordings = np.random.default_rng(number), []
        (out / split).mkdir(parents=True, exist_ok=True)
        for index in range(COUNTS[split]):
            samples, text, borders = join(words, rng)
            path = write_sound(out / split / f"{index:05d}.flac", samples, RATE)
            recordings.append(TimedRecording(str(path.resolve()), text, borders))
        write_rows(out / f"{split}.tsv", ((Path(each.sound), each.text) for each in recordings))
        (out / f"{split}.json").write_text(json.dumps([asdict(each) for each in recordings]))


def read_recordings(out: Path) -> list[TimedRecording]:
    return [TimedRecording(**each) for each in json.loads((out / "test.json").read_text())]


def join(words: Spoken, rng: np.random.Generator) -> tuple[np.ndarray, str, list[tuple[float, float]]]:
    """Words with silences between them: the samples, the text and the borders."""
    chosen = [str(word) for word in rng.choice(sorted(words), int(rng.integers(WORDS[0], WORDS[1] + 1)))]
    level, parts, borders = 10 ** rng.uniform(-1.5, -0.3), [silence(rng, MARGIN)], []
    for number, word in enumerate(chosen):
        samples = words[word][int(rng.integers(len(words[word])))]
        begin = sum(map(len, parts)) / RATE
        borders.append((begin, begin + len(samples) / RATE))
        parts += [samples / abs(samples).max() * level, silence(rng, GAP if number < len(chosen) - 1 else MARGIN)]
    samples = np.concatenate(parts)
    if rng.random() < 0.5:
        power, ratio = float(np.concatenate(parts[1::2]).var()), 10 ** (rng.uniform(*NOISE) / 10)
        samples = samples + rng.normal(0, (power / ratio) ** 0.5, len(samples))
    return samples, " ".join(chosen), borders


def silence(rng: np.random.Generator, seconds: tuple[float, float]) -> np.ndarray:
    return np.zeros(int(rng.uniform(*seconds) * RATE))


def trim(samples: np.ndarray) -> np.ndarray:
    """A recording of a word without the silence around it."""
    size = int(FRAME * RATE)
    energies = samples[: len(samples) // size * size].reshape(-1, size).var(1)
    loud = np.flatnonzero(energies > energies.max() / 10 ** (TRIM / 10))
    return samples[loud[0] * size : (loud[-1] + 1) * size]


# --- words -----------------------------------------------------------------------------------------------------------


def spoken_by_espeak() -> dict[str, Spoken]:
    """The vocabulary in voices that all splits share, at three speeds; the test has speeds of its own."""
    voices, speeds = SEEN[::8] + UNSEEN[:2], {"train": (150, 175, 200), "valid": (160,), "test": (165, 185)}
    return {split: _speak_all(list(itertools.product(voices, own))) for split, own in speeds.items()}


def _speak_all(manners: Sequence[tuple[str, int]]) -> Spoken:
    jobs = [(word, *manner) for word in VOCABULARY for manner in manners]
    with ThreadPoolExecutor(4) as pool:
        spoken = list(pool.map(lambda job: speak(*job), jobs))
    size = len(manners)
    return {word: spoken[number * size : (number + 1) * size] for number, word in enumerate(VOCABULARY)}


def speak(word: str, voice: str, speed: int) -> np.ndarray:
    """A word without the silence around it."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", word]
    samples, rate = read_sound(subprocess.run(command, capture_output=True, check=True).stdout)
    divisor = int(np.gcd(rate, RATE))
    return trim(resample_poly(samples, RATE // divisor, rate // divisor))


def spoken_digits(source: Path, folder: Path) -> dict[str, Spoken]:
    """The recordings of the Free Spoken Digit Dataset, whose takes are split as in `speech_data fsdd`."""
    spoken: dict[str, dict[str, list[np.ndarray]]] = {split: {} for split in COUNTS}
    for each in unpack(source, folder):
        spoken[each.split].setdefault(DIGITS[each.digit], []).append(trim(read_sound(each.path).samples))
    return dict(spoken)
