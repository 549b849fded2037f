"""Llama folders, and those of Mistral and Qwen2: the modern filling of the family `gpt` under other names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...families import gpt
from ...parts import slots
from . import causal
from .folder import parse_config, read_weights
from .weight_names import WeightRule, find_rule, load_weights, one_of, prefixed


def from_config(theirs: Mapping[str, Any]) -> gpt.Config:
    """Their config.json as ours; what we cannot be is refused by name."""
    causal.refuse(theirs, "use_sliding_window")
    width, heads = theirs["hidden_size"], theirs["num_attention_heads"]
    drop, window = theirs.get("attention_dropout") or 0.0, window_size(theirs)
    return gpt.Config(
        size="llama",
        vocab=theirs["vocab_size"],
        width=width,
        heads=heads,
        key_heads=theirs.get("num_key_value_heads") or 0,
        head_width=theirs.get("head_dim") or 0,
        layers=theirs["num_hidden_layers"],
        inner=theirs["intermediate_size"],
        dropout=0.0,
        tied=theirs.get("tie_word_embeddings", False),
        biased=bool(biased_maps(theirs)),
        attention=slots.Window(radius=window - 1) if window else slots.Dense(dropout=drop),
        positions=slots.Rotary(base=rotary_base(theirs)),
        norm=slots.RMSNorm(eps=theirs.get("rms_norm_eps", 1e-6)),
        feed=slots.Gated(act=causal.activation(theirs, "hidden_act", "silu")),
    )


def window_size(theirs: Mapping[str, Any]) -> int:
    """How many tokens, itself counted, a token of Mistral sees; 0: all."""
    return (theirs.get("sliding_window", 4096) or 0) if theirs.get("model_type") == "mistral" else 0


def rotary_base(theirs: Mapping[str, Any]) -> float:
    """The base of the angles, which newer folders keep among other settings."""
    for key in ("rope_parameters", "rope_scaling"):
        settings = theirs.get(key) or {}
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind != "default" or settings.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(f"{key} is {settings}; regard reads folders with rope_type default only")
    newer = theirs.get("rope_parameters") or {}
    return float(newer.get("rope_theta", theirs.get("rope_theta", 10000.0)))


def biased_maps(theirs: Mapping[str, Any]) -> set[str]:
    """Which maps of a layer add a bias."""
    found = {"query", "key", "value"} if theirs.get("model_type") == "qwen2" else set()
    if theirs.get("attention_bias"):
        found |= {"query", "key", "value", "attention.out"}
    return found | ({"gate", "into", "feed.out"} if theirs.get("mlp_bias") else set())


LAYER = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention_residual.norm": "input_layernorm",
    "feed.gate": "mlp.gate_proj",
    "feed.into": "mlp.up_proj",
    "feed.out": "mlp.down_proj",
    "feed_residual.norm": "post_attention_layernorm",
}
COMPUTED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)


def names(c: gpt.Config) -> dict[str, str | WeightRule]:
    """Our names to theirs."""
    table = "model.embed_tokens.weight"
    head = one_of("lm_head.weight", *((table,) if c.tied else ()))
    outer: dict[str, str | WeightRule] = {"embed.weight": table, "head.weight": head, "stack.norm": "model.norm"}
    return outer | prefixed("stack.layers.*", "model.layers.*", LAYER)


def with_zero_biases(model: nn.Module, tensors: Mapping[str, Tensor], theirs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Our maps all have a bias or none has: where only some of theirs have one, the others add nothing."""
    there, filled = biased_maps(theirs), dict(tensors)
    for ours, tensor in model.state_dict().items():
        if ours.endswith(".bias") and not any(f"{part}.bias" in ours for part in there):
            filled[find_rule(ours, names(gpt.Config())).names[0]] = torch.zeros_like(tensor)
    return filled


def read(path: Path, config: Mapping[str, Any]) -> tuple[gpt.Config, gpt.Model]:
    ours = parse_config(path, config, from_config)
    model = gpt.Model(ours)
    load_weights(model, with_zero_biases(model, read_weights(path), config), names(ours), COMPUTED)
    return ours, model


def load_predictor(path: Path, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """The writer in a folder of Llama's kind."""
    return causal.language_predictor(path, config, overrides, *read(path, config))
