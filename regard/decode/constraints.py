"""What is asked of one text: how it begins, which phrases it says and which it does not; and how a vocabulary spells
them. Phrases are meant as strings: `cat` is in `category`."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UserError
from ..processors.tokenizers import Tokenizer
from .constrained_beam import Phrase, RequiredPhrases, required_phrases
from .filters import NOTHING, Filter, FirstToken, Forbid

ROUNDS = 16  # of searching again, at most: an avoided phrase can be spelt in many ways
Spelling = tuple[int, ...]
OPENING = "([{<„“‘‚«\"'-–—/"
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Constraints:
    prefix: Spelling = ()
    spaced: bool = False  # what follows the prefix begins with a space
    include: tuple[Phrase, ...] = ()
    exclude: tuple[str, ...] = ()
    banned: tuple[Spelling, ...] = ()  # the spellings of what is to be avoided, as far as they are known

    @property
    def tokens(self) -> int:
        """That it takes at least to say all phrases."""
        return sum(phrase.tokens for phrase in self.include)

    def missing(self, text: str) -> list[str]:
        """The phrases that the text does not say, or not often enough."""
        return [phrase.text for phrase in self.include if text.count(phrase.text) < phrase.times]

    def allows(self, text: str) -> bool:
        return not any(phrase in text for phrase in self.exclude)


class ConstraintTokenizer:
    """How a vocabulary spells what people ask for."""

    def __init__(self, speller: Tokenizer) -> None:
        self.speller = speller

    def wish(self, prefix: str, must: Sequence[str], avoid: Sequence[str]) -> Constraints:
        spaced = prefix.endswith(" ")  # pieces bring the space before them along, so the next one has to bring this one
        spelt = self._spelt("decode.prefix", prefix[: len(prefix) - spaced]) if prefix.strip() else ()
        asked = Counter(self.heard(text.strip(), "decode.include") for text in must)
        phrases = [self._phrase(text, times) for text, times in asked.items()]
        heard = list(dict.fromkeys(self.heard(text.strip(), "decode.exclude", spelt=False) for text in avoid))
        banned = [spelling for text in heard for spelling in self._known(text)]
        wish = Constraints(spelt, spaced and bool(spelt), tuple(phrases), tuple(heard), tuple(banned))
        _refuse_contradiction(wish, self.speller.decode([spelt])[0])
        return wish

    def _spelt(self, key: str, text: str) -> Spelling:
        spelling = self.speller.encode([text])[0]
        if self.speller.unk in spelling:
            raise UserError(f"{key}: {text!r} has a part that the target's vocabulary cannot spell; ask for another")
        return tuple(spelling)

    def heard(self, text: str, key: str, spelt: bool = True) -> str:
        """As it comes back: a vocabulary may write all in small letters, and leave letters out that nobody sees."""
        spelling = self._spelt(key, text) if spelt else self.speller.encode([text])[0]
        heard = self.speller.decode([spelling])[0]
        if not heard.strip():
            raise UserError(f"{key}: nothing is left of {text!r} in the target's vocabulary; ask for another")
        return heard

    def _phrase(self, text: str, times: int) -> Phrase:
        """Within a text a space comes before it, at the beginning none, nor in scripts that are written without."""
        bare, spaced = map(tuple, self.speller.encode([text, f" {text}"]))
        if bare == spaced or self._pieces[bare[0]].startswith(" "):  # the vocabulary puts the space there by itself
            return Phrase(text, (bare,), times)
        glued = (text[0].isalnum() or text[0] in OPENING) and not UNSPACED.match(text)
        return Phrase(text, (spaced, bare), times, glued)

    def _known(self, text: str) -> list[Spelling]:
        control = (self.speller.pad, self.speller.start, self.speller.end)
        single = [(i,) for i, piece in enumerate(self._pieces) if text in piece and i not in control]
        spellings = map(tuple, self.speller.encode([text, f" {text}"]))
        return single + [each for each in dict.fromkeys(spellings) if len(each) > 1 and self.speller.unk not in each]

    @cached_property
    def _pieces(self) -> list[str]:
        return [piece.replace("▁", " ") for piece in self.speller.pieces(range(self.speller.size))]

    @cached_property
    def apart(self) -> Tensor:
        """(vocab,) bool: the pieces behind which a word may stand without a space."""
        ends = [piece[-1:] for piece in self._pieces]
        return torch.tensor([end.isspace() or end in OPENING or bool(UNSPACED.match(end)) for end in ends])

    @cached_property
    def spaced(self) -> Tensor:
        """(vocab,) bool: the pieces that begin with a space."""
        return torch.tensor([piece.startswith(" ") for piece in self._pieces])

    # --- after a search ----------------------------------------------------------------------------------------

    def again(self, wish: Constraints, found: Sequence[Sequence[int]]) -> Constraints | None:
        """What to ask instead after these texts (of which the first is the best); None: they are what was asked for.

        A phrase that could not be said is given up, and a new spelling of an avoided one is added to those known.
        """
        if not found or not (wish.include or wish.exclude):
            return None
        texts = self.speller.decode(found)
        spellings = [
            self._spelling(phrase, tokens)
            for text, tokens in zip(texts, found, strict=True)
            for phrase in wish.exclude
            if phrase in text
        ]
        missing = wish.missing(texts[0])
        if not spellings and not missing:
            return None
        kept = tuple(phrase for phrase in wish.include if phrase.text not in missing)
        return replace(wish, include=kept, banned=tuple(dict.fromkeys(wish.banned + tuple(spellings))))

    def _spelling(self, phrase: str, tokens: Sequence[int]) -> Spelling:
        """The tokens in which the phrase is said."""
        heads = self.speller.decode([tokens[: end + 1] for end in range(len(tokens))])
        end = next(i for i, text in enumerate(heads) if phrase in text) + 1
        tails = self.speller.decode([tokens[begin:end] for begin in range(end)])
        begin = max(i for i, text in enumerate(tails) if phrase in text)
        return tuple(tokens[begin:end])


def _refuse_contradiction(wish: Constraints, prefix: str) -> None:
    said = [("prefix", prefix)] + [("include", phrase.text) for phrase in wish.include]
    for key, text in said:
        for avoided in wish.exclude:
            if avoided in text:
                raise UserError(
                    f"decode.{key} {text!r} says {avoided!r}, which decode.exclude forbids; take one of the two out"
                )


# --- from the settings ---------------------------------------------------------------------------------------------


class ConstraintRequest(NamedTuple):
    """For one text, in plain words."""

    prefix: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def parse_constraints(
    count: int, decode: Mapping[str, Any], settle: Callable[[Mapping[str, Any]], Any]
) -> tuple[list[ConstraintRequest], Any]:
    """What is asked of each text, and the settings as `settle` makes them of decode.*.

    prefix, must and avoid may hold an entry for each text; `settle` then sees all of their phrases, to check them.
    """
    own = {
        name: _own(name, decode[name], count) for name in ConstraintRequest._fields if _per_text(name, decode.get(name))
    }
    seen = {name: "" if name == "prefix" else tuple(chain(*entries)) for name, entries in own.items()}
    how = settle({**decode, **seen})
    columns = [own.get(name) or [getattr(how, name)] * count for name in ConstraintRequest._fields]
    return [ConstraintRequest(*each) for each in zip(*columns, strict=True)], how


def _per_text(name: str, value: Any) -> bool:
    listed = isinstance(value, list | tuple)
    return listed and (name == "prefix" or any(isinstance(each, list | tuple) for each in value))


def _own(name: str, entries: Sequence[Any], count: int) -> list[Any]:
    if len(entries) != count:
        raise UserError(f"decode.{name} has {len(entries)} entries and there are {count} texts; give one for each")
    own = [each if name == "prefix" or not isinstance(each, str) else (each,) for each in entries]
    for each in own:
        if not all(isinstance(text, str) for text in (each if name != "prefix" else (each,))):
            raise UserError(f"decode.{name} has the entry {each!r}; expected text")
    return own if name == "prefix" else [tuple(each) for each in own]


# --- the wishes of a batch, as a search takes them -----------------------------------------------------------------


def prompts(wishes: Sequence[Constraints], start: int, pad: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """START and the prefixes (rows, tokens), and which of it is real, where they differ in length."""
    rows = [[start, *wish.prefix] for wish in wishes]
    longest = max(map(len, rows))
    prompt = torch.tensor([row + [pad] * (longest - len(row)) for row in rows], device=device)
    if all(len(row) == longest for row in rows):
        return prompt, None
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return prompt, torch.arange(longest, device=device) < lengths[:, None]


def filters(wishes: Sequence[Constraints], wording: ConstraintTokenizer, device: torch.device) -> tuple[Filter, ...]:
    found: list[Filter] = []
    if any(wish.banned for wish in wishes):
        found.append(Forbid([wish.banned for wish in wishes], given(wishes, device)))
    if any(wish.spaced for wish in wishes):
        spaced = torch.tensor([wish.spaced for wish in wishes], device=device)
        found.append(FirstToken(spaced, wording.spaced.to(device)))
    return tuple(found)


def phrases(
    wishes: Sequence[Constraints], wording: ConstraintTokenizer, device: torch.device
) -> RequiredPhrases | None:
    if not any(wish.include for wish in wishes):
        return None
    return required_phrases([wish.include for wish in wishes], device, given(wishes, device), wording.apart.to(device))


def given(wishes: Sequence[Constraints], device: torch.device) -> Tensor | None:
    """(rows, tokens): the prefixes, at the right."""
    longest = max(len(wish.prefix) for wish in wishes)
    rows = [[NOTHING] * (longest - len(wish.prefix)) + list(wish.prefix) for wish in wishes]
    return torch.tensor(rows, device=device) if longest else None
