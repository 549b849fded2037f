"""The filters that apply the token rules of requests (`config/strategies.py`) to the rows of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...config.strategies import TokenRules
from .filters import (
    NO_TOKEN,
    Filter,
    Forbid,
    ForcedEnd,
    ForcedStart,
    MinTokens,
    NoRepeatNgram,
    Renormalize,
    Suppress,
    SuppressAt,
)


@dataclass(frozen=True)
class RuleRows:
    """The rows of a batch, as far as rules need them."""

    prompt: Tensor  # (rows, tokens), with NO_TOKEN on the left of shorter prompts
    source: Tensor | None  # (rows, tokens), with NO_TOKEN on the right
    min_tokens: Tensor | None  # (rows,)

    @property
    def at_start(self) -> Tensor:
        """(rows,) bool: True if the prompt is only START."""
        return (self.prompt != NO_TOKEN).sum(1) == 1


def token_table(rows: Sequence[Sequence[int]], device: torch.device, left: bool) -> Tensor:
    """(rows, tokens), with NO_TOKEN on one side of shorter rows."""
    longest = max(map(len, rows))
    fills = [[NO_TOKEN] * (longest - len(row)) for row in rows]
    pairs = zip(rows, fills, strict=True)
    return torch.tensor([[*fill, *row] if left else [*row, *fill] for row, fill in pairs], device=device)


def rule_filters(rules: TokenRules, ends: Sequence[int], rows: RuleRows) -> tuple[Filter, ...]:
    """Filters in the order of transformers, which matters where one forces a token that another forbids."""
    filters: list[Filter] = []
    if rules.no_repeat_ngram_size:
        filters.append(NoRepeatNgram(rules.no_repeat_ngram_size, rows.prompt))
    if rules.encoder_no_repeat_ngram_size and rows.source is not None:
        filters.append(NoRepeatNgram(rules.encoder_no_repeat_ngram_size, rows.prompt, rows.source))
    words = [word for word in rules.bad_words_ids if len(word) > 1]
    if single := [word[0] for word in rules.bad_words_ids if len(word) == 1 and word[0] not in ends]:
        filters.append(Suppress(single))
    if words:
        filters.append(Forbid([words], rows.prompt))
    if rows.min_tokens is not None:
        filters.append(MinTokens(ends, rows.min_tokens))
    if rules.forced_bos_token_id:
        filters.append(ForcedStart(rules.forced_bos_token_id, rows.at_start))
    if rules.forced_eos_token_id:
        filters.append(ForcedEnd(*rules.forced_eos_token_id))
    if rules.suppress_tokens:
        filters.append(Suppress(rules.suppress_tokens))
    if rules.begin_suppress_tokens:
        forced = rows.at_start & bool(rules.forced_bos_token_id)  # then the second token is the first free one
        filters.append(SuppressAt(rules.begin_suppress_tokens, forced.long()))
    return tuple(filters)


def last_filters(rules: TokenRules) -> tuple[Filter, ...]:
    """Filters after all others."""
    return (Renormalize(),) if rules.renormalize_logits else ()
