"""Folders of VisionEncoderDecoderModel with ViT and GPT-2: the tables of config.json and weight names.

config.json holds that of a ViT and that of a GPT-2 with cross-attention, which have the tables of those two formats.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...families import captioner
from ...files import JsonMapping, JsonObject, write_json
from ...modalities.image import MAX_TOKENS
from ...processors.image.processor import ImageProcessor
from ...processors.text.external import FolderTokenizer
from . import causal, gpt2, images, vit
from .config_table import ConfigTable, Joint, Limit, json_text, one_class, present
from .control_ids import check_control_ids, check_vocabulary
from .files import PROCESSOR
from .format import Export, Folder, HuggingFaceFormat, TensorSample, WeightTable
from .generation import (
    Generation,
    decode_entry,
    decode_from_generation,
    generation_config,
    read_generation_config,
    saved_decode,
    seq2seq_ids,
)
from .weight_names import WeightRule, add_prefixes, transposed

if TYPE_CHECKING:
    from ...tasks.caption.task import CaptionPredictor

ARCHITECTURE, CAPTIONER = "VisionEncoderDecoderModel", "vision-encoder-decoder"
MAX_LENGTH = 21  # of a caption with START, in a folder without generation settings, as in transformers

# --- config.json -----------------------------------------------------------------------------------------------------

ENCODER = ConfigTable(
    [*(row for row in vit.CONFIG.rows if not isinstance(row, Joint)), vit.PARTIAL_PATCHES]
)  # without a head
ABSENT = {"head_dropout", "biased", "add_cross_attention"}  # settings of GPT-2 that the decoder does not have
DECODER = ConfigTable(
    [
        row
        for row in gpt2.CONFIG.rows
        if not isinstance(row, Limit) and not {getattr(row, "ours", ""), getattr(row, "theirs", "")} & ABSENT
    ]
)


def read_stacks(theirs: JsonMapping) -> JsonObject:
    """The settings of encoder and decoder; ValueError names what regard cannot represent."""
    parts = {stack: present(theirs, stack) for stack in ("encoder", "decoder")}
    for stack, expected in (("encoder", "vit"), ("decoder", "gpt2")):
        if (actual := parts[stack].get("model_type")) != expected:
            raise ValueError(f"{stack}.model_type is {json_text(actual)}; regard reads this type with {expected!r}")
    if (width := parts["decoder"].get("cross_attention_hidden_size")) is not None:
        raise ValueError(f"cross_attention_hidden_size is {width}; regard reads folders without it")
    return {"encoder": ENCODER.read(parts["encoder"]), **DECODER.read(parts["decoder"])}


def write_stacks(c: captioner.Config) -> JsonObject:
    """The keys of encoder and decoder."""
    return {
        "encoder": {"model_type": "vit", **ENCODER.write(c.encoder)},
        "decoder": {"model_type": "gpt2", "is_decoder": True, "add_cross_attention": True, **DECODER.write(c)},
    }


def refuse_stacks(c: captioner.Config) -> list[str]:
    """What encoder and decoder of the format cannot represent."""
    encoder = [refusal.replace("model.", "model.encoder.", 1) for refusal in ENCODER.unsupported(c.encoder)]
    return encoder + DECODER.unsupported(c)


CONFIG = ConfigTable(
    (
        one_class(ARCHITECTURE, required=False),
        Joint(read_stacks, write_stacks),
        Limit(refuse_stacks),
        Joint(lambda theirs: {}, lambda c: {"is_encoder_decoder": True, "tie_word_embeddings": False}),
    )
)  # tie_word_embeddings is that of encoder and decoder; the decoder has its own setting

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


def limits(generation: JsonMapping) -> JsonObject:
    """The strategy and limits of a folder, as decode settings."""
    return decode_from_generation({**generation, "max_length": generation.get("max_length") or MAX_LENGTH})


UNUSED_RULES = ("stop_strings", "encoder_no_repeat_ngram_size")  # of models that read tokens
GENERATION = Generation("caption", limits, saved_decode, UNUSED_RULES)


@dataclass(frozen=True)
class CaptionFolder(Folder):
    """The contents of a folder."""

    image: ImageProcessor
    tokenizer: FolderTokenizer  # START is the token that begins every decoding
    generation: JsonObject  # generation_config.json over config.json


class CaptionProcessors:
    """An image processor and the tokenizer of the captions."""

    def read(self, folder: Folder) -> CaptionFolder:
        """The folder with its processors and generation settings."""
        path, c = folder.path, folder.config
        settings = {key: value for key, value in folder.theirs.items() if value is not None}
        generation = read_generation_config(
            path, {**folder.theirs["decoder"], **settings}
        )  # as transformers merges them
        check_control_ids(path, settings, c.vocab)
        text = causal.tokenizer(path, generation)
        check_vocabulary(path, text.backend.get_vocab().values(), c.vocab)
        start = generation.get("decoder_start_token_id", generation.get("bos_token_id"))
        start = text.start if start is None else start
        text = FolderTokenizer(text.backend, text.pad, start, text.end, text.unk)
        image = images.read_image(path, vit.default_image(c.encoder.vit()), images.VIT)
        return CaptionFolder(**vars(folder), image=image, tokenizer=text, generation=generation)

    def load(self, folder: CaptionFolder, overrides: JsonMapping) -> "CaptionPredictor":
        """The predictor of a folder."""
        from ...device import resolve_device
        from ...tasks.caption.task import CaptionPredictor

        target = folder.tokenizer
        run, filters = GENERATION.run(folder, folder.generation, target, overrides)
        return CaptionPredictor(run, folder.model, folder.image, target, resolve_device(run.device), filters)

    def write(self, predictor: "CaptionPredictor", draft: Path) -> JsonObject:
        """Write the processors; return the control tokens and the decode settings of the run."""
        write_json(draft / PROCESSOR, images.write_image_settings(predictor.image))
        causal.write_folder_tokenizer(predictor.target, draft, longest(predictor))
        return seq2seq_ids(predictor.target) | decode_entry(predictor.run)


def longest(predictor: "CaptionPredictor") -> int:
    """The longest caption in tokens, with START."""
    return min(MAX_TOKENS + 1, predictor.context or MAX_TOKENS + 1)


def written_generation(predictor: "CaptionPredictor") -> JsonObject:
    """generation_config.json of a run."""
    target = predictor.target
    suppressed = [token for token in predictor.suppressed if token != target.end]
    return generation_config(predictor.run, target, longest(predictor), suppressed)


def sample(predictor: "CaptionPredictor") -> TensorSample:
    """Images of noise with random captions."""
    model: Any = predictor.module
    source, target = model.random_inputs(2)

    def their_outputs(model: Any) -> Tensor:
        logits: Tensor = model(pixel_values=source.values, decoder_input_ids=target.values).logits
        return logits

    return TensorSample(model, lambda model: model(source, target), their_outputs)


USAGE = f"""
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
FORMAT: "HuggingFaceFormat[CaptionPredictor, CaptionFolder]" = HuggingFaceFormat(
    "a VisionEncoderDecoder folder",
    "captioner",
    {CAPTIONER: CONFIG},
    WeightTable(names, lambda c: UNUSED),
    CaptionProcessors(),
    Export(
        lambda c: "vision-encoder-decoder",
        sample,
        lambda predictor: USAGE,
        lambda c: "image-to-text",
        written_generation,
    ),
    size="base",
)
