"""The non-autoregressive Transformer with CTC (1811.04719): all target tokens at once, with blanks between them.

The decoder reads every source token `upsample` times and replaces all copies together, each by a target token or by a
blank, which is PAD. The text is what remains without blanks and repetitions. Training sums over all their places (CTC),
so that no length, no fertilities and no alignment are needed.
"""

from typing import Literal

from ..config.decode import CtcDecode
from ..config.losses import TaughtLoss
from ..config.types import Positive
from ..parts import slots
from .nat import CopyConfig, CopyTransformer
from .seq2seq import SIZES
from .spec import TOKENS, ModelSpec

__all__ = ["SIZES", "SPEC", "Config", "Model"]


class Config(CopyConfig):
    """The settings of a non-autoregressive Transformer with CTC."""

    family: Literal["nat-ctc"] = "nat-ctc"
    positions: slots.Sinusoid = slots.Sinusoid()
    upsample: Positive = (
        3  # copies of every source token: a target has at most this many times the tokens of its source
    )


SPEC = ModelSpec(
    TOKENS,
    frozenset({"ctc"}),
    settings={"translate": {"decode": CtcDecode, "train.objective": TaughtLoss}},
)


class Model(CopyTransformer):
    """NAT with CTC (1811.04719): the decoder reads each source token equally often."""

    def __init__(self, c: Config) -> None:
        super().__init__(c, {})
        self.upsample = c.upsample
