"""Resolve the name of a model: a run folder, a Hugging Face folder, a GGUF file, or a model of the hub."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..config.run_folder import is_run
from ..config.types import Base
from ..errors import UserError
from ..files import JsonMapping, JsonObject
from .model_files import INDEX, WEIGHTS, find_gguf

if TYPE_CHECKING:
    from ..tasks.predictor import AnyPredictor
    from .huggingface.folder import StartModel

EXPECTED = (
    "give a run folder or a Hugging Face folder, or a GGUF file, or the name of a model on the Hugging Face hub "
    "(org/name)"
)
ModelFormat = Literal["run", "huggingface", "gguf"]


@dataclass(frozen=True)
class ModelSource:
    """A model on this machine, and the name that finds exactly this one again."""

    name: str  # as given; a model of the hub with its commit
    path: Path  # a folder, or a GGUF file
    format: ModelFormat
    commit: str = ""  # of the hub

    def load(self, changes: JsonMapping) -> "AnyPredictor":
        """The predictor of a model other than a run."""
        if self.format == "gguf":
            from .gguf import load_gguf

            return load_gguf(self.path, changes)
        from .huggingface.folder import load_folder

        return load_folder(self.path, changes)

    def start_settings(self) -> JsonObject:
        """The model settings that a run takes over from a model other than a run."""
        if self.format == "gguf":
            return self.config().model_dump(mode="json")
        from .huggingface.folder import start_settings

        return start_settings(self.path)

    def load_part(self) -> "StartModel | None":
        """The part of a model, such as a backbone, that only serves to start a run; None: a whole model."""
        if self.format != "huggingface":
            return None
        from .huggingface.folder import load_start

        return load_start(self.path)

    def config(self) -> Base:
        """The settings of a model other than a run, read without its weights."""
        if self.format == "gguf":
            from .gguf import gguf_config

            return gguf_config(self.path)
        from .huggingface.folder import folder_config

        return folder_config(self.path)


def find_model(name: str | Path, label: str = "") -> ModelSource:
    """The model of a name; one that is here wins over one of the hub. `label` names it in errors, as `start=x`."""
    path, label = Path(name), label or str(name)
    if path.exists():
        location, format = _local(path, label)
        return ModelSource(str(name), location, format)
    from .hub import SCHEME, HubName, fetch_model, parse_hub_name

    if (hub := parse_hub_name(str(name))) is None:
        other = parse_hub_name(f"{SCHEME}{name}")
        remedy = f", or {SCHEME}{name} for the model of that name on the hub" if other else ""
        raise UserError(f"{label} does not exist; {EXPECTED}{remedy}")
    fetched, commit = fetch_model(hub)
    location, format = _local(fetched, label)
    return ModelSource(f"{SCHEME}{HubName(hub.repo, hub.file, commit)}", location, format, commit)


def _local(path: Path, label: str) -> tuple[Path, ModelFormat]:
    """The path and the format of a model: a GGUF file rather than the folder that holds it."""
    if is_run(path):
        return path, "run"
    described = (path / "config.json").is_file() or (path / "modules.json").is_file()
    if described and any((path / name).is_file() for name in (WEIGHTS, INDEX, "modules.json")):
        return path, "huggingface"
    if (file := find_gguf(path)) is not None:
        return file, "gguf"
    if described:
        return path, "huggingface"
    if (path / "adapter_config.json").is_file():
        raise UserError(f"{label} is an adapter of PEFT; name its base first: BASE --tune {label}")
    if path.is_file():
        raise UserError(f"{label} is a file but not a GGUF file, and not a run; {EXPECTED}")
    raise UserError(f"{label} is not a run: it has neither run.json nor config.json (Hugging Face); {EXPECTED}")
