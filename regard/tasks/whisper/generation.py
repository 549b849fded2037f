"""Whisper: transcripts with times of recordings of any length, in windows of 30 seconds.

A window is encoded once, and decoded until its text is good enough: at temperature 0, then by sampling at rising
temperatures. Windows of different recordings are decoded together. With `decode.sequential`, the next window of a
recording begins where the last complete segment ended, and reads the text so far; otherwise recordings are cut at
pauses, so that the windows of one recording are decoded together too.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...adapt.heads import remaining_heads
from ...config.strategies import DecodeStrategy
from ...decode import Generator, Greedy, Hypothesis, Sample, SearchRequest
from ...decode.engine.wrappers import EncodedSources, source_rows
from ...decode.search.timestamps import TimestampRules
from ...errors import UserError
from ...families.protocols import as_module
from ...parts import Encoded, Inputs
from ...processors.sound.log_mel import AudioProcessor
from ...processors.text.whisper import UNSPACED, WhisperTokenizer
from ..notices import require_finite
from ..transcribe.generation import SoundGeneration, frames_key
from ..transcribe.requests import (
    DecodedWindow,
    TimedWord,
    TranscribeRequest,
    TranscribeResult,
    Transcript,
    TranscriptSegment,
)
from ..transcribe.settings import TranscribeDecode
from ..transcribe.transcripts import join_segments, timed_words
from .recordings import Recording, SoundWindow, WindowSequence, next_window, sequential_windows, windows_at_pauses
from .windows import SplitWindow, TokenSegment, check_quality, cut_repetition, split_window, without_pair
from .word_times import token_spans

CONDITIONED_BELOW = 0.5  # text that was sampled at a higher temperature is not read by the next window


class WindowHypothesis(NamedTuple):
    """The hypothesis of a window with its prompt and scores."""

    hypothesis: Hypothesis
    prompt: tuple[int, ...]
    about: DecodedWindow


class WindowTrace(NamedTuple):
    """The log-probabilities and times of the tokens of a window."""

    logprobs: list[float]  # of every token of a window, END included
    times: dict[int, tuple[float, float]]  # of tokens of text, in seconds from the beginning of the window


class WindowResult(NamedTuple):
    """The result of one window of a recording."""

    decoded: WindowHypothesis | None  # None: nobody speaks
    split: SplitWindow
    trace: WindowTrace | None


class WhisperGeneration(SoundGeneration):
    """Transcribe recordings window by window."""

    sound: AudioProcessor
    target: WhisperTokenizer
    encoded_model: EncodedSources
    timestamp_rules: TimestampRules

    @property
    def positions(self) -> int:
        """The most tokens of prompt and text."""
        tokens: int = self.run.model.positions.tokens
        return tokens

    @property
    def max_previous(self) -> int:
        """The most tokens of the text before a window."""
        return self.positions // 2 - 1

    @property
    def vocab(self) -> int:
        size: int = self.run.model.vocab or self.target.size
        return size

    def transcribe(self, requests: Sequence[TranscribeRequest], settings: TranscribeDecode) -> list[TranscribeResult]:
        self.refuse_unsuitable(requests, settings)
        language = self.target.language(settings.language) if settings.language else ""
        recordings = [Recording(i, request, language, settings.task) for i, request in enumerate(requests)]
        if settings.sequential and settings.timestamps:
            self._decode_sequentially(recordings, settings)
        else:
            # a window reads no text of others: which ones are decoded before it depends on the batch
            settings = settings.model_copy(update={"condition_on_previous": False})
            windows = (window for recording in recordings for window in windows_at_pauses(recording, self.sound))
            while batch := list(islice(windows, settings.batch)):
                for window, text in zip(batch, self._decode_windows(batch, settings), strict=True):
                    self._add_all(window, text)
                    self._report(window.recording, window.start + window.seconds)
        return [self._result(recording) for recording in recordings]

    def refuse_unsuitable(self, requests: Sequence[TranscribeRequest], settings: TranscribeDecode) -> None:
        if settings.kind == "ctc":
            self.require_ctc("decode.kind=ctc")
        if settings.nbest > 1:
            raise UserError(f"decode.nbest is {settings.nbest}, and a Whisper model finds one text; use decode.nbest=1")
        for name in ("prefix", "include", "exclude"):
            if getattr(settings, name) or any(getattr(request, name) for request in requests):
                raise UserError(
                    f"decode.{name} has no effect on a Whisper model; decode.prompt tells it which words to expect"
                )
        if settings.timestamps and self.target.first_timestamp >= self.vocab:
            raise UserError("decode.timestamps is true, and this model has no timestamps; use decode.timestamps=false")
        self.target.prompt(next(iter(self.target.control.languages), ""), settings.task)  # refuses a task

    # --- windows -----------------------------------------------------------------------------------------------

    def _decode_sequentially(self, recordings: Sequence[Recording], settings: TranscribeDecode) -> None:
        """Decode windows in sequence: one window of each recording at a time, for a batch of recordings."""
        waiting = (sequential_windows(recording, self.sound, self._report) for recording in recordings)
        running: list[tuple[WindowSequence, SoundWindow]] = []
        while True:
            while len(running) < settings.batch and (new := next(waiting, None)) is not None:
                if (first := next(new, None)) is not None:
                    running.append((new, first))
            if not running:
                return
            texts = self._decode_windows([window for _, window in running], settings)
            used = [self._add_complete(window, text) for (_, window), text in zip(running, texts, strict=True)]
            sequences = [sequence for sequence, _ in running]
            following = map(next_window, sequences, used)
            pairs = zip(sequences, following, strict=True)
            running = [(sequence, window) for sequence, window in pairs if window is not None]

    def _report(self, recording: Recording, position: float) -> None:
        recording.total_seconds = self.report_progress(recording.request.sound, position, recording.total_seconds)

    # --- decoding ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _decode_windows(self, windows: Sequence[SoundWindow], settings: TranscribeDecode) -> list[WindowResult]:
        source = Inputs("frames", torch.from_numpy(np.stack([window.frames for window in windows]))).to(self.device)
        encoded = self.model.encode(source)
        self._detect_languages(windows, encoded)
        prompts = [self._prompt(window.recording, settings) for window in windows]
        silence = self._no_speech(encoded, prompts) if settings.no_speech_threshold < 1 else [None] * len(windows)
        texts = self._decode_until_good(windows, source_rows(encoded), prompts, silence, settings)
        results = []
        for row, (window, text) in enumerate(zip(windows, texts, strict=True)):
            split = SplitWindow([], [], window.seconds)
            trace: WindowTrace | None = None
            if text is not None:
                tokens = text.hypothesis.tokens
                if settings.timestamps:
                    split = split_window(tokens, self.target, window.seconds)
                else:
                    split = SplitWindow([TokenSegment(tokens, 0.0, window.seconds)], [], window.seconds)
                if window.recording.request.details:
                    row_encoded = Encoded(encoded.states[row : row + 1])
                    complete = (
                        sum(len(segment.tokens) for segment in split.segments) if settings.sequential else len(tokens)
                    )
                    seconds = min(split.used, window.seconds) if settings.sequential else window.seconds
                    trace = self._trace(row_encoded, text, seconds, complete)  # so that no word is in the next window
            results.append(WindowResult(text, split, trace))
        return results

    def _prompt(self, recording: Recording, settings: TranscribeDecode) -> tuple[int, ...]:
        previous: list[int] = []
        if settings.prompt.strip():
            previous = self.target.encode_words(settings.prompt, recording.text_language)
        if settings.condition_on_previous and recording.conditioned:
            previous += recording.previous
        recent = previous[-self.max_previous :]
        return self.target.prompt(recording.language, settings.task, settings.timestamps, recent)

    def _detect_languages(self, windows: Sequence[SoundWindow], encoded: Encoded) -> None:
        """The language of every recording, by its first window."""
        new = [i for i, window in enumerate(windows) if self.target.multilingual and not window.recording.language]
        for i, code in zip(new, self.spoken_languages(Encoded(encoded.states[new])) if new else (), strict=True):
            recording = windows[i].recording
            recording.language = recording.language or code  # of several windows, the first one decides

    def spoken_languages(self, encoded: Encoded) -> list[str]:
        """The likeliest language of every row, by code."""
        languages = self.target.control.languages
        codes, ids = list(languages), torch.tensor(list(languages.values()), device=self.device)
        scores = self._start_logits(encoded, [(self.target.start,)] * len(encoded.states))
        return [codes[best] for best in scores[:, ids].argmax(1).tolist()]

    def _no_speech(self, encoded: Encoded, prompts: Sequence[tuple[int, ...]]) -> list[float | None]:
        token = self.target.control.no_speech
        if token is None:
            return [None] * len(prompts)
        started = [prompt[: prompt.index(self.target.start) + 1] for prompt in prompts]
        return self._start_logits(encoded, started).softmax(1)[:, token].tolist()

    def _start_logits(self, encoded: Encoded, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """(rows, vocab): the logits after prompts that end in START."""
        rows = [torch.tensor(prompt) for prompt in prompts]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device)
        states = self.model.decode(Inputs("tokens", tokens), encoded)
        last = torch.tensor([len(prompt) - 1 for prompt in prompts], device=self.device)
        return self.model.logits(states[torch.arange(len(rows), device=self.device), last]).float()

    def _decode_until_good(
        self,
        windows: Sequence[SoundWindow],
        sources: Sequence[Inputs],
        prompts: Sequence[tuple[int, ...]],
        silence: Sequence[float | None],
        settings: TranscribeDecode,
    ) -> list[WindowHypothesis | None]:
        """The text of every window, None where nobody speaks; rising temperatures until it is good enough."""
        texts: list[WindowHypothesis | None] = [None] * len(windows)
        keys, pending = [frames_key(window.frames) for window in windows], list(range(len(windows)))
        for temperature in settings.temperatures:
            strategy = self.strategy_at(temperature, settings)
            sample_keys = [f"{keys[i]} {temperature}" for i in pending]
            hypotheses = self._generate(
                [sources[i] for i in pending], [prompts[i] for i in pending], sample_keys, strategy, settings
            )
            remaining, last = [], temperature == settings.temperatures[-1]
            for i, best in zip(pending, hypotheses, strict=True):
                quality = check_quality(best, silence[i], settings, self.target.end, self.vocab)
                repeats = 0 < settings.compression_ratio_threshold < quality.ratio
                if last and repeats:  # it repeats itself at every temperature
                    best = replace(best, tokens=cut_repetition(best.tokens))
                about = DecodedWindow(temperature, quality.logprob, quality.ratio, silence[i])
                texts[i] = None if quality.skip else WindowHypothesis(best, prompts[i], about)
                windows[i].recording.conditioned = temperature < CONDITIONED_BELOW
                remaining += [i] if quality.again else []
            pending = remaining
            if not pending:
                break
        return texts

    def strategy_at(self, temperature: float, settings: TranscribeDecode) -> DecodeStrategy:
        if not temperature:
            return Greedy() if settings.kind == "sample" else self.strategy(settings)
        return Sample(temperature, seed=settings.seed)

    def _generate(
        self,
        sources: Sequence[Inputs],
        prompts: Sequence[tuple[int, ...]],
        keys: Sequence[str],
        strategy: DecodeStrategy,
        settings: TranscribeDecode,
    ) -> list[Hypothesis]:
        rules = self.rules(settings)
        if strategy.kind != "beam":  # then scores are probabilities among the tokens that the rules allow
            rules = replace(rules, renormalize_logits=True)
        filters = (self.timestamp_rules,) if settings.timestamps else ()
        generator = Generator(
            self.encoded_model, self.target.end, (), settings.batch, None, self.positions, self.constraint_tokenizer
        )
        handles = [
            generator.submit(
                SearchRequest(
                    prompt,
                    source,
                    strategy,
                    min(settings.max_tokens or self.positions, self.positions - len(prompt)),
                    filters,
                    settings.repetition_penalty,
                    key=key,
                    rules=rules,
                    min_tokens=settings.min_tokens,
                )
            )
            for prompt, source, key in zip(prompts, sources, keys, strict=True)
        ]
        generator.drain()
        hypotheses = []
        for source, handle in zip(sources, handles, strict=True):
            best = handle.result()
            if not best:
                require_finite([float(source.values.sum())])
            hypotheses.append(best[0] if best else Hypothesis([], 0.0, 0.0, True))
        return hypotheses

    # --- times of words ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def _trace(self, encoded: Encoded, text: WindowHypothesis, seconds: float, count: int) -> WindowTrace:
        """Log-probabilities of the tokens of a window, by a second pass, and the times of the first `count` tokens.

        These times lie within the first `seconds` of the window.
        """
        tokens = text.hypothesis.tokens
        logprobs, view = self.times.decode(encoded, tokens, text.prompt)
        words = [i for i, token in enumerate(tokens[:count]) if self.target.is_text(token)]
        times: dict[int, tuple[float, float]] = {}
        if words:
            rows = torch.tensor([*words, words[-1] + 1])  # the last one predicts what follows the text
            positions = max(round(seconds * self.sound.rate / self.sound.hop) // self.model.stride, 1)
            followed = [weights[:, rows, :positions] for weights in view.cross_layers()]
            spans = token_spans(
                followed, remaining_heads(as_module(self.model), "cross", self.run.model.alignment_heads)
            )
            step = self.model.stride * self.sound.hop / self.sound.rate
            times = {i: (first * step, (last + 1) * step) for i, (first, last) in zip(words, spans, strict=True)}
        return WindowTrace(logprobs, times)

    # --- results -----------------------------------------------------------------------------------------------

    def _add_complete(self, window: SoundWindow, text: WindowResult) -> float:
        """Add the segments of a window that are complete; return how many of its seconds they take."""
        offset = 0
        for segment in text.split.segments:
            self._add(window, segment, text, offset)
            offset += len(segment.tokens)
        return text.split.used

    def _add_all(self, window: SoundWindow, text: WindowResult) -> None:
        """Add all segments of a window, also the one that its end cuts."""
        self._add_complete(window, text)
        if text.decoded is not None and self.target.text_tokens(cut := text.split.cut):
            segment = TokenSegment(cut, self.target.seconds(cut[0]), window.seconds)
            self._add(window, segment, text, len(text.decoded.hypothesis.tokens) - len(cut))

    def _add(self, window: SoundWindow, segment: TokenSegment, text: WindowResult, offset: int) -> None:
        assert text.decoded is not None
        recording, about = window.recording, text.decoded.about
        chosen = [i for i, token in enumerate(segment.tokens) if self.target.is_text(token)]
        ids = [segment.tokens[i] for i in chosen]
        (spoken,) = self.target.decode([ids])
        end = min(window.start + window.seconds, recording.seconds)
        start, stop = (min(round(window.start + seconds, 3), round(end, 3)) for seconds in (segment.start, segment.end))
        logprob = about.logprob * len(ids)
        transcript = Transcript(
            spoken.strip(), about.logprob, logprob, text.decoded.hypothesis.ended, length=max(len(ids), 1)
        )
        if text.trace is not None:
            transcript = self._with_times(
                transcript, spoken, ids, [offset + i for i in chosen], text.trace, window, end
            )
        transcribed = TranscriptSegment(start, max(stop, start), (transcript,), about, tuple(segment.tokens))
        recording.segments.append(transcribed)
        recording.previous = [*recording.previous, *without_pair(segment.tokens, self.target)][-self.positions :]

    def _with_times(
        self,
        transcript: Transcript,
        text: str,
        ids: list[int],
        places: Sequence[int],
        trace: WindowTrace,
        window: SoundWindow,
        end: float,
    ) -> Transcript:
        spans = [trace.times[i] for i in places]
        times = [tuple(min(round(window.start + seconds, 3), round(end, 3)) for seconds in span) for span in spans]
        letters = window.recording.text_language in UNSPACED
        words = timed_words(text, ids, [(a, b) for a, b in times], self.target, letters)
        details: dict[str, Any] = {
            "pieces": tuple(self.target.tokens(ids)),
            "logprobs": tuple(trace.logprobs[i] for i in places),
            "times": tuple((a, b) for a, b in times),
            "words": tuple(TimedWord(*word) for word in words),
        }
        return replace(transcript, **details)

    def _result(self, recording: Recording) -> TranscribeResult:
        joined = join_segments(recording.segments, recording.seconds, 1.0)
        if recording.text_language in UNSPACED:
            joined = replace(joined, text="".join(segment.nbest[0].text for segment in recording.segments))
        return replace(joined, language=recording.language)
