"""Predictors that embed their items; similarity by the cosine of the vectors."""

from abc import abstractmethod
from typing import Any

from torch import Tensor

from ...errors import UserError
from ..predictor import Item, PlainResult, Predictor, RequestType, ResultType


class EmbeddingPredictor(Predictor[Item, RequestType, ResultType]):
    """A predictor with a vector for every item."""

    item_name = "text"

    @abstractmethod
    def embed(self, items: Any, /, **decode: object) -> Tensor:
        """A vector for every item, (items, width); one item gives one vector."""

    def similar(self, queries: Any, others: Any, **decode: object) -> PlainResult:
        """For every query the indices of the others and their cosine similarities, best first, at most decode.top.

        `others` may be their vectors of length 1.
        """
        if self.is_item(queries):
            return self.similar([queries], others, **decode)[0]
        vectors = self._vectors(others, decode)
        top = int(float(str(decode.get("top", self.run.decode.top)))) or len(vectors)
        best = (self.embed(queries, **decode, normalize=True) @ vectors.T).topk(min(top, len(vectors)), dim=-1)
        return [
            list(zip(indices, cosines, strict=True))
            for indices, cosines in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def _vectors(self, others: Any, decode: dict[str, object]) -> Tensor:
        if isinstance(others, Tensor) and others.dim() <= 2:
            if others.dim() < 2 or others.shape[1] != self.run.model.width:
                shape = " × ".join(map(str, others.shape))
                expected = f"{self.item_name}s × {self.run.model.width}"
                raise UserError(f"the vectors are {shape}; expected {expected}, as `embed` gives them")
            return others
        vectors = self.embed([others] if self.is_item(others) else others, **decode, normalize=True)
        if not len(vectors):
            raise UserError(f"there is no {self.item_name} to compare with; give at least one")
        return vectors
