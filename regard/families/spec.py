"""What a family reads and writes. A task declares what it needs, so a wrong pairing is refused before it is built."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..parts.inputs import Modality

Output: TypeAlias = Literal["target", "next", "masked", "label", "tags", "embedding", "boxes"]
"""target: tokens of another sequence; next: the next token of the text; masked: tokens behind masks."""

Strategy: TypeAlias = Literal["greedy", "sample", "beam", "parallel"]


@dataclass(frozen=True)
class ModelSpec:
    reads: frozenset[Modality]
    writes: frozenset[Output]
    strategies: tuple[Strategy, ...] = ()  # ways to decode `target` and `next` (decode.kind)
    head_modules: tuple[str, ...] = ()  # modules that differ between tasks or are absent
    label_modules: tuple[str, ...] = ()  # those whose rows are the labels of one data set


TOKENS: frozenset[Modality] = frozenset({"tokens"})
SEQ2SEQ = ModelSpec(TOKENS, frozenset({"target"}), ("beam", "greedy", "sample"))
CAUSAL = ModelSpec(TOKENS, frozenset({"next"}), ("sample", "greedy", "beam"))
