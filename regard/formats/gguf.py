"""GGUF files of llama.cpp: Llama-type models, dequantized to fp32 and read as their Hugging Face folder would be."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..config.types import Base
from ..errors import UserError
from ..files import JsonMapping, JsonObject
from .gguf_reader import GgufReader, StoredTensor
from .gguf_tokenizer import build_tokenizer
from .huggingface import causal, llama
from .huggingface.files import parse_config
from .model_files import gguf_parts

if TYPE_CHECKING:
    from ..tasks.predictor import AnyPredictor

ARCHITECTURES = ("llama", "qwen2")  # llama includes Mistral
REMEDY = "load the original model as a Hugging Face folder"

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FREQUENCIES = "rope_freqs.weight"  # divisors of the rotary frequencies (Llama 3.1); ones change nothing


@dataclass(frozen=True)
class GgufModel:
    """The metadata of a GGUF model and its tensors as stored, from one file or from several parts."""

    path: Path
    metadata: JsonObject
    stored: dict[str, StoredTensor]

    def tensor(self, name: str) -> Tensor:
        """A tensor in fp32."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        stored = self.stored[name]
        try:
            quantization = GGMLQuantizationType(stored.quantization)
            block, size = GGML_QUANT_SIZES[quantization]
            row = stored.dims[0] // block * size
            data = stored.data[: prod(stored.dims[1:]) * row].reshape(*reversed(stored.dims[1:]), row)
            return torch.from_numpy(dequantize(data, quantization).reshape(*reversed(stored.dims)).copy())
        except NotImplementedError as error:
            raise UserError(
                f"{self.path}: {name} is stored as {quantization.name}, which the gguf package cannot dequantize; "
                "use a file of another type, such as Q8_0"
            ) from error
        except ValueError as error:
            raise UserError(f"{self.path} is no complete GGUF file ({name}: {error}); fetch it again") from error


def read_gguf(path: Path) -> GgufModel:
    """Read the metadata of a file and the locations of its tensors."""
    if find_spec("gguf") is None:
        raise UserError(f"{path} needs the gguf package; install it with: pip install 'regard[gguf]'")
    try:
        readers = [GgufReader(part) for part in gguf_parts(path)]
    except (ValueError, KeyError, OverflowError, struct.error) as error:
        raise UserError(f"{path} is no complete GGUF file ({error}); fetch it again") from error
    stored = {name: tensor for reader in readers for name, tensor in reader.tensors.items()}
    return GgufModel(path, readers[0].metadata, stored)


# --- config ----------------------------------------------------------------------------------------------------------


def huggingface_config(model: GgufModel) -> JsonObject:
    """The equivalent config.json of the model; ValueError names what regard cannot represent."""
    architecture = model.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"general.architecture is {architecture!r}; regard reads GGUF files of {' and '.join(ARCHITECTURES)}, "
            f"{REMEDY}"
        )
    settings = {
        key.removeprefix(f"{architecture}."): value
        for key, value in model.metadata.items()
        if key.startswith(f"{architecture}.")
    }
    if missing := [f"{architecture}.{key}" for key in SHAPE.values() if key not in (*settings, *OPTIONAL)]:
        raise KeyError(missing[0])
    for key, value in settings.items():
        if isinstance(value, list) and key in SHAPE.values():
            raise ValueError(
                f"{architecture}.{key} differs from layer to layer; regard reads models of equal layers, {REMEDY}"
            )
    config: JsonObject = {theirs: settings[key] for theirs, key in SHAPE.items() if key in settings}
    head = settings.get("attention.key_length", settings["embedding_length"] // settings["attention.head_count"])
    _check_supported(model, architecture, settings, head)
    names = model.stored
    if window := settings.get("attention.sliding_window"):
        config |= {"sliding_window": window}
    query_only = "blk.0.attn_q.bias" in names and "blk.0.attn_output.bias" not in names
    return config | {
        "model_type": "mistral" if window else "qwen2" if architecture == "qwen2" or query_only else "llama",
        "head_dim": head,
        "vocab_size": names["token_embd.weight"].dims[1],
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": "blk.0.attn_output.bias" in names,
        "mlp_bias": "blk.0.ffn_up.bias" in names,
    }


SHAPE = {  # keys of config.json to those of the metadata
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
OPTIONAL = ("attention.head_count_kv", "rope.freq_base")


def _check_supported(model: GgufModel, architecture: str, settings: JsonMapping, head: int) -> None:
    """Raise ValueError for settings that change the outputs and that regard cannot represent."""
    expected = {
        "rope.dimension_count": (head, "as many as a head has"),
        "attention.value_length": (head, "as many as attention.key_length"),
        "expert_count": (0, "no experts"),
        "attention.causal": (True, "a causal model"),
        "rope.scaling.type": ("none", "positions that are not scaled"),
    }
    for key, (value, requirement) in expected.items():
        if (actual := settings.get(key, value)) != value:
            raise ValueError(f"{architecture}.{key} is {actual!r}; regard reads models with {requirement}, {REMEDY}")
    if FREQUENCIES in model.stored and not bool((model.tensor(FREQUENCIES) == 1).all()):
        raise ValueError(f"{FREQUENCIES} scales the rotary positions; regard reads models without it, use another one")


def gguf_config(path: Path) -> Base:
    """Our settings of the model in a file, read without its weights."""
    return _our_config(read_gguf(path))[1]


def _our_config(model: GgufModel) -> tuple[JsonObject, Base]:
    folder, file = model.path.parent, model.path.name
    config: JsonObject = parse_config(folder, model.metadata, lambda _: huggingface_config(model), file)
    return config, parse_config(folder, config, llama.FORMAT.from_huggingface, file)


# --- weights ---------------------------------------------------------------------------------------------------------


def huggingface_weights(model: GgufModel, config: JsonMapping) -> Iterator[tuple[str, Tensor]]:
    """The tensors in fp32 under their names in a Hugging Face folder; unknown ones keep their own."""
    rotated = {"attn_q": config["num_attention_heads"]}
    rotated["attn_k"] = config.get("num_key_value_heads", config["num_attention_heads"])
    for name in model.stored:
        if name == FREQUENCIES:
            continue
        tensor = model.tensor(name)
        place, _, parameter = name.rpartition(".")
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)", place)
        if block and block[2] in rotated and model.metadata["general.architecture"] == "llama":
            tensor = halves_from_pairs(tensor, rotated[block[2]])
        if block and block[2] in LAYER:
            place = f"model.layers.{block[1]}.{LAYER[block[2]]}"
        yield f"{OUTER.get(place, place)}.{parameter}", tensor


def halves_from_pairs(tensor: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a query or key map: llama.cpp rotates neighbors, Hugging Face a half with the other."""
    return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


# --- predictor -------------------------------------------------------------------------------------------------------


def load_gguf(path: Path, overrides: JsonMapping) -> "AnyPredictor":
    """The language predictor of a GGUF file."""
    source = read_gguf(path)
    config, _ = _our_config(source)
    text = parse_config(path.parent, source.metadata, build_tokenizer, path.name)
    tensors = dict(huggingface_weights(source, config))
    folder = replace(llama.FORMAT.build_model(path.parent, config, tensors, path.name), path=path)
    return llama.FORMAT.processors.load(causal.with_tokenizer(folder, text), overrides)
