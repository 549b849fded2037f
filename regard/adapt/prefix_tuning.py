"""Prefix tuning (2101.00190): learned keys and values before those of the text, in every self-attention layer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..config.tuning import Prefix
from ..parts import Cache, Encoded, Inputs
from .injection import Injection
from .virtual_tokens import (
    KeyValues,
    Method,
    VirtualTokens,
    check_keeps_prefix,
    check_reads_forward,
    initial_tokens,
    noise_for,
    shift_positions,
    start_method,
)


class PrefixParameters(nn.Module):
    """The prefix of one layer."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        super().__init__()
        self.key, self.value = nn.Parameter(k), nn.Parameter(v)  # (heads, length, head_width)


class PrefixTuning(VirtualTokens):
    """The prefixes of all layers, by the path of their attention."""

    def key_values(self, path: str) -> KeyValues:
        parts = [self.get_submodule(f"{path}.layers.{i}.attention") for i in range(len(self.stacks[path].layers))]
        return [(part.key[None], part.value[None]) for part in parts]  # type: ignore[index]

    @torch.no_grad()
    def fill(self, model: nn.Module, cache: Cache) -> None:
        """Write the prefix into an empty cache."""
        (path,) = (path for path, stack in self.stacks.items() if stack.causal)
        rows = len(cache.lengths)
        cache.advance(cache.next_mask(torch.zeros(rows, self.length, dtype=torch.long, device=cache.lengths.device)))
        for layer, both in zip(cache.layers, self.key_values(path), strict=True):
            layer.append(*(tensor.expand(rows, -1, -1, -1) for tensor in both))
        cache.keep_prefix(self.length)


def install(model: nn.Module, settings: Prefix, init_tokens: Sequence[int]) -> Injection:
    """Give every self-attention a prefix, initialized by the keys and values of `init_tokens` or noise."""
    check_keeps_prefix(model, "prefix")
    noise = noise_for(model, "prefix")
    check_reads_forward(model, "prefix")
    injection = PrefixTuning("prefix", model, settings.length)
    for path, stack in injection.stacks.items():
        injection.add_handles(stack.register_forward_pre_hook(partial(injection.supply_cache, path), with_kwargs=True))
    tokens = noise or [Inputs("tokens", initial_tokens(model, settings.length, init_tokens))]
    with injection.capture() as captures, torch.no_grad(), _eval_mode(model):
        model(*tokens * (injection.has_encoder + injection.has_decoder))
    for path, cache in captures.items():
        for i, both in enumerate(cache.key_values()):
            k, v = (kv[0] if kv.size(2) == settings.length else _repeat_to(kv[0], settings.length) for kv in both)
            injection.attach(f"{path}.layers.{i}.attention", PrefixParameters(k.clone(), v.clone()))
    if not noise:  # images have no positions to move
        injection.replace_methods(model, _methods(injection))
    return injection


def _repeat_to(values: Tensor, length: int) -> Tensor:
    """The first `length` keys or values of (heads, tokens, head_width), repeated if there are fewer."""
    return values[:, torch.arange(length) % values.size(1)]


def _methods(injection: PrefixTuning) -> dict[str, Method]:
    """The methods that read texts, which start after the prefix; a passed cache contains the prefix already."""
    original: Any = injection.original_class

    def encode(model: Any, text: Inputs) -> Encoded:
        encoded: Encoded = original.encode(model, shift_positions(text, model.tune.length))
        return encoded

    def decode_target(model: Any, target: Inputs, encoded: Encoded) -> Tensor:
        states: Tensor = original.decode(model, shift_positions(target, model.tune.length), encoded)
        return states

    def decode_text(model: Any, text: Inputs, memory: Cache | None = None) -> Tensor:
        text = shift_positions(text, model.tune.length) if memory is None else text
        states: Tensor = original.decode(model, text, memory)
        return states

    encoder = {"encode": encode} if injection.has_encoder else {}
    decode = decode_target if injection.has_encoder else decode_text
    return encoder | ({"decode": decode, "start": start_method(injection)} if injection.has_decoder else {})


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
