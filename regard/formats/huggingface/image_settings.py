"""preprocessor_config.json: the settings of an image processor, both ways."""

from collections.abc import Mapping
from typing import Any

from ...files import JsonMapping, JsonObject
from ...processors.image.processor import MAX_ASPECT, RESAMPLING, ImageProcessor

PROCESSOR = "preprocessor_config.json"
CORNERS = ("height", "width")


def read_image_settings(theirs: JsonMapping, default: ImageProcessor) -> ImageProcessor:
    """Our processor; an absent key means that of `default`. ValueError for what it cannot represent."""
    if not theirs:
        return default
    if abs(theirs.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-9 or theirs.get("do_rescale") is False:
        raise ValueError(f"rescale_factor is {theirs.get('rescale_factor')}; regard scales pixels by 1/255")
    if theirs.get("do_resize") is False:
        raise ValueError("do_resize is false; regard resizes every image")
    resize, max_size = _read_size(theirs, default)
    resample = {number: name for name, number in RESAMPLING.items()}.get(theirs.get("resample", 2))
    if resample is None:
        raise ValueError(f"resample is {theirs.get('resample')}; expected one of {list(RESAMPLING.values())}")
    normal = theirs.get("do_normalize", True)
    mean, std = (
        tuple(theirs.get(f"image_{name}", value)) if normal else (neutral,) * 3
        for name, value, neutral in (("mean", default.mean, 0.0), ("std", default.std, 1.0))
    )
    return ImageProcessor(
        resize=resize, max_size=max_size, crop=_read_crop(theirs), resample=resample, mean=mean, std=std,  # type: ignore[arg-type]
        patch=default.patch, scale=default.scale, flip=default.flip,
    )  # fmt: skip


def _read_size(theirs: JsonMapping, default: ImageProcessor) -> tuple[int | tuple[int, int], int]:
    """Their size, and the limit of the longer side."""
    size: Any = theirs.get("size")
    if size is None:
        return default.resize, default.max_size
    processor_type = str(theirs.get("image_processor_type") or theirs.get("feature_extractor_type") or "")
    if isinstance(size, int):  # folders of older versions: a square, or the shorter side
        shorter = default.max_size or processor_type.startswith("CLIP")
        return (size, int(theirs.get("max_size", default.max_size))) if shorter else ((size, size), 0)
    if isinstance(size, Mapping) and "shortest_edge" in size:
        return size["shortest_edge"], size.get("longest_edge") or 0
    if isinstance(size, Mapping) and all(key in size for key in CORNERS):
        return (size["height"], size["width"]), 0
    raise ValueError(f"size is {size}; expected shortest_edge, or height and width")


def _read_crop(theirs: JsonMapping) -> int:
    crop: Any = theirs.get("crop_size", 0) if theirs.get("do_center_crop") else 0
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
        return {"image_processor_type": "DetrImageProcessor", **common, "do_pad": True, "format": "coco_detection"}
    crop = {"crop_size": dict.fromkeys(CORNERS, image.crop)} if image.crop else {}
    processor_type = "CLIPImageProcessor" if image.crop else "ViTImageProcessor"
    return {
        "image_processor_type": processor_type,
        **common,
        "do_center_crop": bool(image.crop),
        **crop,
        "do_convert_rgb": True,
    }
