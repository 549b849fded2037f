"""BigBird (2007.14062): BERT's wiring with blocks in the attention slot, for texts of thousands of tokens."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ..formats.huggingface.weight_names import WeightRule
from ..parts import slots
from . import bert
from .bert import HEAD_MODULES, LABEL_MODULES, Model

__all__ = ["HEAD_MODULES", "LABEL_MODULES", "SIZES", "Config", "Model"]

Attention = Annotated[slots.Blocks | slots.Dense, Field(discriminator="kind")]


class Config(bert.EncoderConfig):
    family: Literal["bigbird"] = "bigbird"
    attention: Attention = slots.Blocks()
    positions: bert.Positions = slots.Learned(tokens=4096)
    feed: bert.Feed = slots.Feed(act="gelu_tanh")
    acting: ClassVar[bool] = True


SIZES: dict[str, dict[str, Any]] = {
    "tiny": bert.SIZES["tiny"] | {"attention": {"kind": "blocks", "size": 16}},
    "mini": bert.SIZES["mini"] | {"attention": {"kind": "blocks", "size": 32}},
    "small": bert.SIZES["small"],
    "base": bert.SIZES["base"],
    "large": bert.SIZES["large"],
}


# --- Hugging Face BigBird --------------------------------------------------------------------------------------------

ARCHITECTURES = {
    "BigBirdModel": "none",
    "BigBirdForMaskedLM": "words",
    "BigBirdForPreTraining": "words",
    "BigBirdForSequenceClassification": "class",
    "BigBirdForTokenClassification": "tag",
}


def from_huggingface(theirs: Mapping[str, Any], tensors: Collection[str]) -> Config:
    """Their config.json and the names of their tensors, `bert.` left out, as ours. It is to read as theirs does outside
    training, where it draws no blocks."""
    for key in ("is_decoder", "add_cross_attention", "rescale_embeddings"):
        if theirs.get(key):
            raise ValueError(f"{key} is set; regard's BigBird is an encoder without it")
    if not theirs.get("use_bias", True):
        raise ValueError("use_bias is false; expected true")
    kind = theirs.get("attention_type", "block_sparse")
    if kind not in ("block_sparse", "original_full"):
        raise ValueError(f"attention_type is {kind!r}; expected 'block_sparse' or 'original_full'")
    said = bert.shared({"hidden_act": "gelu_new"} | dict(theirs), tensors, ARCHITECTURES)
    said["pooled"] = "pooler.weight" in tensors
    blocks = slots.Blocks(size=theirs.get("block_size", 64), random=theirs.get("num_random_blocks", 3), drawn=False)
    return Config(
        **said,
        next_sentence=bert.FOLLOWS in tensors and said["head"] in ("none", "words"),
        attention=blocks if kind == "block_sparse" else slots.Dense(),
        positions=slots.Learned(tokens=theirs["max_position_embeddings"]),
    )


def names(c: Config) -> dict[str, str | WeightRule]:
    """Our names to theirs, `bert.` left out."""
    head = (
        {"pooler": "classifier.dense", "classes": "classifier.out_proj"} if c.head == "class" else {"pooler": "pooler"}
    )
    return bert.names(c) | head


def unused(c: Config) -> tuple[str, ...]:
    """Tensors that transformers passes over, too, or that belong to a head which this model is not said to have."""
    heads = {
        "cls.predictions": c.head == "words",
        "cls.seq_relationship": c.next_sentence,
        "classifier": bool(c.labels),
    }
    spare = [] if c.tied else [r"cls\.predictions\.bias"]
    spare += [r"pooler\..*"] if c.head == "class" else []  # the head has its own map of the first token
    return (r"embeddings\.position_ids", *spare, *(rf"{name}\..*" for name, wanted in heads.items() if not wanted))
