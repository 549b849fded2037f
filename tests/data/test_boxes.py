"""Images with boxes from COCO, VOC and memory; windows that boxes follow; embedded scenes."""

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.config.data.images import DetectData
from regard.config.train import Train
from regard.data.datasets.boxes import BoxDataset, ObjectsField
from regard.data.sources.boxes import box_source, boxed_images, label_counts, load_image
from regard.data.sources.data_files import as_data_files
from regard.data.sources.holdout import hold_out
from regard.errors import UserError
from regard.processors.boxes import BoxProcessor
from regard.processors.image.box_window import BoxWindow
from regard.processors.image.processor import ImageProcessor
from regard.processors.labels import LabelProcessor, LabelSet
from regard.synthetic.scenes import HELD_OUT, OVERLAP, SIDE, make_scenes

DATA = DetectData()


def jpeg(width: int = 40, height: int = 30, value: int = 90, orientation: int = 1) -> bytes:
    out, exif = io.BytesIO(), Image.Exif()
    exif[274] = orientation
    Image.new("RGB", (width, height), (value, value, value)).save(out, "JPEG", exif=exif)
    return out.getvalue()


def coco(**changes: Any) -> dict[str, Any]:
    """Three images, the last without boxes; category ids with gaps."""
    images = [{"id": 10 * n, "file_name": f"{n}.jpg", "width": 40, "height": 30} for n in (1, 2, 3)]
    boxes = [
        {"id": 1, "image_id": 10, "category_id": 7, "bbox": [1, 2, 10, 20], "area": 150, "iscrowd": 0},
        {"id": 2, "image_id": 10, "category_id": 3, "bbox": [30, 20, 20, 20]},
        {"id": 3, "image_id": 10, "category_id": 3, "bbox": [5, 5, 0, 4], "iscrowd": 0},
        {"id": 4, "image_id": 20, "category_id": 7, "bbox": [0, 0, 40, 30], "iscrowd": 1},
        {"id": 5, "image_id": 20, "category_id": 7, "bbox": [50, 0, 9, 9], "iscrowd": 0},
    ]
    names = [{"id": 7, "name": "cell"}, {"id": 3, "name": "plate"}, {"id": 90, "name": "unused"}]
    return {"images": images, "annotations": boxes, "categories": names} | changes


def write_coco(folder: Path, content: Any = None, images: str = "images") -> tuple[tuple[str], tuple[str]]:
    (folder / images).mkdir(exist_ok=True)
    for number in (1, 2, 3):
        (folder / images / f"{number}.jpg").write_bytes(jpeg(value=60 * number))
    path = folder / "instances.json"
    path.write_text(json.dumps(coco() if content is None else content))
    return (str(folder / images),), (str(path),)


def test_coco_files(tmp_path: Path) -> None:
    examples = boxed_images(write_coco(tmp_path), DATA)
    assert len(examples) == 3 and examples.categories == {"plate": 3, "cell": 7}
    assert examples.labels.counts == {"plate": 1, "cell": 1}  # in the order of the ids; crowds and unused left out
    image, objects = examples[0]
    assert objects.boxes.tolist() == [[1, 2, 11, 22], [30, 20, 40, 30]] and objects.labels == ("cell", "plate")
    assert objects.areas.tolist() == [150, 100] and objects.image == 10 and load_image(image).size == (40, 30)
    _, objects = examples[1]
    assert objects.crowd.tolist() == [True] and objects.trained.labels == () and len(objects.trained.boxes) == 0
    assert examples[2][1].boxes.shape == (0, 4) and examples.location(2).endswith("instances.json, image 30")
    whole = range(len(examples))
    assert examples.report() == [] and examples.notes(whole) == [
        "2 boxes have no area in their image and were left out",
        "1 boxes reach outside their image and were clipped",
        "1 boxes are crowds: training ignores them",
        "1 images have no box and are negative examples",
    ]


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_images_in_archives_and_compressed_json(kind: str, tmp_path: Path) -> None:
    (images,), (annotations,) = write_coco(tmp_path)
    archive = tmp_path / f"images.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as made:
            for file in Path(images).iterdir():
                made.write(file, f"around/{file.name}")
    else:
        with tarfile.open(archive, "w:gz" if kind.endswith("gz") else "w") as made:
            made.add(images, "around")
    packed = tmp_path / "instances.json.gz"
    packed.write_bytes(gzip.compress(Path(annotations).read_bytes()))
    plain, other = (
        boxed_images(((images,), (annotations,)), DATA),
        boxed_images(((str(archive),), (str(packed),)), DATA),
    )
    for (one, _), (two, _) in zip(plain, other, strict=True):
        assert load_image(one).tobytes() == load_image(two).tobytes()
    assert [each.boxes.tolist() for _, each in plain] == [each.boxes.tolist() for _, each in other]
    if kind == "tar":
        assert plain.fingerprint() == other.fingerprint()


def test_the_fingerprint_changes_with_boxes_and_images(tmp_path: Path) -> None:
    sides = write_coco(tmp_path)
    first = boxed_images(sides, DATA).fingerprint()
    assert first == boxed_images(sides, DATA).fingerprint()
    content = coco()
    content["annotations"][0]["bbox"] = [1, 2, 10, 19]
    assert boxed_images(write_coco(tmp_path, content), DATA).fingerprint() != first
    write_coco(tmp_path)
    (tmp_path / "images" / "1.jpg").write_bytes(jpeg(value=1) + b"more")
    assert boxed_images(sides, DATA).fingerprint() != first


def voc(name: str, objects: str, size: str = "<size><width>40</width><height>30</height></size>") -> str:
    return f"<annotation><filename>{name}</filename>{size}{objects}</annotation>"


def voc_object(label: str, *corners: float, difficult: int = 0) -> str:
    box = "".join(
        f"<{key}>{value}</{key}>" for key, value in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
    )
    return f"<object><name>{label}</name><difficult>{difficult}</difficult><bndbox>{box}</bndbox></object>"


def write_voc(folder: Path, beside: bool = False) -> tuple[tuple[str], ...]:
    images = folder / "JPEGImages"
    annotations = images if beside else folder / "Annotations"
    for path in {images, annotations}:
        path.mkdir(exist_ok=True)
    for name in ("a", "b", "c"):
        (images / f"{name}.jpg").write_bytes(jpeg())
    objects = voc_object("cat", 1, 2, 11.5, 12) + voc_object("dog", 5, 5, 60, 20, difficult=1)
    (annotations / "a.xml").write_text(voc("a.jpg", objects))
    (annotations / "b.xml").write_text(voc("other.png", "", "<size><width>0</width><height>0</height></size>"))
    return ((str(images),),) if beside else ((str(images),), (str(annotations),))


@pytest.mark.parametrize("beside", [False, True])
def test_voc_folders(beside: bool, tmp_path: Path) -> None:
    examples = boxed_images(write_voc(tmp_path, beside), DATA)
    assert [each.boxes.tolist() for _, each in examples] == [[[1, 2, 11.5, 12], [5, 5, 40, 20]], []]
    assert examples[0][1].crowd.tolist() == [False, True]  # difficult objects do not count
    assert examples[1][1][-2:] == (40, 30)  # from the image, because the file says 0
    assert examples.labels.counts == {"cat": 1} and examples.categories == {"cat": 1}
    assert "1 images have no annotation and were left out" in examples.report()


def test_boxes_in_memory() -> None:
    image = np.zeros((20, 30, 3), np.uint8)
    rows = [(image, [[1, 2, 3, 4]], ["a"]), (Image.new("RGB", (9, 9)), [], []), (image, np.ones((2, 4)), ("b", "b"))]
    examples = boxed_images(as_data_files(rows, "data.train"), DATA)
    assert [len(each.boxes) for _, each in examples] == [1, 0, 0] and examples[0][1].height == 20
    assert examples.labels.counts == {"a": 1} and examples.facts[2]["no area"] == 2
    assert label_counts(examples) == {"a": 1} and len(examples.fingerprint()) == 32
    part = hold_out(examples, 0.34, "valid")
    assert len(part) == 1 and box_source(part) is examples


BAD: dict[str, tuple[Any, str]] = {
    "no json": ("[", "instances.json is no JSON .*; expected COCO annotations"),
    "other json": ("[]", "expected an object with the lists images, annotations, categories"),
    "no image": (coco(annotations=[{"id": 4, "image_id": 9, "category_id": 7, "bbox": [0] * 4}]), "annotation 4 belongs to image 9, which"),
    "no category": (coco(annotations=[{"id": 4, "image_id": 10, "category_id": 8, "bbox": [0] * 4}]), "annotation 4 has category_id 8"),
    "no id": (coco(annotations=[{"category_id": 7}]), "has no image_id; COCO annotations need it"),
    "no object": (coco(annotations=[3]), "the annotation 3 has no image_id"),
    "bad box": (coco(annotations=[{"id": 5, "image_id": 10, "category_id": 7, "bbox": [1, 2]}]), "annotation 5 has bbox .1, 2.; expected four numbers"),
    "missing file": (coco(images=[{"id": 10, "file_name": "x/9.jpg", "width": 1, "height": 1}], annotations=[]), "image 10 names the image 'x/9.jpg', which .* does not have"),
    "no name": (coco(images=[{"id": 1}], annotations=[]), "has no file_name"),
    "size": (coco(images=[{"id": 1, "file_name": "1.jpg", "width": 30, "height": 40}], annotations=[]), "1.jpg is 40 × 30 pixels, upright .* says 30 × 40"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_coco_files(case: str, tmp_path: Path) -> None:
    content, message = BAD[case]
    sides = write_coco(tmp_path, {} if isinstance(content, str) else content)
    if isinstance(content, str):
        Path(sides[1][0]).write_text(content)
    with pytest.raises(UserError, match=message):
        boxed_images(sides, DATA)


def test_facts_about_boxes_are_those_of_their_part(tmp_path: Path) -> None:
    """Images without boxes are counted where they are, not in both parts of the data."""
    examples = boxed_images(write_coco(tmp_path), DATA)
    parts = [hold_out(examples, 0.34, split) for split in ("train", "valid")]
    notes = [note for part in parts for note in part.notes(range(len(part)))]
    for fact in examples.notes(range(3)):
        count, words = fact.split(" ", 1)
        assert sum(int(note.split(" ", 1)[0]) for note in notes if note.split(" ", 1)[1] == words) == int(count)
    assert all(note.split(" ", 1)[0] != "0" for note in notes)


def test_annotations_of_unlisted_images_can_be_skipped(tmp_path: Path) -> None:
    content = coco()
    content["annotations"][0]["image_id"] = 99
    examples = boxed_images(write_coco(tmp_path, content), DetectData(invalid="skip"))
    assert len(examples) == 3 and examples[0][1].labels == ("plate",)
    assert "1 annotations belong to an image that the file does not list and were left out (data.invalid=skip)" in (
        examples.report()
    )


def test_missing_images_can_be_skipped(tmp_path: Path) -> None:
    content = coco()
    content["images"][2]["file_name"] = "gone.jpg"
    examples = boxed_images(write_coco(tmp_path, content), DetectData(invalid="skip"))
    assert len(examples) == 2 and any(
        "1 annotations name an image that is missing" in fact for fact in examples.report()
    )


def test_damaged_images_are_found_before_training(tmp_path: Path) -> None:
    sides = write_coco(tmp_path)
    damaged = tmp_path / "images" / "2.jpg"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(UserError, match="2.jpg.*, or set data.invalid=skip"):
        boxed_images(sides, DATA)
    examples = boxed_images(sides, DetectData(invalid="skip"))
    assert len(examples) == 2 and examples.report()[-1].startswith("1 images left out because they cannot be used")
    assert "2.jpg" in examples.report()[-1]


def test_names_that_several_images_have(tmp_path: Path) -> None:
    sides = write_coco(tmp_path)
    for folder in ("x", "y"):
        (tmp_path / "images" / folder).mkdir()
        (tmp_path / "images" / folder / "9.jpg").write_bytes(jpeg())
    content = coco(annotations=[], images=[{"id": 1, "file_name": "x/9.jpg", "width": 40, "height": 30}])
    assert len(boxed_images(write_coco(tmp_path, content), DATA)) == 1
    content["images"][0]["file_name"] = "9.jpg"
    Path(sides[1][0]).write_text(json.dumps(content))
    with pytest.raises(UserError, match="names the image '9.jpg', which .* has 2 times"):
        boxed_images(sides, DATA)


def test_turned_images_have_their_upright_size(tmp_path: Path) -> None:
    sides = write_coco(
        tmp_path, coco(annotations=[], images=[{"id": 1, "file_name": "1.jpg", "width": 30, "height": 40}])
    )
    (tmp_path / "images" / "1.jpg").write_bytes(jpeg(orientation=6))
    examples = boxed_images(sides, DATA)
    assert load_image(examples[0][0]).size == (30, 40)


def test_equal_category_names_stay_apart(tmp_path: Path) -> None:
    content = coco(categories=[{"id": 7, "name": "x"}, {"id": 3, "name": "x"}])
    assert boxed_images(write_coco(tmp_path, content), DATA).categories == {"x (3)": 3, "x (7)": 7}


def test_bad_places(tmp_path: Path) -> None:
    (images,), (annotations,) = write_coco(tmp_path)
    with pytest.raises(UserError, match="images with boxes are 3 names here; expected two"):
        boxed_images(((images,), (annotations,), ("x",)), DATA)
    with pytest.raises(UserError, match="notes.txt holds no annotations that regard reads"):
        boxed_images(((images,), ("notes.txt",)), DATA)
    with pytest.raises(UserError, match="holds no .xml file of VOC annotations"):
        boxed_images(((images,),), DATA)
    (tmp_path / "images" / "1.jpg").write_bytes(b"")
    with pytest.raises(UserError, match="1.jpg cannot be read as an image"):
        boxed_images(((images,), (annotations,)), DATA)
    Path(annotations).with_suffix(".json.gz").write_bytes(gzip.compress(b"[]")[:-9])
    with pytest.raises(UserError, match="is not a complete .gz archive"):
        boxed_images(((images,), (f"{annotations}.gz",)), DATA)
    with pytest.raises(UserError, match="example 2 is no image with boxes and labels"):
        boxed_images(
            as_data_files([(np.zeros((9, 9)), [], []), (np.zeros((9, 9)), [[1, 2]], ["a"])], "data.train"), DATA
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<annotation>", "a.xml is no valid XML"),
        ("<!DOCTYPE x [<!ENTITY a 'b'>]><annotation/>", "defines entities"),
        (voc("a.jpg", "<object><name>x</name></object>"), "has an object with name 'x' and box .None"),
        (voc("gone.jpg", "").replace("a.xml", ""), "names the image 'gone.jpg', which"),
    ],
)
def test_bad_voc_files(content: str, message: str, tmp_path: Path) -> None:
    sides = write_voc(tmp_path)
    name = "z.xml" if "gone" in content else "a.xml"
    (tmp_path / "Annotations" / name).write_text(content)
    with pytest.raises(UserError, match=message):
        boxed_images(sides, DATA)


def test_a_voc_size_that_is_no_number_is_read_from_the_image(tmp_path: Path) -> None:
    sides = write_voc(tmp_path)
    (tmp_path / "Annotations" / "a.xml").write_text(voc("a.jpg", "", "<size><width>x</width></size>"))
    assert boxed_images(sides, DATA)[0][1].width == 40


# --- windows ---------------------------------------------------------------------------------------------------------

PROCESSOR = ImageProcessor(resize=48, crop=0, patch=1, scale=(1.0, 1.0), flip=False, resample="bilinear")


def marked(boxes: np.ndarray, size: tuple[int, int] = (96, 72)) -> Image.Image:
    """A black image with white boxes."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    for left, top, right, bottom in boxes.astype(int):
        pixels[top:bottom, left:right] = 255
    return Image.fromarray(pixels)


@pytest.mark.parametrize("scale", [(1.0, 1.0), (0.5, 0.8), (1.2, 1.5)])
def test_boxes_follow_their_window(scale: tuple[float, float]) -> None:
    """The white pixels of the window are where its boxes say."""
    boxes = np.array([[10, 12, 40, 30], [60, 40, 90, 66]], np.float64)
    window = BoxWindow(
        ImageProcessor(**{**vars(PROCESSOR), "mean": (0.0, 0.0, 0.0)}), scale, 0.3, 0.3, flip=True, upside=True
    )
    seen = set()
    for seed in range(30):
        found, moved, labels = window(marked(boxes), boxes, ("a", "b"), np.random.default_rng(seed))
        again, same, _ = window(marked(boxes), boxes, ("a", "b"), np.random.default_rng(seed))
        assert np.array_equal(moved, same) and found.tobytes() == again.tobytes()
        assert found.size == (64, 48) and len(labels) == len(moved)
        seen.add(labels)
        pixels = np.asarray(found.convert("L"), np.float32) / 255
        shares = moved / [96, 72, 96, 72] * [64, 48, 64, 48]
        drawn = np.zeros_like(pixels)
        for left, top, right, bottom in shares.round().astype(int):
            drawn[top:bottom, left:right] = 1
        if len(shares) == 2 or scale == (1.0, 1.0):
            assert np.abs(pixels - drawn).mean() < 0.06
    assert ("a", "b") in seen and (len(seen) > 1 or scale[0] >= 1)


def test_boxes_with_too_little_left_are_dropped() -> None:
    window = BoxWindow(PROCESSOR, visible=0.5)
    boxes = np.array([[0, 0, 20, 20], [40, 40, 60, 60]], np.float64)
    kept, which = window._transform_boxes(boxes, (12.0, 0.0, 60.0, 72.0), (96, 72))
    assert which.tolist() == [False, True] and np.allclose(kept, [[56, 40, 96, 60]])
    kept, which = BoxWindow(PROCESSOR, visible=0.3)._transform_boxes(boxes, (12.0, 0.0, 60.0, 72.0), (96, 72))
    assert which.tolist() == [True, True] and np.allclose(kept[0], [0, 0, 16, 20])


def box_dataset(**settings: Any) -> BoxDataset:
    labels = LabelSet(dict.fromkeys(make_scenes(6)["train"].labels.names, 0))
    target = ObjectsField(BoxProcessor(), LabelProcessor(labels))
    data = DetectData(scale=(0.6, 1.2), **settings)
    window = BoxWindow(PROCESSOR, data.scale, flip=True)
    return BoxDataset(make_scenes(6)["train"], window, target, data, Train(steps=1), queries=10)


def test_batches_depend_on_seed_epoch_and_example_only() -> None:
    one, other = box_dataset(), box_dataset()
    alone, together = one.batch(np.array([4]), 2), other.batch(np.array([1, 4]), 2)
    count = int((together["label"].values[1] >= 0).sum())
    assert np.array_equal(alone["image"].values[0], together["image"].values[1])
    assert np.array_equal(alone["boxes"].values[0], together["boxes"].values[1, :count])
    assert not np.array_equal(one.batch(np.array([4]), 3)["image"].values, alone["image"].values)


def test_batches_count_class_weights_and_boxes() -> None:
    batch = box_dataset().batch(np.arange(6), 1)
    objects = int((batch["label"].values >= 0).sum())
    assert batch.counts == {"boxes": objects} and batch.count == 10 * objects + 60 - objects
    measured = box_dataset().measure(np.arange(6))
    assert measured.sizes.tolist() == [[9, 9]] * 6


def test_scales_are_in_order() -> None:
    with pytest.raises(ValueError, match="data.scale is .1.0, 0.5.; expected the smaller number first"):
        DetectData(scale=(1.0, 0.5))


# --- scenes ----------------------------------------------------------------------------------------------------------


def test_scenes_are_a_function_of_their_number() -> None:
    one, other = make_scenes(50), make_scenes(50)
    assert one["train"].fingerprint() != one["valid"].fingerprint() and len(one["test"]) == HELD_OUT
    numbers = set()
    for number in range(50):
        (image, objects), (again, same) = one["train"][number], other["train"][number]
        assert np.array_equal(image, again) and np.array_equal(objects.boxes, same.boxes)
        assert (
            image.shape == (SIDE, SIDE, 3)
            and objects.boxes.min(initial=0) >= 0
            and objects.boxes.max(initial=0) <= SIDE
        )
        numbers.add(len(objects.labels))
        for i, box in enumerate(objects.boxes):
            for other_box in objects.boxes[:i]:
                low, high = np.maximum(box[:2], other_box[:2]), np.minimum(box[2:], other_box[2:])
                assert (high - low).clip(0).prod() <= OVERLAP * min(objects.areas[i], objects.areas.max()) + 1e-9
    assert numbers >= {1, 2, 3, 4} and not np.array_equal(one["train"][0][0], one["valid"][0][0])
    assert {label for _, objects in one["train"] for label in objects.labels} == set(one["train"].labels.names)
