"""Sampling: every sample of a row is a hypothesis that only ever continues itself."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from .beam import Hypothesis, SearchCache, SearchSettings, SearchState, extend
from .filters import Filter, MinP, StepContext, Temperature, TopK, TopP


@dataclass(frozen=True)
class SamplingSettings:
    """How to draw. Filters shape the distribution; the score of a sample is the model's own all the same."""

    keys: Tensor  # (rows, samples) int64: where each sample's random numbers come from
    filters: tuple[Filter, ...] = ()


def sampling_settings(texts: list[str], how: Any, device: torch.device) -> SamplingSettings:
    """As decode.* says."""
    shape: list[Filter] = [Temperature(how.temperature)]
    shape += [TopK(how.top_k)] if how.top_k else []
    shape += [TopP(how.top_p)] if how.top_p < 1 else []
    shape += [MinP(how.min_p)] if how.min_p else []
    return SamplingSettings(keys(texts, how.nbest, how.seed, device), tuple(shape))


def keys(texts: list[str], samples: int, seed: int, device: torch.device) -> Tensor:
    """(rows, samples): of the seed, the text and the sample's number, so that no row knows its neighbours."""

    def key(text: str, sample: int) -> int:
        said = f"{seed} {sample} {text}".encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(said, digest_size=8).digest(), "big", signed=True)

    return torch.tensor([[key(text, i) for i in range(samples)] for text in texts], device=device)


class SampleSearch(SearchState):
    """Draws by the largest of log p + Gumbel noise, which is a draw from p (1611.01144)."""

    def __init__(self, settings: SearchSettings, draw: SamplingSettings, cache: SearchCache, limits: Tensor) -> None:
        rows, samples = draw.keys.shape
        super().__init__(settings, samples, cache, limits)
        self.draw, device = draw, limits.device
        self.own = torch.arange(samples, device=device)
        self.finished_tokens = torch.zeros(rows, samples, self.longest, dtype=torch.long, device=device)
        self.lengths = torch.zeros(rows, samples, dtype=torch.long, device=device)
        self.finished_logprobs = torch.full((rows, samples), -torch.inf, device=device)
        self.over = torch.zeros(rows, samples, dtype=torch.bool, device=device)
        self.ended = torch.zeros(rows, samples, dtype=torch.bool, device=device)

    @property
    def recordable(self) -> bool:
        return super().recordable and all(getattr(filter, "blind", False) for filter in self.draw.filters)

    def split(self, scores: Tensor, last: Tensor, moment: StepContext) -> tuple[Tensor, Tensor | None]:
        scores = scores.expand(-1, self.width, -1)
        shaped = scores
        for filter in self.draw.filters:
            shaped = filter(shaped, moment)
        token = (shaped + gumbel(self.draw.keys[self.row], self.now, scores.size(2))).argmax(-1)
        self.logprobs = scores.gather(2, token[:, :, None])[:, :, 0]
        self.tokens = extend(self.tokens, self.now, self.own[: self.tokens.size(1)].expand_as(token), token)
        self._keep(token, last)
        return token, None

    def _keep(self, token: Tensor, last: Tensor) -> None:
        row, ended = self.row, token == self.settings.end
        self.finished_tokens[row] = extend(self.finished_tokens[row], self.now, self.own.expand_as(token), token)
        running = ~self.over[row]
        now = running & (
            ended | last[:, None] | (self.logprobs == -torch.inf)
        )  # where all is forbidden, nothing follows
        now |= self.stopped(self.tokens, running & ~now)
        self.lengths[row] += running & ~ended
        self.finished_logprobs[row] = torch.where(now, self.logprobs, self.finished_logprobs[row])
        self.ended[row] |= now & ended
        self.over[row] |= now
        self.logprobs = self.logprobs.masked_fill(self.over[row], -torch.inf)

    def settled(self) -> Tensor:
        return self.over[self.row].all(1)

    def results(self) -> list[list[Hypothesis]]:
        """In the order of the samples: the first is the same however many are drawn."""
        lengths = self.lengths + self.ended
        scores = self.finished_logprobs / lengths.clamp(min=1) ** self.settings.length_penalty
        parts = [
            part.tolist() for part in (self.finished_tokens, self.lengths, scores, self.finished_logprobs, self.ended)
        ]
        return [
            [
                Hypothesis(tokens[:length], score, logprob, ended)
                for tokens, length, score, logprob, ended in zip(*row, strict=True)
                if score > -torch.inf
            ]
            for row in zip(*parts, strict=True)
        ]


# --- random numbers by counting (SplitMix64): each depends on its key, step and token, on nothing before it ----------


def gumbel(keys: Tensor, step: Tensor, vocab: int) -> Tensor:
    """(rows, samples, vocab) noise."""
    tokens = torch.arange(1, vocab + 1, device=keys.device)
    now = keys + step * STRIDE  # in 64 bits, where products wrap
    numbers = mixed(mixed(now)[:, :, None] + tokens * STRIDE)
    uniform = ((numbers >> 41 & 2**23 - 1) + 0.5) / 2**23  # 23 bits and a half fit a float32: never 0, never 1
    return -(-uniform.log()).log()


def mixed(x: Tensor) -> Tensor:
    """Every bit of the result hangs on every bit of x (int64). A signed shift brings ones, which are masked away."""
    x = (x ^ (x >> 30 & 2**34 - 1)) * FIRST
    x = (x ^ (x >> 27 & 2**37 - 1)) * SECOND
    return x ^ (x >> 31 & 2**33 - 1)


STRIDE, FIRST, SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
