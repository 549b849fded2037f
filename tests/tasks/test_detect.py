"""Detection: the loss beside transformers, accumulation, denoising, the predictor, metrics and bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from faster_coco_eval import COCO, COCOeval_faster
from PIL import Image
from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

import regard
from regard.data.batch import Batch
from regard.data.sources.boxes import Objects
from regard.errors import UserError
from regard.families import detr
from regard.messages.labels import DetectedObject
from regard.metrics import detection
from regard.metrics.detection import detection_metrics
from regard.parts import Detections
from regard.parts.inputs import Inputs
from regard.synthetic import scenes
from regard.tasks.detect.objective import (
    NO_OBJECT,
    DetectionObjective,
    TrueObjects,
    add_box_noise,
    denoising_loss,
    detection_loss,
)
from regard.training.step import GradientStep

TINY = {
    "model.stem": 8, "model.stages": [8, 16], "model.width": 32, "model.heads": 2, "model.decoder_layers": 2, "model.inner": 32,
    "data.examples": 12, "data.size": 32, "train.steps": 2, "train.batch": 4, "train.warmup": 1, "train.eval_every": 9,
    "train.tensorboard": False, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detect") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenes, "HELD_OUT", 6)
        regard.train("detect", TINY, out=folder)
    return folder


def random_objects(counts: list[int], labels: int = 3, seed: int = 1) -> TrueObjects:
    """Padding has values that must not matter."""
    rng = torch.Generator().manual_seed(seed)
    most = max(counts)
    size = torch.rand(len(counts), most, 2, generator=rng) * 0.3 + 0.05
    center = torch.rand(len(counts), most, 2, generator=rng) * 0.6 + 0.2
    valid = torch.arange(most) < torch.tensor(counts)[:, None]
    numbers = torch.randint(labels, (len(counts), most), generator=rng).masked_fill(~valid, -100)
    return TrueObjects(numbers, torch.cat([center, size], -1), valid)


def random_detections(images: int, queries: int = 7, layers: int = 3, labels: int = 3) -> Detections:
    torch.manual_seed(2)
    boxes = torch.cat([torch.rand(layers, images, queries, 2), torch.rand(layers, images, queries, 2) * 0.4 + 0.02], -1)
    return Detections(torch.randn(layers, images, queries, labels + 1), boxes)


@pytest.mark.parametrize("counts", [[2, 0, 4], [1], [0, 0], [7, 3]])
def test_the_loss_is_that_of_transformers(counts: list[int]) -> None:
    true, found = random_objects(counts), random_detections(len(counts))
    config = hf.DetrConfig(
        auxiliary_loss=True, decoder_layers=3, num_labels=3, use_timm_backbone=False, backbone_config=hf.ResNetConfig()
    )
    labels = [
        {"class_labels": numbers[valid], "boxes": boxes[valid]}
        for numbers, boxes, valid in zip(true.labels, true.boxes, true.valid, strict=True)
    ]
    theirs, _, _ = ForObjectDetectionLoss(
        found.logits[-1], labels, "cpu", found.boxes[-1], config, found.logits, found.boxes
    )
    ours, objects = detection_loss(found, true), sum(counts)
    weights = objects + NO_OBJECT * (7 * len(counts) - objects)
    assert float(ours.classes / weights + ours.boxes / max(objects, 1)) == pytest.approx(float(theirs), rel=1e-5)


def batch_of(true: TrueObjects, rows: slice, queries: int) -> Batch:
    torch.manual_seed(3)
    pixels = torch.randn(len(true.valid), 3, 32, 32)[rows]
    valid = true.valid[rows]
    objects = int(valid.sum())
    inputs = {
        "image": Inputs("pixels", pixels),
        "boxes": Inputs("boxes", true.boxes[rows], valid),
        "label": Inputs("labels", true.labels[rows], valid),
    }
    return Batch(inputs, 10 * objects + len(pixels) * queries - objects, counts={"boxes": objects})


@pytest.mark.parametrize("anchors", ["none", "learned", "proposed"])
def test_accumulation_equals_one_large_batch(anchors: str) -> None:
    """Images without any box are a micro-batch of their own."""
    true = random_objects([3, 1, 0, 0])
    gradients, losses = [], []
    for parts in ([slice(0, 4)], [slice(0, 2), slice(2, 4)], [slice(0, 1), slice(1, 4)]):
        torch.manual_seed(1)
        model = detr.Model(detr.Config(**detr.SIZES["tiny"], labels=3, dropout=0.0, anchors=anchors))
        step = GradientStep(DetectionObjective(model, 3), torch.device("cpu"))
        losses.append(float(step.run(1, [batch_of(true, part, 8) for part in parts]).loss))
        gradients.append({name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None})
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    for other in gradients[1:]:
        for name, each in gradients[0].items():
            torch.testing.assert_close(other[name], each, rtol=1e-3, atol=1e-5, msg=name)


# --- denoising -------------------------------------------------------------------------------------------------------


def anchored(**settings: Any) -> detr.Model:
    torch.manual_seed(1)
    config = detr.Config(
        **detr.SIZES["tiny"] | {"labels": 3, "dropout": 0.0, "anchors": "learned", "denoising": 2} | settings
    )
    return detr.Model(config).train()


@pytest.mark.parametrize("anchors", ["learned", "proposed"])
def test_noised_boxes_change_nothing_else(anchors: str) -> None:
    """The queries find the same with noised boxes as without, and a group the same whatever the others are."""
    model, true = anchored(anchors=anchors), random_objects([3, 1])
    image = Inputs("pixels", torch.randn(2, 3, 32, 48))
    noised = add_box_noise(true, 2, 3)
    plain, found = model.detect(image), model.detect(image, noised)
    assert plain.denoised is None and found.denoised is not None
    torch.testing.assert_close(found.logits, plain.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.boxes, plain.boxes, rtol=1e-4, atol=1e-5)
    noised.boxes[:, 3:] = torch.rand(2, 3, 4) * 0.5 + 0.2  # the second group
    noised.boxes[1, 1:3] = 0.4  # padding
    other = model.detect(image, noised).denoised
    assert other is not None
    torch.testing.assert_close(other.logits[:, 0, :3], found.denoised.logits[:, 0, :3], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.boxes[:, 1, :1], found.denoised.boxes[:, 1, :1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(other.boxes[:, 0, 3:], found.denoised.boxes[:, 0, 3:])


def test_noise_is_bounded() -> None:
    true = random_objects([40, 40], seed=3)
    noised = add_box_noise(true, 3, 3)
    wanted = true.boxes.repeat(1, 3, 1)
    assert noised.groups.tolist() == [0] * 40 + [1] * 40 + [2] * 40
    assert bool(((noised.boxes[..., :2] - wanted[..., :2]).abs() <= 0.2 * wanted[..., 2:] + 1e-6).all())
    ratio = noised.boxes[..., 2:] / wanted[..., 2:]
    assert float(ratio.min()) >= 0.6 and float(ratio.max()) <= 1.4 + 1e-6 and float(ratio.std()) > 0.1
    changed = (noised.labels != true.labels.repeat(1, 3)).float().mean()
    assert 0.03 < float(changed) < 0.3  # a fifth is drawn, and a third of it is right by chance


def test_the_denoising_loss_ignores_padding_and_counts_groups_once() -> None:
    true = random_objects([2, 1])
    found = random_detections(2, queries=4)
    padded = Detections(found.logits.clone(), found.boxes.clone())
    padded.logits[:, 1, 1], padded.boxes[:, 1, 3] = 9.0, 0.9
    assert float(denoising_loss(found, true, 2)) == pytest.approx(float(denoising_loss(padded, true, 2)), rel=1e-6)
    once = Detections(found.logits[:, :, :2], found.boxes[:, :, :2])
    twice = Detections(once.logits.repeat(1, 1, 2, 1), once.boxes.repeat(1, 1, 2, 1))
    assert float(denoising_loss(twice, true, 2)) == pytest.approx(float(denoising_loss(once, true, 1)), rel=1e-6)


def test_denoising_needs_boxes_as_queries() -> None:
    with pytest.raises(ValueError, match="model.denoising=2 needs queries that are boxes"):
        detr.Config(denoising=2)


def test_padding_changes_no_anchor() -> None:
    """An image has the same objects alone as in a padded batch."""
    for anchors in ("learned", "proposed"):
        model = anchored(anchors=anchors).eval()
        pixels, valid = torch.zeros(2, 3, 40, 64), torch.zeros(2, 40, 64, dtype=torch.bool)
        pixels[0], valid[0] = torch.randn(3, 40, 64), True
        pixels[1, :, :24, :40], valid[1, :24, :40] = torch.randn(3, 24, 40), True
        together = model.detect(Inputs("pixels", pixels, valid))
        alone = model.detect(Inputs("pixels", pixels[1:, :, :24, :40]))
        torch.testing.assert_close(together.boxes[:, 1], alone.boxes[:, 0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(together.logits[:, 1], alone.logits[:, 0], rtol=1e-4, atol=1e-5)


def test_a_map_with_fewer_places_than_queries_proposes_them_again() -> None:
    found = anchored(anchors="proposed", queries=30).eval().detect(Inputs("pixels", torch.randn(1, 3, 16, 16)))
    assert found.boxes.shape == (2, 1, 30, 4) and bool(found.boxes.isfinite().all())


# --- the predictor ---------------------------------------------------------------------------------------------------


def picture(width: int = 50, height: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8))


def test_evaluation(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "HELD_OUT", 6)
    predictor = regard.load(run)
    metrics = predictor.evaluate()
    assert (
        metrics["examples"] == 6
        and 0 <= metrics["ap50"] <= 1
        and metrics["loss"] > 0
        and set(metrics["classes"]) <= set(scenes.SHAPES)
    )
    image = picture()
    data = [(image, [[1, 1, 20, 20], [5, 5, 30, 30]], ["circle", "boat"]), (image, [], [])]
    metrics = predictor.evaluate(data)
    assert metrics["objects"] == 2 and metrics["unseen_labels"] == "boat (1)" and metrics["classes"]["boat"]["ap"] == 0
    view = predictor.look(image)
    queries, (places,) = view.axes["target"].segments[0], view.axes["source"].segments
    assert view.kinds == ["encoder", "decoder", "cross"] and len(queries.boxes) == predictor.run.model.queries
    assert view.cross().shape == (len(queries.boxes), places.rows * places.columns)
    (found,) = predictor.predict([image], threshold=0.0, top=100)
    best = max(range(len(queries.scores)), key=lambda i: queries.scores[i])
    sides = (found.width, found.height) * 2
    assert queries.labels[best] == found.objects[0].label and queries.scores[best] == pytest.approx(
        found.objects[0].score
    )
    assert [share * side for share, side in zip(queries.boxes[best], sides, strict=True)] == pytest.approx(
        list(found.objects[0].box), abs=1e-2
    )
    with pytest.raises(UserError, match="this model generates no text, so it takes no target; give the image alone"):
        predictor.look(image, "a")


def test_validation_gives_loss_and_average_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "HELD_OUT", 6)
    records: list[Any] = []
    regard.train("detect", TINY | {"train.eval_every": 1}, out=tmp_path / "run", on_event=records.append)
    valid = [each for each in records if "ap" in each]
    assert len(valid) == 2 and all({"loss", "ap", "ap50"} <= set(each) for each in valid)


def test_training_on_data_in_memory(tmp_path: Path) -> None:
    rows = [(picture(), [[5, 5, 20 + n, 30]], ["cat" if n % 2 else "dog"]) for n in range(8)]
    settings = TINY | {"data.holdout": 0.25, "model.labels": 0}
    predictor = regard.train("detect", {**settings, "data.train": rows}, out=tmp_path / "run")
    assert predictor.labels.names == ["cat", "dog"] and predictor.boxes.categories == (1, 2)
    with pytest.raises(UserError, match="has no box to learn from"):
        regard.train("detect", {**settings, "data.train": [(picture(), [], [])] * 4}, out=tmp_path / "none")


def test_a_run_without_its_processors(run: Path, tmp_path: Path) -> None:
    import shutil

    broken = shutil.copytree(run, tmp_path / "run")
    about = json.loads((broken / "run.json").read_text())
    del about["processors"]["boxes"]
    (broken / "run.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="lacks its processor of images, boxes or labels"):
        regard.load(broken)


# --- metrics ---------------------------------------------------------------------------------------------------------


def truth(boxes: list[list[float]], labels: tuple[str, ...], crowd: list[bool] | None = None) -> Objects:
    table = np.array(boxes, np.float64).reshape(-1, 4)
    areas = (table[:, 2:] - table[:, :2]).prod(1)
    return Objects(table, labels, np.array(crowd or [False] * len(table), bool), areas, 1, 200, 200)


def test_average_precision_by_hand() -> None:
    """Two objects; the first detection is right, the second is not, the third is: precision 1, 1/2, 2/3."""
    truths = [truth([[0, 0, 10, 10], [50, 50, 90, 90]], ("a", "a"))]
    boxes = (0, 0, 10, 10), (100, 100, 120, 120), (50, 50, 90, 90)
    found = [[DetectedObject("a", score, box) for score, box in zip((0.9, 0.8, 0.7), boxes, strict=True)]]
    metrics = detection_metrics(truths, found)
    expected = (51 * 1 + 50 * 2 / 3) / 101  # recall 0…0.5 with precision 1, then 2/3
    assert metrics["ap"] == pytest.approx(expected, abs=1e-6) and metrics["ap50"] == pytest.approx(expected, abs=1e-6)
    assert metrics["ar_1"] == 0.5 and metrics["ar_100"] == 1.0 and metrics["ap_small"] == 1.0
    assert "ap_large" not in metrics and metrics["classes"]["a"]["count"] == 2
    assert "count" in str(metrics["classes"])


def test_crowds_and_unknown_classes() -> None:
    truths = [
        truth([[0, 0, 10, 10], [20, 20, 80, 80]], ("a", "a"), [False, True]),
        truth([[0, 0, 9, 9]], ("b",), [True]),
    ]
    rows = ("a", 0.9, (30, 30, 40, 40)), ("a", 0.8, (0, 0, 10, 10)), ("other", 0.9, (0, 0, 5, 5))
    found = [[DetectedObject(*row) for row in rows], []]
    metrics = detection_metrics(truths, found)
    assert metrics["ap"] == 1.0 and list(metrics["classes"]) == ["a"]  # a detection on a crowd is not wrong
    assert detection_metrics([truth([], ())], [[]])["classes"] == {}


def test_metrics_equal_those_of_faster_coco_eval() -> None:
    rng = np.random.default_rng(4)
    truths, found, annotations, results = [], [], [], []
    for image in range(12):
        low, size = rng.uniform(0, 100, (5, 2)), rng.uniform(5, 100, (5, 2))
        labels = tuple("abc"[number] for number in rng.integers(3, size=5))
        truths.append(
            truth(np.concatenate([low, low + size], 1).tolist(), labels, [number == 4 for number in range(5)])
        )
        noise = rng.normal(0, 4, (5, 4))
        detected = [
            DetectedObject(label, float(rng.random()), tuple(box))
            for label, box in zip(labels, np.concatenate([low, low + size], 1) + noise, strict=True)
        ]
        found.append(detected)
        for label, box, area, crowd in zip(labels, truths[-1].boxes, truths[-1].areas, truths[-1].crowd, strict=True):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": 10 * image,
                    "category_id": "abc".index(label) + 5,
                    "bbox": [*box[:2], *(box[2:] - box[:2])],
                    "area": area,
                    "iscrowd": int(crowd),
                }
            )
        for each in detected:
            left, top, right, bottom = each.box
            results.append(
                {
                    "image_id": 10 * image,
                    "category_id": "abc".index(each.label) + 5,
                    "bbox": [left, top, right - left, bottom - top],
                    "score": each.score,
                }
            )
    index = COCO(
        {
            "images": [{"id": 10 * n} for n in range(12)],
            "annotations": annotations,
            "categories": [{"id": n} for n in (5, 6, 7)],
        }
    )
    evaluation = COCOeval_faster(index, index.loadRes(results), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    metrics = detection_metrics(truths, found)
    for name, value in zip(detection.NAMES, evaluation.stats[:12], strict=True):
        assert metrics.get(name, -1.0) == pytest.approx(float(value), abs=1e-9), name
    assert np.mean([row["ap50"] for row in metrics["classes"].values()]) == pytest.approx(metrics["ap50"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(UserError, match="average precision needs faster-coco-eval, .*pip install 'regard.vision.'"):
        detection_metrics([truth([], ())], [[]])


@pytest.mark.parametrize("anchors", ["learned", "proposed"])
def test_a_start_with_other_labels_keeps_everything_else(
    anchors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "HELD_OUT", 6)
    settings = TINY | {"model.anchors": anchors}
    regard.train("detect", settings, out=tmp_path / "first")
    rows = [(picture(), [[5, 5, 20 + n, 30]], ["cat"]) for n in range(8)]
    started = {"start": str(tmp_path / "first"), "data.train": rows, "data.holdout": 0.25, "train.lr": 1e-9}
    second = regard.train("detect", {**settings, **started}, out=tmp_path / "second")
    first = regard.load(tmp_path / "first")
    assert second.labels.names == ["cat"] and second.run.model.labels == 1
    old, new = first.module.state_dict(), second.module.state_dict()
    same = [
        name for name in old if old[name].shape == new[name].shape and torch.allclose(old[name], new[name], atol=1e-5)
    ]
    heads = ("classes.", "anchors.classes.", "anchors.noised.")
    assert set(old) - set(same) == {name for name in old if name.startswith(heads)}
    regard.train("detect", {**settings, "start": str(tmp_path / "first")}, out=tmp_path / "third")
