"""Transcription by segments: each is written as a translation is, side by side, by a search or the best path of CTC."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ...config.measured import Measurements
from ...config.strategies import Beam, BestPath, beam_for_one_text
from ...decode import Hypothesis
from ...decode.engine.answer import Emit, ProgressDelta, SegmentDelta
from ...decode.engine.jobs import Forward, Gather, Head, ModelCall, ModelContext, Read
from ...decode.engine.passes import Encode
from ...errors import UserError
from ...look import AttentionView, Which
from ...messages.media import Sound
from ...messages.speech import AlignAudioResult, TranscribeRequest, TranscribeResult, TranscriptSegment
from ...messages.texts import GeneratedText, TimeAlignment, Usage
from ...modalities.base import EncodedInput
from ...modalities.sound import AudioSegment, SoundModality
from ...modalities.times import TokenTimes, shift_times
from ...parts import Inputs
from ...parts.parallel.ctc import best_path
from ...processors.base import Array
from ...processors.sound.read import RawSound
from ...processors.text.tokenizers import Tokenizer
from ..generate.joining import add_usage
from ..generate.plans import Plan, Planner
from ..generate.streams import OrderedParts, TextStream
from ..generate.writer import VALIDATION_DECODE, TextWriter
from ..notices import long_recording, require_finite, unreliable_times
from .settings import TranscribeRun
from .transcriber import Chunks, Transcriber, join_segments


class SegmentTranscriber(Transcriber):
    """Recordings that are longer than those of the training are cut at pauses."""

    def __init__(
        self,
        run: TranscribeRun,
        context: ModelContext,
        target: Tokenizer,
        modality: SoundModality,
        plan: Planner,
        measured: Measurements,
    ) -> None:
        super().__init__(run, context, target, modality, plan)
        self.measured = measured

    @cached_property
    def writer(self) -> "SpeechWriter":
        """Writes the texts of segments, and scores known ones."""
        return SpeechWriter(self.context, collate=self.modality.collate)

    def plan_of(self, request: TranscribeRequest) -> Plan:
        plan: Plan = self.plan(request)
        if isinstance(plan.strategy, BestPath):
            self.require_ctc("decode.strategy=ctc")
            if plan.decode.prefix or plan.decode.exclude:
                raise UserError(
                    "decode.prefix and decode.exclude need a search, and decode.strategy=ctc is none; use beam"
                )
        return plan

    async def transcribe(self, request: TranscribeRequest, plan: Plan, emit: Emit | None) -> TranscribeResult:
        read, heard = [0.0], self.measured.longest_seconds
        longest = plan.decode.max_segment_seconds or heard or self.run.data.max_seconds
        chunks = Chunks(self.modality.segments(request.sound, longest, read))
        progress = None if emit is None else Progress(emit, await self.length_to_report(request.sound, emit))
        done, segments, usages = 0, list[TranscriptSegment](), list[Usage]()
        following = self.plan.after_prefix(request)  # the prefix begins the whole transcript
        while audio := await Read(self.read_chunks, (chunks, done)):
            if plan.constraints.include and audio[-1].number:
                raise UserError(
                    f"decode.include works for one segment, and the recording has more than {longest:g} seconds; "
                    "raise decode.max_segment_seconds, or leave decode.include out"
                )
            programs = (
                self._segment(one, number, request, following if one.number else plan, progress)
                for number, one in enumerate(audio, len(segments))
            )
            for segment, usage in await Gather(list(programs)):
                segments.append(segment)
                usages.append(usage)
            audio.clear()  # also in `chunks`, so that the next samples take their place
            done += 1
        result = join_segments(segments, read[0], add_usage(usages), plan.strategy.length_penalty)
        notices = [*result.notices, *(self.notices_of_times() if request.details else ())]
        if heard is not None and read[0] > heard:
            notices.append(long_recording(read[0], heard, longest))
        return replace(result, notices=tuple(notices))

    def notices_of_times(self) -> tuple[str, ...]:
        """The notices of a result with word times."""
        check = self.measured.word_times
        return () if check is None or check.reliable else (unreliable_times(check.tokens_in_sound, check.sound),)

    async def _segment(
        self, audio: AudioSegment, number: int, request: TranscribeRequest, plan: Plan, progress: "Progress | None"
    ) -> tuple[TranscriptSegment, Usage]:
        emit = None if progress is None else progress.parts.part(number)
        written = await self.writer.write(self.modality, audio.samples, plan, request, emit)
        texts = tuple(shift_text(text, audio.start, audio.end) for text in written.texts)
        segment = TranscriptSegment(round(audio.start, 3), round(audio.end, 3), texts)
        if progress is not None:
            progress.finish(number, segment, audio.end)
        return segment, written.usage

    def validation_decode(self) -> dict[str, object]:
        """CTC or the decoder, whichever has the larger weight in beam search."""
        by_ctc = self.context.model.ctc_weight and self.run.decode.ctc > 0.5
        return {**VALIDATION_DECODE, "strategy": {"kind": "ctc" if by_ctc else "greedy"}}

    # --- known texts -------------------------------------------------------------------------------------------

    async def known_logprobs(self, sound: Sound, text: str) -> tuple[list[int], list[float]]:
        source: EncodedInput = await Read(self.modality.read, sound)
        tokens: list[int] = await Read(self.text_ids, text)
        return tokens, await self.writer.score(source.inputs, (self.target.start,), tuple(tokens))

    async def align(self, sound: Sound, text: str) -> AlignAudioResult:
        self.require_ctc("word times")
        return await super().align(sound, text)

    async def align_tokens(
        self, source: EncodedInput, tokens: list[int], text: str, seconds: float
    ) -> AlignAudioResult:
        """By CTC, and where there is sound."""
        states = (await Encode(source.inputs)).values[0]
        job: ModelCall[tuple[TimeAlignment, float]] = ModelCall(
            lambda model: self._times(model).align_known(source.raw, states, tokens, text, self.target)
        )
        alignment, logprob = await job
        return AlignAudioResult(
            text, logprob / len(tokens), logprob, "end", len(tokens), tokens=tuple(self.target.tokens(tokens)),
            alignment=shift_times(alignment, 0.0, seconds), notices=self.notices_of_times(),
        )  # fmt: skip

    def _times(self, model: Any) -> TokenTimes:
        return TokenTimes(model, self.modality.processor, self.modality.stride, self.target.pad)

    async def tokens_in_sound(self, sound: Sound, text: str) -> tuple[int, int, int, int]:
        if not self.context.model.ctc_weight:
            return await super().tokens_in_sound(sound, text)
        (tokens,) = self.text_ids([text])
        source: EncodedInput = await Read(self.modality.read, sound)
        states = (await Encode(source.inputs)).values[0]
        job: ModelCall[tuple[int, int, int, int]] = ModelCall(
            lambda model: self._times(model).tokens_in_sound(source.raw, states, tokens, text, self.target)
        )
        return await job

    async def view(self, raw: RawSound, target: str | None, layer: Which, title: str) -> AttentionView:
        source: EncodedInput = await Read(self.modality.read, raw)
        if target is not None:
            (tokens,) = self.text_ids([target])
        else:
            beam = self.plan(TranscribeRequest(Sound(raw)), strategy=beam_for_one_text(self.run.decode.strategy))
            hypotheses = await self.writer.search(source, beam)
            tokens = hypotheses[0].tokens if hypotheses else []
        return await self.writer.view(self.modality, source, tokens, layer, title)


class Progress:
    """What the segments of a recording emit, in their order."""

    def __init__(self, emit: Emit, seconds: float) -> None:
        self.parts, self.seconds = OrderedParts(emit), seconds

    def finish(self, number: int, segment: TranscriptSegment, end: float) -> None:
        """A segment is finished, which ends after so many seconds."""
        emit = self.parts.part(number)
        emit(SegmentDelta(segment.start, segment.end, segment.text))
        emit(ProgressDelta(min(end, self.seconds), self.seconds))
        self.parts.close(number)


def shift_text(text: GeneratedText, start: float, end: float) -> GeneratedText:
    """A text whose times count from the beginning of the recording."""
    if not isinstance(text.alignment, TimeAlignment):
        return text
    return replace(text, alignment=shift_times(text.alignment, start, end))


@dataclass(eq=False)
class SpeechWriter(TextWriter):
    """Searches, in beams also by CTC, or takes the best path of CTC."""

    collate: Callable[[Sequence[Array]], Inputs] = field(kw_only=True)

    @cached_property
    def best_paths(self) -> Head[Hypothesis]:
        """The best path of every row, without a score."""
        return Head(self.collate, self._best_paths, tokens=0)

    async def _search(
        self, source: EncodedInput, plan: Plan, start: tuple[int, ...], stream: TextStream | None, variant: object
    ) -> tuple[list[Hypothesis], int]:
        if isinstance(plan.strategy, BestPath):
            path = await Forward(self.best_paths, source.array)
            require_finite([path.logprob])
            score = path.logprob / (len(path.tokens) + 1) ** plan.strategy.length_penalty
            return [replace(path, score=score)], len(path.tokens)
        joint = isinstance(plan.strategy, Beam) and self.context.model.ctc_weight
        return await super()._search(source, plan, start, stream, plan.decode.ctc or None if joint else None)

    def _best_paths(self, model: Any, inputs: Inputs) -> list[Hypothesis]:
        encoded = model.encode(inputs)
        paths = best_path(model.ctc_logits(encoded).float().log_softmax(-1), encoded.valid, self.target.pad)
        return [Hypothesis([one.token for one in path], 0.0, sum(one.logprob for one in path), True) for path in paths]
