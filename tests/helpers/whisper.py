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
    "decoder_start_token_id": 1, "eos_token_id": 0, "pad_token_id": 0, "suppress_tokens": [7, 8], "no_timestamps_token_id": 2,
    "lang_to_id": {"<|en|>": 3}, "task_to_id": {"transcribe": 4},
}  # fmt: skip


def write_folder(path: Path, **settings: Any) -> Any:
    """A small folder of transformers for recordings of one second, with all its files."""
    torch.manual_seed(1)
    model = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**SMALL | settings)).eval()
    for name, each in model.named_parameters():  # large, so that attention is not uniform; the sinusoid has no gradient
        if each.dim() > 1 and each.requires_grad:
            spread = SPREAD * model.config.d_model**-0.5
            each.data = (2.0 if "decoder.embed_positions" in name else spread) * torch.randn_like(each)
        elif each.requires_grad and name != "model.decoder.layer_norm.bias":  # that one would favor a few tokens
            each.data = each.data + 0.3 * torch.randn_like(each)
    model.save_pretrained(path)
    control = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|en|>", "<|transcribe|>"]
    byte_level(VOCAB, *control).save(str(path / "tokenizer.json"))
    end = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), control[0])
    (path / "tokenizer_config.json").write_text(json.dumps(end | {"tokenizer_class": "WhisperTokenizer"}))
    (path / "generation_config.json").write_text(json.dumps(GENERATION))
    hf.WhisperFeatureExtractor(model.config.num_mel_bins, chunk_length=1).save_pretrained(path)
    return model
