"""ResNet (1512.03385): convolutions with shortcuts, the backbone of DETR."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NormKind = Literal["frozen", "group", "batch"]
GROUPS = 32  # of group norms, or fewer if they do not divide the channels


class FrozenBatchNorm(nn.Module):
    """A batch norm whose statistics and weights are those of a trained model, and never change."""

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

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None].to(x.dtype) + shift[:, None, None].to(x.dtype)


def build_norm(kind: NormKind, channels: int) -> nn.Module:
    """frozen: with loaded weights; group: independent of the batch, for training from scratch; batch: usual."""
    if kind == "frozen":
        return FrozenBatchNorm(channels)
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    groups = next(number for number in range(min(GROUPS, channels), 0, -1) if channels % number == 0)
    return nn.GroupNorm(groups, channels)


class ConvNorm(nn.Module):
    """A convolution without bias, then its norm, then ReLU if `act`."""

    def __init__(
        self,
        channels: int,
        out: int,
        norm: Callable[[int], nn.Module],
        kernel: int = 3,
        stride: int = 1,
        act: bool = True,
    ) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False)
        self.norm, self.act = norm(out), act

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.convolution(x))
        return F.relu(x) if self.act else x


class ResNetBlock(nn.Module):
    """Two convolutions, or three with a bottleneck, beside a shortcut."""

    def __init__(
        self, channels: int, out: int, norm: Callable[[int], nn.Module], stride: int = 1, bottleneck: bool = True
    ) -> None:
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
        self.layers = nn.Sequential(*layers)
        changed = stride != 1 or channels != out
        self.shortcut = ConvNorm(channels, out, norm, 1, stride, act=False) if changed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Pixels (batch, channels, height, width) to features of the last stage."""

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        norm: Callable[[int], nn.Module],
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
            stages.append(nn.Sequential(*blocks))
            before = width
        self.stages, self.width = nn.Sequential(*stages), before

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(pixels), 3, 2, 1)
        out: Tensor = self.stages(x)
        return out
