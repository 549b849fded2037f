"""`python -m benchmarks.speech_data WHAT SOURCE OUT`: data sets of speech, as tables of path and text.

fsdd: the Free Spoken Digit Dataset (a folder or an archive of its recordings). Takes 0 to 4 are test, 5 to 9 valid, the
others train; for every speaker also `without-NAME.tsv` (train), `without-NAME-valid.tsv` and `only-NAME.tsv` (test).

strings: strings of 3 to 7 of these digits, joined with gaps and noise. `takes` splits them by takes, as fsdd does;
`speakers` by speakers: the last one is test, the one before it valid.

digits: the same words spoken by espeak-ng, 1 to 5 in a row; `unseen.tsv` has voices that are never in train.

spoken: sentences (the first column of train.tsv, valid.tsv and test.tsv in a folder, compressed or not) spoken by
espeak-ng. Some voices are never in train: `test.tsv` has seen voices, `unseen.tsv` the others.
"""

import itertools
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from regard.cli.runner import run_app
from regard.data.files.open import open_decompressed
from regard.processors.sound.read import read_sound

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPEAKERS = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
TEST, VALID = 5, 10  # takes below the first are test, below the second valid
RATE = 8000
STRINGS = {"train": 4000, "valid": 300, "test": 600}
DIGITS = 3, 7  # of a string
GAP = 0.05, 0.5  # seconds between two digits, before the first and after the last
NOISE = 10.0, 30.0  # signal-to-noise ratio of a string in decibels
ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029")
VARIANTS = (
    "m1",
    "m2",
    "m3",
    "m4",
    "m6",
    "m7",
    "f1",
    "f2",
    "f3",
    "f4",
    "f5",
    "adam",
    "linda",
    "belinda",
    "max",
    "steph",
)
UNSEEN = ("en-us+f3", "en-us+m7", "en-gb+m2", "en-gb+f5", "en-gb-scotland+adam", "en-gb-x-rp+linda", "en-029+f2")
SEEN = tuple(f"{a}+{v}" for a, v in itertools.product(ACCENTS, VARIANTS) if f"{a}+{v}" not in UNSEEN)
SPOKEN_DIGITS = 1, 5  # of a recording of espeak-ng
Split = Literal["speakers", "takes"]
app = typer.Typer(add_completion=False)
Source = Annotated[Path, typer.Argument(metavar="SOURCE")]
Out = Annotated[Path, typer.Argument(metavar="OUT")]


@dataclass(frozen=True)
class Recording:
    path: Path
    digit: int
    speaker: str
    take: int

    @property
    def split(self) -> str:
        return "test" if self.take < TEST else "valid" if self.take < VALID else "train"


@app.command()
def fsdd(source: Source, out: Out) -> None:
    """Tables of the Free Spoken Digit Dataset."""
    recordings = unpack(source, out / "recordings")
    for split in ("train", "valid", "test"):
        write_table(out / f"{split}.tsv", [each for each in recordings if each.split == split])
    for name in SPEAKERS:
        others = [each for each in recordings if each.speaker != name]
        write_table(out / f"without-{name}.tsv", [each for each in others if each.take >= VALID])
        write_table(out / f"without-{name}-valid.tsv", [each for each in others if TEST <= each.take < VALID])
        write_table(out / f"only-{name}.tsv", [each for each in recordings if each.speaker == name])


@app.command()
def strings(source: Source, out: Out, by: Annotated[Split, typer.Option(help="What is split.")] = "speakers") -> None:
    """Strings of digits with gaps and noise."""
    recordings = unpack(source, out / "recordings")
    owner = dict.fromkeys(SPEAKERS[:-2], "train") | {SPEAKERS[-2]: "valid", SPEAKERS[-1]: "test"}
    for number, (split, count) in enumerate(STRINGS.items()):
        own = [each for each in recordings if (owner[each.speaker] if by == "speakers" else each.split) == split]
        rng, rows = np.random.default_rng(number), []
        (out / split).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            samples, text = make_string(own, rng)
            rows.append((write_sound(out / split / f"{index:05d}.flac", samples, RATE), text))
        write_rows(out / f"{split}.tsv", rows)


def make_string(recordings: Sequence[Recording], rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Digits of one speaker."""
    speaker = recordings[int(rng.integers(len(recordings)))].speaker
    own = [each for each in recordings if each.speaker == speaker]
    chosen = [own[int(rng.integers(len(own)))] for _ in range(int(rng.integers(DIGITS[0], DIGITS[1] + 1)))]
    parts = [gap(rng)]
    for each in chosen:
        parts += [read_sound(each.path).samples, gap(rng)]
    samples = np.concatenate(parts)
    power, ratio = float((samples**2).mean()), 10 ** (rng.uniform(*NOISE) / 10)
    samples = samples + rng.normal(0, (power / ratio) ** 0.5, len(samples))
    return samples, " ".join(WORDS[each.digit] for each in chosen)


def gap(rng: np.random.Generator) -> np.ndarray:
    return np.zeros(int(rng.uniform(*GAP) * RATE))


@app.command()
def digits(
    out: Out,
    train: Annotated[int, typer.Option(help="Recordings to train on.")] = 4000,
    suffix: Annotated[str, typer.Option(help="Of the recordings: .flac, .ogg or .mp3.")] = ".flac",
) -> None:
    """Digits spoken by espeak-ng in many voices."""
    for number, (name, voices, count) in enumerate(
        [("train", SEEN, train), ("valid", SEEN, 300), ("test", SEEN, 500), ("unseen", UNSEEN, 500)]
    ):
        rng = np.random.default_rng(number)
        counts = rng.integers(SPOKEN_DIGITS[0], SPOKEN_DIGITS[1] + 1, count)
        texts = [" ".join(WORDS[digit] for digit in rng.integers(10, size=own)) for own in counts]
        write_spoken(out, name, texts, voices, rng, suffix, RATE)


@app.command()
def spoken(
    source: Source,
    out: Out,
    train: Annotated[int, typer.Option(help="Sentences to train on.")] = 6000,
    words: Annotated[int, typer.Option(help="The most words of a sentence.")] = 10,
    rate: Annotated[int, typer.Option(help="Samples per second.")] = 16000,
    suffix: Annotated[str, typer.Option(help="Of the recordings: .flac, .ogg or .mp3.")] = ".flac",
) -> None:
    """Sentences spoken by espeak-ng in many voices."""
    plan = {"train": ("train", SEEN, train), "valid": ("valid", SEEN, 300), "test": ("test", SEEN, 500)}
    plan["unseen"] = ("test", UNSEEN, 500)
    for number, (name, (split, voices, count)) in enumerate(plan.items()):
        rng = np.random.default_rng(number)
        texts = list(sentences(source, split, words))
        chosen = [texts[index] for index in rng.permutation(len(texts))[:count]]
        write_spoken(out, name, chosen, voices, rng, suffix, rate)


def write_spoken(
    out: Path, name: str, texts: Sequence[str], voices: Sequence[str], rng: np.random.Generator, suffix: str, rate: int
) -> None:
    """Recordings of texts, each in a random voice and at a random speed, and their table."""
    (out / name).mkdir(parents=True, exist_ok=True)
    jobs = [
        (text, voices[int(rng.integers(len(voices)))], int(rng.integers(140, 200)), out / name / f"{i:05d}{suffix}")
        for i, text in enumerate(texts)
    ]
    with ProcessPoolExecutor() as pool:
        paths = list(pool.map(partial(speak, rate=rate), *zip(*jobs, strict=True), chunksize=16))
    write_rows(out / f"{name}.tsv", zip(paths, map(normalize, texts), strict=True))


def sentences(folder: Path, split: str, words: int) -> Iterator[str]:
    """Different English sentences of letters and punctuation."""
    (path,) = folder.glob(f"{split}.tsv*")
    with open_decompressed(path) as file:
        texts = dict.fromkeys(line.decode().split("\t")[0] for line in file)
    return (each for each in texts if re.fullmatch(r"[A-Za-z',.?! -]+", each) and 2 <= len(each.split()) <= words)


def normalize(text: str) -> str:
    return " ".join(re.sub(r"[^a-z' ]", " ", text.lower()).split())


def speak(text: str, voice: str, speed: int, path: Path, rate: int) -> Path:
    from scipy.signal import resample_poly

    command = ["espeak-ng", "-v", voice, "-s", str(speed), "--stdout", text]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    samples, own = read_sound(data)
    divisor = int(np.gcd(own, rate))
    return write_sound(path, resample_poly(samples, rate // divisor, own // divisor), rate)


# --- files -----------------------------------------------------------------------------------------------------------


def unpack(source: Path, folder: Path) -> list[Recording]:
    """The recordings of a folder, or of an archive that is unpacked into `folder`."""
    if source.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(source) as archive:
            for member in archive:
                if member.name.endswith(".wav") and (file := archive.extractfile(member)):
                    (folder / Path(member.name).name).write_bytes(file.read())
        source = folder
    found = []
    for path in sorted(source.rglob("*.wav")):
        digit, speaker, take = path.stem.split("_")
        found.append(Recording(path.resolve(), int(digit), speaker, int(take)))
    return found


def write_sound(path: Path, samples: np.ndarray, rate: int) -> Path:
    import soundfile

    soundfile.write(path, np.clip(samples, -1, 1), rate)
    return path


def write_table(path: Path, recordings: Iterable[Recording]) -> None:
    write_rows(path, ((each.path, WORDS[each.digit]) for each in recordings))


def write_rows(path: Path, rows: Iterable[tuple[Path, str]]) -> None:
    lines = ["path\ttext", *(f"{sound.resolve()}\t{text}" for sound, text in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_app(app, "python -m benchmarks.speech_data", sys.argv[1:]))
