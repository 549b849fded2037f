"""Generation from sound: segments of recordings to transcripts, by a search or by the best path of CTC."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from ...config.decode import DecodeBase
from ...data.loading.sampler import sorted_batches
from ...decode import Hypothesis
from ...decode.engine.wrappers import JointCTC
from ...errors import UserError
from ...families.protocols import SpeechModel, TokenModel
from ...parts import Encoded
from ...parts.parallel.ctc import best_path
from ...processors.base import Array
from ...processors.sound.frames import SoundFrames
from ...processors.sound.read import RawSound, sound_info, sound_name, stream_sound
from ...processors.sound.segments import segments
from ..generate.results import constraints_of
from ..generate.seq2seq import NO_CONSTRAINTS, SourceGeneration, SourceInputs
from ..generate.views import known_logprobs
from ..notices import require_finite
from .requests import TranscribeRequest, TranscribeResult, Transcript, TranscriptSegment
from .settings import TranscribeDecode
from .token_times import TokenTimes
from .transcripts import join_segments, make_transcript, shift_transcript

CHUNK = 4  # batches of segments in memory: the segments of a batch have similar lengths


class AudioSegment(NamedTuple):
    """A segment of a recording as frames."""

    recording: int
    number: int  # of the segment in its recording
    start: float  # in seconds
    end: float
    frames: Array


def frames_key(frames: Array) -> str:
    """A hash of the frames, which seeds sampling."""
    return hashlib.blake2b(frames.tobytes(), digest_size=16).hexdigest()


class SoundGeneration(SourceGeneration[Array]):
    """From recordings to transcripts. Memory does not grow with the length of a recording."""

    model: SpeechModel
    sound: SoundFrames
    joint: dict[float, JointCTC]  # by weight: the generator reuses the CUDA graphs of a model
    on_progress: Callable[[str, float, float], None] | None = None  # name of the recording, seconds done, all seconds

    def sources(self, items: Sequence[Array]) -> list[SourceInputs]:
        return [
            SourceInputs(self.sound.collate([frames]), len(frames) // 4 + 16, frames_key(frames)) for frames in items
        ]

    def token_model(self, settings: DecodeBase) -> TokenModel[Any]:
        weight = getattr(settings, "ctc", 0.0)
        if settings.kind != "beam" or not weight or not self.model.ctc_weight:
            return self.model
        if weight not in self.joint:
            self.joint[weight] = JointCTC(self.model, weight, self.target.pad, self.target.start, self.target.end)
        return self.joint[weight]

    def decode_settings(self, decode: Mapping[str, object]) -> TranscribeDecode:
        settings = super().decode_settings(decode)
        assert isinstance(settings, TranscribeDecode)
        return settings

    def transcribe(self, requests: Sequence[TranscribeRequest], settings: TranscribeDecode) -> list[TranscribeResult]:
        self.refuse_unsuitable(requests, settings)
        transcribed: list[list[TranscriptSegment]] = [[] for _ in requests]
        seconds = [0.0] * len(requests)
        audio_segments = self._audio_segments(requests, settings, seconds)
        while chunk := list(islice(audio_segments, CHUNK * settings.batch)):
            for audio, nbest in zip(chunk, self._decode(chunk, requests, settings), strict=True):
                hypotheses = tuple(shift_transcript(transcript, audio.start, audio.end) for transcript in nbest)
                segment = TranscriptSegment(round(audio.start, 3), round(audio.end, 3), hypotheses)
                transcribed[audio.recording].append(segment)
                self.report_progress(requests[audio.recording].sound, audio.end)
        pairs = zip(transcribed, seconds, strict=True)
        return [join_segments(parts, length, settings.length_penalty) for parts, length in pairs]

    def refuse_unsuitable(self, requests: Sequence[TranscribeRequest], settings: TranscribeDecode) -> None:
        """Refuse settings that this model cannot satisfy."""
        if settings.kind == "ctc":
            self.require_ctc("decode.kind=ctc")
        for name, none in (("language", ""), ("task", "transcribe"), ("prompt", "")):
            if (value := getattr(settings, name)) != none:
                raise UserError(
                    f"decode.{name} is {value!r}, and this run has one language and one task; leave it out, or use a "
                    "Whisper model"
                )

    def report_progress(self, sound: RawSound, done: float, total: float = 0.0) -> float:
        """Report how far a recording is read; return its length in seconds, which is measured if `total` is 0."""
        if self.on_progress is not None:
            total = total or sound_info(sound, self.sound.rate).seconds
            self.on_progress(sound_name(sound), min(done, total), total)
        return total

    def _audio_segments(
        self, requests: Sequence[TranscribeRequest], settings: TranscribeDecode, seconds: list[float]
    ) -> Iterator[AudioSegment]:
        """The segments of all recordings, in order; `seconds` gets the lengths of the recordings."""
        rate, longest = self.sound.rate, settings.segment or self.run.data.max_seconds

        def counted(recording: int, blocks: Iterable[Array]) -> Iterator[Array]:
            for block in blocks:
                seconds[recording] += len(block) / rate
                yield block

        for recording, request in enumerate(requests):
            blocks = counted(recording, stream_sound(request.sound, rate))
            for number, (start, samples) in enumerate(segments(blocks, rate, longest)):
                if number and constraints_of(request, self.run.decode).include:
                    raise UserError(
                        f"decode.include works for one segment, and the recording has more than {longest:g} seconds; "
                        "raise decode.segment, or leave decode.include out"
                    )
                if samples.min() < samples.max():  # digital silence has no transcript
                    frames = self.sound.encode(samples)
                    yield AudioSegment(recording, number, start, start + len(samples) / rate, frames)

    def _decode(
        self, audio_segments: Sequence[AudioSegment], requests: Sequence[TranscribeRequest], settings: TranscribeDecode
    ) -> list[list[Transcript]]:
        """The best transcripts of every segment, with times from its beginning."""
        frames = [audio.frames for audio in audio_segments]
        requested = [constraints_of(requests[audio.recording], self.run.decode) for audio in audio_segments]
        for number, audio in enumerate(audio_segments):
            if audio.number:  # the prefix begins the whole transcript
                requested[number] = requested[number]._replace(prefix="")
        if settings.kind == "ctc":
            if any(map(any, requested)):
                raise UserError(
                    "decode.prefix and decode.exclude need a search, and decode.kind=ctc is none; use decode.kind=beam"
                )
            hypotheses, constraints = self._best_paths(frames, settings), None
        else:
            constraints = self.constraints(requested, settings)
            hypotheses = self.generate(frames, settings, constraints)
        detailed = [number for number, audio in enumerate(audio_segments) if requests[audio.recording].details]
        traces = {
            i: self.times.traces(frames[i], [hypothesis.tokens for hypothesis in hypotheses[i]]) for i in detailed
        }
        return [
            [
                make_transcript(text, hypothesis, traces[i][rank] if i in traces else None, self.target, constraint)
                for rank, (text, hypothesis) in enumerate(zip(self.target_texts(best), best, strict=True))
            ]
            for i, (best, constraint) in enumerate(
                zip(hypotheses, constraints or [NO_CONSTRAINTS] * len(hypotheses), strict=True)
            )
        ]

    @torch.no_grad()
    def _best_paths(self, frames: Sequence[Array], settings: TranscribeDecode) -> list[list[Hypothesis]]:
        hypotheses: list[list[Hypothesis]] = [[] for _ in frames]
        for indices in sorted_batches([len(recording) for recording in frames], rows=settings.batch):
            encoded = self.model.encode(self.sound.collate([frames[i] for i in indices]).to(self.device))
            logprobs = self.model.ctc_logits(encoded).float().log_softmax(-1)
            for i, path in zip(indices, best_path(logprobs, encoded.valid, self.target.pad), strict=True):
                total, length = sum(span.logprob for span in path), len(path) + 1
                require_finite([total])
                tokens = [span.token for span in path]
                hypotheses[i] = [Hypothesis(tokens, total / length**settings.length_penalty, total, True)]
        return hypotheses

    @property
    def times(self) -> TokenTimes:
        return TokenTimes(self.model, self.sound, self.target, self.device)

    def known_prompts(self, encoded: Encoded) -> list[tuple[int, ...]]:
        """The prompts before the known targets of recordings."""
        return [(self.target.start,)] * len(encoded.states)

    def refuse_long_target(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Refuse a known target that the model cannot read."""

    @torch.no_grad()
    def target_logprobs(self, frames: Iterable[Array], targets: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of every token of known targets and of END."""
        logprobs, remaining, size = list[list[float]](), iter(targets), self.run.decode.batch
        frames = iter(frames)
        while rows := list(islice(frames, size)):
            encoded = self.model.encode(self.sound.collate(rows).to(self.device))
            prompts, batch_targets = self.known_prompts(encoded), list(islice(remaining, len(rows)))
            for prompt, tokens in zip(prompts, batch_targets, strict=True):
                self.refuse_long_target(prompt, tokens)
            logprobs += known_logprobs(self.model, encoded, prompts, batch_targets, self.target)
        return logprobs

    def require_ctc(self, feature: str) -> None:
        if not self.model.ctc_weight:
            raise UserError(
                f"{feature} needs CTC, and this run was trained without; train with model.ctc.weight=0.3 and "
                "model.family=speech"
            )
