"""Record attention weights of a finished model with any kernel."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..adapt.injection import injection_of
from ..errors import UserError
from ..parts import Attention, Mask, Stack
from ..parts.masks import ABSENT
from ..parts.recording import RECORDER

# What attends to what. `order` is the positional attention of a non-autoregressive decoder, from and to itself.
AttentionKind: TypeAlias = Literal["encoder", "decoder", "cross", "order"]
Which: TypeAlias = int | str | None  # a layer or head, from 1; "all"; None: the layer that a view chooses, the mean
MAX_WEIGHTS = 2**28  # recorded values of one kind of attention: 1 GB
NO_ATTENTION = "this model has no attention, so there is nothing to look at; choose another model"


@dataclass(frozen=True)
class AttentionSite:
    """One attention module of a model."""

    path: str
    kind: AttentionKind
    layer: int  # its number in its stack, from 1
    heads: int
    note: str = ""  # how its weights differ from those of softmax attention


def attention_sites(model: nn.Module, part: nn.Module | None = None) -> list[AttentionSite]:
    """The attention modules of a model, or of a part of it, in order.

    A module outside any stack is a layer of an encoder.
    """
    inside = set((part or model).modules())
    stacks = {path: module for path, module in model.named_modules() if isinstance(module, Stack)}
    sites: list[AttentionSite] = []
    for path, module in model.named_modules():
        if not isinstance(module, Attention) or module not in inside:
            continue
        stack = max((name for name in stacks if path.startswith(f"{name}.layers.")), key=len, default=None)
        if stack is None:
            kind: AttentionKind = "cross" if path.endswith(".cross") else "encoder"
            layer = 1 + sum(site.kind == kind for site in sites)
        else:
            number, _, rest = path.removeprefix(f"{stack}.layers.").partition(".")
            kind, layer = _kind(stacks[stack], rest), int(number) + 1
        sites.append(AttentionSite(path, kind, layer, module.heads, module.kernel.weights_note))
    return sites


def _kind(stack: Stack, name: str) -> AttentionKind:
    if name in ("cross", "order"):
        return name  # type: ignore[return-value]
    return "decoder" if stack.causal or any(layer.cross is not None for layer in stack.layers) else "encoder"


def chosen_sites(model: nn.Module, layer: Which = None, part: nn.Module | None = None) -> list[AttentionSite]:
    """The attention modules of a layer, of a part of the model if given; of all layers for None and "all"."""
    sites = attention_sites(model, part)
    if not sites:
        raise UserError(NO_ATTENTION)
    if layer is None or layer == "all":
        return sites
    most = max(site.layer for site in sites)
    if not isinstance(layer, int) or isinstance(layer, bool) or not 1 <= layer <= most:
        raise UserError(f"layer is {layer!r}; expected a number from 1 to {most}, or all")
    return [site for site in sites if site.layer == layer]


class AttentionRecorder:
    """Collects attention weights (batch, heads, queries, keys) of one model by module path; later calls overwrite."""

    def __init__(self, model: nn.Module, paths: Collection[str] | None = None) -> None:
        self.maps: dict[str, Tensor] = {}
        modules = ((path, module) for path, module in model.named_modules() if isinstance(module, Attention))
        self.paths = {module: path for path, module in modules if paths is None or path in paths}
        self.injection = injection_of(model)

    def __call__(self, attention: Attention, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None) -> None:
        if (path := self.paths.get(attention)) is None:  # another model, or not asked for
            return
        weights = attention.weights(q, k, mask, bias).detach()
        self.maps[path] = weights if self.injection is None else self.injection.text_only(path, weights)


def by_position(weights: Tensor, key_positions: Tensor) -> Tensor:
    """Weights (batch, heads, queries, keys) with the keys of a cache in the order of the text.

    Keys that the cache has dropped have no weight.
    """
    present = key_positions < ABSENT
    size = int(key_positions.masked_fill(~present, 0).max()) + 1
    index = key_positions.masked_fill(~present, size).expand(len(weights), -1)
    out = weights.new_zeros(*weights.shape[:3], size + 1)
    out.scatter_add_(3, index[:, None, None].expand_as(weights), weights)
    return out[..., :size]


@contextmanager
def record_attention(model: nn.Module, paths: Collection[str] | None = None) -> Iterator[dict[str, Tensor]]:
    """In this context the dict collects weights (batch, heads, queries, keys) by module path; later calls overwrite.

    `paths` are the modules to record; None: all. The model runs with its own kernels, fused ones included: the weights
    are computed separately, from the same queries and keys. Only padding is not removed, because the weights are stored
    by row; this may change the last bits. Other threads may use the model meanwhile; their calls are not recorded.
    """
    with active_recorder(AttentionRecorder(model, paths)) as recorder:
        yield recorder.maps


@contextmanager
def active_recorder(recorder: AttentionRecorder) -> Iterator[AttentionRecorder]:
    """In this context and thread, calls of the model pass through the recorder."""
    token = RECORDER.set(recorder)
    try:
        yield recorder
    finally:
        RECORDER.reset(token)


class LayerRecorder(AttentionRecorder):
    """Records one row: the attention modules of some layers, as `AttentionView` needs them."""

    def __init__(self, model: nn.Module, layer: Which = None, part: nn.Module | None = None) -> None:
        self.sites, self.layer = chosen_sites(model, layer, part), layer
        self.counts = _layer_counts(attention_sites(model, part))
        self.rows: dict[str, Tensor] = {}  # the positions of the queries (1, queries), where the mask has some
        self.left_out: dict[AttentionKind, str] = {}
        super().__init__(model, {site.path for site in self.sites})

    def __call__(self, attention: Attention, q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None) -> None:
        path = self.paths.get(attention)
        if path is None or not self._fits(path, q, k):
            return
        earlier = self.maps.get(path)
        super().__call__(attention, q, k, mask, bias)
        if mask.positions is not None:
            self.rows[path] = mask.positions
        if mask.key_positions is None or mask.key_positions.size(1) != self.maps[path].size(3):
            return
        self.maps[path] = by_position(self.maps[path], mask.key_positions)
        if earlier is not None:  # a cache continues what earlier calls have read
            padded = F.pad(earlier, (0, self.maps[path].size(3) - earlier.size(3)))
            self.maps[path] = torch.cat([padded, self.maps[path]], 2)

    def _fits(self, path: str, q: Tensor, k: Tensor) -> bool:
        """False if the weights of an encoder are too many to keep, while there is other attention to show."""
        kind = next(site.kind for site in self.sites if site.path == path)
        same = sum(site.kind == kind for site in self.sites)
        per_layer = q.size(1) * q.size(2) * k.size(2)
        if same * per_layer <= MAX_WEIGHTS:
            return True
        size = f"{q.size(2):,} × {k.size(2):,} weights in each of {same * q.size(1)} heads"
        if kind == "encoder" and len({site.kind for site in self.sites}) > 1:
            self.left_out[kind] = f"{size}; choose a layer to see them"
            return False
        hint = "" if same == 1 or per_layer > MAX_WEIGHTS else ", or choose a layer (layer=, --layer)"
        most = int((MAX_WEIGHTS / (same * q.size(1))) ** 0.5)
        raise UserError(f"the attention has {size}, too many to show; give a part of about {most:,} positions{hint}")

    def keys(self, kind: AttentionKind) -> int:
        """The number of keys of recorded attention."""
        return next(
            (self.maps[site.path].size(3) for site in self.sites if site.kind == kind and site.path in self.maps), 0
        )

    def layers(self) -> list[tuple[AttentionSite, Tensor]]:
        """The recorded weights (heads, queries, keys) on the CPU.

        Where one layer has several modules of a kind, such as the global queries of Longformer, the later module
        replaces the rows of its queries.
        """
        layers: dict[tuple[AttentionKind, int], tuple[AttentionSite, Tensor]] = {}
        for site in self.sites:
            if site.path not in self.maps:
                continue
            weights, key = self.maps[site.path][0].float().cpu(), (site.kind, site.layer)
            if key in layers:
                rows = self.rows[site.path][0].cpu()
                site, whole = layers[key][0], layers[key][1].clone()
                whole[:, rows] = weights
                weights = whole
            layers[key] = site, weights
        return list(layers.values())


def _layer_counts(sites: list[AttentionSite]) -> dict[AttentionKind, int]:
    counts: dict[AttentionKind, int] = {}
    for site in sites:
        counts[site.kind] = max(counts.get(site.kind, 0), site.layer)
    return counts


@contextmanager
def record_layers(model: nn.Module, layer: Which = None, part: nn.Module | None = None) -> Iterator[LayerRecorder]:
    """Record the attention of the chosen layers for an `AttentionView`, without gradients.

    `part` is the part of the model that runs, if not all of it.
    """
    with active_recorder(LayerRecorder(model, layer, part)) as recorder, torch.no_grad():
        assert isinstance(recorder, LayerRecorder)
        yield recorder
