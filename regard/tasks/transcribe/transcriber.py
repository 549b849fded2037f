"""What answers requests about recordings: the base of the two ways to transcribe, and the parts that they share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Generic, TypeAlias, TypeVar

from ...data.datasets.targets import EncodeTargets, PlainTargets
from ...data.source import Source
from ...decode.engine.answer import Delta, Emit, ProgressDelta
from ...decode.engine.jobs import ModelContext, Read
from ...errors import UserError
from ...look import AttentionView, Which
from ...messages.media import Sound
from ...messages.speech import AlignAudioResult, TranscribeRequest, TranscribeResult, TranscriptSegment
from ...messages.texts import GeneratedText, Usage
from ...messages.verbs import ScoreResult
from ...modalities.base import END, EncodedInput
from ...modalities.sound import SoundModality
from ...processors.base import Array
from ...processors.sound.read import RawSound, sound_info, sound_name
from ...processors.text.tokenizers import Tokenizer
from ..generate.joining import join_texts
from ..generate.plans import Plan, Planner
from ..notices import missing_phrase, no_text, require_finite, silent_recording
from .settings import TranscribeRun

AT_ONCE = 16  # segments of a recording that are decoded side by side
SEGMENTS = 64  # segments of all recordings that are in memory
T = TypeVar("T")
OnProgress: TypeAlias = Callable[[str, float, float], None]  # gets the name of a recording, seconds done, all seconds


class Transcriber(ABC):
    """Writes, scores and aligns the transcripts of recordings: one coroutine for each request."""

    def __init__(
        self, run: TranscribeRun, context: ModelContext, target: Tokenizer, modality: SoundModality, plan: Planner
    ) -> None:
        self.run, self.context, self.target, self.modality, self.plan = run, context, target, modality, plan
        self.running = 0  # recordings that are being transcribed

    async def answer(self, request: TranscribeRequest, emit: Emit | None = None) -> TranscribeResult:
        """The transcript of a recording."""
        plan = self.plan_of(request)
        self.running += 1
        try:
            return await self.transcribe(request, plan, emit)
        finally:
            self.running -= 1

    @abstractmethod
    def plan_of(self, request: TranscribeRequest) -> Plan:
        """The settings of a request; those that this model cannot satisfy are refused."""

    @abstractmethod
    async def transcribe(self, request: TranscribeRequest, plan: Plan, emit: Emit | None) -> TranscribeResult:
        """The transcript of a recording. Memory does not grow with its length."""

    async def score(self, sound: Sound, text: str) -> ScoreResult:
        """ln P(text | recording) by the decoder, END included."""
        tokens, logprobs = await self.known_logprobs(sound, text)
        require_finite(logprobs)
        return ScoreResult(sum(logprobs), (*self.target.tokens(tokens), END), tuple(logprobs))

    @abstractmethod
    async def known_logprobs(self, sound: Sound, text: str) -> tuple[list[int], list[float]]:
        """The tokens of a known text, and the log-probabilities of these tokens and END."""

    async def align(self, sound: Sound, text: str) -> AlignAudioResult:
        """The times of the words of a known text."""
        text = " ".join(text.split())
        (tokens,) = self.text_ids([text])
        if self.target.unk in tokens:
            raise UserError(
                f"{text!r:.60} has characters that this run does not know; write it as in the training data"
            )
        if not tokens:
            raise UserError("the text is empty, so there is nothing to align; give the words of the recording")
        samples: Array = await Read(self._read_samples, sound.raw)
        source: EncodedInput = await Read(self.modality.read, samples)
        return await self.align_tokens(source, tokens, text, len(samples) / self.modality.processor.rate)

    @abstractmethod
    async def align_tokens(
        self, source: EncodedInput, tokens: list[int], text: str, seconds: float
    ) -> AlignAudioResult:
        """The times of the tokens and words of a text in a recording of so many seconds."""

    async def tokens_in_sound(self, sound: Sound, text: str) -> tuple[int, int, int, int]:
        """How many tokens of a known text CTC alone finds where there is sound, and of how many; the same of positions.

        They are 0 without CTC.
        """
        return 0, 0, 0, 0

    @abstractmethod
    async def view(self, raw: RawSound, target: str | None, layer: Which, title: str) -> AttentionView:
        """The attention weights while the model reads a recording and writes `target`, or its own transcript."""

    # --- texts -------------------------------------------------------------------------------------------------

    def text_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of known texts."""
        return self.target.encode(list(texts))

    def reference(self, transcript: str) -> str:
        """The text of a transcript of the data."""
        return transcript

    def targets_to_learn(self) -> EncodeTargets:
        """The transcripts as the model learns them."""
        return PlainTargets(self.target)

    def scored_examples(self, examples: Source) -> list[int]:
        """The indices of the examples that fit the model in one pass."""
        return [*range(len(examples))]

    @abstractmethod
    def validation_decode(self) -> dict[str, object]:
        """Settings of decode.* without a search."""

    def require_ctc(self, feature: str) -> None:
        """Refuse something that needs CTC where the model has none."""
        if not self.context.model.ctc_weight:
            raise UserError(
                f"{feature} needs CTC, and this run was trained without; train with model.ctc.weight=0.3 and "
                "model.family=speech"
            )

    # --- long recordings ---------------------------------------------------------------------------------------

    @property
    def at_once(self) -> int:
        """Segments of a recording to decode side by side: fewer where many recordings are transcribed."""
        return max(min(AT_ONCE, SEGMENTS // max(self.running, 1)), 1)

    async def length_to_report(self, sound: Sound, emit: Emit | None) -> float:
        """The seconds of a recording; 0 if nobody wants to know how much of it is done."""
        return 0.0 if emit is None else await Read(self._measure, sound.raw)

    def read_chunks(self, requests: Sequence[tuple["Chunks[T]", int]]) -> list[list[T]]:
        """The function of `Read` jobs: chunks by their numbers."""
        return [chunks.read(number, self.at_once) for chunks, number in requests]

    def _measure(self, sounds: Sequence[RawSound]) -> list[float]:
        return [sound_info(sound, self.modality.processor.rate).seconds for sound in sounds]

    def _read_samples(self, sounds: Sequence[RawSound]) -> list[Array]:
        return [self.modality.processor.samples(sound) for sound in sounds]


class Chunks(Generic[T]):
    """An iterator in numbered chunks. The last one can be read again: a batch that fails is repeated in halves."""

    def __init__(self, items: Iterator[T]) -> None:
        self.items, self.count = items, 0
        self.last: list[T] = []
        self.error: BaseException | None = None

    def read(self, number: int, size: int) -> list[T]:
        """Chunk `number`, of at most `size` items; empty at the end."""
        if self.error is not None:
            raise self.error
        if number == self.count:
            try:
                self.last = list(islice(self.items, size))
            except BaseException as error:
                self.error = error
                raise
            self.count += 1
        return self.last


def progress_emit(sound: Sound, emit: Emit | None, on_progress: OnProgress | None) -> Emit | None:
    """Where a request emits if `on_progress` also wants to know how much is done."""
    if on_progress is None:
        return emit
    name, report = sound_name(sound.raw), on_progress

    def emit_both(delta: Delta) -> None:
        if isinstance(delta, ProgressDelta):
            report(name, delta.done, delta.total)
        if emit is not None:
            emit(delta)

    return emit_both


def join_segments(
    segments: Sequence[TranscriptSegment],
    seconds: float,
    usage: Usage,
    length_penalty: float = 1.0,
    separator: str = " ",
    language: str = "",
) -> TranscribeResult:
    """The result of a recording, joined from its segments. Times count from the beginning of the recording already."""
    best = [segment.nbest[0] for segment in segments if segment.nbest]
    joined = join_texts(best, length_penalty, separator)
    nbest = segments[0].nbest if len(segments) == 1 else (GeneratedText(**joined),)
    missing = tuple(chain.from_iterable(text.missing for text in best))
    notices = tuple(map(missing_phrase, missing[:1])) if best else (no_text() if segments else silent_recording(),)
    return TranscribeResult(
        **joined, nbest=nbest, usage=usage, segments=tuple(segments), seconds=round(seconds, 3), language=language,
        notices=notices,
    )  # fmt: skip
