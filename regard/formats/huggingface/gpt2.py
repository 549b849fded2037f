"""GPT-2 folders: the tables of config.json and weight names.

GPT-2 is the family `gpt` under other names, with transposed matrices and query, key and value fused in one.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from ...families import gpt
from ...files import JsonMapping, JsonObject
from .causal import UNQUANTIZED, CausalFolder, CausalProcessors, causal_export
from .config_table import ACTIVATIONS, ConfigTable, Field, Fixed, Joint, Limit, Only, choice, one_class, present
from .format import HuggingFaceFormat, Tensors, WeightTable
from .weight_names import WeightRule, add_prefixes, any_of, transposed

if TYPE_CHECKING:
    from ...tasks.language.task import LanguagePredictor

# --- config.json -----------------------------------------------------------------------------------------------------


def read_inner(theirs: JsonMapping) -> JsonObject:
    """The width of the feed-forward from their config."""
    return {"inner": theirs.get("n_inner") or 4 * theirs["n_embd"]}


def write_dropout(c: gpt.Config) -> JsonObject:
    """Their three keys from the dropout."""
    return {"resid_pdrop": c.dropout, "embd_pdrop": c.dropout}


def refuse_shared_keys(c: gpt.Config) -> str | None:
    """Why shared key heads have no place in this format."""
    if c.key_heads in (0, c.heads):
        return None
    return f"model.key_heads={c.key_heads} (expected model.heads={c.heads} for GPT-2)"


def refuse_head_width(c: gpt.Config) -> str | None:
    """Why another width of heads has no place in this format."""
    if (c.head_width or c.width // c.heads) * c.heads == c.width:
        return None
    return f"model.head_width={c.head_width} (expected model.width / model.heads for GPT-2)"


WITHOUT = "regard reads gpt2 folders without it"
CONFIG = ConfigTable(
    (
        one_class("GPT2LMHeadModel", required=False),
        UNQUANTIZED,
        Only("scale_attn_by_inverse_layer_idx", False, WITHOUT, written=False),
        Only("add_cross_attention", False, WITHOUT, written=False),
        Field("vocab", "vocab_size"),
        Field("width", "n_embd"),
        Field("heads", "n_head"),
        Field("layers", "n_layer"),
        Joint(read_inner, lambda c: {"n_inner": c.inner}),
        Joint(lambda theirs: {"dropout": present(theirs, "resid_pdrop", 0.1)}, write_dropout),
        Fixed("head_dropout", 0.0),
        Field("tied", "tie_word_embeddings", True),
        Fixed("biased", True),  # the export adds biases of zeros
        Fixed("attention.kind", "dense", "expected dense for GPT-2"),
        Field("attention.dropout", "attn_pdrop", 0.1),
        Field("attention.scaled", "scale_attn_weights", True),
        Fixed("positions.kind", "learned", "expected learned for GPT-2"),
        Field("positions.tokens", "n_positions"),
        Fixed("norm.kind", "layer", "expected layer for GPT-2"),
        Field("norm.eps", "layer_norm_epsilon", 1e-5),
        Fixed("feed.kind", "plain", "expected plain for GPT-2"),
        Field("feed.act", "activation_function", "gelu_new", **choice("activation_function", ACTIVATIONS)),
        Fixed("feed.dropout", 0.0),
        Limit(refuse_shared_keys),
        Limit(refuse_head_width),
    )
)


# --- weights ---------------------------------------------------------------------------------------------------------

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
PREFIX = "transformer."  # of all names except the head's; files of the bare model have none
COMPUTED = (r"transformer\.h\.\d+\.attn\.(masked_)?bias",)  # the causal mask, which older files hold


def names(c: gpt.Config) -> dict[str, str | WeightRule]:
    """Our weight names to theirs."""
    table = f"{PREFIX}wte.weight"
    head = any_of("lm_head.weight", *((table,) if c.tied else ()))
    outer: dict[str, str | WeightRule] = {"embed.weight": table, "head.weight": head}
    outer |= {"stack.positions.table": f"{PREFIX}wpe", "stack.norm": f"{PREFIX}ln_f"}
    return outer | add_prefixes("stack.layers.*", f"{PREFIX}h.*", LAYER)


def with_prefix(tensors: Tensors, theirs: JsonMapping) -> Tensors:
    """The tensors of a file, with the prefix added if the file holds the bare model."""
    if any(name.startswith(PREFIX) for name in tensors):
        return tensors
    return {name if name.startswith("lm_head.") else f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}


def without_tied_head(tensors: Tensors, predictor: "LanguagePredictor") -> Tensors:
    """The tensors without a head that is the embedding table."""
    c: gpt.Config = predictor.run.model
    return {name: tensor for name, tensor in tensors.items() if not c.tied or name != "lm_head.weight"}


def with_biases(model: nn.Module, c: gpt.Config) -> tuple[nn.Module, gpt.Config]:
    """The same function with biases of zeros, which GPT-2 has everywhere."""
    state, twin = model.state_dict(), gpt.Model(c := c.model_copy(update={"biased": True}))
    zeros = {name: torch.zeros_like(tensor) for name, tensor in twin.state_dict().items()}
    twin.load_state_dict(zeros | state)
    return twin, c


FORMAT: "HuggingFaceFormat[LanguagePredictor, CausalFolder]" = HuggingFaceFormat(
    "a GPT-2 folder",
    "gpt",
    {"gpt2": CONFIG},
    WeightTable(names, lambda c: COMPUTED, with_prefix, without_tied_head, with_biases),
    CausalProcessors(),
    causal_export(lambda c: "gpt2"),
    size="gpt2",
)
