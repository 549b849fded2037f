"""Hugging Face ViT folders: the tables of config.json, weight names and preprocessor_config.json, and their reader."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from ...families import vit
from ...files import JsonMapping
from .bert import ACTIVATIONS, label_names, read_head
from .config_table import ConfigTable, Field, Fixed, Joint, Only, choice
from .weight_names import WeightRule, prefixed

if TYPE_CHECKING:
    pass

ARCHITECTURES = {"ViTModel": "none", "ViTForImageClassification": "class"}
LAYER = {
    "attention.query": "attention.attention.query",
    "attention.key": "attention.attention.key",
    "attention.value": "attention.attention.value",
    "attention.out": "attention.output.dense",
    "attention_residual.norm": "layernorm_before",
    "feed_residual.norm": "layernorm_after",
    "feed.into": "intermediate.dense",
    "feed.out": "output.dense",
}


def architecture(c: vit.Config) -> str:
    return next(name for name, head in ARCHITECTURES.items() if head == c.head)


CONFIG = ConfigTable(
    (
        Joint(lambda theirs: read_head(theirs, ARCHITECTURES), lambda c: {"architectures": [architecture(c)]}),
        Only("qkv_bias", True, "regard's attention has biases"),
        Field("image", "image_size", 224),
        Field("patch", "patch_size", 16),
        Field("channels", "num_channels", 3),
        Field("width", "hidden_size", 768),
        Field("heads", "num_attention_heads", 12),
        Field("layers", "num_hidden_layers", 12),
        Field("inner", "intermediate_size", 3072),
        Field("dropout", "hidden_dropout_prob", 0.0),
        Fixed("depth_dropout", 0.0),
        Fixed("pool", "first", "expected first: a class token"),
        Fixed("positions", "learned", "expected learned"),
        Fixed("attention.kind", "dense", "expected dense"),
        Fixed("attention.scaled", True, "expected true: ViT scales its scores"),
        Field("attention.dropout", "attention_probs_dropout_prob", 0.0),
        Fixed("feed.kind", "plain", "expected plain"),
        Field("feed.act", "hidden_act", "gelu", **choice("hidden_act", ACTIVATIONS)),
        Fixed("feed.dropout", 0.0),
        Fixed("norm.kind", "layer", "expected layer"),
        Field("norm.eps", "layer_norm_eps", 1e-12),
    )
)


def names(c: vit.Config) -> dict[str, str | WeightRule]:
    """Our tensors to theirs."""
    base = "vit." if c.head == "class" else ""
    table: dict[str, str | WeightRule] = {
        "first": f"{base}embeddings.cls_token",
        "positions.table": f"{base}embeddings.position_embeddings",
        "patches.project": f"{base}embeddings.patch_embeddings.projection",
        "encoder.norm": f"{base}layernorm",
        **prefixed("encoder.layers.*", f"{base}encoder.layer.*", LAYER),
    }
    if c.pooled:
        table["pooler"] = f"{base}pooler.dense"
    if c.head == "class":
        table["classes"] = "classifier"
    return table


def from_huggingface(theirs: JsonMapping, tensors: Collection[str] = ()) -> vit.Config:
    """Our Config of their config.json; the tensors tell whether there is a pooler."""
    settings = CONFIG.read(theirs)
    settings["pooled"] = any(name.endswith("pooler.dense.weight") for name in tensors)
    settings["labels"] = len(label_names(theirs)) if settings["head"] == "class" else 0
    return vit.Config.model_validate(settings)
