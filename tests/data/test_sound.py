"""Reading sound: every source and format, bad input, headers, streaming, segments."""

import io
import os
import struct
import sys
import tracemalloc
from itertools import islice

import numpy as np
import pytest
import soundfile
import torch
from scipy.signal import resample_poly

from regard.errors import UserError
from regard.processors.image.read import FileBytes
from regard.processors.sound.log_mel import AudioProcessor
from regard.processors.sound.read import (
    Samples,
    SoundInfo,
    is_sound,
    read_sound,
    sound_info,
    sound_name,
    sound_problem,
    stream_sound,
)
from regard.processors.sound.resample import resample, resample_blocks
from regard.processors.sound.segments import segments

RATE = 16000


def tone(hertz: float = 440, seconds: float = 0.5, rate: int = RATE) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def noise(seconds: float, level: float = 0.1, seed: int = 0) -> np.ndarray:
    return (level * np.random.default_rng(seed).standard_normal(int(seconds * RATE))).astype(np.float32)


def content(samples: np.ndarray, format: str = "WAV", subtype: str | None = None, rate: int = RATE) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=format, subtype=subtype)
    return buffer.getvalue()


def wav_header(rate: int, data: int, bits: int = 8) -> bytes:
    width = bits // 8
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * width, width, bits)
    return struct.pack("<4sI4s", b"RIFF", 36 + data, b"WAVE") + form + struct.pack("<4sI", b"data", data)


def joined(raw: object, rate: int = RATE) -> np.ndarray:
    return np.concatenate(list(stream_sound(raw, rate)))


# --- sources and formats ---------------------------------------------------------------------------------------------


def test_every_source_gives_the_same_samples(tmp_path):
    samples = tone()
    whole = content(samples, subtype="FLOAT")
    (tmp_path / "a.wav").write_bytes(whole)
    integers = np.rint(samples * 32767).astype(np.int16)
    sources = [
        tmp_path / "a.wav", str(tmp_path / "a.wav"), whole, FileBytes(whole, "a.zip/a.wav"), samples, samples.astype(np.float64),
        torch.from_numpy(samples), torch.from_numpy(samples)[None], Samples(samples, RATE), (samples, RATE), (samples.tolist(), np.int64(RATE)),
        np.stack([samples, samples]), np.stack([samples, samples], 1), integers, (integers.astype(np.int32) << 16, RATE),
    ]  # fmt: skip
    for raw in sources:
        found = read_sound(raw)
        assert found.rate == RATE and found.samples.shape == samples.shape and found.samples.dtype == np.float32
        assert np.abs(found.samples - samples).max() < 1e-4
        assert is_sound(raw) and not is_sound([raw]) and not sound_problem(raw) and not sound_problem(raw, decode=True)
        assert np.array_equal(joined(raw), found.samples) and sound_info(raw).samples == len(samples)
    assert read_sound(torch.zeros(5, dtype=torch.bfloat16)).samples.tolist() == [0] * 5
    assert read_sound(samples, 8000).rate == 8000
    assert read_sound(np.array([0, 128, 255], np.uint8)).samples.tolist() == [-1, 0, 127 / 128]
    assert (
        not is_sound(("a.wav", "b.wav"))
        and not is_sound((1, 2))
        and not is_sound(3)
        and not is_sound(np.zeros((2, 3, 4)))
    )
    assert [sound_name(raw) for raw in (b"", FileBytes(b"", "a.zip/b"), "c.wav", samples)] == [
        "the bytes",
        "a.zip/b",
        "c.wav",
        "a sound",
    ]


@pytest.mark.parametrize(
    ("name", "format", "subtype", "error"),
    [
        ("a.wav", "WAV", "PCM_U8", 0.01), ("a.wav", "WAV", "PCM_24", 1e-6), ("a.wav", "WAV", "DOUBLE", 1e-7), ("a.wav", "RF64", "PCM_16", 1e-4),
        ("a.flac", "FLAC", None, 1e-4), ("a.wav", "FLAC", None, 1e-4), ("a.raw", "WAV", None, 1e-4), ("a.m4a", "WAV", None, 1e-4),
        ("a.ogg", "OGG", "VORBIS", 0.1), ("a.opus", "OGG", "OPUS", 0.1), ("a.mp3", "MP3", None, 0.1), ("a.aiff", "AIFF", None, 1e-4),
    ],
)  # fmt: skip
def test_formats(name, format, subtype, error, tmp_path):
    """The content decides, not the name. Two channels are averaged."""
    samples = tone()
    (tmp_path / name).write_bytes(content(np.stack([samples, 0 * samples], 1), format, subtype))
    assert sound_info(tmp_path / name) == SoundInfo(RATE, 8000, 2) and sound_info(tmp_path / name).seconds == 0.5
    found = read_sound(tmp_path / name).samples
    assert found.shape == (8000,) and np.abs(found - samples / 2)[500:7500].max() < error
    assert np.array_equal(joined(tmp_path / name), found) and not sound_problem(tmp_path / name, decode=True)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32"])
def test_the_standard_library_reads_plain_wav(subtype, monkeypatch):
    whole = content(np.stack([tone(), 0 * tone()], 1), subtype=subtype)
    expected = read_sound(whole)
    streamed = whole[:40] + b"\xff" * 4 + whole[44:]  # the length was unknown
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert np.abs(read_sound(whole).samples - expected.samples).max() < 1e-6
    if subtype == "PCM_16":
        assert sound_info(whole) == sound_info(streamed) == SoundInfo(RATE, 8000, 2)
        assert "truncated" in sound_problem(whole[:-100])
        with pytest.raises(UserError, match="the bytes has no samples; expected at least one"):
            read_sound(streamed[:44])
    with pytest.raises(UserError, match="the bytes is no plain WAV; for other formats: pip install"):
        read_sound(content(tone(), subtype="FLOAT"))


def test_lengths_that_were_unknown_when_the_file_was_written():
    wav, flac = content(tone()), bytearray(content(tone(), "FLAC"))
    flac[21] &= 0xF0
    flac[22:26] = bytes(4)
    for whole in (wav[:40] + b"\xff" * 4 + wav[44:], bytes(flac)):
        assert sound_info(whole) == SoundInfo(RATE, 8000, 1)
        assert len(read_sound(whole).samples) == 8000 and not sound_problem(whole, decode=True)


@pytest.mark.parametrize("loud_first", [False, True])
def test_mp3_files_that_do_not_tell_their_length(loud_first, capfd):
    """Decoders estimate the length from the first bit rate: too long is no error, too short would lose the end."""
    parts = [noise(20, 1e-4), noise(20, 0.3)]
    buffer = io.BytesIO()
    samples = np.concatenate(parts[::-1] if loud_first else parts)
    soundfile.write(buffer, samples, RATE, format="MP3", bitrate_mode="VARIABLE", compression_level=0.5)
    whole = buffer.getvalue()
    assert len(read_sound(whole).samples) == len(samples)
    tag = b"ID3\4\0\0\0\0\1\0" + bytes(128)
    assert len(read_sound(tag + whole).samples) == len(samples) and not sound_problem(tag + whole, decode=True)
    uncounted = whole[whole.index(b"\xff\xf3", 4) :]
    if loud_first:
        assert "an MP3 of variable bit rate that does not tell its length" in sound_problem(uncounted, decode=True)
    else:
        assert abs(len(read_sound(uncounted).samples) - len(samples)) < RATE
        assert sound_info(uncounted).samples == len(read_sound(uncounted).samples)


# --- bad input -------------------------------------------------------------------------------------------------------

FTYP, GUID = b"\0\0\0\x20ftyp", bytes.fromhex("3026b2758e66cf11")


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [
        ("a.m4a", FTYP + b"M4A ", r"it is M4A \(AAC\); convert it to WAV or FLAC, such as with: ffmpeg -i a\.m4a a\.wav"),
        ("a.wav", FTYP + b"isom", r"it is MP4 or M4A \(AAC\); convert"),
        ("a.3gp", FTYP + b"3gp4", "it is 3GP; convert"),
        ("a.aac", b"\xff\xf1\x50\x80", "it is AAC; convert"),
        ("a.webm", b"\x1aE\xdf\xa3", "it is WebM or Matroska; convert"),
        ("a.wma", GUID, r"it is WMA \(Windows Media\); convert"),
        ("a.amr", b"#!AMR\n", "it is AMR; convert"),
        ("a.avi", b"RIFF\0\0\0\0AVI LIST", "it is AVI video; convert"),
        ("a.spx", b"OggS" + bytes(24) + b"Speex   ", "it is Speex; convert"),
        ("a.mid", b"MThd", "it is MIDI, notes without sound; give WAV, FLAC, OGG or MP3"),
        ("a.png", b"\x89PNG", "it is an image; give WAV"),
        ("a.amr", b"\0\1\2\3", "its name says AMR; convert"),
        ("a.raw", b"\0\1\2\3", "its name says samples without a header; convert"),
        ("a.wav", b"hello, this is a text" * 99, "it is text; give WAV, FLAC, OGG or MP3"),
        ("a.wav", b"", "it is empty; record or download it again"),
    ],
)  # fmt: skip
def test_formats_that_are_not_read_are_named(name, head, words, tmp_path):
    (tmp_path / name).write_bytes(head)
    for raw in (tmp_path / name, FileBytes(head, f"x.zip/{name}")):
        for read in (read_sound, sound_info, joined):
            with pytest.raises(UserError, match=rf"{name} cannot be read as sound: {words}"):
                read(raw)
        assert name in sound_problem(raw) and "\n" not in sound_problem(raw)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG", "MP3"])
def test_truncated_files(format, capfd):
    whole = content(tone(seconds=2), format)
    for part in (whole[: len(whole) // 2], whole[:60]):
        problem = sound_problem(part, decode=True)
        assert "truncated" in problem or "cannot be read as sound (" in problem
        with pytest.raises(UserError):
            read_sound(part)
        if format in ("WAV", "OGG"):
            assert sound_problem(part) == problem  # from the header


def test_damaged_files(capfd):
    """A stretch inside is zero, or bytes of the header are changed: an error of one sentence, or finite samples."""
    rng = np.random.default_rng(0)
    for format in ("WAV", "FLAC", "OGG", "MP3"):
        whole = content(noise(5), format)
        middle = len(whole) // 2
        assert (not sound_problem(whole[:middle] + bytes(2000) + whole[middle + 2000 :], decode=True)) == (
            format == "WAV"
        )
        for _ in range(20):
            damaged = bytearray(whole)
            damaged[rng.integers(64)] = rng.integers(256)
            try:
                assert np.isfinite(read_sound(bytes(damaged)).samples).all()
            except UserError as error:
                assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("nowhere.wav", r"nowhere\.wav does not exist; give the path of a sound file"),
        (".", r"\. cannot be read \(Is a directory\); give the path of a sound file"),
        ("a\0b", r"cannot be read \(embedded null byte\)"),
        ("https://x.org/a.wav", "is an address, which regard does not fetch; download the sound"),
        (bytes(range(256)) * 9, r"the bytes cannot be read as sound \(Format not recogni[sz]ed\); give WAV, FLAC, OGG or MP3"),
        (wav_header(RATE, 0), "the bytes has no samples; expected at least one, record or download it again"),
        (wav_header(7, 9) + bytes(9), "the bytes has 7 samples per second; expected 1000 to 768000"),
        (wav_header(RATE, 900) + bytes(90), "the bytes is truncated: 810 of 900 bytes are missing; copy or download it again"),
        (content(np.r_[tone(), np.nan, tone()], subtype="FLOAT"), "the bytes has a sample that is no finite number after 0.50 s"),
        (content(np.r_[tone(), -np.inf], subtype="DOUBLE"), "no finite number after 0.50 s"),
        (content(np.r_[tone(), 1e9], subtype="FLOAT"), r"the bytes has samples from -0.5 to 1e\+09; expected -1…1"),
        (np.zeros(0), "a sound has no samples"),
        (np.zeros((0, 2)), "a sound has no samples"),
        (np.full(9, np.nan), "a sound has a sample that is no finite number after 0.00 s"),
        (np.zeros(()), r"an array of shape \(\) is no sound; expected \(samples,\) or \(samples, channels\)"),
        (torch.zeros(80, 300), r"an array of shape \(80, 300\) is no sound"),
        (np.zeros(9, np.int64), "a sound has samples of int64; expected floats in -1…1, or whole numbers as int16, int32 or uint8"),
        (np.array(["a"]), "a sound has samples of <U1; expected floats"),
        (([[1.0], [2.0, 3.0]], RATE), r"a sound cannot be read \(.*\); expected samples of shape \(samples,\)"),
        ((RATE, tone()), r"a tuple of \(int, ndarray\) is no sound; expected \(samples, rate\), the rate a whole number"),
        ((tone(), 0), "a sound has 0 samples per second"),
        (None, "a NoneType is no sound; expected a path, bytes, samples or"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(raw, words):
    for read in (read_sound, joined, AudioProcessor().encode):
        with pytest.raises(UserError, match=words) as error:
            read(raw)
        assert "\n" not in str(error.value)
    assert sound_problem(raw, decode=True)


def test_one_sample_is_enough():
    assert read_sound(content(tone()[:1])).samples.shape == (1,)
    assert AudioProcessor().encode(np.ones(1)).shape == (1, 80)


# --- streaming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 12345, 48000])
def test_a_stream_equals_the_whole(rate, tmp_path):
    samples = noise(9)[:140_003]
    divisor = np.gcd(rate, RATE)
    expected = resample_poly(samples, RATE // divisor, rate // divisor)
    (tmp_path / "a.wav").write_bytes(content(samples, subtype="FLOAT", rate=rate))
    for raw in (tmp_path / "a.wav", (samples, rate)):
        found = joined(raw)
        assert found.dtype == np.float32 and found.shape == expected.shape and np.abs(found - expected).max() < 1e-5
    assert np.abs(AudioProcessor().samples(tmp_path / "a.wav") - expected).max() < 1e-5
    for size in (1, 7, 999):
        short = samples[:2000]
        blocks = resample_blocks([short[i : i + size] for i in range(0, len(short), size)], rate, RATE)
        expected = resample_poly(short, RATE // divisor, rate // divisor)
        assert np.abs(np.concatenate(list(blocks)) - expected).max() < 1e-5


def test_ten_hours(tmp_path):
    """The header tells the length at once, and memory is flat: the samples of 10 minutes would take 19 MB."""
    path, length = tmp_path / "long.wav", 10 * 3600 * 8000
    path.write_bytes(wav_header(8000, length))
    os.truncate(path, 44 + length)  # sparse: all samples are 0, the lowest one of 8 bits
    tracemalloc.start()
    info = sound_info(path)
    assert info.seconds == 36000 and not sound_problem(path)
    blocks, count = stream_sound(path, 8000), 0
    for block in blocks:
        assert block[0] == -1
        count += len(block)
        if count > 60 * 60 * 8000:
            break
    resampled = sum(map(len, islice(stream_sound(path, RATE), 80)))
    parts = list(segments(islice(stream_sound(path, 8000), 80), 8000, 10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert resampled > 600 * RATE and not parts  # a constant is silence
    assert peak < 8e6


# --- segments --------------------------------------------------------------------------------------------------------


def cut(samples: np.ndarray, longest: float, size: int = 5000) -> list:
    return list(segments((samples[i : i + size] for i in range(0, len(samples), size)), RATE, longest))


def test_short_recordings_are_one_segment():
    for samples in (noise(3), noise(4), np.zeros(100, np.float32), noise(4)[:1]):
        (part,) = cut(samples, 4)
        assert part.start == 0 and np.array_equal(part.samples, samples)
    assert not cut(noise(0), 4)
    with pytest.raises(UserError, match="segments of at most 0.01 seconds are too short; expected 0.1 or more"):
        cut(noise(1), 0.01)


@pytest.mark.parametrize("longest", [0.1, 0.33, 2.0, 7.0])
def test_segments_join_to_the_recording(longest):
    """Without silence nothing is lost, and no segment is too long."""
    samples = noise(10)
    parts = cut(samples, longest)
    assert np.array_equal(np.concatenate([part.samples for part in parts]), samples)
    assert all(len(part.samples) <= longest * RATE for part in parts)
    starts = np.cumsum([0, *(len(part.samples) for part in parts)])[:-1] / RATE
    assert np.allclose([part.start for part in parts], starts)


def test_cuts_are_at_pauses():
    samples = noise(20)
    for second in (3.5, 6.2, 8.0, 11.7, 14.6, 18.0):
        samples[int((second - 0.15) * RATE) : int((second + 0.15) * RATE)] *= 0.03
    parts = cut(samples, 5)
    assert np.allclose([part.start for part in parts[1:]], [3.5, 8.0, 11.7, 14.6, 18.0], atol=0.1)
    for size in (160, 77_777):  # blocks change nothing
        assert [part.start for part in cut(samples, 5, size)] == [part.start for part in parts]


@pytest.mark.parametrize("level", [0.0, 1e-5, 0.002])
def test_long_silence_is_left_out(level):
    """Speech in 3…6, 20…28 and 60…61 s; between them the noise of a room, or nothing."""
    samples = noise(70, level, seed=1)
    speech = [(3, 6), (20, 28), (60, 61)]
    for first, last in speech:
        samples[first * RATE : last * RATE] += noise(last - first, seed=first)
    parts = cut(samples, 10)
    kept = np.zeros(len(samples), bool)
    for part in parts:
        begin = round(part.start * RATE)
        assert np.array_equal(samples[begin : begin + len(part.samples)], part.samples)
        kept[begin : begin + len(part.samples)] = True
    assert all(kept[first * RATE : last * RATE].all() for first, last in speech)
    assert kept.sum() < (12 + 2) * RATE and len(parts) == 3


def test_digital_silence_has_no_segment():
    assert not cut(np.zeros(30 * RATE, np.float32), 4)
    assert not cut(np.full(30 * RATE, 0.3, np.float32), 4)  # an offset is no sound


def test_other_rates_need_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.signal", None)
    with pytest.raises(UserError, match=r"sound must be resampled by 2/1; pip install 'regard\[audio\]'"):
        resample(noise(0.1), RATE // 2, RATE)
