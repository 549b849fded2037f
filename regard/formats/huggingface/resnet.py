"""ResNet, the backbone of DETR: its config, its weight names, and Hugging Face ResNet folders that start a detector."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from torch import Tensor, nn

from ...errors import UserError
from ...families import detr
from ...files import JsonMapping, JsonObject
from .config_table import ConfigTable, Field, Fixed, Joint, Only, present
from .format import ExportSource, Folder, HuggingFaceFormat, PartOfModel, WeightTable
from .weight_names import WeightRule, add_prefixes

UNUSED = (r".*\.num_batches_tracked", r"classifier\..*")  # batch norms count steps; the head of a classifier
START_SETTINGS = frozenset({"family", "channels", "stem", "stages", "depths", "strides", "bottleneck", "backbone_norm"})
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


class NoPredictions:
    """A backbone gives no predictions: it is a start."""

    def read(self, folder: Folder) -> NoReturn:
        """Name the command that the folder is for."""
        raise UserError(
            f"{folder.root} holds a ResNet, a backbone that predicts nothing here; train a detector that starts from "
            f"it: regard train detect start={folder.root}"
        )

    def load(self, folder: Folder, overrides: JsonMapping) -> NoReturn:
        """Not reached: `read` refuses the folder."""
        self.read(folder)

    def write(self, predictor: ExportSource, draft: Path) -> JsonObject:
        """Not reached: the format is only read."""
        return {}


FORMAT: HuggingFaceFormat[ExportSource, Folder] = HuggingFaceFormat(
    "a ResNet folder",  # ResNetModel, ResNetBackbone or ResNetForImageClassification
    "detr",
    {"resnet": CONFIG},
    WeightTable(
        lambda c: names(""),
        lambda c: UNUSED,
        lambda tensors, theirs: {name.removeprefix("resnet."): tensors[name] for name in tensors},
    ),
    NoPredictions(),
    part=PartOfModel("detect", START_SETTINGS, lambda c: nn.ModuleDict({"backbone": detr.build_backbone(c)})),
)
