"""Longformer (2004.05150): BERT's wiring with a window in the attention slot, for texts of thousands of tokens.

Every token sees its neighbours. The first token, of which a class is told, sees all and is seen by all, and asks with
projections of its own; `Mask.globals` names other such positions.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from ..formats.huggingface.weight_names import WeightRule, one_of, prefixed, skip_rows
from ..parts import slots
from . import bert
from .bert import HEAD_MODULES, LABEL_MODULES, Model

__all__ = ["HEAD_MODULES", "LABEL_MODULES", "SIZES", "Config", "Model"]

# Positions that add to scores are not among them: a window in blocks has no table of scores to add to.
Positions = Annotated[slots.Learned | slots.Sinusoid | slots.Rotary, Field(discriminator="kind")]


class Config(bert.EncoderConfig):
    family: Literal["longformer"] = "longformer"
    attention: slots.Window = slots.Window(globals=1)
    positions: Positions = slots.Learned(tokens=4096)
    norm: bert.Norm = slots.LayerNorm(eps=1e-5)

    @field_validator("attention", mode="before")
    @classmethod
    def _seen_by_all(cls, value: Any) -> Any:
        """Who sets the radius alone keeps the global token."""
        return {"globals": 1, **value} if isinstance(value, Mapping) else value


SIZES: dict[str, dict[str, Any]] = {
    "tiny": bert.SIZES["tiny"] | {"attention": {"radius": 32}},
    "mini": bert.SIZES["mini"] | {"attention": {"radius": 64}},
    "small": bert.SIZES["small"] | {"attention": {"radius": 128}},
    "base": bert.SIZES["base"],
    "large": bert.SIZES["large"],
}


# --- Hugging Face Longformer -----------------------------------------------------------------------------------------

ARCHITECTURES = {
    "LongformerModel": "none",
    "LongformerForMaskedLM": "words",
    "LongformerForSequenceClassification": "class",
    "LongformerForTokenClassification": "tag",
}


def from_huggingface(theirs: Mapping[str, Any], tensors: Collection[str]) -> Config:
    """Their config.json and the names of their tensors, `longformer.` left out, as ours.

    As there, only the head class makes the first token global by itself. `attention_window` is twice the radius.
    """
    said = bert.shared(theirs, tensors, ARCHITECTURES)
    if said["head"] == "words" and said["feed"].act != "gelu":
        raise ValueError(f"hidden_act is {theirs['hidden_act']!r}; expected 'gelu', which the head always has")
    wide = theirs.get("attention_window", 512)
    windows = [wide] * said["layers"] if isinstance(wide, int) else wide
    if any(each < 2 or each % 2 for each in windows):
        raise ValueError(f"attention_window is {wide}; expected even numbers, twice the radius")
    radii = tuple(each // 2 for each in windows)
    return Config(
        **said,
        attention=slots.Window(
            radius=radii[0] if len(set(radii)) == 1 else radii,
            globals=theirs.get("regard", {}).get("globals", int(said["head"] == "class")),  # a folder of ours says it
            named=True,
        ),
        positions=slots.Learned(tokens=theirs["max_position_embeddings"] - skipped(theirs)),
    )


def skipped(theirs: Mapping[str, Any]) -> int:
    """Rows at the top of their table of positions that no token has: it is counted from behind the padding."""
    return int(theirs.get("pad_token_id", 1)) + 1


def names(c: Config, skip: int = 2) -> dict[str, str | WeightRule]:
    """Our names to theirs, `longformer.` left out."""
    sides = {"near": "", "wide": "_global"}
    own: dict[str, str | WeightRule] = {
        f"{ours}.{part}": f"{part}{end}" for ours, end in sides.items() for part in ("query", "key", "value")
    }
    table = "embeddings.word_embeddings.weight"
    head: dict[str, str | WeightRule] = {
        "words.into": "lm_head.dense",
        "words.norm": "lm_head.layer_norm",
        "words.out.weight": one_of("lm_head.decoder.weight", *([table] if c.tied else [])),
        "words.out.bias": one_of(*(["lm_head.bias"] if c.tied else []), "lm_head.decoder.bias"),
        "encoder.positions.table.weight": skip_rows("embeddings.position_embeddings.weight", skip),
    }
    if c.head == "class":
        head |= {"pooler": "classifier.dense", "classes": "classifier.out_proj"}
    return bert.names(c) | prefixed("encoder.layers.*.attention", "encoder.layer.*.attention.self", own) | head


def unused(c: Config) -> tuple[str, ...]:
    """Tensors that transformers passes over, too, or that belong to a head which this model is not said to have."""
    heads = {"lm_head": c.head == "words", "classifier": bool(c.labels)}
    spare = [] if c.tied else [r"lm_head\.bias"]  # the decoder then has one of its own
    spare += [r"pooler\..*"] if c.head == "class" else []  # the head has its own map of the first token
    return (r"embeddings\.position_ids", *spare, *(rf"{name}\..*" for name, wanted in heads.items() if not wanted))
