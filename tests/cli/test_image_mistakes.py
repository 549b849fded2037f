"""Mistakes with images end with one sentence and exit code 2; what is left out is counted and reported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import reads
from PIL import Image

from regard.cli import main

TINY = ["model.width=16", "model.heads=2", "model.layers=1", "model.inner=16", "train.steps=2", "train.warmup=1"]
TINY += ["train.batch=4", "train.eval_every=2", "train.save_every=2", "train.tensorboard=false"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two classes, of which some files are no images."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(8):
        (place := folder / "all" / "ab"[number % 2] / f"{number}.png").parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (20, 30, 3), np.uint8)).save(place)
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, words: str) -> None:
    assert main([str(each) for each in arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error and error.startswith("regard: ") and "Traceback" not in error and error.count("\n") == 0


def test_training_on_a_folder(images: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, out = images / "all", tmp_path / "run"
    (bad := folder / "a" / "x.png").write_bytes(b"")
    command = ["train", "classify-image", f"data.train={folder}", "data.holdout=0.25", *TINY]
    refused(capsys, *command, "--out", out, words=f"{bad} cannot be read as an image: it is empty")
    refused(capsys, *command, "--dry", words="or set data.invalid=skip to leave such images out")
    assert not out.exists()
    assert main([*command, "data.invalid=skip", "--out", str(out)]) == 0
    report = capsys.readouterr().err
    assert "train: 1 images left out because they cannot be read (data.invalid=skip); the first: " in report
    assert "train: 6 examples, all but a random 25 % of" in report
    bad.unlink()
    assert main([*command, "--dry"]) == 0
    facts = capsys.readouterr().out
    assert "labels 2" in facts and "train: labels: " in facts
    (folder / "c").mkdir()
    assert main(["eval", str(out), "--data", str(folder)]) == 0
    found = capsys.readouterr()
    assert "no images in c, so no class of this name" in found.err and "examples 8" in found.out
    (folder / "c").rmdir()
    refused(capsys, "train", "classify-image", f"data.train={images / 'none'}", *TINY, words="there is no file")
    refused(capsys, "eval", out, "--data", images / "none.zip", words="none.zip does not exist; expected a folder")


def test_manifests(images: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = images / "list.jsonl"
    rows = [{"file": f"all/{'ab'[number % 2]}/{number}.png", "label": number % 2} for number in range(8)]
    table.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"file": "all/a/9.png", "label": 0}]))
    command = ["train", "classify-image", f"data.train={table}", *TINY, 'data.names=["cat","dog"]']
    refused(capsys, *command, "--out", tmp_path / "run", words=f"{table}:9: there is no image {images}/all/a/9.png")
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main([*command, f"data.valid={table}", "--out", str(tmp_path / "run")]) == 0
    assert "labels: cat 4, dog 4" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "run"), str(table)]) == 0
    assert {line.split("\t")[1] for line in capsys.readouterr().out.splitlines()} <= {"cat", "dog"}
    refused(capsys, *command[:-1], 'data.names=["cat"]', "--out", tmp_path / "no", words="no index of the 1 names")


def test_texts_for_images_and_images_for_texts(
    images: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = images / "all" / "a" / "0.png"
    text = tmp_path / "lines.txt"
    text.write_text("a text\n")
    refused(capsys, "predict", reads.image_run(), text, words="lines.txt cannot be read as an image: it is text")
    classifier = reads.stored_run("classify", train__steps=2)
    words = "is a .png file, which is no text; this task reads text; use a run of an image task, such as classify-image"
    refused(capsys, "predict", classifier, picture, words=words)
    refused(capsys, "eval", classifier, "--data", picture, words=words)
    refused(capsys, "train", "classify", f"data.train={picture}", words=words)
    renamed = tmp_path / "image.txt"
    renamed.write_bytes(picture.read_bytes())
    refused(capsys, "predict", classifier, renamed, words="image.txt:1 ")
    refused(
        capsys, "train", "classify-image", f"data.train={text}", words="is neither a folder, an archive nor a table"
    )


def _settings(images: Path) -> dict[str, Any]:
    changes = dict(each.split("=", 1) for each in TINY)
    return {**changes, "data.train": str(images / "all")}
