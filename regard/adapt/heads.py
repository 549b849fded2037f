"""The attention heads of a finished model: their sites, and their names, such as 3.2 or encoder.3.2.

A name has the kind of attention, the layer and the head, both from 1. It has no kind if the model has only one kind.
Heads keep their names when others are pruned.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..config.merge import one_of
from ..errors import UserError
from ..parts import Attention, Positions, Stack
from ..parts.efficient import GlobalAttention

NAME = re.compile(r"(?:([a-z_]+)\.)?(\d+)\.(\d+|\*)")
MAX_LISTED = 12  # names in a message


class HeadName(NamedTuple):
    """One head of a model."""

    kind: str  # encoder, decoder, cross, order; empty in a model with one kind of attention
    layer: int  # from 1
    head: int  # from 1, counted before pruning

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.head}" if self.kind else f"{self.layer}.{self.head}"


@dataclass(frozen=True, eq=False)
class HeadSite:
    """One attention sublayer of a layer. In Longformer it has two sets of projections and one output projection."""

    kind: str
    layer: int  # from 1
    path: str
    module: Attention | GlobalAttention
    scheme: Positions  # of its stack
    single: bool = False  # the model has one kind of attention, so names need none

    @property
    def parts(self) -> dict[str, Attention]:
        """The attention modules by path: their heads are the same."""
        if isinstance(self.module, Attention):
            return {self.path: self.module}
        return {f"{self.path}.near": self.module.near, f"{self.path}.wide": self.module.wide}

    @property
    def first(self) -> Attention:
        return next(iter(self.parts.values()))

    @property
    def out(self) -> nn.Module:
        """The output projection, which reads the outputs of all heads side by side."""
        return self.module.out

    @property
    def heads(self) -> list[HeadName]:
        """The heads in the order of the tensors."""
        kept: Tensor | None = self.first.kept
        numbers = range(self.first.heads) if kept is None else kept.tolist()
        return [HeadName("" if self.single else self.kind, self.layer, number + 1) for number in numbers]


def head_sites(model: nn.Module) -> list[HeadSite]:
    """Every attention sublayer of the stacks of a model, in the order of the model."""
    stacks = {path: part for path, part in model.named_modules() if isinstance(part, Stack)}
    kinds = {path: _stack_kind(stack) for path, stack in stacks.items()}
    if len(set(kinds.values())) < len(kinds):  # such as two encoders
        kinds = {path: path.removesuffix(".stack").rpartition(".")[2] for path in stacks}
    sites = [
        HeadSite(
            kinds[path] if name == "attention" else name, number, f"{path}.layers.{number - 1}.{name}", part, scheme
        )
        for path, stack in stacks.items()
        for number, (layer, scheme) in enumerate(zip(stack.layers, stack.schemes, strict=True), 1)
        for name, part in layer.named_children()
        if isinstance(part, Attention | GlobalAttention)
    ]
    single = len({site.kind for site in sites}) == 1
    return [replace(site, single=True) for site in sites] if single else sites


def _stack_kind(stack: Stack) -> str:
    return "decoder" if stack.causal or any(layer.cross is not None for layer in stack.layers) else "encoder"


def all_heads(sites: Iterable[HeadSite]) -> list[HeadName]:
    """The names of all heads, site by site."""
    return [head for site in sites for head in site.heads]


def parse_heads(text: str, model: nn.Module, option: str = "--mute") -> list[HeadName]:
    """The heads that `3.2,encoder.4.*` names, each once, in the order of the model; `*` is a whole layer."""
    sites = head_sites(model)
    if not sites:
        raise UserError(f"{option} is {text!r}, but this model has no attention heads; leave it out")
    kinds = list(dict.fromkeys(site.kind for site in sites))
    chosen: set[HeadName] = set()
    for name in map(str.strip, text.split(",")):
        match = NAME.fullmatch(name)
        if match is None:
            raise UserError(
                f"{option} has {name!r}; expected layer.head such as {next(iter(sites)).heads[0]}, several "
                "joined by commas, or layer.* for all heads of a layer"
            )
        chosen.update(_named_heads(name, match, sites, kinds, option))
    return [head for head in all_heads(sites) if head in chosen]


def _named_heads(
    name: str, match: re.Match[str], sites: Sequence[HeadSite], kinds: list[str], option: str
) -> list[HeadName]:
    kind, layer, head = match.groups()
    if kind is None and len(kinds) > 1:
        raise UserError(
            f"{option} has {name}, but this model has several kinds of attention; write {kinds[0]}.{name}: "
            f"{one_of(None, kinds)}"
        )
    if kind is not None and kind not in kinds:
        raise UserError(f"{option} has {name}, but this model has no {kind} attention; {one_of(kind, kinds)}")
    kind_sites = [site for site in sites if site.kind == (kind or kinds[0])]
    site = next((site for site in kind_sites if site.layer == int(layer)), None)
    if site is None:
        layers = [site.layer for site in kind_sites]
        raise UserError(f"{option} has {name}, but layer {layer} has no such attention; expected {_span(layers)}")
    heads = [name for name in site.heads if head == "*" or name.head == int(head)]
    if not heads:
        numbers = [name.head for name in site.heads]
        raise UserError(f"{option} has {name}, but layer {layer} has no head {head}; expected {_span(numbers)}")
    return heads


def _span(numbers: Sequence[int]) -> str:
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    return ", ".join(map(str, numbers))


def join_names(heads: Sequence[HeadName]) -> str:
    """The names for a message, at most MAX_LISTED."""
    more = f" and {len(heads) - MAX_LISTED} more" if len(heads) > MAX_LISTED else ""
    return ", ".join(map(str, heads[:MAX_LISTED])) + more


def head_columns(site: HeadSite, heads: Iterable[HeadName]) -> Tensor:
    """Bool, (heads · head_width,): the inputs of the output projection that these heads write."""
    chosen = set(heads)
    return torch.tensor([head in chosen for head in site.heads]).repeat_interleave(site.first.head_width)


def remaining_heads(model: nn.Module, kind: str, heads: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Heads of a kind by layer and number, both from 0, as indices in a model that may be pruned."""
    sites = {site.layer: site for site in head_sites(model) if site.kind == kind}
    numbers = {layer - 1: [name.head - 1 for name in site.heads] for layer, site in sites.items()}
    return [(layer, numbers[layer].index(head)) for layer, head in heads if head in numbers[layer]]
