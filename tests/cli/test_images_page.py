"""docs/images.md: all its commands and its Python run, on images of the names that it uses."""

import glob
import json
import re
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

import regard
from regard.cli import main
from regard.synthetic import digits, scenes
from regard.training import curves

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "images.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (regard .*)$", PAGE, re.MULTILINE)
FEW = ["train.steps=2", "train.warmup=1", "train.batch=8", "train.eval_every=2", "train.save_every=2"]
FEW += ["train.tensorboard=false", "device=cpu"]
VIT = ["model.width=16", "model.heads=2", "model.layers=1", "model.inner=16"]
DETR = ["model.size=tiny", "model.layers=1", "model.decoder_layers=1"]


def write_data() -> None:
    """photos/CLASS/*.jpg, new/*.jpg, test.zip, and scenes with instances.json."""
    rng = np.random.default_rng(1)
    for number in range(12):
        for place in (Path("photos", ("cat", "dog")[number % 2], f"{number}.jpg"), Path("new", f"{number}.jpg")):
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(place)
    with zipfile.ZipFile("test.zip", "w") as archive:
        for file in Path("photos").rglob("*.jpg"):
            archive.write(file)
    Path("scenes").mkdir()
    images, annotations = [], []
    for number, (image, objects) in enumerate(scenes.make_scenes(10)["train"], 1):
        Image.fromarray(image).save(f"scenes/{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 64, "height": 64})
        for (x0, y0, x1, y1), label in zip(objects.boxes.tolist(), objects.labels, strict=True):
            box = [x0, y0, x1 - x0, y1 - y0]
            own = {"image_id": number, "category_id": scenes.SHAPES.index(label) + 1, "bbox": box, "iscrowd": 0}
            annotations.append({"id": len(annotations) + 1, "area": box[2] * box[3], **own})
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(scenes.SHAPES)]
    whole = {"images": images, "annotations": annotations, "categories": categories}
    Path("instances.json").write_text(json.dumps(whole))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


def test_the_commands_run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(digits, "HELD_OUT", 20)
    write_data()
    assert len(COMMANDS) == 14
    printed = {}
    with mock.patch.object(curves, "draw", lambda folder: None):
        settings = dict(each.split("=") for each in [*FEW, *VIT]) | {"model.pool": "first", "data.examples": 20}
        regard.train("classify-image", settings, out="base")
        regard.convert("base", to="huggingface", out="vit-folder")
        for command in COMMANDS:
            words = [file for word in command.split()[1:] for file in (sorted(glob.glob(word)) or [word])]
            if words[0] == "train":
                started = any(word.startswith("start=") for word in words)
                words += FEW + ([] if started else VIT if words[1] == "classify-image" else DETR)
            words += ["data.examples=20"] if command.endswith("--out runs/digits") and words[0] == "train" else []
            assert main(words) == 0, command
            printed[command] = capsys.readouterr().out.splitlines()
    assert Path("confusion.png").is_file() and Path("fine-vit", "preprocessor_config.json").is_file()
    lines = printed["regard predict runs/photos new/*.jpg"]
    assert len(lines) == 12 and all(re.fullmatch(r"new/\d+\.jpg\t(cat|dog)\t0\.\d{4}", line) for line in lines)
    record = json.loads(printed["regard predict runs/photos new --top 3 --json"][0])
    assert record["path"] == "new/0.jpg" and {each["label"] for each in record["top"]} == {"cat", "dog"}
    assert len(json.loads(printed["regard predict runs/photos new --embed"][0])) == 16
    found = json.loads(printed["regard predict runs/boxes scenes/*.png"][0])
    assert found["path"] == "scenes/1.png" and (found["width"], found["height"]) == (64, 64)
    assert isinstance(json.loads(Path("found.json").read_text()), list)
    assert {each.name for each in Path("drawn").iterdir()} == {f"{number}.png" for number in range(1, 11)}


def test_the_python_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block and block[1].count('train={"steps": 2}') == 1
    names: dict[str, object] = {}
    with mock.patch.object(curves, "draw", lambda folder: None):
        exec(block[1].replace('train={"steps": 2}', 'train={"steps": 2, "batch": 8}, model={"layers": 1}'), names)
    assert names["result"].label in ("cat", "dog")  # type: ignore[attr-defined]


def test_the_images_of_the_page_exist_and_are_small() -> None:
    links = re.findall(r"!\[.*\]\((.*)\)", PAGE)
    assert len(links) == 5
    for link in links:
        with Image.open(DOCS / link) as image:
            assert min(image.size) > 30 and (DOCS / link).stat().st_size < 100_000
