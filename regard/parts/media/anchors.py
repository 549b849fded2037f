"""Queries that are boxes (DAB-DETR, 2201.12329): a decoder refines them layer by layer.

Every head of the cross-attention attends around a point of its query's box, by a Gaussian bias as in SMCA (2101.07448).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..inputs import Detections, Encoded
from ..layer import Cross, Stack
from ..masks import Mask
from ..positions import AddedTerms

CYCLES = 0.5, 16.0  # of the slowest and the fastest sinusoid over an image
START_SIZE = 0.15  # of new boxes, in sides of the image
FOCUS = 0.3  # how far from the center of a box heads attend at first, and how widely, in sides of the box
LIMIT = 1e-4  # of shares, so that their logits are finite


@dataclass(frozen=True, eq=False, kw_only=True)
class FeatureMap(Encoded):
    """The states of a feature map, row by row, with the positions of its places."""

    places: Tensor  # (batch, rows · columns, width)
    rows: Tensor  # (batch, rows): centers, in shares of the valid image
    columns: Tensor  # (batch, columns)

    @property
    def centers(self) -> Tensor:
        """(batch, rows · columns, 2): x and y."""
        size = self.rows.size(1), self.columns.size(1)
        x, y = self.columns[:, None].expand(-1, size[0], -1), self.rows[:, :, None].expand(-1, -1, size[1])
        return torch.stack([x, y], -1).flatten(1, 2)


@dataclass(frozen=True, eq=False)
class NoisedBoxes:
    """True boxes with noise, in groups; training asks for the true ones (DN-DETR, 2203.01305)."""

    labels: Tensor  # (batch, queries)
    boxes: Tensor  # (batch, queries, 4): center x, center y, width, height
    valid: Tensor  # (batch, queries) bool: False for padding
    groups: Tensor  # (queries,): groups do not attend to each other


def centers_of(valid: Tensor) -> tuple[Tensor, Tensor]:
    """The centers of rows and of columns, in shares of the valid part of a map (batch, rows, columns)."""
    rows, columns = valid[:, :, 0].float().cumsum(1), valid[:, 0].float().cumsum(1)
    return (rows - 0.5) / rows[:, -1:], (columns - 0.5) / columns[:, -1:]


def sinusoids(shares: Tensor, width: int) -> Tensor:
    """(…, numbers) -> (…, numbers · width): sines and cosines of `width` / 2 frequencies."""
    low, high = map(math.log, CYCLES)
    rates = torch.linspace(low, high, width // 2, device=shares.device).exp() * 2 * math.pi
    angles = shares.float()[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1).flatten(-2)


def logit(shares: Tensor) -> Tensor:
    """The inverse of the sigmoid, for shares away from 0 and 1."""
    return torch.logit(shares.float().clamp(LIMIT, 1 - LIMIT))


class FocusTerms(AddedTerms):
    """Positions that are added to queries and keys, and a bias around the boxes of the queries."""

    def __init__(self, queries: Tensor, keys: Tensor, scores: Tensor) -> None:
        super().__init__(queries, keys)
        self.scores = scores

    def bias(self, q: Tensor) -> Tensor | None:
        return self.scores.to(q.dtype)


class Focus(nn.Module):
    """Where each head attends: a point and a width, relative to the box of the query, from its state."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.map = heads, nn.Linear(width, 4 * heads)
        angles = torch.arange(heads) * (2 * math.pi / heads)
        start = [angles.cos() * FOCUS, angles.sin() * FOCUS, *(torch.full((heads,), math.log(FOCUS)),) * 2]
        with torch.no_grad():
            self.map.weight.zero_()
            self.map.bias.copy_(torch.stack(start, -1).flatten())

    def forward(self, state: Tensor, boxes: Tensor, features: FeatureMap) -> Tensor:
        """The logarithm of a Gaussian, (batch, heads, queries, keys); its width is at least half a cell."""
        offsets = self.map(state).float().unflatten(-1, (self.heads, 4)).transpose(1, 2)  # (batch, heads, queries, 4)
        center, size = boxes[:, None, :, :2], boxes[:, None, :, 2:]
        point, spread = center + offsets[..., :2] * size, size * offsets[..., 2:].clamp(-4, 2).exp()
        scores = []
        for axis, places in enumerate((features.columns, features.rows)):
            half_cell = places[:, None, :1]  # the center of the first cell
            variance = spread[..., axis].square() + half_cell.square()  # (batch, heads, queries)
            distance = places[:, None, None] - point[..., axis, None]
            scores.append(-0.5 * distance.square() / variance[..., None])
        across, down = scores
        both: Tensor = down[..., :, None] + across[..., None, :]
        return both.flatten(3)


class BoxHead(nn.Module):
    """A small network to the four numbers of a box, before the sigmoid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 4)])

    def forward(self, x: Tensor) -> Tensor:
        first, second, last = self.layers
        out: Tensor = last(second(first(x).relu()).relu())
        return out


class AnchorQueries(nn.Module):
    """Queries with a box each: learned ones, or with `proposed` the likeliest places of the feature map.

    The decoder, the class head and the box head are those of the model.
    """

    def __init__(self, queries: int, width: int, heads: int, layers: int, labels: int, proposed: bool) -> None:
        super().__init__()
        self.width = width
        self.content = nn.Embedding(queries, width)
        self.noised = nn.Embedding(labels + 1, width)  # the content of noised boxes, by label
        self.position = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.focus = nn.ModuleList([Focus(width, heads) for _ in range(layers)])
        self.boxes = None if proposed else nn.Embedding(queries, 4, _weight=_spread_boxes(queries))  # logits
        self.classes = nn.Linear(width, labels + 1) if proposed else None
        self.box = BoxHead(width) if proposed else None
        self.norm = nn.LayerNorm(width) if proposed else None

    def forward(
        self,
        features: FeatureMap,
        decoder: Stack,
        classes: nn.Module,
        box: nn.Module,
        noised: NoisedBoxes | None = None,
    ) -> Detections:
        """The detections of each decoder layer; those of the noised boxes are separate."""
        batch, dtype = len(features.states), features.states.dtype
        proposed = self.propose(features)
        boxes = self._start_boxes(batch, proposed)
        x, mask = self.content.weight.expand(batch, -1, -1), Mask()
        if noised is not None:
            boxes = torch.cat([noised.boxes.float(), boxes], 1)
            x = torch.cat([self.noised(noised.labels), x], 1)
            mask = _group_mask(noised, batch, self.content.num_embeddings)
        x, mask, cross_mask = x.to(dtype), mask.memoized(), Mask(key_valid=features.valid).memoized()
        logits, layer_boxes = [], []
        for number, (layer, focus) in enumerate(zip(decoder.layers, self.focus, strict=True)):
            places = self.position(sinusoids(boxes, self.width // 2).to(dtype))
            terms = FocusTerms(places, features.places, focus(x, boxes, features))
            cross = Cross(features.states, cross_mask, terms)
            x = layer(x, mask, AddedTerms(places, places), None, cross, number)
            state = decoder.norm(x)
            exact = (box(state).float() + logit(boxes)).sigmoid()
            logits.append(classes(state))
            layer_boxes.append(exact)
            boxes = exact.detach()
        every = Detections(torch.stack(logits), torch.stack(layer_boxes), proposed=proposed)
        return every if noised is None else _without_noised(every, noised.labels.size(1))

    def propose(self, features: FeatureMap) -> Detections | None:
        """A class and a box of every place of the feature map; padding finds nothing."""
        if self.classes is None or self.box is None or self.norm is None:
            return None
        states = self.norm(features.states)
        start = torch.cat([features.centers, torch.full_like(features.centers, START_SIZE)], -1)
        logits, boxes = self.classes(states), (self.box(states).float() + logit(start)).sigmoid()
        if features.valid is not None:
            nothing = torch.full_like(logits[0, 0], -1e4)
            nothing[-1] = 0
            logits = torch.where(features.valid[..., None], logits, nothing)
            boxes = torch.where(features.valid[..., None], boxes, boxes.new_tensor([9.0, 9.0, 0.1, 0.1]))
        return Detections(logits[None], boxes[None])

    def _start_boxes(self, batch: int, proposed: Detections | None) -> Tensor:
        if proposed is None:
            assert self.boxes is not None
            return torch.sigmoid(self.boxes.weight.float()).expand(batch, -1, -1)
        scores = proposed.logits[0].detach().float().softmax(-1)[..., :-1].amax(-1)  # (batch, places)
        count = self.content.num_embeddings
        order = scores.topk(min(count, scores.size(1)), 1).indices
        order = order[:, torch.arange(count, device=order.device) % order.size(1)]  # small maps have fewer places
        return proposed.boxes[0].detach().gather(1, order[..., None].expand(-1, -1, 4))


def _group_mask(noised: NoisedBoxes, batch: int, queries: int) -> Mask:
    """Groups of noised boxes attend neither to each other nor to the queries, and the queries attend to no group."""
    segments = torch.cat([noised.groups, noised.groups.new_full((queries,), -1)])[None]
    valid = torch.cat([noised.valid, noised.valid.new_ones(batch, queries)], 1)
    return Mask(segments=segments, key_valid=valid)


def _without_noised(every: Detections, count: int) -> Detections:
    parts: Sequence[Any] = [(x[:, :, :count], x[:, :, count:]) for x in (every.logits, every.boxes)]
    (noised_logits, logits), (noised_boxes, boxes) = parts
    return Detections(logits, boxes, Detections(noised_logits, noised_boxes), every.proposed)


def _spread_boxes(count: int) -> Tensor:
    """The logits of boxes whose centers cover the image evenly: the R2 sequence, which generalizes the golden ratio."""
    shares = (torch.arange(1, count + 1)[:, None] * torch.tensor([0.7548776662, 0.5698402910]) + 0.5) % 1
    return logit(torch.cat([shares, torch.full((count, 2), START_SIZE)], 1))
