"""Small Whisper folders of transformers."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from helpers.causal import byte_level

VOCAB, SPREAD = 300, 1.7
SMALL = {
    "vocab_size": VOCAB, "d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "encoder_layers": 2, "decoder_layers": 2, "max_source_positions": 50, "max_target_positions": 30,
    "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 1, "suppress_tokens": None,
    "begin_suppress_tokens": None,
}  # fmt: skip
GENERATION = {
    "decoder_start_token_id": 1, "eos_token_id": 0, "pad_token_id": 0, "suppress_tokens": [7, 8], "no_timestamps_token_id": VOCAB - 1,
    "lang_to_id": {"<|en|>": 3}, "task_to_id": {"transcribe": 4},
}  # fmt: skip


def write_folder(path: Path, seconds: int = 1, seed: int = 1, **settings: Any) -> Any:
    """A small folder of transformers for windows of one second, with all its files."""
    torch.manual_seed(seed)
    model = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**SMALL | settings)).eval()
    for name, each in model.named_parameters():  # large, so that attention is not uniform; the sinusoid has no gradient
        if each.dim() > 1 and each.requires_grad:
            spread = SPREAD * model.config.d_model**-0.5
            each.data = (2.0 if "decoder.embed_positions" in name else spread) * torch.randn_like(each)
        elif each.requires_grad and name != "model.decoder.layer_norm.bias":  # that one would favor a few tokens
            each.data = each.data + 0.3 * torch.randn_like(each)
    model.save_pretrained(path)
    control = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|en|>", "<|transcribe|>"]
    byte_level(VOCAB - 1, *control).save(str(path / "tokenizer.json"))
    end = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), control[0])
    (path / "tokenizer_config.json").write_text(json.dumps(end | {"tokenizer_class": "WhisperTokenizer"}))
    (path / "generation_config.json").write_text(json.dumps(GENERATION))
    hf.WhisperFeatureExtractor(model.config.num_mel_bins, chunk_length=seconds).save_pretrained(path)
    return model


TEXT = 280  # entries of text; control tokens follow, as in the published models
LANGUAGES = ("en", "de", "ja")


def control_ids(seconds: int) -> dict[str, int]:
    names = ["endoftext", "startoftranscript", *LANGUAGES, "translate", "transcribe", "startoflm", "startofprev"]
    names += ["nospeech", "notimestamps", *(f"{step * 0.02:.2f}" for step in range(seconds * 50 + 1))]
    return {f"<|{name}|>": TEXT + number for number, name in enumerate(names)}


def write_multilingual(path: Path, seconds: int = 2, tokens: int = 40, seed: int = 1, **generation: Any) -> Any:
    """A folder with languages, tasks and timestamps, for windows of so many seconds."""
    ids = control_ids(seconds)
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    control = {
        "vocab_size": TEXT + len(ids), "max_source_positions": seconds * 50, "max_target_positions": tokens,
        "pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start,
    }  # fmt: skip
    write_folder(path, seconds=seconds, seed=seed, **control)
    backend = byte_level(TEXT)
    assert backend.get_vocab_size() == TEXT
    backend.add_special_tokens([hf.AddedToken(name, special=True) for name in ids])
    backend.save(str(path / "tokenizer.json"))
    end_names = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    (path / "tokenizer_config.json").write_text(json.dumps(end_names | {"tokenizer_class": "WhisperTokenizer"}))
    settings = {
        "decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": end, "bos_token_id": end,
        "suppress_tokens": [3, 9, 11, ids["<|startoflm|>"], ids["<|startofprev|>"], ids["<|nospeech|>"], start],
        "begin_suppress_tokens": [5, end], "no_timestamps_token_id": ids["<|notimestamps|>"], "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in ("translate", "transcribe")},
        "prev_sot_token_id": ids["<|startofprev|>"], "max_initial_timestamp_index": 20, "max_length": tokens,
    } | generation  # fmt: skip
    settings = {key: value for key, value in settings.items() if value is not None}
    (path / "generation_config.json").write_text(json.dumps(settings))
    return hf.WhisperForConditionalGeneration.from_pretrained(path).eval()
