"""What a family reads and writes. A task declares what it needs, so a wrong pairing is refused before it is built."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..parts.inputs import Modality

Output: TypeAlias = Literal["target", "next", "masked", "label", "tags", "embedding", "boxes"]
"""target: tokens of another sequence; next: the next token of the text; masked: tokens behind masks."""

Strategy: TypeAlias = Literal["greedy", "sample", "beam", "parallel"]


@dataclass(frozen=True)
class ModelSpec:
    """`strategies` are the ways to decode the outputs `target` and `next`; the first one is the default."""

    reads: frozenset[Modality]
    writes: frozenset[Output]
    strategies: tuple[Strategy, ...] = ()
