"""Lexical constraints of one text: its prefix, required phrases and excluded phrases, and their tokens.

Phrases match as strings: `cat` occurs in `category`.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ...errors import UserError
from ...files import JsonMapping
from ...processors.text.tokenizers import Tokenizer
from .constrained_beam import Phrase, RequiredPhrases, required_phrases
from .filters import NO_TOKEN, Filter, FirstToken, Forbid

MAX_SEARCHES = 16  # repeated searches for one text: an excluded phrase can be spelled in many ways
TokenIds = tuple[int, ...]
Settings = TypeVar("Settings")
OPENING_PUNCTUATION = "([{<„“‘‚«\"'-–—/"
UNSPACED_SCRIPT = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Constraints:
    """The prefix, and the phrases that an output must or may not contain, as tokens."""

    prefix: TokenIds = ()
    space_after_prefix: bool = False  # the token after the prefix must begin with a space
    include: tuple[Phrase, ...] = ()
    exclude: tuple[str, ...] = ()
    banned: tuple[TokenIds, ...] = ()  # known spellings of the excluded phrases

    @property
    def min_tokens(self) -> int:
        """The fewest tokens that all required phrases take."""
        return sum(phrase.min_tokens for phrase in self.include)

    def missing(self, text: str) -> list[str]:
        """The required phrases that do not occur in the text, or not often enough."""
        return [phrase.text for phrase in self.include if text.count(phrase.text) < phrase.count]

    def allows(self, text: str) -> bool:
        """True if a token may follow."""
        return not any(phrase in text for phrase in self.exclude)


class ConstraintTokenizer:
    """Encodes constraints with the tokenizer of the target."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, prefix: str, include: Sequence[str], exclude: Sequence[str]) -> Constraints:
        """The constraints of a request, as tokens."""
        space = prefix.endswith(" ")  # a token carries the space before it, so the next token must carry this one
        ids = self._encode_known("decode.prefix", prefix[: len(prefix) - space]) if prefix.strip() else ()
        counts = Counter(self._roundtrip(text.strip(), "decode.include") for text in include)
        phrases = [self._phrase(text, count) for text, count in counts.items()]
        excluded = list(dict.fromkeys(self._roundtrip(text.strip(), "decode.exclude", known=False) for text in exclude))
        banned = [spelling for text in excluded for spelling in self._known_spellings(text)]
        constraints = Constraints(ids, space and bool(ids), tuple(phrases), tuple(excluded), tuple(banned))
        _refuse_contradiction(constraints, self.tokenizer.decode([ids])[0])
        return constraints

    def _encode_known(self, key: str, text: str) -> TokenIds:
        ids = self.tokenizer.encode([text])[0]
        if self.tokenizer.unk in ids:
            raise UserError(f"{key}: the target's vocabulary cannot spell all of {text!r}; use another text")
        return tuple(ids)

    def _roundtrip(self, text: str, key: str, known: bool = True) -> str:
        """The text encoded and decoded: a vocabulary may lowercase it and drop invisible characters."""
        ids = self._encode_known(key, text) if known else self.tokenizer.encode([text])[0]
        result = self.tokenizer.decode([ids])[0]
        if not result.strip():
            raise UserError(f"{key}: nothing is left of {text!r} in the target's vocabulary; use another text")
        return result

    def _phrase(self, text: str, count: int) -> Phrase:
        """Inside a text a space precedes the phrase, except at the beginning and in scripts without spaces."""
        bare, spaced = map(tuple, self.tokenizer.encode([text, f" {text}"]))
        if bare == spaced or self._token_texts[bare[0]].startswith(" "):  # the tokenizer adds the space itself
            return Phrase(text, (bare,), count)
        word = (text[0].isalnum() or text[0] in OPENING_PUNCTUATION) and not UNSPACED_SCRIPT.match(text)
        return Phrase(text, (spaced, bare), count, no_space_before=word)

    def _known_spellings(self, text: str) -> list[TokenIds]:
        control = (self.tokenizer.pad, self.tokenizer.start, self.tokenizer.end)
        single = [(i,) for i, token in enumerate(self._token_texts) if text in token and i not in control]
        encoded = map(tuple, self.tokenizer.encode([text, f" {text}"]))
        return single + [ids for ids in dict.fromkeys(encoded) if len(ids) > 1 and self.tokenizer.unk not in ids]

    @cached_property
    def _token_texts(self) -> list[str]:
        return [token.replace("▁", " ") for token in self.tokenizer.tokens(range(self.tokenizer.size))]

    @cached_property
    def no_space_after(self) -> Tensor:
        """(vocab,) bool: tokens after which a word may follow without a space."""
        ends = [token[-1:] for token in self._token_texts]
        return torch.tensor(
            [end.isspace() or end in OPENING_PUNCTUATION or bool(UNSPACED_SCRIPT.match(end)) for end in ends]
        )

    @cached_property
    def starts_with_space(self) -> Tensor:
        """(vocab,) bool: tokens that begin with a space."""
        return torch.tensor([token.startswith(" ") for token in self._token_texts])

    # --- after a search ----------------------------------------------------------------------------------------

    def revise(self, constraints: Constraints, results: Sequence[Sequence[int]]) -> Constraints | None:
        """The constraints for another search after these `results`, best first; None if the results satisfy them.

        It drops required phrases that the best result lacks, and bans new spellings of excluded phrases.
        """
        if not results or not (constraints.include or constraints.exclude):
            return None
        texts = self.tokenizer.decode(results)
        spellings = [
            self._phrase_tokens(phrase, tokens)
            for text, tokens in zip(texts, results, strict=True)
            for phrase in constraints.exclude
            if phrase in text
        ]
        missing = constraints.missing(texts[0])
        if not spellings and not missing:
            return None
        remaining = tuple(phrase for phrase in constraints.include if phrase.text not in missing)
        return replace(
            constraints, include=remaining, banned=tuple(dict.fromkeys(constraints.banned + tuple(spellings)))
        )

    def _phrase_tokens(self, phrase: str, tokens: Sequence[int]) -> TokenIds:
        """The shortest run of tokens that contains the phrase, at its first occurrence."""
        heads = self.tokenizer.decode([tokens[: end + 1] for end in range(len(tokens))])
        end = next(i for i, text in enumerate(heads) if phrase in text) + 1
        tails = self.tokenizer.decode([tokens[begin:end] for begin in range(end)])
        begin = max(i for i, text in enumerate(tails) if phrase in text)
        return tuple(tokens[begin:end])


def _refuse_contradiction(constraints: Constraints, prefix: str) -> None:
    required = [("prefix", prefix)] + [("include", phrase.text) for phrase in constraints.include]
    for key, text in required:
        for excluded in constraints.exclude:
            if excluded in text:
                raise UserError(
                    f"decode.{key} {text!r} contains {excluded!r}, which decode.exclude forbids; remove one of the two"
                )


# --- from the settings ---------------------------------------------------------------------------------------------


class ConstraintRequest(NamedTuple):
    """The constraints of one text as strings."""

    prefix: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def parse_constraints(
    count: int, decode: JsonMapping, resolve: Callable[[Mapping[str, object]], Settings]
) -> tuple[list[ConstraintRequest], Settings]:
    """The constraints of each text, and the settings that `resolve` returns for decode.*.

    prefix, include and exclude may have one entry per text; `resolve` then gets all of their phrases, to check them.
    """
    per_text = {
        name: _per_text_entries(name, decode[name], count)
        for name in ConstraintRequest._fields
        if _is_per_text(name, decode.get(name))
    }
    merged = {name: "" if name == "prefix" else tuple(chain(*entries)) for name, entries in per_text.items()}
    settings = resolve({**decode, **merged})
    columns = [per_text.get(name) or [getattr(settings, name)] * count for name in ConstraintRequest._fields]
    return [ConstraintRequest(*row) for row in zip(*columns, strict=True)], settings


def _is_per_text(name: str, value: object) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return name == "prefix" or any(isinstance(entry, list | tuple) for entry in value)


def _per_text_entries(name: str, entries: Sequence[Any], count: int) -> list[Any]:
    if len(entries) != count:
        raise UserError(f"decode.{name} has {len(entries)} entries for {count} texts; give one for each")
    converted = [entry if name == "prefix" or not isinstance(entry, str) else (entry,) for entry in entries]
    for entry in converted:
        if not all(isinstance(text, str) for text in (entry if name != "prefix" else (entry,))):
            raise UserError(f"decode.{name} has the entry {entry!r}; expected text")
    return converted if name == "prefix" else [tuple(entry) for entry in converted]


# --- the constraints of a batch, in the form that a search takes ---------------------------------------------------


def batch_filters(
    constraints: Sequence[Constraints], tokenizer: ConstraintTokenizer, device: torch.device
) -> tuple[Filter, ...]:
    """The filters for excluded phrases and for a space after the prefix."""
    filters: list[Filter] = []
    if any(row.banned for row in constraints):
        filters.append(Forbid([row.banned for row in constraints], batch_prefixes(constraints, device)))
    if any(row.space_after_prefix for row in constraints):
        rows = torch.tensor([row.space_after_prefix for row in constraints], device=device)
        filters.append(FirstToken(rows, tokenizer.starts_with_space.to(device)))
    return tuple(filters)


def batch_phrases(
    constraints: Sequence[Constraints], tokenizer: ConstraintTokenizer, device: torch.device
) -> RequiredPhrases | None:
    """The required phrases; None if no row has any."""
    if not any(row.include for row in constraints):
        return None
    prefixes, no_space_after = batch_prefixes(constraints, device), tokenizer.no_space_after.to(device)
    return required_phrases([row.include for row in constraints], device, prefixes, no_space_after)


def batch_prefixes(constraints: Sequence[Constraints], device: torch.device) -> Tensor | None:
    """(rows, tokens) the prefixes, aligned at the right; None if all are empty."""
    longest = max(len(row.prefix) for row in constraints)
    rows = [[NO_TOKEN] * (longest - len(row.prefix)) + list(row.prefix) for row in constraints]
    return torch.tensor(rows, device=device) if longest else None
