"""Sampling: every sample of a row is a hypothesis that continues only itself."""

from hashlib import blake2b

import torch
from torch import Tensor

from .beam import Hypothesis, SearchCache, SearchSettings, SearchState, extend
from .draw import SamplingSettings, draw_tokens
from .filters import StepContext


def sample_keys(texts: list[str], samples: int, seed: int, device: torch.device) -> Tensor:
    """(rows, samples) hashes of the seed, the text and the sample's number; a row's samples are batch-invariant."""

    def key(text: str, sample: int) -> int:
        data = f"{seed} {sample} {text}".encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)

    return torch.tensor([[key(text, i) for i in range(samples)] for text in texts], device=device)


class SampleSearch(SearchState):
    """Independent samples."""

    tables = (*SearchState.tables, "finished_tokens")
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

    def choose(self, scores: Tensor, last: Tensor, context: StepContext) -> tuple[Tensor, Tensor | None]:
        scores = scores.expand(-1, self.width, -1)
        token = draw_tokens(scores, self.sampling, self.input_row, self.device_step)
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
