"""A run of the family gpt as a Hugging Face folder: GPT-2's where it has that form, Llama's where it is modern."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from ...config.run import Run
from ...families import gpt
from ...files import write_json
from ...parts import slots
from ...processors.external import FolderTokenizer
from . import causal, gpt2, llama
from .marian_export import portable_tokenizer, tokenizer_config
from .weight_names import export_weights


def gpt2_unsupported(c: gpt.Config) -> list[str]:
    """What of a model GPT-2 cannot be, in words."""
    heads, width = c.key_heads or c.heads, c.head_width or c.width // c.heads
    found = {
        f"model.attention.kind={c.attention.kind} (GPT-2's is dense)": not isinstance(c.attention, slots.Dense),
        f"model.positions.kind={c.positions.kind} (GPT-2's are learned)": not isinstance(c.positions, slots.Learned),
        f"model.norm.kind={c.norm.kind} (GPT-2's is layer)": not isinstance(c.norm, slots.LayerNorm),
        f"model.feed.kind={c.feed.kind} (GPT-2's is plain)": not isinstance(c.feed, slots.Feed),
        f"model.key_heads={c.key_heads} (GPT-2 shares none)": heads != c.heads,
        f"model.head_width={c.head_width} (GPT-2's is width / heads)": width * c.heads != c.width,
    }
    return [words for words, misfit in found.items() if misfit]


def llama_unsupported(c: gpt.Config) -> list[str]:
    """What of a model Llama cannot be, in words."""
    found = {
        f"model.attention.kind={c.attention.kind} (Llama's is dense)": not isinstance(c.attention, slots.Dense),
        "model.attention.scaled=false (Llama's scores are scaled)": not getattr(c.attention, "scaled", True),
        f"model.positions.kind={c.positions.kind} (Llama's are rotary)": not isinstance(c.positions, slots.Rotary),
        f"model.norm.kind={c.norm.kind} (Llama's is rms)": not isinstance(c.norm, slots.RMSNorm),
        f"model.feed.kind={c.feed.kind} (Llama's is gated)": not isinstance(c.feed, slots.Gated),
        f"model.width={c.width} (Llama's divides by model.heads={c.heads})": c.width % c.heads != 0,
    }
    return [words for words, misfit in found.items() if misfit]


def unsupported(c: Any) -> list[str]:
    """Nothing where the model fits one of the two; else what keeps it from the nearer one."""
    if not isinstance(c, gpt.Config):
        return [f"model.family={c.family} (expected gpt)"]
    return min(gpt2_unsupported(c), llama_unsupported(c), key=len)


def gpt2_config(c: gpt.Config, longest: int) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": c.vocab,
        "n_positions": longest,
        "n_embd": c.width,
        "n_layer": c.layers,
        "n_head": c.heads,
        "n_inner": c.inner,
        "activation_function": spelt(c.feed.act),
        "resid_pdrop": c.dropout,
        "embd_pdrop": c.dropout,
        "attn_pdrop": getattr(c.attention, "dropout", 0.0),
        "layer_norm_epsilon": c.norm.eps,
        "scale_attn_weights": getattr(c.attention, "scaled", True),
        "tie_word_embeddings": c.tied,
    }


def llama_config(c: gpt.Config, longest: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab,
        "hidden_size": c.width,
        "intermediate_size": c.inner,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.key_heads or c.heads,
        "head_dim": c.head_width or c.width // c.heads,
        "hidden_act": spelt(c.feed.act),
        "max_position_embeddings": longest,
        "rms_norm_eps": c.norm.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": getattr(c.positions, "base", 10000.0)},
        "rope_theta": getattr(c.positions, "base", 10000.0),  # where versions before 5 look for it
        "attention_bias": c.biased,
        "mlp_bias": c.biased,
        "attention_dropout": getattr(c.attention, "dropout", 0.0),
        "tie_word_embeddings": c.tied,
    }


def spelt(act: str) -> str:
    return next(theirs for theirs, ours in causal.ACTIVATIONS.items() if ours == act)


class GptLayout(NamedTuple):
    """How one of the two is written."""

    config: Any
    names: Any
    biased: bool  # are all biases written, zeros where the model has none?


def gpt_layout(c: gpt.Config) -> GptLayout:
    if not gpt2_unsupported(c):
        return GptLayout(gpt2_config, gpt2.names, True)
    return GptLayout(llama_config, llama.names, c.biased)


def tensors(model: Any, c: gpt.Config) -> dict[str, Tensor]:
    """The weights under the names that `save_pretrained` would write."""
    form_ = gpt_layout(c)
    twin = gpt.Model(c.model_copy(update={"biased": form_.biased}))
    state = model.state_dict()
    twin.load_state_dict({name: state.get(name, torch.zeros_like(own)) for name, own in twin.state_dict().items()})
    found = export_weights(twin, form_.names(c))
    if c.tied:
        del found["lm_head.weight"]
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}


def write(system: Any, draft: Path, precision: str) -> None:
    """Everything of the folder but its README."""
    run: Run = system.run
    c, text = run.model, system.tokenizer
    longest = system.model.context or max(2048, run.data.max_tokens)
    numbers = {"pad_token_id": text.pad, "bos_token_id": text.start, "eos_token_id": text.end}
    how = causal.generation_settings(run.decode)
    own = {"regard": {"decode": run.decode.model_dump(mode="json", exclude={"batch"}), "generation": how}}
    draft.mkdir()
    write_json(draft / "config.json", gpt_layout(c).config(c, longest) | numbers | {"dtype": "float32"} | own)
    never = [each for each in (text.pad, text.start) if each != text.end]
    write_json(draft / "generation_config.json", how | numbers | ({"suppress_tokens": never} if never else {}))
    (draft / "model.safetensors").write_bytes(save(tensors(system.model, c), {"format": "pt"}))
    backend = text.backend if isinstance(text, FolderTokenizer) else portable_tokenizer(text, ended=False)
    (draft / "tokenizer.json").write_text(backend.to_str(pretty=True) + "\n", encoding="utf-8")
    write_json(draft / "tokenizer_config.json", tokenizer_config(text, longest) | control_token_names(text))


def control_token_names(text: Any) -> dict[str, str]:
    """A borrowed vocabulary has names of its own for it."""
    if not isinstance(text, FolderTokenizer):
        return {}
    roles = {"pad_token": text.pad, "bos_token": text.start, "eos_token": text.end, "unk_token": text.unk}
    return {role: str(text.backend.id_to_token(number)) for role, number in roles.items()}


def usage(system: Any) -> str:
    """How it is used, for the README."""
    begins = "tokenizer.bos_token_id, " if system.run.decode.add_start else ""
    added = "The tokenizer adds neither START (`<s>`) nor END (`</s>`)."
    if isinstance(system.tokenizer, FolderTokenizer):
        added = "Here the tokenizer adds neither START (`tokenizer.bos_token`) nor END (`tokenizer.eos_token`)."
    return f"""
```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForCausalLM.from_pretrained(".")
ids = torch.tensor([[{begins}*tokenizer("a sentence", add_special_tokens=False).input_ids]])
made = model.generate(ids, attention_mask=torch.ones_like(ids))
print(tokenizer.decode(made[0], skip_special_tokens=True))
```

{added} A text that is read from its beginning has START before it,
which regard puts there unless `decode.add_start=false`; END is what the model says when a text is over.
"""
