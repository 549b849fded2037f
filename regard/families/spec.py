"""The inputs and outputs of a family. A task declares its needs, so a wrong pairing is refused before it is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..config.merge import Settings
from ..config.types import Base
from ..parts.inputs import TensorKind

Output: TypeAlias = Literal[
    "target", "next", "masked", "label", "tags", "embedding", "boxes", "fertility", "ctc", "mask_predict"
]
"""target: tokens of another sequence, one after the other; copied: such tokens in place of copies of the source, all at
once; spelled: such tokens and blanks in place of copies, all at once; infilled: tokens behind the masks of another
sequence, all at once; next: the next token of the text; masked: tokens behind masks of the text."""


def need_nothing(config: Base) -> str | None:
    """No settings need pretrained weights."""
    return None


def any_length(config: Base) -> int | None:
    """The length of the input is not limited."""
    return None


def only_tokens(config: Base) -> TensorKind:
    """Tokens, for any settings."""
    return "tokens"


def whole_config(config: Base) -> Base:
    """The settings of the whole model, not of a part."""
    return config


def keep_start(head: str, start: Settings) -> Settings:
    """A start sets nothing more."""
    return {}


@dataclass(frozen=True)
class ModelSpec:
    """The inputs and outputs of a family's models, and how they start from others."""

    reads: frozenset[TensorKind]
    writes: frozenset[Output]
    head_modules: tuple[str, ...] = ()  # modules that differ between tasks or are absent
    label_modules: tuple[str, ...] = ()  # those whose rows are the labels of one data set
    fixed_modules: tuple[str, ...] = ()  # those that training never changes; a start may have them and a model not
    # model settings, by dotted key, that another head needs over those of the start that has these settings
    start_settings: Callable[[str, Settings], Settings] = keep_start
    window: Callable[[Any], int | None] = any_length  # frames that it reads at once, filled up; None: any number
    source: Callable[[Any], TensorKind] = only_tokens  # the second input of a model that embeds texts, by its config
    reading: Mapping[TensorKind, Mapping[str, Any]] = field(default_factory=dict)  # settings of a model that reads it
    image: Callable[[Any], Any] = whole_config  # where `image` and `patch` are among the settings of a model of pixels
    needs_start: Callable[[Any], str | None] = need_nothing  # why a model of this config cannot begin with new weights
    # types of settings that replace those of a task, by task and section: data, decode, train.objective
    settings: Mapping[str, Mapping[str, type[Base]]] = field(default_factory=dict)


def is_within(tensor: str, modules: tuple[str, ...]) -> bool:
    """True if a tensor of this name belongs to one of the modules."""
    return any(tensor == module or tensor.startswith(f"{module}.") for module in modules)


TOKENS: frozenset[TensorKind] = frozenset({"tokens"})
SEQ2SEQ = ModelSpec(TOKENS, frozenset({"target"}))
CAUSAL = ModelSpec(TOKENS, frozenset({"next"}))
