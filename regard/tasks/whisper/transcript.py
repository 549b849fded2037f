"""The transcript of a recording, which grows window by window."""

from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from ...decode import Hypothesis
from ...decode.engine.answer import Emit, ProgressDelta, SegmentDelta, TextDelta
from ...messages.speech import TranscribeResult, TranscriptSegment
from ...messages.texts import FinishReason, GeneratedText, TimeAlignment, Usage
from ...modalities.times import Span, shift_span, timed_words
from ...processors.text.whisper import UNSPACED, WhisperTokenizer, text_language
from ..transcribe.transcriber import join_segments
from .recordings import SoundWindow
from .windows import SplitWindow, TokenSegment, WindowQuality, without_pair


class WindowTrace(NamedTuple):
    """The log-probabilities and times of the tokens of a window."""

    logprobs: list[float]  # of every token of a window, END included
    times: dict[int, Span]  # of tokens of text, in seconds from the beginning of the window


class WindowResult(NamedTuple):
    """What the model wrote for a window."""

    best: Hypothesis | None  # None: nobody speaks
    split: SplitWindow
    temperature: float = 0.0
    quality: WindowQuality | None = None
    no_speech: float | None = None  # the probability that nobody speaks, if it was computed
    finish: FinishReason = "end"
    trace: WindowTrace | None = None


@dataclass(eq=False)
class Transcript:
    """The segments of a recording so far."""

    target: WhisperTokenizer
    language: str  # the code; "": not detected yet, or the model knows one
    task: str
    kept: int  # tokens of the text so far that are kept, at most
    emit: Emit | None = None
    seconds: float = 0.0  # as far as the recording is read
    total: float = 0.0  # its length, if somebody wants to know how much is done
    segments: list[TranscriptSegment] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)  # tokens of the text so far
    conditioned: bool = True  # the next window reads them
    begun: bool = False  # it has text
    input: int = 0  # frames that were read
    output: int = 0  # tokens that were written

    @property
    def text_language(self) -> str:
        """The code of the language of the text."""
        return text_language(self.language, self.task)

    @property
    def separator(self) -> str:
        """What stands between segments."""
        return "" if self.text_language in UNSPACED else " "

    def add_complete(self, window: SoundWindow, text: WindowResult) -> float:
        """Add the segments of a window that are complete; return how many of its seconds they take."""
        self.input += len(window.frames)
        self.output += 0 if text.best is None else len(text.best.tokens) + text.best.ended
        offset = 0
        for segment in text.split.segments:
            self._add(window, segment, text, offset)
            offset += len(segment.tokens)
        return text.split.used

    def add_all(self, window: SoundWindow, text: WindowResult) -> None:
        """Add all segments of a window, also the one that its end cuts."""
        self.add_complete(window, text)
        if text.best is not None and self.target.text_tokens(cut := text.split.cut):
            segment = TokenSegment(cut, self.target.seconds(cut[0]), window.seconds)
            self._add(window, segment, text, len(text.best.tokens) - len(cut))

    def report(self, seconds: float) -> None:
        """Emit how much of the recording is done."""
        if self.emit is not None:
            self.emit(ProgressDelta(min(seconds, self.total), self.total))

    def result(self) -> TranscribeResult:
        """The result of the recording."""
        usage = Usage(self.input, self.output)
        return join_segments(self.segments, self.seconds, usage, separator=self.separator, language=self.language)

    def _add(self, window: SoundWindow, segment: TokenSegment, text: WindowResult, offset: int) -> None:
        quality = text.quality
        assert quality is not None
        chosen = [i for i, token in enumerate(segment.tokens) if self.target.is_text(token)]
        ids = [segment.tokens[i] for i in chosen]
        (spoken,) = self.target.decode([ids])
        end = min(window.start + window.seconds, self.seconds)
        start, stop = shift_span((segment.start, segment.end), window.start, round(end, 3))
        details, logprobs = KnownDetails(), tuple[float, ...]()
        if text.trace is not None:
            places = [offset + i for i in chosen]
            times = [shift_span(text.trace.times[i], window.start, round(end, 3)) for i in places]
            details = known_details(self.target, spoken, ids, times, self.text_language)
            logprobs = tuple(text.trace.logprobs[i] for i in places)
        mean = quality.logprob
        length = max(len(ids), 1)
        written = GeneratedText(
            spoken.strip(), mean, mean * len(ids), text.finish, length, logprobs=logprobs, **details
        )
        about = text.temperature, quality.ratio, text.no_speech, tuple(segment.tokens)
        self.segments.append(TranscriptSegment(start, max(stop, start), (written,), *about))
        self.previous = [*self.previous, *without_pair(segment.tokens, self.target)][-self.kept :]
        self._emit(self.segments[-1])

    def _emit(self, segment: TranscriptSegment) -> None:
        if self.emit is None:
            return
        if segment.text:
            self.emit(TextDelta(f"{self.separator if self.begun else ''}{segment.text}"))
            self.begun = True
        self.emit(SegmentDelta(segment.start, segment.end, segment.text))


class KnownDetails(TypedDict, total=False):
    """Fields of texts whose times are known."""

    tokens: tuple[str, ...]
    alignment: TimeAlignment


def known_details(
    target: WhisperTokenizer, text: str, ids: list[int], times: list[Span], language: str
) -> KnownDetails:
    """The tokens of a text with their times and those of its words; `language` is the code of its language."""
    words = timed_words(text, ids, times, target, language in UNSPACED)
    return {"tokens": tuple(target.tokens(ids)), "alignment": TimeAlignment(tuple(times), tuple(words))}
