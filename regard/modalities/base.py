"""The interface of modalities, and an item of a request as the model reads it."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from ..decode.engine.passes import TokenTrace
from ..families.protocols import ModelBase
from ..look import AttentionView, ViewAxis
from ..messages.media import Item, Media
from ..messages.texts import Alignment
from ..parts import Inputs
from ..parts.inputs import TensorKind
from ..processors.base import Array
from ..processors.text.tokenizers import Tokenizer

START, END = "□", "■"  # their symbols in details and pictures
Raw = TypeVar("Raw")  # an item in Python, such as a text


@dataclass(frozen=True, eq=False)
class EncodedInput:
    """An item of a request as the model reads it."""

    raw: Any  # a text, or raw media
    array: Array
    inputs: Inputs  # one row without padding
    max_tokens: int  # of an output, if decode.max_tokens is 0
    key: str  # samples depend on it


class Modality(ABC, Generic[Raw]):
    """What a model reads in one field."""

    name: ClassVar[str]  # text, image or audio: the key of an item in a request and in a manifest
    noun: ClassVar[str]  # for messages
    tensor_kind: ClassVar[TensorKind]
    media: ClassVar[type[Media] | None] = None  # the type of items in requests; None: str
    keeps_encoded: ClassVar[bool] = False  # True: a source is encoded once where a request reads it several times

    # --- items -------------------------------------------------------------------------------------------------

    @abstractmethod
    def encode(self, raw: Raw) -> Array:
        """An item as an array, without the augmentation of training."""

    def encode_all(self, raws: Sequence[Raw]) -> list[Array]:
        """Several items, in order."""
        return [self.encode(raw) for raw in raws]

    @abstractmethod
    def collate(self, arrays: Sequence[Array]) -> Inputs:
        """Arrays as one batch."""

    @abstractmethod
    def cost(self, array: Array) -> int:
        """What the budget of a batch counts: tokens, patches, frames."""

    @abstractmethod
    def max_tokens(self, array: Array) -> int:
        """The most tokens of an output for this item, if decode.max_tokens is 0."""

    def key(self, raw: Raw, array: Array) -> str:
        """What samples depend on: equal items have equal keys."""
        return hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()

    def is_item(self, raw: object) -> bool:
        """True for one item of this modality in Python, False for several."""
        return isinstance(raw, str) if self.media is None else self.media.accepts(raw)

    def value_of(self, item: Item) -> str | Media:
        """The value of an item of this modality; a text is not the name of a file."""
        return item.value_as(str if self.media is None else self.media)

    def check(self, raw: Raw) -> None:
        """Refuse an item that the model cannot read."""
        return

    def is_empty(self, raw: Raw) -> bool:
        """True if there is nothing to read."""
        return False

    def is_uniform(self, array: Array) -> bool:
        """True for an encoded item that is the same throughout, so that its result means nothing."""
        return False

    def read(self, items: Sequence[Raw | Media]) -> list[EncodedInput]:
        """Items of requests, many at once: the function of `Read` jobs."""
        raws = [item.raw if isinstance(item, Media) else item for item in items]
        for raw in raws:
            self.check(raw)
        return [self.encoded_input(*pair) for pair in zip(raws, self.encode_all(raws), strict=True)]

    def encoded_input(self, raw: Raw, array: Array) -> EncodedInput:
        """An encoded item as the model reads it."""
        return EncodedInput(raw, array, self.collate([array]), self.max_tokens(array), self.key(raw, array))

    # --- attention ---------------------------------------------------------------------------------------------

    def aligned(self, view: AttentionView) -> AttentionView:
        """The view with the cross-attention that aligns, where it is known."""
        return view

    def look_input(self, raw: Raw | Media) -> EncodedInput:
        """An item whose attention is shown."""
        return self.read([raw])[0]

    @abstractmethod
    def axis(self, source: EncodedInput, model: ModelBase | None, positions: int) -> ViewAxis:
        """The positions of the encoder over an item, for views of attention."""

    @abstractmethod
    def align(
        self, source: EncodedInput, trace: TokenTrace, text: str, tokens: Sequence[int], target: Tokenizer, model: Any
    ) -> Alignment:
        """Where each token of an output comes from."""


def target_axes(tokenizer: Tokenizer, tokens: Sequence[int], prompt: Sequence[int]) -> dict[str, ViewAxis]:
    """The tokens that are written, and those that the decoder reads."""
    target_tokens = tokenizer.tokens(tokens)
    prefix = [START if token == tokenizer.start else tokenizer.tokens([token])[0] for token in prompt]
    return {
        "target": ViewAxis.of_tokens("target", [*target_tokens, END], ended=True),
        "prefix": ViewAxis.of_tokens("token", [*prefix, *target_tokens]),
    }


def trace_view(axis: ViewAxis, trace: TokenTrace, tokens: Sequence[int], target: Tokenizer) -> AttentionView:
    """The cross-attention of a trace."""
    return AttentionView.of(trace.cross, {"source": axis, **target_axes(target, tokens, (target.start,))})
