"""Times of the tokens of known transcripts: by forced alignment with CTC, else where the decoder attends."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UserError
from ..families.protocols import Seq2SeqModel, SpeechModel, as_module
from ..look import CrossAttentionView, record_attention
from ..parts import Encoded, Inputs
from ..parts.ctc import force_align
from ..processors.base import Array
from ..processors.sound_frames import SoundFrames
from ..processors.tokenizers import Tokenizer
from .transcripts import Span, TokenTrace


def known_target(
    model: Seq2SeqModel,
    tokenizer: Tokenizer,
    encoded: Encoded,
    tokens: Sequence[int],
    prompt: Sequence[int],
    positions: list[str],
) -> tuple[list[float], CrossAttentionView]:
    """The log-probabilities of tokens and END after a prompt (START), and where the decoder attends.

    `positions` names those of the encoder.
    """
    device, before = encoded.states.device, len(prompt) - 1  # rows that predict the prompt itself
    inputs = Inputs("tokens", torch.tensor([[*prompt, *tokens]], device=device))
    with record_attention(as_module(model)) as maps:
        logits = model.logits(model.decode(inputs, encoded)[0, before:])
    labels = torch.tensor([*tokens, tokenizer.end], device=device)
    logprobs: list[float] = logits.float().log_softmax(-1).gather(1, labels[:, None])[:, 0].tolist()
    pieces = [*tokenizer.pieces(tokens), "■"]
    kept = {path: each[0, :, before:].cpu() for path, each in maps.items()}
    own = {path: each if path.endswith(".cross") else each[:, :, before:] for path, each in kept.items()}
    return logprobs, CrossAttentionView(positions, pieces, own)


class TokenTimes:
    """Log-probabilities and times of tokens."""

    def __init__(self, model: SpeechModel, sound: SoundFrames, target: Tokenizer, device: torch.device) -> None:
        self.model, self.sound, self.target, self.device = model, sound, target, device

    def center(self, position: int) -> float:
        """The time of an encoder position, in seconds."""
        return self.sound.seconds_of(position * self.model.stride)

    def span(self, first: int, last: int) -> Span:
        """The time of encoder positions, from the first to the last."""
        half = self.model.stride / 2 * self.sound.hop / self.sound.rate
        return max(self.center(first) - half, 0.0), self.center(last) + half

    @torch.no_grad()
    def traces(self, frames: Array, targets: Sequence[Sequence[int]]) -> list[TokenTrace]:
        """Of several transcripts of one recording."""
        encoded = self.encode(frames)
        found = []
        for tokens in targets:
            logprobs, view = self.decode(encoded, tokens)
            found.append(TokenTrace(tuple(logprobs), tuple(self._times(encoded, tokens, view))))
        return found

    @torch.no_grad()
    def align(self, frames: Array, tokens: Sequence[int]) -> TokenTrace:
        """By CTC alone."""
        encoded = self.encode(frames)
        try:
            spans, logprob = force_align(self.ctc_logprobs(encoded), tokens, self.target.pad)
        except ValueError as error:
            raise UserError(
                f"the recording is too short for its text ({error}); give the words that are in it"
            ) from error
        return TokenTrace((logprob,), tuple(self.span(*each) for each in spans))

    def encode(self, frames: Array) -> Encoded:
        return self.model.encode(self.sound.collate([frames]).to(self.device))

    def ctc_logprobs(self, encoded: Encoded) -> Tensor:
        """(positions, vocab) of one recording"""
        return self.model.ctc_logits(encoded)[0].float().log_softmax(-1)

    def decode(
        self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int] = ()
    ) -> tuple[list[float], CrossAttentionView]:
        """The log-probabilities of tokens and END by the decoder, after a prompt (START), and where it attends."""
        times = [f"{self.center(place):.2f}" for place in range(encoded.states.size(1))]
        return known_target(self.model, self.target, encoded, tokens, prompt or (self.target.start,), times)

    def view(self, frames: Array, tokens: Sequence[int]) -> CrossAttentionView:
        """The attention weights of the decoder while it writes these tokens."""
        with torch.no_grad():
            return self.decode(self.encode(frames), tokens)[1]

    def _times(self, encoded: Encoded, tokens: Sequence[int], view: CrossAttentionView) -> list[Span]:
        if self.model.ctc_weight:
            try:
                return [
                    self.span(*each) for each in force_align(self.ctc_logprobs(encoded), tokens, self.target.pad)[0]
                ]
            except ValueError:  # more tokens than positions
                pass
        best: list[int] = view.cross()[: len(tokens)].argmax(1).tolist()
        return [self.span(place, place) for place in best]
