"""ResNet (1512.03385): convolutions with shortcuts, the backbone of DETR."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Masks = Mapping[tuple[int, int], Tensor]  # the valid places (batch, 1, rows, columns) of maps, by the size of the map


class ConvolutionNorm(nn.Module):
    """A norm of the channels of a convolution."""

    masked: bool  # padding changes nothing: the features of an image do not depend on its batch

    def convolve(self, convolution: nn.Conv2d, x: Tensor, masks: Masks | None) -> Tensor:
        """The normalized output of the convolution."""
        raise NotImplementedError


class FrozenBatchNorm(ConvolutionNorm):
    """A batch norm whose statistics and weights are those of a trained model, and never change.

    It reads padding as if it were image, as the published models do.
    """

    masked = False
    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name in ("weight", "running_var"):
            self.register_buffer(name, torch.ones(channels))
        for name in ("bias", "running_mean"):
            self.register_buffer(name, torch.zeros(channels))

    def convolve(self, convolution: nn.Conv2d, x: Tensor, masks: Masks | None) -> Tensor:
        """The norm is a factor and a bias of each channel: both become part of the convolution."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        weight, bias = convolution.weight * scale[:, None, None, None], self.bias - self.running_mean * scale
        return F.conv2d(x, weight, bias, convolution.stride, convolution.padding)


class MaskedGroupNorm(ConvolutionNorm):
    """A group norm (1803.08494) over the valid places of each image; all others become 0."""

    masked = True

    def __init__(self, groups: int, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def convolve(self, convolution: nn.Conv2d, x: Tensor, masks: Masks | None) -> Tensor:
        x = convolution(x)
        if masks is None:
            return F.group_norm(x, self.groups, self.weight, self.bias, self.eps)
        valid = masks[x.size(2), x.size(3)]
        keep, grouped = valid[:, None], torch.unflatten(x.float(), 1, (self.groups, -1))
        count = valid.sum((1, 2, 3))[:, None, None, None, None] * grouped.size(2)
        mean = (grouped * keep).sum((2, 3, 4), keepdim=True) / count
        centered = (grouped - mean) * keep
        deviation = (centered.square().sum((2, 3, 4), keepdim=True) / count + self.eps).sqrt()
        normal: Tensor = (centered / deviation).flatten(1, 2).to(x.dtype)
        return (normal * self.weight[:, None, None] + self.bias[:, None, None]) * valid


BuildNorm = Callable[[int], ConvolutionNorm]  # of that many channels


class ConvNorm(nn.Module):
    """A convolution without bias, then its norm, then ReLU if `act`."""

    def __init__(
        self, channels: int, out: int, norm: BuildNorm, kernel: int = 3, stride: int = 1, act: bool = True
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
        self.norm, self.act = norm(out), act

    def forward(self, x: Tensor, masks: Masks | None) -> Tensor:
        x = self.norm.convolve(self.convolution, x, masks)
        return F.relu_(x) if self.act else x


class ResNetBlock(nn.Module):
    """Two convolutions, or three with a bottleneck, beside a shortcut."""

    def __init__(self, channels: int, out: int, norm: BuildNorm, stride: int = 1, bottleneck: bool = True) -> None:
        super().__init__()
        inner = out // 4
        if bottleneck:
            layers = [
                ConvNorm(channels, inner, norm, 1),
                ConvNorm(inner, inner, norm, 3, stride),
                ConvNorm(inner, out, norm, 1, act=False),
            ]
        else:
            layers = [ConvNorm(channels, out, norm, 3, stride), ConvNorm(out, out, norm, 3, act=False)]
        self.layers = nn.ModuleList(layers)
        changed = stride != 1 or channels != out
        self.shortcut = ConvNorm(channels, out, norm, 1, stride, act=False) if changed else None

    def forward(self, x: Tensor, masks: Masks | None) -> Tensor:
        out = x
        for layer in self.layers:
            out = layer(out, masks)
        return F.relu_(out.add_(x if self.shortcut is None else self.shortcut(x, masks)))


class ResNet(nn.Module):
    """Pixels (batch, channels, height, width) to features of the last stage."""

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        norm: BuildNorm,
        stem: int = 64,
        bottleneck: bool = True,
        channels: int = 3,
        strides: Sequence[int] = (1, 2, 2, 2),
    ) -> None:
        super().__init__()
        self.stem = ConvNorm(channels, stem, norm, 7, 2)
        stages, before = [], stem
        for width, depth, stride in zip(widths, depths, strides, strict=True):
            blocks = [
                ResNetBlock(before if number == 0 else width, width, norm, stride if number == 0 else 1, bottleneck)
                for number in range(depth)
            ]
            stages.append(nn.ModuleList(blocks))
            before = width
        self.stages, self.width, self.strides = nn.ModuleList(stages), before, (2, 2, *strides)

    def forward(self, pixels: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Features, and which of their places (batch, rows, columns) are valid; None: all."""
        masks, pixels = None, pixels.to(self.stem.convolution.weight.dtype)
        if valid is not None and self.stem.norm.masked:
            masks, pixels = self._masks(valid), pixels * valid[:, None]
        if not (pixels.is_cuda and self.stem.norm.masked):  # convolutions are faster; CUDA's group norm would copy
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        x = F.max_pool2d(self.stem(pixels, masks), 3, 2, 1)
        x = x if masks is None else x * masks[x.size(2), x.size(3)]
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                x = block(x, masks)
        if valid is None:
            return x, None
        size = x.size(2), x.size(3)
        return x, F.interpolate(valid[:, None].float(), size)[:, 0] > 0 if masks is None else masks[size][:, 0]

    def patch_grid(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of the features of an image."""
        for stride in self.strides:
            height, width = -(-height // stride), -(-width // stride)
        return height, width

    def _masks(self, valid: Tensor) -> Masks:
        """A place of a map is valid if the pixel in its upper left corner is: as many as the image has alone."""
        masks = {}
        for stride in self.strides:
            valid = valid[:, ::stride, ::stride]
            masks[valid.size(1), valid.size(2)] = valid[:, None]
        return masks
