"""BigBird (2007.14062): BERT's wiring with block-sparse attention, for texts of thousands of tokens."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ..parts import slots
from . import bert
from .bert import SPEC, Model

__all__ = ["SIZES", "SPEC", "Config", "Model"]

Attention = Annotated[slots.Blocks | slots.Dense, Field(discriminator="kind")]


class Config(bert.EncoderConfig):
    """The settings of a BigBird: a BERT with block-sparse attention."""

    family: Literal["bigbird"] = "bigbird"
    attention: Attention = slots.Blocks()
    positions: bert.Positions = slots.Learned(tokens=4096)
    feed: bert.Feed = slots.Feed(act="gelu_tanh")
    pool_with_act: ClassVar[bool] = True


SIZES: dict[str, dict[str, Any]] = {
    "tiny": bert.SIZES["tiny"] | {"attention": {"kind": "blocks", "size": 16}},
    "mini": bert.SIZES["mini"] | {"attention": {"kind": "blocks", "size": 32}},
    "small": bert.SIZES["small"],
    "base": bert.SIZES["base"],
    "large": bert.SIZES["large"],
}
