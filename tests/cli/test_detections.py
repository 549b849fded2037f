"""Detections on the command line: JSON lines, the COCO result array, drawings."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import tiny_run
from PIL import Image

import regard
from regard.cli.app import main
from regard.config.data.images import DetectData
from regard.formats.coco_results import image_ids
from regard.look.draw import COLORS, draw_objects
from regard.messages.labels import DetectedObject

SHAPE = {
    "model.stem": 8, "model.stages": [8, 16], "model.width": 32, "model.heads": 2, "model.decoder_layers": 1, "model.inner": 16,
    "data.size": 32, "train.steps": 2, "train.warmup": 1, "train.eval_every": 9, "train.batch": 4, "train.tensorboard": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Path:
    """A stored run on three images with category ids 4 and 9, beside its images and annotations."""
    files: dict[str, str | bytes] = {}
    images, boxes = [], []
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (30, 40 + number, 3), np.uint8)
        Image.fromarray(pixels).save(png := io.BytesIO(), "png")
        files[f"images/cell-{number}.png"] = png.getvalue()
        images.append({"id": 70 + number, "file_name": f"cell-{number}.png", "width": 40 + number, "height": 30})
        boxes.append(
            {"id": number + 1, "image_id": 70 + number, "category_id": 4 if number else 9, "bbox": [3, 4, 20, 15]}
        )
    names = [{"id": 9, "name": "white"}, {"id": 4, "name": "red"}]
    files["instances.json"] = json.dumps({"images": images, "annotations": boxes, "categories": names})
    sides = "{files}/images,{files}/instances.json"
    return tiny_run("detect", files, **SHAPE, **{"data.train": sides, "data.valid": sides})


def outputs(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[Any]:
    assert main([str(each) for each in arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_image_is_a_json_object(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [run.parent / "images" / f"cell-{number}.png" for number in range(3)]
    found = outputs(capsys, "predict", run, *files, "decode.threshold=0", "decode.top=2")
    results = regard.load(run).predict([*map(str, files)], threshold=0.0, top=2)
    assert [each["path"] for each in found] == [*map(str, files)] and [each["width"] for each in found] == [40, 41, 42]
    for record, result in zip(found, results, strict=True):
        assert [one["label"] for one in record["objects"]] == [one.label for one in result.objects]
        assert record["objects"][0]["box"] == pytest.approx(result.objects[0].box, abs=1e-2)


def test_coco_results_and_drawings(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    coco, drawn, images = tmp_path / "found.json", tmp_path / "drawn", run.parent / "images"
    printed = outputs(capsys, "predict", run, images, "--coco", coco, "--draw", drawn)
    every = regard.load(run).predict([str(path) for path in sorted(images.iterdir())], threshold=0.0)
    results = json.loads(coco.read_text())
    assert len(results) == sum(len(each.objects) for each in every)  # whatever their score
    assert {each["image_id"] for each in results} == {70, 71, 72}
    assert {each["category_id"] for each in results} <= {4, 9} and {*results[0]} == {
        "image_id",
        "category_id",
        "bbox",
        "score",
    }
    first = every[0].objects[0]
    assert results[0]["category_id"] == {"red": 4, "white": 9}[first.label]
    assert results[0]["score"] == pytest.approx(first.score, abs=1e-4)
    box = first.box
    assert results[0]["bbox"] == pytest.approx([box[0], box[1], box[2] - box[0], box[3] - box[1]], abs=1e-2)
    assert all(one["score"] >= 0.5 for each in printed for one in each["objects"])
    assert sorted(path.name for path in drawn.iterdir()) == ["cell-0.png", "cell-1.png", "cell-2.png"]
    assert Image.open(drawn / "cell-0.png").size == (40 * 11, 30 * 11)  # small images are enlarged
    outputs(capsys, "predict", run, images, "--coco", coco, "decode.threshold=0.99")
    assert all(each["score"] >= 0.99 for each in json.loads(coco.read_text()))


def test_boxes_are_drawn_in_the_color_of_their_label() -> None:
    image = Image.new("RGB", (400, 330), (255, 255, 255))
    objects = [DetectedObject("b", 0.9, (100, 100, 200, 200)), DetectedObject("a", 0.8, (300, 5, 399, 100))]
    drawn = draw_objects(image, objects, ["a", "b"])
    assert drawn.size == (400, 330) and image.getpixel((100, 150)) == (255, 255, 255)
    assert drawn.getpixel((100, 150)) == COLORS[1] and drawn.getpixel((300, 80)) == COLORS[0]
    assert drawn.getpixel((150, 150)) == (255, 255, 255) and drawn.getpixel((101, 95)) == COLORS[1]  # the name is above


def test_the_ids_of_images() -> None:
    lines: list[str] = []
    assert image_ids(["a/000123.jpg", "b/7.png"], DetectData(), lines.append) == [123, 7] and not lines
    assert image_ids(["a.jpg", "7.png"], DetectData(), lines.append) == [1, 2]
    assert "their ids are their order from 1" in lines[0]
    assert image_ids(["1.jpg", "01.jpg"], DetectData(), lines.append) == [1, 2] and len(lines) == 2


def test_equal_names_get_numbers(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    image, other = run.parent / "images" / "cell-0.png", tmp_path / "cell-0.jpg"
    Image.open(image).save(other)
    outputs(capsys, "predict", run, image, other, "--draw", tmp_path / "drawn")
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["cell-0-2.png", "cell-0.png"]


def test_unreadable_images(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    image, bad = run.parent / "images" / "cell-0.png", tmp_path / "bad.png"
    for options in ([], ["--coco", tmp_path / "found.json"]):
        assert main(["predict", str(run), str(image), str(bad), *map(str, options)]) == 2
        streams = capsys.readouterr()
        assert len(streams.out.splitlines()) == 1 and "bad.png cannot be read as an image" in streams.err
        assert not (tmp_path / "found.json").exists()
        found = outputs(capsys, "predict", run, bad, image, "data.invalid=skip", *options)
        assert "cannot be read" in found[0]["error"] and found[1]["path"] == str(image)
        (tmp_path / "found.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--coco", "found.txt"], "--coco found.txt cannot be written; give a .json file in an existing folder"),
        (["--coco", "gone/found.json"], "--coco gone/found.json cannot be written"),
        (["--draw", "gone/drawn"], "--draw gone/drawn cannot be a folder for drawings"),
    ],
)
def test_outputs_are_checked_before_the_work(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "no-run", *options]) == 2
    assert message in capsys.readouterr().err


def test_other_tasks_have_no_boxes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = Path(__file__).parents[1] / "old" / "classify-bert"
    (tmp_path / "a.txt").write_text("a\n")
    assert main(["predict", str(run), str(tmp_path / "a.txt"), "--draw", str(tmp_path / "drawn")]) == 2
    assert "--coco and --draw are for runs of the task detect, and this one is of classify" in capsys.readouterr().err


def test_evaluation_prints_average_precision(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--data", f"{run.parent / 'images'},{run.parent / 'instances.json'}"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("ap50", "ap75", "ap_small", "ar_100", "red", "white"))
