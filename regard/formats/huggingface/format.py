"""One class for all Hugging Face model types: it reads, writes, verifies and describes their folders.

A module of this package defines an instance, `FORMAT`, for one of our families: the tables of config.json and of
weight names, the processors, and what an exported folder is compared by. `folder.py` lists the modules by model type.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import torch
from pydantic import ValidationError
from safetensors.torch import save
from torch import Tensor, nn

from ...config.run import AnyRun
from ...config.types import Base
from ...errors import UserError
from ...families import family
from ...files import JsonMapping, JsonObject, read_json, write_json
from ..exporter import Exporter
from ..model_files import WEIGHTS, first_module
from ..parity import check_close, quiet
from .config_table import ConfigTable
from .files import error_text, parse_config, read_weights
from .generation import GENERATION_FILE
from .labels import label_maps
from .weight_names import Names, export_weights, load_weights

if TYPE_CHECKING:
    from ...tasks.predictor import AnyPredictor

Tensors: TypeAlias = dict[str, Tensor]


class ExportSource(Protocol):
    """The parts of every predictor that an export reads."""

    @property
    def run(self) -> AnyRun: ...
    @property
    def module(self) -> nn.Module: ...


@dataclass(frozen=True)
class Folder:
    """What a folder holds. The processors of a model type add their fields."""

    path: Path  # of config.json; a sentence-transformers folder may have it in a subfolder of `root`
    root: Path
    theirs: JsonMapping  # config.json
    config: Any
    model: Any


P = TypeVar("P", bound=ExportSource)  # the predictor of a run
F = TypeVar("F", bound=Folder)
P_contra = TypeVar("P_contra", bound=ExportSource, contravariant=True)
F_contra = TypeVar("F_contra", bound=Folder, contravariant=True)


class Processors(Protocol[P_contra, F]):
    """What the folders of some model types have beside their model, and the task that predicts with it."""

    def read(self, folder: Folder) -> F:
        """The folder with its processors, which fit the model."""

    def write(self, predictor: P_contra, draft: Path) -> JsonObject:
        """Write the files; return the keys of config.json that belong to them."""

    def load(self, folder: F, overrides: JsonMapping) -> "AnyPredictor":
        """The predictor of a folder that `read` returned."""


class ExportSample(Protocol[F_contra]):
    """Inputs on which a folder must give what the run gives. Tokens and texts are compared on the way."""

    inputs: str  # what they are, for the report
    expected: list[Tensor]  # outputs of the run

    def ours(self, folder: F_contra) -> list[Tensor]:
        """The outputs of the folder as regard reads it."""

    def theirs(self, model: nn.Module, draft: Path, hf: ModuleType) -> list[Tensor]:
        """The outputs of transformers' model of the folder."""

    def findings(self) -> str:
        """What was equal beside the outputs."""


@dataclass
class TensorSample:
    """A sample of random tensors, which needs no processor: the outputs of a model of ours, and of one of theirs."""

    model: nn.Module  # of the run
    outputs: Callable[[Any], Tensor]
    their_outputs: Callable[[Any], Tensor]
    inputs: str = "random inputs"

    def __post_init__(self) -> None:
        self.expected = [self.outputs(self.model)]

    def ours(self, folder: Folder) -> list[Tensor]:
        return [self.outputs(folder.model)]

    def theirs(self, model: nn.Module, draft: Path, hf: ModuleType) -> list[Tensor]:
        return [self.their_outputs(model)]

    def findings(self) -> str:
        return ""


def _same(tensors: Tensors, other: Any) -> Tensors:
    return tensors


@dataclass(frozen=True)
class WeightTable:
    """The names of the tensors, and how tensors differ that are not the same on both sides under another name."""

    names: Callable[[Any], Names]  # by our Config
    unused: Callable[[Any], tuple[str, ...]] = lambda c: ()  # patterns of tensors that transformers ignores too
    read: Callable[[Tensors, JsonMapping], Tensors] = _same  # of a folder with config.json: as `names` expects them
    write: Callable[[Tensors, Any], Tensors] = _same  # of a predictor: as `save_pretrained` would write them
    twin: Callable[[nn.Module, Any], tuple[nn.Module, Any]] = lambda model, c: (model, c)  # the same function as theirs


def _nothing(settings: JsonMapping, theirs: JsonMapping, tensors: Collection[str]) -> JsonMapping:
    return {}


@dataclass(frozen=True)
class Export(Generic[P, F]):
    """How runs of a family become folders."""

    model_type: Callable[[Any], str]  # by our Config
    sample: Callable[[P], ExportSample[F]]
    usage: Callable[[P], str]  # the usage example of README.md
    tag: Callable[[Any], str]  # the Hub's pipeline tag, by our Config
    generation: Callable[[P], JsonObject] | None = None  # generation_config.json


@dataclass(frozen=True)
class PartOfModel:
    """A part of a model, such as a backbone: runs of `task` take over these settings and start from it."""

    task: str
    settings: frozenset[str]
    build: Callable[[Any], nn.Module]  # by our Config


@dataclass(frozen=True, eq=False)
class HuggingFaceFormat(Generic[P, F]):
    """Folders of one or several model types, which are one family of ours."""

    name: str  # of a folder, for messages
    family: str
    tables: Mapping[str, ConfigTable]  # by model type
    weights: WeightTable
    processors: Processors[P, F]
    export: Export[P, F] | None = None  # None: such folders are only read
    complete: Callable[[JsonMapping, JsonMapping, Collection[str]], JsonMapping] = _nothing
    size: str = "huggingface"  # of the Config; empty: its default
    part: PartOfModel | None = None

    @property
    def written(self) -> Export[P, F]:
        """How runs become such folders, for formats that are not only read."""
        assert self.export is not None
        return self.export

    @property
    def exporter(self) -> Exporter:
        """The exporter of runs into such folders."""
        export = self.written
        return Exporter(self.name, self.unsupported, self.write, self.verify, export.usage, export.tag)

    # --- reading -----------------------------------------------------------------------------------------------------

    def from_huggingface(self, theirs: JsonMapping, tensors: Collection[str] = ()) -> Base:
        """Our Config of config.json and the names of the tensors; ValueError names what regard cannot represent."""
        table = self.tables[theirs.get("model_type", next(iter(self.tables)))]
        settings = table.read(theirs)
        settings |= self.complete(settings, theirs, tensors)
        size = {"size": self.size} if self.size else {}
        try:
            config: Base = family(self.family).Config.model_validate(size | settings)
        except ValidationError as error:
            raise ValueError(table.their_names(error_text(error))) from error
        return config

    def read_model(self, path: Path, theirs: JsonMapping | None = None) -> Folder:
        """The model of a folder."""
        home = path if (path / "config.json").is_file() else first_module(path)
        theirs = read_json(home / "config.json") if theirs is None else theirs
        parse_config(home, theirs, self.from_huggingface)  # before the weights, which may be large
        return self.build_model(home, theirs, read_weights(home), root=path)

    def build_model(
        self, path: Path, theirs: JsonMapping, tensors: Tensors, file: str = "config.json", root: Path | None = None
    ) -> Folder:
        """The model of a config.json and tensors under their names."""
        tensors = self.weights.read(tensors, theirs)
        c = parse_config(path, theirs, lambda theirs: self.from_huggingface(theirs, tensors), file)
        model = family(self.family).Model(c) if self.part is None else self.part.build(c)
        load_weights(model, tensors, self.weights.names(c), self.weights.unused(c))
        return Folder(path, root or path, theirs, c, model)

    def read(self, path: Path, theirs: JsonMapping | None = None) -> F:
        """The model and the processors of a folder, whose config.json may be given."""
        return self.processors.read(self.read_model(path, theirs))

    def load_predictor(self, path: Path, theirs: JsonMapping, overrides: JsonMapping) -> "AnyPredictor":
        """The predictor of a folder."""
        return self.processors.load(self.read(path, theirs), overrides)

    # --- writing -----------------------------------------------------------------------------------------------------

    def unsupported(self, c: Base) -> list[str]:
        """The settings that the model type cannot represent."""
        return self.tables[self.written.model_type(c)].unsupported(c)

    def config(self, c: Base) -> JsonObject:
        """The config.json of our Config, without the keys of its processors."""
        model_type = self.written.model_type(c)
        return {"model_type": model_type, **self.tables[model_type].write(c), "dtype": "float32"}

    def architecture(self, c: Base) -> str:
        """The class of transformers that the folder of a Config becomes."""
        return str(self.config(c)["architectures"][0])

    def tensors(self, predictor: P) -> Tensors:
        """Copies of the weights under the names that `save_pretrained` would write."""
        twin, c = self.weights.twin(predictor.module, predictor.run.model)
        theirs = self.weights.write(export_weights(twin, self.weights.names(c)), predictor)
        return {name: tensor.detach().float().cpu().clone().contiguous() for name, tensor in theirs.items()}

    def write(self, predictor: P, draft: Path, precision: str = "fp32") -> None:
        """Write everything in the folder except its README."""
        _, c = self.weights.twin(predictor.module, predictor.run.model)
        if refusals := self.unsupported(c):
            raise UserError(f"{draft.name} cannot become {self.name}; what does not fit: {', '.join(refusals)}")
        draft.mkdir(parents=True)
        config = self.config(c) | self.processors.write(predictor, draft)
        (draft / WEIGHTS).write_bytes(save(self.tensors(predictor), {"format": "pt"}))
        if self.written.generation is not None:
            write_json(draft / GENERATION_FILE, self.written.generation(predictor))
        write_json(draft / "config.json", config | label_maps(predictor.run, getattr(predictor, "labels", ())))

    @torch.no_grad()
    def verify(self, predictor: P, draft: Path, precision: str = "fp32") -> str:
        """Compare the folder, as regard and transformers read it, with the run; a report."""
        sample, readers = self.written.sample(predictor), ["regard"]
        difference = _largest("the folder", sample.ours(self.read(draft)), sample.expected)
        if find_spec("transformers") is not None:
            hf = import_module("transformers")
            with quiet(hf):
                model = getattr(hf, self.architecture(predictor.run.model)).from_pretrained(draft).eval()
                difference = max(difference, _largest(hf.__name__, sample.theirs(model, draft, hf), sample.expected))
            readers.append(f"transformers {hf.__version__}")
        result = f"{sample.findings()}outputs apart by {difference:.1g} (relative)"
        return f"{sample.inputs} with {' and '.join(readers)}: {result}"


def _largest(reader: str, outputs: list[Tensor], expected: list[Tensor]) -> float:
    pairs = zip(outputs, expected, strict=True)
    return max(check_close(f"{reader} gives logits", theirs, ours) for theirs, ours in pairs)
