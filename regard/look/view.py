"""The attention weights of one forward pass, with the axes of their queries and keys."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..config.measured import AlignmentHeads
from ..errors import UserError
from ..files import PICTURES, JsonObject, atomic_write, check_picture_path, write_json
from .axes import ViewAxis
from .decision import Decision
from .draw import Axis, draw_matrices
from .html import json_view, notebook_frame, page
from .record import NO_ATTENTION, AttentionKind, AttentionSite, LayerRecorder, Which
from .rollout import rollout

# The axes of queries and keys. A decoder reads a `prefix` (START and tokens) and writes a `target` (tokens and END).
AXES: dict[AttentionKind, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("prefix", "prefix"),
    "cross": ("target", "source"),
    "order": ("prefix", "prefix"),
}
VIEWS = (".html", *PICTURES, ".json")
FALLBACK = {"prefix": "target", "target": "source", "source": "prefix"}
TITLES: dict[AttentionKind, str] = {
    "encoder": "self-attention",
    "decoder": "self-attention",
    "cross": "cross-attention",
    "order": "positional attention",
}


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """The weights of one attention layer."""

    site: AttentionSite
    weights: Tensor  # (heads, queries, keys)
    queries: ViewAxis
    keys: ViewAxis

    @property
    def kind(self) -> AttentionKind:
        """The kind of attention, such as encoder or cross."""
        return self.site.kind

    @property
    def layer(self) -> int:
        """The number of the layer, from 1."""
        return self.site.layer


@dataclass(frozen=True, eq=False)
class AttentionView:
    """The attention of one input: all recorded layers of every kind, and their axes."""

    maps: tuple[AttentionMap, ...]
    axes: Mapping[str, ViewAxis]  # source, target, prefix
    counts: Mapping[AttentionKind, int] = field(default_factory=dict)  # the layers of the model, recorded or not
    title: str = ""
    logprobs: tuple[float, ...] = ()  # of the tokens of the target, END last
    left_out: Mapping[AttentionKind, str] = field(default_factory=dict)  # what was too large to record, and its size
    decision: Decision | None = None  # of a classifier with n-grams: what they and the encoder contribute
    alignment_heads: AlignmentHeads | None = None  # the cross-attention that is shown first and aligns

    def __post_init__(self) -> None:
        if not self.maps:
            raise UserError(NO_ATTENTION)

    @classmethod
    def of(
        cls,
        layers: Iterable[tuple[AttentionSite, Tensor]],
        axes: Mapping[str, ViewAxis],
        counts: Mapping[AttentionKind, int] | None = None,
        title: str = "",
        logprobs: Sequence[float] = (),
    ) -> "AttentionView":
        """`axes` has `source`, `target` or `prefix`; `FALLBACK` replaces a missing one."""
        maps = []
        for site, weights in layers:
            queries, keys = (_axis(axes, name) for name in AXES[site.kind])
            maps.append(AttentionMap(site, weights, queries, keys))
        layers_of = dict(counts or {})
        for attention in maps:
            layers_of[attention.kind] = max(layers_of.get(attention.kind, 0), attention.layer)
        return cls(tuple(maps), axes, layers_of, title, tuple(logprobs))

    @classmethod
    def recorded(
        cls, recorder: LayerRecorder, axes: Mapping[str, ViewAxis], title: str = "", logprobs: Sequence[float] = ()
    ) -> "AttentionView":
        """The view of a recorder's maps, see `of`."""
        return replace(cls.of(recorder.layers(), axes, recorder.counts, title, logprobs), left_out=recorder.left_out)

    # --- arrays ------------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> list[AttentionKind]:
        """The kinds of the recorded attention, in order."""
        return list(dict.fromkeys(attention.kind for attention in self.maps))

    @property
    def source(self) -> list[str]:
        """The labels of the source."""
        return _axis(self.axes, "source").labels

    @property
    def target(self) -> list[str]:
        """The labels of the target."""
        return _axis(self.axes, "target").labels

    @property
    def tokens(self) -> list[str]:
        """The labels of the only text."""
        return self.source

    def weights(self, layer: int | None = None, head: Which = None, kind: str | None = None) -> npt.NDArray[np.float32]:
        """(queries, keys) of a layer and head, both from 1; (heads, queries, keys) for head="all".

        By default the layer that a picture shows, and the mean over its heads, or its head that aligns.
        """
        chosen = self.layer_map(layer, kind)
        head = self.first_head(layer, chosen.kind) if head is None else head
        if head == "all":
            array: npt.NDArray[np.float32] = chosen.weights.numpy()
            return array
        numbers = _numbers("head", head, len(chosen.weights))
        array = (chosen.weights[numbers[0]] if numbers else chosen.weights.mean(0)).numpy()
        return array

    def layer_map(self, layer: Which = None, kind: str | None = None) -> AttentionMap:
        """The map of a layer; by default that of a picture: of cross-attention the one that aligns, else the middle.

        Where it is unknown which one aligns, it is the second-to-last.
        """
        maps = self.layers(kind)
        if layer is not None:
            return self._chosen(layer, maps[0].kind)[0]
        if maps[0].kind != "cross":
            return maps[len(maps) // 2]
        known = [] if self.alignment_heads is None else [m for m in maps if m.layer == self.alignment_heads.layer]
        return known[0] if known else maps[max(len(maps) - 2, 0)]

    def first_head(self, layer: Which, kind: AttentionKind) -> int | None:
        """The head that a picture shows, from 1, if no layer and no head are asked for; None: the mean."""
        if layer is None and kind == "cross" and (heads := self.alignment_heads) is not None:
            return heads.head if heads.layer == self.layer_map(kind=kind).layer else None
        return None

    def layers(self, kind: str | None = None) -> list[AttentionMap]:
        """The maps of a kind; by default of cross-attention, if there is some."""
        kind = kind or ("cross" if "cross" in self.kinds else self.kinds[0])  # the most informative
        if kind not in self.kinds:
            raise UserError(f"kind is {kind!r}, but this model has the attention {', '.join(self.kinds)}; choose one")
        return [attention for attention in self.maps if attention.kind == kind]

    def _chosen(self, layer: Which, kind: AttentionKind) -> list[AttentionMap]:
        if layer is None:
            return [self.layer_map(None, kind)]
        maps = self.layers(kind)
        numbers = [number + 1 for number in _numbers("layer", layer, self.counts[kind])]
        chosen = [attention for attention in maps if attention.layer in numbers]
        if not chosen:
            raise UserError(f"layer {layer} is not recorded; look without layer=, or with layer={layer}")
        return chosen

    def cross(self) -> Tensor:
        """(target, source): the cross-attention that aligns."""
        layer, head = self.layer_map(kind="cross").weights, self.first_head(None, "cross")
        return layer.mean(0) if head is None else layer[head - 1]

    def texts(self) -> tuple[list[str], list[str]]:
        """The labels of source and target, both without END."""
        source, target = (_axis(self.axes, name) for name in ("source", "target"))
        return source.labels[: len(source) - source.ended], target.labels[: len(target) - target.ended]

    def alignment(self) -> list[int]:
        """The index of the most attended source token for every target token, both without END."""
        source, target = self.texts()
        weights = self.cross()[: len(target), : len(source)]
        best: list[int] = weights.argmax(1).tolist() if weights.numel() else []
        return best

    def rollout(self) -> npt.NDArray[np.float32]:
        """(source, source): how the attention of all encoder layers combines (2005.00928); for encoders only."""
        if "encoder" not in self.kinds:
            raise UserError(
                "rollout combines the layers of an encoder, and this view has none (in a causal decoder, later "
                "positions see more than earlier ones, which would count as attention); look at single layers instead"
            )
        if not (rollouts := self.rollouts()):
            raise UserError("rollout needs all layers of the encoder; look without layer=")
        array: npt.NDArray[np.float32] = rollouts[-1][1].numpy()
        return array

    def rollouts(self) -> list[tuple[int, Tensor, ViewAxis]]:
        """The rollout after every encoder layer, with the layer from 0; none if not all layers are recorded."""
        maps = [attention for attention in self.maps if attention.kind == "encoder"]
        if not maps or len(maps) < self.counts["encoder"]:
            return []
        combined = rollout([attention.weights for attention in maps])
        return [(i, weights, maps[0].queries) for i, weights in enumerate(combined)]

    # --- files -------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, layer: Which = None, head: Which = None, kind: str | None = None) -> None:
        """Write the weights to a file: a page (.html), a picture (.png, .pdf, .svg) or numbers (.json).

        A picture shows the weights of `weights`, or of these layers and heads. A page and a .json file have all that is
        recorded, or these; a page begins with them.
        """
        path = check_view_path(Path(path))
        attention = self.layer_map(None if layer == "all" else layer, kind)
        _numbers("head", head, len(attention.weights))
        if path.suffix.lower() == ".html":
            text = page(self, layer, head, kind)
            with atomic_write(path) as draft:
                draft.write_text(text, encoding="utf-8")
        elif path.suffix.lower() == ".json":
            write_json(path, self._json(layer, head, kind))
        else:
            self._draw(path, layer, head, attention)

    def _json(self, layer: Which, head: Which, kind: str | None) -> JsonObject:
        kinds = list[str](self.kinds) if kind is None else [kind]
        maps = [m for name in kinds for m in self.layers(name) if layer in (None, "all", m.layer)]
        return json_view(self, maps, _numbers("head", head, min(len(m.weights) for m in maps)) or None)

    def _repr_html_(self) -> str:
        """A notebook shows the page."""
        return notebook_frame(page(self))

    def _draw(self, path: Path, layer: Which, head: Which, attention: AttentionMap) -> None:
        note = f" ({attention.site.note})" if attention.site.note else ""
        reader = "the decoder for " if attention.kind == "cross" else ""
        draw_matrices(
            path,
            self._panels(layer, head, attention.kind),
            Axis(attention.queries.name, attention.queries.labels),
            Axis(
                attention.keys.name if attention.kind == "cross" else f"attended {attention.keys.name}",
                attention.keys.labels,
            ),
            TITLES[attention.kind],
            f"each row: attention of {reader}that {attention.queries.name}{note}"
            + (f"; {self.decision.summary}" if self.decision else ""),
        )

    def _panels(self, layer: Which, head: Which, kind: AttentionKind) -> list[dict[str, Tensor]]:
        """A row of titled matrices for every layer: one for each head, or the mean over the heads."""
        rows, head = [], self.first_head(layer, kind) if head is None else head
        for attention in self._chosen(layer, kind):
            weights, panels = attention.weights, {}
            name = f"layer {attention.layer} of {self.counts[kind]}"
            for index in _numbers("head", 1 if head is None and len(weights) == 1 else head, len(weights)):
                panels[f"{name}, head {index + 1} of {len(weights)}"] = weights[index]
            rows.append(panels or {f"{name}, mean of {len(weights)} heads": weights.mean(0)})
        return rows


def check_view_path(path: Path) -> Path:
    """The path of a view to write, or a UserError; call it before computing the view."""
    return check_picture_path(path, VIEWS)


def _axis(axes: Mapping[str, ViewAxis], name: str) -> ViewAxis:
    while name not in axes:
        name = FALLBACK[name]
    return axes[name]


def _numbers(name: str, choice: Which, count: int) -> list[int]:
    """The chosen layers or heads, from 0; none for None."""
    if choice is None:
        return []
    if choice == "all":
        return list(range(count))
    if not isinstance(choice, int) or isinstance(choice, bool) or not 1 <= choice <= count:
        raise UserError(f"{name} is {choice!r}; expected a number from 1 to {count}, or all")
    return [choice - 1]
