"""`python -m benchmarks.word_times RUN`: the word times of a transcription run against the true ones, on Morse code.

The texts are those of the test split, keyed again so that their onsets are known. Recordings that are longer than the
window of a Whisper run are left out. `known`: the times of the given text; `own`: those of correct transcripts.
"""

import sys
from collections.abc import Iterable
from dataclasses import asdict

import numpy as np

import regard
from regard.synthetic.morse import MorseRecording, MorseSettings, encode_morse, make_morse

from .report import align_columns

SEED = 11
COUNT = 150  # recordings


def measure(run: str, count: int = COUNT) -> dict[str, list[float]]:
    """The errors of words in seconds, by what was measured; `exact` has 1 for every transcript without a mistake."""
    predictor, rng, texts = regard.load(run), np.random.default_rng(SEED), make_morse(100)["test"]
    longest = getattr(predictor.sound, "seconds", 0) or predictor.run.data.max_seconds
    errors: dict[str, list[float]] = {
        name: [] for name in ("known start", "known end", "own start", "own end", "exact")
    }
    for index in range(count):
        recording = encode_morse(texts.text(index, 1), rng, MorseSettings.random(rng))
        if len(recording.samples) > longest * recording.rate:
            continue
        aligned = predictor.align(recording.sound, recording.text).alignment.words
        add_errors(errors, "known", recording, [asdict(each) for each in aligned])
        found = predictor.predict(recording.sound, details=True)
        errors["exact"].append(float(found["text"] == recording.text))
        if errors["exact"][-1]:
            add_errors(errors, "own", recording, found["alignment"]["words"])
    return errors


def add_errors(
    errors: dict[str, list[float]], name: str, recording: MorseRecording, words: Iterable[dict[str, float | str]]
) -> None:
    place = 0
    for word in words:
        first = recording.text.index(str(word["word"]), place)
        place = first + len(str(word["word"]))
        errors[f"{name} start"].append(float(word["start"]) - recording.onsets[first][0])
        errors[f"{name} end"].append(float(word["end"]) - recording.onsets[place - 1][1])


def main(arguments: list[str], count: int = COUNT) -> None:
    (run,) = arguments
    errors = measure(run, count)
    exact = errors.pop("exact")
    print(f"{len(exact)} recordings, {np.mean(exact):.3f} transcribed without a mistake")
    rows = [["words", "of", "median error, ms", "90 %, ms", "bias, ms"]]
    for name, values in errors.items():
        own = 1000 * np.array(values or [np.nan])
        figures = np.median(abs(own)), np.quantile(abs(own), 0.9), np.median(own)
        rows.append([str(len(values)), name, *(f"{each:.0f}" for each in figures)])
    print("\n".join(align_columns(rows)))


if __name__ == "__main__":
    main(sys.argv[1:])
