"""A run as a Hugging Face Marian folder: `transformers` and our own reader give the same logits, tokens and texts."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ...config.run import Run
from ...families import transformer
from ...files import JsonObject, write_json
from ...parts import slots
from ...processors.text.tokenizers import Tokenizer
from .generation import GENERATION_FILE, decode_entry, generation_config, max_positions
from .marian import CONFIG, names
from .tokenizer_export import write_tokenizer_files
from .weight_names import export_weights

if TYPE_CHECKING:
    from ...tasks.translate.task import TranslatePredictor

READS_WIDTH = re.compile(r"(source|target|head)\.weight|.*\.(query|key|value|into)\.weight")  # columns: the width
WRITES_WIDTH = re.compile(r".*\.(out|norm)\.(weight|bias)")  # rows: the width


def unsupported(c: transformer.Config) -> list[str]:
    """Settings of a model that Marian cannot have; empty if it can be exported."""
    return CONFIG.unsupported(c)


def write(predictor: "TranslatePredictor", draft: Path, precision: str) -> None:
    """Write every file of the folder except README.md."""
    run: Run = predictor.run
    twin, c = as_marian(cast(transformer.Model, predictor.model), run.model)
    max_length = max_positions(run)
    draft.mkdir()
    write_json(draft / "config.json", config(c, predictor.source, max_length) | decode_entry(run))
    write_json(draft / GENERATION_FILE, generation_config(run, predictor.target, max_length, predictor.suppressed))
    (draft / "model.safetensors").write_bytes(save(tensors(twin, c), {"format": "pt"}))
    write_tokenizer_files(predictor, draft, max_length)


def as_marian(model: nn.Module, c: transformer.Config) -> tuple[transformer.Model, transformer.Config]:
    """The same function as a model with Marian's sinusoid in halves and a bias on the output."""
    state: dict[str, Tensor] = dict(model.state_dict())
    if isinstance(c.positions, slots.Sinusoid) and c.positions.layout == "interleaved":
        state = to_half_layout(state, c.width)
    state.setdefault("head.bias", torch.zeros(len(state["head.weight"])))
    c = c.model_copy(update={"positions": slots.Sinusoid(layout="halves"), "biased": True})
    twin = transformer.Model(c)
    twin.load_state_dict(state)
    return twin.eval(), c


def to_half_layout(state: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """Permute the width: even positions first, then odd ones, so that an interleaved sinusoid becomes halves.

    Every map that reads or writes the width is permuted with it, so the function stays the same.
    """
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])

    def permute(name: str, tensor: Tensor) -> Tensor:
        if READS_WIDTH.fullmatch(name):
            return tensor[:, order]
        return tensor[order] if WRITES_WIDTH.fullmatch(name) else tensor

    return {name: permute(name, tensor) for name, tensor in state.items()}


def config(c: transformer.Config, tokenizer: Tokenizer, max_length: int) -> JsonObject:
    """config.json of a model that `as_marian` returned."""
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        **CONFIG.write(c),
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "max_position_embeddings": max_length,
        "pad_token_id": tokenizer.pad,
        "bos_token_id": tokenizer.start,
        "eos_token_id": tokenizer.end,
        "decoder_start_token_id": tokenizer.start,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


def tensors(twin: transformer.Model, c: transformer.Config) -> dict[str, Tensor]:
    """The weights under the names that `save_pretrained` would write."""
    theirs = export_weights(twin, names(c))
    if c.tied:
        del theirs["lm_head.weight"]
    elif not c.target_vocab:  # transformers then ties nothing at all
        for stack in ("encoder", "decoder"):
            theirs[f"model.{stack}.embed_tokens.weight"] = theirs["model.shared.weight"]
    return {name: tensor.detach().clone().contiguous() for name, tensor in theirs.items()}
