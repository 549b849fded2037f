"""A run of the family gpt as a Hugging Face folder: GPT-2's if its settings fit, else Llama's, else Mistral's."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from safetensors.torch import save
from torch import Tensor

from ...config.run import Run
from ...families import gpt
from ...files import JsonObject, write_json
from ...parts import slots
from ...processors.text.external import FolderTokenizer
from ...processors.text.tokenizers import TrainedTokenizer
from . import causal, gpt2, llama
from .generation import GENERATION_FILE
from .tokenizer_export import portable_tokenizer, tokenizer_config
from .weight_names import Names, export_weights

if TYPE_CHECKING:
    from ...tasks.language.task import LanguagePredictor


def gpt2_unsupported(c: gpt.Config) -> list[str]:
    """Settings of a model that GPT-2 cannot have."""
    return gpt2.CONFIG.unsupported(c)


def llama_unsupported(c: gpt.Config) -> list[str]:
    """Settings of a model that Llama cannot have."""
    return llama.CONFIG.unsupported(c)


def mistral_unsupported(c: gpt.Config) -> list[str]:
    """Settings of a model that Mistral cannot have."""
    return llama.MISTRAL_CONFIG.unsupported(c)


def unsupported(c: gpt.Config) -> list[str]:
    """Settings that the nearest format cannot have; empty if the model fits one of them. Only Mistral has windows."""
    modern = mistral_unsupported(c) if isinstance(c.attention, slots.Window) else llama_unsupported(c)
    return min(gpt2_unsupported(c), modern, key=len)


def gpt2_config(c: gpt.Config) -> JsonObject:
    """The config.json of a GPT-2."""
    return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"} | gpt2.CONFIG.write(c)


def llama_config(c: gpt.Config) -> JsonObject:
    """The config.json of a Llama."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | llama.CONFIG.write(c)


def mistral_config(c: gpt.Config) -> JsonObject:
    """The config.json of a Mistral."""
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral"} | llama.MISTRAL_CONFIG.write(c)


class GptLayout(NamedTuple):
    """The writers of one of the three formats."""

    config: Callable[[gpt.Config], JsonObject]
    names: Callable[[gpt.Config], Names]
    biased: bool  # True: write every bias, zeros where the model has none


def gpt_layout(c: gpt.Config) -> GptLayout:
    """The format that fits a model: GPT-2, Llama or Mistral."""
    if not gpt2_unsupported(c):
        return GptLayout(gpt2_config, gpt2.names, True)
    config = mistral_config if isinstance(c.attention, slots.Window) else llama_config
    return GptLayout(config, llama.names, c.biased)


def tensors(model: gpt.Model, c: gpt.Config) -> dict[str, Tensor]:
    """The weights under the names that `save_pretrained` would write."""
    layout = gpt_layout(c)
    twin = gpt.Model(c.model_copy(update={"biased": layout.biased}))
    state = model.state_dict()
    twin.load_state_dict(
        {name: state.get(name, torch.zeros_like(tensor)) for name, tensor in twin.state_dict().items()}
    )
    theirs = export_weights(twin, layout.names(c))
    if c.tied:
        del theirs["lm_head.weight"]
    return {name: tensor.detach().clone().contiguous() for name, tensor in theirs.items()}


def write(predictor: "LanguagePredictor", draft: Path, precision: str) -> None:
    """Write every file of the folder except README.md."""
    run: Run = predictor.run
    c, tokenizer, model = run.model, predictor.tokenizer, cast(gpt.Model, predictor.model)
    context = model.context
    max_length = context or max(2048, run.data.max_tokens)
    positions = {} if context else {"max_position_embeddings": max_length}  # a table of positions has its own number
    ids = {"pad_token_id": tokenizer.pad, "bos_token_id": tokenizer.start, "eos_token_id": tokenizer.end}
    draft.mkdir()
    entry = {"dtype": "float32"} | causal.decode_entry(run.decode)
    write_json(draft / "config.json", gpt_layout(c).config(c) | positions | ids | entry)
    ends = {"eos_token_id": list(ids_of_end)} if (ids_of_end := run.decode.rules.eos_token_id) else {}
    write_json(draft / GENERATION_FILE, causal.generation_settings(run.decode, predictor.suppressed) | ids | ends)
    (draft / "model.safetensors").write_bytes(save(tensors(model, c), {"format": "pt"}))
    if isinstance(tokenizer, FolderTokenizer):
        backend, names = tokenizer.backend, control_token_names(tokenizer)
    else:
        backend, names = portable_tokenizer(cast(TrainedTokenizer, tokenizer), add_end=False), {}
    (draft / "tokenizer.json").write_text(backend.to_str(pretty=True) + "\n", encoding="utf-8")
    write_json(draft / "tokenizer_config.json", tokenizer_config(tokenizer, max_length) | names)


def control_token_names(tokenizer: FolderTokenizer) -> dict[str, str]:
    """The names that an imported vocabulary has for control tokens."""
    roles = {
        "pad_token": tokenizer.pad,
        "bos_token": tokenizer.start,
        "eos_token": tokenizer.end,
        "unk_token": tokenizer.unk,
    }
    return {role: str(tokenizer.backend.id_to_token(token)) for role, token in roles.items()}


def usage(predictor: "LanguagePredictor") -> str:
    """The usage example of README.md."""
    start = "tokenizer.bos_token_id, " if predictor.run.decode.add_start else ""
    control = "The tokenizer adds neither START (`<s>`) nor END (`</s>`)."
    if isinstance(predictor.tokenizer, FolderTokenizer):
        control = "Here the tokenizer adds neither START (`tokenizer.bos_token`) nor END (`tokenizer.eos_token`)."
    return f"""
```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForCausalLM.from_pretrained(".")
ids = torch.tensor([[{start}*tokenizer("a sentence", add_special_tokens=False).input_ids]])
output = model.generate(ids, attention_mask=torch.ones_like(ids))
print(tokenizer.decode(output[0], skip_special_tokens=True))
```

{control} START precedes a text that is read from its beginning;
regard adds it unless `decode.add_start=false`. The model predicts END where a text is over.
"""
