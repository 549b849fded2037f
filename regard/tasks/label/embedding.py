"""Predictors that embed their items; similarity by the cosine of the vectors."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ...config.run import AnyRun, changed_decode
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import CPU_BATCH_TOKENS, Gather, Head, ModelCall
from ...errors import UserError
from ...families.protocols import EncoderModel, as_module
from ...look import AttentionView, ViewAxis, Which, record_layers
from ...messages.verbs import EmbedRequest, EmbedResult, Similarity, SimilarRequest, SimilarResult
from ...parts import Inputs
from ...parts.pooling import Pooling, pool
from ...processors.base import Array
from ..base import view_title
from ..notices import require_finite, warn_once
from ..predictor import Item, PlainResult, Predictor, RequestType, ResultType
from ..texts import listed
from .results import top_of
from .texts import TextEncoder, Texts


class Embedded(NamedTuple):
    """The vector of an item, and its notices."""

    vector: Tensor  # (width,)
    notices: tuple[str, ...] = ()


class EmbeddingPredictor(Predictor[Item, RequestType, ResultType]):
    """A predictor with a vector for every item."""

    item_name = "text"

    @abstractmethod
    def embed_requests(self, items: Iterable[Item], **decode: object) -> list[EmbedRequest]:
        """The requests for the arguments of `embed`."""

    @abstractmethod
    async def vector(self, request: EmbedRequest) -> Embedded:
        """The coroutine behind `embed`."""

    def embed(self, items: Item | Iterable[Item], /, **decode: object) -> Tensor:
        """A vector for every item, (items, width); one item gives one vector. See decode.pooling, decode.normalize."""
        return embed_items(self, items, decode)

    def similar(
        self, queries: Item | Iterable[Item], others: Item | Iterable[Item] | Tensor, **decode: object
    ) -> PlainResult:
        """For every query the indices of the others and their cosine similarities, best first, at most decode.top.

        `others` may be their vectors of length 1.
        """
        return compare_items(self, queries, others, decode)

    async def answer_embed(self, request: EmbedRequest, emit: Emit | None = None) -> EmbedResult:
        """The vector of an item."""
        return embed_result(await self.vector(request))

    async def answer_similar(self, request: SimilarRequest, emit: Emit | None = None) -> SimilarResult:
        """The ranking of other items."""
        return await rank_others(self, request)


Embedder: TypeAlias = EmbeddingPredictor[Any, Any, Any]

# --- embed -----------------------------------------------------------------------------------------------------------


def embed_items(
    predictor: EmbeddingPredictor[Item, RequestType, ResultType],
    items: Item | Iterable[Item],
    decode: Mapping[str, object],
) -> Tensor:
    """(items, width), or (width,) for one item."""
    single = predictor.is_item(items)
    requests = predictor.embed_requests(listed(items, single), **decode)
    batch = changed_decode(predictor.run, decode).batch if decode else None
    embedded = predictor.run_programs((predictor.vector(request) for request in requests), batch)
    warn_once(chain.from_iterable(one.notices for one in embedded), len(embedded), stacklevel=4)
    if not embedded:
        return torch.zeros(0, predictor.run.model.width)
    vectors = torch.stack([one.vector for one in embedded])
    require_finite([float(vectors.sum())])
    return vectors[0] if single else vectors


def embed_result(embedded: Embedded) -> EmbedResult:
    """A vector as a result."""
    values = tuple(embedded.vector.tolist())
    require_finite(values)
    return EmbedResult(values, notices=embedded.notices)


class PoolingHeads:
    """The passes that pool the states of an encoder into one vector."""

    def __init__(
        self,
        poolings: Iterable[Pooling],
        collate: Callable[[list[Array]], Inputs],
        cost: Callable[[Array], int] = len,
        tokens: int = CPU_BATCH_TOKENS,
    ) -> None:
        self.poolings = tuple(poolings)
        self.heads = {
            (how, normalize): Head(collate, partial(pooled_states, how, normalize), cost, tokens=tokens)
            for how in self.poolings
            for normalize in (False, True)
        }

    def of(self, request: EmbedRequest, pooling: str, normalize: bool) -> Head[Tensor]:
        """The pass of a request; what it leaves out is as given."""
        pooling = pooling if request.pooling is None else request.pooling
        if pooling not in self.poolings:
            raise UserError(f"a request has pooling={pooling!r}; expected {' or '.join(self.poolings)}")
        return self.heads[pooling, normalize if request.normalize is None else request.normalize]


def pooled_states(how: Pooling, normalize: bool, model: EncoderModel, inputs: Inputs) -> Iterable[Tensor]:
    """The pooled states of every row."""
    encoded = model.encode(inputs)
    return pool(encoded.states.float(), encoded.valid, how, normalize).float().cpu()


# --- similar ---------------------------------------------------------------------------------------------------------


def unit_length(run: AnyRun) -> dict[str, object]:
    """The settings of decode.* for vectors of length 1; those of some models always have it."""
    return {"normalize": True} if "normalize" in vars(run.decode) else {}


def compare_items(
    predictor: EmbeddingPredictor[Item, RequestType, ResultType],
    queries: Item | Iterable[Item],
    others: Item | Iterable[Item] | Tensor,
    decode: Mapping[str, object],
) -> PlainResult:
    """The ranking of the others for every query, or for one."""
    if predictor.is_item(queries):
        return compare_items(predictor, listed(queries, True), others, decode)[0]
    decode = {**decode, **unit_length(predictor.run)}
    vectors = _vectors(predictor, others, decode)
    top = int(float(str(decode.get("top", predictor.run.decode.top))))
    return rank_similar(embed_items(predictor, queries, decode), vectors, top)


def _vectors(
    predictor: EmbeddingPredictor[Item, RequestType, ResultType],
    others: Item | Iterable[Item] | Tensor,
    decode: Mapping[str, object],
) -> Tensor:
    """The vectors of the others, which may be given themselves."""
    name, width = predictor.item_name, predictor.run.model.width
    if isinstance(others, Tensor) and others.dim() <= 2:
        if others.dim() < 2 or others.shape[1] != width:
            shape = " × ".join(map(str, others.shape))
            raise UserError(f"the vectors are {shape}; expected {name}s × {width}, as `embed` gives them")
        return others
    vectors = embed_items(predictor, listed(others, predictor.is_item(others)), decode)
    if not len(vectors):
        raise UserError(f"there is no {name} to compare with; give at least one")
    return vectors


async def rank_others(predictor: Embedder, request: SimilarRequest) -> SimilarResult:
    """The ranking of a request."""
    if not request.others:
        raise UserError(f"there is no {predictor.item_name} to compare with; give at least one")
    items = (EmbedRequest(item, normalize=True) for item in (request.item, *request.others))
    embedded = await Gather([predictor.vector(item) for item in items])
    query, *others = (one.vector for one in embedded)
    require_finite([float(query.sum()), *(float(vector.sum()) for vector in others)])
    (ranking,) = rank_similar(query[None], torch.stack(others), top_of(request, predictor.run.decode))
    notices = tuple(chain.from_iterable(one.notices for one in embedded))
    return SimilarResult(tuple(Similarity(*pair) for pair in ranking), notices=notices)


def rank_similar(queries: Tensor, others: Tensor, top: int) -> list[list[tuple[int, float]]]:
    """For every query the indices and cosines of the `top` others, or of all, the most similar first."""
    best = (queries @ others.T).topk(min(top or len(others), len(others)), dim=-1)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [list(zip(indices, cosines, strict=True)) for indices, cosines in rows]


# --- look ------------------------------------------------------------------------------------------------------------


async def encoder_view(
    predictor: Embedder, inputs: Inputs, axis: Callable[[int], ViewAxis], layer: Which, part: nn.Module | None = None
) -> AttentionView:
    """The attention while the model, or a part of it, encodes an input; `axis` of so many positions."""

    def record(model: Any) -> AttentionView:
        with record_layers(as_module(model), layer, part) as recorder:
            positions = model.encode(inputs.to(predictor.device)).states.size(1)
        return AttentionView.recorded(recorder, {"source": axis(positions)}, view_title(predictor.run))

    call: ModelCall[AttentionView] = ModelCall(record)
    return await call


async def text_view(
    predictor: Embedder, texts: TextEncoder, text: str | Texts, layer: Which, part: nn.Module | None = None
) -> AttentionView:
    """The attention while the model reads a text or a pair; a longer one is cut with a warning."""
    (row,) = texts.rows([text])
    axis = ViewAxis.of_tokens("token", texts.tokenizer.tokens(row.tolist()))
    return await encoder_view(predictor, texts.collate([row]), lambda _: axis, layer, part)


def refuse_target(target: str | None, noun: str = "text") -> None:
    """`look` of a model that writes nothing takes no target."""
    if target is not None:
        raise UserError(f"this model generates no text, so it takes no target; give the {noun} alone")
