"""Reads the annotations of images: COCO JSON and Pascal VOC XML."""

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

from ...errors import UserError
from ...files import JsonObject
from ..files.open import ARCHIVE_ERRORS, archive_error, matching_files, open_decompressed, plain_suffix
from ..files.trees import FileTree
from .boxes import Annotation, ImageFiles


def coco_annotations(name: str, files: ImageFiles) -> tuple[list[Annotation], dict[str, int]]:
    """The annotations in a file, one per image, and the ids of the categories by name, ascending."""
    path = matching_files(name)[0]
    content = read_coco(path)
    names = _category_names(path, content["categories"])
    objects = defaultdict[Any, list[tuple[str, list[float], bool, float | None]]](list)
    image_ids = {_field(image, "id", path, "image", None) for image in content["images"]}
    for annotation in content["annotations"]:
        place = f"{path}, annotation {annotation.get('id') if isinstance(annotation, dict) else annotation!r:.40}"
        image, category = _known_image(annotation, image_ids, path, place, files), annotation.get("category_id")
        if image is None:
            continue
        if category not in names:
            raise UserError(f"{place} has category_id {category!r}, which `categories` does not list; correct it")
        corners = _corners(annotation.get("bbox"), place)
        area = float(annotation["area"]) if isinstance(annotation.get("area"), int | float) else None
        objects[image].append((names[category], corners, bool(annotation.get("iscrowd", 0)), area))
    annotations = []
    for image in content["images"]:
        place = f"{path}, image {image['id']}"
        stored = files.find(str(_field(image, "file_name", path, "image", place)), place)
        size = (image["width"], image["height"]) if image.get("width") and image.get("height") else None
        if stored is not None:
            annotations.append(Annotation(stored, place, image["id"], size, objects[image["id"]]))
    return annotations, {names[number]: number for number in sorted(names)}


def coco_captions(path: Path, files: ImageFiles) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """For each image of a COCO caption file: its place, its file name, and its captions as (place, caption)."""
    content = read_coco(path, ("images", "annotations"))
    captions = defaultdict[Any, list[tuple[str, str]]](list)
    image_ids = {_field(image, "id", path, "image", None) for image in content["images"]}
    for annotation in content["annotations"]:
        place = f"{path}, annotation {annotation.get('id') if isinstance(annotation, dict) else annotation!r:.40}"
        image = _known_image(annotation, image_ids, path, place, files)
        if image is None:
            continue
        if not isinstance(text := annotation.get("caption"), str):
            raise UserError(f"{place} has no caption; expected the captions of COCO, not its boxes or keypoints")
        captions[image].append((place, text))
    images = [(f"{path}, image {image['id']}", image) for image in content["images"]]
    return [
        (place, str(_field(image, "file_name", path, "image", place)), captions[image["id"]]) for place, image in images
    ]


def _known_image(annotation: Any, image_ids: Collection[Any], path: Path, place: str, files: ImageFiles) -> Any:
    """The id of the image that an annotation belongs to; None if the file does not list it and such are skipped."""
    image = _field(annotation, "image_id", path, "annotation", place)
    if image in image_ids:
        return image
    if files.skip:
        files.unlisted += 1
        return None
    raise UserError(
        f"{place} belongs to image {image!r}, which `images` does not list; add it or remove it, or set "
        "data.invalid=skip to leave such annotations out"
    )


def read_coco(path: Path, expected: Sequence[str] = ("images", "annotations", "categories")) -> JsonObject:
    """The object in a file of COCO annotations. It must have the expected lists."""
    try:
        with open_decompressed(path) as file:
            content = json.load(file)
    except ARCHIVE_ERRORS as error:
        raise archive_error(path, error) from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}); expected COCO annotations") from error
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in expected):
        raise UserError(f"{path} is no COCO annotation file; expected an object with the lists {', '.join(expected)}")
    return content


def _field(entry: Any, key: str, path: Path, noun: str, place: str | None) -> Any:
    if not isinstance(entry, dict) or not isinstance(entry.get(key), int | str):
        raise UserError(f"{place or path}: the {noun} {entry!r:.60} has no {key}; COCO annotations need it")
    return entry[key]


def _category_names(path: Path, categories: list[Any]) -> dict[int, str]:
    """Category names by id; ids may have gaps. Duplicate names get their ids appended."""
    names = {
        _field(category, "id", path, "category", None): str(_field(category, "name", path, "category", None))
        for category in categories
    }
    several = [name for name in names.values() if list(names.values()).count(name) > 1]
    return {number: f"{name} ({number})" if name in several else name for number, name in names.items()}


def _corners(box: Any, place: str) -> list[float]:
    """x, y, width, height as two corners."""
    try:
        x, y, width, height = map(float, box)
    except (TypeError, ValueError) as error:
        raise UserError(f"{place} has bbox {box!r:.60}; expected four numbers: x, y, width, height") from error
    return [x, y, x + width, y + height]


def image_numbers(files: Sequence[Sequence[str]]) -> dict[str, int]:
    """The ids of images by file name, in the COCO files among these names; none if there is no such file."""
    names = [name for group in files for name in group if plain_suffix(name) == ".json" and Path(name).is_file()]
    images = [image for name in names for image in read_coco(Path(name))["images"] if "file_name" in image]
    return {PurePosixPath(image["file_name"]).name: image["id"] for image in images}


CORNERS = ("xmin", "ymin", "xmax", "ymax")


def voc_annotations(tree: FileTree, files: ImageFiles) -> list[Annotation]:
    """The annotations in the XML files of a folder or archive. Difficult objects are crowds."""
    names = [name for name in tree.names if name.lower().endswith(".xml")]
    if not names:
        raise UserError(
            f"{tree.path} holds no .xml file of VOC annotations; give the folder of annotations after that of the "
            "images, or a COCO .json file: data.train=images/,instances.json"
        )
    annotations = []
    for number, name in enumerate(names):
        place = tree.location(name)
        root = _parse(tree.read(name), place)
        image = files.find(_image_name(root, name, files), place)
        if image is not None:
            objects = [_object(element, place) for element in root.iter("object")]
            annotations.append(Annotation(image, place, number + 1, _size(root), objects))
    return annotations


def _parse(content: bytes, place: str) -> ElementTree.Element:
    if b"<!ENTITY" in content:
        raise UserError(f"{place} defines entities, which VOC annotations never do; remove them")
    try:
        return ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise UserError(f"{place} is no valid XML ({error}); expected an annotation of Pascal VOC") from error


def _image_name(root: ElementTree.Element, name: str, files: ImageFiles) -> str:
    """The image name in the file; if there is no such image, the image with the name of the XML file."""
    stated = (root.findtext("filename") or "").strip()
    stem = PurePosixPath(name).stem
    if stated and files.has(stated):
        return stated
    return next(iter(files.with_stem(stem)), stated or stem)


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    try:
        width, height = (int(root.findtext(f"size/{key}") or 0) for key in ("width", "height"))
    except ValueError:
        return None
    return (width, height) if width > 0 and height > 0 else None


def _object(element: ElementTree.Element, place: str) -> tuple[str, list[float], bool, float | None]:
    label, texts = (element.findtext("name") or "").strip(), [element.findtext(f"bndbox/{key}") for key in CORNERS]
    try:
        corners = [float(text or "") for text in texts]
    except ValueError:
        corners = []
    if not label or not corners:
        raise UserError(
            f"{place} has an object with name {label!r} and box {texts}; expected a name and a bndbox with "
            f"{', '.join(CORNERS)}"
        )
    return label, corners, (element.findtext("difficult") or "").strip() == "1", None
