"""Log filterbanks: Kaldi's definition, statistics, files, augmentation."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

from regard.errors import UserError
from regard.processors.saved import load_processor
from regard.processors.sound.filterbank import FilterbankProcessor, with_statistics
from regard.processors.sound.frames import add_sound_noise, warp_frequencies
from regard.processors.sound.log_mel import AudioProcessor
from regard.processors.sound.read import Samples

RATE = 16000


def noise(seconds: float, level: float = 0.1, seed: int = 0) -> np.ndarray:
    return (level * np.random.default_rng(seed).standard_normal(int(seconds * RATE))).astype(np.float32)


def tone(hertz: float, seconds: float = 1.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


def kaldi_frames(samples: np.ndarray, rate: int, bins: int) -> np.ndarray:
    """Kaldi's definition (feature-window.cc, mel-computations.cc), frame by frame."""
    length, shift, size = rate * 25 // 1000, rate // 100, 1
    while size < length:
        size *= 2

    def mel(hertz: float) -> float:
        return 1127 * np.log(1 + hertz / 700)

    low, step = mel(20), (mel(rate / 2) - mel(20)) / (bins + 1)
    filters = np.zeros((bins, size // 2 + 1))
    for row in range(bins):
        left, center, right = (low + step * (row + i) for i in range(3))
        for i in range(size // 2):
            here = mel(i * rate / size)
            if left < here < right:
                filters[row, i] = (here - left if here <= center else right - here) / step
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (length - 1))) ** 0.85
    frames, samples = [], samples.astype(np.float64) * 32768
    for first in range(0, len(samples) - length + 1, shift):
        frame = samples[first : first + length] - samples[first : first + length].mean()
        frame = frame - 0.97 * np.r_[frame[0], frame[:-1]]
        power = np.abs(np.fft.rfft(frame * window, size)) ** 2
        frames.append(np.log(np.maximum(filters @ power, np.finfo(np.float32).eps)))
    return np.array(frames)


SOUNDS = {
    "noise": noise(0.7),
    "tone": tone(440, 0.7),
    "quiet": noise(0.7, 1e-4),
    "offset": noise(0.7, 1e-3) + np.float32(0.5),
    "silence": np.zeros(10_000, np.float32),
}


@pytest.mark.parametrize(("rate", "bins"), [(16000, 80), (8000, 40), (8000, 80), (22050, 23)])
@pytest.mark.parametrize("name", SOUNDS)
def test_frames_are_those_of_kaldi(name, rate, bins):
    processor, samples = FilterbankProcessor(rate=rate, bins=bins), SOUNDS[name]
    expected, found = kaldi_frames(samples, rate, bins), processor.encode(samples)
    assert found.dtype == np.float32 and found.shape == expected.shape == (processor.frames(len(samples)), bins)
    assert np.abs(found - expected).max() < 5e-6


@pytest.mark.parametrize("name", SOUNDS)
def test_frames_agree_with_transformers(name):
    from transformers import Speech2TextFeatureExtractor

    theirs = Speech2TextFeatureExtractor(do_ceptral_normalize=False)
    expected = theirs(SOUNDS[name], sampling_rate=RATE, return_tensors="np")["input_features"][0]
    assert np.abs(FilterbankProcessor().encode(SOUNDS[name]) - expected).max() < 1e-5


@pytest.mark.parametrize("processor", [FilterbankProcessor(), AudioProcessor()])
def test_frames_do_not_depend_on_the_precision_of_a_model(processor):
    expected = processor.encode(SOUNDS["noise"])
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(processor.encode(SOUNDS["noise"]), expected)


def test_lengths_and_times():
    processor = FilterbankProcessor()
    for samples in (1, 399, 400, 559, 560, 50_000):
        assert len(processor.encode(noise(4)[:samples])) == processor.frames(samples)
    assert [processor.frames(each) for each in (1, 400, 559, 560, 16000)] == [1, 1, 1, 2, 98]
    padded = np.pad(noise(1)[:100], (0, 300))
    assert np.array_equal(processor.encode(noise(1)[:100]), processor.encode(padded))
    click = np.zeros(RATE, np.float32)
    click[8000] = 1
    loudest = processor.encode(click).mean(1).argmax()
    assert abs(processor.seconds_of(loudest) - 0.5) <= 0.006 and processor.seconds_of(0) == 0.0125
    assert (FilterbankProcessor(rate=8000).window, FilterbankProcessor(rate=8000).hop) == (200, 80)
    assert FilterbankProcessor(window=512, hop=128).encode(noise(1)).shape == (1 + (16000 - 512) // 128, 80)


def test_batches():
    processor = FilterbankProcessor(bins=40)
    encoded = [processor.encode(each) for each in (noise(1), noise(0.5), noise(1)[:1])]
    batch = processor.collate(encoded)
    assert batch.modality == processor.modality == "frames" and batch.values.shape == (3, 98, 40)
    assert batch.valid.sum(1).tolist() == [processor.cost(each) for each in encoded] == [98, 48, 1]
    assert not batch.values[1, 48:].any() and torch.equal(batch.values[1, :48], torch.from_numpy(encoded[1]))


def test_other_rates_and_files(tmp_path):
    processor, samples = FilterbankProcessor(), noise(0.5)
    soundfile.write(tmp_path / "a.flac", samples, RATE)
    soundfile.write(tmp_path / "b.wav", np.stack([samples, samples], 1), RATE, subtype="FLOAT")
    expected = processor.encode(samples)
    assert np.array_equal(processor.encode(tmp_path / "b.wav"), expected)
    assert np.abs(processor.encode(tmp_path / "a.flac") - expected).mean() < 0.01
    assert np.array_equal(processor.encode(torch.from_numpy(samples)), expected)
    assert len(processor.encode((samples, 8000))) == processor.frames(2 * len(samples))


def test_streamed_frames_equal_the_whole():
    processor = FilterbankProcessor()
    for samples in (noise(13), noise(1)[:1], noise(1)[:400], noise(30)[: 65536 * 5 + 399]):
        blocks = list(processor.stream_frames(samples))
        assert np.abs(np.concatenate(blocks) - processor.encode(samples)).max() < 1e-5
    assert len(list(processor.stream_frames(noise(13)))) > 2


def test_statistics():
    sounds = [noise(1, 0.1, 1), tone(700), noise(0.3, 0.01, 2), Samples(noise(0.5, 0.1, 3), 8000)]
    plain = FilterbankProcessor(bins=30, noise=0.5)
    processor = with_statistics(plain, iter(sounds))
    frames = np.concatenate([plain.encode(sound) for sound in sounds]).astype(np.float64)
    assert np.allclose(processor.mean, frames.mean(0), atol=1e-6) and np.allclose(
        processor.std, frames.std(0), atol=1e-6
    )
    normalized = np.concatenate([processor.encode(sound) for sound in sounds])
    assert normalized.dtype == np.float32 and np.abs(normalized.mean(0)).max() < 1e-4
    assert np.abs(normalized.std(0) - 1).max() < 1e-4
    leveled = with_statistics(replace(plain, cmvn="level"), sounds)
    normalized = np.concatenate([leveled.encode(sound) for sound in sounds])
    assert np.abs(normalized.mean(0)).max() < 1e-4 and np.abs(normalized.std(0) - 1).max() < 1e-4
    assert replace(processor, mean=(), std=()) == plain and with_statistics(processor, sounds) == processor
    constant = with_statistics(plain, [np.zeros(9000)])
    assert constant.std == (1.0,) * 30 and not constant.encode(np.zeros(500)).any()
    with pytest.raises(UserError, match="there are no recordings to compute mean and std of; give at least one"):
        with_statistics(plain, [])


@pytest.mark.parametrize("name", ["noise", "quiet", "offset"])
def test_utterances_are_normalized_as_by_transformers(name):
    from transformers import Speech2TextFeatureExtractor

    expected = Speech2TextFeatureExtractor()(SOUNDS[name], sampling_rate=RATE, return_tensors="np")["input_features"][0]
    processor = FilterbankProcessor(cmvn="utterance")
    assert np.abs(processor.encode(SOUNDS[name]) - expected).max() < 1e-3
    measured = with_statistics(processor, [noise(1)])
    assert len(measured.mean) == 80 and np.array_equal(measured.encode(SOUNDS[name]), processor.encode(SOUNDS[name]))


@pytest.mark.parametrize("cmvn", ["level", "utterance"])
def test_frames_without_level(cmvn):
    samples = noise(0.5) + tone(500, 0.5)
    plain, processor = FilterbankProcessor(), FilterbankProcessor(cmvn=cmvn)
    measured = with_statistics(processor, [samples, noise(1, 0.01)])
    for own in (processor, measured):
        assert np.abs(own.encode(samples) - own.encode(samples / 100)).max() < 1e-3
    assert np.abs(plain.encode(samples) - plain.encode(samples / 100)).min() > 9
    if cmvn == "level":
        assert abs(np.exp(processor.encode(samples)).mean() - 1) < 1e-4
        assert np.ptp(plain.encode(samples) - processor.encode(samples)) < 1e-4  # one number


def test_normalized_utterances_without_variance():
    processor = FilterbankProcessor(cmvn="utterance", frame_masks=1, bin_masks=1)
    samples = noise(0.5) + tone(500, 0.5)
    for constant in (np.zeros(9000, np.float32), samples[:10]):  # silence; a single frame
        assert not processor.encode(constant).any()
    masked = processor.encode(samples, np.random.default_rng(1))
    assert np.isfinite(masked).all() and (masked == 0).any() and masked.dtype == np.float32
    assert len(processor.decode(processor.encode(samples)).samples) > 7000


def test_statistics_of_a_long_recording_need_little_memory(tmp_path):
    soundfile.write(tmp_path / "a.wav", noise(240), RATE)
    tracemalloc.start()
    with_statistics(FilterbankProcessor(bins=20), [tmp_path / "a.wav"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6  # all samples would take 15 MB


def test_files_round_trip(tmp_path):
    processor = with_statistics(FilterbankProcessor(rate=8000, bins=10, speed=(0.9, 1.1), snr=(3, 9)), [noise(1)])
    processor.save(tmp_path / processor.file)
    content = json.loads((tmp_path / "filterbank.json").read_text())
    assert (content["kind"], content["version"], content["window"], len(content["mean"])) == ("filterbank", 1, 200, 10)
    again = load_processor(tmp_path / "filterbank.json")
    assert again == processor and np.array_equal(again.encode(noise(1)), processor.encode(noise(1)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rate": 100}, "rate is 100 samples per second; expected 1000 to 768000"),
        ({"bins": 0}, "frames of rate=16000, bins=0, window=400, hop=160 are not possible"),
        ({"hop": 500}, "window=400, hop=500 are not possible"),
        ({"bins": 10, "bin_masks": 1}, "a mask of 15 bins does not fit 10"),
        ({"speed": (0.9, 3)}, r"speed is \(0.9, 3\); expected numbers from 0.5 to 2.0"),
        ({"noise": 2}, "noise is 2 and snr .*; expected a share of 0…1 and two numbers of decibels"),
        ({"snr": (9, 3)}, r"snr \(9, 3\); expected a share"),
        ({"vtlp": (1.2, 0.8)}, r"vtlp is \(1.2, 0.8\) and equalizer 0.0; expected two factors from 0.5 to 2.0"),
        ({"cmvn": "speaker"}, "cmvn is 'speaker'; expected global or level or utterance"),
        ({"equalizer": -1}, "equalizer -1; expected .* decibels of at least 0"),
        ({"mean": (1, 2), "std": (1, 2)}, "mean has 2 numbers and std 2; expected 80 of each"),
        ({"bins": 1, "mean": (1,), "std": (0,)}, "mean has 1 numbers and std 1; expected 1 of each, those of std positive"),
    ],
)  # fmt: skip
def test_wrong_settings(settings, words):
    with pytest.raises(UserError, match=words):
        FilterbankProcessor(**settings)


# --- augmentation ----------------------------------------------------------------------------------------------------

AUGMENTED = FilterbankProcessor(speed=(0.9, 1.0, 1.1), noise=0.5, frame_masks=2, frame_width=20, bin_masks=2)


def test_augmentation_is_a_function_of_the_rng():
    samples = noise(1) + tone(300)
    before = samples.copy()
    plain = AUGMENTED.encode(samples)
    results = [AUGMENTED.encode(samples, np.random.default_rng(seed)) for seed in range(30)]
    for seed, result in enumerate(results):
        assert np.array_equal(result, AUGMENTED.encode(samples, np.random.default_rng(seed)))
        assert not np.array_equal(result, plain) and np.isfinite(result).all()
    assert {len(result) for result in results} == {AUGMENTED.frames(round(16000 / s)) for s in (0.9, 1.0, 1.1)}
    assert np.array_equal(AUGMENTED.encode(samples), plain) and np.array_equal(samples, before)
    nothing = FilterbankProcessor(noise=0, speed=(1.0,))
    assert np.array_equal(nothing.encode(samples, np.random.default_rng(0)), plain)


@pytest.mark.parametrize("speed", [0.5, 0.9, 1.1, 2.0])
def test_speed_changes_length_and_pitch(speed):
    processor = FilterbankProcessor(speed=(speed,))
    samples = processor.augment(tone(1000), np.random.default_rng(0))
    assert abs(len(samples) - 16000 / speed) < 1 and samples.dtype == np.float32
    spectrum = np.abs(np.fft.rfft(samples))
    assert abs(spectrum.argmax() * RATE / len(samples) - 1000 * speed) < 2
    assert len(processor.encode(tone(1000), np.random.default_rng(0))) == processor.frames(len(samples))


@pytest.mark.parametrize("processor", [FilterbankProcessor(bins=128), AudioProcessor(bins=128)])
@pytest.mark.parametrize("factor", [0.8, 1.25, 1.0])
def test_vtlp_moves_a_tone_by_its_factor(processor, factor):
    warped = replace(processor, vtlp=(factor, factor), frame_masks=0, bin_masks=0)
    found = warped.encode(tone(1000), np.random.default_rng(0))
    moved = processor.encode(tone(1000 * factor))
    assert found[50].argmax() == moved[50].argmax() and found.shape == moved.shape
    assert (factor == 1) == np.array_equal(found, processor.encode(tone(1000))) == (not warped.augments_samples)


def test_warped_frequencies_end_where_they_did():
    frequencies = np.linspace(0, 4000, 129)
    for factor in (0.5, 0.8, 1.25, 2.0):
        warped = warp_frequencies(frequencies, factor)
        assert warped[0] == 0 and warped[-1] == 4000 and (np.diff(warped) > 0).all()
        assert np.allclose(warped[:50], frequencies[:50] * factor)
    assert np.allclose(warp_frequencies(frequencies, 1.0), frequencies)


def test_vtlp_draws_factors_of_its_range():
    processor = FilterbankProcessor(vtlp=(0.8, 1.25))
    factors = [processor.draw_warp(np.random.default_rng(seed)) for seed in range(200)]
    assert 0.8 <= min(factors) < 0.82 and 1.22 < max(factors) <= 1.25
    assert abs(np.log(factors).mean()) < 0.03 and processor.draw_warp(np.random.default_rng(7)) == factors[7]


@pytest.mark.parametrize("processor", [FilterbankProcessor(), AudioProcessor(frame_masks=0, bin_masks=0)])
def test_the_equalizer_adds_a_curve(processor):
    samples, scale = noise(0.5), np.log(10) / 10 if processor.kind == "filterbank" else 0.1 / 4
    equalized = replace(processor, equalizer=3.0)
    plain, curves = processor.encode(samples), []
    for seed in range(100):
        gains = (equalized.encode(samples, np.random.default_rng(seed)) - plain) / scale
        assert np.abs(gains - gains[0]).max() < 1e-3  # all frames have the same gains
        curves.append(gains[0])
    assert np.abs(np.array(curves)[:, 0].std() - 3) < 0.7 and np.abs(np.diff(curves, 2)).max() < 2
    assert equalized.augments_samples and np.array_equal(equalized.encode(samples), plain)


@pytest.mark.parametrize("level", [0.3, 1e-4])
def test_noise_has_its_ratio(level):
    samples, found, slopes = noise(1, level), [], set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        added = (add_sound_noise(samples, 12.0, rng) - samples).astype(np.float64)
        assert abs(10 * np.log10(np.square(samples).mean() / np.square(added).mean()) - 12) < 0.05
        power = np.abs(np.fft.rfft(added)) ** 2
        slopes.add(bool(power[1:800].mean() > 4 * power[4000:].mean()))
        noisy = FilterbankProcessor(noise=1.0, snr=(0.0, 20.0)).augment(samples, np.random.default_rng(seed))
        found.append(10 * np.log10(np.square(samples).mean() / np.square(noisy - samples).mean()))
    assert slopes == {True, False}  # white and pink
    assert -0.5 < min(found) < 5 and 15 < max(found) < 20.5
    often = sum(
        FilterbankProcessor(noise=0.3).augment(samples, np.random.default_rng(i)) is not samples for i in range(200)
    )
    assert 35 < often < 85


def test_silence_gets_no_noise():
    processor = FilterbankProcessor(noise=1.0, speed=(0.9,), frame_masks=1, bin_masks=1)
    for samples in (np.zeros(RATE, np.float32), np.zeros(1, np.float32)):
        assert np.allclose(processor.encode(samples, np.random.default_rng(0)), np.log(2.0**-23), atol=1e-5)
    assert np.isfinite(processor.encode(np.full(1, 0.5), np.random.default_rng(0))).all()


def test_masks_are_bounded():
    """At most a fifth of the frames each, replaced by the mean: 0 after normalization."""
    samples = noise(0.5) + tone(500, 0.5)
    plain = FilterbankProcessor(bins=40, frame_masks=1, frame_width=30, bin_masks=1, bin_width=8)
    for processor in (plain, with_statistics(plain, [samples, noise(1, 0.01)])):
        expected = processor.encode(samples)  # 48 frames
        widths = []
        for seed in range(60):
            found = processor.encode(samples, np.random.default_rng(seed))
            value = 0 if processor.mean else expected.mean(0)
            masked = (found == np.float32(value)) & (found != expected)
            frames, bins = masked.all(1), masked.all(0)
            widths.append((frames.sum(), bins.sum()))
            assert np.array_equal(found[~frames][:, ~bins], expected[~frames][:, ~bins])
            for kept in (frames, bins):  # one range
                assert np.abs(np.diff(np.r_[0, kept, 0])).sum() <= 2
        assert np.max(widths, 0).tolist() == [9, 8] and np.min(widths, 0).tolist() == [0, 0]
    tiny = plain.encode(samples[:700], np.random.default_rng(3))  # 2 frames: none is masked whole
    assert not (tiny == tiny[:1]).all()


def test_frames_become_sound_again():
    processor = with_statistics(FilterbankProcessor(), [tone(1000), noise(1)])
    encoded = processor.encode(tone(1000))
    sound = processor.decode(encoded)
    assert sound.rate == RATE and len(sound.samples) == 400 + 97 * 160
    spectrum = np.abs(np.fft.rfft(sound.samples[1000:-1000]))
    assert abs(spectrum.argmax() * RATE / len(sound.samples[1000:-1000]) - 1000) < 50
    assert 0.2 < np.abs(sound.samples[2000:-2000]).max() < 1.2
    assert len(processor.decode(torch.from_numpy(encoded[:1])).samples) == 400
