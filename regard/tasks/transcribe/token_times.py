"""Times of the tokens of known transcripts: by forced alignment with CTC, else by the decoder's cross-attention."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ...errors import UserError
from ...families.protocols import SpeechModel
from ...look import AttentionView, ViewAxis, Which
from ...modalities.axes import frame_axis
from ...parts import Encoded
from ...parts.parallel.ctc import force_align
from ...processors.base import Array
from ...processors.sound.frames import SoundFrames
from ...processors.text.tokenizers import Tokenizer
from ..generate.views import trace_target, view_target
from .transcripts import Span, TokenTrace


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
        """The traces of several transcripts of one recording."""
        encoded = self.encode(frames)
        traces = []
        for tokens in targets:
            logprobs, view = self.decode(encoded, tokens)
            traces.append(TokenTrace(tuple(logprobs), tuple(self._times(encoded, tokens, view))))
        return traces

    @torch.no_grad()
    def align(self, frames: Array, tokens: Sequence[int]) -> TokenTrace:
        """The trace of known tokens, by forced alignment with CTC alone."""
        encoded = self.encode(frames)
        try:
            spans, logprob = force_align(self.ctc_logprobs(encoded), tokens, self.target.pad)
        except ValueError as error:
            raise UserError(
                f"the recording is too short for its text ({error}); give the words that are in it"
            ) from error
        return TokenTrace((logprob,), tuple(self.span(*positions) for positions in spans))

    def encode(self, frames: Array) -> Encoded:
        return self.model.encode(self.sound.collate([frames]).to(self.device))

    def ctc_logprobs(self, encoded: Encoded) -> Tensor:
        """(positions, vocab) of one recording"""
        return self.model.ctc_logits(encoded)[0].float().log_softmax(-1)

    def decode(
        self, encoded: Encoded, tokens: Sequence[int], prompt: Sequence[int] = ()
    ) -> tuple[list[float], AttentionView]:
        """The log-probabilities of tokens and END by the decoder, after a prompt (START), and its attention."""
        axis = self.frame_axis(encoded)
        return trace_target(self.model, self.target, encoded, axis, tokens, prompt or (self.target.start,))

    def view(
        self,
        frames: Array,
        tokens: Sequence[int],
        prompt: Sequence[int] = (),
        layer: Which = None,
        title: str = "",
    ) -> AttentionView:
        """The attention weights while the model reads a recording and writes these tokens."""
        source = self.sound.collate([frames]).to(self.device)
        axis = partial(self.frame_axis, frames=frames)
        return view_target(self.model, self.target, source, axis, tokens, prompt or (self.target.start,), layer, title)

    def frame_axis(self, encoded: Encoded, frames: Array | None = None) -> ViewAxis:
        """The encoder positions, with their times."""
        return frame_axis(self.sound, self.model.stride, encoded.states.size(1), frames)

    def _times(self, encoded: Encoded, tokens: Sequence[int], view: AttentionView) -> list[Span]:
        if self.model.ctc_weight:
            try:
                return [
                    self.span(*positions)
                    for positions in force_align(self.ctc_logprobs(encoded), tokens, self.target.pad)[0]
                ]
            except ValueError:  # more tokens than positions
                pass
        best: list[int] = view.cross()[: len(tokens)].argmax(1).tolist()
        return [self.span(place, place) for place in best]
