"""Sampling: every sample of a row is a hypothesis that continues only itself."""

from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from ...config.strategies import Sample
from .beam import Hypothesis, SearchCache, SearchSettings, SearchState, extend
from .filters import Filter, MinP, StepContext, Temperature, TopK, TopP


@dataclass(frozen=True)
class SamplingSettings:
    """How to sample. Filters shape the distribution; the score of a sample remains the model's own."""

    keys: Tensor  # (rows, samples) int64: the seeds of each sample's random numbers
    filters: tuple[Filter, ...] = ()


def sampling_filters(strategy: Sample) -> tuple[Filter, ...]:
    """The filters that shape the distribution of a strategy."""
    filters: list[Filter] = [Temperature(strategy.temperature)]
    filters += [TopK(strategy.top_k)] if strategy.top_k else []
    filters += [TopP(strategy.top_p)] if strategy.top_p < 1 else []
    filters += [MinP(strategy.min_p)] if strategy.min_p else []
    return tuple(filters)


def sample_keys(texts: list[str], samples: int, seed: int, device: torch.device) -> Tensor:
    """(rows, samples) hashes of the seed, the text and the sample's number; a row's samples are batch-invariant."""

    def key(text: str, sample: int) -> int:
        data = f"{seed} {sample} {text}".encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)

    return torch.tensor([[key(text, i) for i in range(samples)] for text in texts], device=device)


class SampleSearch(SearchState):
    """Samples from p by the maximum of log p + Gumbel noise (1611.01144)."""

    per_input = (*SearchState.per_input, "finished_tokens", "lengths", "finished_logprobs", "done", "ended")

    def __init__(
        self,
        settings: SearchSettings,
        sampling: SamplingSettings,
        cache: SearchCache,
        limits: Tensor,
        capacity: int = 0,
    ) -> None:
        rows, samples = sampling.keys.shape
        super().__init__(settings, samples, cache, limits, capacity)
        device = limits.device
        self.beam_index = torch.arange(samples, device=device)
        self.finished_tokens = torch.zeros(rows, samples, self.capacity, dtype=torch.long, device=device)
        self.lengths = torch.zeros(rows, samples, dtype=torch.long, device=device)
        self.finished_logprobs = torch.full((rows, samples), -torch.inf, device=device)
        self.done = torch.zeros(rows, samples, dtype=torch.bool, device=device)
        self.ended = torch.zeros(rows, samples, dtype=torch.bool, device=device)

    @property
    def sampling(self) -> SamplingSettings:
        assert self.settings.sampling is not None
        return self.settings.sampling

    @property
    def graph_safe(self) -> bool:
        return super().graph_safe and all(getattr(filter, "graph_safe", False) for filter in self.sampling.filters)

    def choose(self, scores: Tensor, last: Tensor, context: StepContext) -> tuple[Tensor, Tensor | None]:
        scores = scores.expand(-1, self.width, -1)
        shaped = scores
        for filter in self.sampling.filters:
            shaped = filter(shaped, context)
        noise = gumbel(self.sampling.keys[self.input_row], self.device_step[:, None], scores.size(2))
        token = (shaped + noise).argmax(-1)
        self.logprobs = scores.gather(2, token[:, :, None])[:, :, 0]
        samples = self.beam_index[: self.tokens.size(1)].expand_as(token)
        self.tokens = extend(self.tokens, self.device_step, samples, token)
        self._store_finished(token, last)
        return token, None

    def _store_finished(self, token: Tensor, last: Tensor) -> None:
        row, ended = self.input_row, self.is_end(token)
        samples = self.beam_index.expand_as(token)
        self.finished_tokens[row] = extend(self.finished_tokens[row], self.device_step, samples, token)
        running = ~self.done[row]
        impossible = self.logprobs == -torch.inf  # the filters forbid every token
        finished = running & (ended | last[:, None] | impossible)
        finished |= self.match_stop_strings(self.tokens, running & ~finished)
        self.lengths[row] += running & ~ended
        self.finished_logprobs[row] = torch.where(finished, self.logprobs, self.finished_logprobs[row])
        self.ended[row] |= finished & ended
        self.done[row] |= finished
        self.logprobs = self.logprobs.masked_fill(self.done[row], -torch.inf)

    def finished_rows(self) -> Tensor:
        return self.done[self.input_row].all(1)

    def results(self, rows: Tensor | None = None) -> list[list[Hypothesis]]:
        """In the order of the samples: the first is the same for any number of samples."""
        lengths = self.lengths + self.ended
        scores = self.finished_logprobs / lengths.clamp(min=1) ** self.settings.length_penalty
        input_rows = slice(None) if rows is None else self.input_row[rows]
        parts = [
            part[input_rows].tolist()
            for part in (self.finished_tokens, self.lengths, scores, self.finished_logprobs, self.ended)
        ]
        return [
            [
                Hypothesis(tokens[:length], score, logprob, ended)
                for tokens, length, score, logprob, ended in zip(*row, strict=True)
                if score > -torch.inf
            ]
            for row in zip(*parts, strict=True)
        ]


# --- counter-based random numbers (SplitMix64): each depends only on its key, step and token --------------------------


def gumbel(keys: Tensor, step: Tensor, vocab: int) -> Tensor:
    """(rows, samples, vocab) Gumbel noise."""
    tokens = torch.arange(1, vocab + 1, device=keys.device)
    seeds = keys + step * STRIDE  # int64 products wrap around
    numbers = mix_bits(mix_bits(seeds)[:, :, None] + tokens * STRIDE)
    uniform = ((numbers >> 41 & 2**23 - 1) + 0.5) / 2**23  # 23 bits and a half fit a float32: never 0, never 1
    return -(-uniform.log()).log()


def mix_bits(x: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of x (int64). The masks clear the ones of a signed shift."""
    x = (x ^ (x >> 30 & 2**34 - 1)) * FIRST
    x = (x ^ (x >> 27 & 2**37 - 1)) * SECOND
    return x ^ (x >> 31 & 2**33 - 1)


STRIDE, FIRST, SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
