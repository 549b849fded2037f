"""Small folders of VisionEncoderDecoderModel: a ViT and a GPT-2 that attends to it."""

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from helpers.causal import END, byte_level, loud

Settings = dict[str, Any]
ENCODER = {
    "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 50, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
DECODER = {"n_layer": 2, "n_head": 4, "n_positions": 90, "vocab_size": 300, "add_cross_attention": True}


def write_folder(
    path: Path, width: int = 36, encoder: Settings | None = None, decoder: Settings | None = None, **generation: Any
) -> Any:
    """A folder, and the transformers model saved in it; START, END and PAD are one token, as in GPT-2."""
    backend = byte_level(300, END)
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=END, eos_token=END)
    end = tokenizer.eos_token_id
    writer = hf.GPT2Config(n_embd=width, bos_token_id=end, eos_token_id=end, **DECODER | (decoder or {}))
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        hf.ViTConfig(**ENCODER | (encoder or {})), writer
    )
    config.decoder_start_token_id = config.pad_token_id = config.eos_token_id = end
    torch.manual_seed(1)
    model: Any = loud(hf.VisionEncoderDecoderModel(config=config), 10.0)
    ids = dict.fromkeys(("decoder_start_token_id", "pad_token_id", "eos_token_id", "bos_token_id"), end)
    model.generation_config = hf.GenerationConfig(**ids, **generation)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    hf.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(path)
    return model
