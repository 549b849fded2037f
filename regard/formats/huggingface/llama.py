"""Llama folders, and those of Mistral and Qwen2: the tables of config.json and weight names.

All are the family `gpt` under other names, with rotary positions, RMS norm and a gated feed-forward.
"""

import re
from typing import TYPE_CHECKING

import torch

from ...families import gpt
from ...files import JsonMapping, JsonObject
from ...parts import slots
from .causal import UNQUANTIZED, CausalFolder, CausalProcessors, causal_export
from .config_table import ACTIVATIONS, ConfigTable, Field, Fixed, Joint, Limit, Only, Row, choice, one_class, present
from .format import HuggingFaceFormat, Tensors, WeightTable
from .gpt2 import without_tied_head
from .weight_names import WeightRule, add_prefixes, any_of

if TYPE_CHECKING:
    from ...tasks.language.task import LanguagePredictor

# --- config.json -----------------------------------------------------------------------------------------------------


def read_heads(theirs: JsonMapping) -> JsonObject:
    """Our key_heads and head_width are 0 where they follow from width and heads."""
    width, heads = theirs["hidden_size"], theirs["num_attention_heads"]
    key_heads, head_width = present(theirs, "num_key_value_heads", 0), present(theirs, "head_dim", 0)
    return {
        "width": width,
        "heads": heads,
        "key_heads": 0 if key_heads == heads else key_heads,
        "head_width": 0 if head_width * heads == width else head_width,
    }


def write_heads(c: gpt.Config) -> JsonObject:
    """Their keys of the heads."""
    return {
        "hidden_size": c.width,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.key_heads or c.heads,
        "head_dim": c.head_width or c.width // c.heads,
    }


def refuse_width(c: gpt.Config) -> str | None:
    """Why a width of heads has no place in this format."""
    if c.width % c.heads == 0:
        return None
    return f"model.width={c.width} (expected a multiple of model.heads={c.heads} for Llama)"


def read_rotary_base(theirs: JsonMapping) -> JsonObject:
    """Newer folders keep the base in rope_parameters, older ones beside it."""
    for key in ("rope_parameters", "rope_scaling"):
        rope = theirs.get(key) or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(f"{key} is {rope}; regard reads folders with rope_type default only")
    newer: JsonMapping = theirs.get("rope_parameters") or {}
    return {"positions.base": float(newer.get("rope_theta", theirs.get("rope_theta", 10000.0)))}


def write_rotary_base(c: gpt.Config) -> JsonObject:
    """Their key of the base of rotary positions."""
    base = getattr(c.positions, "base", 10000.0)
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": base},
        "rope_theta": base,  # where versions before 5 look for it
    }


def biased_maps(theirs: JsonMapping) -> set[str]:
    """The maps of a layer that have a bias in their model, by their names."""
    maps, model_type = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, theirs.get("model_type")
    if not theirs.get("attention_bias") or model_type == "mistral":
        maps = maps if model_type == "qwen2" else set()
    else:
        maps.add("self_attn.o_proj")
    return maps | ({"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"} if theirs.get("mlp_bias") else set())


def read_window(theirs: JsonMapping) -> JsonObject:
    """Their window counts the token itself; null means full attention, an absent key 4096."""
    if window := theirs.get("sliding_window", 4096) or 0:
        return {"attention.kind": "window", "attention.radius": window - 1}
    return {"attention.kind": "dense", "attention.dropout": present(theirs, "attention_dropout", 0.0)}


def write_window(c: gpt.Config) -> JsonObject:
    """Their key of the attention window."""
    if isinstance(c.attention, slots.Window):
        return {"sliding_window": min(_numbers(c.attention.radius)) + 1, "attention_dropout": 0.0}
    return {"sliding_window": None, "attention_dropout": getattr(c.attention, "dropout", 0.0)}


def refuse_window(c: gpt.Config) -> str | None:
    """Mistral has one window for all layers, or plain attention."""
    if not isinstance(c.attention, slots.Window):
        return None
    if len(set(_numbers(c.attention.radius))) > 1:
        return f"model.attention.radius={c.attention.radius} (expected one number for Mistral)"
    dilated = set(_numbers(c.attention.dilation)) != {1}
    return f"model.attention.dilation={c.attention.dilation} (expected 1 for Mistral)" if dilated else None


def _numbers(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,)


SHARED: tuple[Row, ...] = (
    UNQUANTIZED,
    Only("use_sliding_window", False, "regard reads llama and qwen2 folders without it", written=False),
    Field("vocab", "vocab_size"),
    Joint(read_heads, write_heads),
    Limit(refuse_width),
    Field("layers", "num_hidden_layers"),
    Field("inner", "intermediate_size"),
    Fixed("dropout", 0.0),
    Fixed("head_dropout", 0.0),
    Field("tied", "tie_word_embeddings", False),
    Fixed("positions.kind", "rotary", "expected rotary for Llama"),
    Joint(read_rotary_base, write_rotary_base),
    Fixed("norm.kind", "rms", "expected rms for Llama"),
    Field("norm.eps", "rms_norm_eps", 1e-6),
    Fixed("feed.kind", "gated", "expected gated for Llama"),
    Field("feed.act", "hidden_act", "silu", **choice("hidden_act", ACTIVATIONS)),
    Fixed("feed.dropout", 0.0),
)
DENSE: tuple[Row, ...] = (
    Fixed("attention.kind", "dense", "expected dense for Llama"),
    Fixed("attention.scaled", True, "expected true: Llama scales attention scores"),
    Field("attention.dropout", "attention_dropout", 0.0),
)
BIASES = Joint(
    lambda theirs: {"biased": bool(biased_maps(theirs))}, lambda c: {"attention_bias": c.biased, "mlp_bias": c.biased}
)
CONFIG = ConfigTable((one_class("LlamaForCausalLM", required=False), *SHARED, *DENSE, BIASES))
MISTRAL_CONFIG = ConfigTable(
    (
        one_class("MistralForCausalLM", required=False),
        *SHARED,
        Joint(read_window, write_window),
        Limit(refuse_window),
        Fixed("biased", False, "expected false for Mistral"),
    )
)
QWEN2_CONFIG = ConfigTable(
    (one_class("Qwen2ForCausalLM", required=False), *SHARED, *DENSE, Fixed("biased", True, "expected true for Qwen2"))
)


# --- weights ---------------------------------------------------------------------------------------------------------

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
    """Our weight names to theirs."""
    table = "model.embed_tokens.weight"
    head = any_of("lm_head.weight", *((table,) if c.tied else ()))
    outer: dict[str, str | WeightRule] = {"embed.weight": table, "head.weight": head, "stack.norm": "model.norm"}
    return outer | add_prefixes("stack.layers.*", "model.layers.*", LAYER)


def with_zero_biases(tensors: Tensors, theirs: JsonMapping) -> Tensors:
    """Add zeros where only some of their maps have a bias: ours all have one, or none."""
    biased, filled = biased_maps(theirs), dict(tensors)
    for name in tensors if biased else ():
        layer = re.fullmatch(r"model\.layers\.\d+\.((?:self_attn|mlp)\.\w+)\.weight", name)
        if layer and layer[1] not in biased:
            filled[name.replace(".weight", ".bias")] = torch.zeros(len(tensors[name]))
    return filled


FORMAT: "HuggingFaceFormat[LanguagePredictor, CausalFolder]" = HuggingFaceFormat(
    "a Llama or Mistral folder",
    "gpt",
    {"llama": CONFIG, "mistral": MISTRAL_CONFIG, "qwen2": QWEN2_CONFIG},
    WeightTable(names, lambda c: COMPUTED, with_zero_biases, without_tied_head),
    CausalProcessors(),
    causal_export(lambda c: "mistral" if isinstance(c.attention, slots.Window) else "llama"),
    size="llama",
)
