"""Hugging Face RoBERTa folders, which are BERT's with other positions, heads and tokens. They are only read."""

from . import encoders
from .bert import DENSE
from .config_table import ConfigTable
from .format import HuggingFaceFormat, WeightTable
from .vocabularies import load_byte_bpe

ARCHITECTURES = {
    "RobertaModel": "none",
    "RobertaForMaskedLM": "words",
    "RobertaForSequenceClassification": "class",
    "RobertaForTokenClassification": "tag",
}
CONFIG = ConfigTable(
    (*encoders.encoder_rows(ARCHITECTURES), *DENSE, *encoders.GELU_HEAD, encoders.POSITIONS_BEHIND_PAD)
)
FORMAT: HuggingFaceFormat[encoders.EncoderSource, encoders.EncoderFolder] = HuggingFaceFormat(
    "a RoBERTa folder",
    "bert",
    {"roberta": CONFIG},
    WeightTable(encoders.roberta_names, encoders.roberta_unused, encoders.read_body("roberta.")),
    encoders.TextProcessors(load_byte_bpe),
    complete=encoders.head_settings(ARCHITECTURES),
)
