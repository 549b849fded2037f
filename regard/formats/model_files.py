"""The files of a model folder, found without reading the weights and without torch."""

import re
from pathlib import Path

from ..errors import UserError
from ..files import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
GGUF = ".gguf"
GGUF_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")  # the model, the number of the part, and of how many


def first_module(path: Path) -> Path:
    """The subfolder that holds the model in an older sentence-transformers folder."""
    modules = [module.get("path") for module in read_json(path / "modules.json", list) if isinstance(module, dict)]
    home = next((path / module for module in modules if module), path)
    if not (home / "config.json").is_file():
        raise UserError(f"{path} has a modules.json and no config.json; a Hugging Face folder needs one")
    return home


def weight_files(path: Path) -> list[str]:
    """The names of the safetensors files that a folder needs: one, or several that its index lists.

    As in transformers, model.safetensors wins over an index, which may be a stale one.
    """
    if (path / WEIGHTS).is_file() or not (path / INDEX).is_file():
        return [WEIGHTS]
    weight_map = read_json(path / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise UserError(f"{path / INDEX} has no weight_map; fetch the folder again")
    return sorted(set(weight_map.values()))


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that a path names: itself, or the only one in a folder; of several parts the first."""
    if path.is_file():
        return path if path.suffix.lower() == GGUF else None
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == GGUF)
    models = [file for file in files if not (part := GGUF_PART.fullmatch(file.name)) or int(part[2]) == 1]
    if len(models) > 1:
        names = ", ".join(file.name for file in models[:4])
        raise UserError(f"{path} has {len(models)} GGUF files ({names}); name the one to load")
    return models[0] if models else None


def gguf_parts(path: Path) -> list[Path]:
    """The files of a GGUF model, which may be split into several."""
    part = GGUF_PART.fullmatch(path.name)
    if part is None:
        return [path]
    files = [path.with_name(f"{part[1]}-{i:05}-of-{part[3]}{GGUF}") for i in range(1, int(part[3]) + 1)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise UserError(f"{path} is one of {len(files)} parts and {missing[0]} is missing; put all of them together")
    return files
