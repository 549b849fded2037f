"""Whisper: transcripts with times of recordings of any length, in windows of 30 seconds.

A window is encoded once, and decoded until its text is good enough: at temperature 0, then by sampling at rising
temperatures. The engine decodes windows of different recordings together. With `decode.windows.sequential`, the next
window of a recording begins where the last complete segment ended, and reads the text so far; otherwise recordings are
cut at pauses, so that the windows of one recording are decoded together too.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch

from ...adapt.heads import remaining_heads
from ...config.strategies import Beam, DecodeStrategy, Greedy, Sample
from ...data.datasets.targets import EncodeTargets
from ...data.source import Source
from ...decode import Hypothesis
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Gather, Generate, ModelContext, Read
from ...decode.engine.passes import Encode, NextLogits, Score, TokenTrace, Trace
from ...decode.search.timestamps import TimestampRules
from ...errors import UserError
from ...families.protocols import as_module
from ...look import AttentionView, Which
from ...messages.media import Sound
from ...messages.speech import AlignAudioResult, TranscribeRequest, TranscribeResult
from ...modalities.base import EncodedInput
from ...modalities.sound import SoundModality
from ...modalities.times import Span, shift_span
from ...parts import Inputs
from ...processors.sound.log_mel import AudioProcessor
from ...processors.sound.read import RawSound, sound_info
from ...processors.text.whisper import WhisperTokenizer, WhisperTranscripts, text_language
from ..generate.plans import Plan, Planner
from ..generate.writer import TextWriter
from ..notices import require_finite
from ..transcribe.settings import WhisperRun
from ..transcribe.transcriber import Chunks, Transcriber
from .recordings import SoundWindow, open_recordings, read_windows, windows_at_pauses
from .transcript import Transcript, WindowResult, WindowTrace, known_details
from .windows import SplitWindow, TokenSegment, check_quality, cut_repetition, split_window
from .word_times import token_spans

CONDITIONED_BELOW = 0.5  # text that was sampled at a higher temperature is not read by the next window
PROMPT = 4  # the most tokens before a known text: START, language, task, no timestamps


class WhisperTranscriber(Transcriber):
    """Recordings window by window."""

    run: WhisperRun
    target: WhisperTokenizer

    def __init__(
        self, run: WhisperRun, context: ModelContext, target: WhisperTokenizer, sound: AudioProcessor, plan: Planner
    ) -> None:
        super().__init__(run, context, target, WindowModality(sound, context.model.stride), plan)
        self.sound = sound
        self.positions: int = run.model.positions.tokens  # of prompt and text
        self.vocab: int = run.model.vocab or target.size
        control = target.control
        self.timestamp_rules = TimestampRules(
            target.first_timestamp, target.end, control.no_timestamps, control.latest_start, target.text_end
        )

    @property
    def max_previous(self) -> int:
        """The most tokens of the text before a window."""
        return self.positions // 2 - 1

    @cached_property
    def heads(self) -> Sequence[tuple[int, int]]:
        """The heads, by layer, that follow a recording; none are known of some models."""
        return remaining_heads(as_module(self.context.model), "cross", self.run.model.alignment_heads)

    def plan_of(self, request: TranscribeRequest) -> Plan:
        plan: Plan = self.plan(request)
        decode = plan.decode
        if (count := plan.strategy.n) > 1:
            raise UserError(
                f"decode.strategy.n is {count}, and a Whisper model finds one text; use decode.strategy.n=1"
            )
        if decode.windows.timestamps and self.target.first_timestamp >= self.vocab:
            raise UserError(
                "decode.windows.timestamps is true, and this model has no timestamps; use "
                "decode.windows.timestamps=false"
            )
        self.target.prompt(next(iter(self.target.control.languages), ""), decode.task)  # refuses a task
        return plan

    # --- windows -----------------------------------------------------------------------------------------------

    async def transcribe(self, request: TranscribeRequest, plan: Plan, emit: Emit | None) -> TranscribeResult:
        plan = await self._with_timestamps(plan, request.sound)
        transcript = Transcript(self.target, self.code(plan.decode.language), plan.decode.task, self.positions, emit)
        if plan.decode.windows.sequential and plan.decode.windows.timestamps:
            await self._decode_in_sequence(request, plan, transcript)
        else:
            await self._decode_at_pauses(request, plan, transcript)
        return transcript.result()

    async def _with_timestamps(self, plan: Plan, sound: Sound) -> Plan:
        """The plan for this recording, which may be longer than a window."""
        decode = plan.decode
        if decode.windows.timestamps != "long":
            return plan
        timestamps = await Read(self._measure, sound.raw) > self.sound.seconds
        windows = decode.windows.model_copy(update={"timestamps": timestamps})
        return replace(plan, decode=decode.model_copy(update={"windows": windows}))

    async def _decode_in_sequence(self, request: TranscribeRequest, plan: Plan, transcript: Transcript) -> None:
        recording = await Read(open_recordings, (request.sound.raw, self.sound))
        transcript.seconds = transcript.total = recording.seconds
        first = 0
        while (window := await Read(read_windows, (recording, first))) is not None:
            encoded = await self.encode(window)
            await self._detect_language(encoded, transcript)
            reads = plan.decode.windows.condition_on_previous and transcript.conditioned
            previous = transcript.previous if reads else []
            text = await self.decode_window(window, encoded, plan, self._prompt(transcript, plan, previous), request)
            transcript.conditioned = text.temperature < CONDITIONED_BELOW
            first += max(round(transcript.add_complete(window, text) * recording.rate), 1)
            transcript.report(first / recording.rate)

    async def _decode_at_pauses(self, request: TranscribeRequest, plan: Plan, transcript: Transcript) -> None:
        """No window reads the text of another, so they are decoded side by side."""
        transcript.total, read, done = await self.length_to_report(request.sound, transcript.emit), [0.0], 0
        chunks = Chunks(windows_at_pauses(request.sound, self.modality, self.sound, read))
        while windows := await Read(self.read_chunks, (chunks, done)):
            states = await Gather([self.encode(window) for window in windows])
            await self._detect_language(states[0], transcript)
            prompt = self._prompt(transcript, plan, [])
            pairs = zip(windows, states, strict=True)
            texts = await Gather([self.decode_window(*pair, plan, prompt, request) for pair in pairs])
            transcript.seconds = read[0]
            for window, text in zip(windows, texts, strict=True):
                transcript.add_all(window, text)
                transcript.report(window.start + window.seconds)
            windows.clear()  # also in `chunks`, so that the next frames take their place
            done += 1
        transcript.seconds = read[0]

    async def encode(self, window: SoundWindow) -> Inputs:
        """The output of the encoder."""
        return await Encode(Inputs("frames", torch.from_numpy(window.frames)[None]))

    async def decode_window(
        self, window: SoundWindow, encoded: Inputs, plan: Plan, prompt: tuple[int, ...], request: TranscribeRequest
    ) -> WindowResult:
        """The text of a window: rising temperatures until it is good enough, segments, times of words."""
        decode, no_speech = plan.decode, await self._no_speech(encoded, prompt, plan)
        key = self.modality.key(window.frames, window.frames)
        for temperature in decode.windows.temperatures:
            strategy = self.strategy_at(temperature, plan)
            best = await self.generate(encoded, prompt, f"{key} {temperature}", strategy, plan)
            quality = check_quality(best, no_speech, decode.windows, self.target.end, self.vocab)
            if not quality.again:
                break
        else:
            if 0 < decode.windows.compression_ratio_threshold < quality.ratio:  # it repeats itself at every temperature
                best = replace(best, tokens=cut_repetition(best.tokens))
        if quality.skip:
            return WindowResult(None, SplitWindow([], [], window.seconds), temperature)
        if decode.windows.timestamps:
            split = split_window(best.tokens, self.target, window.seconds)
        else:
            split = SplitWindow([TokenSegment(best.tokens, 0.0, window.seconds)], [], window.seconds)
        full = len(prompt) + len(best.tokens) >= self.positions
        result = WindowResult(
            best, split, temperature, quality, no_speech, "end" if best.ended else "context" if full else "length"
        )
        return result if not request.details else await self._with_trace(result, window, encoded, prompt, plan)

    async def _with_trace(
        self, result: WindowResult, window: SoundWindow, encoded: Inputs, prompt: tuple[int, ...], plan: Plan
    ) -> WindowResult:
        """With the log-probabilities of tokens and the times of words, by a second pass."""
        assert result.best is not None
        tokens, split = result.best.tokens, result.split
        seconds, count = window.seconds, len(tokens)
        if plan.decode.windows.sequential:  # so that no word is in the next window
            seconds, count = min(split.used, seconds), sum(len(segment.tokens) for segment in split.segments)
        trace = await Trace(encoded, prompt, tuple(tokens), encoded=True)
        return result._replace(trace=WindowTrace(trace.logprobs, self.token_times(trace, tokens[:count], seconds)))

    def token_times(self, trace: TokenTrace, tokens: Sequence[int], seconds: float) -> dict[int, Span]:
        """The times of the tokens of text, which lie within the first `seconds` of a window."""
        words = [i for i, token in enumerate(tokens) if self.target.is_text(token)]
        if not words:
            return {}
        rows = torch.tensor([*words, words[-1] + 1])  # the last one predicts what follows the text
        step = self.modality.stride * self.sound.hop / self.sound.rate
        positions = max(round(seconds * self.sound.rate / self.sound.hop) // self.modality.stride, 1)
        spans = token_spans([weights[:, rows, :positions] for _, weights in trace.cross], self.heads)
        return {i: (first * step, (last + 1) * step) for i, (first, last) in zip(words, spans, strict=True)}

    # --- the model ---------------------------------------------------------------------------------------------

    def code(self, language: str) -> str:
        """The code of a language; "" if none is given."""
        return self.target.language(language) if language else ""

    @property
    def run_language(self) -> str:
        """The code of decode.language of the run."""
        return self.code(self.run.decode.language)

    async def _detect_language(self, encoded: Inputs, transcript: Transcript) -> None:
        """The language of a recording, by its first window."""
        if self.target.multilingual and not transcript.language:
            transcript.language = await self.spoken_language(encoded)

    async def spoken_language(self, encoded: Inputs) -> str:
        """The code of the likeliest language."""
        languages = self.target.control.languages
        scores = (await NextLogits(encoded, (self.target.start,)))[list(languages.values())]
        return list(languages)[int(scores.argmax())]

    async def _no_speech(self, encoded: Inputs, prompt: tuple[int, ...], plan: Plan) -> float | None:
        token = self.target.control.no_speech
        if plan.decode.windows.no_speech_threshold >= 1 or token is None:
            return None
        logits = await NextLogits(encoded, prompt[: prompt.index(self.target.start) + 1])
        return float(logits.softmax(0)[token])

    def _prompt(self, transcript: Transcript, plan: Plan, previous: Sequence[int]) -> tuple[int, ...]:
        decode = plan.decode
        given = self.target.encode_words(decode.prompt, transcript.text_language) if decode.prompt.strip() else []
        recent = [*given, *previous][-self.max_previous :]
        return self.target.prompt(transcript.language, decode.task, decode.windows.timestamps, recent)

    def strategy_at(self, temperature: float, plan: Plan) -> DecodeStrategy:
        """The strategy of a request; above temperature 0, samples."""
        if temperature:
            return Sample(temperature, seed=plan.decode.windows.seed)
        strategy: Greedy | Beam = plan.decode.strategy
        return strategy

    async def generate(
        self, encoded: Inputs, prompt: tuple[int, ...], key: str, strategy: DecodeStrategy, plan: Plan
    ) -> Hypothesis:
        """The best hypothesis of a window."""
        decode, rules = plan.decode, plan.rules
        if not isinstance(strategy, Beam):  # then scores are probabilities among the tokens that the rules allow
            rules = replace(rules, renormalize_logits=True)
        timestamps = (self.timestamp_rules,) if decode.windows.timestamps else ()
        hypotheses = await Generate(
            prompt, encoded, strategy, min(decode.max_tokens or self.positions, self.positions - len(prompt)),
            timestamps, decode.repetition_penalty, key=key, rules=rules,
            min_tokens=decode.min_tokens, encoded=True,
        )  # fmt: skip
        if not hypotheses:
            require_finite([float(encoded.values.sum())])
        return hypotheses[0] if hypotheses else Hypothesis([], 0.0, 0.0, True)

    # --- known texts -------------------------------------------------------------------------------------------

    async def known_logprobs(self, sound: Sound, text: str) -> tuple[list[int], list[float]]:
        tokens: list[int] = await Read(self.text_ids, text)
        source: EncodedInput = await Read(self.modality.read, sound)
        encoded = await Encode(source.inputs)
        prompt = self._known_prompt(await self._known_language(encoded), tokens)
        return tokens, await Score(encoded, prompt, tuple(tokens), encoded=True)

    async def _known_language(self, encoded: Inputs) -> str:
        """decode.language of the run, else the detected language; "" of a model that knows one."""
        if self.target.multilingual and not self.run.decode.language:
            return await self.spoken_language(encoded)
        return self.run_language

    def _known_prompt(self, language: str, tokens: Sequence[int] = ()) -> tuple[int, ...]:
        """The prompt of a known text, without timestamps."""
        prompt = self.target.prompt(language, self.run.decode.task, False)
        if (length := len(prompt) + len(tokens)) > self.positions:
            raise UserError(
                f"a text has {length:,} tokens with its prompt and the model reads {self.positions:,}; shorten it"
            )
        return prompt

    async def align_tokens(
        self, source: EncodedInput, tokens: list[int], text: str, seconds: float
    ) -> AlignAudioResult:
        """By the cross-attention of the heads that follow the recording."""
        encoded = await Encode(source.inputs)
        language = await self._known_language(encoded)
        trace = await Trace(encoded, self._known_prompt(language, tokens), tuple(tokens), encoded=True)
        spans = self.token_times(trace, tokens, seconds)
        times = [shift_span(spans[i], 0.0, round(seconds, 3)) for i in range(len(tokens))]
        (spoken,) = self.target.decode([tokens])
        details = known_details(self.target, spoken, tokens, times, text_language(language, self.run.decode.task))
        total, count = sum(trace.logprobs), len(trace.logprobs)
        return AlignAudioResult(text, total / count, total, "end", count, logprobs=tuple(trace.logprobs), **details)

    async def view(self, raw: RawSound, target: str | None, layer: Which, title: str) -> AttentionView:
        source: EncodedInput = await Read(self.modality.read, raw)
        encoded = await Encode(source.inputs)
        language = await self._known_language(encoded)
        if target is None:
            plan = self.plan(TranscribeRequest(Sound(raw)), timestamps=False)
            best = await self.generate(encoded, self._known_prompt(language), "", Greedy(), plan)
            tokens = best.tokens
        else:
            (tokens,) = self.text_ids([target])
        prompt = self._known_prompt(language, tokens)
        return await TextWriter(self.context).view(self.modality, source, tokens, layer, title, prompt[1:])

    # --- texts -------------------------------------------------------------------------------------------------

    def text_ids(self, texts: Sequence[str]) -> list[list[int]]:
        language = text_language(self.run_language, self.run.decode.task)
        return [self.target.encode_words(text, language) for text in texts]

    def reference(self, transcript: str) -> str:
        return self.target.plain(transcript)

    def targets_to_learn(self) -> EncodeTargets:
        data = self.run.data
        language = self.target.data_language(data.language)
        if data.task not in self.target.control.tasks and data.task != "transcribe":
            raise UserError(f"data.task is {data.task}, and this model does not {data.task}; start from another one")
        return WhisperTranscripts(
            self.target, language, data.task, data.timestamps, data.keep_prompts, self.max_previous
        )

    def scored_examples(self, examples: Source) -> list[int]:
        texts = [self.reference(examples.text(index, 1)) for index in range(len(examples))]
        sizes = [len(self.target.encode_words(text, "")) for text in texts]
        max_tokens, longest = self.positions - PROMPT, longest_seconds(self.sound)
        chosen = [i for i, size in enumerate(sizes) if size <= max_tokens and examples.seconds(i) <= longest]
        if long := len(sizes) - len(chosen):
            warnings.warn(
                f"{long:,} of {len(sizes):,} recordings have more than {self.sound.seconds} seconds or {max_tokens:,} "
                "tokens and do not count in the loss",
                stacklevel=2,
            )
        return chosen

    def validation_decode(self) -> dict[str, object]:
        return {"strategy": {"kind": "greedy"}, "windows": {"temperatures": (0.0,), "no_speech_threshold": 1.0}}


class WindowModality(SoundModality):
    """Recordings with known texts, which are one window."""

    processor: AudioProcessor

    def check(self, raw: RawSound) -> None:
        seconds = sound_info(raw, self.processor.rate).seconds
        if seconds > longest_seconds(self.processor):
            raise UserError(
                f"the recording has {seconds:.1f} seconds and the model reads {self.processor.seconds}; give its parts"
            )


def longest_seconds(sound: AudioProcessor) -> float:
    """The longest recording that is one window; a rounded length is not too long."""
    return sound.seconds + sound.hop / sound.rate
