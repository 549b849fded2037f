"""The attention weights of one forward pass, with their tokens."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import UserError
from .draw import draw


@dataclass(frozen=True)
class CrossAttentionView:
    """Attention of an encoder–decoder model."""

    source: list[str]  # input tokens, END last
    target: list[str]  # output tokens, END last
    maps: dict[str, Tensor]  # module path -> (heads, queries, keys)

    def cross(self) -> Tensor:
        """(target, source): the mean over the heads of the second-to-last decoder layer, which aligns best."""
        layers = [weights for path, weights in self.maps.items() if path.endswith(".cross")]
        return layers[max(len(layers) - 2, 0)].mean(0)

    def alignment(self) -> list[int]:
        """The index of the most attended source token for every target token, both without END."""
        weights = self.cross()[: len(self.target) - 1, : len(self.source) - 1]
        best: list[int] = weights.argmax(1).tolist() if weights.numel() else []
        return best

    def save(self, path: Path) -> None:
        """Draw the cross-attention to a PNG file."""
        draw(path, self.cross(), self.target, self.source, "each row: attention of the decoder for that target token")


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
        layers = [each for each in self.maps.values() if each.size(-2) == each.size(-1)]
        return layers[len(layers) // 2].mean(0)

    def save(self, path: Path) -> None:
        """Draw the self-attention to a PNG file."""
        draw(path, self.weights(), self.tokens, self.tokens, "each row: attention of that token")
