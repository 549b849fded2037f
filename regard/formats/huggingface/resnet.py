"""ResNet, the backbone of DETR: its config, its weight names, and Hugging Face ResNet folders that start a detector."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from torch import Tensor, nn

from ...config.run import Run
from ...errors import UserError
from ...families import detr
from ...files import JsonMapping, JsonObject
from .config_table import ConfigTable, Field, Fixed, Joint, Only, present
from .folder import parse_config, read_weights
from .weight_names import WeightRule, add_prefixes, load_weights

if TYPE_CHECKING:
    from ...processors.base import Processor

UNUSED = (r".*\.num_batches_tracked", r"classifier\..*")  # batch norms count steps; the head of a classifier
START_SETTINGS = {"family", "channels", "stem", "stages", "depths", "strides", "bottleneck", "backbone_norm"}
CONVOLUTION = {"convolution": "convolution", "norm": "normalization"}
TIMM: dict[str, Callable[[re.Match[str]], str]] = {  # patterns of timm's names, and the names of transformers
    r"conv1\.": lambda match: "embedder.embedder.convolution.",
    r"bn1\.": lambda match: "embedder.embedder.normalization.",
    r"layer(\d)\.(\d+)\.conv(\d)\.": lambda match: f"{_layer(match)}.layer.{int(match[3]) - 1}.convolution.",
    r"layer(\d)\.(\d+)\.bn(\d)\.": lambda match: f"{_layer(match)}.layer.{int(match[3]) - 1}.normalization.",
    r"layer(\d)\.(\d+)\.downsample\.0\.": lambda match: f"{_layer(match)}.shortcut.convolution.",
    r"layer(\d)\.(\d+)\.downsample\.1\.": lambda match: f"{_layer(match)}.shortcut.normalization.",
}


def _layer(match: re.Match[str]) -> str:
    return f"encoder.stages.{int(match[1]) - 1}.layers.{match[2]}"


def from_timm(name: str) -> str:
    """The name of a tensor in transformers' ResNet; another name stays."""
    for pattern, rename in TIMM.items():
        if match := re.match(pattern, name):
            return rename(match) + name[match.end() :]
    return name


def rename_timm(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors with the names of transformers; a backbone below `prefix` may have those of timm."""
    return {
        prefix + from_timm(name.removeprefix(prefix)) if name.startswith(prefix) else name: tensor
        for name, tensor in tensors.items()
    }


def _read_shape(theirs: JsonMapping) -> JsonObject:
    """Settings that depend on several of their keys."""
    depths, basic = list(present(theirs, "depths", (3, 4, 6, 3))), present(theirs, "layer_type", "bottleneck")
    first = 2 if theirs.get("downsample_in_first_stage") else 1
    if basic not in ("basic", "bottleneck"):
        raise ValueError(f"layer_type is {basic!r}; expected basic or bottleneck")
    features = theirs.get("out_features") or [f"stage{len(depths)}"]
    if features[-1] != f"stage{len(depths)}":
        raise ValueError(f"out_features is {features}; regard reads the features of the last stage, stage{len(depths)}")
    return {"depths": depths, "strides": [first] + [2] * (len(depths) - 1), "bottleneck": basic == "bottleneck"}


def _write_shape(c: detr.Config) -> JsonObject:
    return {
        "depths": list(c.depths),
        "layer_type": "bottleneck" if c.bottleneck else "basic",
        "downsample_in_first_stage": c.strides[0] == 2,
        "out_features": [f"stage{len(c.depths)}"],
    }


CONFIG = ConfigTable(
    (
        Field("channels", "num_channels", 3),
        Field("stem", "embedding_size", 64),
        Field("stages", "hidden_sizes", (256, 512, 1024, 2048), list, list),
        Joint(_read_shape, _write_shape),
        Only("hidden_act", "relu", "regard's ResNet has relu"),
        Only("downsample_in_bottleneck", False, "regard's ResNet downsamples in the second convolution"),
        Fixed("backbone_norm.kind", "frozen", "expected frozen: group norm does not exist there"),
        Fixed("backbone_norm.eps", 1e-5, "expected 1e-05"),
    )
)


def names(prefix: str) -> dict[str, str | WeightRule]:
    """Our tensors of the backbone to theirs below a prefix that ends with a dot, or none."""
    layers = f"{prefix}encoder.stages.*.layers.*"
    return {
        **add_prefixes("backbone.stem", f"{prefix}embedder.embedder", CONVOLUTION),
        **add_prefixes("backbone.stages.*.*.layers.*", f"{layers}.layer.*", CONVOLUTION),
        **add_prefixes("backbone.stages.*.*.shortcut", f"{layers}.shortcut", CONVOLUTION),
    }


# --- ResNet folders --------------------------------------------------------------------------------------------------


class Backbone:
    """A trained backbone without a detector: what a run may start from."""

    def __init__(self, c: detr.Config) -> None:
        self.config, self.model = c, nn.ModuleDict({"backbone": detr.build_backbone(c)})
        self.processors: Mapping[str, Processor] = {}

    @property
    def run(self) -> Run:
        return Run(task="detect", model=self.config)


def from_huggingface(theirs: JsonMapping) -> detr.Config:
    """The Config of a detector with this backbone; all other settings have their defaults."""
    return detr.Config.model_validate({"size": "huggingface", **CONFIG.read(theirs)})


def load_start(path: Path, config: JsonMapping) -> Backbone:
    """The backbone of a ResNet folder: ResNetModel, ResNetBackbone or ResNetForImageClassification."""
    theirs = {name.removeprefix("resnet."): tensor for name, tensor in read_weights(path).items()}
    backbone = Backbone(parse_config(path, config, from_huggingface))
    load_weights(backbone.model, theirs, names(""), UNUSED)
    return backbone


def load_predictor(path: Path, config: JsonMapping, overrides: JsonMapping) -> NoReturn:
    """A backbone gives no predictions: it is a start."""
    raise UserError(
        f"{path} holds a ResNet, a backbone that predicts nothing here; train a detector that starts from it: "
        f"regard train detect start={path}"
    )
