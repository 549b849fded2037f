"""Images with captions: embedded scenes, tables, COCO JSON, memory."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import regard
from regard.config.data.images import CaptionData
from regard.data.files.in_memory import InMemory
from regard.data.sources.captions import CAPTIONED_IMAGES, CaptionPairs
from regard.errors import UserError
from regard.processors.image.read import open_image
from regard.synthetic.captions import (
    APART,
    COLORS,
    COMBINATIONS,
    HELD_OUT,
    SHAPE_OUTLINES,
    TINT,
    UNNAMED,
    Arrangement,
    SceneSettings,
    all_combinations,
    describe_arrangement,
    draw_arrangement,
    label_text,
    make_captions,
)
from regard.synthetic.scenes import SIDE
from regard.tasks.caption.task import data_split

# --- scenes ----------------------------------------------------------------------------------------------------------


def test_captioned_scenes_are_a_function_of_their_number() -> None:
    one, other = make_captions(200), make_captions(200)
    train = one["train"]
    for number in range(20):
        (image, caption), (again, same) = train[number], other["train"][number]
        assert image.shape == (SIDE, SIDE, 3) and np.array_equal(image, again)
        assert caption == same == train.field(number, 1) == describe_arrangement(train.arrangement(number))
    assert len(train) == 200 and len(one["test"]) == HELD_OUT
    assert train.fingerprint() != one["valid"].fingerprint() != make_captions(200, most=1)["valid"].fingerprint()
    captions = set(train.texts(1))
    assert len(captions) > 150 and "a green cross above a blue circle" in captions
    assert any(each.endswith("from left to right") for each in captions)


def test_the_pixels_have_the_color_of_the_sentence() -> None:
    """The middle of a single shape is nearest to the color that its caption names."""
    test = make_captions(1, most=1)["test"]
    for index in range(40):
        image, caption = test[index]
        color = caption.split()[1]
        apart = np.abs(image.astype(int) - 130).sum(-1) > 90  # not the background
        mean = image[apart].mean(0)
        assert min(COLORS, key=lambda name: np.abs(np.array(COLORS[name]) - mean).sum()) == color


def test_unseen_combinations_are_in_the_test_split_alone() -> None:
    unseen = (("red", "cross"), ("blue", "circle"))
    splits = make_captions(300, settings=SceneSettings(1, unseen=unseen))
    seen = {label_text(each) for each in COMBINATIONS if each not in unseen}
    assert set(splits["train"].texts(1)) == seen and set(splits["valid"].texts(1)) == seen
    assert set(splits["test"].texts(1)) == {"a red cross", "a blue circle"}
    splits = make_captions(300, settings=SceneSettings(1, unseen=unseen, unseen_valid=[("green", "square")]))
    assert set(splits["train"].texts(1)) == seen - {"a green square"} and set(splits["valid"].texts(1)) == {
        "a green square"
    }
    assert set(splits["test"].texts(1)) == {"a red cross", "a blue circle"}


def test_some_shapes_have_a_color_without_a_name() -> None:
    """No such color is near one with a name, so that training never has an unseen combination."""
    named, unnamed = (make_captions(120, settings=SceneSettings(1, unnamed=share)) for share in (0.0, 0.5))
    train, colors = unnamed["train"], np.array([*COLORS.values()])
    found = Counter[bool]()
    for index in range(120):
        (color, shape), (image, sentence) = train.arrangement(index).shapes[0], train[index]
        assert shape == named["train"].arrangement(index).shapes[0][1] and sentence == train.field(index, 1)
        assert sentence == (f"a {color} {shape}" if color else f"a {shape}")
        y, x = (each.mean() for each in (np.abs(image.astype(int) - 130).sum(-1) > 90).nonzero())
        middle = image[int(y) - 2 : int(y) + 3, int(x) - 2 : int(x) + 3].reshape(-1, 3).mean(0)
        distance = np.abs(colors - middle).max(1).min()
        assert distance >= APART - TINT - 5 if color == UNNAMED else distance <= TINT + 5
        found[bool(color)] += 1
    assert min(found.values()) >= 40
    assert train.fingerprint() != named["train"].fingerprint()
    assert [*unnamed["valid"].texts(1)] == [*named["valid"].texts(1)]


def test_all_combinations_are_drawn_differently() -> None:
    combinations = all_combinations(len(COLORS), len(SHAPE_OUTLINES))
    assert len(combinations) == 96 and combinations[:4] == COMBINATIONS[:4] and len({*combinations}) == 96
    drawn = [draw_arrangement(Arrangement((each,), False), np.random.default_rng(1)) for each in combinations]
    differences = [
        np.abs(one.astype(int) - other).sum(-1) > 60 for n, one in enumerate(drawn) for other in drawn[n + 1 :]
    ]
    assert min(int(each.sum()) for each in differences) > 40  # pixels


# --- files -----------------------------------------------------------------------------------------------------------


def write_images(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (path := folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 10), (20 * number, 0, 0)).save(path)
    return folder


def read(*places: object, **settings: Any) -> Any:
    return CAPTIONED_IMAGES.open(
        [[each if isinstance(each, InMemory) else str(each)] for each in places], CaptionData(**settings)
    )


def sides(examples: Any) -> list[str]:
    return [examples.text(index, 1) for index in range(len(examples))]


LINES = "a.png\ta dog\nsub/b.png\ta cat\na.png\ttwo  dogs\n"


def test_tables_group_the_captions_of_an_image(tmp_path: Path) -> None:
    """Paths are relative to the table, or to the images that are named before it: a folder or an archive."""
    images = write_images(tmp_path / "images", "a.png", "sub/b.png", "c.png")
    (tmp_path / "captions.tsv").write_text(LINES)
    (images / "captions.tsv").write_text(LINES)
    archive = shutil.make_archive(str(tmp_path / "images"), "zip", images)
    one, two, three = (
        read(images / "captions.tsv"),
        read(images, tmp_path / "captions.tsv"),
        read(archive, tmp_path / "captions.tsv"),
    )
    assert sides(one) == sides(two) == sides(three) == ["a dog\ttwo dogs", "a cat"]
    assert open_image(one[1][0]).size == open_image(three[1][0]).size == (12, 10)
    assert (
        one.location(0) == f"{images}/captions.tsv:1"
        and two.fingerprint() == read(images, tmp_path / "captions.tsv").fingerprint()
    )
    assert "1 images have no caption and were left out" in two.report() and "3 captions of 2 images" in two.report()
    rows = [{"file_name": "a.png", "captions": ["a dog", " two dogs "]}, {"file_name": "b.png", "captions": ["a cat"]}]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "captions.json").write_text(json.dumps(rows))
    assert (
        sides(read(images, tmp_path / "captions.jsonl"))
        == sides(read(images, tmp_path / "captions.json"))
        == sides(one)
    )
    pairs = CaptionPairs(one)
    assert list(pairs.texts(1)) == ["a dog", "two dogs", "a cat"] == [text for _, text in pairs]
    assert (
        pairs.location(1) == f"{images}/captions.tsv:3"
        and pairs.fingerprint() == one.fingerprint()
        and len(pairs.report()) == 2
    )
    assert [name for name, _ in CAPTIONED_IMAGES.items(str(images / "captions.tsv"), CaptionData())][0] == str(
        images / "a.png"
    )
    assert (
        len(read(images / "captions.tsv"))
        == len(CAPTIONED_IMAGES.open([[str(images / "captions.tsv")] * 2], CaptionData())) / 2
    )


def test_coco_captions_texts_beside_images_and_memory(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", "a.png", "b.png", "c.png")
    content = {
        "images": [{"id": number, "file_name": f"{name}.png"} for number, name in enumerate("abc")],
        "annotations": [{"id": 7, "image_id": 1, "caption": "a cat\n"}, {"id": 8, "image_id": 0, "caption": "a dog"}]
        + [{"id": 9, "image_id": 1, "caption": "the cat"}],
    }
    (tmp_path / "coco.json").write_text(json.dumps(content))
    coco = read(images, tmp_path / "coco.json")
    assert sides(coco) == ["a dog", "a cat\tthe cat"] and coco.location(1).endswith("coco.json, image 1")
    (images / "a.txt").write_text("a dog\n")
    (images / "b.txt").write_text("a cat\n\nthe cat")
    beside = read(images)
    assert sides(beside) == sides(coco) and "1 images have no caption and were left out" in beside.report()
    pixels = np.zeros((9, 8, 3), np.uint8)
    memory = read(InMemory([(pixels, ["a dog", "the dog"]), (pixels + 9, "a cat")]))
    assert sides(memory) == ["a dog\tthe dog", "a cat"] and (memory[1][0] == 9).all()
    assert memory.fingerprint() != read(InMemory([(pixels, ["a dog", "the dog"]), (pixels, "a cat")])).fingerprint()


def test_images_are_held_out_with_all_their_captions(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(6)]
    write_images(tmp_path, *names)
    (tmp_path / "c.tsv").write_text("".join(f"{name}\t{word} {name[0]}\n" for word in ("a", "the") for name in names))
    run = regard.resolve("caption", {"data.train": str(tmp_path / "c.tsv"), "data.holdout": 0.34}).run
    train, valid = (data_split(run, split) for split in ("train", "valid"))
    assert len(train) == 8 and len(valid) == 2
    caption = train.text(1, 1)
    line = (tmp_path / "c.tsv").read_text().splitlines().index(f"{caption[-1]}.png\t{caption}") + 1
    assert train.location(1) == f"{tmp_path}/c.tsv:{line}"
    held = {text[-1] for text in sides(valid)}
    assert len(held) == 2 and not held & {text[-1] for text in train.texts(1)}


def test_bad_captions_are_refused_with_their_place(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", "a.png", "b.png", "x/a2.png", "y/a2.png")
    table, coco = tmp_path / "c.tsv", tmp_path / "c.json"

    def refused(words: str, *places: object, **settings: Any) -> None:
        with pytest.raises(UserError, match=re.escape(words)):
            read(*places, **settings)

    table.write_text("images/a.png\ta dog\nimages/z.png\ta cat\n")
    refused(f"{table}:2: there is no image {tmp_path}/images/z.png; correct the path or the line", table)
    refused(f"{table}:2 names the image 'images/z.png', which {images} does not have", images, table)
    found = read(images, table, invalid="skip")
    assert sides(found) == ["a dog"] and any(
        "1 captions name an image that is missing" in fact for fact in found.report()
    )
    assert len(read(table, invalid="skip")) == 1
    table.write_text("a.png\ta dog\nb.png\t \n")
    refused(f"{table}:2: the caption is empty; write what the image shows, or set data.invalid=skip", images, table)
    assert sides(read(images, table, invalid="skip")) == ["a dog"]
    table.write_text("a2.png\ta dog\n")
    refused("which", images, table)
    broken = {
        "{": "c.json is no JSON",
        '{"images": []}': "expected an object with the lists images, annotations",
        '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"id": 5, "image_id": 1, "bbox": [1, 2, 3, 4]}]}':
            "annotation 5 has no caption; expected the captions of COCO, not its boxes or keypoints",
        '{"images": [], "annotations": [{"id": 5, "image_id": 1, "caption": "a"}]}': "annotation 5 belongs to image 1",
        '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"id": 5, "image_id": 1, "caption": " "}]}':
            "annotation 5: the caption is empty",
        '{"images": [{"id": 1, "file_name": "z.png"}], "annotations": [{"id": 5, "image_id": 1, "caption": "a"}]}':
            "image 1 names the image 'z.png'",
    }  # fmt: skip
    for content, words in broken.items():
        coco.write_text(content)
        refused(words, images, coco)
    refused("are 3 places here; expected one table, or two places", images, table, coco)
    refused("has 4 images and no captions; put a .txt file beside each, such as a.txt", images)
    refused("a.png is an image without its caption; give a table with the columns path and caption", images / "a.png")
    refused("there is no file", tmp_path / "none.png")
    (tmp_path / "empty").mkdir()
    refused("empty has no images; expected files such as .png or .jpg", tmp_path / "empty")
    (images / "a.txt").write_text(" \n")
    refused(f"{images}/a.txt: the caption is empty", images)
    (images / "a.txt").write_bytes(b"\xff\xfe\xff")
    refused(f"{images}/a.txt: ", images)
    (images / "b.txt").write_text("a cat")
    assert sides(read(images, invalid="skip")) == ["a cat"]
    (images / "b.png").write_bytes(b"no image")
    (images / "a.txt").unlink()
    refused("b.png cannot be read as an image", images)
