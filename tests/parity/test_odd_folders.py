"""Folders of transformers with odd settings: equal outputs, or a refusal that names the setting.

First the settings that were once read wrongly, then random ones: twenty with the other tests, more by `make soak`.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from helpers.odd_folders import FAMILIES, SQUARE, OddFolder, check, draw_written, single_values, write

VIT, CLIP, DETR = ({"image_processor_type": f"{name}ImageProcessor"} for name in ("ViT", "CLIP", "Detr"))
SQUARES = {"size": SQUARE}
GRAY, WITH_ALPHA = ({"image_mean": [0.4] * n, "image_std": [0.3] * n, "do_convert_rgb": False} for n in (1, 4))
ONE_LABEL = {"class": "ForImageClassification", "num_labels": 1}
SEVERAL = {"class": "ForImageClassification", "num_labels": 9, "problem_type": "multi_label_classification"}
NUMBERS = SEVERAL | {"problem_type": "regression"}


def odd(family: str, settings: dict[str, Any], processor: dict[str, Any] | None = None, *files: str) -> OddFolder:
    return OddFolder(family, settings, processor or {}, files)


EQUAL = [
    odd("bert", {"hidden_act": "swish"}, {}, "index"),
    odd("bert", {"hidden_act": "gelu_python", "class": "ForMaskedLM"}),
    odd("gpt2", {"activation_function": "quick_gelu"}, {}, "architectures"),
    odd("gpt2", {"activation_function": "gelu_fast"}),
    odd("vit", {"num_channels": 1}, VIT | GRAY | SQUARES),
    odd("vit", {"num_channels": 4}, VIT | WITH_ALPHA | SQUARES),
    odd("vit", {"image_size": 30}, VIT | {"size": 30}),
    odd("vit", {}, VIT | SQUARES | {"do_rescale": False}),
    odd("vit", {}, VIT | SQUARES | {"rescale_factor": 1 / 127.5, "do_normalize": False}),
    odd("vit", {}, {"image_processor_type": "SiglipImageProcessor", "size": 36, "do_resize": False}),
    odd("vision-encoder-decoder", {"encoder": {"image_size": 30, "num_channels": 1}}, VIT | GRAY | {"size": 30}),
    odd("clip", {"vision_config": {"num_channels": 1}}, CLIP | GRAY | {"size": 32, "crop_size": 32}),
    odd("clip", {"vision_config": {"image_size": 30}}, CLIP | {"size": 36, "crop_size": 30}, "text_config_dict"),
    odd("clip", {}, {"image_processor_type": "BitImageProcessor", "do_resize": False, "crop_size": 48}),
    odd("detr", {"num_channels": 4}, DETR | WITH_ALPHA | {"size": {"shortest_edge": 40, "longest_edge": 50}}),
    odd("detr", {"num_queries": 130}, DETR | {"size": 40, "do_pad": False, "do_rescale": False}),
    odd("detr", {}, DETR | {"size": 40, "pad_size": {"height": 80, "width": 90}}),
]
REFUSED = [
    (odd("bert", {}, {}, "model_type"), "config.json has no model_type; set it to one of marian, bert"),
    (
        odd("bert", {"class": "ForTokenClassification"}, {}, "architectures"),
        "architectures is missing, and 'classifier",
    ),
    (odd("bert", {"hidden_act": "mish"}), "hidden_act is 'mish'; expected one of gelu, relu"),
    (odd("t5", {"relative_attention_max_distance": 9}), "relative_attention_max_distance is 9; expected at least 14"),
    (odd("vit", SEVERAL), "problem_type is 'multi_label_classification'; regard reads image classifiers of one label"),
    (odd("vit", NUMBERS), "problem_type is 'regression'; regard reads"),
    (odd("vit", ONE_LABEL), r"id2label has one label \(num_labels\)"),
    (odd("vit", {"image_size": [32, 48]}), r"image_size is \[32, 48\]; regard reads models of squares"),
    (odd("vit", {"pooler_act": "gelu", "class": "Model"}), "pooler_act is 'gelu'; expected 'tanh'"),
    (odd("vit", {"pooler_output_size": 20, "class": "Model"}), "pooler_output_size is 20; expected 36"),
    (odd("vit", {"class": "ForImageClassification"}, VIT, "architectures"), "architectures is missing"),
    (odd("vit", {}, {"image_processor_type": "ConvNextImageProcessor"}), "is 'ConvNextImageProcessor'; regard reads"),
    (odd("detr", {"auxiliary_loss": True}, DETR), "auxiliary_loss is true; there each layer"),
    (odd("detr", {}, {"image_processor_type": "YolosImageProcessor"}), "is 'YolosImageProcessor'; regard reads"),
    (odd("detr", {}, DETR | {"size": {"max_height": 40, "max_width": 44}}), "size is .*max_height"),
]
SEEDS = [*range(20), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(20, 200))]


@pytest.mark.parametrize("folder", EQUAL, ids=str)
def test_folders_that_are_read(folder: OddFolder, tmp_path: Path) -> None:
    assert write(folder, tmp_path / "folder") and check(folder, tmp_path / "folder") == "equal"


@pytest.mark.parametrize(("folder", "words"), REFUSED, ids=lambda value: str(value))
def test_folders_that_are_refused(folder: OddFolder, words: str, tmp_path: Path) -> None:
    assert write(folder, tmp_path / "folder") and re.search(words, check(folder, tmp_path / "folder"))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_odd_folder_gives_the_outputs_of_transformers_or_is_refused_by_name(seed: int, tmp_path: Path) -> None:
    check(*draw_written(seed, tmp_path))


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_every_odd_value_alone(family: str, tmp_path: Path) -> None:
    results = {
        str(folder): check(folder, tmp_path / str(number))
        for number, folder in enumerate(single_values(family))
        if write(folder, tmp_path / str(number))
    }
    assert sum(result == "equal" for result in results.values()) > len(results) / 2
