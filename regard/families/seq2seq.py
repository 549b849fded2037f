"""Settings that the Transformer shares with the models made of it: their fields, sizes and first weights."""

from typing import Annotated, Any

from pydantic import Field

from ..config.types import Base, Count, Positive, Share
from ..parts import slots
from ..parts.init import glorot, ones, zeros

Attention = Annotated[slots.Dense | slots.Additive, Field(discriminator="kind")]
Positions = Annotated[slots.Sinusoid | slots.Learned | slots.Rotary | slots.Buckets, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated, Field(discriminator="kind")]
Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]


class Seq2SeqConfig(Base):
    """Settings of an encoder and a decoder; a family adds its own, and the slots."""

    family: str
    size: str = "small"
    vocab: Count = 0  # of the source; 0: the tokenizer's size
    target_vocab: Count = 0  # 0: source and target share one vocabulary and one embedding table
    width: Positive = 512
    heads: Positive = 8
    layers: Positive = 6
    decoder_layers: Count = 0  # 0: equal to `layers`
    inner: Positive = 2048
    dropout: Share = 0.1
    prenorm: bool = False  # the norm comes first; in the paper last
    tied: bool = True  # the head shares the target embeddings
    scaled: bool = True  # embeddings × √width


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 4, "layers": 2, "inner": 256},
    "small": {"width": 256, "heads": 4, "layers": 3, "inner": 1024},
    "base": {"width": 512, "heads": 8, "layers": 6, "inner": 2048},
    "big": {"width": 1024, "heads": 16, "layers": 6, "inner": 4096, "dropout": 0.3},
}
INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r".*(query|key|value|out|into|gate|score)\.weight": glorot,
}
