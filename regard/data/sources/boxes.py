"""Images with boxes: COCO JSON, Pascal VOC XML, or data in memory."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from ...config.data.images import DetectData
from ...errors import UserError
from ...processors.image.read import RawImage, image_name, image_problem, image_size, open_image
from ...processors.labels import LabelSet, sorted_labels
from ..files.in_memory import InMemory
from ..files.open import plain_suffix
from ..files.trees import FileTree, is_archive, open_tree
from ..source import Source
from .images import IMAGE

if TYPE_CHECKING:
    from PIL import Image


class Objects(NamedTuple):
    """The objects of one image: boxes as corners (left, top, right, bottom) in pixels, within the image."""

    boxes: np.ndarray  # (objects, 4)
    labels: tuple[str, ...]
    crowd: np.ndarray  # (objects,) bool: ignored in training; a detection on a crowd is never a false positive
    areas: np.ndarray  # (objects,) in pixels, for evaluation by size
    image: int  # id
    width: int
    height: int

    @property
    def trained(self) -> "Objects":
        """The objects without crowds."""
        keep = ~self.crowd
        labels = tuple(label for label, is_kept in zip(self.labels, keep, strict=True) if is_kept)
        return self._replace(boxes=self.boxes[keep], labels=labels, crowd=self.crowd[keep], areas=self.areas[keep])


@dataclass(frozen=True)
class StoredImage:
    """An image in a folder or an archive."""

    tree: FileTree
    name: str

    def content(self) -> RawImage:
        """An object that the image processor can open."""
        return self.tree.content(self.name)

    def __str__(self) -> str:
        return self.tree.location(self.name)

    def digest(self) -> str:
        return f"{PurePosixPath(self.name).name} {self.tree.digest(self.name)}"


ExampleImage: TypeAlias = StoredImage | RawImage


class Annotation(NamedTuple):
    """An image and its objects as a file gives them."""

    image: ExampleImage
    place: str  # file and id, for messages
    number: int  # the id of the image
    size: tuple[int, int] | None  # width and height, if the file has them
    objects: Sequence[tuple[str, Sequence[float], bool, float | None]]  # label, corners, crowd, area


class BoxData(Source):
    """Images with their objects. An example is (image, Objects); `load_image` opens the image."""

    labels: LabelSet  # of all objects except crowds
    categories: Mapping[str, int]  # the ids of the labels, as COCO files have them


class BoxSource(BoxData):
    """Images with their objects in files or in memory."""

    problem = ""  # of the first image that was left out

    def __init__(
        self,
        name: str,
        annotations: Iterable[Annotation],
        categories: Mapping[str, int] | None = None,
        invalid: str = "refuse",
    ) -> None:
        self.name, self.objects, self.places = name, list[Objects](), list[str]()
        self.images: list[ExampleImage] = []
        self.facts: list[Counter[str]] = []  # of every image
        self.counts = dict.fromkeys(("examples", *FACTS), 0)
        for annotation in annotations:
            if not (problem := _problem(annotation, thorough=invalid == "skip")):
                self._add(annotation)
            elif invalid == "skip":
                self.counts["unreadable"] += 1
                self.problem = self.problem or problem
            else:
                raise UserError(f"{problem}, {IMAGE.skip_hint}")
        self.counts["examples"] = len(self.images)
        names = Counter(label for objects in self.objects for label in objects.trained.labels)
        ids = {label: number for label, number in (categories or {}).items() if label in names}
        self.labels = LabelSet({label: names[label] for label in ids}) if categories else sorted_labels(names)
        self.categories = ids or {label: number + 1 for number, label in enumerate(self.labels)}

    def _add(self, annotation: Annotation) -> None:
        width, height = annotation.size or image_size(_content(annotation.image))
        limits, entries = np.array([width, height, width, height], np.float64), []
        facts = Counter[str]()
        for label, corners, crowd, area in annotation.objects:
            stated = np.array(corners, np.float64)
            box = stated.clip(0, limits)
            if not (box[2:] > box[:2]).all():  # also if a number is not finite
                facts["no area"] += 1
                continue
            facts["clipped"] += not np.array_equal(box, stated)
            facts["crowd"] += crowd
            entries.append((box, label, crowd, float(np.prod(box[2:] - box[:2])) if area is None else area))
        facts["negative"] += not entries
        boxes = np.array([box for box, *_ in entries]).reshape(-1, 4)
        crowds, areas = np.array([entry[2] for entry in entries], bool), np.array([entry[3] for entry in entries])
        labels = tuple(label for _, label, *_ in entries)
        self.images.append(annotation.image)
        self.places.append(annotation.place)
        self.facts.append(facts)
        self.objects.append(Objects(boxes, labels, crowds, areas, annotation.number, width, height))

    def __len__(self) -> int:
        return len(self.images)

    def item(self, index: int) -> tuple[ExampleImage, Objects]:
        return self.images[index], self.objects[index]

    def location(self, index: int) -> str:
        return self.places[index]

    def fingerprint(self) -> str:
        state = hashlib.blake2b(digest_size=16)
        for image, objects in zip(self.images, self.objects, strict=True):
            state.update(image_digest(image))
            state.update(objects.boxes.tobytes() + objects.crowd.tobytes() + "\0".join(objects.labels).encode())
        return state.hexdigest()

    def notes(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        counts = Counter[str]()
        for index in indices:
            counts.update(self.facts[index])
        return [f"{counts[key]:,} {text}" for key, text in NOTES.items() if counts[key]]

    def report(self) -> list[str]:
        facts = [f"{self.counts[key]:,} {text}" for key, text in FACTS.items() if self.counts[key]]
        return [f"{fact}: {self.problem}" if fact.endswith("the first") else fact for fact in facts] + super().report()


NOTES = {
    "no area": "boxes have no area in their image and were left out",
    "clipped": "boxes reach outside their image and were clipped",
    "crowd": "boxes are crowds: training ignores them",
    "negative": "images have no box and are negative examples",
}
FACTS = {
    "other": "images have no annotation and were left out",
    "unlisted": "annotations belong to an image that the file does not list and were left out (data.invalid=skip)",
    "missing": "annotations name an image that is missing and were left out (data.invalid=skip)",
    "unreadable": "images left out because they cannot be used (data.invalid=skip); the first",
}


def _problem(annotation: Annotation, thorough: bool) -> str:
    """Why an image cannot be used, as a sentence; "" if it can."""
    raw = _content(annotation.image)
    if (problem := image_problem(raw, thorough)) or annotation.size is None:
        return problem
    if (size := image_size(raw)) == annotation.size:
        return ""
    width, height = annotation.size
    return (
        f"{annotation.place}: the image {image_name(raw)} is {size[0]} × {size[1]} pixels, upright as its camera "
        f"noted, and the annotation says {width} × {height}; correct width and height, and the boxes if they belong to "
        "the image before rotation"
    )


def load_image(image: ExampleImage, background: str = "none") -> "Image.Image":
    """The upright RGB image of an example."""
    return open_image(_content(image), background=background)


def _content(image: ExampleImage) -> RawImage:
    return image.content() if isinstance(image, StoredImage) else image


def image_digest(image: ExampleImage) -> bytes:
    """A hash of the content of an image."""
    if isinstance(image, StoredImage):
        return image.digest().encode()
    image = image.numpy() if hasattr(image, "numpy") else image  # a tensor
    content: bytes = image.tobytes() if hasattr(image, "tobytes") else str(image).encode()
    return content


def box_source(examples: Source) -> BoxData:
    """The source that these examples belong to."""
    source, _ = examples.origin(0)
    assert isinstance(source, BoxData)
    return source


def label_counts(examples: Source) -> Counter[str]:
    """How often each label occurs, without crowds."""
    return Counter(label for index in range(len(examples)) for label in examples[index][1].trained.labels)


# --- opening ---------------------------------------------------------------------------------------------------------


def boxed_images(data_files: Sequence[Sequence[str]], data: DetectData) -> BoxSource:
    """The examples in these files: images and COCO JSON, images and VOC XML, one place with both, or in memory."""
    from .annotations import coco_annotations, voc_annotations

    names = [name for group in data_files for name in group]
    if isinstance(names[0], InMemory):
        return BoxSource(names[0], memory_annotations(names[0]), invalid=data.invalid)
    if len(data_files) > 2 or not all(len(group) == 1 for group in data_files):
        raise UserError(
            f"images with boxes are {len(names)} names here; expected two, separated by a comma: the images and their "
            "annotations, such as data.train=images/,instances.json or data.train=JPEGImages/,Annotations/"
        )
    images = open_tree(Path(names[0]).expanduser())
    files = ImageFiles(images, data.invalid == "skip")
    if len(names) == 2 and not (Path(names[1]).expanduser().is_dir() or is_archive(names[1])):
        if plain_suffix(names[1]) != ".json":
            raise UserError(
                f"{names[1]} holds no annotations that regard reads; give a COCO .json file or a folder of VOC .xml "
                "files"
            )
        annotations, categories = coco_annotations(names[1], files)
        examples = BoxSource(names[1], annotations, categories, data.invalid)
    else:
        annotations = voc_annotations(images if len(names) == 1 else open_tree(Path(names[1]).expanduser()), files)
        examples = BoxSource(names[-1], annotations, invalid=data.invalid)
        examples.counts["other"] = len(files.images) - len(examples)
    examples.counts |= {"missing": files.missing, "unlisted": files.unlisted}
    return examples


class ImageFiles:
    """Finds the images that annotations name."""

    def __init__(self, tree: FileTree, skip: bool = False) -> None:
        self.tree, self.skip, self.missing, self.unlisted = tree, skip, 0, 0
        self.images = {name for name in tree.names if IMAGE.is_name(name)}
        self._by_base: dict[str, list[str]] = {}
        for name in self.images:
            self._by_base.setdefault(PurePosixPath(name).name, []).append(name)

    def has(self, name: str) -> bool:
        return bool(self._candidates(name))

    def with_stem(self, stem: str) -> list[str]:
        """The images with this name and any suffix."""
        return [name for name in sorted(self.images) if PurePosixPath(name).stem == stem]

    def _candidates(self, name: str) -> list[str]:
        paths = [name] if name in self.images else self._by_base.get(PurePosixPath(name).name, [])
        return [path for path in paths if path.endswith(f"/{name}")] or paths

    def find(self, name: str, place: str) -> StoredImage | None:
        """The image with this path, or the only one with this file name; None if it is missing and skipped."""
        paths = self._candidates(name)
        if len(paths) == 1:
            return StoredImage(self.tree, paths[0])
        if self.skip:
            self.missing += 1
            return None
        times = f"has {len(paths)} times" if paths else "does not have"
        raise UserError(
            f"{place} names the image {name!r}, which {self.tree.path} {times}; correct the name or the images; "
            "data.invalid=skip leaves the annotation out"
        )


def memory_annotations(name: InMemory) -> Iterable[Annotation]:
    """The annotations in a list of (image, boxes, labels), with boxes as x0 y0 x1 y1 in pixels."""
    for number, row in enumerate(name.data if hasattr(name.data, "__getitem__") else ()):
        place = f"{name}, example {number + 1}"
        try:
            image, boxes, labels = row
            corners = np.array(boxes, np.float64).reshape(-1, 4).tolist()
            pairs = list(zip(map(str, labels), corners, strict=True))
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{place} is no image with boxes and labels; expected (image, boxes, labels) with four numbers x0 y0 "
                "x1 y1 for each box and a label for each"
            ) from error
        yield Annotation(image, place, number + 1, None, [(label, box, False, None) for label, box in pairs])
