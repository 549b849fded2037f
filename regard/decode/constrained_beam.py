"""Phrases that must be said. The beam is shared out among hypotheses by how many tokens of the phrases they still lack,
so that those which have begun or said a phrase are not lost to likelier ones that have not (1804.06609, in spirit).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from .beam import BeamSearch, SearchCache, SearchSettings, extend
from .filters import StepContext
from .pool import even, top

NONE = 2**20  # more than any phrases have


@dataclass(frozen=True)
class Phrase:
    text: str
    forms: tuple[tuple[int, ...], ...]  # each says it
    times: int = 1
    glued: bool = False  # the last form has no space before it, where there should be one

    @property
    def tokens(self) -> int:
        """How many it takes at least."""
        return self.times * min(map(len, self.forms))


@dataclass(frozen=True)
class PhraseProgress:
    """What each hypothesis has said of its row's phrases."""

    match: Tensor  # (rows, beams, forms, longest) bool: do the last k + 1 tokens equal the form's first k + 1?
    times: Tensor  # (rows, beams, phrases) how often each was said

    def pick(self, beams: Tensor) -> "PhraseProgress":
        """beams (rows, new): which hypothesis each new one is."""
        into = beams[:, :, None, None].expand(-1, -1, *self.match.shape[2:])
        return PhraseProgress(
            self.match.gather(1, into), self.times.gather(1, beams[:, :, None].expand(-1, -1, self.times.size(2)))
        )

    def select(self, rows: Tensor) -> "PhraseProgress":
        return PhraseProgress(self.match[rows], self.times[rows])


@dataclass(frozen=True)
class RequiredPhrases:
    """The phrases of every row, as tables."""

    forms: Tensor  # (rows, forms, longest) tokens, -1 behind
    lengths: Tensor  # (rows, forms)
    owner: Tensor  # (rows, forms, phrases) bool: whose form it is
    times: Tensor  # (rows, phrases) how often each is wanted
    shortest: Tensor  # (rows, phrases) tokens of its shortest form
    glued: Tensor  # (rows, forms) bool: begun only where a text begins, or where `apart` says so
    apart: Tensor | None = None  # (vocab,) bool: tokens that need no space behind them; None: all
    given: Tensor | None = None  # (rows, tokens) what stands before the first token; NOTHING where nothing does

    @property
    def tokens(self) -> Tensor:
        """(rows,) that it takes at least to say all."""
        return (self.times * self.shortest).sum(1)

    def select(self, rows: Tensor) -> "RequiredPhrases":
        names = ("forms", "lengths", "owner", "times", "shortest", "glued")
        return replace(self, given=None, **{name: getattr(self, name)[rows] for name in names})

    def begin(self) -> PhraseProgress:
        """One hypothesis per row, which has said what is given."""
        rows, forms, longest = self.forms.shape
        match = torch.zeros(rows, 1, forms, longest, dtype=torch.bool, device=self.forms.device)
        progress = PhraseProgress(match, self.times.new_zeros(rows, 1, self.times.size(1)))
        for token in () if self.given is None else self.given.unbind(1):
            progress = self.read(progress, token[:, None])
        return progress

    def read(self, progress: PhraseProgress, token: Tensor) -> PhraseProgress:
        """After the next token (rows, beams): every form is matched at all its places at once (Shift-And)."""
        fits = token[:, :, None, None] == self.forms[:, None]  # (rows, beams, forms, longest)
        match = fits & F.pad(progress.match, (1, -1), value=True)
        last = (self.lengths - 1).clamp(min=0)[:, None, :, None].expand(*match.shape[:3], 1)
        whole = match.gather(3, last)  # (rows, beams, forms, 1)
        said = (whole & self.owner[:, None]).any(2)  # (rows, beams, phrases)
        spent = (said[:, :, None] & self.owner[:, None]).any(3, keepdim=True)  # said twice means: one after the other
        return PhraseProgress(match & ~spent, progress.times + said)

    def unsaid(self, progress: PhraseProgress) -> Tensor:
        """(rows, beams, phrases) how often each must still be said."""
        return (self.times[:, None] - progress.times).clamp(min=0)

    def lacking(self, progress: PhraseProgress) -> Tensor:
        """(rows, beams) tokens that are still to be said, at least."""
        rest = (self.lengths[:, None] - reached(progress))[..., None]  # (rows, beams, forms, 1)
        rest = torch.where(self.owner[:, None], rest, NONE).amin(2)  # (rows, beams, phrases)
        unsaid = self.unsaid(progress)
        return torch.where(unsaid > 0, (unsaid - 1) * self.shortest[:, None] + rest, 0).sum(2)

    def next(self, progress: PhraseProgress, otherwise: Tensor, before: Tensor | None) -> Tensor:
        """(rows, beams, forms) the token that begins or continues each form of an unsaid phrase, else `otherwise`
        (rows, beams). `before` (rows, beams) is the last token; None: the text begins."""
        forms, count = self.forms[:, None].expand_as(progress.match), reached(progress)
        token = forms.gather(3, count[..., None])[..., 0]
        wanted = ((self.unsaid(progress) > 0)[:, :, None] & self.owner[:, None]).any(3)
        if before is not None and self.apart is not None:
            close = (before >= 0) & ~self.apart[before.clamp(min=0)]  # (rows, beams)
            wanted &= ~(close[:, :, None] & self.glued[:, None] & (count == 0))
        return torch.where(wanted, token, otherwise[:, :, None])


def reached(progress: PhraseProgress) -> Tensor:
    """(rows, beams, forms) how many tokens of each form have been said just now; a whole form has been counted."""
    counts = torch.arange(1, progress.match.size(3) + 1, device=progress.match.device)
    return (progress.match * counts).amax(3)


def required_phrases(
    rows: Sequence[Sequence[Phrase]],
    device: torch.device,
    given: Tensor | None = None,
    apart: Tensor | None = None,
) -> RequiredPhrases:
    """The tables for these rows of phrases."""
    forms = [[(i, form) for i, phrase in enumerate(phrases) for form in phrase.forms] for phrases in rows]
    most, phrases = max(map(len, forms)), max(map(len, rows))
    longest = max(len(form) for row in forms for _, form in row)
    shape = len(rows), most
    tokens = torch.full((*shape, longest), -1)
    lengths, owner = torch.zeros(shape, dtype=torch.long), torch.zeros(*shape, phrases, dtype=torch.bool)
    glued = torch.zeros(shape, dtype=torch.bool)
    times, shortest = torch.zeros(2, len(rows), phrases, dtype=torch.long)
    for row, own in enumerate(forms):
        for place, (phrase, form) in enumerate(own):
            tokens[row, place, : len(form)] = torch.tensor(form)
            lengths[row, place], owner[row, place, phrase] = len(form), True
            glued[row, place] = rows[row][phrase].glued and form == rows[row][phrase].forms[-1]
        for i, each in enumerate(rows[row]):
            times[row, i], shortest[row, i] = each.times, min(map(len, each.forms))
    tables = {"forms": tokens, "lengths": lengths, "owner": owner, "times": times, "shortest": shortest, "glued": glued}
    return RequiredPhrases(**{name: table.to(device) for name, table in tables.items()}, apart=apart, given=given)


class ConstrainedBeamSearch(BeamSearch):
    """Beam search for texts that say all phrases. It is wider than asked by one hypothesis for each of their tokens.

    Where no text can, those that say most of the phrases are kept.
    """

    graph_safe = spreads = False

    def __init__(self, settings: SearchSettings, must: RequiredPhrases, cache: SearchCache, limits: Tensor) -> None:
        self.widths = settings.beam + must.tokens  # (rows,) each row's own
        super().__init__(settings, cache, limits, int(self.widths.max()))
        self.must, self.progress = must, must.begin()

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.widths, self.must, self.progress = self.widths[rows], self.must.select(rows), self.progress.select(rows)

    def split(self, scores: Tensor, last: Tensor, moment: StepContext) -> tuple[Tensor, Tensor]:
        end, exact = self.settings.end, self.settings.early_stopping == "exact"
        before, lacked, ending = self.tokens, self._unsaid(), scores[:, :, end].clone()
        scores[:, :, end] = ending.masked_fill((lacked > 0) | exact, -torch.inf)
        best, token, origin, progress = self._in_turn(scores)
        ended, place = token == end, torch.arange(token.size(1), device=token.device)
        if exact:  # all that have said everything may end, however unlikely
            self.pool.add(self.row, before, self.now - 1, ending.masked_fill(lacked > 0, -torch.inf), True)
        else:  # as in plain search: twice as many candidates, of which those that end among the better half do end
            better, said = ended & (place < self.widths[:, None]), extend(before, self.now, origin, token)
            self.pool.add(self.row, said, self.now - 1, best.masked_fill(~better, -torch.inf), True)
        best, order = best.masked_fill(ended, -torch.inf), ended.long().argsort(dim=1, stable=True)[:, : self.width]
        self.logprobs, token, origin = (each.gather(1, order) for each in (best, token, origin))
        self.logprobs = self.logprobs.masked_fill(place[: self.width] >= self.widths[:, None], -torch.inf)
        self.tokens, self.progress = extend(before, self.now, origin, token), progress.pick(order)
        self._at_the_limit(before, ending, lacked, last)
        return token, origin

    def _unsaid(self) -> Tensor:
        return (self.must.unsaid(self.progress) > 0).sum(2)  # (rows, beams) phrases

    def _at_the_limit(self, before: Tensor, ending: Tensor, lacked: Tensor, last: Tensor) -> None:
        """Keep what is cut off there and has said everything; where nothing has, what has said most."""
        cut, lacks = self.logprobs.masked_fill(~last[:, None], -torch.inf), self._unsaid()
        self.pool.add(self.row, self.tokens, self.now, cut.masked_fill(lacks > 0, -torch.inf), False)
        in_need = last & (self.pool.scores[self.row].amax(1) == -torch.inf)
        if not in_need.any():
            return
        offers = (before, self.now - 1, ending, lacked, True), (self.tokens, self.now, cut, lacks, False)
        counts = [unsaid.masked_fill(scores == -torch.inf, NONE) for _, _, scores, unsaid, _ in offers]
        least = torch.cat(counts, 1).amin(1)[:, None]
        for said, length, scores, unsaid, ended in offers:
            chosen = in_need[:, None] & (unsaid == least)
            self.pool.add(self.row, said, length, scores.masked_fill(~chosen, -torch.inf), ended)

    def _in_turn(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, PhraseProgress]:
        """The candidates in the order in which the beam is shared out, twice as many as it has places."""
        best, token, origin = self._candidates(scores)
        progress = self.must.read(self.progress.pick(origin), token)
        order = shared_out(best, self.must.lacking(progress))[:, : 2 * self.width]
        best, token, origin = (each.gather(1, order) for each in (best, token, origin))
        return best, token, origin, progress.pick(order)

    def _candidates(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, tokens and origins, each (rows, candidates), every continuation once: the best of each hypothesis,
        what continues or begins a phrase, and the best of all."""
        rows, beams, vocab = scores.shape
        first, likeliest = scores.max(2)
        forced = self.must.next(self.progress, likeliest, self._before())
        best, token, origin = top(scores, 2 * self.width)
        best = best.masked_fill(torch.arange(best.size(1), device=best.device) >= 2 * self.widths[:, None], -torch.inf)
        own = torch.arange(beams, device=scores.device)
        pressed = own[None, :, None].expand_as(forced).flatten(1)
        best = torch.cat([first, scores.gather(2, forced).flatten(1), best], 1)
        token = torch.cat([likeliest, forced.flatten(1), token], 1)
        origin = torch.cat([own.expand(rows, -1), pressed, origin], 1)
        key, order = (origin * vocab + token).sort(dim=1, stable=True)
        again = F.pad(key[:, 1:] == key[:, :-1], (1, 0))
        best = best.gather(1, order).masked_fill(again, -torch.inf)
        return best, token.gather(1, order), origin.gather(1, order)

    def _before(self) -> Tensor | None:
        """(rows, beams) the last token."""
        if self.step > 1:  # this one counted
            return self.tokens[:, :, self.step - 2]
        return None if self.must.given is None else self.must.given[:, -1:]


def shared_out(scores: Tensor, lacking: Tensor) -> Tensor:
    """An order of candidates (rows, candidates): the best of each number of lacking tokens in turn, the least first."""
    lacking = lacking.masked_fill(scores == -torch.inf, NONE)
    best, index = scores.sort(dim=1, descending=True, stable=True)
    order = index.gather(1, even(best, index, scores.size(1)))  # by score
    order = order.gather(1, lacking.gather(1, order).argsort(dim=1, stable=True))  # by what they lack, then by score
    lacking = lacking.gather(1, order)
    place = torch.arange(scores.size(1), device=scores.device).expand_as(order)
    begins = F.pad(lacking[:, 1:] != lacking[:, :-1], (1, 0))
    rank = place - torch.where(begins, place, 0).cummax(1).values  # among those that lack as much
    rank = rank.masked_fill(lacking == NONE, scores.size(1))
    return order.gather(1, (rank * (NONE + 1) + lacking).argsort(dim=1, stable=True))
