"""The settings of tasks that read images."""

from typing import Annotated

from pydantic import Field, model_validator

from ..types import Count, Positive, Share, Strings
from .base import Data, DataFiles, TableData

Background = Annotated[str, Field(pattern=r"^(white|black|gray|none|#[0-9a-fA-F]{6})$")]


class SquareImages(Data):
    """Images that are resized to squares, and how they are changed in training."""

    size: Count = 0  # side of the images in pixels; 0: as the model says
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)  # of each channel: subtracted from its pixels; the run keeps it
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)  # of each channel: divides its pixels, after mean
    background: Background = (
        "white"  # of transparent images: white, black, gray or #rrggbb; the run keeps it; none: the
    )
    # colors that transparent pixels have, often black
    crop: Annotated[float, Field(gt=0, le=1)] = 0.08  # training crops a random part of an image, at least this share;
    # 1: no crop
    flip: bool = True  # mirror half of the images
    color: Share = 0.0  # brightness, contrast and saturation change by up to this share
    randaugment: Count = 0  # random operations on each image (RandAugment, 1909.13719)
    strength: Annotated[float, Field(ge=0, le=1)] = 0.3  # of the operations of randaugment
    erase: Share = 0.0  # how often a random rectangle is erased
    examples: Positive = 20000  # training images of the embedded data


class ImageTable(SquareImages, TableData):
    """Images that may come in tables."""


class NamedImages(ImageTable):
    """Images with names: labels, or texts."""

    names: Strings = ()  # of labels or texts that are given by their index from 0


class ImageData(NamedImages):
    """Images with labels."""

    train: DataFiles = ()  # a folder with one folder per class; a .zip or .tar of it; a table of path and label (CSV,
    # TSV, JSONL …); or two IDX files, images and labels, as MNIST has them. Empty: embedded digits
    mixup: Annotated[float, Field(ge=0)] = 0.0  # alpha of mixup (1710.09412); 0: off
    cutmix: Annotated[float, Field(ge=0)] = 0.0  # alpha of CutMix (1905.04899); with mixup, each half of the time


class CaptionData(ImageTable):
    """Images with captions. A mirrored image may not fit its caption: "left of" would be wrong."""

    train: DataFiles = ()  # images and captions: a folder or an archive, a comma, and a table of path and caption or a
    # COCO caption file; or a table alone; or a folder with a .txt beside each image. Empty: embedded scenes
    max_tokens: Positive = 256  # of a caption
    crop: Annotated[float, Field(gt=0, le=1)] = 1.0  # training crops a random part of an image, at least this share; 1:
    # no crop
    flip: bool = False  # mirror half of the images; not if captions say left and right
    shapes: Annotated[int, Field(ge=1, le=3)] = 2  # shapes of an embedded scene, at most


Triple = tuple[float, float, float]
ImageScale = Annotated[float, Field(gt=0, le=4)]


class DetectData(Data):
    """Images with boxes, and how both are changed in training."""

    train: DataFiles = ()  # images and annotations: images/,instances.json (COCO), JPEGImages/,Annotations/ (VOC), or
    # one folder with .xml files beside the images. Images may be in a .zip or .tar. Empty: embedded scenes
    max_tokens: Positive = 100000  # cells of 16 × 16 pixels of an image, at most
    size: Positive = 800  # of the shorter side in pixels
    max_size: Positive = 1333  # of the longer side, which may make the shorter one smaller
    mean: Triple = (0.485, 0.456, 0.406)  # of each channel: subtracted from its pixels; the run keeps it
    std: Triple = (0.229, 0.224, 0.225)  # of each channel: divides its pixels, after mean
    background: Background = (
        "white"  # of transparent images: white, black, gray or #rrggbb; the run keeps it; none: the
    )
    # colors that transparent pixels have, often black
    scale: tuple[ImageScale, ImageScale] = (0.5, 1.0)  # training reads a random window: its sides in those of the
    # image; above 1 it has a border
    stretch: Share = 0.0  # the window's aspect changes by up to this share
    visible: Share = 0.3  # a box of which the window leaves less is dropped
    flip: bool = True  # mirror half of the images, left and right
    upside: bool = False  # mirror half of the images, up and down
    color: Share = 0.0  # brightness, contrast and saturation change by up to this share
    erase: Share = 0.0  # how often a random rectangle is erased
    examples: Positive = 4000  # training images of the embedded data

    @model_validator(mode="after")
    def _check_scale(self) -> "DetectData":
        if self.scale[0] > self.scale[1]:
            raise ValueError(f"data.scale is {self.scale}; expected the smaller number first")
        return self
