"""Data sets of any modality: fields with processors, loaded in this process or in workers."""

import numpy as np
import pytest
import torch

from regard.config.data.base import Data
from regard.config.train import Train
from regard.data import dataset as dataset_module
from regard.data.datasets.fields import ProcessorField
from regard.data.datasets.source_target import SourceTargetDataset
from regard.data.loading.loader import Loader
from regard.data.source import InMemorySource
from regard.processors.image.processor import ImageProcessor
from regard.processors.labels import LabelProcessor, LabelSet


def images(workers: int = 0, seed: int = 1, augmented: bool = True, **train: object) -> SourceTargetDataset:
    rng = np.random.default_rng(3)
    examples = [(rng.integers(0, 256, (12 + i, 16, 3), np.uint8), "ab"[i % 2]) for i in range(9)]
    image = ProcessorField("image", ImageProcessor(resize=8, crop=8, patch=4), augmented)
    label = ProcessorField("label", LabelProcessor(LabelSet({"a": 5, "b": 4})))
    data, settings = Data(workers=workers), Train(seed=seed, **{"batch": 4, **train})
    return SourceTargetDataset(InMemorySource("images", examples), image, label, data, settings)


def epoch(
    dataset: SourceTargetDataset, number: int, index: int = 0
) -> list[tuple[int, torch.Tensor, torch.Tensor, tuple]]:
    loader = Loader.of(dataset)
    try:
        return [
            (step.index, batch["image"].values, batch["label"].values, batch.examples)
            for step in loader.steps(number, index)
            for batch in step.micro_batches
        ]
    finally:
        loader.close()


def same(one, other) -> bool:
    return len(one) == len(other) and all(
        a[0] == b[0] and a[1].equal(b[1]) and a[2].equal(b[2]) and a[3] == b[3] for a, b in zip(one, other, strict=True)
    )


def test_batches_hold_float_pixels_and_labels():
    batches = epoch(images(), 0)
    assert sorted(len(examples) for *_, examples in batches) == [1, 4, 4]
    assert sorted(i for *_, examples in batches for i in examples) == list(range(9))
    for _, pixels, labels, examples in batches:
        assert pixels.dtype == torch.float32 and pixels.shape[1:] == (3, 8, 8) and pixels.abs().max() <= 1
        assert pixels.frac().abs().max() > 0  # not cut to integers
        assert labels.tolist() == [i % 2 for i in examples]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_workers_and_resuming_change_nothing(accumulate):
    wanted = epoch(images(accumulate=accumulate), 2)
    assert same(epoch(images(workers=2, accumulate=accumulate), 2), wanted)
    first = wanted[0][0]
    resumed = epoch(images(workers=1, accumulate=accumulate), 2, index=first)
    assert same(resumed, [batch for batch in wanted if batch[0] > first]) and len(resumed) < len(wanted)


def test_augmentation_depends_on_seed_epoch_and_example_alone():
    def by_example(batches):
        return {i: row for _, pixels, _, examples in batches for i, row in zip(examples, pixels, strict=True)}

    one = by_example(epoch(images(), 0))
    assert all(one[i].equal(row) for i, row in by_example(epoch(images(batch=2), 0)).items())  # other batch-mates
    for other in (epoch(images(), 1), epoch(images(seed=2), 0)):
        assert sum(not one[i].equal(row) for i, row in by_example(other).items()) >= 8


def test_images_that_are_encoded_anew_do_not_stay_in_memory():
    dataset = images()
    assert len(epoch(dataset, 0)) == 3 and dataset._cache == [None] * 9 and not dataset._pool


def test_only_some_bytes_of_images_stay_in_memory(monkeypatch):
    whole, part = images(augmented=False), images(augmented=False)
    wanted = epoch(whole, 0)
    monkeypatch.setattr(dataset_module, "KEPT_BYTES", 3 * (3 * 8 * 8 * 4 + 8))  # three images with their labels
    assert same(epoch(part, 0), wanted)
    assert [sum(each is not None for each in dataset._cache) for dataset in (whole, part)] == [9, 3]
