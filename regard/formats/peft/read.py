"""Load the adapter of a PEFT folder onto a predictor. Every field that would change the computation is refused."""

import math
import re
from collections import Counter
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ...adapt import lora, tune
from ...adapt.injection import Injection
from ...adapt.precision import Int8Linear
from ...config.tuning import Lora, Prefix, Prompt
from ...config.types import Base
from ...errors import UserError
from ...files import JsonMapping, read_json
from ...parts.finite import nonfinite_name
from ...tasks.predictor import AnyPredictor
from .names import ALLOWED_FIELDS, BINARY, CONFIG, KINDS, TOP, WEIGHTS, ModuleNames, check_peft_family
from .processors import restore_processors
from .virtual_tokens import load_virtual_tokens

LORA = re.compile(r"\.lora_(?:embedding_)?([AB])(?:\.weight)?$")


def load_adapter(predictor: AnyPredictor, folder: Path, base: str) -> AnyPredictor:
    """Attach the adapter of a PEFT folder to a predictor that was loaded from `base`."""
    if predictor.run.tune.kind != "none":
        raise UserError(
            f"{base} is tuned itself, so {folder} cannot be attached to it; merge it first (regard convert --merge)"
        )
    config, tensors = read_json(folder / CONFIG), _read_tensors(folder)
    if not isinstance(config, dict) or not isinstance(config.get("peft_type", ""), str):
        raise UserError(f"{folder / CONFIG} is no PEFT configuration; expected an object with a peft_type")
    kind, c = KINDS.get(config.get("peft_type", "")), predictor.run.model
    if kind is None:
        raise UserError(f"{folder} has peft_type {config.get('peft_type')!r}; regard reads {', '.join(KINDS)}")
    check_peft_family(str(folder), kind, c.family)
    _check_config(folder, config)
    settings: Lora | Prompt | Prefix
    if kind == "lora":
        settings = _load_lora(predictor.module, folder, config, tensors, c)
    else:
        settings = load_virtual_tokens(predictor.module, kind, folder, tensors, config.get("num_virtual_tokens"))
    predictor.run = predictor.run.model_copy(update={"tune": settings, "start": base})
    restore_processors(predictor, folder)
    predictor.module.eval()
    return predictor


def _check_config(folder: Path, config: JsonMapping) -> None:
    for name, value in config.items():
        allowed = not value or name in ALLOWED_FIELDS or (name == "bias" and value == "none")
        if name == "init_lora_weights" and isinstance(value, str) and value not in ("gaussian", "orthogonal"):
            allowed = False  # such as pissa: it changes the base as well
        if not allowed:
            raise UserError(f"{folder / CONFIG} sets {name}={value!r}, which regard does not read; merge it with peft")


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    if not (folder / WEIGHTS).is_file():
        other = f"only {BINARY}, a pickle, which regard never opens" if (folder / BINARY).is_file() else "no weights"
        raise UserError(f"{folder} has {other}; save it with peft as {WEIGHTS} (safe_serialization)")
    try:
        tensors = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{folder / WEIGHTS} is cut off or damaged ({error}); fetch the folder again") from error
    if name := nonfinite_name(tensors):
        raise UserError(f"{name!r} of {folder / WEIGHTS} has NaN or infinite values; fetch the folder again")
    return tensors


def _lora_settings(folder: Path, config: JsonMapping) -> tuple[int, float, float]:
    """Rank, alpha and dropout."""
    rank, alpha, dropout = config.get("r"), config.get("lora_alpha"), config.get("lora_dropout") or 0.0
    if type(rank) is not int or rank < 1 or alpha is None or not _is_number(alpha) or alpha <= 0:
        raise UserError(f"{folder / CONFIG} has r={rank!r} and lora_alpha={alpha!r}; expected numbers above 0")
    if not _is_number(dropout) or not 0 <= dropout < 1:
        raise UserError(f"{folder / CONFIG} has lora_dropout={dropout!r}; expected a number from 0 to less than 1")
    return rank, float(alpha), dropout


def _load_lora(model: nn.Module, folder: Path, config: JsonMapping, tensors: dict[str, Tensor], c: Base) -> Lora:
    names = ModuleNames(c)
    remaining = {names.name(name.removeprefix(TOP)): tensor for name, tensor in tensors.items()}
    rank, alpha, dropout = _lora_settings(folder, config)
    injection, pairs = Injection("lora"), dict[str, dict[str, Tensor]]()
    for name in [name for name in remaining if LORA.search(name)]:
        theirs, letter = LORA.split(name)[:2]
        pairs.setdefault(theirs, {})[letter] = remaining.pop(name)
    loaded = set()
    for path, layer in lora.target_layers(model).items():
        rule = names.rule(f"{path}.weight")
        theirs = rule.names[0].removesuffix(".weight")
        if theirs not in pairs:
            continue
        if pairs[theirs].keys() != {"A", "B"}:
            raise UserError(f"{folder} has only one of lora_A and lora_B for {theirs}; expected both")
        loaded.add(theirs)
        branch = lora.LoraBranch(layer.in_features, layer.out_features, rank, alpha, dropout)
        _copy_lora(branch, pairs[theirs]["A"], pairs[theirs]["B"].chunk(rule.parts, 0)[rule.part], theirs, folder)
        lora.attach_branch(injection, path, layer, branch)
    if not loaded:
        raise UserError(f"{folder} has no LoRA for any layer of this model; use the base that it was trained on")
    if others := sorted(name for name in pairs.keys() - loaded if not names.is_unused(f"{name}.weight")):
        listed = ", ".join(others[:3])
        raise UserError(
            f"{folder} has LoRA for {listed}; expected linear layers of this base, each with a weight of its "
            "own; use the base that it was trained on, or merge it with peft, and load the whole model"
        )
    heads = _load_heads(model, remaining, names, folder)
    paths = [path for path, module in injection.named_modules() if isinstance(module, lora.LoraBranch)]
    pattern = f"^({'|'.join(map(re.escape, paths))})$"
    tune.attach_injection(model, injection, heads)
    return Lora(rank=rank, alpha=alpha, dropout=dropout, pattern=pattern)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@torch.no_grad()
def _copy_lora(branch: lora.LoraBranch, down: Tensor, up: Tensor, theirs: str, folder: Path) -> None:
    for ours, tensor, letter in ((branch.down, down, "A"), (branch.up, up, "B")):
        if ours.shape != tensor.shape:
            raise UserError(
                f"{folder}: lora_{letter} of {theirs} is {tuple(tensor.shape)} and this base needs "
                f"{tuple(ours.shape)}; use the base that it was trained on"
            )
        ours.copy_(tensor)


@torch.no_grad()
def _load_heads(model: nn.Module, remaining: dict[str, Tensor], names: ModuleNames, folder: Path) -> list[str]:
    """Load whole heads (modules_to_save) and return their names; any tensor that does not fit is refused."""
    for path, module in [*model.named_modules()]:  # fully trained layers stay exact over an int8 base
        if isinstance(module, Int8Linear) and names.rule(f"{path}.weight").names[0] in remaining:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, module.to_linear())
    loaded, used, state = [], set(), model.state_dict()
    uses = Counter(tensor.data_ptr() for tensor in state.values())
    for ours, tensor in state.items():
        rule = names.rule(ours)
        theirs = rule.names[0]
        if theirs in remaining and rule.read(remaining[theirs]).shape == tensor.shape:
            if uses[tensor.data_ptr()] > 1:
                raise UserError(
                    f"{folder} has its own {theirs}, and this base has one table for input and output words; merge it "
                    "with peft, and load the whole model"
                )
            tensor.copy_(rule.read(remaining[theirs]))
            loaded.append(ours)
            used.add(theirs)
    for theirs in used:
        del remaining[theirs]
    if remaining:
        raise UserError(
            f"{folder} holds {', '.join(sorted(remaining)[:3])}, for which this base has no place (of that shape); "
            "load it over a base with a head for as many labels, such as a run of the same task, or merge it with peft"
        )
    return loaded
