"""A request for one generation, and the settings of a batch of requests."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ...config.strategies import Beam, DecodeStrategy, EarlyStopping, Greedy, Sample, TokenRules
from ...parts.inputs import Inputs
from ..search.beam import SearchSettings
from ..search.constraints import Constraints, ConstraintTokenizer, batch_filters, batch_phrases
from ..search.draw import SamplingSettings
from ..search.filters import Filter, RepetitionPenalty
from ..search.sample import sample_keys
from ..search.texts import StopStrings
from ..search.token_rules import RuleRows, last_filters, rule_filters, token_table

Finish: TypeAlias = Literal["end", "stop", "length", "context", "canceled"]
PAD = 0  # fills up shorter rows; nothing reads it


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """One input, and how to generate from it. Nothing else affects its result."""

    prompt: tuple[int, ...]  # START, a text or a prefix
    source: Inputs | None = None  # one row without padding; None for a decoder-only model
    strategy: DecodeStrategy = Greedy()
    max_tokens: int = 256  # after the prompt, including END
    filters: tuple[Filter, ...] = ()  # before those of the generator; they hold no tables of rows
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()  # strings that end the text
    constraints: Constraints = Constraints()  # its prefix is part of the prompt already
    key: str | None = None  # samples depend on it, on the seed and on their number; None: on the input itself
    rules: TokenRules = TokenRules()
    min_tokens: int = 0  # after the prompt, before END

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt has no token; begin it with START")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; expected at least 1")
        if self.constraints.include and not isinstance(self.strategy, Beam):
            raise ValueError(f"required phrases need the strategy Beam, not {self.strategy}")
        if self.constraints.include and self.stop:
            raise ValueError("stop strings and required phrases cannot be combined; give one of the two")
        if self.rules.encoder_no_repeat_ngram_size and (self.source is None or self.source.modality != "tokens"):
            raise ValueError("encoder_no_repeat_ngram_size needs a source of tokens; set it to 0")

    @property
    def width(self) -> int:
        """The number of its parallel hypotheses."""
        if isinstance(self.strategy, Beam):
            return self.strategy.size + self.constraints.min_tokens
        return self.strategy.n if isinstance(self.strategy, Sample) else 1

    @property
    def length(self) -> int:
        """Tokens or frames of the input."""
        return len(self.prompt) if self.source is None else self.source.values.shape[1]

    @cached_property
    def sample_key(self) -> str:
        values = () if self.source is None else self.source.values.tolist()
        return f"{values} {list(self.prompt)}" if self.key is None else self.key

    def agreement(self) -> Hashable:
        """Requests with equal values can share one search. Seeds, limits and penalties differ by row."""
        strategy = self.strategy
        if isinstance(strategy, Sample):
            strategy = Sample(n=strategy.n, length_penalty=strategy.length_penalty)
        modality = None if self.source is None else self.source.modality
        shared = strategy, modality, tuple(map(id, self.filters)), self.rules
        flags = self.repetition_penalty != 1, bool(self.stop), bool(self.min_tokens), bool(self.constraints.include)
        return *shared, *flags


class SettingsBuilder:
    """Builds the settings of a search from requests with equal `agreement`."""

    def __init__(
        self, end: int, filters: tuple[Filter, ...], tokenizer: ConstraintTokenizer | None, softmax: bool = True
    ) -> None:
        """`softmax`: False for a model that returns scores instead of logits."""
        self.end, self.filters, self.tokenizer, self.softmax = end, filters, tokenizer, softmax

    def __call__(self, requests: Sequence[SearchRequest], device: torch.device) -> SearchSettings:
        first = requests[0]
        strategy = first.strategy
        beam, nbest, sampling = 1, 1, None
        early: EarlyStopping = "first"
        if isinstance(strategy, Beam):
            beam, nbest, early = strategy.size, strategy.n, strategy.early_stopping
        elif isinstance(strategy, Sample):
            nbest, sampling = strategy.n, self._sampling(requests, strategy.n, device)
        constraints = [request.constraints for request in requests]
        filters: tuple[Filter, ...] = ()
        required = None
        if any(entry.banned or entry.space_after_prefix or entry.include for entry in constraints):
            tokenizer = self.required_tokenizer()
            filters = batch_filters(constraints, tokenizer, device)
            required = batch_phrases(constraints, tokenizer, device)
        end, *more_ends = first.rules.eos_token_id or (self.end,)
        penalty, rules = self._rule_filters(requests, (end, *more_ends), device)
        searches = isinstance(strategy, Beam)  # transformers penalizes log-probabilities only in beam search
        return SearchSettings(
            end,
            beam,
            strategy.length_penalty,
            nbest,
            early,
            (penalty if searches else ()) + filters + rules + first.filters + self.filters + last_filters(first.rules),
            sampling,
            required,
            () if searches else penalty,
            self._stop_strings(requests),
            tuple(more_ends),
            self.softmax,
        )

    def required_tokenizer(self) -> ConstraintTokenizer:
        """The tokenizer; a request that needs one is refused without it."""
        if self.tokenizer is None:
            raise ValueError("stop strings and constraints need the tokenizer; give it to the generator")
        return self.tokenizer

    @property
    def decode(self) -> Callable[[Sequence[Sequence[int]]], list[str]]:
        """The text of tokens."""
        return self.required_tokenizer().tokenizer.decode

    def _sampling(self, requests: Sequence[SearchRequest], samples: int, device: torch.device) -> SamplingSettings:
        pairs = [(request.sample_key, request.strategy) for request in requests]
        strategies = [strategy for _, strategy in pairs if isinstance(strategy, Sample)]
        keys = [
            sample_keys([key], samples, strategy.seed, device)
            for (key, _), strategy in zip(pairs, strategies, strict=True)
        ]
        return SamplingSettings.of(torch.cat(keys), strategies)

    def _rule_filters(
        self, requests: Sequence[SearchRequest], ends: Sequence[int], device: torch.device
    ) -> tuple[tuple[Filter, ...], tuple[Filter, ...]]:
        """The repetition penalty, and the filters of the rules."""
        first = requests[0]
        if first.repetition_penalty == 1 and not first.min_tokens and first.rules == TokenRules():
            return (), ()
        prompt = token_table([request.prompt for request in requests], device, left=True)
        factors = torch.tensor([request.repetition_penalty for request in requests], device=device)
        penalty = (RepetitionPenalty(factors, prompt),) if first.repetition_penalty != 1 else ()
        least = torch.tensor([request.min_tokens for request in requests], device=device) if first.min_tokens else None
        source = None
        if first.rules.encoder_no_repeat_ngram_size:
            rows = [request.source.values[0].tolist() for request in requests if request.source is not None]
            source = token_table(rows, device, left=False)
        return penalty, rule_filters(first.rules, ends, RuleRows(prompt, source, least))

    def _stop_strings(self, requests: Sequence[SearchRequest]) -> StopStrings | None:
        if not requests[0].stop:
            return None
        strings, prompts = [request.stop for request in requests], [list(request.prompt) for request in requests]
        return StopStrings(strings, self.decode, prompts)


def pad_prompts(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The prompts (rows, tokens), and which of their tokens are valid if lengths differ."""
    longest = max(map(len, prompts))
    table = torch.tensor([[*prompt, *[PAD] * (longest - len(prompt))] for prompt in prompts], device=device)
    if all(len(prompt) == longest for prompt in prompts):
        return table, None
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return table, torch.arange(longest, device=device) < lengths[:, None]


def stack_sources(rows: Sequence[Inputs], room: int, device: torch.device) -> Inputs:
    """Single rows of one tensor kind as a batch, padded to the largest; tokens and frames by `room` more."""
    if rows[0].modality == "pixels":
        return stack_pixels(rows).to(device)
    values = pad_sequence([row.values[0] for row in rows], batch_first=True, padding_value=PAD)
    if room:
        values = F.pad(values, (0, 0) * (values.dim() - 2) + (0, room), value=PAD)
    lengths = torch.tensor([row.values.size(1) for row in rows])
    padded = bool((lengths < values.size(1)).any())
    valid = torch.arange(values.size(1)) < lengths[:, None] if padded else None  # None: attention needs no mask
    return Inputs(rows[0].modality, values, valid).to(device)


def stack_pixels(rows: Sequence[Inputs]) -> Inputs:
    """Images as one batch, padded to the largest. Bytes are normalized first."""
    rows = [row.to(row.values.device) for row in rows]
    channels, heights, widths = zip(*(row.values.shape[1:] for row in rows), strict=True)
    values = rows[0].values.new_zeros(len(rows), channels[0], max(heights), max(widths))
    valid = torch.zeros(len(rows), max(heights), max(widths), dtype=torch.bool)
    for i, (row, height, width) in enumerate(zip(rows, heights, widths, strict=True)):
        values[i, :, :height, :width], valid[i, :height, :width] = row.values[0], True
    return Inputs("pixels", values, valid)
