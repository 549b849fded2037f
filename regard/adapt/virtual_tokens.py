"""Virtual tokens before every text, shared by prompt tuning and prefix tuning.

The text follows the virtual tokens: its positions begin at `length`. For a causal model they are earlier tokens. While
it generates, its cache contains the keys and values of the prefix, or those computed from the prompt.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import UserError
from ..parts import Cache, Cross, Inputs, LayerCache, Mask, PositionTerms, Stack
from ..parts.cache.base import CacheLayout
from ..parts.cache.slots import DenseLayout
from ..parts.masks import ANY_SEGMENT
from .injection import Injection, unsupported_tuning

STACK_ARGUMENTS = ("x", "mask", "cross", "cache", "position_terms")
KeyValues = list[tuple[Tensor, Tensor]]  # keys and values of every layer, (1, heads, length, head_width)
StackInput = Tensor | Mask | Cross | Cache | PositionTerms | None
Method = Callable[..., Any]  # of a model class
Arguments = dict[str, Any]  # of a call, by name


class PrefixKV(LayerCache):
    """Keys and values that precede those of the text."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        prefix = (tensor.to(k.dtype).expand(len(k), -1, -1, -1) for tensor in (self.k, self.v))
        all_k, all_v = (torch.cat(both, 2) for both in zip(prefix, (k, v), strict=True))
        return all_k, all_v


class PrefixLayout(CacheLayout):
    """Makes the prefix visible to every position of the text, in every packed segment."""

    def __init__(self, length: int) -> None:
        self.length = length

    def advance(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.positions is not None
        prefix = torch.arange(self.length, device=mask.positions.device).expand(len(mask.positions), -1)
        fields = {"key_positions": torch.cat([prefix, mask.positions], 1)}
        if mask.key_valid is not None:
            fields["key_valid"] = F.pad(mask.key_valid, (self.length, 0), value=True)
        if mask.segments is not None:
            fields["key_segments"] = F.pad(mask.segments, (self.length, 0), value=ANY_SEGMENT)
        return mask, mask.replace(**fields)


class CaptureKV(LayerCache):
    """Captures the keys and values of a layer; changes nothing."""

    k: Tensor
    v: Tensor

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k, self.v = k, v
        return k, v


class CaptureCache(Cache):
    """A cache of `CaptureKV`. It tracks no positions, so the mask passes unchanged."""

    def advance(self, mask: Mask) -> list[tuple[Mask, Mask]]:
        return [(mask, mask)] * len(self.layers)

    def key_values(self) -> KeyValues:
        return [(layer.k, layer.v) for layer in self.layers if isinstance(layer, CaptureKV)]


class VirtualTokens(Injection):
    """Base of prompt and prefix tuning. It replaces methods of the model, so that texts start at position `length`."""

    def __init__(self, kind: str, model: nn.Module, length: int) -> None:
        super().__init__(kind)
        self.length, self.original_class = length, type(model)
        self.stacks = {path: module for path, module in model.named_modules() if isinstance(module, Stack)}
        self.has_encoder = any(not stack.causal for stack in self.stacks.values())
        self.has_decoder = any(stack.causal for stack in self.stacks.values())
        self._captures: dict[int, dict[str, CaptureCache]] = {}  # by thread

    def key_values(self, path: str) -> KeyValues:
        """The keys and values to put before the text in the stack at `path`."""
        raise NotImplementedError

    def replace_methods(self, model: nn.Module, methods: Mapping[str, Method | property]) -> None:
        """Give the model a subclass with these methods until the injection is removed."""
        original: Any = self.original_class
        namespace = {"__module__": original.__module__, **methods}
        if hasattr(original, "context"):
            namespace["context"] = property(lambda tuned: _shorten(original.context.fget(tuned), self.length))
        model.__class__ = type(original.__name__, (original,), namespace)

    def remove(self, model: nn.Module) -> None:
        super().remove(model)
        model.__class__ = self.original_class

    def supply_cache(
        self, path: str, stack: Stack, arguments: tuple[StackInput, ...], named: Arguments
    ) -> tuple[tuple[()], Arguments]:
        """Forward pre-hook of a stack: a call without a cache gets one that holds the virtual tokens."""
        call: Arguments = {**dict(zip(STACK_ARGUMENTS, arguments, strict=False)), **named}
        if call.get("cache") is None:
            x, mask = call["x"], call["mask"]
            call["cache"] = self._cache(path, x)
            if (
                mask.positions is None and thread_key() not in self._captures
            ):  # of images; positions give the number of keys
                places = torch.arange(self.length, self.length + x.size(1), device=x.device)
                call["mask"] = mask.replace(positions=places.expand(len(x), -1))
        return (), call

    def _cache(self, path: str, x: Tensor) -> Cache:
        if (captures := self._captures.get(thread_key())) is None:
            layout, layers = PrefixLayout(self.length), [PrefixKV(k, v) for k, v in self.key_values(path)]
            return Cache(len(x), x.device, list(layers), [layout] * len(layers))
        capture = CaptureCache(len(x), x.device, [CaptureKV() for _ in self.stacks[path].layers])
        captures[path] = capture
        return capture

    @contextmanager
    def capture(self) -> Iterator[dict[str, CaptureCache]]:
        """In this context texts get no virtual tokens; the dict collects the keys and values by stack."""
        key = thread_key()
        captures: dict[str, CaptureCache] = {}
        self._captures[key] = captures
        try:
            yield captures
        finally:
            del self._captures[key]

    def text_only(self, path: str, weights: Tensor) -> Tensor:
        return weights if path.endswith(".cross") else weights[..., self.length :]


def thread_key() -> int:
    """The key of data that a call leaves for its hooks: threads may share a model. Compiled code has one key."""
    return 0 if torch.compiler.is_compiling() else get_ident()


def _shorten(context: int | None, length: int) -> int | None:
    return None if context is None else max(context - length, 0)


def shift_positions(text: Inputs, length: int) -> Inputs:
    """The text with all positions moved by `length`."""
    values, positions = text.values, text.positions
    positions = torch.arange(values.size(1), device=values.device)[None] if positions is None else positions
    return replace(text, positions=positions + length)


def start_method(injection: VirtualTokens) -> Method:
    """The method `start`, whose cache holds the virtual tokens already."""
    original: Any = injection.original_class

    def start(model: Any, source: Inputs | None, rows: int, capacity: int | None = None) -> Cache:
        room = None if capacity is None else capacity + model.tune.length
        cache: Cache = original.start(model, source, rows, room)
        model.tune.fill(model, cache)
        return cache

    return start


def check_has_stack(model: nn.Module, kind: str) -> None:
    """Refuse a model without a stack of layers."""
    if not any(isinstance(module, Stack) for module in model.modules()):
        raise unsupported_tuning(kind, "it has no attention layers")


def check_reads_forward(model: nn.Module, kind: str) -> None:
    """Check that a decoder with cross-attention is causal: only then does a prefix come before the text."""
    for stack in model.modules():
        if isinstance(stack, Stack) and not stack.causal and any(layer.cross is not None for layer in stack.layers):
            raise unsupported_tuning(kind, "its decoder writes all tokens at once, so nothing comes before them")


def check_keeps_prefix(model: nn.Module, kind: str) -> None:
    """Check that all attention is dense: only dense attention can take keys before the text, and keep them."""
    check_has_stack(model, kind)
    for layer in (layer for stack in model.modules() if isinstance(stack, Stack) for layer in stack.layers):
        kernel = getattr(layer.attention, "kernel", None)
        if kernel is None or not kernel.biasable or not issubclass(layer.attention.cache_layout(None)[0], DenseLayout):
            name = type(layer.attention if kernel is None else kernel).__name__
            raise unsupported_tuning(kind, f"its attention ({name}) does not keep every key, so a prefix would be lost")


def noise_for(model: nn.Module, kind: str) -> list[Inputs]:
    """Noise for a model that reads images with one encoder; none for models of texts."""
    make = getattr(model, "random_inputs", None)
    if make is None:
        return []
    if sum(isinstance(module, Stack) for module in model.modules()) > 1:
        raise unsupported_tuning(kind, "its attention has positions for its own inputs only")
    noise: list[Inputs] = make(1)
    return noise


def initial_tokens(model: nn.Module, length: int, tokens: Sequence[int]) -> Tensor:
    """(1, length): `tokens` repeated, or random tokens of the vocabulary if there are none."""
    tables = [child for child in model.children() if isinstance(child, nn.Embedding)]
    if not tables:
        raise UserError("the model has no token embedding to put virtual tokens before; use tune.kind=lora or adapter")
    device = tables[0].weight.device
    if not tokens:
        return torch.randint(min(table.num_embeddings for table in tables[:2]), (1, length), device=device)
    return torch.tensor([[tokens[i % len(tokens)] for i in range(length)]], device=device)
