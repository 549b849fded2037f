"""What one pass of a model looked at."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import UserError
from .draw import draw


@dataclass(frozen=True)
class CrossAttentionView:
    """Of an encoder–decoder."""

    source: list[str]  # pieces read, END last
    target: list[str]  # pieces written, END last
    maps: dict[str, Tensor]  # module path -> (heads, queries, keys)

    def cross(self) -> Tensor:
        """(target, source): the mean over the heads of the decoder layer before the last, where alignment is best."""
        layers = [weights for path, weights in self.maps.items() if path.endswith(".cross")]
        return layers[max(len(layers) - 2, 0)].mean(0)

    def alignment(self) -> list[int]:
        """For every target piece the source piece it looks at most, both without END."""
        weights = self.cross()[: len(self.target) - 1, : len(self.source) - 1]
        best: list[int] = weights.argmax(1).tolist() if weights.numel() else []
        return best

    def save(self, path: Path) -> None:
        draw(path, self.cross(), self.target, self.source, "each row: where the decoder looks as it writes that piece")


@dataclass(frozen=True)
class SelfAttentionView:
    """Of a model that reads one text."""

    pieces: list[str]
    maps: dict[str, Tensor]  # module path -> (heads, queries, keys)

    def __post_init__(self) -> None:
        if not self.maps:
            raise UserError("nothing in this model is attention, so there is nothing to look at; choose another model")

    def weights(self) -> Tensor:
        """(pieces, pieces): the mean over the heads of the middle layer. What a few tokens ask apart is left out."""
        layers = [each for each in self.maps.values() if each.size(-2) == each.size(-1)]
        return layers[len(layers) // 2].mean(0)

    def save(self, path: Path) -> None:
        draw(path, self.weights(), self.pieces, self.pieces, "each row: where the model looks as it reads that piece")
