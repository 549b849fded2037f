"""Known transcripts of Whisper models: log-probabilities, times, and the attention while they are written."""

from collections.abc import Sequence

import torch

from ...decode import Greedy, Hypothesis
from ...decode.engine.wrappers import source_rows
from ...errors import UserError
from ...look import AttentionView, Which
from ...parts import Encoded
from ...processors.base import Array
from ..base import view_title
from ..transcribe.requests import DecodedWindow, TranscribeRequest, Transcript
from ..transcribe.settings import TranscribeDecode
from .generation import WhisperGeneration, WindowHypothesis
from .recordings import Recording, SoundWindow


class TranscriptScorer(WhisperGeneration):
    """Log-probabilities, times and attention for a recording with a known text."""

    def known_languages(self, encoded: Encoded) -> list[str]:
        """The languages of recordings: decode.language, else the detected languages."""
        decode: TranscribeDecode = self.run.decode
        if self.target.multilingual and not decode.language:
            return self.spoken_languages(encoded)
        return [self.target.language(decode.language) if decode.language else ""] * len(encoded.states)

    def known_prompts(self, encoded: Encoded) -> list[tuple[int, ...]]:
        """The prompts of known texts, without timestamps."""
        return [self.target.prompt(code, self.run.decode.task, False) for code in self.known_languages(encoded)]

    def refuse_long_target(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        if (length := len(prompt) + len(tokens)) > self.positions:
            raise UserError(
                f"a text has {length:,} tokens with its prompt and the model reads {self.positions:,}; shorten it"
            )

    def refuse_long_recording(self, seconds: float) -> None:
        """Refuse a recording with a known text that one window does not hold."""
        if seconds > self.sound.seconds + self.sound.hop / self.sound.rate:
            raise UserError(
                f"the recording has {seconds:.1f} seconds and the model reads {self.sound.seconds}; give its parts"
            )

    @torch.no_grad()
    def align_tokens(self, samples: Array, tokens: list[int], text: str) -> Transcript:
        """The times of the tokens of a known text."""
        seconds = len(samples) / self.sound.rate
        self.refuse_long_recording(seconds)
        encoded = self.model.encode(self.sound.collate([self.sound.encode(samples)]).to(self.device))
        (language,) = self.known_languages(encoded)
        prompt = self.target.prompt(language, self.run.decode.task, False)
        self.refuse_long_target(prompt, tokens)
        about = WindowHypothesis(Hypothesis(tokens, 0.0, 0.0, True), prompt, DecodedWindow(0.0, 0.0, 0.0))
        trace = self._trace(encoded, about, seconds, len(tokens))
        total = sum(trace.logprobs)
        plain = Transcript(text, total / len(trace.logprobs), total, True, length=len(tokens) + 1)
        recording = Recording(0, TranscribeRequest(samples), language, self.run.decode.task, seconds)
        window = SoundWindow(recording, 0.0, seconds, samples)
        (spoken,) = self.target.decode([tokens])
        return self._timed(plain, spoken, tokens, range(len(tokens)), trace, window, seconds)

    @torch.no_grad()
    def look_at(self, frames: Array, tokens: Sequence[int] | None, layer: Which = None) -> AttentionView:
        """The attention weights while the model writes these tokens, or its own transcript."""
        encoded = self.model.encode(self.sound.collate([frames]).to(self.device))
        (prompt,) = self.known_prompts(encoded)
        if tokens is None:
            settings = self.decode_settings({"timestamps": False})
            (best,) = self._generate(source_rows(encoded), [prompt], [""], Greedy(), settings)
            tokens = best.tokens
        self.refuse_long_target(prompt, tokens)
        return self.times.view(frames, tokens, prompt, layer, view_title(self.run))
