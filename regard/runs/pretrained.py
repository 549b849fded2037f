"""Pretrained models: the model that `start` names gives a run its settings, tokenizers and initial weights."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.merge import flatten
from ..config.run import Run, change_settings
from ..config.run_folder import read_run
from ..config.strategies import OutputRules
from ..config.types import Base
from ..errors import UserError
from ..files import JsonObject
from ..formats.model_source import find_model

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ..formats.huggingface.folder import StartModel
    from ..processors.base import Processor
    from ..tasks.predictor import AnyPredictor

MAX_NAMES = 6  # tensor names in a message
SUPPRESSED = "suppress_tokens", "begin_suppress_tokens"


def read_settings(start: str) -> JsonObject:
    """The settings of the model that `start` names and, for a run, its tokenizer settings, by dotted key.

    Its n-grams are part of the model. It reads no weights; `Pretrained.complete` adds the settings that only the
    weights reveal.
    """
    source, ngrams = find_model(start, f"start={start}"), {"order": 0}
    if source.format == "run":
        config = read_run(source.path)["config"]
        groups = {name: config.get(name, {}) for name in ("model", "tokenizer")}
        groups |= {"pruned_heads": config["pruned_heads"]} if config.get("pruned_heads") else {}
        ngrams = config.get("data", {}).get("ngrams", ngrams)
    else:
        groups = {"model": source.start_settings()}
    return dict(flatten({**groups, "data": {"ngrams": ngrams}}))


class Pretrained:
    """The loaded predictor of a `start`. It gives its weights and processors to a new run."""

    def __init__(self, start: str, load: "Callable[[str], AnyPredictor]") -> None:
        self.start = start
        self.source = find_model(start, f"start={start}")
        part = self.source.load_part()
        self.partial = part is not None  # such as a backbone; all other tensors are new
        self.predictor: StartModel = part or load(self.source.name)
        if self.predictor.run.tune.kind != "none":
            raise UserError(f"start={start} is a tuned run; merge it into one model first (`regard convert --merge`)")
        self.weights: dict[str, Tensor] = self.predictor.model.state_dict()
        self.resized: dict[str, Tensor] = {}  # tensors of the start, interpolated to the sizes of the model
        self.new: list[str] = []  # tensors of the model that the start does not have
        self.unfrozen: list[str] = []  # `new`, and heads with a row per label: trained even if all else is frozen

    def digest(self) -> str:
        """A hash of the tensor names and values; without fixed modules, which older versions did not load."""
        from ..families import family
        from ..families.spec import is_within

        total, fixed = hashlib.blake2b(digest_size=16), family(self.predictor.run.model.family).SPEC.fixed_modules
        for name, tensor in sorted(self.weights.items()):
            if not is_within(name, fixed):
                total.update(name.encode() + b"\0" + tensor.contiguous().numpy().tobytes())
        return total.hexdigest()

    @property
    def processors(self) -> "Mapping[str, Processor]":
        """The processors that a new run may reuse, by field."""
        processors: Mapping[str, Processor] = self.predictor.processors
        return processors

    def complete(self, run: Run) -> Run:
        """The run with the suppressed tokens of the start, and with settings that only its tensors reveal.

        An example is a T5 head that is not tied.
        """
        run = self._with_suppressed(run)
        if self.source.format == "run":
            return run
        file_settings, run_settings, loaded_settings = (
            dict(flatten({"model": config.model_dump(mode="json")}))
            for config in (self.source.config(), run.model, self.predictor.run.model)
        )
        new = {
            key: value
            for key, value in loaded_settings.items()
            if file_settings[key] != value and run_settings.get(key) == file_settings[key]
        }
        return change_settings(run, new, only=("model",)) if new else run

    def _with_suppressed(self, run: Run) -> Run:
        """The run with the suppressed tokens of the start, unless it sets its own: they belong to the tokenizer."""
        decode: Base = run.decode
        rules, start_rules = vars(decode).get("rules"), vars(self.predictor.run.decode).get("rules")
        if not isinstance(rules, OutputRules) or not isinstance(start_rules, OutputRules):
            return run
        lists = {name: ids for name in SUPPRESSED if not getattr(rules, name) and (ids := getattr(start_rules, name))}
        changed = {"rules": replace(rules, **lists)}
        return run.model_copy(update={"decode": decode.model_copy(update=changed)}) if lists else run

    def copy_weights(self, model: "nn.Module") -> list[str]:
        """Copy all tensors that the model shares with the start; return notes for the user."""
        import torch

        tensors, names = model.state_dict(), self.shared_names(model)
        with torch.no_grad():
            for name in names:
                tensors[name].copy_(self.resized.get(name, self.weights[name]))
        unused = [name for name in self.weights if name not in tensors]
        new = f"new tensors: {_name_list(self.new)}" if self.new else "no new tensors"
        new += f"; resized: {_name_list(list(self.resized))}" if self.resized else ""
        notes = [f"start: {len(names)} tensors from {self.start}; {new}"]
        return notes + ([f"start: unused tensors: {_name_list(unused)}"] if unused else [])

    def share_weights(self, model: "nn.Module", device: "torch.device") -> None:
        """Let the model use the parameters of the start itself: several models then hold them in memory once."""
        base, names = self.predictor.model.to(device), set(self.copy_buffers(model)).difference(self.unfrozen)
        for name, tensor in self.resized.items():
            model.get_parameter(name).data.copy_(tensor)
        names.difference_update(self.resized)
        shared = {
            id(parameter): base.get_parameter(full)
            for path, module in model.named_modules()
            for name, parameter in module._parameters.items()
            if (full := f"{path}.{name}".lstrip(".")) in names
        }
        for module in model.modules():  # a new head that is tied to the embeddings follows them
            for name, parameter in module._parameters.items():
                module._parameters[name] = shared.get(id(parameter), parameter)

    def copy_buffers(self, model: "nn.Module") -> list[str]:
        """Copy the buffers; return the names of all tensors that the model shares with the start."""
        names = self.shared_names(model)
        for name, buffer in model.named_buffers():
            if name in self.weights:
                buffer.copy_(self.weights[name])
        return names

    def shared_names(self, model: "nn.Module", tuned: Path | None = None) -> list[str]:
        """The tensors that the model shares with the start; sets `new` and `unfrozen`.

        Only heads and fixed modules of the family may differ. `tuned` is the tuned run that uses this as its base,
        for the message; None: a training begins.
        """
        from ..adapt.ngrams import NGRAMS_MODULE
        from ..families import family
        from ..families.spec import is_within

        tensors = model.state_dict()
        self.resized = self._resized(model)
        spec = family(self.predictor.run.model.family).SPEC
        loose = *spec.head_modules, *spec.fixed_modules, NGRAMS_MODULE
        top = {name for name in {*tensors, *self.weights} if is_within(name, loose)}
        names = [name for name in tensors if name in self.weights and tensors[name].shape == self._shape(name)]
        new = {name for name in tensors if name not in self.weights} if self.partial else top
        wrong = [name for name in tensors if name not in names and name not in new]
        wrong += [name for name in self.weights if name not in tensors and name not in top]
        if wrong:
            raise UserError(self._mismatch(wrong[0], tensors, tuned))
        self.new = [name for name in tensors if name not in names]
        labeled = *spec.label_modules, NGRAMS_MODULE
        self.unfrozen = [name for name in tensors if name in self.new or is_within(name, labeled)]
        return names

    def _shape(self, name: str) -> "torch.Size":
        return self.resized.get(name, self.weights[name]).shape

    def _resized(self, model: "nn.Module") -> "dict[str, Tensor]":
        """Tensors of the start that fit parts of the model after interpolation: positions of another image size."""
        resized = {}
        for path, part in model.named_modules():
            name = f"{path}.table"
            start_table = self.weights.get(name)
            if start_table is None or not hasattr(part, "fit") or start_table.shape == part.table.shape:
                continue
            if (table := part.fit(start_table)) is not None:
                resized[name] = table
        return resized

    def _mismatch(self, name: str, tensors: "Mapping[str, Tensor]", tuned: Path | None) -> str:
        ours, theirs = (
            f"{tuple(table[name].shape)}" if name in table else "missing" for table in (tensors, self.weights)
        )
        if tuned is not None:
            return (
                f"{self.start} cannot be the base of {tuned}: {name} is {ours} in the tuned model and {theirs} in the "
                "base; give the base that it was trained over"
            )
        return (
            f"start={self.start} does not fit this model: {name} is {ours} in the model and {theirs} in the start; "
            "leave out the model settings, which start defines"
        )


def _name_list(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
