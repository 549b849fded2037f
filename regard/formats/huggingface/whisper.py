"""Whisper folders: the tables of config.json and weight names, preprocessor_config.json; reader and writer.

The tokenizer files and generation_config.json are kept as they are, so that a folder that was read is written whole.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save
from torch import Tensor

from ...config.run import AnyRun, Run, change_settings
from ...errors import UserError
from ...families import whisper
from ...files import JsonMapping, JsonObject, read_optional_json, write_json
from ...parts.positions import SinusoidPositions
from ...processors.sound.log_mel import AudioProcessor
from ...processors.text.external import FolderTokenizer
from ...processors.text.whisper import ControlTokens, WhisperTokenizer
from . import causal
from .bert import ACTIVATIONS
from .config_table import ConfigTable, Field, Fixed, Joint, Only, choice, json_text, present
from .control_ids import check_control_ids, check_vocabulary
from .folder import parse_config, read_weights
from .generation import (
    GENERATION_FILE,
    penalty_from_generation,
    read_generation_config,
    rules_from_generation,
    strategy_from_generation,
    warn_of_unused,
)
from .image_settings import PROCESSOR
from .marian import attention_names, both_stacks, read_depth, write_depth
from .weight_names import WeightRule, add_prefixes, any_of, export_weights, load_weights

if TYPE_CHECKING:
    from ...tasks.transcribe.settings import WhisperRun
    from ...tasks.whisper.task import WhisperPredictor

ARCHITECTURE = "WhisperForConditionalGeneration"
ENGLISH_VOCAB = 51864  # of the published models of English alone
LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")
DECODE_RULES = {
    "no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
}
THRESHOLDS = "compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"
KEPT_FILES = (
    GENERATION_FILE, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "normalizer.json",
)  # fmt: skip

# --- config.json -----------------------------------------------------------------------------------------------------


def read_architecture(theirs: JsonMapping) -> JsonObject:
    """Refuse a folder of another architecture."""
    names = present(theirs, "architectures", [ARCHITECTURE])
    if names != [ARCHITECTURE]:
        raise ValueError(f"architectures is {names}; regard reads {ARCHITECTURE}")
    return {}


CONFIG = ConfigTable(
    (
        Joint(read_architecture, lambda c: {"architectures": [ARCHITECTURE]}),
        Only("scale_embedding", False, "regard reads Whisper folders without it"),
        Field("vocab", "vocab_size"),
        Field("bins", "num_mel_bins", 80),
        Field("width", "d_model"),
        both_stacks("heads", "attention_heads"),
        Joint(read_depth, write_depth),
        both_stacks("inner", "ffn_dim"),
        Field("dropout", "dropout", 0.0),
        Field("tied", "tie_word_embeddings", True),
        Field("source_positions", "max_source_positions", 1500),
        Fixed("attention.kind", "dense", "expected dense"),
        Fixed("attention.scaled", True, "expected true: Whisper scales its scores"),
        Field("attention.dropout", "attention_dropout", 0.0),
        Fixed("positions.kind", "learned", "expected learned"),
        Field("positions.tokens", "max_target_positions", 448),
        Fixed("feed.kind", "plain", "expected plain"),
        Field("feed.act", "activation_function", "gelu", **choice("activation_function", ACTIVATIONS)),
        Field("feed.dropout", "activation_dropout", 0.0),
        Fixed("norm.kind", "layer", "expected layer"),
        Fixed("norm.eps", 1e-5, "expected 1e-05"),
    )
)


def from_huggingface(theirs: JsonMapping) -> whisper.Config:
    """Their config.json as our Config; ValueError names what regard cannot represent."""
    return whisper.Config(size="whisper", **CONFIG.read(theirs))


unsupported = CONFIG.unsupported

# --- weights ---------------------------------------------------------------------------------------------------------

SINUSOID = "model.encoder.embed_positions.weight"  # computed here, stored there
TOLERANCE = 0.01  # of its values: half precision rounds by 0.004


def names(c: whisper.Config) -> dict[str, str | WeightRule]:
    """Our weight names to theirs."""
    layer = attention_names("attention", "self_attn") | {
        "feed.into": "fc1",
        "feed.out": "fc2",
        "feed_residual.norm": "final_layer_norm",
    }
    table, head = "model.decoder.embed_tokens.weight", "proj_out.weight"
    return (
        add_prefixes("encoder.layers.*", "model.encoder.layers.*", layer)
        | add_prefixes("decoder.layers.*", "model.decoder.layers.*", layer | attention_names("cross", "encoder_attn"))
        | {
            "front.first": "model.encoder.conv1",
            "front.second": "model.encoder.conv2",
            "encoder.norm": "model.encoder.layer_norm",
            "decoder.positions.table": "model.decoder.embed_positions",
            "decoder.norm": "model.decoder.layer_norm",
            "target.weight": table,
            "head.weight": any_of(table, head) if c.tied else head,
        }
    )


def sinusoid(c: whisper.Config) -> Tensor:
    """The position table of the encoder (positions, width)."""
    return SinusoidPositions(c.width, "whisper").vectors(torch.arange(c.source_positions))


# --- preprocessor_config.json ----------------------------------------------------------------------------------------

RATE = 16000  # samples per second
FIXED_SOUND = {"sampling_rate": RATE, "padding_value": 0.0, "dither": 0.0, "do_normalize": False}


def read_sound_settings(theirs: JsonMapping, c: whisper.Config) -> AudioProcessor:
    """Our processor; without the file, that of the published models. ValueError for what it cannot represent."""
    for key, value in FIXED_SOUND.items():
        if (actual := present(theirs, key, value)) != value:
            raise ValueError(f"{key} is {json_text(actual)}; regard reads Whisper folders with {json_text(value)}")
    sound = AudioProcessor(
        bins=present(theirs, "feature_size", c.bins), window=present(theirs, "n_fft", 400),
        hop=present(theirs, "hop_length", 160), seconds=present(theirs, "chunk_length", 30), frame_masks=0, bin_masks=0,
    )  # fmt: skip
    check_features(sound, c)
    return sound


def check_features(sound: AudioProcessor, c: whisper.Config) -> None:
    """ValueError for frames that do not fit the model."""
    frames, expected = sound.seconds * sound.rate // sound.hop, 2 * c.source_positions
    if (sound.rate, sound.bins, frames) != (FIXED_SOUND["sampling_rate"], c.bins, expected):
        raise ValueError(
            f"recordings of {sound.rate} Hz have {frames} frames of {sound.bins} bins and the model reads {expected} "
            f"of {c.bins}, at 16000 Hz; use the feature extractor of this model"
        )


def write_sound_settings(sound: AudioProcessor) -> JsonObject:
    """The preprocessor settings of a model."""
    samples = sound.seconds * sound.rate
    return {
        "feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "WhisperProcessor",
        "feature_size": sound.bins, "sampling_rate": sound.rate, "n_fft": sound.window, "hop_length": sound.hop,
        "chunk_length": sound.seconds, "n_samples": samples, "nb_max_frames": samples // sound.hop,
        "padding_side": "right", "padding_value": 0.0, "dither": 0.0, "return_attention_mask": False,
    }  # fmt: skip


# --- folder ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WhisperFolder:
    """The contents of a Whisper folder."""

    config: whisper.Config
    model: whisper.Model
    sound: AudioProcessor
    tokenizer: WhisperTokenizer  # START is the token that begins every decoding
    generation: JsonMapping  # generation_config.json over config.json: suppressed tokens, languages, timestamps
    settings: JsonMapping  # config.json, with the keys that our Config does not have
    files: dict[str, bytes]  # those of KEPT_FILES, by name


def read(path: Path, config: JsonMapping) -> WhisperFolder:
    """The contents of a Whisper folder whose config.json is `config`."""
    ours = parse_config(path, config, from_huggingface)
    tensors = read_weights(path)
    stored, expected = tensors.get(SINUSOID), sinusoid(ours)
    if stored is not None and (stored.shape != expected.shape or (stored - expected).abs().max() > TOLERANCE):
        raise UserError(
            f"{SINUSOID!r} of {path} is not Whisper's sinusoid, which regard computes; use a folder that has it"
        )
    model = load_weights(whisper.Model(ours), tensors, names(ours), (SINUSOID.replace(".", r"\."),))
    file = PROCESSOR if (path / PROCESSOR).is_file() else "processor_config.json"  # that of the whole processor
    about = read_optional_json(path / file)
    sound = parse_config(
        path, about.get("feature_extractor", about), lambda settings: read_sound_settings(settings, ours), file
    )
    generation = read_generation_config(path, config)
    check_control_ids(path, config, ours.vocab)
    ours = parse_config(path, generation, lambda theirs: with_alignment_heads(ours, theirs), GENERATION_FILE)
    files = {name: (path / name).read_bytes() for name in KEPT_FILES if (path / name).is_file()}
    return WhisperFolder(ours, model, sound, tokenizer(path, generation, ours), generation, config, files)


def with_alignment_heads(c: whisper.Config, generation: JsonMapping) -> whisper.Config:
    """The settings with the alignment heads of a folder."""
    heads = generation.get("alignment_heads") or ()
    return whisper.Config(**c.model_dump() | {"alignment_heads": heads})


def tokenizer(path: Path, generation: JsonMapping, c: whisper.Config) -> WhisperTokenizer:
    """The tokenizer of a folder, with the token that begins every decoding as START."""
    base = causal.tokenizer(path, generation)
    check_vocabulary(path, base.backend.get_vocab().values(), c.vocab)
    start = parse_config(path, generation, lambda theirs: present(theirs, "decoder_start_token_id"), GENERATION_FILE)
    control = parse_config(path, generation, lambda theirs: control_tokens(theirs, base, c), GENERATION_FILE)
    numbers = [control.no_timestamps, control.previous, control.no_speech]
    ids = [number for number in (*numbers, *control.languages.values(), *control.tasks.values()) if number is not None]
    check_vocabulary(path, ids, c.vocab)
    return WhisperTokenizer(base.backend, base.pad, start, base.end, base.unk, control)


def control_tokens(generation: JsonMapping, base: FolderTokenizer, c: whisper.Config) -> ControlTokens:
    """The control tokens that generation_config.json tells; what it lacks, by name."""
    names = base.backend.get_vocab()
    no_timestamps = generation.get("no_timestamps_token_id", names.get("<|notimestamps|>"))
    if no_timestamps is None:
        raise ValueError("there is no no_timestamps_token_id, and no token <|notimestamps|>; fetch the folder again")
    languages: dict[str, int] = {}
    if generation.get("is_multilingual", c.vocab != ENGLISH_VOCAB):
        ids: JsonMapping = generation.get("lang_to_id") or {
            name: number for name, number in names.items() if LANGUAGE.fullmatch(name)
        }
        languages = {name.strip("<|>"): number for name, number in sorted(ids.items(), key=lambda pair: pair[1])}
    tasks: JsonMapping = generation.get("task_to_id") or {
        task: names[name] for task in ("translate", "transcribe") if (name := f"<|{task}|>") in names
    }
    silence = names.get("<|nospeech|>", names.get("<|nocaptions|>", no_timestamps - 1))
    return ControlTokens(
        no_timestamps, languages, dict(tasks) if languages else {},
        generation.get("prev_sot_token_id", names.get("<|startofprev|>")), silence,
        generation.get("max_initial_timestamp_index"), min(c.source_positions + 1, c.vocab - no_timestamps - 1),
    )  # fmt: skip


def write(folder: WhisperFolder, out: Path) -> None:
    """Write a Whisper folder, which must not exist yet."""
    c = folder.config
    if refusals := unsupported(c):
        raise UserError(f"{out} cannot become a Whisper folder; what does not fit: {', '.join(refusals)}")
    parse_config(out, {}, lambda _: check_features(folder.sound, c), PROCESSOR)
    out.mkdir(parents=True)
    write_json(out / "config.json", {**folder.settings, "model_type": "whisper", **CONFIG.write(c), "dtype": "float32"})
    theirs = export_weights(folder.model, names(c)) | {SINUSOID: sinusoid(c)}
    tensors = {name: tensor.detach().float().cpu().clone().contiguous() for name, tensor in theirs.items()}
    (out / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
    write_json(out / PROCESSOR, write_sound_settings(folder.sound))
    for name, content in folder.files.items():
        (out / name).write_bytes(content)


def load_predictor(path: Path, config: JsonMapping, overrides: JsonMapping) -> "WhisperPredictor":
    """The predictor of a Whisper folder."""
    from ...device import resolve_device
    from ...tasks.whisper.task import WhisperPredictor

    folder = read(path, config)
    warn_of_unused(path, folder.generation, ("stop_strings", "forced_eos_token_id"))

    def to_run(generation: JsonMapping) -> AnyRun:
        rules = {name: value for name, value in rules_from_generation(generation).items() if name in DECODE_RULES}
        windows = {name: generation[name] for name in THRESHOLDS if generation.get(name) is not None}
        if folder.tokenizer.first_timestamp >= folder.config.vocab:
            windows["timestamps"] = False
        strategy = strategy_from_generation(generation)
        strategy = {"kind": "greedy"} if strategy["kind"] == "sample" else strategy  # samples follow if it fails
        decode = {"strategy": strategy, **penalty_from_generation(generation), "rules": rules, "windows": windows}
        return Run(task="transcribe", model=folder.config, decode=decode)

    run: WhisperRun = change_settings(parse_config(path, folder.generation, to_run, GENERATION_FILE), overrides)
    return WhisperPredictor(run, folder.model, folder.sound, folder.tokenizer, resolve_device(run.device))
