"""Folders of VisionEncoderDecoderModel with ViT and GPT-2: config.json, weight names; reader and writer.

config.json holds that of a ViT and that of a GPT-2 with cross-attention, which have the tables of those two formats.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import save

from ...config.run import AnyRun, Run, change_settings
from ...families import captioner
from ...files import JsonMapping, JsonObject, read_json, read_optional_json, write_json
from ...modalities.image import MAX_TOKENS
from ...processors.image.processor import ImageProcessor
from ...processors.text.external import FolderTokenizer
from ...processors.text.tokenizers import TrainedTokenizer
from ..parity import check_close, quiet
from . import causal, gpt2, vit
from .config_table import ConfigTable, Joint, Limit, json_text, present
from .control_ids import check_control_ids, check_vocabulary
from .folder import parse_config, read_weights
from .generation import (
    GENERATION_FILE,
    decode_entry,
    decode_from_generation,
    ends_from_generation,
    generation_config,
    read_generation_config,
    rules_from_generation,
    saved_decode,
    split_suppressed,
    warn_of_unused,
)
from .gpt2_export import control_token_names
from .image_settings import PROCESSOR, write_image_settings
from .tokenizer_export import portable_tokenizer, tokenizer_config
from .weight_names import WeightRule, add_prefixes, export_weights, load_weights, transposed

if TYPE_CHECKING:
    from ...tasks.caption.settings import CaptionRun
    from ...tasks.caption.task import CaptionPredictor

ARCHITECTURE = "VisionEncoderDecoderModel"
MAX_LENGTH = 21  # of a caption with START, in a folder without generation settings, as in transformers

# --- config.json -----------------------------------------------------------------------------------------------------

ENCODER = ConfigTable([row for row in vit.CONFIG.rows if not isinstance(row, Joint)])  # without a head
ABSENT = {"head_dropout", "biased", "add_cross_attention"}  # settings of GPT-2 that the decoder does not have
DECODER = ConfigTable(
    [
        row
        for row in gpt2.CONFIG.rows
        if not isinstance(row, Limit) and not {getattr(row, "ours", ""), getattr(row, "theirs", "")} & ABSENT
    ]
)


def from_huggingface(theirs: JsonMapping) -> captioner.Config:
    """Their config.json as our Config; ValueError names what regard cannot represent."""
    parts = {stack: present(theirs, stack) for stack in ("encoder", "decoder")}
    for stack, expected in (("encoder", "vit"), ("decoder", "gpt2")):
        if (actual := parts[stack].get("model_type")) != expected:
            raise ValueError(f"{stack}.model_type is {json_text(actual)}; regard reads this type with {expected!r}")
    if (width := parts["decoder"].get("cross_attention_hidden_size")) is not None:
        raise ValueError(f"cross_attention_hidden_size is {width}; regard reads folders without it")
    settings = {"size": "base", "encoder": ENCODER.read(parts["encoder"]), **DECODER.read(parts["decoder"])}
    return captioner.Config.model_validate(settings)


def unsupported(c: captioner.Config) -> list[str]:
    """Settings that the format cannot represent."""
    encoder = [refusal.replace("model.", "model.encoder.", 1) for refusal in ENCODER.unsupported(c.encoder)]
    return encoder + DECODER.unsupported(c)


def to_huggingface(c: captioner.Config) -> JsonObject:
    """config.json without the ids of control tokens."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "vision-encoder-decoder",
        "is_encoder_decoder": True,
        "tie_word_embeddings": False,  # of encoder and decoder; the decoder has its own setting
        "encoder": {"model_type": "vit", **ENCODER.write(c.encoder)},
        "decoder": {"model_type": "gpt2", "is_decoder": True, "add_cross_attention": True, **DECODER.write(c)},
        "dtype": "float32",
    }


# --- weights ---------------------------------------------------------------------------------------------------------

CROSS: dict[str, str | WeightRule] = {
    "cross.query": transposed("crossattention.q_attn"),
    "cross.key": transposed("crossattention.c_attn", 0, 2),
    "cross.value": transposed("crossattention.c_attn", 1, 2),
    "cross.out": transposed("crossattention.c_proj"),
    "cross_residual.norm": "ln_cross_attn",
}
UNUSED = (r"encoder\.pooler\..*", r"decoder\.transformer\.h\.\d+\.(attn|crossattention)\.(masked_)?bias")


def names(c: captioner.Config) -> dict[str, str | WeightRule]:
    """Our weight names to theirs."""
    table, head = "decoder.transformer.wte.weight", "decoder.lm_head.weight"
    return (
        add_prefixes("encoder", "encoder", vit.names(c.encoder.vit()))
        | add_prefixes("decoder.layers.*", "decoder.transformer.h.*", gpt2.LAYER | CROSS)
        | {
            "project": "enc_to_dec_proj",
            "decoder.positions.table": "decoder.transformer.wpe",
            "decoder.norm": "decoder.transformer.ln_f",
            "target.weight": table,
            "head.weight": WeightRule((table, head)) if c.tied else head,
        }
    )


# --- folder ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaptionFolder:
    """The contents of a folder."""

    config: captioner.Config
    model: captioner.Model
    image: ImageProcessor
    tokenizer: FolderTokenizer  # START is the token that begins every decoding
    generation: JsonObject  # generation_config.json over config.json


def read(path: Path, config: JsonMapping) -> CaptionFolder:
    """The contents of a folder whose config.json is `config`."""
    ours = parse_config(path, config, from_huggingface)
    model = load_weights(captioner.Model(ours), read_weights(path), names(ours), UNUSED)
    about = read_optional_json(path / PROCESSOR)
    image = parse_config(path, about, lambda theirs: vit.read_processor(theirs, ours.encoder.vit()), PROCESSOR)
    settings = {key: value for key, value in config.items() if value is not None}
    generation = read_generation_config(path, {**config["decoder"], **settings})  # as transformers merges them
    check_control_ids(path, settings, ours.vocab)
    tokenizer = causal.tokenizer(path, generation)
    check_vocabulary(path, tokenizer.backend.get_vocab().values(), ours.vocab)
    start = generation.get("decoder_start_token_id", generation.get("bos_token_id"))
    start = tokenizer.start if start is None else start
    return CaptionFolder(
        ours,
        model,
        image,
        FolderTokenizer(tokenizer.backend, tokenizer.pad, start, tokenizer.end, tokenizer.unk),
        generation,
    )


def load_predictor(path: Path, config: JsonMapping, overrides: JsonMapping) -> "CaptionPredictor":
    """The predictor of a folder."""
    from ...device import resolve_device
    from ...tasks.caption.task import CaptionPredictor

    folder, vocab = read(path, config), config["decoder"]["vocab_size"]
    target = folder.tokenizer
    warn_of_unused(path, folder.generation, ("stop_strings", "encoder_no_repeat_ngram_size"))
    generation, filters = split_suppressed(config, folder.generation, {target.pad, target.start} - {target.end})

    def to_run(generation: JsonMapping) -> AnyRun:
        limit = {} if generation.get("max_length") else {"max_length": MAX_LENGTH}
        rules = rules_from_generation(generation) | ends_from_generation(generation, target.end, vocab)
        rules.pop("encoder_no_repeat_ngram_size", None)  # of models that read tokens
        decode = {**decode_from_generation(limit | dict(generation)), "rules": rules}
        return Run(task="caption", model=folder.config, decode=decode | saved_decode(config, generation))

    run: CaptionRun = change_settings(parse_config(path, generation, to_run, GENERATION_FILE), overrides)
    return CaptionPredictor(run, folder.model, folder.image, target, resolve_device(run.device), filters)


def write(predictor: "CaptionPredictor", draft: Path, precision: str) -> None:
    """Write everything in the folder except its README."""
    run: Run = predictor.run
    c, target = run.model, predictor.target
    suppressed = [token for token in predictor.suppressed if token != target.end]
    longest = min(MAX_TOKENS + 1, predictor.context or MAX_TOKENS + 1)
    generation = generation_config(run, target, longest, suppressed)
    roles = ("pad_token_id", "bos_token_id", "decoder_start_token_id")
    ids = {key: generation[key] for key in roles} | {"eos_token_id": target.end}
    draft.mkdir()
    write_json(draft / "config.json", to_huggingface(c) | ids | decode_entry(run))
    write_json(draft / GENERATION_FILE, generation)
    theirs = export_weights(predictor.module, names(c))
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in theirs.items()}
    (draft / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
    write_json(draft / PROCESSOR, write_image_settings(predictor.image))
    if isinstance(target, FolderTokenizer):
        backend, control = target.backend, control_token_names(target)
    else:
        backend, control = portable_tokenizer(cast(TrainedTokenizer, target)), {}
    (draft / "tokenizer.json").write_text(backend.to_str(pretty=True) + "\n", encoding="utf-8")
    write_json(draft / "tokenizer_config.json", tokenizer_config(target, longest) | control)


def check(predictor: "CaptionPredictor", draft: Path, precision: str) -> str:
    """Compare the folder, as transformers and regard read it, with the run on images of noise."""
    model: Any = predictor.module.float().cpu()
    source, target = model.random_inputs(2)
    with torch.no_grad():
        expected = model(source, target)
        folder_logits = read(draft, read_json(draft / "config.json")).model(source, target)
        check_close("logits of the folder as regard reads it", folder_logits, expected)
        if find_spec("transformers") is None:
            return "equal when read again; not compared with transformers, which is not installed"
        hf: Any = import_module("transformers")
        with quiet(hf):
            theirs = getattr(hf, ARCHITECTURE).from_pretrained(draft).eval()
            logits = theirs(pixel_values=source.values, decoder_input_ids=target.values).logits
        difference = check_close("logits of transformers", logits, expected)
    return f"equal when read again; transformers differs by {difference:.1g} of the largest logit"


def usage(predictor: "CaptionPredictor") -> str:
    """The usage example of the model card."""
    return f"""
```python
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, {ARCHITECTURE}

folder = "."
model = {ARCHITECTURE}.from_pretrained(folder).eval()
pixels = AutoImageProcessor.from_pretrained(folder)(Image.open("image.png").convert("RGB"), return_tensors="pt")
tokens = model.generate(**pixels)
print(AutoTokenizer.from_pretrained(folder).decode(tokens[0], skip_special_tokens=True))
```

transformers may report a new `encoder.pooler`: captions do not depend on it.
"""
