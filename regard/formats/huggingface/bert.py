"""Hugging Face BERT folders: the tables of config.json and weight names, and their reader.

Also the rows that BERT, Longformer and BigBird share.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UserError
from ...families import bert
from ...files import JsonMapping, JsonObject
from ...parts import slots
from ...parts.pooling import Pooling
from ...processors.text.tokenizers import TrainedTokenizer
from .config_table import ConfigTable, Field, Fixed, Joint, Only, Row, choice
from .control_ids import check_control_ids, check_vocabulary
from .folder import parse_config, read_weights
from .sentence_transformers import apply_sentence_settings, read_modules
from .vocabularies import load_wordpiece
from .weight_names import WeightRule, add_prefixes, any_of, load_weights

if TYPE_CHECKING:
    from ...tasks.predictor import AnyPredictor

# --- config.json -----------------------------------------------------------------------------------------------------

ACTIVATIONS = {
    "gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu",
    "quick_gelu": "quick_gelu",
}  # fmt: skip
ARCHITECTURES = {
    "BertModel": "none",
    "BertForMaskedLM": "words",
    "BertForSequenceClassification": "class",
    "BertForTokenClassification": "tag",
    "BertForNextSentencePrediction": "none",
    "BertForPreTraining": "words",
}  # to our heads; the tensors show if there is a pooler or a next-sentence head
NEXT_SENTENCE = {"none": "BertForNextSentencePrediction", "words": "BertForPreTraining"}  # by head
LABELED = ("class", "tag")  # heads with labels


def architecture(c: bert.EncoderConfig) -> str:
    """The class of transformers that has the head of this model."""
    if c.next_sentence and c.head in NEXT_SENTENCE:
        return NEXT_SENTENCE[c.head]
    return next(name for name, head in ARCHITECTURES.items() if head == c.head)


def read_head(theirs: JsonMapping, architectures: Mapping[str, str]) -> dict[str, str]:
    """Our head by their class; the first of `architectures` where config.json names none."""
    name = (theirs.get("architectures") or [next(iter(architectures))])[0]
    if name not in architectures:
        raise ValueError(f"architectures has {name!r}; expected one of {', '.join(architectures)}")
    return {"head": architectures[name]}


def is_regressor(c: bert.EncoderConfig) -> bool:
    """True if the head gives a number: as in transformers, a head for classes with one output."""
    return c.head == "class" and c.labels == 1


PROBLEM_TYPES = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


def read_problem_type(theirs: JsonMapping) -> JsonObject:
    """Settings from `problem_type`."""
    problem = theirs.get("problem_type")
    if problem is not None and problem not in PROBLEM_TYPES:
        raise ValueError(f"problem_type is {problem!r}; expected one of {', '.join(PROBLEM_TYPES)}")
    if problem == "regression" and (count := len(label_names(theirs))) > 1:
        raise ValueError(f"problem_type is 'regression' with {count} labels; regard reads regressors of one number")
    return {}


def write_problem_type(c: bert.EncoderConfig) -> JsonObject:
    """`problem_type` from the settings."""
    return {"problem_type": "regression"} if is_regressor(c) else {}


def problem_type(config: JsonMapping, c: bert.EncoderConfig) -> str:
    """Our data.problem_type of a folder."""
    return "regression" if is_regressor(c) else PROBLEM_TYPES.get(config.get("problem_type") or "", "auto")


def encoder_rows(activation: str = "gelu") -> tuple[Row, ...]:
    """The rows that BERT, Longformer and BigBird share; `activation` is their default for `hidden_act`."""
    return (
        Joint(read_problem_type, write_problem_type),
        Field("vocab", "vocab_size"),
        Field("token_types", "type_vocab_size", 2),
        Field("width", "hidden_size"),
        Field("heads", "num_attention_heads"),
        Field("layers", "num_hidden_layers"),
        Field("inner", "intermediate_size"),
        Field("dropout", "hidden_dropout_prob", 0.1),
        Field("tied", "tie_word_embeddings", True),
        Fixed("prenorm", False, "expected false: the norm comes last"),
        Fixed("pooling", "first", "expected first"),
        Fixed("positions.kind", "learned", "expected learned"),
        Fixed("feed.kind", "plain", "expected plain"),
        Field("feed.act", "hidden_act", activation, **choice("hidden_act", ACTIVATIONS)),
        Fixed("feed.dropout", 0.0),
        Fixed("norm.kind", "layer", "expected layer"),
        Field("norm.eps", "layer_norm_eps", 1e-12),
    )  # fmt: skip


CONFIG = ConfigTable(
    (
        Only("is_decoder", False, "regard's BERT is an encoder", written=False),
        Only("add_cross_attention", False, "regard's BERT is an encoder", written=False),
        Only("position_embedding_type", "absolute", "expected 'absolute'", written=False),
        Joint(lambda theirs: read_head(theirs, ARCHITECTURES), lambda c: {"architectures": [architecture(c)]}),
        *encoder_rows(),
        Fixed("attention.kind", "dense", "expected dense"),
        Fixed("attention.scaled", True, "expected true: BERT scales its scores"),
        Field("attention.dropout", "attention_probs_dropout_prob", 0.1),
        Field("positions.tokens", "max_position_embeddings"),
    )
)


def label_names(theirs: JsonMapping) -> list[str]:
    """The labels of id2label in order; LABEL_0, LABEL_1, … where config.json names none."""
    labels = theirs.get("id2label") or {number: f"LABEL_{number}" for number in range(theirs.get("num_labels") or 2)}
    names = [str(labels[number]) for number in sorted(labels, key=int)]
    if len(set(names)) < len(names):
        raise ValueError(f"id2label has one name for two labels ({', '.join(names[:6])}); expected a name for each")
    return names


def head_settings(theirs: JsonMapping, tensors: Collection[str], head: str, pooler: str) -> JsonObject:
    """Settings that config.json lacks: the number of labels, and the heads among the tensors. `pooler` is a module."""
    return {
        "size": "huggingface",
        "labels": len(label_names(theirs)) if head in LABELED else 0,
        "pooled": f"{pooler}.weight" in tensors,
        "next_sentence": "cls.seq_relationship.weight" in tensors and head in NEXT_SENTENCE,
    }


def from_huggingface(theirs: JsonMapping, tensors: Collection[str] = ()) -> bert.Config:
    """Our Config of a folder, by config.json and the names of its tensors without `bert.`; ValueError if refused."""
    ours = CONFIG.read(theirs)
    return bert.Config.model_validate(ours | head_settings(theirs, tensors, ours["head"], "pooler.dense"))


# --- weights ---------------------------------------------------------------------------------------------------------


def names(c: bert.EncoderConfig) -> dict[str, str | WeightRule]:
    """Our names to theirs without `bert.`."""
    layer: dict[str, str | WeightRule] = {
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.out": "attention.output.dense",
        "attention_residual.norm": "attention.output.LayerNorm",
        "feed.into": "intermediate.dense",
        "feed.out": "output.dense",
        "feed_residual.norm": "output.LayerNorm",
    }
    table = "embeddings.word_embeddings.weight"
    return add_prefixes("encoder.layers.*", "encoder.layer.*", layer) | {
        "embed.weight": table,
        "kinds": "embeddings.token_type_embeddings",
        "encoder.positions.table": "embeddings.position_embeddings",
        "norm": "embeddings.LayerNorm",
        "pooler": "pooler.dense",
        "words.into": "cls.predictions.transform.dense",
        "words.norm": "cls.predictions.transform.LayerNorm",
        "words.out.weight": any_of("cls.predictions.decoder.weight", *([table] if c.tied else [])),
        "words.out.bias": any_of(*(["cls.predictions.bias"] if c.tied else []), "cls.predictions.decoder.bias"),
        "next": "cls.seq_relationship",
        "classes": "classifier",
    }


def unused(c: bert.EncoderConfig) -> tuple[str, ...]:
    """Patterns of tensors that transformers ignores too: position numbers, and heads that this model does not have."""
    heads = {
        "cls.predictions": c.head == "words",
        "cls.seq_relationship": c.next_sentence,
        "classifier": bool(c.labels),
    }
    bias = [] if c.tied else [r"cls\.predictions\.bias"]  # an untied decoder has its own
    return (r"embeddings\.position_ids", *bias, *(rf"{name}\..*" for name, has_head in heads.items() if not has_head))


def modern_name(name: str) -> str:
    """The name without the prefix of models with a head, with norms named as since 2019."""
    return re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name.removeprefix("bert.")))


# --- the folder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncoderFolder:
    """The contents of an encoder's folder. A text is encoded between `tokenizer.start` and `tokenizer.end`."""

    config: bert.EncoderConfig
    model: bert.Model
    tokenizer: TrainedTokenizer
    labels: tuple[str, ...]  # of the heads class and tag
    max_tokens: int  # of a text with its START and END
    pooling: Pooling = "mean"
    normalize: bool = True
    problem_type: str = "auto"  # of the head class: data.problem_type


TASKS = {"none": "masked", "words": "masked", "class": "classify", "tag": "tag"}  # by head: the task of the predictor


def load_predictor(path: Path, config: JsonMapping, overrides: JsonMapping) -> "AnyPredictor":
    """The predictor of the task that fits the folder's head."""
    return predictor_of(read(path, config), overrides)


def predictor_of(folder: EncoderFolder, overrides: JsonMapping) -> "AnyPredictor":
    """The module of a task builds it: `from_folder(folder, overrides)`."""
    task = import_module(f"regard.tasks.{TASKS[folder.config.head]}.task")
    predictor: AnyPredictor = task.from_folder(folder, overrides)
    return predictor


def read(path: Path, config: JsonMapping) -> EncoderFolder:
    """Read a folder of this family."""
    modules = read_modules(path)
    tensors = {modern_name(name): tensor for name, tensor in read_weights(modules.home).items()}
    ours = parse_config(modules.home, config, lambda theirs: from_huggingface(theirs, tensors))
    model = bert.Model(ours)
    load_weights(model, tensors, names(ours), unused(ours))
    folder = encoder_folder(modules.home, config, ours, model, load_wordpiece(modules.home))
    longest = apply_sentence_settings(modules.home, folder.tokenizer, folder.max_tokens)
    return replace(folder, max_tokens=longest, pooling=modules.pooling, normalize=modules.normalize)


def encoder_folder(
    path: Path, config: JsonMapping, ours: bert.EncoderConfig, model: bert.Model, tokenizer: TrainedTokenizer
) -> EncoderFolder:
    """The content of a folder with an encoder."""
    assert isinstance(ours.positions, slots.Learned)
    if tokenizer.size > ours.vocab:
        raise UserError(f"{path} has {tokenizer.size} tokens and its model {ours.vocab}; they belong to two models")
    check_vocabulary(path, tokenizer.backend.get_vocab().values(), ours.vocab)
    check_control_ids(path, config, ours.vocab)
    labels = tuple(label_names(config)) if ours.labels else ()
    problem = problem_type(config, ours)
    return EncoderFolder(ours, model, tokenizer, labels, ours.positions.tokens, problem_type=problem)
