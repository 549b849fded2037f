"""GPT-2 folders: the family `gpt` under other names, with matrices that lie the other way and three maps in one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...families import gpt
from ...parts import slots
from . import causal
from .folder import parse_config, read_weights
from .weight_names import WeightRule, load_weights, one_of, prefixed, transposed


def from_config(theirs: Mapping[str, Any]) -> gpt.Config:
    """Their config.json as ours; what we cannot be is refused by name."""
    causal.refuse(theirs, "scale_attn_by_inverse_layer_idx", "add_cross_attention")
    return gpt.Config(
        size="gpt2",
        vocab=theirs["vocab_size"],
        width=theirs["n_embd"],
        heads=theirs["n_head"],
        layers=theirs["n_layer"],
        inner=theirs.get("n_inner") or 4 * theirs["n_embd"],
        dropout=theirs.get("resid_pdrop", 0.1),
        tied=theirs.get("tie_word_embeddings", True),
        attention=slots.Dense(dropout=theirs.get("attn_pdrop", 0.1), scaled=theirs.get("scale_attn_weights", True)),
        positions=slots.Learned(tokens=theirs["n_positions"]),
        norm=slots.LayerNorm(eps=theirs.get("layer_norm_epsilon", 1e-5)),
        feed=slots.Feed(act=causal.activation(theirs, "activation_function", "gelu_new")),
    )


LAYER: dict[str, str | WeightRule] = {
    "attention.query": transposed("attn.c_attn", 0, 3),
    "attention.key": transposed("attn.c_attn", 1, 3),
    "attention.value": transposed("attn.c_attn", 2, 3),
    "attention.out": transposed("attn.c_proj"),
    "attention_residual.norm": "ln_1",
    "feed.into": transposed("mlp.c_fc"),
    "feed.out": transposed("mlp.c_proj"),
    "feed_residual.norm": "ln_2",
}
PREFIX = "transformer."  # before all names but the head's; files of the bare model go without
COMPUTED = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)  # the causal mask, which older files hold


def names(c: gpt.Config) -> dict[str, str | WeightRule]:
    """Our names to theirs."""
    table = f"{PREFIX}wte.weight"
    head = one_of("lm_head.weight", *((table,) if c.tied else ()))
    outer: dict[str, str | WeightRule] = {"embed.weight": table, "head.weight": head}
    outer |= {"stack.positions.table": f"{PREFIX}wpe", "stack.norm": f"{PREFIX}ln_f"}
    return outer | prefixed("stack.layers.*", f"{PREFIX}h.*", LAYER)


def with_prefix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if any(name.startswith(PREFIX) for name in tensors):
        return dict(tensors)
    return {name if name.startswith("lm_head.") else f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}


def read(path: Path, config: Mapping[str, Any]) -> tuple[gpt.Config, gpt.Model]:
    ours = parse_config(path, config, from_config)
    model = gpt.Model(ours)
    load_weights(model, with_prefix(read_weights(path)), names(ours), COMPUTED)
    return ours, model


def load_predictor(path: Path, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """The writer in a GPT-2 folder."""
    return causal.language_predictor(path, config, overrides, *read(path, config))
