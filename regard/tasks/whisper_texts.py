"""Known transcripts of Whisper models: log-probabilities, times, and the attention while they are written."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from ..config.audio import TranscribeDecode
from ..data.collate import prompted_targets
from ..decode import Greedy, Hypothesis
from ..decode.encoded import source_rows
from ..errors import UserError
from ..look import CrossAttentionView
from ..parts import Encoded
from ..processors.base import Array
from .recordings import Recording, SoundWindow
from .requests import DecodedWindow, TranscribeRequest, Transcript
from .whisper_generation import DecodedText, WhisperGeneration


class KnownTranscripts(WhisperGeneration):
    """What predictors compute from a recording and its text."""

    def known_prompt(self, encoded: Encoded) -> list[tuple[int, ...]]:
        """The prompts of recordings whose transcripts are known, without timestamps."""
        decode: TranscribeDecode = self.run.decode
        return [self.target.prompt(code, decode.task, False) for code in self._known_languages(encoded)]

    def _known_languages(self, encoded: Encoded) -> list[str]:
        """The languages of recordings: that of decode.language, else the detected ones."""
        decode: TranscribeDecode = self.run.decode
        rows = len(encoded.states)
        codes = [self.target.language(decode.language) if decode.language else ""] * rows
        if self.target.multilingual and not decode.language:
            scores = self._start_logits(encoded, [(self.target.start,)] * rows)
            languages = self.target.control.languages
            best = scores[:, torch.tensor(list(languages.values()), device=self.device)].argmax(1).tolist()
            codes = [list(languages)[each] for each in best]
        return codes

    def _refuse_beyond_context(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        if (length := len(prompt) + len(tokens)) > self.positions:
            raise UserError(
                f"a text has {length:,} tokens with its prompt and the model reads {self.positions:,}; shorten it"
            )

    @torch.no_grad()
    def target_logprobs(self, frames: Any, targets: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of every token of known texts and of END, after a prompt without timestamps."""
        found, rest, frames = list[list[float]](), iter(targets), iter(frames)
        while rows := list(islice(frames, self.run.decode.batch)):
            encoded = self.model.encode(self.sound.collate(rows).to(self.device))
            prompts, own = self.known_prompt(encoded), list(islice(rest, len(rows)))
            for prompt, tokens in zip(prompts, own, strict=True):
                self._refuse_beyond_context(prompt, tokens)
            ended = [np.array([*tokens, self.target.end], np.int32) for tokens in own]
            batch = prompted_targets([np.array(prompt) for prompt in prompts], ended, self.target.pad)
            target, labels = (batch[name].to(self.device) for name in ("target", "labels"))
            states = self.model.decode(target, encoded).flatten(0, 1)[labels.positions]
            scores = self.model.logits(states).float().log_softmax(1)
            values = iter(scores.gather(1, labels.values[:, None])[:, 0].tolist())
            found += [[next(values) for _ in ids] for ids in ended]
        return found

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
        (prompt,), (language,) = self.known_prompt(encoded), self._known_languages(encoded)
        self._refuse_beyond_context(prompt, tokens)
        about = DecodedText(Hypothesis(tokens, 0.0, 0.0, True), prompt, DecodedWindow(0.0, 0.0, 0.0))
        traced = self._trace(encoded, about, seconds, len(tokens))
        total = sum(traced.logprobs)
        plain = Transcript(text, total / len(traced.logprobs), total, True, length=len(tokens) + 1)
        recording = Recording(0, TranscribeRequest(samples), language, self.run.decode.task, seconds)
        window = SoundWindow(recording, 0.0, seconds, samples)
        (spoken,) = self.target.decode([tokens])
        return self._timed(plain, spoken, tokens, range(len(tokens)), traced, window, seconds)

    @torch.no_grad()
    def look_at(self, frames: Array, tokens: Sequence[int] | None) -> CrossAttentionView:
        """The attention weights while the model writes these tokens, or its own transcript."""
        encoded = self.model.encode(self.sound.collate([frames]).to(self.device))
        (prompt,) = self.known_prompt(encoded)
        if tokens is None:
            settings = self.decode_settings({"timestamps": False})
            (best,) = self._generate(source_rows(encoded), [prompt], [""], Greedy(), settings)
            tokens = best.tokens
        self._refuse_beyond_context(prompt, tokens)
        _, maps = self._decode_recorded(encoded, prompt, tokens)
        step = self.model.stride * self.sound.hop / self.sound.rate
        times = [f"{place * step:.2f}" for place in range(encoded.states.size(1))]
        pieces = [*self.target.pieces(tokens), "■"]
        names = [f"decoder.layers.{layer}.cross" for layer in range(len(maps))]
        rows = {name: each[:, len(prompt) - 1 :] for name, each in zip(names, maps, strict=True)}
        return CrossAttentionView(times, pieces, rows)
