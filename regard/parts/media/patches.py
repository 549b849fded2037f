"""Images as sequences: a linear map of square patches, and positions of the grid they form."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..inputs import Inputs
from ..positions import GridPositions

PartialPatches: TypeAlias = Literal["pad", "drop"]


class PatchEmbedding(nn.Module):
    """A vector for every square patch, row by row: (batch, channels, height, width) -> (batch, width, rows, columns).

    An image whose sides are not whole patches gets a black border at the right and the bottom, or loses its partial
    patches (`drop`). `stem` has the channels of convolutions before the linear map, each of which halves the sides
    (2106.14881).
    """

    def __init__(
        self,
        channels: int,
        width: int,
        patch: int,
        bias: bool = True,
        stem: Sequence[int] = (),
        partial: PartialPatches = "pad",
    ) -> None:
        super().__init__()
        self.drop = partial == "drop"
        self.patch, sizes, rest = patch, (channels, *stem), patch >> len(stem)
        self.stem = nn.ModuleList(nn.Conv2d(one, other, 3, 2, padding=1) for one, other in pairwise(sizes))
        self.project = nn.Conv2d(sizes[-1], width, rest, rest, bias=bias)

    @property
    def first_weight(self) -> Tensor:
        """The weight that reads the pixels."""
        convolution = self.stem[0] if len(self.stem) else self.project
        assert isinstance(convolution, nn.Conv2d)
        return convolution.weight

    def forward(self, pixels: Tensor, valid: Tensor | None = None) -> Tensor:
        """`valid` (batch, height, width) are the pixels of the images; only a stem needs to know them."""
        pixels = pixels.to(self.project.weight.dtype)
        if self.drop:
            height, width = (side // self.patch * self.patch for side in pixels.shape[2:])
            pixels, valid = pixels[..., :height, :width], None if valid is None else valid[..., :height, :width]
        right, bottom = (-pixels.size(side) % self.patch for side in (3, 2))
        if right or bottom:
            if self.stem and valid is None:
                valid = pixels.new_ones(len(pixels), *pixels.shape[2:])
            pixels = F.pad(pixels, (0, right, 0, bottom))
            valid = None if valid is None else F.pad(valid.to(pixels.dtype), (0, right, 0, bottom))
        out: Tensor = self.project(self._convolve(pixels, valid) if self.stem else pixels)
        return out

    def _convolve(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Invalid places are zero before each convolution, as the border is: padding changes nothing."""
        places = None if valid is None else valid.to(x.dtype)[:, None]
        x = x if places is None else x * places
        for convolution in self.stem:
            x = torch.relu(convolution(x))
            if places is not None:
                places = F.max_pool2d(places, 2)
                x = x * places
        return x

    def valid(self, pixels: Tensor | None) -> Tensor | None:
        """The patches (batch, rows, columns) with a valid pixel; with `drop`, those whose pixels are all valid."""
        if pixels is None:
            return None
        if self.drop:
            return F.max_pool2d((~pixels).float(), self.patch, self.patch) == 0
        return F.max_pool2d(pixels.float(), self.patch, self.patch, ceil_mode=True) > 0

    def patch_grid(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of patches of an image."""
        extra = 0 if self.drop else self.patch - 1
        return (height + extra) // self.patch, (width + extra) // self.patch


def check_patches(image: int, patch: int, stem: Sequence[int], partial: PartialPatches, key: str) -> None:
    """ValueError if patches do not fill a square image, whose side is the setting `key`, or convolutions a patch."""
    if partial == "drop" and image < patch:
        raise ValueError(f"images of {image} pixels have no patch of {patch} ({key})")
    if image % patch and partial == "pad":
        near = [image // patch * patch, -(-image // patch) * patch]
        raise ValueError(
            f"images of {image} pixels do not divide into patches of {patch}; use "
            f"{' or '.join(str(side) for side in near if side)} ({key})"
        )
    check_stem(stem, patch)


def check_stem(stem: Sequence[int], patch: int) -> None:
    """ValueError if the convolutions do not halve a patch into whole places."""
    if patch % 2 ** len(stem):
        raise ValueError(
            f"{len(stem)} convolutions of the stem halve a patch of {patch} pixels so often that no whole one is left; "
            f"use fewer, or patches of {2 ** len(stem)} pixels"
        )


def grid_sizes(valid: Tensor) -> list[tuple[int, int]]:
    """Rows and columns of the valid part (batch, rows, columns) of every image, which is in its upper left corner."""
    rows, columns = valid.any(2).sum(1), valid.any(1).sum(1)
    return [(int(row), int(column)) for row, column in torch.stack([rows, columns], 1).tolist()]


class PatchPositions(nn.Module):
    """Positions of the patches of an image of any size: (1 or batch, rows · columns, width)."""

    def forward(self, rows: int, columns: int, valid: Tensor | None) -> Tensor:
        if valid is None:
            return self.grid(rows, columns).flatten(0, 1)[None]
        out = self.grid(rows, columns).new_zeros(len(valid), rows, columns, self.grid(1, 1).size(-1))
        sizes = grid_sizes(valid)
        for size in set(sizes):
            chosen = [row for row, image_size in enumerate(sizes) if image_size == size]
            out[chosen, : size[0], : size[1]] = self.grid(*size)
        return out.flatten(1, 2)

    def grid(self, rows: int, columns: int) -> Tensor:
        """(rows, columns, width)"""
        raise NotImplementedError

    def first(self) -> Tensor:
        """The positions of the tokens before the patches; 0: they have none."""
        return torch.zeros(())


class LearnedGrid(PatchPositions):
    """A learned vector per patch of a square image; other sizes are interpolated (bicubic).

    `before` tokens come before the patches; their positions are the first rows of the table.
    """

    no_decay = ("table",)

    def __init__(self, side: int, width: int, before: int = 0) -> None:
        super().__init__()
        self.side, self.before = side, before
        self.table = nn.Parameter(torch.zeros(1, before + side * side, width))

    def grid(self, rows: int, columns: int) -> Tensor:
        table: Tensor = self.table[:, self.before :].reshape(1, self.side, self.side, -1)
        if (rows, columns) != (self.side, self.side):
            pixels = table.permute(0, 3, 1, 2)
            table = F.interpolate(pixels, (rows, columns), mode="bicubic", align_corners=False).permute(0, 2, 3, 1)
        return table[0]

    def fit(self, table: Tensor) -> Tensor | None:
        """The table of another grid, interpolated to this one (bicubic); None if it has no equal rows before it."""
        side = math.isqrt(table.size(1) - self.before)
        if side * side != table.size(1) - self.before or table.size(2) != self.table.size(2):
            return None
        other = LearnedGrid(side, table.size(2), self.before)
        other.table.data = table
        with torch.no_grad():
            return torch.cat([other.first(), other.grid(self.side, self.side).flatten(0, 1)[None]], 1)

    def first(self) -> Tensor:
        """The positions of the tokens before the patches."""
        return self.table[:, : self.before]


class SinusoidGrid(PatchPositions):
    """Sines and cosines of row and column, half of the width for each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sinusoid = GridPositions(width).sinusoid

    def grid(self, rows: int, columns: int) -> Tensor:
        device = self.sinusoid.rate.device
        y, x = (self.sinusoid.vectors(torch.arange(size, device=device)) for size in (rows, columns))
        return torch.cat([y[:, None].expand(-1, columns, -1), x[None].expand(rows, -1, -1)], -1)


def read_patches(
    image: Inputs, patches: PatchEmbedding, positions: PatchPositions, first: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The patches with their positions as a sequence, after the token `first`, and which of them are valid."""
    grid, valid = patches(image.values, image.valid), patches.valid(image.valid)
    x = grid.flatten(2).transpose(1, 2)
    x = x + positions(grid.size(2), grid.size(3), valid).to(x.dtype)
    valid = None if valid is None else valid.flatten(1)
    if first is not None:
        first = first + positions.first().to(first)
        x = torch.cat([first.expand(len(x), 1, -1).to(x.dtype), x], 1)
        valid = None if valid is None else torch.cat([valid.new_ones(len(valid), 1), valid], 1)
    return x, valid


def random_images(rows: int, convolution: Tensor, side: int = 64) -> Inputs:
    """Images of noise for a model whose first convolution has this weight."""
    noise = torch.randn(rows, convolution.size(1), side, side, generator=torch.Generator().manual_seed(1), device="cpu")
    return Inputs("pixels", noise.to(convolution.device))
