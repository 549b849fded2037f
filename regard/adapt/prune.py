"""Prune attention heads permanently: the projections of a finished model become smaller.

The pruned model equals the model with these heads muted. `fill_heads` is the inverse: it fills a model of the full
shape, whose pruned heads are zeros, for formats that require equally many heads in every layer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..parts import Attention
from ..parts.efficient import BlockSparseKernel, LowRankKernel
from ..parts.positions import RelativePositions
from .heads import HeadName, HeadSite, head_sites, join_names, parse_heads


class HeadTensor(NamedTuple):
    """A parameter with `unit` entries per head along `dim`."""

    owner: nn.Module
    name: str
    dim: int
    unit: int
    of_keys: bool  # it belongs to key heads, not to query heads

    def select(self, heads: Sequence[int]) -> Tensor:
        """Its values for these heads."""
        value: Tensor = getattr(self.owner, self.name).detach()
        return value.index_select(self.dim, self.places(heads).to(value.device))

    def places(self, heads: Sequence[int]) -> Tensor:
        return (torch.tensor(heads, dtype=torch.long)[:, None] * self.unit + torch.arange(self.unit)).flatten()


def prune_heads(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """Remove heads from a model in place, by the names of `heads.py`; a layer keeps at least one."""
    if names:
        remove_heads(model, parse_heads(",".join(names), model, "pruned_heads"))
    return model


def remove_heads(model: nn.Module, heads: Iterable[HeadName]) -> None:
    """Remove these heads in place."""
    chosen = set(heads)
    plans = [(site, _remaining_heads(site, chosen)) for site in head_sites(model) if chosen.intersection(site.heads)]
    for site, kept in plans:  # all are checked before any changes
        _prune_site(site, kept, _remaining_key_heads(site, kept))


def _remaining_heads(site: HeadSite, heads: set[HeadName]) -> list[int]:
    """The indices of the heads that stay."""
    kept = [index for index, head in enumerate(site.heads) if head not in heads]
    if not kept:
        raise UserError(
            f"{join_names(site.heads)} are all heads of that layer; keep one of them, or mute them (--mute)"
        )
    _remaining_key_heads(site, kept)
    return kept


def _remaining_key_heads(site: HeadSite, kept: Sequence[int]) -> list[int]:
    """The indices of the key heads that stay. Each must serve as many query heads as the others."""
    attention = site.first
    group = attention.heads // attention.key_heads
    counts = [sum(index // group == key for index in kept) for key in range(attention.key_heads)]
    used = [key for key, count in enumerate(counts) if count]
    if len({counts[key] for key in used}) > 1:
        served = ", ".join(join_names(site.heads[key * group : (key + 1) * group]) for key in range(1))
        raise UserError(
            f"layer {site.layer} of {site.kind} has key heads that serve {group} heads each, such as {served}; remove "
            "whole groups, or as many heads of every group"
        )
    return used


def _prune_site(site: HeadSite, kept: Sequence[int], kept_keys: Sequence[int]) -> None:
    for tensor in head_tensors(site):
        chosen = tensor.select(kept_keys if tensor.of_keys else kept)
        old: nn.Parameter = getattr(tensor.owner, tensor.name)
        setattr(tensor.owner, tensor.name, nn.Parameter(chosen.contiguous(), requires_grad=old.requires_grad))
    for attention in site.parts.values():
        numbers = range(attention.heads) if attention.kept is None else attention.kept.tolist()
        attention.kept = torch.tensor([numbers[index] for index in kept], device=attention.query.weight.device)
        attention.heads, attention.key_heads = len(kept), len(kept_keys)
        if isinstance(attention.kernel, BlockSparseKernel):
            attention.kernel.kept_heads = tuple(attention.kept.tolist())
        for linear in (attention.query, attention.key, attention.value):
            linear.out_features = len(linear.weight)
    if isinstance(site.out, nn.Linear):
        site.out.in_features = site.out.weight.size(1)
    if (scheme := _relative(site)) is not None:
        scheme.key.out_features = len(scheme.key.weight)


def head_tensors(site: HeadSite) -> Iterator[HeadTensor]:
    """All parameters of a site that have entries per head."""
    width = site.first.head_width
    for attention in site.parts.values():
        yield from _projections(attention)
        kernel = attention.kernel
        if isinstance(kernel, LowRankKernel) and kernel.sharing == "none":
            yield HeadTensor(kernel.keys, "weight", 0, 1, of_keys=True)
            yield HeadTensor(kernel.values, "weight", 0, 1, of_keys=True)
    if isinstance(site.out, nn.Linear):
        yield HeadTensor(site.out, "weight", 1, width, of_keys=False)
    if (scheme := _relative(site)) is not None:
        yield HeadTensor(scheme.key, "weight", 0, width, of_keys=False)
        yield HeadTensor(scheme, "u", 0, 1, of_keys=False)
        yield HeadTensor(scheme, "v", 0, 1, of_keys=False)


def _relative(site: HeadSite) -> RelativePositions | None:
    """Positions of the layer itself that have entries per head."""
    is_self_attention = site.path.endswith(".attention")
    return site.scheme if is_self_attention and isinstance(site.scheme, RelativePositions) else None


def _projections(attention: Attention) -> Iterator[HeadTensor]:
    for linear in (attention.query, attention.key, attention.value):
        for name in ("weight", "bias"):
            if getattr(linear, name) is not None:
                yield HeadTensor(linear, name, 0, attention.head_width, of_keys=linear is not attention.query)


@torch.no_grad()
def fill_heads(full: nn.Module, pruned: nn.Module) -> nn.Module:
    """Copy the weights of a pruned model into one of the full shape; the missing heads become zeros."""
    tensors = full.state_dict()
    for name, tensor in pruned.state_dict().items():
        if tensors[name].shape == tensor.shape:
            tensors[name].copy_(tensor)
    for wide, narrow in zip(head_sites(full), head_sites(pruned), strict=True):
        if narrow.first.kept is None:
            continue
        heads = narrow.first.kept.tolist()
        group = wide.first.heads // wide.first.key_heads
        keys = sorted({head // group for head in heads})
        for target, source in zip(head_tensors(wide), head_tensors(narrow), strict=True):
            parameter: Tensor = getattr(target.owner, target.name)
            index = target.places(keys if target.of_keys else heads)
            parameter.zero_().index_copy_(target.dim, index, getattr(source.owner, source.name))
    return full
