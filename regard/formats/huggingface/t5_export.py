"""A run as a Hugging Face T5 folder: `transformers` and our own reader give the same logits, tokens and texts."""

from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from ...config.run import Run
from ...families import t5
from ...files import write_json
from ...parts import slots
from ...processors.tokenizers import TrainedTokenizer
from .marian_export import decode_entry, generation_config, max_positions, write_tokenizer_files
from .weight_names import export_weights

ACTS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
GATED = {"relu": "gated-relu", "gelu_tanh": "gated-gelu", "silu": "gated-silu"}


def unsupported(c: t5.Config) -> list[str]:
    """What of a model transformers' T5 cannot be, in words; nothing where it fits."""
    names = GATED if isinstance(c.feed, slots.Gated) else ACTS
    found = {
        f"model.positions.kind={c.positions.kind} (expected buckets)": not isinstance(c.positions, slots.Buckets),
        f"model.attention.kind={c.attention.kind} (expected dense)": not isinstance(c.attention, slots.Dense),
        "model.attention.scaled=true (T5's scores are not)": getattr(c.attention, "scaled", False),
        f"model.norm.kind={c.norm.kind} (expected rms)": not isinstance(c.norm, slots.RMSNorm),
        f"model.feed.act={c.feed.act} of gated (expected {', '.join(GATED)})": c.feed.act not in names,
        "two vocabularies, tokenizer.joint=false (T5 has one)": bool(c.target_vocab),
        "more model.decoder_layers than model.layers (transformers cannot generate so)": c.decoder_layers > c.layers,
    }
    return [words for words, misfit in found.items() if misfit]


def write(system: Any, draft: Path, precision: str) -> None:
    """Everything of the folder but its README."""
    run: Run = system.run
    longest = max_positions(run)
    draft.mkdir()
    write_json(draft / "config.json", config(run.model, system.target) | decode_entry(run))
    write_json(draft / "generation_config.json", generation_config(run, system.target, longest))
    (draft / "model.safetensors").write_bytes(save(tensors(system.model, run.model), {"format": "pt"}))
    write_tokenizer_files(system, draft, longest)


def config(c: t5.Config, tokenizer: TrainedTokenizer) -> dict[str, Any]:
    assert isinstance(c.positions, slots.Buckets)
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": c.vocab,
        "d_model": c.width,
        "d_kv": c.head_width,
        "d_ff": c.inner,
        "num_layers": c.layers,
        "num_decoder_layers": c.decoder_layers or c.layers,
        "num_heads": c.heads,
        "relative_attention_num_buckets": c.positions.buckets,
        "relative_attention_max_distance": c.positions.far,
        "feed_forward_proj": (GATED if isinstance(c.feed, slots.Gated) else ACTS)[c.feed.act],
        "layer_norm_epsilon": c.norm.eps,
        "dropout_rate": c.dropout,
        "tie_word_embeddings": c.tied,
        "scale_decoder_outputs": c.tied,
        "pad_token_id": tokenizer.pad,
        "eos_token_id": tokenizer.end,
        "decoder_start_token_id": tokenizer.start,
        "dtype": "float32",
    }


def tensors(model: t5.Model, c: t5.Config) -> dict[str, Tensor]:
    return {name: tensor.detach().clone().contiguous() for name, tensor in export_weights(model, t5.names(c)).items()}
