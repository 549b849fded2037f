"""Whisper folders of transformers, both ways: logits, features, greedy tokens, files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from helpers.inputs import inputs
from helpers.whisper import VOCAB, write_folder
from prototypes.checks import close
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.decode import Beam, Generator, Greedy
from regard.decode.engine.requests import SearchRequest
from regard.errors import UserError
from regard.families import whisper as family
from regard.formats.huggingface import whisper
from regard.formats.huggingface.weight_names import export_weights
from regard.parts import Inputs
from regard.processors.sound.log_mel import AudioProcessor


def read(path: Path) -> whisper.WhisperFolder:
    return whisper.FORMAT.read(path)


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def noise(seconds: float, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, int(seconds * 16000)).astype(np.float32)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("whisper")
    return path, write_folder(path)


PUBLISHED = [name for name in family.SIZES if name != "tiny"]


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_shapes_have_the_names_and_shapes_of_transformers(size: str) -> None:
    """Without memory for the weights."""
    c = family.Config(size=size, vocab=51865, **family.SIZES[size])
    with torch.device("meta"):
        theirs = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**whisper.CONFIG.write(c))).state_dict()
        ours = export_weights(family.Model(c), whisper.names(c))
    shapes = {name: tensor.shape for name, tensor in ours.items()}
    computed = {whisper.POSITIONS, "proj_out.weight"}
    assert shapes == {name: tensor.shape for name, tensor in theirs.items() if name not in computed}


@pytest.mark.parametrize("size", PUBLISHED)
@torch.no_grad()
def test_logits_equal_transformers(size: str, tmp_path: Path) -> None:
    """The published shapes with 8 channels a head and few layers."""
    c = family.SIZES[size]
    heads = {f"{side}_attention_heads": c["heads"] for side in ("encoder", "decoder")}
    layers = {"encoder_layers": 3, "decoder_layers": 1 if c.get("decoder_layers") else 3}
    wide = {"d_model": 8 * c["heads"], "num_mel_bins": c.get("bins", 80), "encoder_ffn_dim": 70, "decoder_ffn_dim": 70}
    theirs = write_folder(tmp_path, **heads, **layers, **wide)
    ours = read(tmp_path).model
    mels, target = torch.randn(3, wide["num_mel_bins"], 100), torch.randint(VOCAB, (3, 11))
    close(
        ours(Inputs("frames", mels.transpose(1, 2)), inputs(target)),
        theirs(input_features=mels, decoder_input_ids=target).logits,
    )


@torch.no_grad()
def test_recordings_of_a_batch_equal_transformers(pair: tuple[Path, Any]) -> None:
    """Recordings of any length become the frames, and targets of any length the logits, of transformers."""
    path, theirs = pair
    folder, extractor = read(path), hf.WhisperFeatureExtractor.from_pretrained(path)
    sounds = [noise(0.3), noise(1.0, 2), noise(1.7, 3)]
    mels = extractor(sounds, sampling_rate=16000, return_tensors="pt")["input_features"]
    source = folder.sound.collate([folder.sound.encode(each) for each in sounds])
    assert source.valid is None
    close(source.values, mels.transpose(1, 2))
    target, valid = torch.randint(5, VOCAB, (3, 9)), torch.arange(9) < torch.tensor([[9], [4], [6]])
    expected = theirs(input_features=mels, decoder_input_ids=target, decoder_attention_mask=valid.long()).logits
    close(folder.model(source, inputs(target, valid))[valid], expected[valid])


@torch.no_grad()
def test_padding_changes_nothing(pair: tuple[Path, Any]) -> None:
    """Frames that are not padded to the whole length, of rows of odd and even lengths."""
    model, target = read(pair[0]).model, torch.randint(5, VOCAB, (1, 6))
    rows = [torch.randn(1, length, 80) for length in (61, 1, 40, 100)]
    padded = torch.cat([torch.nn.functional.pad(row, (0, 0, 0, 100 - row.size(1)), value=9.0) for row in rows])
    valid = torch.arange(100) < torch.tensor([row.size(1) for row in rows])[:, None]
    together = model(Inputs("frames", padded, valid), inputs(target.expand(4, -1)))
    for row, found in zip(rows, together, strict=True):
        close(found, model(Inputs("frames", row), inputs(target))[0])


def test_longer_recordings_are_refused(pair: tuple[Path, Any]) -> None:
    with pytest.raises(UserError, match="a recording of 101 frames is longer than the 100 that the model reads; lower"):
        read(pair[0]).model.encode(Inputs("frames", torch.zeros(1, 101, 80)))


@pytest.mark.parametrize("beams", [1, 3])
def test_generated_tokens_equal_transformers(beams: int, pair: tuple[Path, Any]) -> None:
    path, theirs = pair
    torch.manual_seed(0)
    folder, frames = read(path), torch.randn(4, 100, 80)
    plain = hf.GenerationConfig(
        decoder_start_token_id=1, eos_token_id=0, pad_token_id=0, max_new_tokens=12, num_beams=beams
    )
    with torch.no_grad():
        # that of every model: Whisper's own generate adds rules of timestamps and languages
        expected = hf.GenerationMixin.generate(theirs, input_features=frames.transpose(1, 2), generation_config=plain)
    assert len({tuple(row) for row in expected.tolist()}) > 2 and len(set(expected[0].tolist())) > 2
    strategy = Greedy() if beams == 1 else Beam(beams, early_stopping="heuristic")
    generator = Generator(folder.model, folder.tokenizer.end)
    handles = [
        generator.submit(SearchRequest((folder.tokenizer.start,), Inputs("frames", row[None]), strategy, max_tokens=12))
        for row in frames
    ]
    generator.drain()
    for handle, row in zip(handles, expected[:, 1:].tolist(), strict=True):
        assert handle.result()[0].tokens == (row[: row.index(0)] if 0 in row else row)


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_a_folder_is_written_whole(tied: bool, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path / "a", tie_word_embeddings=tied, decoder_layers=1, dropout=0.1)
    folder = read(tmp_path / "a")
    whisper.FORMAT.write(folder, tmp_path / "b")
    again = hf.WhisperForConditionalGeneration.from_pretrained(tmp_path / "b").eval()
    for name, tensor in theirs.state_dict().items():
        close(again.state_dict()[name], tensor, 1e-6)
    mels, target = torch.randn(2, 80, 100), torch.randint(VOCAB, (2, 7))
    expected = theirs(input_features=mels, decoder_input_ids=target).logits
    close(again(input_features=mels, decoder_input_ids=target).logits, expected, 1e-5)
    a, b = (json.loads((tmp_path / side / "config.json").read_text()) for side in "ab")
    assert a == b
    extractors = [hf.WhisperFeatureExtractor.from_pretrained(tmp_path / side).to_dict() for side in "ab"]
    assert extractors[0] == {key: value for key, value in extractors[1].items() if key != "processor_class"}
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert again.generation_config.no_timestamps_token_id == VOCAB - 1 and again.generation_config.lang_to_id == {
        "<|en|>": 3
    }
    back = read(tmp_path / "b")
    assert (back.config, back.sound, back.generation) == (folder.config, folder.sound, folder.generation)


def test_tokenizer_and_generation_settings(pair: tuple[Path, Any]) -> None:
    folder = read(pair[0])
    assert (folder.tokenizer.start, folder.tokenizer.end, folder.tokenizer.pad) == (1, 0, 0)
    (ids,) = folder.tokenizer.encode(["the cat <|endoftext|>"])
    assert 0 not in ids and folder.tokenizer.decode([[1, *ids, 0]]) == ["the cat <|endoftext|>"]
    assert folder.generation["suppress_tokens"] == [7, 8] and folder.generation["task_to_id"] == {"transcribe": 4}


def test_settings_of_the_whole_processor_are_read(tmp_path: Path) -> None:
    """transformers 5 writes the feature extractor into processor_config.json."""
    write_folder(tmp_path, num_mel_bins=128)
    about = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": about}))
    assert read(tmp_path).sound == AudioProcessor(bins=128, seconds=1, frame_masks=0, bin_masks=0)


def test_published_settings_without_a_file() -> None:
    c = family.Config(vocab=9, **family.SIZES["turbo"])
    sound = whisper.read_sound_settings({}, c)
    assert (sound.bins, sound.seconds, sound.window, sound.hop) == (128, 30, 400, 160)
    theirs = hf.WhisperFeatureExtractor(128).to_dict()
    written = whisper.write_sound_settings(sound)
    assert {key: written.get(key) for key in theirs if key != "mel_filters"} == {
        key: value for key, value in theirs.items() if key != "mel_filters"
    }


@pytest.mark.parametrize("seconds", [3, 30, 31])
@pytest.mark.parametrize("bins", [80, 128])
def test_features_of_30_seconds_equal_transformers(bins: int, seconds: int) -> None:
    theirs, ours = hf.WhisperFeatureExtractor(bins), AudioProcessor(bins=bins, seconds=30)
    expected: Tensor = theirs(noise(seconds), sampling_rate=16000, return_tensors="pt")["input_features"][0].T
    close(torch.from_numpy(ours.encode(noise(seconds))), expected)


@pytest.mark.parametrize(
    ("file", "values", "words"),
    [
        ("config.json", {"architectures": ["WhisperForAudioClassification"]}, "expected WhisperForConditional"),
        ("config.json", {"scale_embedding": True}, "scale_embedding is true; regard reads Whisper folders without it"),
        ("config.json", {"decoder_attention_heads": 2}, "differ; regard needs them equal"),
        ("generation_config.json", {"decoder_start_token_id": None}, "has no 'decoder_start_token_id'"),
        ("config.json", {"num_mel_bins": 128}, "has shape"),
        ("preprocessor_config.json", {"dither": 0.1}, "dither is 0.1; regard reads Whisper folders with 0.0"),
        ("preprocessor_config.json", {"sampling_rate": 8000}, "sampling_rate is 8000; regard reads"),
        ("preprocessor_config.json", {"chunk_length": 30}, "have 3000 frames of 80 bins and the model reads 100 of 80"),
        ("preprocessor_config.json", {"feature_size": 128}, "frames of 128 bins and the model reads 100 of 80"),
        ("preprocessor_config.json", {"n_fft": "wide"}, "preprocessor_config.json has a value of the wrong type"),
        ("generation_config.json", {"suppress_tokens": [900]}, "the vocabulary has 300 entries"),
    ],
)
def test_what_cannot_be_read_is_refused(file: str, values: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_folder(tmp_path)
    change_json(tmp_path / file, **values)
    with pytest.raises(UserError, match=words):
        read(tmp_path)


def test_alignment_heads_of_another_model_are_left_out(tmp_path: Path) -> None:
    write_folder(tmp_path)
    change_json(tmp_path / "generation_config.json", alignment_heads=[[0, 1], [1, 2]])
    assert read(tmp_path).config.alignment_heads == ((0, 1), (1, 2))
    for outside in ([9, 0], [0, 9]):
        change_json(tmp_path / "generation_config.json", alignment_heads=[[0, 1], outside])
        with pytest.warns(
            UserWarning, match=r"alignment_heads has \[\d, \d\] and the decoder 2 layers of 4 heads; word"
        ):
            assert read(tmp_path).config.alignment_heads == ()


@pytest.mark.parametrize(("change", "table"), [("half", True), ("shift", True), ("none", False), ("absent", False)])
@torch.no_grad()
def test_encoder_positions_are_loaded_as_stored(change: str, table: bool, tmp_path: Path) -> None:
    """Rounded to half precision, fine-tuned, or the sinusoid, which needs no table; written again as they are."""
    write_folder(tmp_path / "a")
    weights = load_file(file := tmp_path / "a" / "model.safetensors")
    stored = weights.pop(whisper.POSITIONS)
    changed = {"half": stored.half().float(), "shift": stored + torch.randn(32), "none": stored}
    save_file(weights | ({} if change == "absent" else {whisper.POSITIONS: changed[change]}), file, {"format": "pt"})
    folder = read(tmp_path / "a")
    assert folder.config.stored_positions == table
    mels, target = torch.randn(2, 80, 100), torch.randint(VOCAB, (2, 7))
    theirs = hf.WhisperForConditionalGeneration.from_pretrained(tmp_path / "a").eval()
    expected = theirs(input_features=mels, decoder_input_ids=target).logits
    close(folder.model(Inputs("frames", mels.transpose(1, 2)), inputs(target)), expected)
    whisper.FORMAT.write(folder, tmp_path / "b")
    again = load_file(tmp_path / "b" / "model.safetensors")[whisper.POSITIONS]
    assert again.equal(changed.get(change, stored))


def test_what_cannot_be_written_is_refused(pair: tuple[Path, Any], tmp_path: Path) -> None:
    folder = read(pair[0])
    changed = folder.config.model_copy(update={"norm": family.slots.RMSNorm()})
    with pytest.raises(UserError, match="cannot become a Whisper folder; what does not fit: model.norm.kind=rms"):
        whisper.FORMAT.write(replace(folder, config=changed), tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(UserError, match="use the feature extractor of this model"):
        whisper.FORMAT.write(replace(folder, sound=AudioProcessor()), tmp_path / "x")
