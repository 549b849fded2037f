"""Reads the annotations of Pascal VOC: one XML file per image."""

from pathlib import PurePosixPath
from xml.etree import ElementTree

from ...errors import UserError
from ..files.trees import FileTree
from .boxes import Annotation, ImageFiles

CORNERS = ("xmin", "ymin", "xmax", "ymax")


def voc_annotations(tree: FileTree, files: ImageFiles) -> list[Annotation]:
    """The annotations in the XML files of a folder or archive. Difficult objects are crowds."""
    names = [name for name in tree.names if name.lower().endswith(".xml")]
    if not names:
        raise UserError(
            f"{tree.path} holds no .xml file of VOC annotations; give the folder of annotations after that of the "
            "images, or a COCO .json file: data.train=images/,instances.json"
        )
    found = []
    for number, name in enumerate(names):
        place = tree.location(name)
        root = _parse(tree.read(name), place)
        image = files.find(_image_name(root, name, files), place)
        if image is not None:
            found.append(
                Annotation(
                    image, place, number + 1, _size(root), [_object(each, place) for each in root.iter("object")]
                )
            )
    return found


def _parse(content: bytes, place: str) -> ElementTree.Element:
    if b"<!ENTITY" in content:
        raise UserError(f"{place} defines entities, which VOC annotations never do; remove them")
    try:
        return ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise UserError(f"{place} is no valid XML ({error}); expected an annotation of Pascal VOC") from error


def _image_name(root: ElementTree.Element, name: str, files: ImageFiles) -> str:
    """The name in the file; if there is no such image, the one that is named as the XML file is."""
    given = (root.findtext("filename") or "").strip()
    stem = PurePosixPath(name).stem
    if given and files.has(given):
        return given
    return next((each for each in files.with_stem(stem)), given or stem)


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    try:
        width, height = (int(root.findtext(f"size/{key}") or 0) for key in ("width", "height"))
    except ValueError:
        return None
    return (width, height) if width > 0 and height > 0 else None


def _object(each: ElementTree.Element, place: str) -> tuple[str, list[float], bool, float | None]:
    label, texts = (each.findtext("name") or "").strip(), [each.findtext(f"bndbox/{key}") for key in CORNERS]
    try:
        corners = [float(text or "") for text in texts]
    except ValueError:
        corners = []
    if not label or not corners:
        raise UserError(
            f"{place} has an object with name {label!r} and box {texts}; expected a name and a bndbox with "
            f"{', '.join(CORNERS)}"
        )
    return label, corners, (each.findtext("difficult") or "").strip() == "1", None
