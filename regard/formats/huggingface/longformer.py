"""Hugging Face Longformer folders: the tables of config.json and weight names.

transformers makes the first token global by itself only with a head for classes. For other heads the caller passes
`global_attention_mask`, and our own reader takes the number from config.json.
"""

from pathlib import Path

import torch

from ...families import longformer
from ...files import JsonMapping, JsonObject
from ..model_card import encoder_usage
from . import encoders
from .config_table import ConfigTable, Fixed, Joint, Limit, present, read_class
from .format import Export, HuggingFaceFormat, Tensors, WeightTable
from .vocabularies import load_byte_bpe
from .weight_names import Names, add_prefixes

ARCHITECTURES = {
    "LongformerModel": "none",
    "LongformerForMaskedLM": "words",
    "LongformerForSequenceClassification": "class",
    "LongformerForTokenClassification": "tag",
}


def per_layer(c: longformer.Config, value: int | tuple[int, ...]) -> list[int]:
    """A value for every layer."""
    return [value] * c.layers if isinstance(value, int) else list(value)


def read_window(theirs: JsonMapping) -> JsonObject:
    """`attention_window` is twice the radius. As in transformers, the head class makes the first token global by
    itself; only for other heads a folder that regard exported names the number (`regard.globals`)."""
    window = present(theirs, "attention_window", 512)
    windows = [window] if isinstance(window, int) else window
    if any(size < 2 or size % 2 for size in windows):
        raise ValueError(f"attention_window is {window}; expected even numbers, twice the radius")
    radii = tuple(size // 2 for size in windows)
    ours: JsonObject = {"attention.radius": radii[0] if len(set(radii)) == 1 else radii}
    entry = theirs.get("regard")
    saved = entry.get("globals", 0) if isinstance(entry, dict) else 0
    ours["attention.globals"] = 1 if read_class(theirs, ARCHITECTURES) == "class" else saved
    return ours


def write_window(c: longformer.Config) -> JsonObject:
    """Their keys of the attention window."""
    return {
        "attention_window": [2 * radius for radius in per_layer(c, c.attention.radius)],
        "attention_probs_dropout_prob": 0.0,  # a window has none, and import ignores the key
        "regard": {"globals": c.attention.globals},
    }


def refuse_globals(c: longformer.Config) -> str | None:
    """Why global positions have no place in this format."""
    count = c.attention.globals
    if count > 1:
        return f"model.attention.globals={count} (expected 0 or 1)"
    return "model.attention.globals=0 (expected 1 with model.head=class)" if not count and c.head == "class" else None


def refuse_dilation(c: longformer.Config) -> str | None:
    """Why dilation has no place in this format."""
    dilation = c.attention.dilation
    return None if set(per_layer(c, dilation)) == {1} else f"model.attention.dilation={dilation} (expected 1)"


CONFIG = ConfigTable(
    (
        *encoders.encoder_rows(ARCHITECTURES),
        Joint(read_window, write_window),
        Fixed("next_sentence", False, "expected false: Longformer has no such head"),
        Fixed("attention.kind", "window"),
        Fixed("attention.named", True),  # their layers always have the projections of global tokens
        Limit(refuse_dilation),
        Limit(refuse_globals),
        *encoders.GELU_HEAD,
        encoders.POSITIONS_BEHIND_PAD,
    )
)


def names(c: longformer.Config) -> Names:
    """Our names to theirs without `longformer.`."""
    suffixes = {"near": "", "wide": "_global"}
    attention = {
        f"{ours}.{part}": f"{part}{suffix}" for ours, suffix in suffixes.items() for part in ("query", "key", "value")
    }
    maps = add_prefixes("encoder.layers.*.attention", "encoder.layer.*.attention.self", attention)
    return {**encoders.roberta_names(c), **maps}


def write_weights(tensors: Tensors, predictor: encoders.EncoderSource) -> Tensors:
    """The tensors with unused rows before the positions, and without those that the class does not have."""
    c: longformer.Config = predictor.run.model
    tensors = {name: tensor for name, tensor in tensors.items() if c.head == "none" or not name.startswith("pooler.")}
    table = tensors[encoders.TABLE]
    tensors[encoders.TABLE] = torch.cat([table.new_zeros(predictor.tokenizer.pad + 1, c.width), table])
    for name in [name for name in tensors if ".attention.self." in name and "_global." not in name]:
        wide = name.replace(".weight", "_global.weight").replace(".bias", "_global.bias")
        tensors.setdefault(wide, tensors[name])  # without global positions these are never used
    return encoders.write_body(tensors, c, "longformer.", "lm_head.decoder")


class LongformerProcessors(encoders.TextProcessors):
    """The processors of an encoder, whose positions begin behind the padding's number."""

    def write(self, predictor: encoders.EncoderSource, draft: Path) -> JsonObject:
        """Write the tokenizer; return its control tokens and the rows of the position table."""
        text = predictor.tokenizer
        ids = {"bos_token_id": text.start, "eos_token_id": text.end, "sep_token_id": text.end}
        rows = predictor.run.model.positions.tokens + text.pad + 1
        return super().write(predictor, draft) | ids | {"max_position_embeddings": rows}


def sample(predictor: encoders.EncoderSource) -> encoders.EncoderSample:
    """Texts with the same global tokens as in training."""
    texts = encoders.EncoderSample(predictor)
    wide = torch.zeros_like(texts.tokens)
    wide[:, : predictor.run.model.attention.globals] = 1
    texts.arguments = {"global_attention_mask": wide}
    return texts


def usage(predictor: encoders.EncoderSource) -> str:
    """The README's example: it makes the first token global, as in training."""
    c = predictor.run.model
    before = (
        'wide = 0 * batch["input_ids"]\n'
        f"wide[:, :{c.attention.globals}] = 1  # tokens that attend to all and are attended by all\n"
    )
    return encoder_usage(FORMAT.architecture(c), before, ", global_attention_mask=wide")


FORMAT: HuggingFaceFormat[encoders.EncoderSource, encoders.EncoderFolder] = HuggingFaceFormat(
    "a Longformer folder",
    "longformer",
    {"longformer": CONFIG},
    WeightTable(names, encoders.roberta_unused, encoders.read_body("longformer."), write_weights),
    LongformerProcessors(load_byte_bpe),
    Export(lambda c: "longformer", sample, usage, lambda c: encoders.TAGS.get(c.head, "feature-extraction")),
    encoders.head_settings(ARCHITECTURES),
)
