"""Hugging Face BigBird folders: the tables of config.json and weight names. They are only read.

An imported model equals theirs outside training, where transformers draws no random blocks.
"""

from ...families import bigbird
from ...files import JsonMapping, JsonObject
from ...parts import slots
from . import bert
from .config_table import ConfigTable, Joint, Limit, Only, present
from .encoders import CLASS_HEAD, EncoderFolder, EncoderSource, TextProcessors, encoder_rows, head_settings
from .format import HuggingFaceFormat, WeightTable
from .vocabularies import load_bigbird_unigram
from .weight_names import Names

ARCHITECTURES = {
    "BigBirdModel": "none",
    "BigBirdForMaskedLM": "words",
    "BigBirdForSequenceClassification": "class",
    "BigBirdForTokenClassification": "tag",
    "BigBirdForPreTraining": "words",
}


def read_attention(theirs: JsonMapping) -> JsonObject:
    """The attention slot from their keys."""
    attention = present(theirs, "attention_type", "block_sparse")
    if attention == "original_full":
        return {"attention.kind": "dense"}
    if attention != "block_sparse":
        raise ValueError(f"attention_type is {attention!r}; expected 'block_sparse' or 'original_full'")
    return {
        "attention.kind": "blocks",
        "attention.size": present(theirs, "block_size", 64),
        "attention.random": present(theirs, "num_random_blocks", 3),
        "attention.drawn": False,
    }


def write_attention(c: bigbird.Config) -> JsonObject:
    """Their keys from the attention slot."""
    if isinstance(c.attention, slots.Dense):
        return {"attention_type": "original_full"}
    return {
        "attention_type": "block_sparse",
        "block_size": c.attention.size,
        "num_random_blocks": c.attention.random,
    }


def refuse_attention(c: bigbird.Config) -> str | None:
    """Why an attention slot has no place in this format; empty if it has."""
    if isinstance(c.attention, slots.Blocks):
        fixed = "expected false: transformers draws blocks only in training"
        return f"model.attention.drawn=true ({fixed})" if c.attention.drawn else None
    return None if c.attention.scaled else "model.attention.scaled=false (expected true: BigBird scales its scores)"


CONFIG = ConfigTable(
    (
        Only("is_decoder", False, "regard's BigBird is an encoder", written=False),
        Only("add_cross_attention", False, "regard's BigBird is an encoder", written=False),
        Only("rescale_embeddings", False, "expected false", written=False),
        Only("use_bias", True, "expected true"),
        *encoder_rows(ARCHITECTURES, "gelu_new", {"words": "BigBirdForPreTraining"}),
        Joint(read_attention, write_attention),
        Limit(refuse_attention),
        bert.POSITIONS,
    )
)


def names(c: bigbird.Config) -> Names:
    """Our names to theirs without `bert.`. The head class has its own map of the first token."""
    return {**bert.names(c), **(CLASS_HEAD if c.head == "class" else {"pooler": "pooler"})}


def unused(c: bigbird.Config) -> tuple[str, ...]:
    """Patterns of tensors that transformers ignores too."""
    return bert.unused(c) + ((r"pooler\..*",) if c.head == "class" else ())


FORMAT: HuggingFaceFormat[EncoderSource, EncoderFolder] = HuggingFaceFormat(
    "a BigBird folder",
    "bigbird",
    {"big_bird": CONFIG},
    WeightTable(names, unused, lambda tensors, theirs: {name.removeprefix("bert."): tensors[name] for name in tensors}),
    TextProcessors(load_bigbird_unigram),
    complete=head_settings(ARCHITECTURES, "pooler"),
)
