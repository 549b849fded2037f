"""Folders of Hugging Face `transformers`, read without it: the format by model type, and what it loads.

A module is imported when its model type is asked for. A plugin adds a format of its own with `FORMATS.add`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from torch import nn

from ...config.registry import Registry
from ...config.run import Run
from ...config.types import Base
from ...errors import UserError
from ...files import JsonMapping, JsonObject, read_optional_json
from ..model_files import first_module
from .files import parse_config

if TYPE_CHECKING:
    from ...processors.base import Processor
    from ...tasks.predictor import AnyPredictor
    from .format import HuggingFaceFormat


class StartModel(Protocol):
    """The interface of a model that a run can start from: a predictor, or a part of a model."""

    @property
    def run(self) -> Run: ...
    @property
    def model(self) -> Any: ...
    @property
    def processors(self) -> "Mapping[str, Processor]": ...


@dataclass
class StartPart:
    """A trained part of a model, such as a backbone: what a run may start from."""

    run: Run
    model: nn.Module
    processors: "Mapping[str, Processor]" = field(default_factory=dict)


AnyFormat: TypeAlias = "HuggingFaceFormat[Any, Any]"
FORMATS: Registry[Any] = Registry(
    "model type",
    {
        "marian": "marian",
        "bert": "bert",
        "roberta": "roberta",
        "longformer": "longformer",
        "big_bird": "bigbird",
        "t5": "t5",
        "gpt2": "gpt2",
        "llama": "llama",
        "mistral": "llama",
        "qwen2": "llama",
        "vit": "vit",
        "detr": "detr",
        "resnet": "resnet",
        "whisper": "whisper",
        "clip": "clip",
        "vision-encoder-decoder": "vision_encoder_decoder",
    },
)


def format_of_type(model_type: str) -> AnyFormat:
    """The format of a model type that FORMATS has."""
    entry = FORMATS[model_type]
    found: AnyFormat = import_module(f"{__package__}.{entry}").FORMAT if isinstance(entry, str) else entry
    return found


def written_formats() -> dict[str, list[AnyFormat]]:
    """By family: the formats that its runs can become."""
    formats: dict[str, list[AnyFormat]] = {}
    for found in dict.fromkeys(map(format_of_type, FORMATS)):
        if found.export is not None:
            formats.setdefault(found.family, []).append(found)
    return formats


def format_of_config(c: Base) -> AnyFormat:
    """The format that represents a Config of ours best."""
    return min(written_formats()[getattr(c, "family", "")], key=lambda each: len(each.unsupported(c)))


def _open_folder(path: Path) -> tuple[Path, JsonObject, AnyFormat]:
    """The folder of the model itself, its config.json, and the format of its type."""
    home = path if (path / "config.json").is_file() else first_module(path)
    config = read_optional_json(home / "config.json")
    model_type = config.get("model_type")
    if model_type is None:
        raise UserError(f"{home / 'config.json'} has no model_type; set it to one of {', '.join(FORMATS)}")
    if not isinstance(model_type, str) or model_type not in FORMATS:
        raise UserError(f"{path} holds a model of type {model_type!r}; regard reads {', '.join(FORMATS)}")
    return home, config, format_of_type(model_type)


def load_folder(path: Path, overrides: JsonMapping) -> "AnyPredictor":
    """The predictor of a Hugging Face folder; its task depends on the model type."""
    _, config, found = _open_folder(path)
    return found.load_predictor(path, config, overrides)


def folder_config(path: Path) -> Base:
    """The settings of a folder's model, read without its weights: settings that only tensors reveal have defaults."""
    home, config, found = _open_folder(path)
    return parse_config(home, config, found.from_huggingface)


def start_settings(path: Path) -> JsonObject:
    """The model settings of a folder for a run that starts from it."""
    home, config, found = _open_folder(path)
    return parse_config(home, config, found.from_huggingface).model_dump(
        mode="json", include=set(found.part.settings) if found.part else None
    )


def load_start(path: Path) -> StartModel | None:
    """The part of a model that a folder holds, for a run that starts from it; None: it holds a whole model."""
    home, config, found = _open_folder(path)
    if found.part is None:
        return None
    folder = found.read_model(home, config)
    return StartPart(Run(task=found.part.task, model=folder.config), folder.model)
