"""A run of the family longformer as a Hugging Face folder, which gives the same numbers there.

transformers makes the first token global by itself only where it tells classes; elsewhere whoever uses the folder says
so, and its config.json tells our own reader.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ...families import longformer
from ...files import read_json, write_json
from ...parts import slots
from ...processors.tokenizers import TrainedTokenizer
from ..model_card import encoder_usage
from ..parity import quiet
from . import bert_export
from .bert_export import EncoderSample, around, labels, use_of_tokenizer
from .marian_export import portable_tokenizer
from .weight_names import export_weights

HEADS = ("lm_head.", "classifier.")


def unsupported(c: longformer.Config) -> list[str]:
    """What of a model transformers' Longformer cannot be, in words; nothing where it fits."""
    told = c.attention.globals
    found = {
        "model.prenorm=true (Longformer's norms come last)": c.prenorm,
        "model.next_sentence=true (Longformer has no such head)": c.next_sentence,
        f"model.positions.kind={c.positions.kind} (expected learned)": not isinstance(c.positions, slots.Learned),
        f"model.attention.dilation={c.attention.dilation} (expected 1)": set(listed(c, c.attention.dilation)) != {1},
        f"model.attention.globals={told} (expected 0 or 1)": told > 1,
        "model.attention.globals=0 (expected 1, for classes)": not told and c.head == "class",
        f"model.feed.kind={c.feed.kind} (expected plain)": not isinstance(c.feed, slots.Feed),
        f"model.feed.act={c.feed.act} (expected gelu, for words)": c.head == "words" and c.feed.act != "gelu",
        f"model.norm.kind={c.norm.kind} (expected layer)": not isinstance(c.norm, slots.LayerNorm),
    }
    return [words for words, misfit in found.items() if misfit]


def listed(c: longformer.Config, value: int | tuple[int, ...]) -> list[int]:
    return [value] * c.layers if isinstance(value, int) else list(value)


def architecture(c: longformer.Config) -> str:
    return {head: name for name, head in longformer.ARCHITECTURES.items()}[c.head]


def write(system: Any, draft: Path, precision: str) -> None:
    """Everything of the folder but its README."""
    c: longformer.Config = system.run.model
    draft.mkdir()
    write_json(draft / "config.json", config(c, system.tokenizer, system))
    (draft / "model.safetensors").write_bytes(save(tensors(system.model, c, system.tokenizer), {"format": "pt"}))
    backend = portable_tokenizer(system.tokenizer)
    backend.post_processor = around(system.tokenizer)
    (draft / "tokenizer.json").write_text(backend.to_str(pretty=True) + "\n", encoding="utf-8")
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    write_json(draft / "tokenizer_config.json", use_of_tokenizer(c, system.tokenizer) | inputs)


def config(c: longformer.Config, text: TrainedTokenizer, system: Any) -> dict[str, Any]:
    assert isinstance(c.positions, slots.Learned)
    return bert_export.config(c, text, labels(system)) | {
        "architectures": [architecture(c)],
        "model_type": "longformer",
        "attention_window": [2 * radius for radius in listed(c, c.attention.radius)],
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": c.positions.tokens + text.pad + 1,
        "bos_token_id": text.start,
        "eos_token_id": text.end,
        "sep_token_id": text.end,
        "regard": {"globals": c.attention.globals},
    }


def tensors(model: Any, c: longformer.Config, text: TrainedTokenizer) -> dict[str, Tensor]:
    """The weights under the names that `save_pretrained` would write."""
    found = export_weights(model, longformer.names(c, text.pad + 1))
    if c.tied:
        found.pop("lm_head.decoder.weight", None)
    for name in [name for name in found if ".attention.self." in name and "_global." not in name]:
        wide = name.replace(".weight", "_global.weight").replace(".bias", "_global.bias")
        found.setdefault(wide, found[name])  # where no position is global, nothing asks these
    inner = "" if c.head == "none" else "longformer."
    return {
        name if name.startswith(HEADS) else inner + name: tensor.detach().clone().contiguous()
        for name, tensor in found.items()
        if not (name.startswith("pooler.") and c.head != "none")
    }


def check(system: Any, draft: Path, precision: str) -> str:
    """The folder by our own reader, and by transformers where it is installed; what was found, in words."""
    from .long_encoders import read

    sample, folder = EncoderSample(system), read(draft, read_json(draft / "config.json"))
    sample.compare_tokens("the folder", folder.tokenizer.encode(sample.texts))
    apart, who = sample.compare("the folder", sample.outputs(folder.model)), ["regard"]
    if find_spec("transformers") is not None:
        import transformers as hf

        wide = torch.zeros_like(sample.tokens)
        wide[:, : system.run.model.attention.globals] = 1
        name = architecture(system.run.model)
        with quiet(hf):
            found = bert_export.theirs(sample, draft, hf, name, global_attention_mask=wide)
            apart = max(apart, sample.compare("transformers", found))
        who.append(f"transformers {hf.__version__}")
    return f"{len(sample.texts)} texts with {' and '.join(who)}: tokens equal, outputs apart by {apart:.1g}"


def usage(system: Any) -> str:
    """What the README says: the first token is made global, as it was in training."""
    before = (
        'wide = 0 * batch["input_ids"]\n'
        f"wide[:, :{system.run.model.attention.globals}] = 1  # tokens that see all and are seen by all\n"
    )
    return encoder_usage(architecture(system.run.model), before, ", global_attention_mask=wide")
