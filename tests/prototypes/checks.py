"""Helpers: comparison, ragged rows, models with large weights, and every model that decodes step by step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from helpers.inputs import inputs
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.families import cnn, gpt, rnn, t5, whisper, xl
from regard.parts import Cache, Inputs


def close(ours: Tensor, theirs: Tensor, bound: float = 1e-4) -> None:
    assert ours.shape == theirs.shape
    error = (ours - theirs).abs().max().item()
    assert error <= bound, f"{error:.1e} > {bound:.0e}"


def ragged(lengths: list[int], tokens: int = 0) -> Tensor:
    return torch.arange(tokens or max(lengths))[None] < torch.tensor(lengths)[:, None]


def loud(model: nn.Module, spread: float = 3.0, noise: float = 0.1) -> nn.Module:
    """Enlarge the weights, so that attention is not uniform and errors show."""
    torch.manual_seed(0)
    for name, p in model.named_parameters():
        if p.requires_grad and "embed_positions" not in name:
            p.data = (
                p.data * spread + noise * torch.randn_like(p) if p.dim() > 1 else p.data + 0.3 * torch.randn_like(p)
            )
    return model.eval()


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor created inside."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.untyped_storage().nbytes() // each.element_size())
        return found


@dataclass(frozen=True)
class Stepped:
    """A model, how to start its cache for three rows, and its uncached output for one row."""

    model: nn.Module
    start: Callable[[int | None], Cache]
    full: Callable[[Tensor, int], Tensor]  # tokens (texts, tokens), row -> (texts, tokens, vocab)


SMALL = {"vocab": 50, "width": 32, "heads": 4, "layers": 2, "inner": 128, "dropout": 0.0}
WINDOW, FAVOR = {"kind": "window", "radius": 4}, {"kind": "favor", "features": 32}
ALONE = {  # fillings of gpt, half of them with key heads that are shared
    "dense": {},
    "additive": {"attention": "additive", "key_heads": 1},
    "sinusoid": {"positions": "sinusoid"},
    "rotary": {"positions": "rotary", "key_heads": 2},
    "buckets": {"positions": "buckets", "key_heads": 2},
    "window": {"attention": WINDOW, "key_heads": 2},
    "wide window": {"attention": {**WINDOW, "radius": 10**8}},
    "favor": {"attention": FAVOR, "key_heads": 2},
}
OLDER = {  # what attention replaced, with a source and alone
    "rnn": (rnn, {"layers": 2}),
    "gru": (rnn, {"cell": "gru", "head": "next", "layers": 2}),
    "cnn": (cnn, {"kernel_size": 5, "layers": 2}),
    "cnn alone": (cnn, {"head": "next", "layers": 3}),
}
STEPPED = (*ALONE, *OLDER, "mixed", "xl", "t5", "whisper")


def writing(**changes: Any) -> gpt.Model:
    learned = {"positions": {"kind": "learned", "tokens": 64}}
    return gpt.Model(gpt.Config.model_validate(SMALL | learned | changes))


def mixed() -> gpt.Model:
    """A different kernel in every layer, each with its own kind of cache."""
    kinds = ({}, {"attention": WINDOW}, {"attention": FAVOR}, {"attention": {**WINDOW, "radius": 3}})
    model = writing(layers=4, positions="rotary")
    for place, kind in enumerate(kinds):
        model.stack.layers[place] = writing(positions="rotary", **kind).stack.layers[0]
    return model


def rewriting() -> t5.Model:
    """The first T5, with heads that do not divide its width."""
    own = {"head_width": 6, "tied": True, "feed": {"kind": "plain", "act": "relu"}, "attention": {"scaled": False}}
    return t5.Model(t5.Config.model_validate(SMALL | own))


def stepped(name: str) -> Stepped:
    torch.manual_seed(2)
    if name in ALONE:
        return alone(writing(**ALONE[name]))
    if name in OLDER:
        family, own = OLDER[name]
        older = family.Model(family.Config(vocab=50, width=32, heads=4, dropout=0.0, **own))
        if own.get("head") == "next":
            return alone(older)
    if name in ("xl", "mixed"):
        return alone(mixed() if name == "mixed" else xl.Model(xl.Config(**SMALL, memory=64)))
    if name == "whisper":
        model, frames = loud(whisper.Model(whisper.Config(**SMALL, bins=8)), spread=1.5), torch.randn(3, 20, 8)
        return Stepped(
            model,
            lambda capacity: model.start(Inputs("frames", frames), 3, capacity),
            lambda ids, row: model(Inputs("frames", frames[row].expand(len(ids), -1, -1)), inputs(ids)),
        )
    model = loud(rewriting(), spread=0.5) if name == "t5" else loud(older, spread=1.5)
    source, valid = torch.randint(50, (3, 9)), ragged([9, 4, 7])

    def full(ids: Tensor, row: int) -> Tensor:
        return model(inputs(source[row].expand(len(ids), -1), valid[row].expand(len(ids), -1)), inputs(ids))

    return Stepped(model, lambda capacity: model.start(inputs(source, valid), 3, capacity), full)


def alone(model: nn.Module) -> Stepped:
    """A decoder-only model."""
    model = loud(model, spread=1.5)
    return Stepped(model, lambda capacity: model.start(None, 3, capacity), lambda ids, row: model(inputs(ids)))
