"""The beginning of a generation: a cache with the sources of requests, and their prompts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...families.protocols import TokenModel
from ..search.beam import SHAPE_MULTIPLE, OpenCache
from .closed_batch import last_logits
from .requests import SearchRequest, pad_prompts, stack_sources


class Prefill:
    """Reads prompts into caches."""

    def __init__(self, model: TokenModel[Any], context: int | None) -> None:
        self.model, self.context, self.device = model, context, device_of(model)

    def start(self, requests: Sequence[SearchRequest], capacity: int | None) -> OpenCache:
        """A cache that holds the sources and has room for `capacity` tokens of each row; None: it grows."""
        sources = [each.source for each in requests if each.source is not None]
        if not sources:
            cache: OpenCache = self.model.start(None, len(requests), capacity)
            return cache
        longest = max(each.length for each in requests)
        room = min(-longest % SHAPE_MULTIPLE, (self.context or longest + SHAPE_MULTIPLE) - longest)
        if self.device.type != "cuda" or sources[0].modality == "pixels":
            room = 0  # rounded shapes only serve CUDA graphs
        cache = self.model.start(stack_sources(sources, max(room, 0), self.device), len(sources), capacity)
        return cache

    def growing_or_fixed(self, requests: Sequence[SearchRequest], limit: int) -> OpenCache:
        """The cache of a closed batch with at most `limit` new tokens.

        On a GPU it has room for all tokens, in rounded shapes, so that CUDA graphs can be reused. Elsewhere it grows,
        so that attention reads fewer keys.
        """
        if self.device.type != "cuda":
            return self.start(requests, None)
        tokens = max(len(each.prompt) for each in requests) + limit
        return self.start(requests, (tokens // SHAPE_MULTIPLE + 2) * SHAPE_MULTIPLE)

    def read(self, requests: Sequence[SearchRequest], capacity: int | None) -> tuple[OpenCache, Tensor]:
        """A cache that has read the prompts, and the logits of their next tokens (rows, vocab)."""
        cache = self.start(requests, capacity)
        prompt, valid = pad_prompts([each.prompt for each in requests], self.device)
        return cache, last_logits(self.model.step(prompt, cache, valid), valid)


def device_of(model: object) -> torch.device:
    """The device of a model or of the first member of an ensemble."""
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return next((each.device for each in weights), torch.device("cpu"))
