"""The settings of tasks that read images."""

from typing import Annotated

from pydantic import Field

from .schema import TableData
from .types import Base, Count, Positive, Share, Strings


class ImageData(TableData):
    """Images with labels, and how they are changed in training."""

    names: Strings = ()  # of labels that are given by their index
    size: Count = 0  # side of the images in pixels; 0: model.image
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)  # of each channel, subtracted
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)  # of each channel, divided by
    crop: Annotated[float, Field(gt=0, le=1)] = 0.08  # the smallest share of an image that training crops; 1: no crop
    flip: bool = True  # mirror half of the images
    color: Share = 0.0  # brightness, contrast and saturation change by up to this share
    randaugment: Count = 0  # random operations on each image (1909.13719)
    strength: Annotated[float, Field(ge=0, le=1)] = 0.3  # of these operations
    erase: Share = 0.0  # how often a random rectangle is erased
    mixup: Annotated[float, Field(ge=0)] = 0.0  # alpha of mixup (1710.09412); 0: off
    cutmix: Annotated[float, Field(ge=0)] = 0.0  # alpha of CutMix (1905.04899); with mixup, each half of the time
    examples: Positive = 10000  # embedded training images


class ImageDecode(Base):
    """Predictions and embeddings of images."""

    top: Count = 0  # number of most likely labels, with probabilities; 0: the best one only
    normalize: bool = True  # embeddings have length 1
    batch: Positive = 32  # images per batch
