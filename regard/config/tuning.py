"""The settings of tuning: what is trained beside or instead of the parameters of a pretrained model."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from .types import Base, Positive, Share


class Untuned(Base):
    """No tuning: all parameters are trained."""

    kind: Literal["none"] = "none"


class Lora(Base):
    """LoRA (2106.09685): a low-rank branch beside linear layers."""

    kind: Literal["lora"] = "lora"
    rank: Positive = 8  # of the branch
    alpha: Annotated[float, Field(gt=0)] = 16.0  # the branch is scaled by alpha / rank
    dropout: Share = 0.0  # on the input of the branch
    pattern: str = r"\.(query|value)$"  # regular expression, searched in the names of linear layers


class Adapter(Base):
    """Adapters (1902.00751): a bottleneck network after sub-layers."""

    kind: Literal["adapter"] = "adapter"
    bottleneck: Positive = 64  # width of the network
    after: Literal["both", "attention", "feed"] = "both"  # which sub-layers have one


class Prompt(Base):
    """Prompt tuning (2104.08691): trained vectors before the first token."""

    kind: Literal["prompt"] = "prompt"
    length: Positive = 20  # number of vectors
    words: str = ""  # initial values, repeated to the length; empty: random tokens


class Prefix(Base):
    """Prefix tuning (2101.00190): trained keys and values before the first token, in every layer."""

    kind: Literal["prefix"] = "prefix"
    length: Positive = 20  # number of keys and values
    words: str = ""  # initial values, repeated to the length; empty: random tokens


Tune: TypeAlias = Annotated[Untuned | Lora | Adapter | Prompt | Prefix, Field(discriminator="kind")]
