"""Hugging Face DETR folders: the tables of config.json and weight names.

The backbone is a ResNet of transformers, or one of timm, which has the same layers under other names.
"""

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...families import detr
from ...files import JsonMapping, JsonObject
from ...parts import Inputs
from ...processors.image.processor import ImageProcessor
from ..model_card import image_usage
from . import images, resnet
from .config_table import (
    ACTIVATIONS,
    ConfigTable,
    Field,
    Fixed,
    Joint,
    Limit,
    Only,
    both_stacks,
    choice,
    one_class,
)
from .format import Export, HuggingFaceFormat, Tensors, TensorSample, WeightTable
from .images import ImageFolder, ImageProcessors
from .labels import stored_labels
from .weight_names import WeightRule, add_prefixes, any_of

if TYPE_CHECKING:
    from ...tasks.detect.task import DetectPredictor

ARCHITECTURE = "DetrForObjectDetection"
USAGE = """(found,) = processor.post_process_object_detection(outputs, 0.5, [image.size[::-1]])
for label, score, box in zip(found["labels"], found["scores"], found["boxes"]):
    print(model.config.id2label[int(label)], float(score), box.tolist())"""
BACKBONE = "model.backbone.conv_encoder.model."
LAYER: dict[str, str | WeightRule] = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": any_of("self_attn.out_proj", "self_attn.o_proj"),
    "attention_residual.norm": "self_attn_layer_norm",
    "feed_residual.norm": "final_layer_norm",
    "feed.into": any_of("fc1", "mlp.fc1"),
    "feed.out": any_of("fc2", "mlp.fc2"),
}
CROSS: dict[str, str | WeightRule] = {
    "cross.query": "encoder_attn.q_proj",
    "cross.key": "encoder_attn.k_proj",
    "cross.value": "encoder_attn.v_proj",
    "cross.out": any_of("encoder_attn.out_proj", "encoder_attn.o_proj"),
    "cross_residual.norm": "encoder_attn_layer_norm",
}


def _read_backbone(theirs: JsonMapping) -> JsonObject:
    """The settings of the backbone, by config.json or by its name in timm."""
    backbone = theirs.get("backbone_config") or {}
    model_type = backbone.get("model_type", "resnet" if backbone else "timm_backbone")
    if model_type == "timm_backbone":
        name = backbone.get("backbone") or theirs.get("backbone") or "resnet50"
        size = name.partition(".")[0].replace("resnet", "R")
        if size not in ("R18", "R34", "R50", "R101") or backbone.get("output_stride", 32) != 32:
            raise ValueError(f"backbone is {name!r}; expected resnet18, resnet34, resnet50 or resnet101 of stride 32")
        c = detr.Config.model_validate(detr.SIZES[size])
        backbone = resnet.CONFIG.write(c) | {"num_channels": theirs.get("num_channels", 3)}
    elif model_type != "resnet":
        raise ValueError(f"backbone_config is of type {model_type!r}; expected resnet or timm_backbone")
    return resnet.CONFIG.read(backbone)


def _write_backbone(c: detr.Config) -> JsonObject:
    backbone = {"model_type": "resnet", **resnet.CONFIG.write(c)}
    return {"backbone_config": backbone, "backbone": None, "use_timm_backbone": False, "num_channels": c.channels}


def _refuse_backbone(c: detr.Config) -> list[str]:
    strides = (1, 2), *[(2,)] * (len(c.strides) - 1)
    wrong = any(stride not in allowed for stride, allowed in zip(c.strides, strides, strict=True))
    return resnet.CONFIG.unsupported(c) + ([f"model.strides={c.strides} (expected 1 or 2, then 2)"] if wrong else [])


CONFIG = ConfigTable(
    (
        one_class(ARCHITECTURE),
        Joint(_read_backbone, _write_backbone),
        Limit(_refuse_backbone),
        Field("width", "d_model", 256),
        both_stacks("heads", "attention_heads", 8),
        both_stacks("inner", "ffn_dim", 2048),
        Field("layers", "encoder_layers", 6),
        Field("decoder_layers", "decoder_layers", 6, write=None),
        Joint(lambda theirs: {}, lambda c: {"decoder_layers": c.decoder_layers or c.layers}),
        Field("dropout", "dropout", 0.1),
        Field("attention.dropout", "attention_dropout", 0.0),
        Field("feed.act", "activation_function", "relu", **choice("activation_function", ACTIVATIONS)),
        Field("feed.dropout", "activation_dropout", 0.0),
        Field("queries", "num_queries", 100),
        Fixed("anchors", "none", "expected none: queries are vectors there"),
        Fixed("denoising", 0, "expected 0: it belongs to anchors"),
        Only("position_embedding_type", "sine", "regard's DETR has sinusoids"),
        Only("dilation", False, "regard's ResNet has strides only"),
        Only("auxiliary_loss", False, "there each layer of such a decoder reads normalized states", written=False),
        Only("scale_embedding", False, "regard does not scale the features", written=False),
    )
)


def names(c: detr.Config) -> dict[str, str | WeightRule]:
    """Our tensors to theirs."""
    return {
        **resnet.names(BACKBONE),
        "project": "model.input_projection",
        "queries": "model.query_position_embeddings",
        **add_prefixes("encoder.layers.*", "model.encoder.layers.*", LAYER),
        **add_prefixes("decoder.layers.*", "model.decoder.layers.*", LAYER | CROSS),
        "decoder.norm": "model.decoder.layernorm",
        "classes": "class_labels_classifier",
        "box.layers.*": "bbox_predictor.layers.*",
    }


def their_backbone(tensors: Tensors, theirs: JsonMapping) -> Tensors:
    """The tensors with the names of transformers' backbone, whichever version or library named them."""
    renamed = {name.replace("model.backbone.model.", BACKBONE): tensor for name, tensor in tensors.items()}
    return resnet.rename_timm(renamed, BACKBONE)


def label_names(theirs: JsonMapping) -> list[str]:
    """The labels in order. COCO's unused ids are all named N/A: the second and later ones get their number."""
    names, seen = list[str](), Counter[str]()
    for number, name in enumerate(stored_labels(theirs)):
        names.append(f"{name} {number}" if seen[name] else name)
        seen[name] += 1
    return names


def complete(settings: JsonMapping, theirs: JsonMapping, tensors: Collection[str]) -> JsonObject:
    """The number of labels."""
    return {"labels": len(label_names(theirs))}


def default_image(c: detr.Config) -> ImageProcessor:
    """The processor of a folder that has none."""
    return images.class_default(images.DETR, ImageProcessor(patch=1, scale=(1.0, 1.0), flip=False), c.channels)


def sample(predictor: "DetectPredictor") -> TensorSample:
    """Random images, one of them padded, and the boxes with their logits."""
    c: detr.Config = predictor.run.model
    pixels = torch.randn(2, c.channels, 96, 128, generator=torch.Generator().manual_seed(1))
    valid = torch.ones(2, 96, 128, dtype=torch.bool)
    valid[1, 64:], valid[1, :, 80:] = False, False
    pixels *= valid[:, None]

    def outputs(model: Any) -> Tensor:
        detections = model.detect(Inputs("pixels", pixels, valid))
        return torch.cat([detections.logits[-1], detections.boxes[-1]], -1)

    def their_outputs(model: Any) -> Tensor:
        output = model(pixels, pixel_mask=valid.long())
        return torch.cat([output.logits, output.pred_boxes], -1)

    return TensorSample(predictor.module, outputs, their_outputs)


def usage(predictor: "DetectPredictor") -> str:
    """The usage example of the model card."""
    return image_usage(ARCHITECTURE, USAGE, predictor.image.mode)


FORMAT: "HuggingFaceFormat[DetectPredictor, ImageFolder]" = HuggingFaceFormat(
    "a DETR folder",
    "detr",
    {"detr": CONFIG},
    WeightTable(names, lambda c: resnet.UNUSED, their_backbone),
    ImageProcessors("detect", default_image, label_names, images.DETR),
    Export(lambda c: "detr", sample, usage, lambda c: "object-detection"),
    complete,
)
