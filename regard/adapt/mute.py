"""Mute attention heads: replace the output of a head, before the output projection, by zeros or by its mean.

A pass over a finished model. It changes only what the output projection reads, so every kernel, cache and CUDA graph
works as before.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..parts import Stack
from .heads import HeadName, HeadSite, head_columns, head_sites

Means = Mapping[str, Tensor]  # by path: the mean input of the output projection, (heads · head_width,)


class HeadGates:
    """Hooks at the output projections of a model: `mute` chooses the heads. The tensors keep their addresses."""

    def __init__(self, model: nn.Module, sites: Iterable[HeadSite] | None = None) -> None:
        self.sites = head_sites(model) if sites is None else list(sites)
        device = next(model.parameters()).device
        self._gates, self._offsets = dict[str, Tensor](), dict[str, Tensor]()
        for site in self.sites:
            columns = len(site.heads) * site.first.head_width
            self._gates[site.path] = torch.ones(columns, device=device)
            self._offsets[site.path] = torch.zeros(columns, device=device)
            site.out.register_forward_pre_hook(Gate(self._gates[site.path], self._offsets[site.path]))

    def mute(self, heads: Iterable[HeadName], means: Means | None = None) -> None:
        """Mute exactly these heads. With `means` their outputs are the means, else zeros."""
        heads = list(heads)
        for site in self.sites:
            muted, gate, offset = head_columns(site, heads), self._gates[site.path], self._offsets[site.path]
            gate.copy_((~muted).float())
            offset.zero_()
            if means is not None:
                offset.copy_(muted.to(offset.device) * means[site.path])


class Gate:
    """The hook of one output projection."""

    def __init__(self, gate: Tensor, offset: Tensor) -> None:
        self.gate, self.offset = gate, offset

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        mixed: Tensor = inputs[0]
        return (torch.addcmul(self.offset.to(mixed.dtype), mixed, self.gate.to(mixed.dtype)), *inputs[1:])


def muted_copy(model: nn.Module, heads: Iterable[HeadName]) -> nn.Module:
    """A copy that shares the weights and whose `heads` output zeros; the model itself does not change."""
    copied, chosen = shared_copy(model), list(heads)
    HeadGates(copied, [site for site in head_sites(copied) if set(chosen).intersection(site.heads)]).mute(chosen)
    return copied


class HeadMeans:
    """The mean output of every head over all valid tokens that the model reads while the hooks are attached."""

    def __init__(self, model: nn.Module) -> None:
        self._valid: dict[str, Tensor | None] = {}
        self._sums, self._counts = dict[str, Tensor](), dict[str, Tensor]()
        device = next(model.parameters()).device
        for path, stack in model.named_modules():
            if isinstance(stack, Stack):
                stack.register_forward_pre_hook(self._stack_hook(path), with_kwargs=True)
        for site in head_sites(model):
            self._sums[site.path] = torch.zeros(
                len(site.heads) * site.first.head_width, dtype=torch.float64, device=device
            )
            self._counts[site.path] = torch.zeros((), dtype=torch.float64, device=device)
            site.out.register_forward_pre_hook(self._site_hook(site.path))

    def means(self) -> dict[str, Tensor]:
        return {path: (total / self._counts[path].clamp(min=1)).float() for path, total in self._sums.items()}

    def _stack_hook(self, path: str) -> Any:
        def remember(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            mask = named["mask"] if "mask" in named else inputs[1]
            self._valid[path] = mask.key_valid

        return remember

    def _site_hook(self, path: str) -> Any:
        stack = path.rpartition(".layers.")[0]

        def add(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            mixed, valid = inputs[0].detach().double(), self._valid.get(stack)
            if valid is None or valid.shape != mixed.shape[:2]:  # no padding, or it is removed
                valid = torch.ones(mixed.shape[:2], dtype=torch.bool, device=mixed.device)
            self._sums[path] += (mixed * valid[..., None]).sum((0, 1))
            self._counts[path] += valid.sum()

        return add


def shared_copy(model: nn.Module) -> nn.Module:
    """A copy with its own modules and hooks, which shares the tensors.

    Hooks on the copy do not affect the model, which other threads may use meanwhile. The copy counts as another model,
    so its CUDA graphs are captured again.
    """
    memo: dict[int, object] = {}
    for module in model.modules():
        tensors = [*module._parameters.values(), *module._buffers.values(), *vars(module).values()]
        memo |= {id(value): value for value in tensors if isinstance(value, Tensor)}
    return copy.deepcopy(model, memo)
