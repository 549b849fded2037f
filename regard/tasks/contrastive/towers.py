"""How the towers of a model make vectors of texts, and of images or recordings."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...data.loading.sampler import sorted_batches
from ...data.sources.media import RawValue
from ...decode.engine.jobs import Forward, Head, Job, ModelContext, Read
from ...errors import UserError
from ...families.protocols import EmbeddingModel
from ...messages.media import Item, Media
from ...modalities.base import Modality
from ...parts import Inputs
from ...processors.base import Array
from ..label.embedding import Embedded
from ..label.texts import TextEncoder, item_texts
from ..notices import uniform_image
from ..texts import as_text
from .settings import SLOT, ContrastiveDecode
from .sources import AnyPairs, MediaModality


class Towers:
    """Reads items, each with the tower of its modality."""

    def __init__(self, pairs: AnyPairs, media: MediaModality | None, texts: TextEncoder) -> None:
        """`media`: how images or recordings are read; None: all items are texts."""
        self.pairs, self.texts = pairs, texts
        self.media: Modality[Any] | None = media
        self.text_head = Head(texts.collate, item_vectors)
        self.media_head = None if media is None else Head(media.collate, item_vectors, media.cost, tokens=0)

    def item(self, raw: RawValue) -> Item:
        """A text, or the image or recording of a file or in memory."""
        if isinstance(raw, str) and not self.pairs.is_name(raw):
            return Item(raw)
        return self.pairs.item(raw)

    async def vector(self, item: Item) -> Embedded:
        """The vector of an item."""
        value = self.value(item)
        if isinstance(value, str):
            text = await Read(self.texts.read, item_texts(item))
            return Embedded(await Forward(self.text_head, text.row), text.notices)
        assert self.media is not None and self.media_head is not None
        array: Array = await Read(self.media.encode_all, value.raw)
        return Embedded(await Forward(self.media_head, array), uniform_image(self.media.is_uniform(array)))

    def value(self, item: Item) -> str | Media:
        """The text or the media of an item; what no tower reads is refused."""
        value = item.value
        if isinstance(value, str):
            return require_text(value)
        if self.media is None or type(value) is not self.media.media:
            known = "texts" if self.media is None else f"texts and {self.pairs.noun}s"
            raise UserError(f"this run compares {known} and was given {value.noun}; give one of those")
        return value

    async def label_vectors(self, settings: ContrastiveDecode) -> Tensor:
        """(labels, width)"""
        texts = tuple(settings.template.replace(SLOT, label) for label in settings.labels)
        return await LabelVectors(self.texts, self.text_head, texts)


def require_text(text: str) -> str:
    """The text, if it has a word."""
    if not as_text(text).strip():
        raise UserError("a text is empty and has no embedding; give at least one word")
    return text


def item_vectors(model: EmbeddingModel, inputs: Inputs) -> Iterable[Tensor]:
    """The vector of every item."""
    return model.vectors(inputs).float().cpu()


@dataclass(frozen=True, eq=False)
class LabelVectors(Job[Tensor]):
    """(texts, width): the vectors of the texts of labels, computed once for all requests that wait for them."""

    encoder: TextEncoder
    head: Head[Tensor]
    texts: tuple[str, ...]
    stage: ClassVar[int] = 8  # after the items, so that requests gather

    def group(self) -> Hashable:
        return type(self), self.texts

    def limits(self, context: ModelContext, batch: int) -> tuple[int, int]:
        return 0, 0

    def run(self, jobs: Sequence["LabelVectors"], context: ModelContext) -> list[Tensor]:
        passes = [Forward(self.head, text.row) for text in self.encoder.read([(text,) for text in self.texts])]
        vectors: dict[int, Tensor] = {}
        for indices in sorted_batches([one.cost for one in passes], *passes[0].limits(context, context.batch)):
            batch = [passes[index] for index in indices]
            vectors |= zip(indices, batch[0].run(batch, context), strict=True)
        return [torch.stack([vectors[index] for index in range(len(passes))])] * len(jobs)
