"""Prompts into caches: in groups of similar length, long ones in parts between the steps of the running batch."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...families.protocols import TokenModel, memory_layer
from ..search.beam import SHAPE_MULTIPLE, OpenCache
from .closed_batch import last_logits
from .requests import SearchRequest, pad_prompts, stack_sources

PART, PART_ON_GPU = 128, 1024  # tokens of a long prompt that are read between two steps of the running batch, at most
LEAST = 16  # tokens of a part
SHARE = 0.8  # of the time of a step that a part may take: a token then takes less than twice as long as without
SPREAD, SPARE = 1.25, 8  # prompts of a group are at most so many times as long as the shortest, and so many tokens


class Prefill:
    """Reads prompts into caches."""

    def __init__(self, model: TokenModel[Any], context: int | None) -> None:
        self.model, self.context, self.device = model, context, device_of(model)
        part = PART if self.device.type == "cpu" else PART_ON_GPU
        self.part = part if reads_in_parts(model) else sys.maxsize  # tokens

    def start(self, requests: Sequence[SearchRequest], capacity: int | None) -> OpenCache:
        """A cache that holds the sources and has room for `capacity` tokens of each row; None: it grows."""
        sources = [request.source for request in requests if request.source is not None]
        if not sources:
            cache: OpenCache = self.model.start(None, len(requests), capacity)
            return cache
        longest = max(request.length for request in requests)
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
        tokens = max(len(request.prompt) for request in requests) + limit
        return self.start(requests, (tokens // SHAPE_MULTIPLE + 2) * SHAPE_MULTIPLE)

    def read(self, requests: Sequence[SearchRequest], capacity: int | None) -> tuple[OpenCache, Tensor]:
        """A cache that has read the prompts, and the logits of their next tokens (rows, vocab)."""
        cache = self.start(requests, capacity)
        prompt, valid = pad_prompts([request.prompt for request in requests], self.device)
        return cache, last_logits(self.model.step(prompt, cache, valid), valid)


class LongPrompt:
    """A prompt that is read in parts, into a cache of its own."""

    cache: OpenCache

    def __init__(self, prefill: Prefill, request: SearchRequest, capacity: int | None) -> None:
        self.prefill, self.request, self.capacity, self.read = prefill, request, capacity, 0
        self.token_seconds = 0.0  # the time of a token of the last part

    def read_part(self, step_seconds: float) -> Tensor | None:
        """Read the next part; the logits (1, vocab) of the token after the prompt, or None if parts remain.

        It is small enough not to hold up a running batch, whose steps take so many seconds; 0: none runs.
        """
        if not self.read:
            self.cache = self.prefill.start([self.request], self.capacity)
        size = self.prefill.part
        if step_seconds and self.prefill.device.type == "cpu":  # a GPU does not say how long it takes
            fitting = int(SHARE * step_seconds / self.token_seconds) if self.token_seconds else LEAST
            size = min(max(fitting, LEAST), size)
        part, begin = self.request.prompt[self.read : self.read + size], time.perf_counter()
        tokens = torch.tensor([part], device=self.prefill.device)
        logits: Tensor = self.prefill.model.step(tokens, self.cache, None)
        self.read += len(part)
        self.token_seconds = (time.perf_counter() - begin) / len(part)
        return logits[:, -1] if self.read == len(self.request.prompt) else None


def reads_in_parts(module: object) -> bool:
    """False for a memory of limited length: the first token of a part would attend to less than within a whole text."""
    makers = (getattr(member, "new_memory", None) for member in getattr(module, "members", (module,)))
    memories = (memory for maker in makers if maker is not None and (memory := maker(1)) is not None)
    return all(memory_layer(memory).tokens is None for memory in memories)


def groups_by_length(requests: Sequence[SearchRequest]) -> list[list[int]]:
    """Requests of similar length by their numbers: a short one is not padded to the length of a long one."""
    lengths = [(request.length, len(request.prompt)) for request in requests]
    groups: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        shortest = lengths[groups[-1][0]] if groups else (0, 0)
        pairs = zip(lengths[number], shortest, strict=True)
        if groups and all(length <= SPREAD * least + SPARE for length, least in pairs):
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def device_of(model: object) -> torch.device:
    """The device of a model or of the first member of an ensemble."""
    weights = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return next((weight.device for weight in weights), torch.device("cpu"))
