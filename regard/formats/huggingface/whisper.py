"""Whisper folders: the tables of config.json and weight names, preprocessor_config.json, control tokens.

The tokenizer files and generation_config.json are kept as they are, so that a folder that was read is written whole.
"""

import json
import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...config.decode_sound import WhisperDecode
from ...config.run import AnyRun, Run, change_settings
from ...config.strategies import Beam
from ...errors import UserError
from ...families import whisper
from ...files import Json, JsonMapping, JsonObject, write_json
from ...parts import Inputs
from ...parts.positions import SinusoidPositions
from ...processors.sound.log_mel import AudioProcessor
from ...processors.text.external import FolderTokenizer
from ...processors.text.whisper import ControlTokens, WhisperTokenizer
from . import causal
from .config_table import (
    ACTIVATIONS,
    ConfigTable,
    Field,
    Fixed,
    Only,
    both_stacks,
    choice,
    depth,
    json_text,
    one_class,
    present,
)
from .control_ids import check_control_ids, check_vocabulary
from .files import PROCESSOR, parse_config, read_processor
from .format import Export, Folder, HuggingFaceFormat, Tensors, TensorSample, WeightTable
from .generation import (
    GENERATION_FILE,
    beams_from_generation,
    generated_rules,
    generated_strategy,
    penalty_from_generation,
    read_generation_config,
    rules_from_generation,
    strategy_from_generation,
    warn_of_unused,
)
from .marian import attention_names
from .weight_names import WeightRule, add_prefixes, any_of

if TYPE_CHECKING:
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
PROBE = 2, 11  # rows and tokens that are compared
NO_TIMESTAMPS = "regard_no_timestamps"  # in config.json of an export: without them also where a recording is long
KEPT_FILES = (
    GENERATION_FILE, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "normalizer.json",
)  # fmt: skip

# --- config.json -----------------------------------------------------------------------------------------------------

CONFIG = ConfigTable(
    (
        one_class(ARCHITECTURE),
        Only("scale_embedding", False, "regard reads Whisper folders without it"),
        Field("vocab", "vocab_size"),
        Field("bins", "num_mel_bins", 80),
        Field("width", "d_model"),
        both_stacks("heads", "attention_heads"),
        depth("encoder_layers", "decoder_layers"),
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


# --- weights ---------------------------------------------------------------------------------------------------------

POSITIONS = "model.encoder.embed_positions.weight"
ROUNDING = 1e-6  # by which the sinusoid of another machine may differ


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
            "encoder.positions.table": POSITIONS,
            "encoder.norm": "model.encoder.layer_norm",
            "decoder.positions.table": "model.decoder.embed_positions",
            "decoder.norm": "model.decoder.layer_norm",
            "target.weight": table,
            "head.weight": any_of(table, head) if c.tied else head,
        }
    )


def without_sinusoid(tensors: Tensors, theirs: JsonMapping) -> Tensors:
    """The tensors without positions of the encoder that are the sinusoid: these are computed, others loaded."""
    positions, stored = present(theirs, "max_source_positions", 1500), tensors.get(POSITIONS)
    expected = sinusoid(positions, theirs["d_model"])
    if stored is None or stored.shape != expected.shape or not stored.allclose(expected, rtol=0, atol=ROUNDING):
        return tensors
    return {name: tensor for name, tensor in tensors.items() if name != POSITIONS}


def stored_positions(settings: JsonMapping, theirs: JsonMapping, tensors: Collection[str]) -> JsonObject:
    """Whether the encoder has a table of positions."""
    return {"stored_positions": POSITIONS in tensors}


def with_sinusoid(tensors: Tensors, predictor: "WhisperPredictor | WhisperFolder") -> Tensors:
    """The tensors with the positions of the encoder."""
    c: whisper.Config = predictor.run.model
    return {POSITIONS: sinusoid(c.source_positions, c.width)} | tensors


def sinusoid(positions: int, width: int) -> Tensor:
    """The computed positions of the encoder (positions, width)."""
    return SinusoidPositions(width, "whisper").vectors(torch.arange(positions))


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
class WhisperFolder(Folder):
    """The contents of a Whisper folder, which can be written again as it is."""

    sound: AudioProcessor
    tokenizer: WhisperTokenizer  # START is the token that begins every decoding
    generation: JsonMapping  # generation_config.json over config.json: suppressed tokens, languages, timestamps
    files: dict[str, bytes]  # those of KEPT_FILES, by name

    @property
    def run(self) -> AnyRun:
        """A run with the settings of the model."""
        return Run(task="transcribe", model=self.config)

    @property
    def module(self) -> nn.Module:
        """The model."""
        model: nn.Module = self.model
        return model


class WhisperProcessors:
    """A feature extractor, a tokenizer with control tokens, and generation settings."""

    def read(self, folder: Folder) -> WhisperFolder:
        """The folder with its processors, and with its alignment heads among the settings of the model."""
        path, c = folder.path, folder.config
        sound = read_processor(path, "feature_extractor", lambda settings: read_sound_settings(settings, c))
        generation = read_generation_config(path, folder.theirs)
        check_control_ids(path, folder.theirs, c.vocab)
        c = parse_config(path, generation, partial(with_alignment_heads, c), GENERATION_FILE)
        files = {name: (path / name).read_bytes() for name in KEPT_FILES if (path / name).is_file()}
        text = read_tokenizer(path, generation, c)
        whole = vars(folder) | {"config": c}
        return WhisperFolder(**whole, sound=sound, tokenizer=text, generation=generation, files=files)

    def load(self, folder: WhisperFolder, overrides: JsonMapping) -> "WhisperPredictor":
        """The predictor of a Whisper folder."""
        from ...device import resolve_device
        from ...tasks.whisper.task import WhisperPredictor

        warn_of_unused(folder.path, folder.generation, ("stop_strings", "forced_eos_token_id"))
        run = parse_config(folder.path, folder.generation, partial(whisper_run, folder), GENERATION_FILE)
        changed = change_settings(run, overrides)
        if isinstance(changed.decode.strategy, Beam) and not isinstance(run.decode.strategy, Beam):
            beams = {"kind": "beam", **beams_from_generation(folder.generation)}  # for a search that the user chose
            changed = change_settings(change_settings(run, {"decode.strategy": beams}), overrides)
        return WhisperPredictor(changed, folder.model, folder.sound, folder.tokenizer, resolve_device(changed.device))

    def write(self, predictor: "WhisperPredictor | WhisperFolder", draft: Path) -> JsonObject:
        """Write the processors and generation_config.json; return the keys of config.json that they share."""
        c, sound = predictor.run.model, predictor.sound
        if isinstance(predictor, WhisperFolder):
            files, keys = predictor.files, {**predictor.theirs, **FORMAT.config(c)}
        else:
            files = written_files(predictor, draft)
            ids = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
            keys = {key: json.loads(files[GENERATION_FILE])[key] for key in ids}
            if predictor.run.decode.windows.timestamps is False:
                keys[NO_TIMESTAMPS] = True
        parse_config(draft, {}, lambda _: check_features(sound, c), PROCESSOR)
        write_json(draft / PROCESSOR, write_sound_settings(sound))
        for name, content in files.items():
            (draft / name).write_bytes(content)
        return keys


def with_alignment_heads(c: whisper.Config, generation: JsonMapping) -> whisper.Config:
    """The settings with the alignment heads of a folder; heads of another model are left out with a warning."""
    heads, layers = generation.get("alignment_heads") or (), c.decoder_layers or c.layers
    if outside := [head for head in heads if not (0 <= head[0] < layers and 0 <= head[1] < c.heads)]:
        warnings.warn(
            f"{GENERATION_FILE}: alignment_heads has {outside[0]} and the decoder {layers} layers of {c.heads} heads; "
            "word times use the heads that follow each recording best instead",
            stacklevel=2,
        )
        heads = ()
    return whisper.Config(**c.model_dump() | {"alignment_heads": heads})


def whisper_run(folder: WhisperFolder, generation: JsonMapping) -> AnyRun:
    """The run that a folder describes."""
    rules = {name: value for name, value in rules_from_generation(generation).items() if name in DECODE_RULES}
    prompt, timestamps = prompt_settings(folder, generation)
    windows = {name: generation[name] for name in THRESHOLDS if generation.get(name) is not None} | timestamps
    if folder.tokenizer.first_timestamp >= folder.config.vocab:
        windows["timestamps"] = False
    strategy = strategy_from_generation(generation)
    strategy = {"kind": "greedy"} if strategy["kind"] == "sample" else strategy  # samples follow if it fails
    decode = {"strategy": strategy, **penalty_from_generation(generation), "rules": rules, "windows": windows}
    return Run(task="transcribe", model=folder.config, decode=decode | prompt)


def prompt_settings(folder: WhisperFolder, generation: JsonMapping) -> tuple[JsonObject, JsonObject]:
    """decode.* and decode.windows.* that generation_config.json fixes: language and task; timestamps.

    As in transformers, forced_decoder_ids count without language and task, and those of config.json without any other.
    Published folders have no timestamps, but transformers requires them for recordings longer than a window.
    """
    language, task = generation.get("language"), generation.get("task")
    forced = generation.get("forced_decoder_ids") or folder.theirs.get("forced_decoder_ids")
    prompt: JsonObject = {}
    if language is None and task is None and forced:
        prompt = forced_settings(forced, folder.tokenizer.control)
    if language is not None:
        if not isinstance(language, str):
            raise ValueError(f"language is {language!r}; expected one code or English name, correct the file")
        code = language.strip("<|>")
        if folder.tokenizer.multilingual or code.lower() not in ("en", "english"):
            prompt["language"] = folder.tokenizer.language(code, f"language of {GENERATION_FILE}")
    if task is not None:
        prompt["task"] = task
    windows = {"timestamps": prompt.pop("timestamps")} if "timestamps" in prompt else {}
    if (timestamps := generation.get("return_timestamps")) is not None:
        windows["timestamps"] = timestamps
    if windows.get("timestamps") is False and NO_TIMESTAMPS not in folder.theirs:
        windows["timestamps"] = "long"
    return prompt, windows


def forced_settings(forced: Sequence[Sequence[int | None]], control: ControlTokens) -> JsonObject:
    """Language, task and timestamps by the tokens that follow START; no token: the language is detected."""
    kinds: list[dict[int | None, tuple[str, Json]]] = [
        {None: ("language", "")} | {number: ("language", code) for code, number in control.languages.items()},
        {number: ("task", task) for task, number in control.tasks.items()},
        {control.no_timestamps: ("timestamps", False)},
    ]
    settings: JsonObject = {}
    for position, (index, token) in enumerate(forced, 1):
        while kinds and token not in kinds[0]:
            kinds.pop(0)
        if index != position or not kinds:
            raise ValueError(
                f"forced_decoder_ids has the token {token} at position {index}; expected a language, a task and no "
                "timestamps, in this order from position 1 on; correct or remove the key"
            )
        name, value = kinds.pop(0)[token]
        settings[name] = value
    return settings


def read_tokenizer(path: Path, generation: JsonMapping, c: whisper.Config) -> WhisperTokenizer:
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


# --- export ----------------------------------------------------------------------------------------------------------


def written_files(predictor: "WhisperPredictor", draft: Path) -> dict[str, bytes]:
    """The tokenizer and generation settings of a run."""
    target, sound = predictor.target, predictor.sound
    if not isinstance(target, WhisperTokenizer) or not isinstance(sound, AudioProcessor):
        raise UserError(
            f"{draft.name} cannot become a Whisper folder: its tokenizer has no control tokens; train it again"
        )
    if sound.rate != RATE:
        raise UserError(
            f"the run reads {sound.rate} samples per second, and a Whisper folder {RATE}; train with data.rate={RATE}"
        )
    return {
        GENERATION_FILE: to_bytes(written_generation(predictor)),
        "tokenizer.json": target.backend.to_str(pretty=True).encode(),
        "tokenizer_config.json": to_bytes(written_tokenizer(target, predictor.run.model.positions.tokens)),
    }


def written_generation(predictor: "WhisperPredictor") -> JsonObject:
    """generation_config.json."""
    decode: WhisperDecode = predictor.run.decode
    target, control = predictor.target, predictor.target.control
    settings: JsonObject = {
        "decoder_start_token_id": target.start, "eos_token_id": target.end, "pad_token_id": target.pad,
        "bos_token_id": target.end, "max_length": predictor.context, "no_timestamps_token_id": control.no_timestamps,
        "return_timestamps": decode.windows.timestamps is True, "is_multilingual": target.multilingual,
        "prev_sot_token_id": control.previous, "max_initial_timestamp_index": control.latest_start,
        "alignment_heads": [list(head) for head in predictor.run.model.alignment_heads] or None,
    }  # fmt: skip
    if target.multilingual:
        settings |= {
            "lang_to_id": {f"<|{code}|>": number for code, number in control.languages.items()},
            "task_to_id": control.tasks,
            "task": decode.task,
            "language": f"<|{target.language(decode.language)}|>" if decode.language else None,
        }
    settings |= generated_strategy(decode) | generated_rules(decode, ())
    return {key: value for key, value in settings.items() if value is not None}


def written_tokenizer(target: WhisperTokenizer, positions: int) -> JsonObject:
    """The tokenizer_config.json of a model."""
    names = {number: token.content for number, token in target.backend.get_added_tokens_decoder().items()}
    roles = {"bos_token": target.end, "eos_token": target.end, "pad_token": target.pad}
    class_name = "WhisperTokenizer" if target.spaced else "PreTrainedTokenizerFast"
    control = {role: names[number] for role, number in roles.items() if number in names}
    return {
        "tokenizer_class": class_name,
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        **control,
    }


def to_bytes(values: JsonObject) -> bytes:
    """A value as the bytes of a JSON file."""
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def sample(predictor: "WhisperPredictor") -> TensorSample:
    """Frames of noise and random tokens."""
    generator = torch.Generator().manual_seed(1)
    model: Any = predictor.module
    frames = torch.randn(PROBE[0], model.max_frames, model.bins, generator=generator)
    tokens = torch.randint(predictor.run.model.vocab, PROBE, generator=generator)

    def their_outputs(model: Any) -> Tensor:
        logits: Tensor = model(input_features=frames.transpose(1, 2), decoder_input_ids=tokens).logits
        return logits

    return TensorSample(model, lambda model: model(Inputs("frames", frames), Inputs("tokens", tokens)), their_outputs)


USAGE = """
```python
import soundfile
from transformers import AutoTokenizer, WhisperFeatureExtractor, WhisperForConditionalGeneration

folder = "."
model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
samples, rate = soundfile.read("recording.wav")
features = WhisperFeatureExtractor.from_pretrained(folder)(samples, sampling_rate=rate, return_tensors="pt")
tokens = model.generate(**features)
print(AutoTokenizer.from_pretrained(folder).decode(tokens[0], skip_special_tokens=True))
```
"""
FORMAT: "HuggingFaceFormat[WhisperPredictor, WhisperFolder]" = HuggingFaceFormat(
    "a Whisper folder",
    "whisper",
    {"whisper": CONFIG},
    WeightTable(names, read=without_sinusoid, write=with_sinusoid),
    WhisperProcessors(),
    Export(lambda c: "whisper", sample, lambda predictor: USAGE, lambda c: "automatic-speech-recognition"),
    stored_positions,
    size="whisper",
)
