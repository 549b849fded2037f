"""Image processors of folders: preprocessor_config.json both ways, and the folders of models of images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from ...config.run import AnyRun
from ...files import JsonMapping, JsonObject, write_json
from ...processors.image.processor import MAX_ASPECT, RESAMPLING, ImageProcessor, Triple
from .files import PROCESSOR, read_processor
from .format import Folder

if TYPE_CHECKING:
    from ...tasks.predictor import AnyPredictor

CORNERS = ("height", "width")
HALF: Triple = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class ProcessorClass:
    """What absent keys mean in a class of transformers' image processors."""

    size: JsonMapping
    resample: int = RESAMPLING["bilinear"]
    mean: Triple = HALF
    std: Triple = HALF
    crop: int = 0  # the side of the center crop; 0: none
    shorter: bool = False  # a size of one number, as in older folders, is the shorter side and not a square


VIT, CLIP, DETR = "ViTImageProcessor", "CLIPImageProcessor", "DetrImageProcessor"
CLASSES = {
    VIT: ProcessorClass({"height": 224, "width": 224}),
    CLIP: ProcessorClass(
        {"shortest_edge": 224}, RESAMPLING["bicubic"], (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711), 224, shorter=True,
    ),
    DETR: ProcessorClass(
        {"shortest_edge": 800, "longest_edge": 1333}, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        shorter=True,
    ),
    "DeiTImageProcessor": ProcessorClass({"height": 256, "width": 256}, RESAMPLING["bicubic"], crop=224),
}  # fmt: skip


def read_image_settings(theirs: JsonMapping, default: ImageProcessor, class_name: str = VIT) -> ImageProcessor:
    """Our processor; that of a folder without settings is `default`. ValueError for what it cannot represent.

    An absent key means what it means in the class that the folder names, or else in `class_name`.
    """
    if not theirs:
        return default
    named = str(theirs.get("image_processor_type") or theirs.get("feature_extractor_type") or class_name)
    name = named.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if name not in CLASSES:
        raise ValueError(f"image_processor_type is {named!r}; regard reads {', '.join(CLASSES)}")
    absent = CLASSES[name]
    if abs(theirs.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-9 or theirs.get("do_rescale") is False:
        raise ValueError(f"rescale_factor is {theirs.get('rescale_factor')}; regard scales pixels by 1/255")
    if theirs.get("do_resize") is False:
        raise ValueError("do_resize is false; regard resizes every image")
    resize, max_size = _read_size(theirs, absent)
    resample: Any = {number: name for name, number in RESAMPLING.items()}.get(theirs.get("resample", absent.resample))
    if resample is None:
        raise ValueError(f"resample is {theirs.get('resample')}; expected one of {list(RESAMPLING.values())}")
    normal = theirs.get("do_normalize", True)
    mean, std = (
        tuple(theirs.get(f"image_{name}", value)) if normal else (neutral,) * 3
        for name, value, neutral in (("mean", absent.mean, 0.0), ("std", absent.std, 1.0))
    )
    return replace(
        default,
        resize=resize,
        max_size=max_size,
        crop=_read_crop(theirs, absent),
        resample=resample,
        mean=mean,
        std=std,
    )


def _read_size(theirs: JsonMapping, absent: ProcessorClass) -> tuple[int | tuple[int, int], int]:
    """Their size, and the limit of the longer side."""
    size: Any = theirs.get("size", absent.size)
    if isinstance(size, int):
        longest = theirs.get("max_size", absent.size.get("longest_edge", 0))
        return (size, int(longest)) if absent.shorter else ((size, size), 0)
    if isinstance(size, Mapping) and "shortest_edge" in size:
        return size["shortest_edge"], size.get("longest_edge") or 0
    if isinstance(size, Mapping) and all(key in size for key in CORNERS):
        return (size["height"], size["width"]), 0
    raise ValueError(f"size is {size}; expected shortest_edge, or height and width")


def _read_crop(theirs: JsonMapping, absent: ProcessorClass) -> int:
    cropped = theirs.get("do_center_crop", bool(absent.crop))
    crop: Any = theirs.get("crop_size", absent.crop) if cropped else 0
    if isinstance(crop, Mapping) and crop["height"] != crop["width"]:
        raise ValueError(f"crop_size is {crop}; regard crops squares")
    return int(crop["height"] if isinstance(crop, Mapping) else crop)


def write_image_settings(image: ImageProcessor, detector: bool = False) -> JsonObject:
    """Their preprocessor_config.json of our processor; that of a detector pads batches and limits the longer side."""
    size: JsonObject
    if not isinstance(image.resize, int):
        size = dict(zip(CORNERS, image.resize, strict=True))
    else:
        longest = {"longest_edge": image.max_size or image.resize * MAX_ASPECT} if detector else {}
        size = {"shortest_edge": image.resize} | longest
    common = {
        "do_resize": True,
        "size": size,
        "resample": RESAMPLING[image.resample],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(image.mean),
        "image_std": list(image.std),
    }
    if detector:
        return {"image_processor_type": DETR, **common, "do_pad": True, "format": "coco_detection"}
    crop = {"crop_size": dict.fromkeys(CORNERS, image.crop)} if image.crop else {}
    processor_type = CLIP if image.crop else VIT
    return {
        "image_processor_type": processor_type,
        **common,
        "do_center_crop": bool(image.crop),
        **crop,
        "do_convert_rgb": True,
    }


# --- folders ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageFolder(Folder):
    """The contents of a folder with a model of images."""

    image: ImageProcessor
    labels: tuple[str, ...]


class ImageSource(Protocol):
    """The parts of an image predictor that an export reads."""

    @property
    def run(self) -> AnyRun: ...
    @property
    def module(self) -> nn.Module: ...
    @property
    def image(self) -> ImageProcessor: ...


@dataclass(frozen=True)
class ImageProcessors:
    """The image processor and labels of a task's folders; `default` is the processor of a folder that has none."""

    task: str  # the name of its package
    default: Callable[[Any], ImageProcessor]  # by our Config
    labels: Callable[[JsonMapping], list[str]]
    class_name: str = VIT

    def read(self, folder: Folder) -> ImageFolder:
        """The folder with its image processor and labels."""
        image = read_image(folder.path, self.default(folder.config), self.class_name)
        labels = tuple(self.labels(folder.theirs)) if folder.config.labels else ()
        return ImageFolder(**vars(folder), image=image, labels=labels)

    def load(self, folder: ImageFolder, overrides: JsonMapping) -> "AnyPredictor":
        """The predictor of a folder."""
        predictor: AnyPredictor = import_module(f"regard.tasks.{self.task}.task").from_folder(folder, overrides)
        return predictor

    def write(self, predictor: ImageSource, draft: Path) -> JsonObject:
        """Write preprocessor_config.json."""
        write_json(draft / PROCESSOR, write_image_settings(predictor.image, self.class_name == DETR))
        return {}


def read_image(path: Path, default: ImageProcessor, class_name: str) -> ImageProcessor:
    """The image processor of a folder."""
    return read_processor(path, "image_processor", lambda theirs: read_image_settings(theirs, default, class_name))
