"""Folders of Hugging Face `transformers`, read without it: the importer by model type, config.json, safetensors."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...config.run import Run
from ...config.types import Base
from ...errors import UserError
from ...files import JsonMapping, JsonObject, read_json, read_optional_json
from ..model_files import INDEX, WEIGHTS, first_module, weight_files

if TYPE_CHECKING:
    from ...processors.base import Processor
    from ...tasks.predictor import AnyPredictor

T = TypeVar("T")


class StartModel(Protocol):
    """The interface of a model that a run can start from: a predictor, or a part of a model."""

    @property
    def run(self) -> Run: ...
    @property
    def model(self) -> Any: ...
    @property
    def processors(self) -> "Mapping[str, Processor]": ...


IMPORTERS = {  # by model_type: a module with `from_huggingface` (config.json to our Config) and `load_predictor`
    "marian": "regard.formats.huggingface.marian",
    "bert": "regard.formats.huggingface.bert",
    "longformer": "regard.formats.huggingface.longformer",
    "big_bird": "regard.formats.huggingface.bigbird",
    "t5": "regard.formats.huggingface.t5",
    "gpt2": "regard.formats.huggingface.gpt2",
    "llama": "regard.formats.huggingface.llama",
    "mistral": "regard.formats.huggingface.llama",
    "qwen2": "regard.formats.huggingface.llama",
    "vit": "regard.formats.huggingface.vit",
    "detr": "regard.formats.huggingface.detr",
    "resnet": "regard.formats.huggingface.resnet",
    "whisper": "regard.formats.huggingface.whisper",
    "clip": "regard.formats.huggingface.clip",
    "vision-encoder-decoder": "regard.formats.huggingface.vision_encoder_decoder",
}


def load_folder(path: Path, overrides: JsonMapping) -> "AnyPredictor":
    """The predictor of a Hugging Face folder; its task depends on the model type."""
    _, config, importer = _open_folder(path)
    predictor: AnyPredictor = importer.load_predictor(path, config, overrides)
    return predictor


def folder_config(path: Path) -> Base:
    """The settings of a folder's model, read without its weights: settings that only tensors reveal have defaults."""
    home, config, importer = _open_folder(path)
    settings: Base = parse_config(home, config, importer.from_huggingface)
    return settings


def start_settings(path: Path) -> JsonObject:
    """The model settings of a folder for a run that starts from it."""
    home, config, importer = _open_folder(path)
    settings: Base = parse_config(home, config, importer.from_huggingface)
    only = getattr(importer, "START_SETTINGS", None)  # of a folder with a part of a model
    return settings.model_dump(mode="json", include=only)


def load_start(path: Path) -> "StartModel | None":
    """The part of a model that a folder holds, for a run that starts from it; None: it holds a whole model."""
    home, config, importer = _open_folder(path)
    if not hasattr(importer, "load_start"):
        return None
    model: StartModel = importer.load_start(home, config)
    return model


def _open_folder(path: Path) -> tuple[Path, JsonObject, ModuleType]:
    """The folder of the model itself, its config.json, and the importer of its type."""
    home = path if (path / "config.json").is_file() else first_module(path)
    config = read_optional_json(home / "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in IMPORTERS:
        raise UserError(f"{path} holds a model of type {model_type!r}; regard reads {', '.join(IMPORTERS)}")
    return home, config, import_module(IMPORTERS[model_type])


def parse_config(path: Path, values: JsonMapping, reader: Callable[[JsonMapping], T], file: str = "config.json") -> T:
    """Apply `reader` to the values of a file; its errors become a UserError that names the file."""
    try:
        return reader(values)
    except KeyError as error:
        raise UserError(f"{path / file} has no {error}; fetch the folder again") from error
    except TypeError as error:
        raise UserError(f"{path / file} has a value of the wrong type ({error}); fetch the folder again") from error
    except ValueError as error:
        raise UserError(f"{path / file}: {error_text(error)}") from error


def error_text(error: ValueError) -> str:
    """One line: the sentence of our own validator, or the key with pydantic's message."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    return f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a folder in fp32, from one safetensors file or from several with their index."""
    if (path / INDEX).is_file() or (path / WEIGHTS).is_file():
        files = weight_files(path)
    elif (path / "pytorch_model.bin").is_file():
        name = (read_json(path / "config.json").get("architectures") or ["AutoModel"])[0]
        raise UserError(
            f"{path} holds only pytorch_model.bin, a pickle, which regard never opens; convert it with transformers: "
            f"{name}.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    else:
        raise UserError(f"{path} has no model.safetensors; a Hugging Face folder needs its weights beside config.json")
    try:
        return {name: tensor.float() for file in files for name, tensor in load_file(path / file).items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"the weights in {path} are cut off or damaged ({error}); fetch the folder again") from error
