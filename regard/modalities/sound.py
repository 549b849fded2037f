"""Recordings as frames."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..decode.engine.passes import TokenTrace
from ..errors import UserError
from ..families.protocols import ModelBase
from ..look import ViewAxis
from ..messages.media import Item, Sound
from ..messages.texts import TimeAlignment
from ..parts import Inputs
from ..processors.base import Array
from ..processors.sound.frames import SoundFrames
from ..processors.sound.read import RawSound, sound_info, sound_name, stream_sound
from ..processors.sound.segments import segments
from ..processors.text.tokenizers import Tokenizer
from .axes import frame_axis
from .base import EncodedInput, Modality, trace_view
from .times import TokenTimes


class AudioSegment(NamedTuple):
    """A part of a recording, between pauses."""

    number: int
    start: float  # in seconds
    end: float
    samples: Array


class SoundModality(Modality[RawSound]):
    """Recordings as frames."""

    name, noun, tensor_kind, media, keeps_encoded = "audio", "a recording", "frames", Sound, True

    def __init__(self, processor: SoundFrames, stride: int, max_seconds: float | None = None) -> None:
        """`stride`: frames of an encoder position. `max_seconds`: longer recordings are refused."""
        self.processor, self.stride, self.max_seconds = processor, stride, max_seconds

    def value_of(self, item: Item) -> Sound:
        return item.value_as(Sound)

    def check(self, raw: RawSound) -> None:
        if self.max_seconds is None:
            return
        if (seconds := sound_info(raw, self.processor.rate).seconds) > self.max_seconds:
            raise UserError(
                f"{sound_name(raw)} has {seconds:.1f} seconds and this run reads at most {self.max_seconds:g} "
                "(data.max_seconds); cut it, or train with longer recordings"
            )

    def encode(self, raw: RawSound) -> Array:
        return self.processor.encode(raw)

    def collate(self, arrays: Sequence[Array]) -> Inputs:
        return self.processor.collate(arrays)

    def cost(self, array: Array) -> int:
        return len(array)

    def max_tokens(self, array: Array) -> int:
        return len(array) // 4 + 16

    def segments(self, sound: Sound, longest: float, length: list[float]) -> Iterator[AudioSegment]:
        """The parts of a recording that are not silent, block by block; `length[0]` gets the seconds that are read.

        So memory does not grow with the length of a recording.
        """
        rate = self.processor.rate

        def count_seconds() -> Iterator[Array]:
            for block in stream_sound(sound.raw, rate):
                length[0] += len(block) / rate
                yield block

        for number, (start, samples) in enumerate(segments(count_seconds(), rate, longest)):
            if samples.min() < samples.max():  # digital silence has no transcript
                yield AudioSegment(number, start, start + len(samples) / rate, samples)

    def axis(self, source: EncodedInput, model: ModelBase | None, positions: int) -> ViewAxis:
        return frame_axis(self.processor, self.stride, positions, source.array)

    def align(
        self, source: EncodedInput, trace: TokenTrace, text: str, tokens: Sequence[int], target: Tokenizer, model: Any
    ) -> TimeAlignment:
        """By CTC where the model has it, else by the decoder's attention, and where there is sound."""
        view = trace_view(self.axis(source, model, len(trace.states)), trace, tokens, target)
        times = TokenTimes(model, self.processor, self.stride, target.pad)
        return times.of_trace(source.raw, trace.states, tokens, view.cross(), text, target)
