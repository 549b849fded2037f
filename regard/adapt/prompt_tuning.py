"""Prompt tuning (2104.08691): learned vectors before the embedded tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.schema import Prompt
from ..parts import Cache, Mask
from ..parts.efficient import GlobalAttention
from .injection import Injection, unsupported
from .virtual_tokens import (
    KeyValues,
    Method,
    VirtualTokens,
    argument_binder,
    check_has_stack,
    check_keeps_prefix,
    initial_tokens,
    shift_positions,
    start_method,
)


class PromptTuning(VirtualTokens):
    """`vectors` (length, width), used like embedded tokens."""

    def __init__(self, model: nn.Module, vectors: Tensor) -> None:
        super().__init__("prompt", model, len(vectors))
        self.vectors = nn.Parameter(vectors)
        self._prompted_tokens: Tensor | None = None  # the embedding of these tokens gets the vectors
        self._replace = False
        self._key_values: dict[str, KeyValues] = {}

    def add_to_embedding(self, table: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
        """Forward hook of the token embeddings: put the vectors before the embedded tokens, or in their place."""
        if inputs[0] is not self._prompted_tokens:
            return out
        vectors = self.vectors.to(out.dtype).expand(len(out), -1, -1)
        return vectors if self._replace else torch.cat([vectors, out], 1)

    @contextmanager
    def prompting(self, tokens: Tensor, replace: bool = False) -> Iterator[None]:
        """In this context the embedding of `tokens` is preceded, or with `replace` replaced, by the vectors."""
        self._prompted_tokens, self._replace = tokens, replace
        try:
            yield
        finally:
            self._prompted_tokens = None

    def key_values(self, path: str) -> KeyValues:
        return self._key_values[path]

    def compute_key_values(self, model: nn.Module) -> None:
        """Compute the keys and values of the vectors in every layer. They do not depend on the text."""
        tokens = torch.zeros(1, self.length, dtype=torch.long, device=self.vectors.device)
        with self.prompting(tokens, replace=True), self.capture() as captures:
            self.original_class.decode(model, tokens)  # type: ignore[attr-defined]
        self._key_values = {path: cache.key_values() for path, cache in captures.items()}

    def forget_key_values(self) -> None:
        """Drop them; otherwise their autograd graph would live from step to step."""
        self._key_values = {}

    @torch.no_grad()
    def fill(self, model: nn.Module, cache: Cache) -> None:
        """Let an empty cache read the vectors."""
        tokens = torch.zeros(len(cache.lengths), self.length, dtype=torch.long, device=cache.lengths.device)
        with self.prompting(tokens, replace=True):
            self.original_class.decode(model, tokens, cache.next_mask(tokens), cache)  # type: ignore[attr-defined]
        cache.keep_prefix(self.length)

    def text_only(self, path: str, weights: Tensor) -> Tensor:
        """In an encoder the vectors are queries too."""
        stack = self.stacks.get(path.rpartition(".layers.")[0])
        has_encoder = hasattr(self.original_class, "encode")
        if stack is None or (stack.causal and has_encoder and not path.endswith(".cross")):
            return weights
        return weights[..., 0 if stack.causal else self.length :, self.length :]


def install(model: nn.Module, settings: Prompt, init_tokens: Sequence[int]) -> Injection:
    """Put learned vectors before every text. They start as the embeddings of `init_tokens`."""
    has_encoder = hasattr(model, "encode")
    (check_has_stack if has_encoder else check_keeps_prefix)(model, "prompt")
    if any(isinstance(each, GlobalAttention) and each.leading_globals for each in model.modules()):
        raise unsupported(
            "prompt", "its first token has global attention and predicts the class; a prompt would take its position"
        )
    tokens = initial_tokens(model, settings.length, init_tokens)[0]
    tables = [each for each in model.children() if isinstance(each, nn.Embedding)]
    with torch.no_grad():
        injection = PromptTuning(model, tables[0].weight[tokens].clone())
    injection.add_handles(*(each.register_forward_hook(injection.add_to_embedding) for each in tables))
    if has_encoder:
        injection.replace_methods(model, _encoder_methods(injection))
        return injection
    for path, stack in injection.stacks.items():
        injection.add_handles(stack.register_forward_pre_hook(partial(injection.supply_cache, path), with_kwargs=True))
    injection.replace_methods(model, {"decode": _decode_method(injection), **start_method(injection)})
    return injection


def _decode_method(injection: PromptTuning) -> Method:
    """`decode` of a decoder-only model: without a cache, the prompt's keys and values precede those of the text."""
    original: Method = injection.original_class.decode  # type: ignore[attr-defined]
    bind = argument_binder(original)

    def decode(model: Any, *arguments: Any, **named: Any) -> Tensor:
        given = bind(arguments, named)
        if given.get("cache") is None:
            model.tune.compute_key_values(model)
            given["mask"] = shift_positions(given.get("mask", Mask()), given["tokens"], model.tune.length)
        states: Tensor = original(model, **given)
        model.tune.forget_key_values()
        return states

    return decode


def _encoder_methods(injection: PromptTuning) -> dict[str, Method]:
    """The methods of a model with an encoder, which reads the vectors with every text.

    A decoder attends to their states too. Without a decoder they are cut from the output.
    """
    original: Any = injection.original_class
    bind, has_decoder = argument_binder(original.encode), hasattr(original, "decode")

    def encode(model: Any, *arguments: Any, **named: Any) -> Tensor:
        given, length = bind(arguments, named), model.tune.length
        tokens = next(iter(given.values()))
        given |= {
            name: F.pad(each, (length, 0))
            for name, each in given.items()
            if isinstance(each, Tensor) and each is not tokens and each.shape == tokens.shape
        }
        given["mask"] = prepend_to_mask(given.get("mask", Mask()), length)
        with model.tune.prompting(tokens):
            states: Tensor = original.encode(model, **given)
        return states if has_decoder else states[:, length:]

    def decode(model: Any, target: Tensor, cross: Any, *others: Any, **named: Any) -> Tensor:
        if cross is not None and cross.source is not None:
            cross = replace(cross, mask=prepend_to_mask(cross.mask, model.tune.length))
        states: Tensor = original.decode(model, target, cross, *others, **named)
        return states

    def start(model: Any, *arguments: Any, **named: Any) -> Cache:
        cache: Cache = original.start(model, *arguments, **named)
        assert cache.cross is not None
        cache.cross = replace(cache.cross, mask=prepend_to_mask(cache.cross.mask, model.tune.length))
        return cache

    return {"encode": encode, "decode": decode, "start": start} if has_decoder else {"encode": encode}


def prepend_to_mask(mask: Mask, length: int) -> Mask:
    """The mask of the same texts with `length` more tokens in front."""
    if mask.segments is not None or mask.key_segments is not None:
        raise ValueError("a prompt precedes one text and packed rows hold several; set data.packed=false")
    fields: dict[str, Tensor] = {}
    if mask.key_valid is not None:
        fields["key_valid"] = F.pad(mask.key_valid, (length, 0), value=True)
    if mask.positions is not None:
        prefix = torch.arange(length, device=mask.positions.device).expand(len(mask.positions), -1)
        fields["positions"] = torch.cat([prefix, mask.positions + length], 1)
    if mask.global_positions is not None:
        known = mask.global_positions
        fields["global_positions"] = torch.where(known < 0, known, known + length)
    return mask.replace(**fields)
