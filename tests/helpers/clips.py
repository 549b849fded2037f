"""Small CLIP folders of transformers."""

from pathlib import Path
from typing import Any

import torch
import transformers as hf

WORDS = ["a</w>", "red</w>", "cat</w>", "dog</w>", "of</w>"]
TOWER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
TEXTS = ["a red cat", "dog", "a cat of a dog of a cat", "A  Red\tDOG"]


def write_folder(path: Path, legacy: bool = False, tokenizer: bool = True, **settings: Any) -> Any:
    """A small CLIP folder with its tokenizer and image processor; `settings` change its config and those of its towers."""
    letters = sorted({letter for word in WORDS for letter in word.removesuffix("</w>")})
    vocab = [*letters, *(f"{letter}</w>" for letter in letters), "re", "ca", "do", *WORDS]
    vocab = list(dict.fromkeys(vocab)) + ["<|startoftext|>", "<|endoftext|>"]
    merges = ["r e", "re d</w>", "c a", "ca t</w>", "d o", "do g</w>", "o f</w>"]
    ids = {name: number for number, name in enumerate(vocab)}
    end = 2 if legacy else ids["<|endoftext|>"]
    text = TOWER | {"vocab_size": len(vocab), "max_position_embeddings": 16, "eos_token_id": end}
    text |= {"bos_token_id": ids["<|startoftext|>"], "pad_token_id": ids["<|endoftext|>"]}
    vision = TOWER | {"image_size": 32, "patch_size": 8, "hidden_size": 32, "hidden_act": "gelu"}
    torch.manual_seed(1)
    text, vision = text | settings.pop("text_config", {}), vision | settings.pop("vision_config", {})
    config = hf.CLIPConfig(text_config=text, vision_config=vision, **{"projection_dim": 20} | settings)
    model = hf.CLIPModel(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if name == "logit_scale" else 0.0, 0.3)
    model.save_pretrained(path)
    if tokenizer:
        hf.CLIPTokenizer(vocab=ids, merges=[tuple(each.split()) for each in merges]).save_pretrained(path)
    size = {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}
    hf.CLIPImageProcessorPil(**size).save_pretrained(path)
    return model
