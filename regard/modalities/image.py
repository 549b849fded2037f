"""Images as pixels."""

from collections.abc import Sequence
from typing import Any

from ..decode.engine.passes import TokenTrace
from ..families.protocols import ModelBase
from ..look import PatchSegment, ViewAxis
from ..messages.media import Image, Media
from ..messages.texts import PatchAlignment
from ..parts import Inputs
from ..processors.base import Array
from ..processors.image.processor import ImageProcessor
from ..processors.image.read import RawImage
from ..processors.text.tokenizers import Tokenizer
from .axes import image_axis
from .base import EncodedInput, Modality, trace_view

MAX_TOKENS = 100  # of a text for an image, if decode.max_tokens is 0


class ImageModality(Modality[RawImage]):
    """Images as pixels."""

    name, noun, tensor_kind, media = "image", "an image", "pixels", Image

    def __init__(self, processor: ImageProcessor) -> None:
        self.processor = processor

    def encode(self, raw: RawImage) -> Array:
        return self.processor.encode(raw)

    def encode_all(self, raws: Sequence[RawImage]) -> list[Array]:
        """Several images, read in threads."""
        return self.processor.encode_all(raws)

    def collate(self, arrays: Sequence[Array]) -> Inputs:
        return self.processor.collate(arrays)

    def is_uniform(self, array: Array) -> bool:
        return self.processor.is_uniform(array)

    def cost(self, array: Array) -> int:
        return self.processor.cost(array)

    def max_tokens(self, array: Array) -> int:
        return MAX_TOKENS

    def look_input(self, raw: "RawImage | Media") -> EncodedInput:
        """The pixels as bytes, so that a view can show them."""
        raw = raw.raw if isinstance(raw, Media) else raw
        return self.encoded_input(raw, self.processor.encode_bytes(raw))

    def axis(self, source: EncodedInput, model: ModelBase | None, positions: int) -> ViewAxis:
        return image_axis(model, source.array, positions, self.processor.patch)

    def align(
        self, source: EncodedInput, trace: TokenTrace, text: str, tokens: Sequence[int], target: Tokenizer, model: Any
    ) -> PatchAlignment:
        axis = self.axis(source, model, trace.cross[0][1].size(-1))
        patches = axis.segments[-1]
        assert isinstance(patches, PatchSegment)
        before = len(axis) - patches.rows * patches.columns  # a class token
        weights = trace_view(axis, trace, tokens, target).cross()[: len(tokens), before:]
        best: list[int] = weights.argmax(1).tolist() if weights.numel() else []
        return PatchAlignment(tuple((place // patches.columns, place % patches.columns) for place in best))
