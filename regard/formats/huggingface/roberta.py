"""Hugging Face RoBERTa folders, which are BERT's with other positions, heads and tokens. They are only read."""

from .bert import DENSE
from .config_table import ConfigTable
from .encoders import (
    GELU_HEAD,
    POSITIONS_BEHIND_PAD,
    EncoderFolder,
    EncoderSource,
    TextProcessors,
    encoder_rows,
    head_settings,
    read_body,
    roberta_names,
    roberta_unused,
)
from .format import HuggingFaceFormat, WeightTable
from .vocabularies import load_byte_bpe

ARCHITECTURES = {
    "RobertaModel": "none",
    "RobertaForMaskedLM": "words",
    "RobertaForSequenceClassification": "class",
    "RobertaForTokenClassification": "tag",
}
CONFIG = ConfigTable((*encoder_rows(ARCHITECTURES), *DENSE, *GELU_HEAD, POSITIONS_BEHIND_PAD))
FORMAT: HuggingFaceFormat[EncoderSource, EncoderFolder] = HuggingFaceFormat(
    "a RoBERTa folder",
    "bert",
    {"roberta": CONFIG},
    WeightTable(roberta_names, roberta_unused, read_body("roberta.")),
    TextProcessors(load_byte_bpe),
    complete=head_settings(),
)
