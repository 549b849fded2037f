"""Image processors of folders: preprocessor_config.json both ways, and the folders of models of images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...files import JsonMapping, JsonObject, write_json
from ...processors.image.processor import MAX_ASPECT, RESAMPLING, Channels, ImageProcessor
from .files import PROCESSOR, read_processor
from .format import ExportSource, Folder

if TYPE_CHECKING:
    from ...tasks.predictor import AnyPredictor

CORNERS = ("height", "width")
HALF: Channels = (0.5, 0.5, 0.5)
PUBLISHED: dict[str, Channels] = {
    "mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)
}  # fmt: skip  # of the images of CLIP


@dataclass(frozen=True)
class ProcessorClass:
    """What absent keys mean in a class of transformers' image processors."""

    size: JsonMapping
    resample: int = RESAMPLING["bilinear"]
    mean: Channels = HALF
    std: Channels = HALF
    crop: int = 0  # the side of the center crop; 0: none
    shorter: bool = False  # a size of one number, as in older folders, is the shorter side and not a square


VIT, CLIP, DETR = "ViTImageProcessor", "CLIPImageProcessor", "DetrImageProcessor"
CLASSES = {
    VIT: ProcessorClass({"height": 224, "width": 224}),
    CLIP: ProcessorClass({"shortest_edge": 224}, RESAMPLING["bicubic"], **PUBLISHED, crop=224, shorter=True),
    "BitImageProcessor": ProcessorClass(
        {"shortest_edge": 224}, RESAMPLING["bicubic"], **PUBLISHED, crop=224, shorter=True
    ),
    DETR: ProcessorClass(
        {"shortest_edge": 800, "longest_edge": 1333}, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        shorter=True,
    ),
    "DeiTImageProcessor": ProcessorClass({"height": 256, "width": 256}, RESAMPLING["bicubic"], crop=224),
    "SiglipImageProcessor": ProcessorClass({"height": 224, "width": 224}, RESAMPLING["bicubic"], shorter=True),
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
    resize, max_size = _read_size(theirs, absent) if theirs.get("do_resize") is not False else (0, 0)
    resample: Any = {number: name for name, number in RESAMPLING.items()}.get(theirs.get("resample", absent.resample))
    if resample is None:
        raise ValueError(f"resample is {theirs.get('resample')}; expected one of {list(RESAMPLING.values())}")
    mean, std = _read_scaling(theirs, absent, len(default.mean))
    return replace(
        default,
        resize=resize,
        max_size=max_size,
        crop=_read_crop(theirs, absent),
        resample=resample,
        mean=mean,
        std=std,
        pad=_read_pad(theirs),
        background="transparent" if len(mean) == 4 else default.background,
    )


def class_default(class_name: str, default: ImageProcessor, channels: int, **keys: object) -> ImageProcessor:
    """The processor of a folder that has none: that of a class, whose mean and deviation belong to RGB images."""
    given = {} if channels == 3 else {"image_mean": 0.5, "image_std": 0.5}
    default = replace(default, mean=(0.5,) * channels, std=(0.5,) * channels)
    return read_image_settings({"image_processor_type": class_name, **given, **keys}, default)


def _read_scaling(theirs: JsonMapping, absent: ProcessorClass, channels: int) -> tuple[Channels, Channels]:
    """Mean and deviation of each channel. Another scale of the pixels than 1/255 is another mean and deviation."""
    values = []
    for name, standard, neutral in (("mean", absent.mean, 0.0), ("std", absent.std, 1.0)):
        given: Any = theirs.get(f"image_{name}", standard) if theirs.get("do_normalize", True) else neutral
        given = (given,) * channels if isinstance(given, int | float) else tuple(given)
        given = given[:1] * channels if len(set(given)) == 1 else given
        if len(given) != channels:
            wanted = f"expected {channels}, as many as the model has channels (num_channels)"
            raise ValueError(f"image_{name} has {len(given)} numbers; {wanted}")
        values.append(given)
    scale = 255 * theirs.get("rescale_factor", 1 / 255) if theirs.get("do_rescale", True) else 255
    if scale <= 0:
        raise ValueError(f"rescale_factor is {theirs['rescale_factor']}; expected a number above 0")
    mean, std = (value if abs(scale - 1) < 1e-9 else tuple(number / scale for number in value) for value in values)
    return mean, std


def _read_pad(theirs: JsonMapping) -> tuple[int, int]:
    """Height and width that every batch has at least."""
    size: Any = theirs.get("pad_size")
    return (size["height"], size["width"]) if size and theirs.get("do_pad", True) else (0, 0)


def _read_size(theirs: JsonMapping, absent: ProcessorClass) -> tuple[int | tuple[int, int], int]:
    """Their size, and the limit of the longer side."""
    size: Any = theirs.get("size", absent.size)
    if isinstance(size, int):
        longest = theirs.get("max_size", absent.size.get("longest_edge", 0))
        return (size, int(longest)) if absent.shorter else ((size, size), 0)
    if isinstance(size, list | tuple) and len(size) == 2:
        return (size[0], size[1]), 0
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
        "do_resize": bool(image.resize),
        **({"size": size} if image.resize else {}),
        "resample": RESAMPLING[image.resample],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(image.mean),
        "image_std": list(image.std),
    }
    if detector:
        pad = {"pad_size": dict(zip(CORNERS, image.pad, strict=True))} if any(image.pad) else {}
        return {"image_processor_type": DETR, **common, "do_pad": True, **pad, "format": "coco_detection"}
    crop = {"crop_size": dict.fromkeys(CORNERS, image.crop)} if image.crop else {}
    processor_type = CLIP if image.crop else VIT
    return {
        "image_processor_type": processor_type,
        **common,
        "do_center_crop": bool(image.crop),
        **crop,
        "do_convert_rgb": len(image.mean) == 3,
    }


# --- folders ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageFolder(Folder):
    """The contents of a folder with a model of images."""

    image: ImageProcessor
    labels: tuple[str, ...]


class ImageSource(ExportSource, Protocol):
    """The parts of an image predictor that an export reads."""

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
