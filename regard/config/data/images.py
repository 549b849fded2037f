"""The settings of tasks that read images."""

from typing import Annotated

from pydantic import Field, model_validator

from ..types import Count, Positive, Share, Strings
from .base import Data, TableData


class SquareImages(Data):
    """Images that are resized to squares, and how they are changed in training."""

    size: Count = 0  # side of the images in pixels; 0: model.image
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)  # of each channel, subtracted
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)  # of each channel, divided by
    crop: Annotated[float, Field(gt=0, le=1)] = 0.08  # the smallest share of an image that training crops; 1: no crop
    flip: bool = True  # mirror half of the images
    color: Share = 0.0  # brightness, contrast and saturation change by up to this share
    randaugment: Count = 0  # random operations on each image (1909.13719)
    strength: Annotated[float, Field(ge=0, le=1)] = 0.3  # of these operations
    erase: Share = 0.0  # how often a random rectangle is erased
    examples: Positive = 20000  # embedded training images


class NamedImages(SquareImages, TableData):
    """Images with names: labels, or texts."""

    names: Strings = ()  # of labels that are given by their index


class ImageData(NamedImages):
    """Images with labels."""

    mixup: Annotated[float, Field(ge=0)] = 0.0  # alpha of mixup (1710.09412); 0: off
    cutmix: Annotated[float, Field(ge=0)] = 0.0  # alpha of CutMix (1905.04899); with mixup, each half of the time


class CaptionData(SquareImages, TableData):
    """Images with captions. A mirrored image may not fit its caption: "left of" would be wrong."""

    max_tokens: Positive = 256  # of a caption
    crop: Annotated[float, Field(gt=0, le=1)] = 1.0  # the smallest share of an image that training crops; 1: no crop
    flip: bool = False  # mirror half of the images
    shapes: Annotated[int, Field(ge=1, le=3)] = 2  # of an embedded scene, at most


Triple = tuple[float, float, float]
ImageScale = Annotated[float, Field(gt=0, le=4)]


class DetectData(Data):
    """Images with boxes, and how both are changed in training."""

    max_tokens: Positive = 100000  # cells of 16 × 16 pixels of an image
    size: Positive = 800  # of the shorter side in pixels
    max_size: Positive = 1333  # of the longer side, which may make the shorter one smaller
    mean: Triple = (0.485, 0.456, 0.406)  # of each channel, subtracted
    std: Triple = (0.229, 0.224, 0.225)  # of each channel, divided by
    scale: tuple[ImageScale, ImageScale] = (
        0.5,
        1.0,
    )  # sides of the random window, in those of the image; above 1: a border
    stretch: Share = 0.0  # the window's aspect changes by up to this share
    visible: Share = 0.3  # boxes of which the window leaves less are dropped
    flip: bool = True  # mirror half of the images, left and right
    upside: bool = False  # mirror half of the images, up and down
    color: Share = 0.0  # brightness, contrast and saturation change by up to this share
    erase: Share = 0.0  # how often a random rectangle is erased
    examples: Positive = 4000  # embedded training images

    @model_validator(mode="after")
    def _check_scale(self) -> "DetectData":
        if self.scale[0] > self.scale[1]:
            raise ValueError(f"data.scale is {self.scale}; expected the smaller number first")
        return self
