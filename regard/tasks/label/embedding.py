"""Predictors that embed their items; similarity by the cosine of the vectors."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Gather, ModelCall
from ...errors import UserError
from ...families.protocols import as_module
from ...look import AttentionView, ViewAxis, Which, record_layers
from ...messages.verbs import EmbedRequest, EmbedResult, Similarity, SimilarRequest, SimilarResult
from ...parts import Inputs
from ..base import view_title
from ..notices import require_finite, warn_once
from ..predictor import Item, PlainResult, Predictor, RequestType, ResultType
from .results import top_of


class Embedded(NamedTuple):
    """The vector of an item, and its notices."""

    vector: Tensor  # (width,)
    notices: tuple[str, ...] = ()


class EmbeddingPredictor(Predictor[Item, RequestType, ResultType]):
    """A predictor with a vector for every item."""

    item_name = "text"

    @abstractmethod
    def embed_requests(self, items: Iterable[Any], **decode: object) -> list[EmbedRequest]:
        """The requests for the arguments of `embed`."""

    @abstractmethod
    async def vector(self, request: EmbedRequest) -> Embedded:
        """The coroutine behind `embed`."""

    def embed(self, items: Any, /, **decode: object) -> Tensor:
        """A vector for every item, (items, width); one item gives one vector. See decode.normalize."""
        single = self.is_item(items)
        requests = self.embed_requests([items] if single else items, **decode)
        embedded = self.run_programs(self.vector(request) for request in requests)
        warn_once(chain.from_iterable(one.notices for one in embedded), len(embedded))
        vectors = torch.stack([one.vector for one in embedded] or [torch.zeros(self.run.model.width)])
        require_finite([float(vectors.sum())])
        return vectors[0] if single else vectors[: len(embedded)]

    async def answer_embed(self, request: EmbedRequest, emit: Emit | None = None) -> EmbedResult:
        """The vector of an item."""
        vector, notices = await self.vector(request)
        values = tuple(vector.tolist())
        require_finite(values)
        return EmbedResult(values, notices=notices)

    def similar(self, queries: Any, others: Any, **decode: object) -> PlainResult:
        """For every query the indices of the others and their cosine similarities, best first, at most decode.top.

        `others` may be their vectors of length 1.
        """
        if self.is_item(queries):
            return self.similar([queries], others, **decode)[0]
        vectors = self._vectors(others, decode)
        top = int(float(str(decode.get("top", self.run.decode.top))))
        return rank_similar(self.embed(queries, **decode, normalize=True), vectors, top)

    async def answer_similar(self, request: SimilarRequest, emit: Emit | None = None) -> SimilarResult:
        """The ranking of other items."""
        if not request.others:
            raise UserError(f"there is no {self.item_name} to compare with; give at least one")
        items = (EmbedRequest(item, normalize=True) for item in (request.item, *request.others))
        embedded = await Gather([self.vector(item) for item in items])
        query, *others = (one.vector for one in embedded)
        (ranking,) = rank_similar(query[None], torch.stack(others), top_of(request, self.run.decode))
        notices = tuple(chain.from_iterable(one.notices for one in embedded))
        return SimilarResult(tuple(Similarity(*pair) for pair in ranking), notices=notices)

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

    async def encoder_view(
        self, inputs: Inputs, axis: Callable[[int], ViewAxis], layer: Which, reader: nn.Module | None = None
    ) -> AttentionView:
        """The attention while the model, or its part `reader`, encodes an input; `axis` of so many positions."""

        def record(model: Any) -> AttentionView:
            with record_layers(as_module(model), layer, reader) as recorder:
                positions = model.encode(inputs.to(self.device)).states.size(1)
            return AttentionView.recorded(recorder, {"source": axis(positions)}, view_title(self.run))

        call: ModelCall[AttentionView] = ModelCall(record)
        return await call


def rank_similar(queries: Tensor, others: Tensor, top: int) -> list[list[tuple[int, float]]]:
    """For every query the indices and cosines of the `top` others, or of all, the most similar first."""
    best = (queries @ others.T).topk(min(top or len(others), len(others)), dim=-1)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [list(zip(indices, cosines, strict=True)) for indices, cosines in rows]


def refuse_target(target: str | None, noun: str = "text") -> None:
    """`look` of a model that writes nothing takes no target."""
    if target is not None:
        raise UserError(f"this model generates no text, so it takes no target; give the {noun} alone")
