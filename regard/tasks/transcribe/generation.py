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
from .transcripts import join_segments, make_transcript, shifted

CHUNK = 4  # batches of segments in memory: the segments of a batch have similar lengths


class AudioSegment(NamedTuple):
    """A segment of a recording as frames."""

    recording: int
    number: int  # of the segment in its recording
    start: float  # in seconds
    end: float
    frames: Array


def frames_key(frames: Array) -> str:
    """Samples depend on it."""
    return hashlib.blake2b(frames.tobytes(), digest_size=16).hexdigest()


class SoundGeneration(SourceGeneration[Array]):
    """From recordings to transcripts. Memory does not grow with the length of a recording."""

    model: SpeechModel
    sound: SoundFrames
    joint: dict[float, JointCTC]  # by weight: the generator finds the CUDA graphs of a model again
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
        found: list[list[TranscriptSegment]] = [[] for _ in requests]
        seconds = [0.0] * len(requests)
        pieces = self._pieces(requests, settings, seconds)
        while chunk := list(islice(pieces, CHUNK * settings.batch)):
            for piece, nbest in zip(chunk, self._decode(chunk, requests, settings), strict=True):
                own = tuple(shifted(each, piece.start, piece.end) for each in nbest)
                found[piece.recording].append(TranscriptSegment(round(piece.start, 3), round(piece.end, 3), own))
                self.report_progress(requests[piece.recording].sound, piece.end)
        pairs = zip(found, seconds, strict=True)
        return [join_segments(own, length, settings.length_penalty) for own, length in pairs]

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

    def report_progress(self, sound: RawSound, done: float, whole: float = 0.0) -> float:
        """Tell how far a recording is read; return its seconds, which are found if `whole` is 0."""
        if self.on_progress is not None:
            whole = whole or sound_info(sound, self.sound.rate).seconds
            self.on_progress(sound_name(sound), min(done, whole), whole)
        return whole

    def _pieces(
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
        self, pieces: Sequence[AudioSegment], requests: Sequence[TranscribeRequest], settings: TranscribeDecode
    ) -> list[list[Transcript]]:
        """The best transcripts of every segment, with times from its beginning."""
        frames = [piece.frames for piece in pieces]
        asked = [constraints_of(requests[piece.recording], self.run.decode) for piece in pieces]
        for number, piece in enumerate(pieces):
            if piece.number:  # the prefix begins the whole transcript
                asked[number] = asked[number]._replace(prefix="")
        if settings.kind == "ctc":
            if any(map(any, asked)):
                raise UserError(
                    "decode.prefix and decode.exclude need a search, and decode.kind=ctc is none; use decode.kind=beam"
                )
            found, constraints = self._best_paths(frames, settings), None
        else:
            constraints = self.constraints(asked, settings)
            found = self.generate(frames, settings, constraints)
        detailed = [number for number, piece in enumerate(pieces) if requests[piece.recording].details]
        traced = {i: self.times.traces(frames[i], [one.tokens for one in found[i]]) for i in detailed}
        return [
            [
                make_transcript(text, one, traced[i][rank] if i in traced else None, self.target, own)
                for rank, (text, one) in enumerate(zip(self.target_texts(best), best, strict=True))
            ]
            for i, (best, own) in enumerate(zip(found, constraints or [NO_CONSTRAINTS] * len(found), strict=True))
        ]

    @torch.no_grad()
    def _best_paths(self, frames: Sequence[Array], settings: TranscribeDecode) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in frames]
        for indices in sorted_batches([len(each) for each in frames], rows=settings.batch):
            encoded = self.model.encode(self.sound.collate([frames[i] for i in indices]).to(self.device))
            logprobs = self.model.ctc_logits(encoded).float().log_softmax(-1)
            for i, path in zip(indices, best_path(logprobs, encoded.valid, self.target.pad), strict=True):
                total, length = sum(span.logprob for span in path), len(path) + 1
                require_finite([total])
                tokens = [span.token for span in path]
                found[i] = [Hypothesis(tokens, total / length**settings.length_penalty, total, True)]
        return found

    @property
    def times(self) -> TokenTimes:
        return TokenTimes(self.model, self.sound, self.target, self.device)

    def known_prompts(self, encoded: Encoded) -> list[tuple[int, ...]]:
        """What stands before the known targets of recordings."""
        return [(self.target.start,)] * len(encoded.states)

    def refuse_long_target(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Refuse a known target that the model cannot read."""

    @torch.no_grad()
    def target_logprobs(self, frames: Iterable[Array], targets: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of every token of known targets and of END."""
        found, rest, size = list[list[float]](), iter(targets), self.run.decode.batch
        frames = iter(frames)
        while rows := list(islice(frames, size)):
            encoded = self.model.encode(self.sound.collate(rows).to(self.device))
            prompts, own = self.known_prompts(encoded), list(islice(rest, len(rows)))
            for prompt, tokens in zip(prompts, own, strict=True):
                self.refuse_long_target(prompt, tokens)
            found += known_logprobs(self.model, encoded, prompts, own, self.target)
        return found

    def require_ctc(self, what: str) -> None:
        if not self.model.ctc_weight:
            raise UserError(
                f"{what} needs CTC, and this run was trained without; train with model.ctc.weight=0.3 and "
                "model.family=speech"
            )
