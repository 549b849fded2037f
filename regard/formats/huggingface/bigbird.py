"""Hugging Face BigBird folders: the tables of config.json and weight names, and their reader.

An imported model equals theirs outside training, where transformers draws no random blocks.
"""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ...families import bigbird
from ...files import JsonMapping, JsonObject
from ...parts import slots
from . import bert
from .bert import EncoderFolder, encoder_folder, encoder_rows, head_settings, predictor_of, read_head
from .config_table import ConfigTable, Field, Joint, Limit, Only, present
from .folder import parse_config, read_weights
from .vocabularies import load_bigbird_unigram
from .weight_names import WeightRule, load_weights

if TYPE_CHECKING:
    from ...tasks.predictor import AnyPredictor

# --- config.json -----------------------------------------------------------------------------------------------------

ARCHITECTURES = {
    "BigBirdModel": "none",
    "BigBirdForMaskedLM": "words",
    "BigBirdForSequenceClassification": "class",
    "BigBirdForTokenClassification": "tag",
    "BigBirdForPreTraining": "words",
}


def architecture(c: bigbird.Config) -> str:
    """The class of transformers that has the head of this model."""
    if c.next_sentence and c.head == "words":
        return "BigBirdForPreTraining"
    return next(name for name, head in ARCHITECTURES.items() if head == c.head)


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
        Joint(lambda theirs: read_head(theirs, ARCHITECTURES), lambda c: {"architectures": [architecture(c)]}),
        *encoder_rows("gelu_new"),
        Joint(read_attention, write_attention),
        Limit(refuse_attention),
        Field("positions.tokens", "max_position_embeddings"),
    )
)


def from_huggingface(theirs: JsonMapping, tensors: Collection[str] = ()) -> bigbird.Config:
    """Our Config of a folder, by config.json and the names of its tensors without `bert.`; ValueError if refused."""
    ours = CONFIG.read(theirs)
    return bigbird.Config.model_validate(ours | head_settings(theirs, tensors, ours["head"], "pooler"))


# --- weights ---------------------------------------------------------------------------------------------------------


def names(c: bigbird.Config) -> dict[str, str | WeightRule]:
    """Our names to theirs without `bert.`."""
    head = (
        {"pooler": "classifier.dense", "classes": "classifier.out_proj"} if c.head == "class" else {"pooler": "pooler"}
    )
    return bert.names(c) | head


def unused(c: bigbird.Config) -> tuple[str, ...]:
    """Patterns of tensors that transformers ignores too. The head class has its own map of the first token."""
    return bert.unused(c) + ((r"pooler\..*",) if c.head == "class" else ())


# --- the folder ------------------------------------------------------------------------------------------------------


def load_predictor(path: Path, config: JsonMapping, overrides: JsonMapping) -> "AnyPredictor":
    """The predictor of the task that fits the folder's head."""
    return predictor_of(read(path, config), overrides)


def read(path: Path, config: JsonMapping) -> EncoderFolder:
    """Read a folder of this family."""
    tensors = {name.removeprefix("bert."): tensor for name, tensor in read_weights(path).items()}
    ours = parse_config(path, config, lambda theirs: from_huggingface(theirs, tensors))
    model = bigbird.Model(ours)
    load_weights(model, tensors, names(ours), unused(ours))
    return encoder_folder(path, config, ours, model, load_bigbird_unigram(path))
