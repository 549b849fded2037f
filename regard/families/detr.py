"""DETR (2005.12872): a convolutional backbone, an encoder–decoder, and object queries that answer all at once.

A query answers with a class, or that there is no object, and a box: center, width and height as shares of the image.
"""

from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.types import Base, Count, Positive, Share
from ..parts import AddedTerms, Cross, Detections, GridPositions, Inputs, Layer, Mask, Residual, Stack, slots
from ..parts.init import Rule, glorot, initialize, normal, ones, unchanged, zeros
from ..parts.media.anchors import AnchorQueries, BoxHead, FeatureMap, NoisedBoxes, centers_of, sinusoids
from ..parts.media.patches import random_images
from ..parts.media.resnet import ResNet
from .spec import ModelSpec

BackboneNorm = Annotated[slots.Group | slots.Frozen, Field(discriminator="kind")]


class Config(Base):
    """The settings of a DETR."""

    family: Literal["detr"] = "detr"
    size: str = "R50"
    stem: Positive = 64  # channels of the first convolution, of stride 2; a pooling of stride 2 follows
    stages: tuple[Positive, ...] = (256, 512, 1024, 2048)  # channels of the stages of the backbone
    depths: tuple[Positive, ...] = (3, 4, 6, 3)  # blocks of each stage
    strides: tuple[Positive, ...] = (1, 2, 2, 2)  # of each stage
    bottleneck: bool = True  # blocks of three convolutions instead of two, as in R50
    backbone_norm: BackboneNorm = slots.Group()  # of the backbone
    channels: Positive = 3
    width: Positive = 256
    heads: Positive = 8
    layers: Positive = 6
    decoder_layers: Count = 0  # 0: as many as `layers`
    inner: Positive = 2048
    dropout: Share = 0.1
    attention: slots.Dense = slots.Dense()
    feed: slots.Feed = slots.Feed()
    queries: Positive = 100  # a query finds one object or none: well above the objects of an image
    anchors: Literal["none", "learned", "proposed"] = "none"  # queries are boxes that layers refine: learned, or
    # proposed by the encoder; none: vectors (DETR)
    denoising: Count = 0  # groups of noised boxes that training restores (DN-DETR, 2203.01305); 0: none
    labels: Count = 0

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        slots.check_widths(self.width, self.heads, None)
        if self.width % 4:
            raise ValueError(f"positions of a grid need a width that 4 divides, not {self.width} (model.width)")
        if not len(self.stages) == len(self.depths) == len(self.strides):
            raise ValueError(
                f"model.stages, model.depths and model.strides have {len(self.stages)}, {len(self.depths)} and "
                f"{len(self.strides)} numbers; give as many of each"
            )
        if self.denoising and self.anchors == "none":
            raise ValueError(
                f"model.denoising={self.denoising} needs queries that are boxes; set model.anchors to learned or "
                "proposed, or model.denoising=0"
            )
        return self


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "stem": 8, "stages": (16, 32), "depths": (1, 1), "strides": (1, 2),
        "width": 32, "heads": 2, "layers": 2, "inner": 64, "queries": 8,
    },
    "small": {
        "stem": 32, "stages": (64, 128, 256), "depths": (2, 2, 2), "strides": (1, 2, 2), "bottleneck": False,
        "width": 128, "heads": 4, "layers": 3, "inner": 512, "queries": 30,
    },
    "R18": {"stages": (64, 128, 256, 512), "depths": (2, 2, 2, 2), "bottleneck": False},
    "R34": {"stages": (64, 128, 256, 512), "depths": (3, 4, 6, 3), "bottleneck": False},
    "R50": {},
    "R101": {"depths": (3, 4, 23, 3)},
}  # fmt: skip


def needs_start(c: Config) -> str | None:
    """Why these settings need pretrained weights; empty if they do not."""
    if c.backbone_norm.kind == "group":
        return None
    return (
        "model.backbone_norm.kind is frozen, and new weights have no statistics to freeze; use group, or set start to "
        "a folder with a trained DETR or ResNet"
    )


SPEC = ModelSpec(
    frozenset({"pixels"}),
    frozenset({"boxes"}),
    head_modules=("classes", "box", "anchors.classes", "anchors.noised"),
    label_modules=("classes", "anchors.classes", "anchors.noised"),
    needs_start=needs_start,
)


def build_backbone(c: Config) -> ResNet:
    """The convolutional backbone of the settings."""
    return ResNet(c.stages, c.depths, c.backbone_norm.build, c.stem, c.bottleneck, c.channels, c.strides)


class Model(nn.Module):
    """DETR (2005.12872): object queries answer with a class and a box each."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.backbone = build_backbone(c)
        self.project = nn.Conv2d(self.backbone.width, c.width, 1)
        self.grid = GridPositions(c.width)
        self.queries = nn.Embedding(c.queries, c.width) if c.anchors == "none" else None

        def layer(cross: bool = False) -> Layer:
            return Layer(
                c.attention.build(c.width, c.heads),
                c.feed.build(c.width, c.inner),
                lambda: Residual(nn.LayerNorm(c.width), False, c.dropout),
                c.attention.build(c.width, c.heads) if cross else None,
            )

        self.encoder = Stack([layer() for _ in range(c.layers)])
        self.decoder = Stack([layer(cross=True) for _ in range(c.decoder_layers or c.layers)], nn.LayerNorm(c.width))
        self.classes, self.box = nn.Linear(c.width, c.labels + 1), BoxHead(c.width)
        self.anchors, self.denoising = None, c.denoising
        if c.anchors != "none":
            layers = len(self.decoder.layers)
            self.anchors = AnchorQueries(c.queries, c.width, c.heads, layers, c.labels, c.anchors == "proposed")
        initialize(self, INITIAL)

    @property
    def context(self) -> int | None:
        return None

    def random_inputs(self, rows: int) -> list[Inputs]:
        """Images of noise, to probe the model with."""
        return [random_images(rows, self.backbone.stem.convolution.weight)]

    def patch_grid(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of the feature map of an image."""
        return self.backbone.patch_grid(height, width)

    def _places(self, valid: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """The positions of the places of a map; queries that are boxes need positions that distinguish neighbors."""
        if self.anchors is None:
            out: Tensor = self.grid(valid)
            return out
        size, width = valid.shape[1:], self.project.out_channels // 2
        across, down = sinusoids(columns[..., None], width), sinusoids(rows[..., None], width)
        both = down[:, :, None].expand(-1, -1, size[1], -1), across[:, None].expand(-1, size[0], -1, -1)
        return torch.cat(both, -1).flatten(1, 2)

    def encode(self, image: Inputs) -> FeatureMap:
        """The states of the feature map, with the positions of its places."""
        features, valid = self.backbone(image.values, image.valid)
        features = self.project(features)
        if valid is None:
            mask = torch.ones(len(features), *features.shape[2:], dtype=torch.bool, device=features.device)
        else:
            mask = valid
        rows, columns = centers_of(mask)
        places = self._places(mask, rows, columns).to(features.dtype)
        x, key_valid = features.flatten(2).transpose(1, 2), None if valid is None else valid.flatten(1)
        states = self.encoder(x, Mask(key_valid=key_valid), position_terms=AddedTerms(places, places))
        return FeatureMap(states, key_valid, places=places, rows=rows, columns=columns)

    def decode(self, features: FeatureMap, noised: NoisedBoxes | None = None) -> Detections:
        """The detections of the queries; `noised` boxes are further queries of a model with anchors."""
        if self.anchors is not None:
            detections: Detections = self.anchors(features, self.decoder, self.classes, self.box, noised)
            return detections
        assert self.queries is not None
        queries = self.queries.weight.expand(len(features.states), -1, -1).to(features.states.dtype)
        cross = Cross(features.states, Mask(key_valid=features.valid), AddedTerms(queries, features.places))
        terms = AddedTerms(queries, queries)
        outputs = self.decoder.layer_outputs(torch.zeros_like(queries), Mask(), cross, position_terms=terms)
        states = torch.stack([self.decoder.norm(output) for output in outputs])
        return Detections(self.classes(states), self.box(states).sigmoid())

    def detect(self, image: Inputs, noised: NoisedBoxes | None = None) -> Detections:
        return self.decode(self.encode(image), noised)

    def forward(self, image: Inputs) -> Tensor:
        return self.detect(image).logits[-1]


def he(tensor: Tensor) -> Tensor:
    """He's initialization."""
    return nn.init.kaiming_normal_(tensor, mode="fan_out", nonlinearity="relu")


INITIAL: dict[str, Rule] = {
    r".*norm\.weight": ones,
    r"anchors\.(focus|boxes)\..*": unchanged,
    r"anchors\.(content|noised)\.weight": normal(0.5),
    r".*bias": zeros,
    r"backbone\..*convolution\.weight": he,
    r"queries\.weight": normal(1.0),
    r"(classes|project)\.weight": unchanged,
    r".*\.weight": glorot,
}
