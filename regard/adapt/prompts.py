"""Prompt tuning (2104.08691) and prefix tuning (2101.00190): learnt places that stand before every text.

A prompt is vectors before the embedded tokens; a prefix is keys and values before those of the tokens, in every layer.
The text stands behind them: its positions begin at `length`. A model that sees only the past cannot tell a prefix from
a past: while it writes it finds one in its cache, and its prompt is what it would remember of having read it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config.schema import Prefix, Prompt
from ..errors import UserError
from ..parts import Cache, LayerCache, Mask, Stack
from ..parts.cache.base import CacheLayout
from ..parts.cache.slots import DenseLayout
from ..parts.efficient import GlobalAttention
from ..parts.masks import ANY_SEGMENT
from .injection import Injection, unsupported

ARGUMENTS = ("x", "mask", "cross", "cache", "where")  # of a stack
Pairs = list[tuple[Tensor, Tensor]]  # of every layer its keys and values, (1, heads, length, head_width)


class PrefixKV(LayerCache):
    """Keys and values that stand before those a layer is handed."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        before = (each.to(k.dtype).expand(len(k), -1, -1, -1) for each in (self.k, self.v))
        whole_k, whole_v = (torch.cat(both, 2) for both in zip(before, (k, v), strict=True))
        return whole_k, whole_v


class PrefixLayout(CacheLayout):
    """They are seen from every place of the text, whichever of several in a row it belongs to."""

    def __init__(self, length: int) -> None:
        self.length = length

    def advance(self, mask: Mask, lengths: Tensor) -> tuple[Mask, Mask]:
        assert mask.positions is not None
        front = torch.arange(self.length, device=mask.positions.device).expand(len(mask.positions), -1)
        words: dict[str, Any] = {"key_positions": torch.cat([front, mask.positions], 1)}
        if mask.key_valid is not None:
            words["key_valid"] = F.pad(mask.key_valid, (self.length, 0), value=True)
        if mask.segments is not None:
            words["key_segments"] = F.pad(mask.segments, (self.length, 0), value=ANY_SEGMENT)
        return mask, mask.replace(**words)


class CaptureKV(LayerCache):
    """Notes what a layer is handed, and changes nothing."""

    k: Tensor
    v: Tensor

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k, self.v = k, v
        return k, v


class CaptureCache(Cache):
    """A cache of these: it remembers no place, so that none need be told."""

    def advance(self, mask: Mask) -> list[tuple[Mask, Mask]]:
        return [(mask, mask)] * len(self.layers)


class PrefixParameters(nn.Module):
    """A layer's share of a prefix."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        super().__init__()
        self.key, self.value = nn.Parameter(k), nn.Parameter(v)  # (heads, length, head_width)


class VirtualTokens(Injection):
    """What prompt and prefix share: the model's verbs move its texts by `length`, and `pairs` stand before them."""

    def __init__(self, kind: str, model: nn.Module, length: int) -> None:
        super().__init__(kind)
        self.length, self.plain = length, type(model)
        self.stacks = {path: each for path, each in model.named_modules() if isinstance(each, Stack)}
        self._hearing: dict[str, Cache] | None = None

    def pairs(self, path: str) -> Pairs:
        """Of the stack at `path`."""
        raise NotImplementedError

    def swap(self, model: Any, verbs: dict[str, Any]) -> None:
        """The model answers these verbs in another way until it is removed."""
        if hasattr(self.plain, "context"):
            verbs["context"] = property(lambda own: less(self.plain.context.fget(own), self.length))  # type: ignore[attr-defined]
        model.__class__ = type(self.plain.__name__, (self.plain,), {"__module__": self.plain.__module__, **verbs})

    def remove(self, model: nn.Module) -> None:
        super().remove(model)
        model.__class__ = self.plain

    def supply(
        self, path: str, stack: Stack, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A hook of a stack: one that is called without a cache gets what stands before its text."""
        given = dict(zip(ARGUMENTS, arguments, strict=False)) | named
        if given.get("cache") is None:
            given["cache"] = self._cache(path, given["x"])
        return (), given

    def _cache(self, path: str, x: Tensor) -> Cache:
        if self._hearing is None:
            books, memories = PrefixLayout(self.length), [PrefixKV(k, v) for k, v in self.pairs(path)]
            return Cache(len(x), x.device, list(memories), [books] * len(memories))
        heard = CaptureCache(len(x), x.device, [CaptureKV() for _ in self.stacks[path].layers])
        self._hearing[path] = heard
        return heard

    @contextmanager
    def hearing(self) -> Iterator[dict[str, Any]]:
        """Inside, nothing is put before a text, and the caches by stack hold what its layers were handed."""
        self._hearing = {}
        try:
            yield self._hearing
        finally:
            self._hearing = None

    def text_only(self, path: str, weights: Tensor) -> Tensor:
        return weights if path.endswith(".cross") else weights[..., self.length :]


def less(context: int | None, length: int) -> int | None:
    return None if context is None else max(context - length, 0)


def moved(mask: Mask, tokens: Tensor, length: int) -> Mask:
    """The mask of tokens that stand `length` places further on."""
    at = torch.arange(tokens.size(1), device=tokens.device)[None] if mask.positions is None else mask.positions
    return mask.replace(positions=at + length)


def given_to(verb: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """What a verb is asked, by name."""
    names = list(signature(verb).parameters)[1:]
    return lambda arguments, named: dict(zip(names, arguments, strict=False)) | named


def refuse_without_stack(model: nn.Module, kind: str) -> None:
    if not any(isinstance(each, Stack) for each in model.modules()):
        raise unsupported(kind, "it has no attention layers whose texts it could go before")


def refuse_forgetful(model: nn.Module, kind: str) -> None:
    """Only dense attention can take keys that stand before the text, and keep them."""
    refuse_without_stack(model, kind)
    for layer in (layer for stack in model.modules() if isinstance(stack, Stack) for layer in stack.layers):
        kernel = getattr(layer.attention, "kernel", None)
        if kernel is None or not kernel.biasable or not issubclass(layer.attention.cache_layout(None)[0], DenseLayout):
            name = type(layer.attention if kernel is None else kernel).__name__
            raise unsupported(kind, f"its attention ({name}) does not keep every key, so a beginning would be lost")


# --- prefixes --------------------------------------------------------------------------------------------------------


class PrefixTuning(VirtualTokens):
    def pairs(self, path: str) -> Pairs:
        parts = [self.get_submodule(f"{path}.layers.{i}.attention") for i in range(len(self.stacks[path].layers))]
        return [(part.key[None], part.value[None]) for part in parts]  # type: ignore[index]

    @torch.no_grad()
    def fill(self, model: nn.Module, cache: Cache) -> None:
        """Let an empty cache remember the prefix."""
        (path,) = (path for path, stack in self.stacks.items() if stack.causal)
        rows = len(cache.lengths)
        cache.advance(cache.next_mask(torch.zeros(rows, self.length, dtype=torch.long, device=cache.lengths.device)))
        for memory, both in zip(cache.layers, self.pairs(path), strict=True):
            memory.append(*(each.expand(rows, -1, -1, -1) for each in both))
        cache.keep_prefix(self.length)


def install_prefix(model: nn.Module, settings: Prefix, words: Sequence[int]) -> Injection:
    """Every self-attention gets keys and values: those that the model has for some words."""
    refuse_forgetful(model, "prefix")
    graft = PrefixTuning("prefix", model, settings.length)
    for path, stack in graft.stacks.items():
        graft.hold(stack.register_forward_pre_hook(partial(graft.supply, path), with_kwargs=True))
    needed = [each for each in signature(model.forward).parameters.values() if each.default is each.empty]
    tokens = begun(model, settings.length, words)
    with graft.hearing() as heard, torch.no_grad(), evaluating(model):
        model(*[tokens] * len(needed))
    for path, cache in heard.items():
        for i, memory in enumerate(cache.layers):
            graft.attach(f"{path}.layers.{i}.attention", PrefixParameters(memory.k[0].clone(), memory.v[0].clone()))
    graft.swap(model, {**_reading(graft), **_writing(graft)})
    return graft


def _reading(graft: PrefixTuning) -> dict[str, Any]:
    """encode and decode: a text without a cache begins behind the prefix; one with a cache finds it there."""

    def behind(plain: Any) -> Any:
        given_of = given_to(plain)

        def verb(model: Any, *arguments: Any, **named: Any) -> Any:
            given = given_of(arguments, named)
            if given.get("cache") is None:
                tokens = next(iter(given.values()))
                given["mask"] = moved(given.get("mask", Mask()), tokens, model.tune.length)
            return plain(model, **given)

        return verb

    return {name: behind(getattr(graft.plain, name)) for name in ("encode", "decode") if hasattr(graft.plain, name)}


def _writing(graft: VirtualTokens) -> dict[str, Any]:
    """start: the cache already remembers what stands before the text."""
    if not hasattr(graft.plain, "start"):
        return {}
    plain: Any = graft.plain.start
    given_of = given_to(plain)

    def start(model: Any, *arguments: Any, **named: Any) -> Cache:
        given = given_of(arguments, named)
        if given.get("capacity") is not None:
            given["capacity"] += model.tune.length
        cache: Cache = plain(model, **given)
        model.tune.fill(model, cache)
        return cache

    return {"start": start}


# --- prompts ---------------------------------------------------------------------------------------------------------


class PromptTuning(VirtualTokens):
    """`vectors` (length, width), in the place of embedded tokens."""

    def __init__(self, model: nn.Module, vectors: Tensor) -> None:
        super().__init__("prompt", model, len(vectors))
        self.vectors = nn.Parameter(vectors)
        self._read: Tensor | None = None  # tokens at whose embedding the vectors come in
        self._instead = False
        self._pairs: dict[str, Pairs] = {}

    def embedded(self, table: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
        """A hook of the tables of tokens: the vectors come before what is embedded, or instead of it."""
        if inputs[0] is not self._read:
            return out
        vectors = self.vectors.to(out.dtype).expand(len(out), -1, -1)
        return vectors if self._instead else torch.cat([vectors, out], 1)

    @contextmanager
    def at(self, tokens: Tensor, instead: bool = False) -> Iterator[None]:
        self._read, self._instead = tokens, instead
        try:
            yield
        finally:
            self._read = None

    def pairs(self, path: str) -> Pairs:
        return self._pairs[path]

    def hear(self, model: Any) -> None:
        """What every layer makes of the vectors, which see nothing of the text behind them."""
        tokens = torch.zeros(1, self.length, dtype=torch.long, device=self.vectors.device)
        with self.at(tokens, instead=True), self.hearing() as heard:
            self.plain.decode(model, tokens)  # type: ignore[attr-defined]
        self._pairs = {path: [(each.k, each.v) for each in cache.layers] for path, cache in heard.items()}

    def forget(self) -> None:
        """Or the gradient's way back to the vectors would be kept from update to update."""
        self._pairs = {}

    @torch.no_grad()
    def fill(self, model: nn.Module, cache: Cache) -> None:
        """Let an empty cache have read the vectors."""
        tokens = torch.zeros(len(cache.lengths), self.length, dtype=torch.long, device=cache.lengths.device)
        with self.at(tokens, instead=True):
            self.plain.decode(model, tokens, cache.next_mask(tokens), cache)  # type: ignore[attr-defined]
        cache.keep_prefix(self.length)

    def text_only(self, path: str, weights: Tensor) -> Tensor:
        """In an encoder the vectors look around, too."""
        stack = self.stacks.get(path.rpartition(".layers.")[0])
        if stack is None or (stack.causal and hasattr(self.plain, "encode") and not path.endswith(".cross")):
            return weights
        inner = not stack.causal
        return weights[..., self.length if inner else 0 :, self.length :]


def install_prompt(model: Any, settings: Prompt, words: Sequence[int]) -> Injection:
    """The vectors begin as those of some words."""
    reads = hasattr(model, "encode")
    (refuse_without_stack if reads else refuse_forgetful)(model, "prompt")
    if any(isinstance(each, GlobalAttention) and each.first for each in model.modules()):
        raise unsupported(
            "prompt", "its first token sees everything, and is the one that tells the class; a prompt would stand there"
        )
    tables = {name: each for name, each in model.named_children() if isinstance(each, nn.Embedding)}
    table = next(iter(tables.values()))
    with torch.no_grad():
        graft = PromptTuning(model, table.weight[begun(model, settings.length, words)[0]].clone())
    graft.hold(*(each.register_forward_hook(graft.embedded) for each in tables.values()))
    if reads:
        graft.swap(model, _before(graft))
        return graft
    for path, stack in graft.stacks.items():
        graft.hold(stack.register_forward_pre_hook(partial(graft.supply, path), with_kwargs=True))
    graft.swap(model, {"decode": _having_heard(graft), **_writing(graft)})
    return graft


def _having_heard(graft: PromptTuning) -> Any:
    plain: Any = graft.plain.decode  # type: ignore[attr-defined]
    given_of = given_to(plain)

    def decode(model: Any, *arguments: Any, **named: Any) -> Tensor:
        given = given_of(arguments, named)
        if given.get("cache") is None:
            model.tune.hear(model)
            given["mask"] = moved(given.get("mask", Mask()), given["tokens"], model.tune.length)
        found: Tensor = plain(model, **given)
        model.tune.forget()
        return found

    return decode


def _before(graft: PromptTuning) -> dict[str, Any]:
    """The verbs of a model that reads in both directions: the vectors are read with every text. Where a decoder looks
    at what was read it sees them, too; else they are left out of the answer."""
    plain: Any = graft.plain
    given_of, writes = given_to(plain.encode), hasattr(plain, "decode")

    def encode(model: Any, *arguments: Any, **named: Any) -> Tensor:
        given, length = given_of(arguments, named), model.tune.length
        tokens = next(iter(given.values()))
        given |= {
            name: F.pad(each, (length, 0))
            for name, each in given.items()
            if isinstance(each, Tensor) and each is not tokens and each.shape == tokens.shape
        }
        given["mask"] = preceded(given.get("mask", Mask()), length)
        with model.tune.at(tokens):
            states: Tensor = plain.encode(model, **given)
        return states if writes else states[:, length:]

    def decode(model: Any, target: Tensor, cross: Any, *others: Any, **named: Any) -> Tensor:
        if cross is not None and cross.source is not None:
            cross = replace(cross, mask=preceded(cross.mask, model.tune.length))
        found: Tensor = plain.decode(model, target, cross, *others, **named)
        return found

    def start(model: Any, *arguments: Any, **named: Any) -> Cache:
        cache: Cache = plain.start(model, *arguments, **named)
        assert cache.cross is not None
        cache.cross = replace(cache.cross, mask=preceded(cache.cross.mask, model.tune.length))
        return cache

    return {"encode": encode, "decode": decode, "start": start} if writes else {"encode": encode}


def preceded(mask: Mask, length: int) -> Mask:
    """The mask of texts that have so many more tokens in front."""
    if mask.segments is not None or mask.key_segments is not None:
        raise ValueError("a prompt goes before a text, and packed rows hold several; pad instead (data.packed=false)")
    words: dict[str, Any] = {}
    if mask.key_valid is not None:
        words["key_valid"] = F.pad(mask.key_valid, (length, 0), value=True)
    if mask.positions is not None:
        front = torch.arange(length, device=mask.positions.device).expand(len(mask.positions), -1)
        words["at"] = torch.cat([front, mask.positions + length], 1)
    if mask.global_positions is not None:
        words["globals"] = torch.where(mask.global_positions < 0, mask.global_positions, mask.global_positions + length)
    return mask.replace(**words)


# --- what they begin as ----------------------------------------------------------------------------------------------


def begun(model: nn.Module, length: int, words: Sequence[int]) -> Tensor:
    """(1, length): the words over and over, or tokens drawn from all there are."""
    tables = [each for each in model.children() if isinstance(each, nn.Embedding)]
    if not tables:
        raise UserError("the model embeds no tokens, so nothing can stand before them; use lora or adapter")
    device = tables[0].weight.device
    if not words:
        return torch.randint(min(each.num_embeddings for each in tables[:2]), (1, length), device=device)
    return torch.tensor([[words[i % len(words)] for i in range(length)]], device=device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
