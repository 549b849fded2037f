"""Hugging Face BERT folders: the tables of config.json and weight names."""

import re

from ...families import bert
from ...files import JsonMapping
from ..model_card import encoder_usage
from . import encoders
from .config_table import ConfigTable, Field, Fixed, Only, Row
from .format import Export, HuggingFaceFormat, Tensors, WeightTable
from .vocabularies import load_wordpiece
from .weight_names import Names

ARCHITECTURES = {
    "BertModel": "none",
    "BertForMaskedLM": "words",
    "BertForSequenceClassification": "class",
    "BertForTokenClassification": "tag",
    "BertForNextSentencePrediction": "none",
    "BertForPreTraining": "words",
}  # to our heads; the tensors show if there is a pooler or a next-sentence head
NEXT_SENTENCE = {"none": "BertForNextSentencePrediction", "words": "BertForPreTraining"}  # by head
DENSE: tuple[Row, ...] = (
    Only("is_decoder", False, "regard's BERT is an encoder", written=False),
    Only("add_cross_attention", False, "regard's BERT is an encoder", written=False),
    Only("position_embedding_type", "absolute", "expected 'absolute'", written=False),
    Fixed("attention.kind", "dense", "expected dense"),
    Fixed("attention.scaled", True, "expected true: BERT scales its scores"),
    Field("attention.dropout", "attention_probs_dropout_prob", 0.1),
)
POSITIONS = Field("positions.tokens", "max_position_embeddings")
CONFIG = ConfigTable((*encoders.encoder_rows(ARCHITECTURES, next_sentence=NEXT_SENTENCE), *DENSE, POSITIONS))
DECODER = "cls.predictions.decoder"


def names(c: bert.EncoderConfig) -> Names:
    """Our names to theirs without `bert.`."""
    transform = "cls.predictions.transform"
    words = encoders.word_head(c, f"{transform}.dense", f"{transform}.LayerNorm", DECODER, "cls.predictions.bias")
    return {**encoders.names(c), **words, "next": "cls.seq_relationship"}


def unused(c: bert.EncoderConfig) -> tuple[str, ...]:
    """Patterns of tensors that transformers ignores too."""
    heads = {
        "cls.predictions": c.head == "words",
        "cls.seq_relationship": c.next_sentence,
        "classifier": bool(c.labels),
    }
    bias = () if c.tied else (r"cls\.predictions\.bias",)  # an untied decoder has its own
    return (*encoders.absent_heads(heads), *bias)


def modern_names(tensors: Tensors, theirs: JsonMapping) -> Tensors:
    """The tensors without the prefix of models with a head, with norms named as since 2019."""

    def rename(name: str) -> str:
        return re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name.removeprefix("bert.")))

    return {rename(name): tensor for name, tensor in tensors.items()}


def write_weights(tensors: Tensors, predictor: encoders.EncoderSource) -> Tensors:
    """The tensors without those that the class of transformers does not have."""
    c: bert.Config = predictor.run.model
    absent = ["cls."] if c.labels else []
    if c.head == "tag" or (c.head == "words" and not c.next_sentence):
        absent += ["pooler."]
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(tuple(absent))}
    return encoders.write_body(kept, c, "bert.", DECODER)


def usage(predictor: encoders.EncoderSource) -> str:
    """The usage example of the model card."""
    return encoder_usage(FORMAT.architecture(predictor.run.model))


FORMAT: HuggingFaceFormat[encoders.EncoderSource, encoders.EncoderFolder] = HuggingFaceFormat(
    "a BERT folder",
    "bert",
    {"bert": CONFIG},
    WeightTable(names, unused, modern_names, write_weights),
    encoders.TextProcessors(load_wordpiece, ("input_ids", "token_type_ids", "attention_mask")),
    Export(lambda c: "bert", encoders.EncoderSample, usage, lambda c: encoders.TAGS.get(c.head, "feature-extraction")),
    encoders.head_settings(ARCHITECTURES),
)
