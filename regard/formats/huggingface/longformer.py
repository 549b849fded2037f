"""Hugging Face Longformer folders: the tables of config.json and weight names, and their reader."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ...families import longformer
from ...files import JsonMapping, JsonObject
from . import bert
from .bert import EncoderFolder, encoder_folder, encoder_rows, head_settings, predictor_of, read_head
from .config_table import ConfigTable, Field, Fixed, Joint, Limit, present
from .folder import parse_config, read_weights
from .vocabularies import load_byte_bpe
from .weight_names import WeightRule, add_prefixes, any_of, load_weights, skip_rows

if TYPE_CHECKING:
    from ...tasks.predictor import AnyPredictor

# --- config.json -----------------------------------------------------------------------------------------------------

ARCHITECTURES = {
    "LongformerModel": "none",
    "LongformerForMaskedLM": "words",
    "LongformerForSequenceClassification": "class",
    "LongformerForTokenClassification": "tag",
}


def architecture(c: longformer.Config) -> str:
    """The class of transformers that has the head of this model."""
    return {head: name for name, head in ARCHITECTURES.items()}[c.head]


def per_layer(c: longformer.Config, value: int | tuple[int, ...]) -> list[int]:
    """A value for every layer."""
    return [value] * c.layers if isinstance(value, int) else list(value)


def read_head_and_window(theirs: JsonMapping) -> JsonObject:
    """`attention_window` is twice the radius. As in transformers, the head class makes the first token global by
    itself; only for other heads a folder that regard exported names the number (`regard.globals`)."""
    ours: JsonObject = read_head(theirs, ARCHITECTURES)
    if ours["head"] == "words" and (act := present(theirs, "hidden_act", "gelu")) != "gelu":
        raise ValueError(f"hidden_act is {act!r}; expected 'gelu', which the head always has")
    window = present(theirs, "attention_window", 512)
    windows = [window] if isinstance(window, int) else window
    if any(size < 2 or size % 2 for size in windows):
        raise ValueError(f"attention_window is {window}; expected even numbers, twice the radius")
    radii = tuple(size // 2 for size in windows)
    ours["attention.radius"] = radii[0] if len(set(radii)) == 1 else radii
    entry = theirs.get("regard")
    saved = entry.get("globals", 0) if isinstance(entry, dict) else 0
    ours["attention.globals"] = 1 if ours["head"] == "class" else saved
    return ours


def write_head_and_window(c: longformer.Config) -> JsonObject:
    """Their keys of the head and of the attention window."""
    return {
        "architectures": [architecture(c)],
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


def refuse_activation(c: longformer.Config) -> str | None:
    """Why an activation has no place in this format."""
    refused = c.head == "words" and c.feed.act != "gelu"
    return f"model.feed.act={c.feed.act} (expected gelu with model.head=words)" if refused else None


def config_table(first_position: int) -> ConfigTable:
    """`first_position` is the row of their position table that belongs to the first token."""
    return ConfigTable(
        (
            Joint(read_head_and_window, write_head_and_window),
            *encoder_rows(),
            Fixed("next_sentence", False, "expected false: Longformer has no such head"),
            Fixed("attention.kind", "window"),
            Fixed("attention.named", True),  # their layers always have the projections of global tokens
            Limit(refuse_dilation),
            Limit(refuse_globals),
            Limit(refuse_activation),
            Field(
                "positions.tokens",
                "max_position_embeddings",
                read=lambda rows: rows - first_position,
                write=lambda tokens: tokens + first_position,
            ),
        )
    )


def first_position(theirs: JsonMapping) -> int:
    """Positions are numbered from behind the padding's number, as in RoBERTa: the rows before are unused."""
    return int(theirs.get("pad_token_id", 1)) + 1


def from_huggingface(theirs: JsonMapping, tensors: Collection[str] = ()) -> longformer.Config:
    """Our Config of a folder, by config.json and its tensors' names without `longformer.`; ValueError if refused."""
    ours = config_table(first_position(theirs)).read(theirs)
    head = head_settings(theirs, tensors, ours["head"], "pooler.dense")
    return longformer.Config.model_validate(ours | head | {"next_sentence": False})


# --- weights ---------------------------------------------------------------------------------------------------------


def names(c: longformer.Config, first_position: int = 2) -> dict[str, str | WeightRule]:
    """Our names to theirs without `longformer.`."""
    suffixes = {"near": "", "wide": "_global"}
    attention: dict[str, str | WeightRule] = {
        f"{ours}.{part}": f"{part}{suffix}" for ours, suffix in suffixes.items() for part in ("query", "key", "value")
    }
    table = "embeddings.word_embeddings.weight"
    head: dict[str, str | WeightRule] = {
        "words.into": "lm_head.dense",
        "words.norm": "lm_head.layer_norm",
        "words.out.weight": any_of("lm_head.decoder.weight", *([table] if c.tied else [])),
        "words.out.bias": any_of(*(["lm_head.bias"] if c.tied else []), "lm_head.decoder.bias"),
        "encoder.positions.table.weight": skip_rows("embeddings.position_embeddings.weight", first_position),
    }
    if c.head == "class":
        head |= {"pooler": "classifier.dense", "classes": "classifier.out_proj"}
    return (
        bert.names(c) | add_prefixes("encoder.layers.*.attention", "encoder.layer.*.attention.self", attention) | head
    )


def unused(c: longformer.Config) -> tuple[str, ...]:
    """Patterns of tensors that transformers ignores too: position numbers, and heads that this model does not have."""
    heads = {"lm_head": c.head == "words", "classifier": bool(c.labels)}
    spare = [] if c.tied else [r"lm_head\.bias"]  # an untied decoder has its own
    spare += [r"pooler\..*"] if c.head == "class" else []  # that head has its own map of the first token
    return (r"embeddings\.position_ids", *spare, *(rf"{name}\..*" for name, has_head in heads.items() if not has_head))


# --- the folder ------------------------------------------------------------------------------------------------------


def load_predictor(path: Path, config: JsonMapping, overrides: JsonMapping) -> "AnyPredictor":
    """The predictor of the task that fits the folder's head."""
    return predictor_of(read(path, config), overrides)


def read(path: Path, config: JsonMapping) -> EncoderFolder:
    """Read a folder of this family."""
    tensors = {name.removeprefix("longformer."): tensor for name, tensor in read_weights(path).items()}
    ours = parse_config(path, config, lambda theirs: from_huggingface(theirs, tensors))
    model = longformer.Model(ours)
    load_weights(model, tensors, names(ours, first_position(config)), unused(ours))
    return encoder_folder(path, config, ours, model, load_byte_bpe(path))
