"""Rules about the tokens of a text: what must not repeat, what is forbidden, forced, or an end."""

from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

ID_RULES = "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "eos_token_id"


@dataclass(frozen=True)
class TokenRules:
    """The rules of one request. They have the names and meanings of generation_config.json in transformers."""

    no_repeat_ngram_size: int = 0  # so many tokens occur only once in a row; 0: any number of times
    encoder_no_repeat_ngram_size: int = 0  # so many tokens in a row are not those of the source; 0: they may be
    bad_words_ids: tuple[tuple[int, ...], ...] = ()  # sequences that no text contains
    forced_bos_token_id: tuple[int, ...] = ()  # the first token
    forced_eos_token_id: tuple[int, ...] = ()  # the last token at the limit is one of these
    suppress_tokens: tuple[int, ...] = ()  # tokens that no text contains
    begin_suppress_tokens: tuple[int, ...] = ()  # tokens that begin no text
    eos_token_id: tuple[int, ...] = ()  # tokens that end a text; empty: END of the tokenizer
    renormalize_logits: bool = False  # scores are probabilities after all rules

    @classmethod
    def of(cls, settings: object) -> "TokenRules":
        """The rules among the settings decode.*; those that a task lacks have no effect."""
        values: dict[str, Any] = {each.name: getattr(settings, each.name, each.default) for each in fields(cls)}
        return cls(**values)

    def largest_ids(self) -> dict[str, int]:
        """The largest token that each rule names."""
        words = {"bad_words_ids": tuple(chain(*self.bad_words_ids))}
        named = {name: getattr(self, name) for name in ID_RULES} | words
        return {name: max(ids) for name, ids in named.items() if ids}
