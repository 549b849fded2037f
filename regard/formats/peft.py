"""Folders of Hugging Face PEFT, read and written without it: adapter_config.json and adapter_model.safetensors.

LoRA for gpt, bert and t5; prompts for gpt and t5; prefixes for gpt. Elsewhere PEFT means something else: it pools the
first vector of a prompt before a BERT, and a T5 has a prefix in its decoder alone.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from ..adapt import lora, tune
from ..adapt.injection import TUNE_MODULE, Injection
from ..adapt.precision import Int8Linear
from ..adapt.prefix_tuning import PrefixParameters
from ..config.schema import Lora, Prefix, Prompt, Untuned
from ..errors import UserError
from ..files import read_json, write_json
from ..parts.layer import smallest_context
from .huggingface import bert, gpt2_export, t5
from .huggingface.weight_names import Names, WeightRule, find_rule

CONFIG, WEIGHTS, BINARY = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
TOP = "base_model.model."  # before every name of theirs
VECTORS = "prompt_embeddings"
KINDS = {"LORA": "lora", "PROMPT_TUNING": "prompt", "PREFIX_TUNING": "prefix"}
FAMILIES = {"lora": ("gpt", "bert", "t5"), "prompt": ("gpt", "t5"), "prefix": ("gpt",)}  # by kind: the families
# What may be set in a config without changing what its tensors mean; anything else that is set is refused.
ALLOWED_FIELDS = {
    "peft_type", "task_type", "peft_version", "base_model_name_or_path", "revision", "auto_mapping", "inference_mode",
    "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "modules_to_save", "fan_in_fan_out",
    "layers_to_transform", "layers_pattern", "init_lora_weights", "megatron_core", "qalora_group_size",
    "num_virtual_tokens", "token_dim", "num_transformer_submodules", "num_attention_heads", "num_layers",
    "encoder_hidden_size", "init_weights", "prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_name_or_path",
    "tokenizer_kwargs",
}  # fmt: skip


class PeftLayout(NamedTuple):
    """How a family's modules are called there."""

    names: Callable[[Any], Names]
    task: Callable[[Any], str | None]
    body: Callable[[Any], str]  # what stands before all names but the heads'


HEADS = ("lm_head.", "classifier.", "cls.")
BERT_TASKS = {"class": "SEQ_CLS", "tag": "TOKEN_CLS"}
PEFT_LAYOUTS = {
    "gpt": PeftLayout(lambda c: gpt2_export.gpt_layout(c).names(c), lambda c: "CAUSAL_LM", lambda c: ""),
    "bert": PeftLayout(
        bert.names,
        lambda c: BERT_TASKS.get(c.head),
        lambda c: "" if bert.architecture(c) == "BertModel" else "bert.",
    ),
    "t5": PeftLayout(t5.names, lambda c: "SEQ_2_SEQ_LM", lambda c: ""),
}


def is_peft_folder(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


# --- reading ---------------------------------------------------------------------------------------------------------


def load_adapter(system: Any, folder: Path, base: str) -> Any:
    """Hang what a PEFT folder holds into a system that was loaded from its base."""
    if system.run.tune.kind != "none":
        raise UserError(
            f"{base} is tuned itself, so {folder} cannot go over it; merge it first (regard convert --merge)"
        )
    config, tensors = read_json(folder / CONFIG), _read_tensors(folder)
    if not isinstance(config, dict) or not isinstance(config.get("peft_type", ""), str):
        raise UserError(f"{folder / CONFIG} is no configuration of PEFT's; expected an object with a peft_type")
    kind, c = KINDS.get(config.get("peft_type", "")), system.run.model
    if kind is None:
        known = ", ".join(KINDS)
        raise UserError(f"{folder} has peft_type {config.get('peft_type')!r}; of PEFT's, regard reads {known}")
    check_family(str(folder), kind, c.family)
    _check_config(folder, config)
    if kind == "lora":
        settings: Any = _load_lora(system.model, folder, config, tensors, c)
    else:
        settings = _load_virtual_tokens(system.model, kind, folder, tensors, config.get("num_virtual_tokens"))
    system.run = system.run.model_copy(update={"tune": settings, "start": base})
    system.model.eval()
    return system


def check_family(what: str, kind: str, family: str) -> None:
    if family not in FAMILIES.get(kind, ()):
        able = ", ".join(f"{name} ({' and '.join(families)})" for name, families in FAMILIES.items())
        raise UserError(
            f"{what}: {kind} of the family {family} has no form in PEFT that says the same; what has: {able}"
        )


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    for name, value in config.items():
        plain = not value or name in ALLOWED_FIELDS or (name == "bias" and value == "none")
        if name == "init_lora_weights" and isinstance(value, str) and value not in ("gaussian", "orthogonal"):
            plain = False  # such as pissa: it changes the base as well
        if not plain:
            raise UserError(f"{folder / CONFIG} sets {name}={value!r}, which regard does not read; merge it with peft")


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    if not (folder / WEIGHTS).is_file():
        other = f"only {BINARY}, a pickle, which regard never opens" if (folder / BINARY).is_file() else "no weights"
        raise UserError(f"{folder} has {other}; save it with peft as {WEIGHTS} (safe_serialization)")
    try:
        return {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{folder / WEIGHTS} is cut off or damaged ({error}); fetch the folder again") from error


def _load_lora(model: nn.Module, folder: Path, config: Mapping[str, Any], tensors: dict[str, Tensor], c: Any) -> Lora:
    named = {_strip_prefix(name, c): tensor for name, tensor in tensors.items()}
    rank, alpha, left = config.get("r"), config.get("lora_alpha"), dict(named)
    if type(rank) is not int or rank < 1 or alpha is None or not _is_number(alpha) or alpha <= 0:
        raise UserError(f"{folder / CONFIG} has r={rank!r} and lora_alpha={alpha!r}; expected numbers above 0")
    drop = config.get("lora_dropout") or 0.0
    if not _is_number(drop) or not 0 <= drop < 1:
        raise UserError(f"{folder / CONFIG} has lora_dropout={drop!r}; expected a number from 0 to less than 1")
    graft, maps, table = Injection("lora"), lora.target_layers(model), PEFT_LAYOUTS[c.family].names(c)
    for path, module in maps.items():
        rule = find_rule(f"{path}.weight", table)
        there = rule.names[0].removesuffix(".weight")
        down, up = (named.get(f"{there}.lora_{letter}.weight") for letter in "AB")
        if down is None and up is None:
            continue
        if down is None or up is None:
            raise UserError(f"{folder} has only one of lora_A and lora_B for {there}; both belong together")
        for letter in "AB":
            left.pop(f"{there}.lora_{letter}.weight", None)
        side = lora.LoraBranch(module.in_features, module.out_features, rank, float(alpha), drop)
        _copy_lora(side, down, up.chunk(rule.parts, 0)[rule.part], there, folder)
        lora.attach_branch(graft, path, module, side)
    heads = _load_heads(model, left, table, folder)
    if not list(graft.parameters()):
        raise UserError(f"{folder} has no LoRA for any map of this model; is it for another base?")
    paths = [path for path, each in graft.named_modules() if isinstance(each, lora.LoraBranch)]
    pattern = f"^({'|'.join(map(re.escape, paths))})$"
    tune.attach_injection(model, graft, heads)
    return Lora(rank=rank, alpha=float(alpha), dropout=drop, pattern=pattern)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _strip_prefix(name: str, c: Any) -> str:
    """Without what stands before the body, which files of bare models leave out."""
    name = name.removeprefix(TOP)
    if c.family == "gpt" and not name.startswith(("transformer.", "model.", *HEADS)):
        return f"{'model.' if gpt2_export.gpt2_unsupported(c) else 'transformer.'}{name}"
    return name.removeprefix(PEFT_LAYOUTS[c.family].body(c) or "bert.")


@torch.no_grad()
def _copy_lora(side: lora.LoraBranch, down: Tensor, up: Tensor, there: str, folder: Path) -> None:
    for own, tensor, letter in ((side.down, down, "A"), (side.up, up, "B")):
        if own.shape != tensor.shape:
            raise UserError(
                f"{folder}: lora_{letter} of {there} is {tuple(tensor.shape)} and this base needs {tuple(own.shape)}; "
                "it belongs to another base"
            )
        own.copy_(tensor)


@torch.no_grad()
def _load_heads(model: nn.Module, left: dict[str, Tensor], table: Names, folder: Path) -> list[str]:
    """What modules_to_save carries: whole heads, whose names come back. One that has no place here is refused."""
    for path, module in [*model.named_modules()]:  # what is trained itself is kept exact, whatever the base is held in
        if isinstance(module, Int8Linear) and find_rule(f"{path}.weight", table).names[0] in left:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, module.to_linear())
    found, used, state = [], set(), model.state_dict()
    places = Counter(tensor.data_ptr() for tensor in state.values())
    for ours, tensor in state.items():
        rule = find_rule(ours, table)
        theirs = rule.names[0]
        if theirs in left and rule.read(left[theirs]).shape == tensor.shape:
            if places[tensor.data_ptr()] > 1:
                raise UserError(
                    f"{folder} holds {theirs} by itself, and this base has one table for words in and out; merge it "
                    "with peft, and load the whole"
                )
            tensor.copy_(rule.read(left[theirs]))
            found.append(ours)
            used.add(theirs)
    for theirs in used:
        del left[theirs]
    if left:
        raise UserError(
            f"{folder} holds {', '.join(sorted(left)[:3])}, for which this base has no place (of that shape); "
            "load it over a base with a head for as many labels, such as a run of the same task"
        )
    return found


@torch.no_grad()
def _load_virtual_tokens(
    model: Any, kind: str, folder: Path, tensors: dict[str, Tensor], count: Any
) -> Prompt | Prefix:
    """Of a prompt for an encoder and a decoder, PEFT keeps both and uses the first `count`."""
    if set(tensors) != {VECTORS}:
        raise UserError(f"{folder / WEIGHTS} holds {', '.join(sorted(tensors)[:3])}; expected {VECTORS} alone")
    vectors = tensors[VECTORS]
    if type(count) is not int or count < 1 or vectors.dim() != 2 or len(vectors) < count:
        raise UserError(f"{folder}: {VECTORS} is {tuple(vectors.shape)}; expected num_virtual_tokens ({count!r}) rows")
    vectors = vectors[:count]
    if (context := smallest_context(model)) is not None and count >= context:
        raise UserError(f"{folder} puts {count} places before a text, and this base has {context} in all; use another")
    settings = (Prompt if kind == "prompt" else Prefix)(length=len(vectors))
    tune.attach(model, settings)
    own = [model.tune.vectors] if kind == "prompt" else list(_prefix_parameters(model))
    if vectors.size(1) != (wanted := sum(each.numel() for each in own) // len(vectors)):
        tune.detach(model)
        raise UserError(
            f"{folder}: {VECTORS} is {vectors.size(1)} wide and this base needs {wanted}; it is for another"
        )
    for each, part in zip(own, vectors.chunk(len(own), 1), strict=True):
        each.copy_(part if kind == "prompt" else _split_heads(part, each))
    return settings


def _prefix_parameters(model: Any) -> list[Tensor]:
    """Keys, then values, of layer after layer."""
    pasts = [each for each in model.tune.modules() if isinstance(each, PrefixParameters)]
    return [half for past in pasts for half in (past.key, past.value)]


def _split_heads(part: Tensor, like: Tensor) -> Tensor:
    """(length, heads · head_width) -> (heads, length, head_width)"""
    return part.unflatten(1, (like.size(0), -1)).transpose(0, 1)


# --- writing ---------------------------------------------------------------------------------------------------------


def write(system: Any, draft: Path, precision: str) -> None:
    """Everything of the folder but its README."""
    run, c = system.run, system.run.model
    about: dict[str, Any] = {"base_model_name_or_path": run.start, "task_type": PEFT_LAYOUTS[c.family].task(c)}
    about |= {"inference_mode": True, "modules_to_save": None}
    kind = run.tune.kind
    if kind == "lora":
        tensors, more = _lora_tensors(system.model, c, run.tune)
    else:
        tensors, more = {VECTORS: _prompt_embeddings(system.model, kind)}, _virtual_token_settings(c, run.tune.length)
    kinds = {ours: theirs for theirs, ours in KINDS.items()}
    draft.mkdir()
    write_json(draft / CONFIG, about | {"peft_type": kinds[kind]} | more)
    whole = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    (draft / WEIGHTS).write_bytes(save(whole, {"format": "pt"}))


def _virtual_token_settings(c: Any, length: int) -> dict[str, Any]:
    shape = {"token_dim": c.width, "num_attention_heads": c.heads, "num_layers": c.layers}
    return shape | {"num_virtual_tokens": length, "num_transformer_submodules": 1}


def _prompt_embeddings(model: Any, kind: str) -> Tensor:
    if kind == "prompt":
        vectors: Tensor = model.tune.vectors
        return vectors
    return torch.cat([half.transpose(0, 1).flatten(1) for half in _prefix_parameters(model)], 1)


class LoraPart(NamedTuple):
    rule: WeightRule
    side: lora.LoraBranch


def _lora_tensors(model: nn.Module, c: Any, settings: Lora) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Maps of ours that are one of theirs share what they share, or stand in blocks; the rank is then that of the
    largest, and alpha grows with it, so that every path counts as before."""
    table, body = PEFT_LAYOUTS[c.family].names(c), PEFT_LAYOUTS[c.family].body(c)
    pieces: dict[str, list[LoraPart]] = {}
    for path, _, side in lora.branches(model):
        rule = find_rule(f"{path}.weight", table)
        pieces.setdefault(rule.names[0].removesuffix(".weight"), []).append(LoraPart(rule, side))
    pairs = {name: _fuse(some) for name, some in pieces.items()}
    rank = max(down.size(0) for down, _ in pairs.values())
    tensors = {}
    for name, (down, up) in pairs.items():
        tensors[f"{TOP}{_full_name(name, body)}.lora_A.weight"] = _pad_rank(down, rank, 0)
        tensors[f"{TOP}{_full_name(name, body)}.lora_B.weight"] = _pad_rank(up, rank, 1)
    heads = {
        _full_name(find_rule(name, table).names[0], body): find_rule(name, table).write(each)
        for name, each in model.named_parameters()
        if each.requires_grad and not name.startswith("tune.")
    }
    tensors |= {f"{TOP}{name}": each for name, each in heads.items()}
    return tensors, {
        "r": rank,
        "lora_alpha": settings.alpha / settings.rank * rank,
        "lora_dropout": settings.dropout,
        "bias": "none",
        "target_modules": [_full_name(name, body) for name in pairs],
        "modules_to_save": sorted({name.rpartition(".")[0] for name in heads}) or None,
        "fan_in_fan_out": any(some[0].rule.transposed for some in pieces.values()),
    }


def _full_name(name: str, body: str) -> str:
    return name if name.startswith(HEADS) else f"{body}{name}"


def _fuse(pieces: list[LoraPart]) -> tuple[Tensor, Tensor]:
    parts = pieces[0].rule.parts
    downs: list[Tensor] = [piece.side.down for piece in pieces]
    if len(pieces) == parts and all(each.equal(downs[0]) for each in downs):
        ordered = sorted(pieces, key=lambda piece: piece.rule.part)
        return downs[0], torch.cat([piece.side.up for piece in ordered])
    rows = pieces[0].side.up.size(0)
    up = downs[0].new_zeros(parts * rows, sum(each.size(0) for each in downs))
    at = 0
    for piece in pieces:
        width = piece.side.up.size(1)
        up[piece.rule.part * rows : (piece.rule.part + 1) * rows, at : at + width] = piece.side.up
        at += width
    return torch.cat(downs), up


def _pad_rank(x: Tensor, rank: int, dim: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = rank - shape[dim]
    return torch.cat([x, x.new_zeros(shape)], dim)


def check(system: Any, draft: Path, precision: str) -> str:
    """The folder by our own reader, in the place of what it was written from."""
    from .convert import MAX_DIFFERENCE, probe_logits
    from .parity import export_error

    before, model = probe_logits(system), system.model
    trained = [name for name, each in model.named_parameters() if each.requires_grad]
    heads = [name for name in trained if not name.startswith(f"{TUNE_MODULE}.")]
    tune.detach(model)
    with torch.no_grad():  # what comes back comes from the folder
        for name in heads:
            model.get_parameter(name).zero_()
    system.run = system.run.model_copy(update={"tune": Untuned()})
    load_adapter(system, draft, system.run.start)
    apart, largest = (probe_logits(system) - before).abs().max().item(), before.abs().max().item()
    if not apart <= MAX_DIFFERENCE * max(largest, 1.0):
        raise export_error(f"what was written gives logits that are apart by {apart:.2g}")
    return f"read again, its logits are apart by {apart:.1g}"


def usage(system: Any) -> str:
    """How it is used, for the README."""
    kinds = {"SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM", "CAUSAL_LM": "AutoModelForCausalLM"}
    kinds |= {"SEQ_CLS": "AutoModelForSequenceClassification", "TOKEN_CLS": "AutoModelForTokenClassification"}
    c = system.run.model
    name = kinds.get(PEFT_LAYOUTS[c.family].task(c) or "", "AutoModelForMaskedLM")
    labels = f", num_labels={c.labels}" if getattr(c, "labels", 0) else ""
    return f"""
```python
from peft import PeftModel
from transformers import {name}

base = {name}.from_pretrained("BASE"{labels})
model = PeftModel.from_pretrained(base, ".").eval()
```

BASE is the model that was tuned, as a Hugging Face folder: `regard convert {system.run.start} --to huggingface`.
"""
