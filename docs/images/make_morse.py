"""Draws docs/images/morse.png: `python docs/images/make_morse.py RUN`, a run that has learned the embedded Morse code.

It also prints how many times of forced alignment and peaks of attention are within the true times.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import regard
from regard.synthetic.morse import MorseSettings, encode_morse

MESSAGE = "CQ DE W1AW"
SETTINGS = MorseSettings(speed=22, snr=15, fading=0.2, jitter=0.03, drift=5)


def main(run: str, out: Path) -> None:
    predictor = regard.load(run)
    recording = encode_morse(MESSAGE, np.random.default_rng(7), SETTINGS)
    sound = recording.samples, recording.rate
    frames = predictor.sound.encode(sound)
    times = np.array(predictor.align(sound, recording.text).alignment.times)
    attention = predictor.look(sound, recording.text).cross()[: len(times)].numpy()
    seconds = len(recording.samples) / recording.rate
    figure = Figure(figsize=(9, 4.6), dpi=110, layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.6])
    top.imshow(frames.T, origin="lower", aspect="auto", cmap="gray_r", extent=(0, seconds, 0, frames.shape[1]))
    bins = frames.shape[1]
    for letter, (start, end), own in zip(recording.text, recording.onsets, times, strict=True):
        top.text((start + end) / 2, bins * 1.19, letter, ha="center", fontsize=11, color="#1f4e9e")
        top.plot([start, end], [bins * 1.13] * 2, color="#1f4e9e", linewidth=2)
        top.plot(own.mean(), bins * 1.05, marker="v", color="#c0392b", markersize=6)
    top.set_ylim(0, bins * 1.4)
    top.set_ylabel("frequency bin")
    top.set_title("frames; blue: true times of the characters, red: forced alignment", fontsize=10)
    bottom.imshow(attention, aspect="auto", cmap="Blues", extent=(0, seconds, len(times), 0))
    for row, (start, end) in enumerate(recording.onsets):
        bottom.plot([start, end], [row + 0.5] * 2, color="#c0392b", linewidth=1)
    bottom.set_yticks(np.arange(len(times)) + 0.5, list(recording.text), fontsize=8)
    bottom.set_xlabel("seconds")
    bottom.set_title("cross-attention of the decoder; red: true times", fontsize=10)
    figure.savefig(out)
    peaks = (attention.argmax(1) + 0.5) * seconds / attention.shape[1]  # the middle of a position
    keyed = np.array([letter != " " for letter in recording.text])
    for name, found in (("alignment", times.mean(1)), ("attention", peaks)):
        outside = np.maximum(recording.onsets[:, 0] - found, found - recording.onsets[:, 1]).clip(min=0)[keyed]
        print(f"{name}: {(outside == 0).sum()} of {keyed.sum()} within the true time of their character, ", end="")
        print(f"the others {1000 * outside.max():.0f} ms beside it at most")


if __name__ == "__main__":
    main(sys.argv[1], Path(__file__).with_name("morse.png"))
