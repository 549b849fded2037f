"""Image runs: start from others, tuned runs, data in memory, resuming, evaluation, and what the data wait for."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.cli import main
from regard.errors import UserError
from regard.parts.media.patches import LearnedGrid
from regard.synthetic import digits
from regard.training import curves

TINY = {
    "model.width": 32, "model.heads": 2, "model.layers": 2, "model.inner": 48, "model.pool": "first", "train.steps": 2, "train.warmup": 1,
    "train.batch": 8, "train.eval_every": 2, "train.save_every": 1, "train.tensorboard": False, "device": "cpu",
}  # fmt: skip
FINE = {key: value for key, value in TINY.items() if not key.startswith("model.")}
RNG = np.random.default_rng(1)
IMAGES = [RNG.integers(0, 256, (20 + 9 * number, 30), np.uint8) for number in range(4)]
ROWS = [(RNG.integers(0, 256, (28, 28), np.uint8), "ab"[number % 2]) for number in range(16)]


@pytest.fixture(scope="module", autouse=True)
def few() -> Any:
    with mock.patch.object(digits, "HELD_OUT", 20), mock.patch.object(curves, "draw", lambda folder: None):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("base") / "run"
    regard.train("classify-image", {**TINY, "data.examples": 40}, out=out)
    return out


def start(base: Path, out: Path, **named: Any) -> Any:
    settings = {key.replace("__", "."): named.pop(key) for key in [*named] if "__" in key}
    return regard.train("classify-image", {**FINE, "start": str(base), **settings}, out=out, **named)


def scores(predictor: Any) -> torch.Tensor:
    return torch.tensor([each.score for each in predictor.predict(IMAGES)])


# --- start -----------------------------------------------------------------------------------------------------------


def test_another_image_size_interpolates_the_positions(base: Path, tmp_path: Path) -> None:
    first = regard.load(base).model
    larger = start(base, tmp_path / "larger", model__image=56, train__lr=1e-12, data__examples=20)
    wanted = first.positions.grid(14, 14).flatten(0, 1)
    assert (larger.model.positions.table[0, 1:] - wanted).abs().max() < 1e-6
    assert larger.model.positions.table[0, 0].equal(first.positions.table[0, 0])
    assert (larger.image.resize, larger.image.crop) == (56, 56)
    resized = start(base, tmp_path / "resized", data__size=42, train__lr=1e-12, data__examples=20)
    assert resized.image.crop == 42 and resized.model.positions.table.shape == first.positions.table.shape
    tuned = start(base, tmp_path / "tuned", model__image=56, tune__kind="lora", data__examples=20)
    assert (scores(regard.load(tmp_path / "tuned")) - scores(tuned)).abs().max() < 1e-6
    assert (
        LearnedGrid(3, 8, 1).fit(torch.zeros(1, 8, 8)) is None and LearnedGrid(3, 8).fit(torch.zeros(1, 9, 4)) is None
    )
    with pytest.raises(UserError, match="does not fit this model: positions.table is missing in the model and"):
        start(base, tmp_path / "never", model__positions="sinusoid", data__examples=20)


def test_the_run_keeps_the_background_of_transparent_images(base: Path, tmp_path: Path) -> None:
    icon = np.zeros((28, 28, 4), np.uint8)
    icon[5:20, 9:15, 3], icon[9, 9, :3] = 255, 40  # black but for a pixel, on transparent black
    levels = {"white": 255, "none": 0}
    drawn = {color: np.where(icon[..., 3], icon[..., 0], level).astype(np.uint8) for color, level in levels.items()}
    for color in ("white", "none"):
        shutil.copytree(base, tmp_path / color)
        (run, image) = (tmp_path / color / name for name in ("run.json", "image.json"))
        about, settings = json.loads(run.read_text()), json.loads(image.read_text())
        assert about["config"]["data"]["background"] == settings["background"] == "white"
        if color == "none":  # a run of a version without this setting
            del about["config"]["data"]["background"], settings["background"]
            run.write_text(json.dumps(about))
            image.write_text(json.dumps(settings))
        predictor = regard.load(tmp_path / color)
        assert (predictor.run.data.background, predictor.image.background) == (color, color)
        assert predictor.predict([icon], details=True) == predictor.predict([drawn[color]], details=True)
        notices = [result["notices"] for result in predictor.predict([icon, 0 * drawn[color]], details=True)]
        assert notices == [[], ["the image has one color throughout, so its result means nothing"]]
    assert start(tmp_path / "none", tmp_path / "new", data__examples=20).image.background == "white"


def test_a_start_keeps_how_images_are_read_and_not_how_they_are_changed(base: Path, tmp_path: Path) -> None:
    one = start(base, tmp_path / "one", data__examples=20, data__mean=(0.4, 0.4, 0.4), data__randaugment=3)
    assert one.image.mean == (0.4, 0.4, 0.4) and one.image.std == (0.5, 0.5, 0.5) and one.image.randaugment == 3
    two = start(tmp_path / "one", tmp_path / "two", data__examples=20, data__flip=True)
    assert two.image.mean == (0.4, 0.4, 0.4) and two.image.randaugment == 0 and two.image.flip
    regard.convert(base, to="huggingface", out=tmp_path / "folder")
    settings = json.loads((tmp_path / "folder" / "preprocessor_config.json").read_text())
    settings |= {"image_mean": [0.1, 0.2, 0.3], "size": {"height": 28, "width": 28}}
    (tmp_path / "folder" / "preprocessor_config.json").write_text(json.dumps(settings))
    three = start(tmp_path / "folder", tmp_path / "three", data__examples=20, data__size=56)
    assert three.image.mean == (0.1, 0.2, 0.3) and three.image.resize == (56, 56)


def test_several_tuned_runs_share_a_base(base: Path, tmp_path: Path) -> None:
    for kind in ("lora", "adapter"):
        start(base, tmp_path / kind, tune__kind=kind, data__examples=20)
    both = regard.load(base, tune={"a": tmp_path / "lora", "b": tmp_path / "adapter"})
    assert both.predict(IMAGES[0]) == both["a"].predict(IMAGES[0]) and len(both.predict(IMAGES, adapter="b")) == 4
    Image.fromarray(IMAGES[0]).save(tmp_path / "image.png")
    assert main(["predict", str(base), "--tune", str(tmp_path / "lora"), str(tmp_path / "image.png")]) == 0


def test_other_labels_get_a_new_head(base: Path, tmp_path: Path) -> None:
    other = start(base, tmp_path / "other", data={"train": ROWS, "holdout": 0.25})
    assert other.labels.names == ["a", "b"] and other.predict(IMAGES[0]).label in "ab"


# --- passes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lora", "adapter", "prompt", "prefix"])
def test_tuned_runs(kind: str, base: Path, tmp_path: Path) -> None:
    tuned = start(base, tmp_path / kind, tune__kind=kind, data__examples=20, data__mixup=0.5)
    wanted = scores(tuned)
    assert (scores(regard.load(base, tune=tmp_path / kind)) - wanted).abs().max() < 1e-6
    assert (tmp_path / kind / "model.safetensors").stat().st_size < 0.9 * (base / "model.safetensors").stat().st_size
    if kind == "lora":
        regard.convert(tmp_path / kind, merge=True, out=tmp_path / "merged")
        assert (scores(regard.load(tmp_path / "merged")) - wanted).abs().max() < 1e-4
    for precision in ("bf16", "int8"):
        assert (scores(regard.load(tmp_path / kind, precision=precision)) - wanted).abs().max() < 0.05
    if kind == "prompt":
        with pytest.raises(UserError, match="tune.words is 'a cat', but this model reads pixels; leave it out"):
            start(base, tmp_path / "words", tune__kind=kind, tune__words="a cat", data__examples=20)


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"train.ema": 0.9}, {"train.accumulate": 2}])
def test_training_with(settings: dict[str, Any], tmp_path: Path) -> None:
    predictor = regard.train("classify-image", {**TINY, "data.examples": 20, **settings}, out=tmp_path / "run")
    assert 0 < scores(predictor).min() <= scores(predictor).max() < 1


# --- memory and resuming ---------------------------------------------------------------------------------------------


def test_data_in_memory_and_their_guard(tmp_path: Path) -> None:
    data = {"train": ROWS, "holdout": 0.25}
    augmented = {**TINY, "data.mixup": 0.3, "data.randaugment": 1, "data.erase": 0.5, "data.flip": True}
    for name, steps in (("whole", (4,)), ("halves", (2, 4))):
        for count in steps:
            resume = count == 4 and name == "halves"
            changes = {**augmented, "train.steps": count, "train.schedule.kind": "constant"}
            predictor = regard.train("classify-image", changes, out=tmp_path / name, data=data, resume=resume)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "halves"))
    assert one == two
    other = {"train": [(ROWS[1][0], "a"), *ROWS[1:]], "holdout": 0.25}
    with pytest.raises(UserError, match=r"data\.train is not what .*halves was started with"):
        regard.train(
            "classify-image", {**augmented, "train.steps": 6}, out=tmp_path / "halves", data=other, resume=True
        )
    metrics = predictor.evaluate(ROWS)
    assert metrics["examples"] == 16 and "top_5_accuracy" not in metrics and set(metrics["labels"]) <= {"a", "b"}
    assert predictor.evaluate([{"image": image, "label": label} for image, label in ROWS]) == metrics
    assert predictor.evaluate([*ROWS, (ROWS[0][0], "c")])["unseen_labels"] == "c (1)"


def test_labels_of_other_splits(tmp_path: Path) -> None:
    odd = [*ROWS[:4], (ROWS[0][0], "c")]
    with pytest.raises(UserError, match=r"data\.valid: .*record 5 has the label 'c', which data\.train never has"):
        regard.train("classify-image", TINY, out=tmp_path / "run", data={"train": ROWS, "valid": odd})
    kept = {"train": ROWS, "valid": odd, "invalid": "skip"}
    assert regard.train("classify-image", TINY, out=tmp_path / "run", data=kept) is not None
    one_class = regard.train("classify-image", TINY, out=tmp_path / "more", data={"train": ROWS, "valid": ROWS[::2]})
    assert one_class is not None  # a class may be missing in valid
    with pytest.raises(
        UserError, match="every label of .* is 'a', expected at least two; give a folder with one folder"
    ):
        regard.train("classify-image", TINY, out=tmp_path / "one", data={"train": ROWS[::2]})


def test_evaluation_of_many_labels(base: Path) -> None:
    predictor = regard.load(base)
    metrics = predictor.evaluate()
    keys = [
        "examples",
        "accuracy",
        "top_5_accuracy",
        "f1",
        "micro_f1",
        "labels",
        "confusion",
        "majority",
        "majority_label",
    ]
    assert [*metrics] == keys and metrics["accuracy"] <= metrics["top_5_accuracy"] <= 1
    hits = [label in [each.label for each in predictor.predict(image, top=5).top] for image, label in digits.make_digits(1)["test"]]  # fmt: skip
    assert metrics["top_5_accuracy"] == pytest.approx(np.mean(hits))


def test_a_run_that_lacks_its_labels(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "labels.json").read_text())
    saved["labels"].pop("3")
    (tmp_path / "run" / "labels.json").write_text(json.dumps(saved))
    with pytest.raises(
        UserError, match="lacks its image processor or its labels; restore them, or train the run again"
    ):
        regard.load(tmp_path / "run")


def test_an_image_that_is_damaged_in_the_middle_is_named(tmp_path: Path) -> None:
    for number, (image, label) in enumerate(ROWS):
        (place := tmp_path / "all" / label / f"{number}.png").parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.kron(image, np.ones((8, 8), np.uint8))).save(place)
    content = place.read_bytes()
    place.write_bytes(content[:300] + bytes(200) + content[500:])
    settings = {**TINY, "data.train": str(tmp_path / "all")}
    for workers in (0, 1):
        with pytest.raises(UserError, match=rf"{place.name} cannot be read as an image"):
            regard.train("classify-image", {**settings, "data.workers": workers}, out=tmp_path / f"run{workers}")
    assert regard.train("classify-image", {**settings, "data.invalid": "skip"}, out=tmp_path / "run") is not None


def test_settings_that_do_not_fit(base: Path, tmp_path: Path) -> None:
    for settings, words in (
        ({"model.image": 30}, r"images of 30 pixels do not divide into patches of 4; use 28 or 32 .model\.image."),
        ({"model.positions": "sinusoid", "model.width": 34}, "need a width that 4 divides, not 34"),
        ({"model.stem": "[4,4,4]"}, "3 convolutions of the stem halve a patch of 4 pixels .* patches of 8 pixels"),
        ({"data.train": str(tmp_path / "gone.png")}, r"there is no file .*gone\.png"),
        ({"data.train": str(tmp_path / "*.png")}, r"no file matches .*\*\.png"),
    ):
        with pytest.raises(UserError, match=words):
            regard.train("classify-image", {**TINY, **settings}, out=tmp_path / "run")
    with pytest.raises(UserError, match=r"a\.png"):
        regard.load(base).look("a.png")


def test_look_shows_patches(base: Path, tmp_path: Path) -> None:
    predictor = regard.load(base)
    image = np.random.default_rng(1).integers(0, 255, (40, 40, 3), np.uint8)
    view = predictor.look(image)
    token, patches = view.axes["source"].segments
    assert token.labels == ("[CLS]",) and view.weights().shape == (1 + patches.rows * patches.columns,) * 2
    assert patches.image.shape[0] == patches.rows * predictor.run.model.patch and view.rollout()[
        0
    ].sum() == pytest.approx(1)
    view.save(tmp_path / "a.html")
    assert "data:image/png" in (tmp_path / "a.html").read_text()
    with pytest.raises(UserError, match="this model generates no text, so it takes no target; give the image alone"):
        predictor.look(image, "a")
