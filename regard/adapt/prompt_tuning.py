"""Prompt tuning (2104.08691): learned vectors before the embedded tokens."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.tuning import Prompt
from ..parts import Cache, Encoded, Inputs, Mask, Stack
from ..parts.efficient import GlobalAttention
from .injection import Injection, unsupported_tuning
from .virtual_tokens import (
    KeyValues,
    Method,
    VirtualTokens,
    check_has_stack,
    check_keeps_prefix,
    check_reads_forward,
    initial_tokens,
    noise_for,
    shift_positions,
    start_method,
    thread_key,
)


class PromptTuning(VirtualTokens):
    """`vectors` (length, width), used like embedded tokens."""

    def __init__(self, model: nn.Module, vectors: Tensor) -> None:
        super().__init__("prompt", model, len(vectors))
        self.vectors = nn.Parameter(vectors)
        # By thread: the tokens whose embedding gets the vectors and whether these replace it; keys, values by stack.
        self._prompted: dict[int, tuple[Tensor, bool]] = {}
        self._key_values: dict[int, dict[str, KeyValues]] = {}

    def add_to_embedding(self, table: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """Forward hook of the token embeddings: put the vectors before the embedded tokens, or in their place."""
        prompted = self._prompted.get(thread_key())
        if prompted is None or inputs[0] is not prompted[0]:
            return out
        vectors = self.vectors.to(out.dtype).expand(len(out), -1, -1)
        return vectors if prompted[1] else torch.cat([vectors, out], 1)

    @contextmanager
    def prompting(self, tokens: Tensor, replace: bool = False) -> Iterator[None]:
        """In this context the embedding of `tokens` is preceded, or with `replace` replaced, by the vectors."""
        key = thread_key()
        self._prompted[key] = tokens, replace
        try:
            yield
        finally:
            del self._prompted[key]

    def key_values(self, path: str) -> KeyValues:
        return self._key_values[thread_key()][path]

    def compute_key_values(self, model: nn.Module) -> None:
        """Compute the keys and values of the vectors in every layer. They do not depend on the text."""
        tokens = torch.zeros(1, self.length, dtype=torch.long, device=self.vectors.device)
        with self.prompting(tokens, replace=True), self.capture() as captures:
            self.original_class.decode(model, Inputs("tokens", tokens))  # type: ignore[attr-defined]
        self._key_values[thread_key()] = {path: cache.key_values() for path, cache in captures.items()}

    def forget_key_values(self) -> None:
        """Drop them; otherwise their autograd graph would live from step to step."""
        self._key_values.pop(thread_key(), None)

    @torch.no_grad()
    def fill(self, model: nn.Module, cache: Cache) -> None:
        """Let an empty cache read the vectors."""
        tokens = torch.zeros(len(cache.lengths), self.length, dtype=torch.long, device=cache.lengths.device)
        with self.prompting(tokens, replace=True):
            self.original_class.decode(model, Inputs("tokens", tokens), cache)  # type: ignore[attr-defined]
        cache.keep_prefix(self.length)

    def text_only(self, path: str, weights: Tensor) -> Tensor:
        """In an encoder the vectors are queries too."""
        stack = self.stacks.get(path.rpartition(".layers.")[0])
        if stack is None or (stack.causal and self.has_encoder and not path.endswith(".cross")):
            return weights
        return weights[..., 0 if stack.causal else self.length :, self.length :]


class ImagePromptTuning(VirtualTokens):
    """`vectors` (length, width) before the patches of an image (2203.12119): the encoder reads them with every image.

    The hooked input has positions already. The states of the vectors are removed from the output.
    """

    def __init__(self, model: nn.Module, vectors: Tensor) -> None:
        super().__init__("prompt", model, len(vectors))
        self.vectors = nn.Parameter(vectors)

    def add_to_input(self, stack: nn.Module, arguments: tuple[Tensor, Mask]) -> tuple[Tensor, Mask]:
        """Forward pre-hook of the encoder."""
        x, mask = arguments
        x = torch.cat([self.vectors.to(x.dtype).expand(len(x), -1, -1), x], 1)
        if mask.key_valid is not None:
            mask = mask.replace(key_valid=F.pad(mask.key_valid, (self.length, 0), value=True))
        return x, mask

    def cut_from_output(self, stack: nn.Module, arguments: tuple[Tensor, Mask], states: Tensor) -> Tensor:
        """Forward hook of the encoder."""
        return states[:, self.length :]

    def text_only(self, path: str, weights: Tensor) -> Tensor:
        return weights[..., self.length :, self.length :]


def install_for_images(model: nn.Module, settings: Prompt) -> Injection:
    """Put learned vectors before the patches of every image. They start as small random numbers."""
    (stack,) = (module for module in model.modules() if isinstance(module, Stack))
    weight = next(stack.parameters())
    vectors = 0.02 * torch.randn(settings.length, weight.size(-1), device=weight.device)
    injection = ImagePromptTuning(model, vectors)
    injection.add_handles(
        stack.register_forward_pre_hook(injection.add_to_input), stack.register_forward_hook(injection.cut_from_output)
    )
    return injection


def install(model: nn.Module, settings: Prompt, init_tokens: Sequence[int]) -> Injection:
    """Put learned vectors before every text. They start as the embeddings of `init_tokens`."""
    check_has_stack(model, "prompt")
    if noise_for(model, "prompt"):
        return install_for_images(model, settings)
    check_reads_forward(model, "prompt")
    if all(module.causal for module in model.modules() if isinstance(module, Stack)):
        check_keeps_prefix(model, "prompt")
    if any(isinstance(module, GlobalAttention) and module.leading_globals for module in model.modules()):
        raise unsupported_tuning(
            "prompt", "its first token has global attention and predicts the class; a prompt would take its position"
        )
    tokens = initial_tokens(model, settings.length, init_tokens)[0]
    tables = [child for child in model.children() if isinstance(child, nn.Embedding)]
    with torch.no_grad():
        injection = PromptTuning(model, tables[0].weight[tokens].clone())
    injection.add_handles(*(table.register_forward_hook(injection.add_to_embedding) for table in tables))
    if injection.has_encoder:
        injection.replace_methods(model, {"encode": _encode_method(injection)})
        return injection
    for path, stack in injection.stacks.items():
        injection.add_handles(stack.register_forward_pre_hook(partial(injection.supply_cache, path), with_kwargs=True))
    injection.replace_methods(model, {"decode": _decode_method(injection), "start": start_method(injection)})
    return injection


def _decode_method(injection: PromptTuning) -> Method:
    """`decode` of a decoder-only model: without a cache, the prompt's keys and values precede those of the text."""
    original: Any = injection.original_class

    def decode(model: Any, text: Inputs, memory: Cache | None = None) -> Tensor:
        if memory is None:
            model.tune.compute_key_values(model)
            text = shift_positions(text, model.tune.length)
        try:
            states: Tensor = original.decode(model, text, memory)
        finally:
            model.tune.forget_key_values()
        return states

    return decode


def _encode_method(injection: PromptTuning) -> Method:
    """`encode`, which reads the vectors with every text.

    A decoder attends to their states too. Without a decoder they are cut from the output.
    """
    original: Any = injection.original_class

    def encode(model: Any, text: Inputs) -> Encoded:
        length = model.tune.length
        with model.tune.prompting(text.values):
            encoded: Encoded = original.encode(model, prepend(text, length))
        if model.tune.has_decoder:
            return encoded
        return replace(encoded, states=encoded.states[:, length:], valid=text.valid, text=text)

    return encode


def prepend(text: Inputs, length: int) -> Inputs:
    """The same text with `length` more tokens in front. Its values do not change: their embeddings get the vectors."""
    valid, positions, globals_at = text.valid, text.positions, text.global_positions
    if text.segments is not None:
        raise ValueError("a prompt precedes one text and packed rows hold several; set data.packed=false")
    if positions is not None:
        prefix = torch.arange(length, device=positions.device).expand(len(positions), -1)
        positions = torch.cat([prefix, positions + length], 1)
    return replace(
        text,
        valid=None if valid is None else F.pad(valid, (length, 0), value=True),
        positions=positions,
        token_types=None if text.token_types is None else F.pad(text.token_types, (length, 0)),
        global_positions=None if globals_at is None else torch.where(globals_at < 0, globals_at, globals_at + length),
    )
