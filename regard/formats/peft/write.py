"""Write the adapter of a tuned run as a PEFT folder, and compare the folder with the run."""

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ...adapt import lora, tune
from ...adapt.injection import TUNE_MODULE
from ...config.tuning import Lora, Prefix, Prompt, Untuned
from ...config.types import Base
from ...files import JsonObject, write_json
from ...tasks.predictor import AnyPredictor
from ..exporter import Exporter
from ..hub import peft_base
from ..huggingface.folder import format_of_config
from ..huggingface.weight_names import WeightRule
from ..parity import check_close
from ..pruned_run import probe_logits
from .names import CONFIG, FAMILIES, KINDS, TOP, WEIGHTS, ModuleNames, task_type
from .processors import write_processors
from .read import load_adapter
from .virtual_tokens import virtual_tokens


def write(predictor: AnyPredictor, draft: Path, precision: str) -> None:
    """Write every file of the folder except README.md."""
    run, c, kind = predictor.run, predictor.run.model, predictor.run.tune.kind
    config: JsonObject = {**peft_base(run.start), "task_type": task_type(c)}
    config |= {"inference_mode": True, "modules_to_save": None}
    if isinstance(run.tune, Lora):
        tensors, settings = _lora_tensors(predictor.module, c, run.tune)
    else:
        assert isinstance(run.tune, Prompt | Prefix)
        tensors, settings = virtual_tokens(predictor.module), {"num_virtual_tokens": run.tune.length}
        settings |= {"token_dim": c.width, "num_attention_heads": c.heads, "num_layers": c.layers}
        settings |= {"num_transformer_submodules": 1}
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


def _lora_tensors(model: nn.Module, c: Base, settings: Lora) -> tuple[dict[str, Tensor], JsonObject]:
    """Tensors and settings of LoRA. Branches of layers that are fused in theirs become one branch.

    The rank is then that of the largest, and alpha grows with it, so that every branch keeps its scale.
    """
    names, parts = ModuleNames(c), dict[str, list[LoraPart]]()
    for path, _, branch in lora.branches(model):
        rule = names.rule(f"{path}.weight")
        parts.setdefault(rule.names[0].removesuffix(".weight"), []).append(LoraPart(rule, branch))
    pairs = {name: _fuse(group) for name, group in parts.items()}
    rank = max(down.size(0) for down, _ in pairs.values())
    tensors = {}
    for name, (down, up) in pairs.items():
        tensors[f"{TOP}{name}.lora_A.weight"] = _pad_rank(down, rank, 0)
        tensors[f"{TOP}{name}.lora_B.weight"] = _pad_rank(up, rank, 1)
    heads = {
        (rule := names.rule(name)).names[0]: rule.write(parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not name.startswith(f"{TUNE_MODULE}.")
    }
    tensors |= {f"{TOP}{name}": tensor for name, tensor in heads.items()}
    return tensors, {
        "r": rank,
        "lora_alpha": settings.alpha / settings.rank * rank,
        "lora_dropout": settings.dropout,
        "bias": "none",
        "target_modules": [*pairs],
        "modules_to_save": sorted({name.rpartition(".")[0] for name in heads}) or None,
        "fan_in_fan_out": any(group[0].rule.transposed for group in parts.values()),
    }


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
    c = predictor.run.model
    name = format_of_config(c).architecture(c)
    labels = f", num_labels={c.labels}, ignore_mismatched_sizes=True" if getattr(c, "labels", 0) else ""
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
