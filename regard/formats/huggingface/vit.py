"""Hugging Face ViT folders: the tables of config.json, weight names and preprocessor_config.json; reader and writer."""

from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from ...families import vit
from ...files import JsonMapping, read_json, read_optional_json, write_json
from ...parts import Inputs
from ...processors.image.processor import ImageProcessor
from ..model_card import image_usage
from ..parity import check_close, quiet
from .bert import ACTIVATIONS, label_names, read_head
from .config_table import ConfigTable, Field, Fixed, Joint, Only, choice
from .folder import parse_config, read_weights
from .image_settings import PROCESSOR, read_image_settings, write_image_settings
from .weight_names import WeightRule, add_prefixes, export_weights, load_weights

if TYPE_CHECKING:
    from ...tasks.classify_image.task import ClassifyImagePredictor

ARCHITECTURES = {"ViTModel": "none", "ViTForImageClassification": "class"}
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


def architecture(c: vit.Config) -> str:
    """The class of transformers for a model."""
    return next(name for name, head in ARCHITECTURES.items() if head == c.head)


CONFIG = ConfigTable(
    (
        Joint(lambda theirs: read_head(theirs, ARCHITECTURES), lambda c: {"architectures": [architecture(c)]}),
        Only("qkv_bias", True, "regard's attention has biases"),
        Field("image", "image_size", 224),
        Field("patch", "patch_size", 16),
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


def usage(predictor: "ClassifyImagePredictor") -> str:
    """The usage example of the model card."""
    c: vit.Config = predictor.run.model
    label = "print(model.config.id2label[int(outputs.logits.argmax())])"
    return image_usage(architecture(c), label if c.head == "class" else "print(outputs.last_hidden_state)")


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


def from_huggingface(theirs: JsonMapping, tensors: Collection[str] = ()) -> vit.Config:
    """Our Config of their config.json; the tensors tell whether there is a pooler."""
    settings = CONFIG.read(theirs)
    settings["pooled"] = any(name.endswith("pooler.dense.weight") for name in tensors)
    settings["labels"] = len(label_names(theirs)) if settings["head"] == "class" else 0
    return vit.Config.model_validate(settings)


def read_processor(theirs: JsonMapping, c: vit.Config) -> ImageProcessor:
    """Our processor of their preprocessor_config.json; without one, the image is resized to the model's square."""
    return read_image_settings(
        theirs, ImageProcessor(resize=(c.image, c.image), crop=0, resample="bilinear", patch=c.patch)
    )


# --- the folder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VitFolder:
    """The contents of a ViT folder."""

    config: vit.Config
    model: vit.Model
    image: ImageProcessor
    labels: tuple[str, ...]


def read(path: Path, config: JsonMapping) -> VitFolder:
    """Read a folder of this family."""
    tensors = read_weights(path)
    ours = parse_config(path, config, lambda theirs: from_huggingface(theirs, tensors))
    model = load_weights(vit.Model(ours), tensors, names(ours))
    about = read_optional_json(path / PROCESSOR)
    image = parse_config(path, about, lambda theirs: read_processor(theirs, ours), PROCESSOR)
    return VitFolder(ours, model, image, tuple(label_names(config)) if ours.labels else ())


def load_predictor(path: Path, config: JsonMapping, overrides: JsonMapping) -> "ClassifyImagePredictor":
    """The predictor of a folder."""
    predictor: ClassifyImagePredictor = import_module("regard.tasks.classify_image.task").from_folder(
        read(path, config), overrides
    )
    return predictor


unsupported = CONFIG.unsupported


def write(predictor: "ClassifyImagePredictor", draft: Path, precision: str) -> None:
    """Write everything in the folder except its README."""
    c: vit.Config = predictor.run.model
    draft.mkdir()
    labels = list(predictor.labels) if c.head == "class" else []
    maps = {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }
    config = {"model_type": "vit", **CONFIG.write(c), "dtype": "float32", **(maps if labels else {})}
    write_json(draft / "config.json", config)
    theirs = {
        name: tensor.detach().clone().contiguous()
        for name, tensor in export_weights(predictor.module, names(c)).items()
    }
    (draft / "model.safetensors").write_bytes(save(theirs, {"format": "pt"}))
    write_json(draft / PROCESSOR, write_image_settings(predictor.image))


def check(predictor: "ClassifyImagePredictor", draft: Path, precision: str) -> str:
    """Compare the folder, as transformers and regard read it, with the run on random images."""
    c: vit.Config = predictor.run.model
    pixels = torch.rand(2, c.channels, c.image, c.image, generator=torch.Generator().manual_seed(1)) * 2 - 1
    model: Any = predictor.model

    def outputs(module: Any) -> torch.Tensor:
        encoded = module.encode(Inputs("pixels", pixels))
        states: torch.Tensor = module.label_logits(encoded) if c.head == "class" else encoded.states
        return states

    with torch.no_grad():
        expected = outputs(model.float().cpu())
        folder_outputs = outputs(read(draft, read_json(draft / "config.json")).model)
        check_close("outputs of the folder as regard reads it", folder_outputs, expected)
        if find_spec("transformers") is None:
            return "equal when read again; not compared with transformers, which is not installed"
        hf: Any = import_module("transformers")
        with quiet(hf):
            output = getattr(hf, architecture(c)).from_pretrained(draft).eval()(pixels)
        theirs = output.logits if c.head == "class" else output.last_hidden_state
        difference = check_close("outputs of transformers", theirs, expected)
    return f"equal when read again; transformers differs by {difference:.1g} of the largest output"
