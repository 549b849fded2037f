"""Times of the tokens and words of transcripts: by forced alignment with CTC, else by the decoder's cross-attention."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import UserError
from ..families.protocols import SpeechModel
from ..messages.texts import TimeAlignment, TimedWord
from ..parts import Encoded
from ..parts.parallel.ctc import force_align
from ..processors.sound.frames import SoundFrames
from ..processors.text.tokenizers import Tokenizer

Span = tuple[float, float]  # start and end in seconds


class TokenTimes:
    """The times of tokens, from the output of an encoder."""

    def __init__(self, model: SpeechModel, sound: SoundFrames, stride: int, blank: int) -> None:
        """`stride`: frames of an encoder position."""
        self.model, self.sound, self.stride, self.blank = model, sound, stride, blank

    def span(self, first: int, last: int) -> Span:
        """The time of encoder positions, from the first to the last."""
        half = self.stride / 2 * self.sound.hop / self.sound.rate
        begin, end = (self.sound.seconds_of(position * self.stride) for position in (first, last))
        return max(begin - half, 0.0), end + half

    def of_trace(self, states: Tensor, tokens: Sequence[int], weights: Tensor) -> list[Span]:
        """The times of tokens; `weights` (tokens, positions) of the decoder count where there is no CTC."""
        if self.model.ctc_weight:
            try:
                return self.align(states, tokens)[0]
            except ValueError:  # more tokens than positions
                pass
        best: list[int] = weights[: len(tokens)].argmax(1).tolist()
        return [self.span(place, place) for place in best]

    @torch.no_grad()
    def align(self, states: Tensor, tokens: Sequence[int]) -> tuple[list[Span], float]:
        """The times of known tokens by forced alignment with CTC, and the log-probability of the path."""
        logprobs = self.model.ctc_logits(Encoded(states[None]))[0].float().log_softmax(-1)
        spans, logprob = force_align(logprobs, tokens, self.blank)
        return [self.span(*positions) for positions in spans], logprob

    def align_known(self, states: Tensor, tokens: Sequence[int]) -> tuple[list[Span], float]:
        """`align` for a text of the user: refuses one that the recording is too short for."""
        try:
            return self.align(states, tokens)
        except ValueError as error:
            raise UserError(
                f"the recording is too short for its text ({error}); give the words that are in it"
            ) from error


def timed_words(
    text: str, tokens: Sequence[int], times: Sequence[Span], target: Tokenizer, letters: bool = False
) -> list[TimedWord]:
    """The words of a text, or its letters, each timed from its first to its last token."""
    ends = [len(prefix) for prefix in target.decode([list(tokens[:count]) for count in range(1, len(tokens) + 1)])]
    begins = [0, *ends[:-1]]
    words, place = [], 0
    for word in [*"".join(text.split())] if letters else text.split():
        place = text.index(word, place)
        spans = [
            time
            for begin, end, time in zip(begins, ends, times, strict=True)
            if begin < place + len(word) and place < end
        ]
        if spans:
            words.append(TimedWord(word, min(start for start, _ in spans), max(end for _, end in spans)))
        place += len(word)
    return words


def shift_span(span: Span, start: float, end: float) -> Span:
    """The span `start` seconds later, at most until `end`, in milliseconds."""
    first, last = (round(min(seconds + start, end), 3) for seconds in span)
    return first, last


def shift_times(alignment: TimeAlignment, start: float, end: float) -> TimeAlignment:
    """The times of a segment from `start` to `end`, from the beginning of the recording."""
    words = tuple(TimedWord(word.word, *shift_span((word.start, word.end), start, end)) for word in alignment.words)
    return TimeAlignment(tuple(shift_span(span, start, end) for span in alignment.times), words)
