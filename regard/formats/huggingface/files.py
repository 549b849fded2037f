"""The files of a folder: config.json and its errors, safetensors, and the settings of its processors."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...errors import UserError
from ...files import JsonMapping, read_json, read_optional_json
from ..model_files import INDEX, WEIGHTS, weight_files

T = TypeVar("T")
PROCESSOR, WHOLE_PROCESSOR = "preprocessor_config.json", "processor_config.json"


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


def read_processor(
    path: Path, part: Literal["image_processor", "feature_extractor"], reader: Callable[[JsonMapping], T]
) -> T:
    """Apply `reader` to the settings of a processor, {} where a folder has none.

    As in transformers, its part of processor_config.json, the file of the whole processor, is before
    preprocessor_config.json.
    """
    whole = read_optional_json(path / WHOLE_PROCESSOR)
    if part in whole:
        return parse_config(path, whole[part], reader, WHOLE_PROCESSOR)
    return parse_config(path, read_optional_json(path / PROCESSOR), reader, PROCESSOR)
