"""Hugging Face ViT folders: the tables of config.json, weight names and preprocessor_config.json."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...families import vit
from ...files import JsonMapping, JsonObject
from ...parts import Inputs
from ...processors.image.processor import ImageProcessor
from ..model_card import image_usage
from .config_table import (
    ACTIVATIONS,
    ConfigTable,
    Field,
    Fixed,
    Joint,
    Only,
    choice,
    present,
    read_class,
    require_class,
)
from .format import Export, HuggingFaceFormat, TensorSample, WeightTable
from .images import VIT, ImageFolder, ImageProcessors, class_default
from .labels import label_names
from .weight_names import WeightRule, add_prefixes

if TYPE_CHECKING:
    from ...tasks.classify_image.task import ClassifyImagePredictor

ARCHITECTURES = {"ViTModel": "none", "ViTForImageClassification": "class"}
CLASSES = {head: name for name, head in ARCHITECTURES.items()}
LAYER = {
    "attention.query": "attention.attention.query",
    "attention.key": "attention.attention.key",
    "attention.value": "attention.attention.value",
    "attention.out": "attention.output.dense",
    "attention_residual.norm": "layernorm_before",
    "feed_residual.norm": "layernorm_after",
    "feed.into": "intermediate.dense",
    "feed.out": "output.dense",
}


def square(key: str) -> Callable[[int | list[int]], int]:
    """A reader of a side, which may be given twice, as height and width."""

    def read(value: int | list[int]) -> int:
        sides = set(value) if isinstance(value, list) else {value}
        if len(sides) > 1:
            raise ValueError(f"{key} is {value}; regard reads models of squares")
        return sides.pop()

    return read


def read_partial(theirs: JsonMapping, image: int = 224, patch: int = 16) -> JsonObject:
    """What becomes of images that are not whole patches: the convolution of transformers drops the rest."""
    sides = square("image_size")(theirs.get("image_size", image)), square("patch_size")(theirs.get("patch_size", patch))
    return {"partial_patches": "drop" if sides[0] % sides[1] else "pad"}


def read_pooler(theirs: JsonMapping) -> JsonObject:
    """Refuse a pooler that regard's ViT does not have."""
    if read_class(theirs, ARCHITECTURES) != "none":
        return {}
    for key, expected in (("pooler_act", "tanh"), ("pooler_output_size", theirs.get("hidden_size", 768))):
        if (value := present(theirs, key, expected)) != expected:
            raise ValueError(f"{key} is {value!r}; expected {expected!r}")
    return {}


def read_problem(theirs: JsonMapping) -> JsonObject:
    """Refuse heads that do not choose one label."""
    if read_class(theirs, ARCHITECTURES) != "class":
        return {}
    problem, count = theirs.get("problem_type"), len(label_names(theirs))
    if problem not in (None, "single_label_classification"):
        raise ValueError(f"problem_type is {problem!r}; regard reads image classifiers of one label for an image")
    if count == 1:
        raise ValueError("id2label has one label (num_labels), which is regression; regard reads image classifiers")
    return {}


PARTIAL_PATCHES = Joint(read_partial, lambda c: {})
CONFIG = ConfigTable(
    (
        Joint(
            lambda theirs: {"head": read_class(theirs, ARCHITECTURES)}, lambda c: {"architectures": [CLASSES[c.head]]}
        ),
        Joint(read_pooler, lambda c: {}),
        PARTIAL_PATCHES,
        Joint(read_problem, lambda c: {}),
        Only("qkv_bias", True, "regard's attention has biases"),
        Field("image", "image_size", 224, square("image_size")),
        Field("patch", "patch_size", 16, square("patch_size")),
        Field("channels", "num_channels", 3),
        Fixed("stem", (), "expected none"),
        Field("width", "hidden_size", 768),
        Field("heads", "num_attention_heads", 12),
        Field("layers", "num_hidden_layers", 12),
        Field("inner", "intermediate_size", 3072),
        Field("dropout", "hidden_dropout_prob", 0.0),
        Fixed("depth_dropout", 0.0),
        Fixed("pool", "first", "expected first: a class token"),
        Fixed("positions", "learned", "expected learned"),
        Fixed("attention.kind", "dense", "expected dense"),
        Fixed("attention.scaled", True, "expected true: ViT scales its scores"),
        Field("attention.dropout", "attention_probs_dropout_prob", 0.0),
        Fixed("feed.kind", "plain", "expected plain"),
        Field("feed.act", "hidden_act", "gelu", **choice("hidden_act", ACTIVATIONS)),
        Fixed("feed.dropout", 0.0),
        Fixed("norm.kind", "layer", "expected layer"),
        Field("norm.eps", "layer_norm_eps", 1e-12),
    )
)


def names(c: vit.Config) -> dict[str, str | WeightRule]:
    """Our tensors to theirs."""
    base = "vit." if c.head == "class" else ""
    table: dict[str, str | WeightRule] = {
        "first": f"{base}embeddings.cls_token",
        "positions.table": f"{base}embeddings.position_embeddings",
        "patches.project": f"{base}embeddings.patch_embeddings.projection",
        "encoder.norm": f"{base}layernorm",
        **add_prefixes("encoder.layers.*", f"{base}encoder.layer.*", LAYER),
    }
    if c.pooled:
        table["pooler"] = f"{base}pooler.dense"
    if c.head == "class":
        table["classes"] = "classifier"
    return table


def complete(settings: JsonMapping, theirs: JsonMapping, tensors: Collection[str]) -> JsonObject:
    """The number of labels, and whether the tensors have a pooler."""
    require_class(theirs, tensors, ARCHITECTURES, ("classifier.",))
    labels = len(label_names(theirs)) if settings["head"] == "class" else 0
    return {"labels": labels, "pooled": any(name.endswith("pooler.dense.weight") for name in tensors)}


def default_image(c: vit.Config) -> ImageProcessor:
    """The processor of a folder that has none: the image is resized to the model's square."""
    return class_default(VIT, ImageProcessor(patch=c.patch), c.channels, size=c.image)


def sample(predictor: "ClassifyImagePredictor") -> TensorSample:
    """Random images, and the logits of the labels or the states."""
    c: vit.Config = predictor.run.model
    pixels = torch.rand(2, c.channels, c.image, c.image, generator=torch.Generator().manual_seed(1)) * 2 - 1

    def outputs(model: Any) -> Tensor:
        encoded = model.encode(Inputs("pixels", pixels))
        states: Tensor = model.label_logits(encoded) if c.head == "class" else encoded.states
        return states

    def their_outputs(model: Any) -> Tensor:
        states: Tensor = model(pixels)["logits" if c.head == "class" else "last_hidden_state"]
        return states

    return TensorSample(predictor.module, outputs, their_outputs)


def usage(predictor: "ClassifyImagePredictor") -> str:
    """The usage example of the model card."""
    c: vit.Config = predictor.run.model
    label = "print(model.config.id2label[int(outputs.logits.argmax())])"
    last = label if c.head == "class" else "print(outputs.last_hidden_state)"
    return image_usage(CLASSES[c.head], last, predictor.image.mode)


FORMAT: "HuggingFaceFormat[ClassifyImagePredictor, ImageFolder]" = HuggingFaceFormat(
    "a ViT folder",
    "vit",
    {"vit": CONFIG},
    WeightTable(names),
    ImageProcessors("classify_image", default_image, label_names),
    Export(lambda c: "vit", sample, usage, lambda c: "image-classification"),
    complete,
    size="",
)
