"""Hugging Face PEFT folders, read and written without peft: adapter_config.json and adapter_model.safetensors.

LoRA for gpt, bert and t5; prompts for gpt and t5; prefixes for gpt. For other pairs PEFT computes something else: it
pools the first prompt vector of a BERT, and a T5 has a prefix in its decoder only.
"""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ..adapt import lora, tune
from ..adapt.injection import TUNE_MODULE, Injection, injection_of
from ..adapt.precision import Int8Linear
from ..adapt.prefix_tuning import PrefixParameters
from ..adapt.prompt_tuning import PromptTuning
from ..config.tuning import Lora, Prefix, Prompt, Untuned
from ..config.types import Base
from ..errors import UserError
from ..families import t5
from ..families.bert import EncoderConfig
from ..files import JsonMapping, JsonObject, read_json, write_json
from ..parts.finite import nonfinite_name
from ..parts.layer import smallest_context
from ..tasks.predictor import AnyPredictor
from .exporter import Exporter
from .hub import peft_base
from .huggingface import bert, gpt2
from .huggingface.folder import format_of_config
from .huggingface.weight_names import Names, WeightRule, find_rule
from .peft_labels import WITH_LABELS, adapter_labels, write_processors

CONFIG, WEIGHTS, BINARY = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
TOP = "base_model.model."  # prefix of all their names
VECTORS = "prompt_embeddings"
KINDS = {"LORA": "lora", "PROMPT_TUNING": "prompt", "PREFIX_TUNING": "prefix"}
FAMILIES = {"lora": ("gpt", "bert", "t5"), "prompt": ("gpt", "t5"), "prefix": ("gpt",)}  # by kind
# Fields that may be set without changing what the tensors mean; any other field that is set is refused.
ALLOWED_FIELDS = {
    "peft_type", "task_type", "peft_version", "base_model_name_or_path", "revision", "auto_mapping", "inference_mode",
    "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "modules_to_save", "fan_in_fan_out",
    "layers_to_transform", "layers_pattern", "init_lora_weights", "megatron_core", "qalora_group_size",
    "num_virtual_tokens", "token_dim", "num_transformer_submodules", "num_attention_heads", "num_layers",
    "encoder_hidden_size", "init_weights", "prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_name_or_path",
    "tokenizer_kwargs",
}  # fmt: skip


HEADS = ("lm_head.", "classifier.", "cls.")
TASK_TYPES = {"words": None, "none": None, "class": "SEQ_CLS", "tag": "TOKEN_CLS"}  # by the head of an encoder


def task_type(c: Base) -> str | None:
    """PEFT's name of a model's task."""
    if isinstance(c, EncoderConfig):
        return TASK_TYPES[c.head]
    return "SEQ_2_SEQ_LM" if isinstance(c, t5.Config) else "CAUSAL_LM"


def their_names(c: Base) -> Names:
    """Our names to those of the Hugging Face folder that the model would become."""
    names: Names = format_of_config(c).weights.names(c)
    return names


def body_prefix(c: Base) -> str:
    """The prefix of all names except those of heads."""
    return "bert." if isinstance(c, EncoderConfig) and bert.FORMAT.architecture(c) != "BertModel" else ""


def is_peft_folder(folder: Path) -> bool:
    """True if the folder holds an adapter of PEFT."""
    return (folder / CONFIG).is_file()


# --- reading ---------------------------------------------------------------------------------------------------------


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
        settings = _load_virtual_tokens(predictor.module, kind, folder, tensors, config.get("num_virtual_tokens"))
    predictor.run = predictor.run.model_copy(update={"tune": settings, "start": base})
    if isinstance(predictor, WITH_LABELS):  # those of the exported run, which may differ from those of the base
        predictor.labels = adapter_labels(folder, predictor.labels)
    predictor.module.eval()
    return predictor


def check_peft_family(source: str, kind: str, family: str) -> None:
    """Refuse a kind of tuning that PEFT does not compute equally for this family."""
    if family not in FAMILIES.get(kind, ()):
        supported = ", ".join(f"{name} ({' and '.join(families)})" for name, families in FAMILIES.items())
        raise UserError(f"{source}: PEFT has no equivalent of {kind} for the family {family}; expected {supported}")


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


def _load_lora(model: nn.Module, folder: Path, config: JsonMapping, tensors: dict[str, Tensor], c: Any) -> Lora:
    named = {_strip_prefix(name, c): tensor for name, tensor in tensors.items()}
    rank, alpha, dropout = _lora_settings(folder, config)
    remaining = dict(named)
    injection, table = Injection("lora"), their_names(c)
    for path, layer in lora.target_layers(model).items():
        rule = find_rule(f"{path}.weight", table)
        theirs = rule.names[0].removesuffix(".weight")
        down, up = (named.get(f"{theirs}.lora_{letter}.weight") for letter in "AB")
        if down is None and up is None:
            continue
        if down is None or up is None:
            raise UserError(f"{folder} has only one of lora_A and lora_B for {theirs}; expected both")
        for letter in "AB":
            remaining.pop(f"{theirs}.lora_{letter}.weight", None)
        branch = lora.LoraBranch(layer.in_features, layer.out_features, rank, alpha, dropout)
        _copy_lora(branch, down, up.chunk(rule.parts, 0)[rule.part], theirs, folder)
        lora.attach_branch(injection, path, layer, branch)
    heads = _load_heads(model, remaining, table, folder)
    if not list(injection.parameters()):
        raise UserError(f"{folder} has no LoRA for any layer of this model; use the base that it was trained on")
    paths = [path for path, module in injection.named_modules() if isinstance(module, lora.LoraBranch)]
    pattern = f"^({'|'.join(map(re.escape, paths))})$"
    tune.attach_injection(model, injection, heads)
    return Lora(rank=rank, alpha=alpha, dropout=dropout, pattern=pattern)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _strip_prefix(name: str, c: Any) -> str:
    """Their name as in our weight-name table; files of bare models leave out the prefix of the body."""
    name = name.removeprefix(TOP)
    if c.family == "gpt" and not name.startswith(("transformer.", "model.", *HEADS)):
        return f"{'model.' if gpt2.FORMAT.unsupported(c) else 'transformer.'}{name}"
    return name.removeprefix(body_prefix(c) or "bert.")


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
def _load_heads(model: nn.Module, remaining: dict[str, Tensor], table: Names, folder: Path) -> list[str]:
    """Load whole heads (modules_to_save) and return their names; any tensor that does not fit is refused."""
    for path, module in [*model.named_modules()]:  # fully trained layers stay exact over an int8 base
        if isinstance(module, Int8Linear) and find_rule(f"{path}.weight", table).names[0] in remaining:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, module.to_linear())
    loaded, used, state = [], set(), model.state_dict()
    uses = Counter(tensor.data_ptr() for tensor in state.values())
    for ours, tensor in state.items():
        rule = find_rule(ours, table)
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
            "load it over a base with a head for as many labels, such as a run of the same task"
        )
    return loaded


@torch.no_grad()
def _load_virtual_tokens(
    model: nn.Module, kind: str, folder: Path, tensors: dict[str, Tensor], count: object
) -> Prompt | Prefix:
    """Attach a prompt or prefix. For an encoder-decoder PEFT stores two prompts and uses the first `count` vectors."""
    if set(tensors) != {VECTORS}:
        raise UserError(f"{folder / WEIGHTS} holds {', '.join(sorted(tensors)[:3])}; expected {VECTORS} alone")
    vectors = tensors[VECTORS]
    if type(count) is not int or count < 1 or vectors.dim() != 2 or len(vectors) < count:
        raise UserError(f"{folder}: {VECTORS} is {tuple(vectors.shape)}; expected num_virtual_tokens ({count!r}) rows")
    vectors = vectors[:count]
    if (context := smallest_context(model)) is not None and count >= context:
        raise UserError(
            f"{folder} has {count} virtual tokens, and this base has {context} positions in all; use a longer base"
        )
    settings = (Prompt if kind == "prompt" else Prefix)(length=len(vectors))
    tune.attach(model, settings)
    parameters = _virtual_token_parameters(model)
    if vectors.size(1) != (width := sum(parameter.numel() for parameter in parameters) // len(vectors)):
        tune.detach(model)
        raise UserError(
            f"{folder}: {VECTORS} is {vectors.size(1)} wide and this base needs {width}; "
            "use the base that it was trained on"
        )
    for parameter, part in zip(parameters, vectors.chunk(len(parameters), 1), strict=True):
        parameter.copy_(part if kind == "prompt" else _split_heads(part, parameter))
    return settings


def _virtual_token_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The vectors of a prompt, or the keys and values of a prefix, layer by layer."""
    if isinstance(injection := injection_of(model), PromptTuning):
        return [injection.vectors]
    layers = [module for module in model.modules() if isinstance(module, PrefixParameters)]
    return [half for layer in layers for half in (layer.key, layer.value)]


def _split_heads(part: Tensor, like: Tensor) -> Tensor:
    """(length, heads · head_width) → (heads, length, head_width)"""
    return part.view(len(part), like.size(0), -1).transpose(0, 1)


# --- writing ---------------------------------------------------------------------------------------------------------


def write(predictor: AnyPredictor, draft: Path, precision: str) -> None:
    """Write every file of the folder except README.md."""
    run, c, kind = predictor.run, predictor.run.model, predictor.run.tune.kind
    config: JsonObject = {**peft_base(run.start), "task_type": task_type(c)}
    config |= {"inference_mode": True, "modules_to_save": None}
    if isinstance(run.tune, Lora):
        tensors, settings = _lora_tensors(predictor.module, c, run.tune)
    else:
        assert isinstance(run.tune, Prompt | Prefix)
        parts = _virtual_token_parameters(predictor.module)
        vectors = [parameter if parameter.dim() == 2 else parameter.transpose(0, 1).flatten(1) for parameter in parts]
        tensors = {VECTORS: torch.cat(vectors, 1)}
        settings = {"token_dim": c.width, "num_attention_heads": c.heads, "num_layers": c.layers}
        settings |= {"num_virtual_tokens": run.tune.length, "num_transformer_submodules": 1}
    peft_types = {ours: theirs for theirs, ours in KINDS.items()}
    draft.mkdir()
    write_processors(predictor, draft)
    write_json(draft / CONFIG, config | {"peft_type": peft_types[kind]} | settings)
    contiguous = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    (draft / WEIGHTS).write_bytes(save(contiguous, {"format": "pt"}))


class LoraPart(NamedTuple):
    """A branch of ours with the rule of its layer's weight."""

    rule: WeightRule
    branch: lora.LoraBranch


def _lora_tensors(model: nn.Module, c: Any, settings: Lora) -> tuple[dict[str, Tensor], JsonObject]:
    """Tensors and settings of LoRA. Branches of layers that are fused in theirs become one branch.

    The rank is then that of the largest, and alpha grows with it, so that every branch keeps its scale.
    """
    table, prefix = their_names(c), body_prefix(c)
    parts: dict[str, list[LoraPart]] = {}
    for path, _, branch in lora.branches(model):
        rule = find_rule(f"{path}.weight", table)
        parts.setdefault(rule.names[0].removesuffix(".weight"), []).append(LoraPart(rule, branch))
    pairs = {name: _fuse(group) for name, group in parts.items()}
    rank = max(down.size(0) for down, _ in pairs.values())
    tensors = {}
    for name, (down, up) in pairs.items():
        tensors[f"{TOP}{_full_name(name, prefix)}.lora_A.weight"] = _pad_rank(down, rank, 0)
        tensors[f"{TOP}{_full_name(name, prefix)}.lora_B.weight"] = _pad_rank(up, rank, 1)
    heads = {
        _full_name(find_rule(name, table).names[0], prefix): find_rule(name, table).write(parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not name.startswith(f"{TUNE_MODULE}.")
    }
    tensors |= {f"{TOP}{name}": tensor for name, tensor in heads.items()}
    return tensors, {
        "r": rank,
        "lora_alpha": settings.alpha / settings.rank * rank,
        "lora_dropout": settings.dropout,
        "bias": "none",
        "target_modules": [_full_name(name, prefix) for name in pairs],
        "modules_to_save": sorted({name.rpartition(".")[0] for name in heads}) or None,
        "fan_in_fan_out": any(group[0].rule.transposed for group in parts.values()),
    }


def _full_name(name: str, prefix: str) -> str:
    return name if name.startswith(HEADS) else f"{prefix}{name}"


def _fuse(parts: list[LoraPart]) -> tuple[Tensor, Tensor]:
    """One (down, up) pair for branches of a fused layer: a shared `down`, or blocks beside each other."""
    count = parts[0].rule.parts
    downs: list[Tensor] = [part.branch.down for part in parts]
    if len(parts) == count and all(down.equal(downs[0]) for down in downs):
        ordered = sorted(parts, key=lambda part: part.rule.part)
        return downs[0], torch.cat([part.branch.up for part in ordered])
    rows = parts[0].branch.up.size(0)
    up = downs[0].new_zeros(count * rows, sum(down.size(0) for down in downs))
    column = 0
    for part in parts:
        rank = part.branch.up.size(1)
        up[part.rule.part * rows : (part.rule.part + 1) * rows, column : column + rank] = part.branch.up
        column += rank
    return torch.cat(downs), up


def _pad_rank(x: Tensor, rank: int, dim: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = rank - shape[dim]
    return torch.cat([x, x.new_zeros(shape)], dim)


def verify(predictor: AnyPredictor, draft: Path, precision: str) -> str:
    """Replace the adapter by the written one and compare logits; report their difference."""
    from .parity import check_close
    from .pruned_run import probe_logits

    before, model = probe_logits(predictor), predictor.module
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    heads = [name for name in trained if not name.startswith(f"{TUNE_MODULE}.")]
    tune.detach(model)
    with torch.no_grad():  # so that the heads come from the folder
        for name in heads:
            model.get_parameter(name).zero_()
    predictor.run = predictor.run.model_copy(update={"tune": Untuned()})
    load_adapter(predictor, draft, predictor.run.start)
    difference = check_close("the folder gives logits", probe_logits(predictor), before)
    return f"read again, its logits are apart by {difference:.1g} (relative)"


def usage(predictor: AnyPredictor) -> str:
    """The usage example of README.md."""
    classes = {
        "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
        "CAUSAL_LM": "AutoModelForCausalLM",
        "SEQ_CLS": "AutoModelForSequenceClassification",
        "TOKEN_CLS": "AutoModelForTokenClassification",
    }
    c = predictor.run.model
    name = classes.get(task_type(c) or "", "AutoModelForMaskedLM")
    labels = f", num_labels={c.labels}" if getattr(c, "labels", 0) else ""
    return f"""
```python
from peft import PeftModel
from transformers import {name}

base = {name}.from_pretrained("BASE"{labels})
model = PeftModel.from_pretrained(base, ".").eval()
```

BASE is the tuned model as a Hugging Face folder: `regard convert {predictor.run.start} --to huggingface`.
"""


def unsupported(c: Base) -> list[str]:
    """The settings of the base that no Hugging Face folder can represent."""
    return format_of_config(c).unsupported(c)


def tag(c: Base) -> str:
    """The Hub's name for the task."""
    return format_of_config(c).written.tag(c)


EXPORTERS: dict[str, list[Exporter]] = dict.fromkeys(
    FAMILIES["lora"], [Exporter("a PEFT folder", unsupported, write, verify, usage, tag)]
)
