"""Longformer (2004.05150): BERT's wiring with a window in the attention slot, for texts of thousands of tokens.

Every token attends to its neighbors. The first token, from which classes are predicted, is global: it attends to all
tokens and all attend to it, with projections of its own. `Inputs.global_positions` names further global tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from ..config.merge import Settings
from ..parts import slots
from . import bert
from .bert import Model

__all__ = ["SIZES", "SPEC", "Config", "Model"]

# No positions that add to scores: a window computed in blocks has no table of scores.
Positions = Annotated[slots.Learned | slots.Sinusoid | slots.Rotary, Field(discriminator="kind")]


class Config(bert.EncoderConfig):
    """The settings of a Longformer: a BERT with windowed attention."""

    family: Literal["longformer"] = "longformer"
    attention: slots.Window = slots.Window(globals=1)
    positions: Positions = slots.Learned(tokens=4096)
    norm: bert.Norm = slots.LayerNorm(eps=1e-5)

    @field_validator("attention", mode="before")
    @classmethod
    def _keep_global_token(cls, value: Any) -> Any:
        """Setting only the radius keeps the global token."""
        return {"globals": 1, **value} if isinstance(value, Mapping) else value


def global_class_token(head: str, start: Settings) -> Settings:
    """Classes are read from the first token: it becomes global, though a start for masked words has no global token."""
    added = head == "class" != start.get("model.head") and start.get("model.attention.named")
    return {"model.attention.globals": 1} if added and not start.get("model.attention.globals") else {}


SPEC = replace(bert.SPEC, start_settings=global_class_token)
SIZES: dict[str, dict[str, Any]] = {
    "tiny": bert.SIZES["tiny"] | {"attention": {"radius": 32}},
    "mini": bert.SIZES["mini"] | {"attention": {"radius": 64}},
    "small": bert.SIZES["small"] | {"attention": {"radius": 128}},
    "base": bert.SIZES["base"],
    "large": bert.SIZES["large"],
}
