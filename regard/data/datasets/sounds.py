"""Recordings with their transcripts as arrays, and batches of them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...config.data.sound import SoundSettings
from ...config.train import Train
from ...parts.inputs import Inputs
from ...processors.base import Array
from ...processors.sound.frames import SoundFrames
from ...processors.text.tokenizers import Tokenizer
from ..batch import Batch
from ..dataset import Dataset, EncodedExample, Measured
from ..rng import ExampleRng
from ..source import Source
from .collate import Ids, pad_rows, prompted_targets, valid_mask
from .fields import KEPT_BYTES

STRIDE = 4  # frames of an encoder position
MEASURED_TEXTS = 1000  # transcripts that are encoded together
EncodeTargets: TypeAlias = Callable[[Sequence[str]], list[tuple[Ids, Ids]]]
"""For every transcript its prompt, which ends in START, and its target tokens, which end in END."""


@dataclass(frozen=True)
class PlainTranscripts:
    """Transcripts whose prompt is START alone."""

    tokenizer: Tokenizer

    def __call__(self, texts: Sequence[str]) -> list[tuple[Ids, Ids]]:
        start, end = np.array([self.tokenizer.start], np.int32), self.tokenizer.end
        return [(start, np.array([*ids, end], np.int32)) for ids in self.tokenizer.encode(list(texts))]


class SoundDataset(Dataset):
    """The budget of a step counts frames, computed from the length of a recording.

    Frames stay in memory, unless training augments the samples (data.speed, data.noise). SpecAugment masks a copy.
    """

    data: SoundSettings

    def __init__(
        self,
        examples: Source,
        sound: SoundFrames,
        encode_transcripts: EncodeTargets,
        padding: int,
        data: SoundSettings,
        train: Train,
        max_tokens: int,
        ctc: bool = True,
    ) -> None:
        """`max_tokens` limits a transcript. With `ctc`, the loss includes CTC, which needs enough frames."""
        super().__init__(examples, data, train)
        self.sound, self.encode_transcripts, self.padding = sound, encode_transcripts, padding
        self.max_tokens, self.ctc, self.curriculum = max_tokens, ctc, data.curriculum
        self.longest = min(data.max_seconds, sound.longest)
        self.limit = sound.frames(round(self.longest * sound.rate)) + 1  # a rounded length is not too long
        seconds_key = "model.source_positions" if self.longest < data.max_seconds else "data.max_seconds"
        tokens_key = "model.positions.tokens" if max_tokens < data.max_tokens else "data.max_tokens"
        self.limit_key = f"{seconds_key} or {tokens_key}"
        self._encoded_bytes = 0

    def encode(self, indices: list[int]) -> Iterable[EncodedExample]:
        for index in indices:
            raw, text = self.examples[index]
            yield self.sound.encode(raw), *self.encode_transcripts([text])[0]

    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured:
        """Reads no recording: the lengths are known."""
        sizes, short = np.zeros((len(indices), 2), np.int64), np.zeros(len(indices), bool)
        for first in range(0, len(indices), MEASURED_TEXTS):
            chosen = indices[first : first + MEASURED_TEXTS].tolist()
            rows = self.encode_transcripts([self.examples.text(index, 1) for index in chosen])
            for place, index, (prompt, ids) in zip(range(first, first + len(chosen)), chosen, rows, strict=True):
                seconds = self.examples.seconds(index)
                frames = self.sound.frames(round(seconds * self.sound.rate))
                long = seconds > self.longest + self.sound.hop / self.sound.rate
                long |= len(prompt) + len(ids) - 1 > self.max_tokens
                sizes[place] = self.limit + 1 if long else (frames, min(self._recorded(seconds), frames))
                short[place] = self.ctc and -(-frames // STRIDE) < ctc_positions(ids[:-1])
        return Measured(indices, sizes, short, np.ones(len(indices), np.int64))

    def _recorded(self, seconds: float) -> int:
        """Frames of a recording without padding to a window. Only a curriculum sorts by them."""
        filled = self.curriculum and self.sound.longest < math.inf
        return max(round(seconds * self.sound.rate) // self.sound.hop, 1) if filled else self.limit

    def describe_too_long(self) -> str:
        return f"more than {self.longest:g} seconds or a transcript of more than {self.max_tokens:,} tokens"

    def describe_shortened(self) -> str:
        return "recordings are too short for CTC of their transcripts, so that only the decoder learns from them"

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        sound = self.sound
        if not (sound.augments_samples or sound.masks):
            return super().batch(indices, epoch)
        generators = ExampleRng.of(self.train.seed, epoch, indices).generators()
        ids: Sequence[tuple[Ids, ...]]
        if sound.augments_samples:
            examples = [self.examples[index] for index in indices.tolist()]
            frames = [sound.encode(raw, rng) for (raw, _), rng in zip(examples, generators, strict=True)]
            ids = self.encode_transcripts([text for _, text in examples])
        else:
            items = self.encoded(indices)
            frames = [sound.mask(item[0].copy(), rng) for item, rng in zip(items, generators, strict=True)]
            ids = [item[1:] for item in items]
        items = [(matrix, *tokens) for matrix, tokens in zip(frames, ids, strict=True)]
        return replace(self.collate(items), examples=tuple(indices.tolist()))

    def collate(self, items: Sequence[EncodedExample]) -> Batch:
        frames, prompts, targets = zip(*items, strict=True)
        return collate_transcribed(frames, prompts, targets, self.sound, self.padding)

    def _keep(self, index: int, item: tuple[bytes | np.ndarray, ...]) -> None:
        self._encoded_bytes += sum(len(array) if isinstance(array, bytes) else array.nbytes for array in item)
        if self._encoded_bytes <= KEPT_BYTES:
            super()._keep(index, item)


def ctc_positions(ids: Ids) -> int:
    """The encoder positions that CTC needs: one for each token, and a blank between equal neighbors."""
    return len(ids) + int((ids[1:] == ids[:-1]).sum())


def collate_transcribed(
    frames: Sequence[Array], prompts: Sequence[Ids], targets: Sequence[Ids], sound: SoundFrames, padding: int
) -> Batch:
    """A batch of frames, prompts and token ids with END; `transcript` has the ids without END, for CTC."""
    plain = [ids[:-1] for ids in targets]
    transcript = Inputs("tokens", pad_rows(plain, padding), valid_mask(plain))
    inputs = {"source": sound.collate(frames), **prompted_targets(prompts, targets, padding), "transcript": transcript}
    return Batch(inputs, sum(map(len, targets)))
