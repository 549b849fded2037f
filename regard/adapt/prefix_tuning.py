"""Prefix tuning (2101.00190): learned keys and values before those of the text, in every self-attention layer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from ..config.schema import Prefix
from ..parts import Cache, Mask
from .injection import Injection
from .virtual_tokens import (
    KeyValues,
    Method,
    VirtualTokens,
    argument_binder,
    check_keeps_prefix,
    initial_tokens,
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
            layer.append(*(each.expand(rows, -1, -1, -1) for each in both))
        cache.keep_prefix(self.length)


def install(model: nn.Module, settings: Prefix, init_tokens: Sequence[int]) -> Injection:
    """Give every self-attention a prefix. It starts as the model's own keys and values of `init_tokens`."""
    check_keeps_prefix(model, "prefix")
    injection = PrefixTuning("prefix", model, settings.length)
    for path, stack in injection.stacks.items():
        injection.add_handles(stack.register_forward_pre_hook(partial(injection.supply_cache, path), with_kwargs=True))
    required = [each for each in signature(model.forward).parameters.values() if each.default is each.empty]
    tokens = initial_tokens(model, settings.length, init_tokens)
    with injection.capture() as captures, torch.no_grad(), _eval_mode(model):
        model(*[tokens] * len(required))
    for path, cache in captures.items():
        for i, (k, v) in enumerate(cache.key_values()):
            injection.attach(f"{path}.layers.{i}.attention", PrefixParameters(k[0].clone(), v[0].clone()))
    injection.replace_methods(model, {**_reading_methods(injection), **start_method(injection)})
    return injection


def _reading_methods(injection: PrefixTuning) -> dict[str, Method]:
    """`encode` and `decode`: without a cache the text starts after the prefix; a given cache holds the prefix."""

    def shifted(original: Method) -> Method:
        bind = argument_binder(original)

        def method(model: Any, *arguments: Any, **named: Any) -> Any:
            given = bind(arguments, named)
            if given.get("cache") is None:
                tokens = next(iter(given.values()))
                given["mask"] = shift_positions(given.get("mask", Mask()), tokens, model.tune.length)
            return original(model, **given)

        return method

    original = injection.original_class
    return {name: shifted(getattr(original, name)) for name in ("encode", "decode") if hasattr(original, name)}


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
