"""The attention weights of one forward pass, with their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from ..errors import UserError
from .draw import Axis, draw

Which: TypeAlias = int | str | None  # a layer or head, from 1; "all"; None: the layer that a view chooses, the mean


@dataclass(frozen=True)
class CrossAttentionView:
    """Attention of an encoder–decoder model."""

    source: list[str]  # input tokens, END last
    target: list[str]  # output tokens, END last
    maps: dict[str, Tensor]  # module path -> (heads, queries, keys)

    def cross(self) -> Tensor:
        """(target, source): the mean over the heads of the second-to-last decoder layer, which aligns best."""
        return self.cross_layers()[self._best()].mean(0)

    def cross_layers(self) -> list[Tensor]:
        """(heads, target, source) of every decoder layer."""
        return [weights for path, weights in self.maps.items() if path.endswith(".cross")]

    def _best(self) -> int:
        return max(len(self.cross_layers()) - 2, 0)

    def alignment(self) -> list[int]:
        """The index of the most attended source token for every target token, both without END."""
        weights = self.cross()[: len(self.target) - 1, : len(self.source) - 1]
        best: list[int] = weights.argmax(1).tolist() if weights.numel() else []
        return best

    def save(self, path: Path, layer: Which = None, head: Which = None) -> None:
        """Draw the cross-attention to a PNG, PDF or SVG file: that of `cross`, or of these layers and heads."""
        panels = _panels(self.cross_layers(), self._best(), layer, head)
        axes = Axis("target", self.target), Axis("source", self.source)
        draw(path, panels, *axes, "cross-attention", "each row: attention of the decoder for that target token")


@dataclass(frozen=True)
class SelfAttentionView:
    """Attention of a model that reads one text."""

    tokens: list[str]
    maps: dict[str, Tensor]  # module path -> (heads, queries, keys)

    def __post_init__(self) -> None:
        if not self.maps:
            raise UserError("this model has no attention, so there is nothing to look at; choose another model")

    def weights(self) -> Tensor:
        """(tokens, tokens): the mean over the heads of the middle layer, without maps of global queries alone."""
        layers = self._layers()
        return layers[len(layers) // 2].mean(0)

    def _layers(self) -> list[Tensor]:
        return [each for each in self.maps.values() if each.size(-2) == each.size(-1)]

    def save(self, path: Path, layer: Which = None, head: Which = None) -> None:
        """Draw the self-attention to a PNG, PDF or SVG file: that of `weights`, or of these layers and heads."""
        layers = self._layers()
        panels = _panels(layers, len(layers) // 2, layer, head)
        axes = Axis("token", self.tokens), Axis("attended token", self.tokens)
        draw(path, panels, *axes, "self-attention", "each row: attention of that token")


def _panels(layers: Sequence[Tensor], best: int, layer: Which, head: Which) -> list[dict[str, Tensor]]:
    """A row of titled matrices for every layer: one for each head, or the mean over the heads."""
    rows = []
    for number in _numbers("layer", layer, len(layers)) or [best]:
        weights, own = layers[number], {}
        for index in _numbers("head", 1 if head is None and len(weights) == 1 else head, len(weights)):
            own[f"layer {number + 1} of {len(layers)}, head {index + 1} of {len(weights)}"] = weights[index]
        rows.append(own or {f"layer {number + 1} of {len(layers)}, mean of {len(weights)} heads": weights.mean(0)})
    return rows


def _numbers(name: str, wanted: Which, count: int) -> list[int]:
    """The chosen layers or heads, from 0; none for None."""
    if wanted is None:
        return []
    if wanted == "all":
        return list(range(count))
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 1 <= wanted <= count:
        raise UserError(f"{name} is {wanted!r}; expected a number from 1 to {count}, or all")
    return [wanted - 1]
