"""Hugging Face DETR folders: the tables of config.json and weight names; reader and writer.

The backbone is a ResNet of transformers, or one of timm, which has the same layers under other names.
"""

from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from ...families import detr
from ...files import JsonMapping, JsonObject, read_json, read_optional_json, write_json
from ...parts import Inputs
from ...processors.image.processor import ImageProcessor
from ..model_card import image_usage
from ..parity import check_close, quiet
from . import resnet
from .bert import ACTIVATIONS
from .config_table import ConfigTable, Field, Fixed, Joint, Only, choice, present
from .folder import parse_config, read_weights
from .image_settings import PROCESSOR, read_image_settings, write_image_settings
from .weight_names import WeightRule, add_prefixes, any_of, export_weights, load_weights

if TYPE_CHECKING:
    from ...tasks.detect.task import DetectPredictor

ARCHITECTURE = "DetrForObjectDetection"
USAGE = """(found,) = processor.post_process_object_detection(outputs, 0.5, [image.size[::-1]])
for label, score, box in zip(found["labels"], found["scores"], found["boxes"]):
    print(model.config.id2label[int(label)], float(score), box.tolist())"""
BACKBONE = "model.backbone.conv_encoder.model."
IMAGES = ImageProcessor(
    resize=800, max_size=1333, crop=0, resample="bilinear", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
    patch=1, scale=(1.0, 1.0), flip=False,
)  # fmt: skip
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


def _read_stacks(theirs: JsonMapping) -> JsonObject:
    """Heads and inner width, which encoder and decoder share here."""
    settings = {}
    for ours, key, default in (("heads", "attention_heads", 8), ("inner", "ffn_dim", 2048)):
        first, second = (present(theirs, f"{stack}_{key}", default) for stack in ("encoder", "decoder"))
        if first != second:
            raise ValueError(f"encoder_{key} is {first} and decoder_{key} {second}; expected one number for both")
        settings[ours] = first
    return settings


def _write_stacks(c: detr.Config) -> JsonObject:
    pairs = {"attention_heads": c.heads, "ffn_dim": c.inner}
    settings = {f"{stack}_{key}": value for stack in ("encoder", "decoder") for key, value in pairs.items()}
    return settings | {"decoder_layers": c.decoder_layers or c.layers}


def _read_architecture(theirs: JsonMapping) -> JsonObject:
    if (architecture := (theirs.get("architectures") or [ARCHITECTURE])[0]) != ARCHITECTURE:
        raise ValueError(f"architectures has {architecture!r}; expected {ARCHITECTURE}")
    return {}


CONFIG = ConfigTable(
    (
        Joint(_read_architecture, lambda c: {"architectures": [ARCHITECTURE]}),
        Joint(_read_backbone, _write_backbone),
        Field("width", "d_model", 256),
        Joint(_read_stacks, _write_stacks),
        Field("layers", "encoder_layers", 6),
        Field("decoder_layers", "decoder_layers", 6, write=None),
        Field("dropout", "dropout", 0.1),
        Field("attention.dropout", "attention_dropout", 0.0),
        Field("feed.act", "activation_function", "relu", **choice("activation_function", ACTIVATIONS)),
        Field("feed.dropout", "activation_dropout", 0.0),
        Field("queries", "num_queries", 100),
        Fixed("anchors", "none", "expected none: queries are vectors there"),
        Fixed("denoising", 0, "expected 0: it belongs to anchors"),
        Only("position_embedding_type", "sine", "regard's DETR has sinusoids"),
        Only("dilation", False, "regard's ResNet has strides only"),
        Only("scale_embedding", False, "regard does not scale the features", written=False),
    )
)


def unsupported(c: detr.Config) -> list[str]:
    """Settings of ours that their model cannot have."""
    strides = (1, 2), *[(2,)] * (len(c.strides) - 1)
    wrong = any(stride not in allowed for stride, allowed in zip(c.strides, strides, strict=True))
    refused = [f"model.strides={c.strides} (expected 1 or 2, then 2)"] if wrong else []
    return resnet.CONFIG.unsupported(c) + CONFIG.unsupported(c) + refused


def usage(predictor: "DetectPredictor") -> str:
    """The usage example of the model card."""
    return image_usage(ARCHITECTURE, USAGE)


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


def label_names(theirs: JsonMapping) -> list[str]:
    """The labels in order. COCO's unused ids are all named N/A: the second and later ones get their number."""
    labels = theirs.get("id2label") or {number: f"LABEL_{number}" for number in range(theirs.get("num_labels") or 2)}
    names, seen = list[str](), Counter[str]()
    for number in sorted(labels, key=int):
        name = str(labels[number])
        names.append(f"{name} {number}" if seen[name] else name)
        seen[name] += 1
    return names


def from_huggingface(theirs: JsonMapping) -> detr.Config:
    """Our settings from their config."""
    settings = CONFIG.read(theirs) | {"size": "huggingface", "labels": len(label_names(theirs))}
    return detr.Config.model_validate(settings)


# --- the folder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DetrFolder:
    """The contents of a DETR folder."""

    config: detr.Config
    model: detr.Model
    image: ImageProcessor
    labels: tuple[str, ...]


def read(path: Path, config: JsonMapping) -> DetrFolder:
    """Read a folder of this family."""
    ours = parse_config(path, config, from_huggingface)
    tensors = {name.replace("model.backbone.model.", BACKBONE): tensor for name, tensor in read_weights(path).items()}
    tensors = resnet.rename_timm(tensors, BACKBONE)
    model = load_weights(detr.Model(ours), tensors, names(ours), resnet.UNUSED)
    about = read_optional_json(path / PROCESSOR)
    image = parse_config(path, about, lambda theirs: read_image_settings(theirs, IMAGES), PROCESSOR)
    return DetrFolder(ours, model, image, tuple(label_names(config)))


def load_predictor(path: Path, config: JsonMapping, overrides: JsonMapping) -> "DetectPredictor":
    """The predictor of a folder."""
    folder = read(path, config)
    predictor: DetectPredictor = import_module("regard.tasks.detect.task").from_folder(folder, overrides)
    return predictor


def write(predictor: "DetectPredictor", draft: Path, precision: str) -> None:
    """Write everything in the folder except its README."""
    c, labels = predictor.run.model, predictor.labels
    draft.mkdir()
    maps: JsonObject = {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }
    write_json(draft / "config.json", {"model_type": "detr", **CONFIG.write(c), "dtype": "float32", **maps})
    theirs = {
        name: tensor.detach().clone().contiguous()
        for name, tensor in export_weights(predictor.module, names(c)).items()
    }
    (draft / "model.safetensors").write_bytes(save(theirs, {"format": "pt"}))
    write_json(draft / PROCESSOR, write_image_settings(predictor.image, detector=True))


def check(predictor: "DetectPredictor", draft: Path, precision: str) -> str:
    """Compare the folder, as transformers and regard read it, with the run on random images, one of them padded."""
    c: detr.Config = predictor.run.model
    pixels = torch.randn(2, c.channels, 96, 128, generator=torch.Generator().manual_seed(1))
    valid = torch.ones(2, 96, 128, dtype=torch.bool)
    valid[1, 64:], valid[1, :, 80:] = False, False
    pixels *= valid[:, None]

    def outputs(model: Any) -> torch.Tensor:
        detections = model.detect(Inputs("pixels", pixels, valid))
        return torch.cat([detections.logits[-1], detections.boxes[-1]], -1)

    with torch.no_grad():
        expected = outputs(predictor.module.float().cpu())
        folder_outputs = outputs(read(draft, read_json(draft / "config.json")).model)
        check_close("outputs of the folder as regard reads it", folder_outputs, expected)
        if find_spec("transformers") is None:
            return "equal when read again; not compared with transformers, which is not installed"
        hf: Any = import_module("transformers")
        with quiet(hf):
            output = hf.DetrForObjectDetection.from_pretrained(draft).eval()(pixels, pixel_mask=valid.long())
        theirs = torch.cat([output.logits, output.pred_boxes], -1)
        difference = check_close("outputs of transformers", theirs, expected)
    return f"equal when read again; transformers differs by {difference:.1g} of the largest output"
