"""`python -m benchmarks.word_times RUN`: the word times of a transcription run against the true ones.

The recordings are Morse code: the texts of the test split, keyed again so that their onsets are known. With `--data
FOLDER` they are those of a folder that `--spoken FOLDER` has made: words joined with known silences, on which it also
trains a run before it measures. The words are spoken by espeak-ng, or are the digits of `--digits SOURCE` (FSDD).

`known`: the times of the given text; `own`: those of correct transcripts. Recordings that are longer than the window
of a Whisper run are left out.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import regard
from regard.cli.runner import run_app
from regard.synthetic.morse import MorseRecording, MorseSettings, encode_morse, make_morse

from .joined_words import TimedRecording, make_recordings, read_recordings, spoken_by_espeak, spoken_digits
from .report import align_columns

SEED = 11
COUNT = 150  # recordings of Morse code
app = typer.Typer(add_completion=False)
Folder = Annotated[Path | None, typer.Option(metavar="FOLDER")]


def measure(predictor: Any, recordings: Iterable[TimedRecording]) -> dict[str, list[float]]:
    """The errors of words in seconds, by what was measured.

    `exact` has 1 for every transcript without a mistake, `… in silence` for every word without any sound in its time.
    """
    errors: dict[str, list[float]] = {
        name: [] for name in ("known start", "known end", "own start", "own end", "exact", "silent")
    }
    for recording in recordings:
        add_errors(errors, "known", recording, predictor.align(recording.sound, recording.text).alignment.words)
        result = predictor.predict_requests(predictor.requests([recording.sound], details=True))[0]
        errors["exact"].append(float(result.text == recording.text))
        if errors["exact"][-1]:
            add_errors(errors, "own", recording, result.alignment.words)
    return errors


def add_errors(errors: dict[str, list[float]], name: str, recording: TimedRecording, words: Sequence[Any]) -> None:
    """Add the differences of the times of a recording's words from its borders."""
    for word, (start, end) in zip(words, recording.borders, strict=True):
        errors[f"{name} start"].append(word.start - start)
        errors[f"{name} end"].append(word.end - end)
        errors["silent"].append(
            float(not any(word.start < last and first < word.end for first, last in recording.borders))
        )


def morse_recordings(count: int, longest: float) -> Iterable[TimedRecording]:
    """Morse code of texts of the test split."""
    rng, texts = np.random.default_rng(SEED), make_morse(100)["test"]
    for index in range(count):
        recording = encode_morse(texts.text(index, 1), rng, MorseSettings.random(rng))
        if len(recording.samples) <= longest * recording.rate:
            yield TimedRecording(recording.sound, recording.text, word_borders(recording))


def word_borders(recording: MorseRecording) -> list[tuple[float, float]]:
    """The times of the words of Morse code, from those of its characters."""
    borders, place = [], 0
    for word in recording.text.split():
        first = recording.text.index(word, place)
        place = first + len(word)
        borders.append((recording.onsets[first][0], recording.onsets[place - 1][1]))
    return borders


def make_run(folder: Path, digits: Path | None) -> str:
    """A run that is trained on joined words, which are made first; what the folder has already is kept."""
    if not (folder / "test.json").exists():
        make_recordings(folder, spoken_by_espeak() if digits is None else spoken_digits(digits, folder / "digits"))
    if not (run := folder / "run").exists():
        settings = {"train.steps": 2000, "train.eval_every": 500, "train.metric": "wer", "train.tensorboard": False}
        tables = {"data.train": str(folder / "train.tsv"), "data.valid": str(folder / "valid.tsv")}
        regard.train("transcribe", settings | tables, out=run, progress=True)
    return str(run)


@app.command()
def main(
    run: Annotated[str | None, typer.Argument(metavar="RUN")] = None,
    data: Folder = None,
    spoken: Folder = None,
    digits: Annotated[Path | None, typer.Option(metavar="SOURCE")] = None,
    count: int = COUNT,
) -> None:
    """The errors of the word times of a run."""
    if spoken is not None:
        run, data = run or make_run(spoken, digits), spoken
    if run is None:
        raise regard.UserError("give a RUN, or --spoken FOLDER to train one")
    predictor = regard.load(run)
    longest = getattr(predictor.sound, "seconds", 0) or predictor.run.data.max_seconds
    errors = measure(predictor, morse_recordings(count, longest) if data is None else read_recordings(data)[:count])
    exact, silent = errors.pop("exact"), errors.pop("silent")
    print(f"{len(exact)} recordings, {np.mean(exact):.3f} transcribed without a mistake")
    rows = [["words", "of", "median error, ms", "90 %, ms", "bias, ms"]]
    for name, values in errors.items():
        own = 1000 * np.array(values or [np.nan])
        figures = np.median(abs(own)), np.quantile(abs(own), 0.9), np.median(own)
        rows.append([str(len(values)), name, *(f"{each:.0f}" for each in figures)])
    print("\n".join(align_columns(rows)))
    print(f"{sum(silent):.0f} of {len(silent)} words are in silence")


if __name__ == "__main__":
    sys.exit(run_app(app, "python -m benchmarks.word_times", sys.argv[1:]))
