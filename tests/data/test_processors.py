"""Processors: raw values to arrays and back, their files, and what users can do wrong."""

import io
import json
import math
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.config.run_folder import write_run
from regard.errors import UserError
from regard.processors.base import IGNORED, PROCESSORS, SavedSettings
from regard.processors.boxes import Boxes, BoxProcessor
from regard.processors.image import processor as image_module
from regard.processors.image.processor import ImageProcessor, random_region
from regard.processors.image.read import open_image
from regard.processors.labels import LabelProcessor, LabelSet, TagProcessor
from regard.processors.saved import load_processor, load_processors, processor_class, save_processors
from regard.processors.sound.log_mel import AudioProcessor, Samples, read_sound
from regard.processors.text import tokenizers
from regard.processors.text.external import FolderTokenizer
from regard.processors.text.processor import TextProcessor
from regard.processors.text.tokenizers import TokenizerConfig, TrainedTokenizer, train_tokenizer

TEXTS = ["the cat sees the dog", "a dog", "größer ☃"]
LABELS = LabelSet({"neg": 3, "neutral": 0, "pos": 5})


@pytest.fixture(scope="module")
def tokenizer() -> TrainedTokenizer:
    return train_tokenizer(TokenizerConfig(vocab=300), TEXTS)


def gradient(height: int, width: int) -> np.ndarray:
    """An image whose red grows to the right and whose green grows downwards."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([columns * 255 / width, rows * 255 / height, np.full((height, width), 60)], -1).astype(np.uint8)


def tone(hertz: float, seconds: float = 0.5, rate: int = 16000) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


# --- text, labels, tags ----------------------------------------------------------------------------------------------


def test_text(tokenizer, tmp_path):
    text = TextProcessor(tokenizer)
    encoded = [text.encode(each) for each in TEXTS]
    assert encoded[0].tolist() == tokenizer.encode(TEXTS[:1])[0] and text.cost(encoded[0]) == len(encoded[0])
    assert [text.decode(each) for each in encoded] == TEXTS
    assert text.encode(TEXTS[0].split()).tolist() == encoded[0].tolist()  # words, as in a text
    batch = text.collate(encoded)
    assert batch.modality == text.modality == "tokens" and batch.values.dtype == torch.long
    assert batch.valid.sum(1).tolist() == list(map(len, encoded))
    assert (batch.values[~batch.valid] == tokenizer.pad).all()
    assert text.collate(encoded[:1]).valid is None
    text.save(tmp_path / "tokenizer.json")
    tokenizer.save(tmp_path / "same.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == (tmp_path / "same.json").read_bytes()
    again = load_processor(tmp_path / "tokenizer.json")
    assert isinstance(again, TextProcessor) and again.encode(TEXTS[0]).tolist() == encoded[0].tolist()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_a_word_of_any_length_is_trained_on_quickly(kind):
    """Training took 30 s and more for a word of 300,000 letters; ordinary texts give the vocabulary that they gave."""
    ordinary = ["the quick brown fox jumps over the lazy dog", "x" * 999, "字" * 400 + "，" + "字" * 900] * 4
    settings = TokenizerConfig(kind=kind, vocab=300)
    long, began = "ab" * 150_000, time.process_time()
    tokenizer = train_tokenizer(settings, [*ordinary, long])
    (ids,) = tokenizer.encode([long])
    if kind != "wordpiece":
        assert tokenizer.decode([ids]) == [long]
    assert time.process_time() - began < 12
    with pytest.MonkeyPatch.context() as patch:
        whole = train_tokenizer(settings, ordinary)
        patch.setattr(tokenizers, "_word_cutter", lambda backend: lambda text: [text])
        assert whole.backend.to_str() == train_tokenizer(settings, ordinary).backend.to_str()


def test_only_long_words_are_cut():
    split = tokenizers._word_cutter(train_tokenizer(TokenizerConfig(vocab=300), ["a"]).backend)
    for text in ("", "a " * 5000, "1a" * 5000, "字，" * 5000, "a" * 1000):
        assert split(text) == [text]
    for text in ("a" * 5000, "b " + "é" * 3456 + " c", " " * 3000, "-_" * 2000):
        assert "".join(split(text)) == text and max(map(len, split(text))) <= tokenizers.MAX_WORD + 3


def test_text_of_a_folder_keeps_its_control_tokens(tokenizer, tmp_path):
    TextProcessor(FolderTokenizer(tokenizer.backend, pad=5, start=5, end=5, unk=6)).save(tmp_path / "a.json")
    again = load_processor(tmp_path / "a.json", "text")
    assert (
        isinstance(again, TextProcessor)
        and again.tokenizer.end == 5
        and again.decode([5, *again.encode("dog")]) == "dog"
    )


def test_labels(tmp_path):
    label = LabelProcessor(LABELS)
    encoded = [label.encode(name) for name in ("pos", "neg")]
    batch = label.collate(encoded)
    assert batch.values.tolist() == [2, 0] and batch.valid is None and batch.modality == "labels"
    assert label.decode(batch.values[0]) == "pos" and label.cost(encoded[0]) == 1
    label.save(tmp_path / "labels.json")
    assert json.loads((tmp_path / "labels.json").read_text()) == {
        "kind": "labels",
        "version": 1,
        "labels": LABELS.counts,
    }
    again = load_processor(tmp_path / "labels.json")
    assert isinstance(again, LabelProcessor) and again.labels.names == LABELS.names
    (tmp_path / "old.json").write_text('{"labels": {"b": 2, "a": 5}}')  # as runs had it before
    assert load_processor(tmp_path / "old.json").labels.counts == {"b": 2, "a": 5}
    with pytest.raises(UserError, match="the label 'good' is unknown; expected neg, neutral, pos"):
        label.encode("good")


def test_several_labels():
    label = LabelProcessor(LABELS)
    batch = label.collate([label.encode(names) for names in (["pos", "neg"], [], ["neutral"])])
    assert batch.values.tolist() == [[2, 0], [IGNORED] * 2, [1, IGNORED]]
    assert batch.valid.tolist() == [[True, True], [False, False], [True, False]]
    assert [label.decode(row) for row in batch.values] == [["pos", "neg"], [], ["neutral"]]


def test_labels_keep_the_ids_of_an_equal_set():
    assert LabelSet({"a": 1, "b": 2}).in_order_of(LabelSet({"b": 0, "a": 0})).counts == {"b": 2, "a": 1}
    assert LabelSet({"a": 1, "b": 2}).in_order_of(LabelSet({"b": 0, "c": 0})).names == ["a", "b"]


def test_tags_stand_at_the_first_token_of_a_word(tokenizer, tmp_path):
    tags = TagProcessor(LABELS, tokenizer)
    words = ["the", "snowman", "☃"]
    encoded = tags.encode((words, ["pos", "neg", "neutral"]))
    assert len(encoded) == tags.cost(encoded) == len(TextProcessor(tokenizer).encode(words)) + 2  # START and END
    starts = np.flatnonzero(encoded != IGNORED)
    assert encoded[starts].tolist() == [2, 0, 1] and tags.decode(encoded) == ["pos", "neg", "neutral"]
    sizes = [len(tokenizer.encode([text])[0]) for text in ("the", " snowman")]
    assert starts.tolist() == [1, 1 + sizes[0], 1 + sum(sizes)]
    assert tags.collate([encoded, encoded[:3]]).values[1, 3:].tolist() == [IGNORED] * (len(encoded) - 3)
    entries = save_processors(tmp_path, {"text": TextProcessor(tokenizer), "tags": tags})
    assert entries["tags"] == {"kind": "tags", "file": "labels.json"}
    assert load_processor(tmp_path / "labels.json").encode((words, ["pos"] * 3)).tolist().count(2) == 3
    with pytest.raises(UserError, match="there are 3 words and 1 tags"):
        tags.encode((words, ["pos"]))


# --- images --------------------------------------------------------------------------------------------------------

CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "resample": "bilinear"}


def test_images_of_every_form_are_equal(tmp_path):
    image, pixels = ImageProcessor(resize=32, crop=32), gradient(40, 60)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    forms = [
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        (tmp_path / "a.png").read_bytes(),
        Image.fromarray(pixels),
        pixels,
    ]
    expected = image.encode(forms[0])
    assert (
        expected.shape == (3, 32, 32) and expected.dtype == np.float32 and expected.min() >= -1 and expected.max() <= 1
    )
    for form in forms[1:]:
        assert np.array_equal(image.encode(form), expected)
    assert np.array_equal(image.encode(pixels / np.float32(255)), expected)
    gray = image.encode(pixels[..., 0])
    assert np.array_equal(gray[0], gray[1]) and np.array_equal(image.encode(pixels[..., :1]), gray)
    wide = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)  # 16 bits of gray
    assert np.array_equal(image.encode(wide), gray)
    assert image.encode(Image.fromarray(pixels).convert("RGBA")).shape == (3, 32, 32)


def test_files_are_encoded_in_order_by_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(image_module, "THREADS", 4)
    image = ImageProcessor(resize=8, crop=8)
    for number in range(20):
        Image.new("RGB", (9, 9), (10 * number, 0, 0)).save(tmp_path / f"{number}.png")
    files = [tmp_path / f"{number}.png" for number in range(20)]
    assert all(map(np.array_equal, image.encode_all(files), map(image.encode, files)))
    arrays = [np.full((4, 4), number, np.uint8) for number in range(3)]
    assert all(map(np.array_equal, image.encode_all(arrays), map(image.encode, arrays)))
    with pytest.raises(UserError, match="missing.png does not exist"):
        image.encode_all([files[0], "missing.png", files[1]])


def test_the_orientation_of_a_camera_is_applied(tmp_path):
    image = Image.fromarray(gradient(40, 60))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90°
    image.save(tmp_path / "a.png", exif=exif)
    processor = ImageProcessor(resize=(30, 20), crop=0, resample="nearest")
    expected = processor.encode(image.rotate(-90, expand=True))
    assert np.array_equal(processor.encode(tmp_path / "a.png"), expected)
    assert not np.array_equal(processor.encode(image), expected)


def test_images_agree_with_transformers():
    from transformers import CLIPImageProcessorPil, ViTImageProcessorPil

    clip = CLIPImageProcessorPil(size={"shortest_edge": 48}, crop_size={"height": 32, "width": 32})
    vit = ViTImageProcessorPil(size={"height": 24, "width": 40})
    for size in ((60, 91), (120, 64), (50, 50)):
        image = Image.fromarray(gradient(*size))
        ours = ImageProcessor(resize=48, crop=32, **CLIP).encode(image)
        assert np.abs(ours - clip(image, return_tensors="np")["pixel_values"][0]).max() < 1e-5
        ours = ImageProcessor(resize=(24, 40), crop=0, resample="bilinear").encode(image)
        assert np.abs(ours - vit(image, return_tensors="np")["pixel_values"][0]).max() < 1e-5


def test_images_of_detr_agree_with_transformers():
    """Limits of both sides, bit for bit: images that are larger, smaller, equal; a padded batch with its mask."""
    from transformers import DetrImageProcessorPil

    theirs = DetrImageProcessorPil(size={"shortest_edge": 80, "longest_edge": 133})
    ours = ImageProcessor(resize=80, max_size=133, crop=0, patch=1, **IMAGENET)
    sizes = (50, 70), (200, 90), (333, 100), (80, 80), (100, 133), (7, 400)
    images = [Image.fromarray(gradient(*size)) for size in sizes]
    wanted, found = theirs(images, return_tensors="pt"), ours.collate([ours.encode(image) for image in images])
    assert torch.equal(found.values, wanted["pixel_values"])
    assert torch.equal(found.valid, wanted["pixel_mask"].bool())


def test_large_photographs_are_decoded_smaller_in_training():
    smooth, files = Image.fromarray(gradient(60, 80)).resize((800, 600)), {}
    for kind, exif in (("JPEG", 1), ("JPEG", 6), ("PNG", 1)):
        tags, buffer = Image.Exif(), io.BytesIO()
        tags[0x0112] = exif
        smooth.save(buffer, kind, exif=tags, quality=95)
        files[kind, exif] = buffer.getvalue()
    sizes = {key: open_image(content, enough=100).size for key, content in files.items()}
    assert sizes == {("JPEG", 1): (200, 150), ("JPEG", 6): (150, 200), ("PNG", 1): (800, 600)}
    assert open_image(files["JPEG", 1], enough=500).size == open_image(files["JPEG", 1]).size == (800, 600)
    processor = ImageProcessor(resize=32, crop=32, scale=(0.9, 0.9))
    small, large = (processor.encode(files[kind, 1], np.random.default_rng(1)) for kind in ("JPEG", "PNG"))
    assert 0 < np.abs(small - large).mean() < 0.02
    assert np.abs(processor.encode(files["JPEG", 1]) - processor.encode(files["PNG", 1])).mean() < 0.01


def test_images_of_unequal_sizes_in_a_batch():
    image = ImageProcessor(resize=32, crop=0, patch=8, std=(0.25, 0.5, 1.0))
    encoded = [image.encode(gradient(*size)) for size in ((32, 50), (40, 32))]
    assert [each.shape for each in encoded] == [(3, 32, 50), (3, 40, 32)]
    assert [image.cost(each) for each in encoded] == [4 * 7, 5 * 4]
    batch = image.collate(encoded)
    assert batch.values.shape == (2, 3, 40, 56) and batch.valid.shape == (2, 40, 56) and batch.modality == "pixels"
    assert batch.valid.sum((1, 2)).tolist() == [32 * 50, 40 * 32]
    assert torch.equal(batch.values[1, :, :40, :32], torch.from_numpy(encoded[1]))
    assert not batch.values.mul(~batch.valid[:, None]).any()
    assert image.collate([image.encode(gradient(32, 40))] * 2).valid is None
    back = np.asarray(image.decode(batch.values[0][:, :32, :50]))
    assert np.abs(back.astype(int) - gradient(32, 50)).max() <= 1


def test_augmentation_of_images_is_a_function_of_the_rng():
    processor, image = ImageProcessor(resize=20, crop=16, patch=4), gradient(40, 60)
    first, again, other = (processor.encode(image, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other) and first.shape == (3, 16, 16)
    some = [processor.encode(image, np.random.default_rng(seed))[0, 8] for seed in range(12)]
    directions = {bool(row[-1] > row[0]) for row in some}
    assert directions == {True, False}  # mirrored or not
    plain = ImageProcessor(resize=(16, 16), crop=0, scale=(1, 1), flip=False)
    assert np.array_equal(plain.encode(image, np.random.default_rng(1)), plain.encode(image))


def test_random_regions_lie_inside_and_have_their_area():
    for seed in range(200):
        left, top, right, bottom = random_region((70, 30), (0.2, 0.6), np.random.default_rng(seed))
        assert 0 <= left < right <= 70 and 0 <= top < bottom <= 30
        assert 0.15 < (right - left) * (bottom - top) / 2100 < 0.66 or (right - left, bottom - top) == (70, 30)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("nowhere.png", "nowhere.png does not exist; give the path of an image"),
        (b"no image", "the bytes cannot be read as an image"),
        (np.zeros((3, 4, 5)), r"an array of shape \(3, 4, 5\) is no image"),
        (np.full((4, 4), 7.0), "an image has values from 7 to 7; expected floats of 0…1"),
    ],
)
def test_what_is_no_image(raw, words):
    with pytest.raises(UserError, match=words):
        ImageProcessor().encode(raw)


def test_a_long_image_is_read_where_a_square_of_it_is_kept():
    pixels = np.zeros((1, 20000), np.uint8)
    pixels[:, 9990:10010] = 200
    kept = ImageProcessor(resize=32, crop=32)
    for encoded in (kept.encode(pixels), kept.encode(pixels.T), kept.encode(pixels, np.random.default_rng(1))):
        assert encoded.shape == (3, 32, 32) and encoded == pytest.approx(200 / 127.5 - 1, abs=1e-6)
    with pytest.raises(UserError, match="an image is 200 × 1 pixels; expected one side at most 100 times the other"):
        ImageProcessor(crop=0).encode(np.zeros((1, 200)))


def test_a_cut_off_image(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(gradient(90, 90)).save(buffer, "JPEG")
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue()[:600])
    with pytest.raises(UserError, match=r"a\.jpg cannot be read as an image"):
        ImageProcessor().encode(tmp_path / "a.jpg")


# --- sound -----------------------------------------------------------------------------------------------------------


def wav(samples: np.ndarray, rate: int = 16000, width: int = 2, channels: int = 1) -> bytes:
    """A file of integers of `width` bytes."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels), file.setsampwidth(width), file.setframerate(rate)
        whole = np.rint(samples.astype(np.float64) * (2 ** (8 * width - 1) - 1)).astype("<i4")
        content = (
            (whole + 128).astype(np.uint8)[:, None] if width == 1 else whole.view(np.uint8).reshape(-1, 4)[:, :width]
        )
        file.writeframes(content.tobytes())
    return buffer.getvalue()


def test_frames_agree_with_whisper():
    from transformers import WhisperFeatureExtractor

    rng = np.random.default_rng(3)
    for bins in (80, 128):
        whisper, ours = WhisperFeatureExtractor(feature_size=bins), AudioProcessor(bins=bins)
        for samples in (tone(440), tone(3000) + tone(200), rng.normal(0, 0.1, 5003).astype(np.float32)):
            expected = whisper._np_extract_fbank_features(samples[None], "cpu")[0]  # (bins, frames)
            found = ours.encode(samples)
            assert found.shape == (len(samples) // 160, bins) == expected.T.shape and found.dtype == np.float32
            assert np.abs(found - expected.T).max() < 1e-4


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("seconds", [0.5, 2.01, 3, 4.3])
def test_padded_frames_agree_with_whisper(bins, seconds):
    """Silence is added, and long sound is cut, before the loudest frame sets the floor."""
    from transformers import WhisperFeatureExtractor

    whisper, ours = WhisperFeatureExtractor(bins, chunk_length=3), AudioProcessor(bins=bins, seconds=3)
    samples = np.random.default_rng(3).normal(0, 1e-5, int(seconds * 16000)).astype(np.float32)
    samples[48000:] *= 1e4  # what is cut must not set the floor
    expected = whisper(samples, sampling_rate=16000, return_tensors="np")["input_features"][0].T
    assert ours.encode(samples).shape == expected.shape == (300, bins)
    assert np.abs(ours.encode(samples) - expected).max() < 1e-4
    assert ours.collate([ours.encode(samples), ours.encode(tone(440))]).valid is None


@pytest.mark.parametrize(("width", "error"), [(1, 0.01), (2, 1e-4), (3, 1e-6), (4, 1e-6)])
def test_wav_files_of_every_width(width, error, tmp_path):
    (tmp_path / "a.wav").write_bytes(wav(tone(440), width=width))
    samples, rate = read_sound(tmp_path / "a.wav")
    assert rate == 16000 and samples.shape == (8000,) and np.abs(samples - tone(440)).max() < error


def test_channels_rates_and_formats(tmp_path):
    import soundfile

    audio, expected = AudioProcessor(), tone(440)
    stereo = np.stack([expected, np.zeros_like(expected)], 1)
    assert np.allclose(audio.samples(Samples(stereo, 16000)), expected / 2)
    assert np.allclose(audio.samples(wav(stereo.ravel(), channels=2)), expected / 2, atol=1e-4)
    slow = audio.samples(Samples(tone(440, rate=44100), 44100))
    assert len(slow) == 8000 and np.abs(slow[200:-200] - expected[200:-200]).max() < 0.01
    for name in ("a.flac", "a.ogg"):
        soundfile.write(tmp_path / name, expected, 16000)
        found = audio.samples(tmp_path / name)
        assert np.abs(found - expected)[:7900].max() < (1e-4 if name == "a.flac" else 0.1)
    soundfile.write(
        tmp_path / "float.wav", expected, 16000, subtype="FLOAT"
    )  # the standard library reads integers only
    assert np.array_equal(audio.samples((tmp_path / "float.wav").read_bytes()), expected)


def test_damaged_sound_files():
    """One byte of the header is changed; the rest of the file is cut off in half of the cases."""
    audio, rng = AudioProcessor(), np.random.default_rng(0)
    whole = wav(tone(440, 0.05), rate=8000)
    for position in range(44):
        damaged = bytearray(whole if position % 2 else whole[:300])
        damaged[position] = rng.integers(256)
        try:
            assert np.isfinite(audio.encode(bytes(damaged))).all()
        except UserError as error:
            assert "\n" not in str(error)


def test_batches_of_frames():
    audio = AudioProcessor(bins=20)
    encoded = [audio.encode(tone(300, seconds)) for seconds in (0.2, 0.1, 0.001)]
    assert [audio.cost(each) for each in encoded] == [20, 10, 1]  # the last is shorter than a window
    batch = audio.collate(encoded)
    assert batch.modality == audio.modality == "frames" and batch.values.shape == (3, 20, 20)
    assert batch.valid.sum(1).tolist() == [20, 10, 1] and not batch.values[1, 10:].any()


def test_spec_augment_is_a_function_of_the_rng():
    audio = AudioProcessor(frame_masks=1, frame_width=10, bin_masks=1, bin_width=8)
    samples = np.random.default_rng(0).normal(0, 0.1, 16000)
    plain = audio.encode(samples)
    first, again, other = (audio.encode(samples, np.random.default_rng(seed)) for seed in (1, 1, 4))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    masked = first != plain
    frames, bins = masked.all(1), masked.all(0)
    assert 0 < frames.sum() <= 10 and 0 < bins.sum() <= 8 and not masked[~frames][:, ~bins].any()
    assert np.allclose(first[masked], plain.mean())


def test_frames_become_sound_again():
    audio = AudioProcessor()
    sound = audio.decode(audio.encode(tone(1000)))
    spectrum = np.abs(np.fft.rfft(sound.samples[1000:-1000]))
    loudest = spectrum.argmax() * sound.rate / len(sound.samples[1000:-1000])
    assert sound.rate == 16000 and abs(loudest - 1000) < 50


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("nowhere.wav", r"nowhere\.wav does not exist; give the path of a sound file"),
        (b"no sound", "the bytes cannot be read as sound"),
        (np.zeros(0), "a sound has no samples; expected at least one"),
        (np.array([math.nan]), "a sound has a sample that is no finite number after 0.00 s; expected samples in -1…1"),
        (Samples(np.zeros(99), 2**31), "a sound has 2147483648 samples per second; expected 1000 to 768000"),
    ],
)
def test_what_is_no_sound(raw, words):
    with pytest.raises(UserError, match=words):
        AudioProcessor().encode(raw)


# --- boxes and fields ------------------------------------------------------------------------------------------------


def test_boxes():
    corners = [[10, 20, 30, 60], [0, 0, 100, 80]]
    sizes = [[10, 20, 20, 40], [0, 0, 100, 80]]
    expected = [[0.2, 0.5, 0.2, 0.5], [0.5, 0.5, 1, 1]]
    for format, raw in (("xyxy", corners), ("xywh", sizes)):
        boxes = BoxProcessor(format)
        encoded = boxes.encode(Boxes(raw, 100, 80))
        assert encoded.dtype == np.float32 and np.allclose(encoded, expected) and boxes.cost(encoded) == 2
        assert np.allclose(boxes.decode(encoded, 100, 80).boxes, raw, atol=1e-4)
    empty = boxes.encode(Boxes([], 100, 80))
    batch = boxes.collate([encoded, empty])
    assert (
        batch.modality == "boxes"
        and batch.values.shape == (2, 2, 4)
        and batch.valid.tolist() == [[True] * 2, [False] * 2]
    )
    assert np.allclose(boxes.encode(Boxes([[-10, 0, 20, 10]], 100, 100)), [[0.05, 0.05, 0.1, 0.1]])  # clipped
    with pytest.raises(UserError, match=r"the box \[30.0, 20.0, 10.0, 60.0\] is empty in an image of 100 × 80 pixels"):
        BoxProcessor().encode(Boxes([[30, 20, 10, 60]], 100, 80))
    with pytest.raises(UserError, match="an image of boxes is 0 × 80"):
        BoxProcessor().encode(Boxes([], 0, 80))
    for wrong in ([[1, 2, 3]], [[1, 2, 3, 4], [5]], [["a", 2, 3, 4]]):
        with pytest.raises(UserError, match=r"the boxes \[\[.* cannot be read; expected four numbers for each"):
            BoxProcessor().encode(Boxes(wrong, 100, 80))


# --- files -----------------------------------------------------------------------------------------------------------

SAVED = [
    ImageProcessor(resize=(30, 40), crop=0, **CLIP, scale=(0.3, 0.9)),
    ImageProcessor(resize=256),
    AudioProcessor(bins=128, hop=80),
    AudioProcessor(seconds=30),
    BoxProcessor("xywh"),
]


@pytest.mark.parametrize("processor", SAVED, ids=lambda each: each.kind)
def test_settings_round_trip(processor, tmp_path):
    processor.save(tmp_path / processor.file)
    content = json.loads((tmp_path / processor.file).read_text())
    assert (content["kind"], content["version"]) == (processor.kind, 1)
    assert (
        load_processor(tmp_path / processor.file)
        == processor
        == load_processor(tmp_path / processor.file, processor.kind)
    )


@pytest.mark.parametrize("size", [(640, 480), (480, 640), (500, 333), (1000, 300), (97, 800), (64, 64), (61, 900)])
@pytest.mark.parametrize(("shorter", "longer"), [(64, 100), (800, 1333), (64, 90)])
def test_sides_are_limited_as_in_transformers(size, shorter, longer):
    from transformers.image_transforms import get_size_with_aspect_ratio

    width, height = size
    expected = get_size_with_aspect_ratio((height, width), shorter, longer)
    assert ImageProcessor(resize=shorter, crop=0, max_size=longer).target_size(width, height) == expected


def test_a_limited_side_is_a_pixel_at_least():
    assert ImageProcessor(resize=800, crop=0, max_size=1333).target_size(20000, 1) == (1, 1333)  # theirs is 0 high


def test_every_builtin_kind_has_its_name():
    for kind in PROCESSORS.builtin:
        assert processor_class(kind).kind == kind and processor_class(kind).version >= 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"kind": "smell", "version": 1}, r"a\.json holds a processor of kind 'smell'; this regard has text, labels, .*install the plugin"),
        ({"kind": "image", "version": 2}, r"a\.json has version 2 of the processor 'image' and this version of regard reads up to 1"),
        ({"kind": "image", "version": 1, "zoom": 3}, r"a\.json has the unknown setting 'zoom'; expected resize, crop, "),
        ({"kind": "image", "version": 1, "crop": "x"}, r"a\.json has a value of the wrong type"),
        ({"kind": "labels", "version": 9, "labels": {}}, r"a\.json has version 9 of the processor 'labels'"),
        ({"kind": "labels", "version": 1}, r"a\.json cannot be read \('labels'\); it belongs to the run"),
        ({"kind": "image", "version": 1, "patch": 0}, "images of resize=224, crop=224, patch=0 are not possible"),
        ({"kind": "image", "version": 1, "resample": "magic"}, "resample is 'magic'; expected one of nearest, "),
        ({"kind": "image", "version": 1, "std": [1, 1, 0]}, r"mean is .* and std \(1, 1, 0\); expected three numbers each"),
        ({"kind": "image", "version": 1, "scale": [0.5, 2]}, r"scale is \(0.5, 2\); expected two shares"),
        ({"kind": "audio", "version": 1, "seconds": -1}, "sound of -1 seconds is not possible; expected 0"),
        ({"kind": "audio", "version": 1, "hop": 500}, "frames of rate=16000, bins=80, window=400, hop=500 are not possible"),
        ({"kind": "audio", "version": 1, "bin_width": 90}, "a mask of 90 bins does not fit 80"),
        ({"kind": "boxes", "version": 1, "format": "xxyy"}, "the box format is 'xxyy'; expected xyxy or xywh"),
        ({"version": "1.0"}, r"a\.json is not a complete tokenizer"),
    ],
)  # fmt: skip
def test_wrong_files(content, words, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=words) as error:
        load_processor(tmp_path / "a.json")
    assert "\n" not in str(error.value)


def test_a_missing_file(tmp_path):
    for kind in (None, *PROCESSORS.builtin):
        with pytest.raises(UserError, match=r"none\.json cannot be read .*; it belongs to the run, restore it"):
            load_processor(tmp_path / "none.json", kind)


def test_a_file_of_another_kind(tmp_path):
    BoxProcessor().save(tmp_path / "a.json")
    with pytest.raises(
        UserError, match="holds a processor of kind 'boxes', expected 'audio'; restore the file of this run"
    ):
        load_processor(tmp_path / "a.json", "audio")


def list_in_run(folder: Path, entries: Any) -> None:
    write_run(folder, {"config": {"task": "detect"}, "processors": entries})


def test_the_processors_of_a_run(tokenizer, tmp_path):
    text, other = TextProcessor(tokenizer), TextProcessor(tokenizer)
    list_in_run(tmp_path, save_processors(tmp_path, {"source": text, "target": text, "image": SAVED[0]}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.json", "run.json", "tokenizer.json"]
    found = load_processors(tmp_path)
    assert found["source"] is found["target"] and found["image"] == SAVED[0]
    entries = save_processors(tmp_path, {"source": text, "target": other})
    assert [each["file"] for each in entries.values()] == ["source.tokenizer.json", "target.tokenizer.json"]
    list_in_run(tmp_path, entries)
    found = load_processors(tmp_path)
    assert found["source"] is not found["target"]
    for wrong in ({"kind": "image"}, {"kind": "image", "file": "../image.json"}, "image.json", None):
        list_in_run(tmp_path, {"image": wrong})
        with pytest.raises(
            UserError, match=r"run\.json: the processor of image has no valid (kind|file); restore the file"
        ):
            load_processors(tmp_path)
    list_in_run(tmp_path, ["image"])
    with pytest.raises(UserError, match="the processor of every field has no valid kind"):
        load_processors(tmp_path)


def test_a_processor_of_a_plugin(tmp_path, monkeypatch):
    class Smell(SavedSettings):
        kind, file = "smell", "smell.json"

    monkeypatch.setitem(PROCESSORS.added, "smell", Smell)
    Smell().save(tmp_path / "smell.json")
    assert isinstance(load_processor(tmp_path / "smell.json"), Smell)
