"""Images with one caption each as arrays, and batches of them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ...config.data.images import CaptionData
from ...config.train import Train
from ...processors.base import Array, Rng
from ...processors.image.processor import ImageProcessor
from ...processors.image.read import RawImage
from ...processors.text.tokenizers import Tokenizer
from ..batch import Batch
from ..dataset import Dataset, EncodedExample, Measured, StoredExample
from ..rng import ExampleRng
from ..source import Source
from .collate import prompted_targets
from .fields import KEPT_BYTES

MAX_PATCHES = 1 << 20  # images are never too large to train on: they are resized


class CaptionDataset(Dataset):
    """The budget of a step counts the patches of an image or the tokens of its caption, whichever are more.

    Pixels stay in memory as bytes, unless training augments the images.
    """

    data: CaptionData

    def __init__(
        self,
        examples: Source,
        image: ImageProcessor,
        tokenizer: Tokenizer,
        data: CaptionData,
        train: Train,
        max_tokens: int,
    ) -> None:
        """`max_tokens` is the limit of a caption, including END."""
        super().__init__(examples, data, train)
        self.image, self.tokenizer, self.max_tokens = image, tokenizer, max_tokens
        self.limit = MAX_PATCHES
        self.limit_key = "model.positions.tokens" if max_tokens < data.max_tokens else "data.max_tokens"
        self.augmented = image.scale != (1, 1) or bool(image.flip or image.color or image.randaugment or image.erase)
        self._encoded_bytes = 0

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        for index in indices:
            raw, caption = self.examples[index]
            yield self._pixels(raw), self._tokens([caption])[0]

    def _pixels(self, raw: RawImage, rng: Rng | None = None) -> Array:
        return (
            self.image.encode(raw, rng) if rng is not None and self.image.erase else self.image.encode_bytes(raw, rng)
        )

    def _tokens(self, captions: Sequence[str]) -> list[Array]:
        return [np.array([*ids, self.tokenizer.end], np.int32) for ids in self.tokenizer.encode(list(captions))]

    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured:
        """Reads no image if all have the same size."""
        cost, chosen = self.image.fixed_cost, indices.tolist()
        tokens = np.array([len(ids) for ids in self._tokens([self.examples.text(index, 1) for index in chosen])], int)
        patches = [self.image.cost(self._pixels(self.examples[i][0])) if cost is None else cost for i in chosen]
        sizes = np.stack([np.array(patches, int), tokens], 1)
        sizes[tokens > self.max_tokens] = self.limit + 1
        return Measured(indices, sizes, np.zeros(len(chosen), bool), np.ones(len(chosen), np.int64))

    def describe_too_long(self) -> str:
        return f"a caption of more than {self.max_tokens:,} tokens"

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        if not self.augmented:
            return super().batch(indices, epoch)
        examples = [self.examples[index] for index in indices.tolist()]
        generators = ExampleRng.of(self.train.seed, epoch, indices).generators()
        pixels = [self._pixels(raw, rng) for (raw, _), rng in zip(examples, generators, strict=True)]
        items = zip(pixels, self._tokens([caption for _, caption in examples]), strict=True)
        return replace(self.collate(list(items)), examples=tuple(indices.tolist()))

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        targets = [ids for _, ids in items]
        prompts = [np.array([self.tokenizer.start], np.int32)] * len(items)
        inputs = {
            "source": self.image.collate([pixels for pixels, _ in items]),
            **prompted_targets(prompts, targets, self.tokenizer.pad),
        }
        return Batch(inputs, sum(map(len, targets)))

    def _keep(self, index: int, item: StoredExample) -> None:
        self._encoded_bytes += sum(len(array) if isinstance(array, bytes) else array.nbytes for array in item)
        if self._encoded_bytes <= KEPT_BYTES:
            super()._keep(index, item)
