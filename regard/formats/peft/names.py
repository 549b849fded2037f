"""The files, fields and names of PEFT folders: what regard supports, and the paths of modules in transformers."""

import re
from dataclasses import replace
from pathlib import Path

from ...config.types import Base
from ...errors import UserError
from ...families import gpt
from ...families.bert import EncoderConfig
from ..huggingface import bert, gpt2
from ..huggingface.folder import format_of_config
from ..huggingface.weight_names import WeightRule, find_rule

CONFIG, WEIGHTS, BINARY = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
TOP = "base_model.model."  # prefix of all their names
KINDS = {"LORA": "lora", "PROMPT_TUNING": "prompt", "PREFIX_TUNING": "prefix"}
FAMILIES = {
    "lora": ("gpt", "bert", "t5", "vit", "detr", "clip", "captioner", "whisper"),
    "prompt": ("gpt", "t5"),
    "prefix": ("gpt",),
}  # by kind
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
TASK_TYPES = {"gpt": "CAUSAL_LM", "t5": "SEQ_2_SEQ_LM"}  # by family; PEFT has none for images and sound
HEAD_TYPES = {"class": "SEQ_CLS", "tag": "TOKEN_CLS"}  # by the head of an encoder
VIT_PATHS = {
    r"encoder\.layer\.": "layers.",
    r"attention\.query": "q_proj",
    r"attention\.key": "k_proj",
    r"attention\.value": "v_proj",
    r"attention\.output\.dense": "attention.o_proj",
    r"intermediate\.dense": "mlp.fc1",
    r"output\.dense": "mlp.fc2",
}
DETR_PATHS = {
    r"backbone\.conv_encoder": "backbone",
    r"out_proj": "o_proj",
    r"(layers\.\d+)\.fc([12])": r"\1.mlp.fc\2",
}
# Folders of models keep the tensor names of old versions. Adapters have the paths of modules, which transformers 5
# has changed. By family: patterns of the old names, and the paths; a path of transformers 5 matches none of them.
MODULE_PATHS = {"vit": VIT_PATHS, "captioner": VIT_PATHS, "detr": DETR_PATHS}


def is_peft_folder(folder: Path) -> bool:
    """True if the folder holds an adapter of PEFT."""
    return (folder / CONFIG).is_file()


def check_peft_family(source: str, kind: str, family: str) -> None:
    """Refuse a kind of tuning that PEFT does not compute equally for this family."""
    if family not in FAMILIES.get(kind, ()):
        supported = ", ".join(f"{name} ({' and '.join(families)})" for name, families in FAMILIES.items())
        raise UserError(f"{source}: PEFT has no equivalent of {kind} for the family {family}; expected {supported}")


def task_type(c: Base) -> str | None:
    """PEFT's name of a model's task."""
    return HEAD_TYPES.get(c.head) if isinstance(c, EncoderConfig) else TASK_TYPES.get(getattr(c, "family", ""))


class ModuleNames:
    """The names of a model's tensors in transformers 5."""

    def __init__(self, c: Base) -> None:
        weights = format_of_config(c).weights
        self.table, self.patterns = weights.names(c), weights.unused(c)
        self.paths = MODULE_PATHS.get(getattr(c, "family", ""), {})
        self.body, self.optional = "", ""  # the prefix of all tensors but those of heads; a name may lack the other
        if isinstance(c, EncoderConfig):
            self.body, self.optional = "" if bert.FORMAT.architecture(c) == "BertModel" else "bert.", "bert."
        elif isinstance(c, gpt.Config):
            self.body = self.optional = "model." if gpt2.FORMAT.unsupported(c) else "transformer."

    def name(self, theirs: str) -> str:
        """The name of a tensor that a file of a model, an older version or a bare model may name otherwise."""
        if not theirs.startswith(HEADS):
            theirs = f"{self.body}{theirs.removeprefix(self.optional)}"
        for pattern, path in self.paths.items():
            theirs = re.sub(pattern, path, theirs)
        return theirs

    def rule(self, ours: str) -> WeightRule:
        """The rule for one of our tensors, with its one name."""
        rule = find_rule(ours, self.table)
        return replace(rule, names=(self.name(rule.names[0]),))

    def is_unused(self, theirs: str) -> bool:
        """True for a weight outside the heads that transformers ignores too, such as a pooler that nothing reads."""
        return not theirs.startswith(HEADS) and any(re.fullmatch(pattern, theirs) for pattern in self.patterns)
