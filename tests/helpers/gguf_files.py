"""GGUF files for the tests, written as llama.cpp's converter does, and the tokenizers that they describe."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import sentencepiece
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize
from helpers.causal import SENTENCES

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
CONTROL, USER_DEFINED, BYTE = 3, 4, 6


def metadata(c: Any, kind: str) -> dict[str, Any]:
    """The metadata of a Hugging Face config."""
    own = {
        "context_length": 64, "embedding_length": c.hidden_size, "block_count": c.num_hidden_layers,
        "feed_forward_length": c.intermediate_size, "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads, "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "rope.freq_base": c.rope_parameters["rope_theta"],
        "rope.dimension_count": c.hidden_size // c.num_attention_heads,
    }  # fmt: skip
    return {f"{kind}.{key}": value for key, value in own.items()}


def their_name(name: str) -> str:
    place, _, kind = name.rpartition(".")
    if not place.startswith("model.layers."):
        return f"{NAMES[place]}.{kind}"
    _, _, layer, part = place.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def tensors(model: Any, kind: str) -> dict[str, np.ndarray]:
    """The weights under llama.cpp's names; for llama, the rows of query and key maps in pairs."""
    c, found = model.config, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(name.split(".")[-2])
        if heads and kind == "llama":
            array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        found[their_name(name)] = array
    return found


def write(
    path: Path,
    fields: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    type_of: Callable[[str], Type] = lambda name: Type.F32,
    kind: str = "llama",
    parts: int = 1,
) -> Path:
    """Write a file; matrices have the type that `type_of` gives for their name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    split = {"split_max_tensors": -(-len(arrays) // parts)} if parts > 1 else {}
    writer = gguf.GGUFWriter(path, kind, **split)
    for key, value in fields.items():
        if key == "general.architecture" or value is None:
            continue
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    for name, array in arrays.items():
        own = type_of(name) if array.ndim > 1 else Type.F32
        if array.dtype in (np.uint8, np.int8):  # stored as it is
            writer.add_tensor(name, array, raw_dtype=own)
        else:
            writer.add_tensor(name, quantize(np.ascontiguousarray(array), own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# --- tokenizers ------------------------------------------------------------------------------------------------------


def sentencepiece_model(folder: Path, **changes: Any) -> Any:
    """A BPE of sentencepiece with byte fallback, trained as Llama 2's was."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.txt").write_text("\n".join(SENTENCES * 3))
    settings = {
        "model_type": "bpe", "vocab_size": 330, "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, "split_digits": True,
        "minloglevel": 2, "input": str(folder / "texts.txt"), "model_prefix": str(folder / "spm"),
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(**settings | changes)
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))


def sentencepiece_fields(model: Any) -> dict[str, Any]:
    """tokenizer.ggml.* of a sentencepiece model."""
    ids = range(model.get_piece_size())

    def kind(number: int) -> int:
        if model.is_unknown(number):
            return 2
        return CONTROL if model.is_control(number) else BYTE if model.is_byte(number) else 1

    own = {
        "model": "llama", "tokens": [model.id_to_piece(i) for i in ids], "scores": [model.get_score(i) for i in ids],
        "token_type": [kind(i) for i in ids], "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
        "add_bos_token": True,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in own.items()}


def byte_level_fields(backend: Any, pre: str, **changes: Any) -> dict[str, Any]:
    """tokenizer.ggml.* of a byte-level tokenizer."""
    import json

    whole = json.loads(backend.to_str())
    vocab = backend.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = {one["content"]: CONTROL if one["special"] else USER_DEFINED for one in whole["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in whole["model"]["merges"]]
    own = {
        "model": "gpt2", "pre": pre, "tokens": tokens, "token_type": [special.get(name, 1) for name in tokens],
        "merges": merges, "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in (own | changes).items()}
