"""Times of tokens and words of transcripts: by CTC, else by the decoder's cross-attention, and by where sound is."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..families.protocols import SpeechModel
from ..messages.texts import TimeAlignment, TimedWord
from ..parts import Encoded
from ..parts.parallel.ctc import force_align
from ..processors.base import Array
from ..processors.sound.frames import SoundFrames
from ..processors.sound.levels import sound_levels
from ..processors.sound.read import RawSound
from ..processors.text.tokenizers import Tokenizer
from .word_path import SHORT, find_path

ATTENTION_BLANK = -0.7  # the score of no token, beside the logarithm of attention as a share of its maximum
Span = tuple[float, float]  # start and end in seconds


class TokenTimes:
    """The times of tokens and words in a recording, from the output of an encoder."""

    def __init__(self, model: SpeechModel, sound: SoundFrames, stride: int, blank: int) -> None:
        """`stride`: frames of an encoder position."""
        self.model, self.sound, self.stride, self.blank = model, sound, stride, blank

    @property
    def width(self) -> float:
        """The seconds of an encoder position."""
        return self.stride * self.sound.hop / self.sound.rate

    def span(self, first: int, last: int) -> Span:
        """The time of encoder positions, from the first to the last."""
        begin, end = (self.sound.seconds_of(position * self.stride) for position in (first, last))
        return max(begin - self.width / 2, 0.0), end + self.width / 2

    def levels(self, raw: RawSound, positions: int) -> Array:
        """Where there is sound, for every encoder position."""
        centers = np.array([self.sound.seconds_of(position * self.stride) for position in range(positions)])
        return sound_levels(self.sound.samples(raw), self.sound.rate, centers, self.width)

    def of_trace(
        self, raw: RawSound, states: Tensor, tokens: Sequence[int], weights: Tensor, text: str, target: Tokenizer
    ) -> TimeAlignment:
        """The times of a written text; `weights` (tokens, positions) of the decoder count where there is no CTC."""
        try:
            if self.model.ctc_weight:
                return self.align(raw, states, tokens, text, target)
            weights = weights[: len(tokens)]
            scores = (weights / weights.amax(1, keepdim=True).clamp(min=1e-9)).clamp(min=1e-9).log().numpy()
            return self._align(raw, scores, np.full(scores.shape[1], ATTENTION_BLANK), tokens, text, target)
        except ValueError:  # more tokens than positions
            places: list[int] = weights[: len(tokens)].argmax(1).tolist()
            spans = [self.span(place, place) for place in places]
            return TimeAlignment(tuple(spans), tuple(timed_words(text, tokens, spans, target)))

    def align(
        self, raw: RawSound, states: Tensor, tokens: Sequence[int], text: str, target: Tokenizer
    ) -> TimeAlignment:
        """The times of known tokens, by CTC and by where there is sound."""
        logprobs = self._logprobs(states).numpy()
        return self._align(raw, logprobs[:, tokens].T, logprobs[:, self.blank], tokens, text, target)

    def align_known(
        self, raw: RawSound, states: Tensor, tokens: Sequence[int], text: str, target: Tokenizer
    ) -> tuple[TimeAlignment, float]:
        """`align`, and the log-probability of the likeliest path of CTC; refuses a text that is too long."""
        try:
            _, logprob = force_align(self._logprobs(states), tokens, self.blank)
            return self.align(raw, states, tokens, text, target), logprob
        except ValueError as error:
            raise UserError(
                f"the recording is too short for its text ({error}); give the words that are in it"
            ) from error

    def tokens_in_sound(
        self, raw: RawSound, states: Tensor, tokens: Sequence[int], text: str, target: Tokenizer
    ) -> tuple[int, int, int, int]:
        """How many tokens of words CTC alone finds where there is sound, and of how many; the same of all positions.

        They are 0 if the tokens do not fit.
        """
        try:
            spans, _ = force_align(self._logprobs(states), tokens, self.blank)
        except ValueError:
            return 0, 0, 0, 0
        levels, members = (
            self.levels(raw, len(states)),
            {*chain(*(own for _, own in token_words(text, tokens, target)))},
        )
        found = [
            bool(levels[first : last + 1].max() > 0.5) for token, (first, last) in enumerate(spans) if token in members
        ]
        return sum(found), len(found), int((levels > 0.5).sum()), len(levels)

    @torch.no_grad()
    def _logprobs(self, states: Tensor) -> Tensor:
        return self.model.ctc_logits(Encoded(states[None]))[0].float().log_softmax(-1).cpu()

    def _align(
        self, raw: RawSound, scores: Array, blank: Array, tokens: Sequence[int], text: str, target: Tokenizer
    ) -> TimeAlignment:
        words = token_words(text, tokens, target)
        numbers = [-1] * len(tokens)
        for number, (_, members) in reversed([*enumerate(words)]):
            for token in members:
                numbers[token] = number
        levels = self.levels(raw, len(blank))
        path = find_path(scores, blank, tokens, numbers, levels, round(SHORT / self.width))
        times = tuple(self.span(*span) for span in path.tokens)
        named = [
            TimedWord(word, *self.span(*path.words[number]))
            if number in path.words
            else TimedWord(word, *times[members[0]])  # its only token begins in the word before
            for number, (word, members) in enumerate(words)
        ]
        return TimeAlignment(times, tuple(named))


def token_words(
    text: str, tokens: Sequence[int], target: Tokenizer, letters: bool = False
) -> list[tuple[str, list[int]]]:
    """The words of a text, or its letters, each with the tokens that it is written with."""
    ends = [len(prefix) for prefix in target.decode([list(tokens[:count]) for count in range(1, len(tokens) + 1)])]
    begins = [0, *ends[:-1]]
    words, place = [], 0
    for word in [*"".join(text.split())] if letters else text.split():
        place = text.index(word, place)
        members = [
            token
            for token, (begin, end) in enumerate(zip(begins, ends, strict=True))
            if begin < place + len(word) and place < end
        ]
        if members:
            words.append((word, members))
        place += len(word)
    return words


def timed_words(
    text: str, tokens: Sequence[int], times: Sequence[Span], target: Tokenizer, letters: bool = False
) -> list[TimedWord]:
    """The words of a text, or its letters, each timed from its first to its last token."""
    words = token_words(text, tokens, target, letters)
    return [
        TimedWord(word, min(times[token][0] for token in members), max(times[token][1] for token in members))
        for word, members in words
    ]


def shift_span(span: Span, start: float, end: float) -> Span:
    """The span `start` seconds later, at most until `end`, in milliseconds."""
    first, last = (round(min(seconds + start, end), 3) for seconds in span)
    return first, last


def shift_times(alignment: TimeAlignment, start: float, end: float) -> TimeAlignment:
    """The times of a segment from `start` to `end`, from the beginning of the recording."""
    words = tuple(TimedWord(word.word, *shift_span((word.start, word.end), start, end)) for word in alignment.words)
    return TimeAlignment(tuple(shift_span(span, start, end) for span in alignment.times), words)
