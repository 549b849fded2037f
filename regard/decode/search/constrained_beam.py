"""Beam search for texts that contain required phrases (1804.06609, in spirit).

The beam is divided among hypotheses by how many phrase tokens they still miss. A hypothesis that has begun or completed
a phrase is thus not lost to likelier ones that have not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from .beam import BeamSearch, SearchCache, SearchSettings, extend
from .filters import StepContext
from .pool import tie_break_order, top_candidates

TOO_MANY = 2**20  # more tokens or phrases than any row requires


@dataclass(frozen=True)
class Phrase:
    """The tokens of a phrase in its spellings."""

    text: str
    forms: tuple[tuple[int, ...], ...]  # alternative token sequences of the text
    count: int = 1
    no_space_before: bool = False  # the last form lacks the space that should precede it

    @property
    def min_tokens(self) -> int:
        """The fewest tokens that all its occurrences take."""
        return self.count * min(map(len, self.forms))


@dataclass(frozen=True)
class PhraseProgress:
    """How far each hypothesis has matched the phrases of its row."""

    match: Tensor  # (rows, beams, forms, longest) bool: the last k + 1 tokens equal the form's first k + 1
    counts: Tensor  # (rows, beams, phrases) completed occurrences of each phrase

    def gather_beams(self, beams: Tensor) -> "PhraseProgress":
        """The progress of the hypotheses `beams` (rows, new)."""
        index = beams[:, :, None, None].expand(-1, -1, *self.match.shape[2:])
        return PhraseProgress(
            self.match.gather(1, index), self.counts.gather(1, beams[:, :, None].expand(-1, -1, self.counts.size(2)))
        )

    def select(self, rows: Tensor) -> "PhraseProgress":
        return PhraseProgress(self.match[rows], self.counts[rows])


@dataclass(frozen=True)
class RequiredPhrases:
    """The phrases of every row, as tables."""

    forms: Tensor  # (rows, forms, longest) tokens, padded with -1 on the right
    lengths: Tensor  # (rows, forms)
    owner: Tensor  # (rows, forms, phrases) bool: the form belongs to the phrase
    counts: Tensor  # (rows, phrases) required occurrences
    shortest: Tensor  # (rows, phrases) tokens of the shortest form
    no_space_before: Tensor  # (rows, forms) bool: may begin only at the start of a text or after `no_space_after`
    no_space_after: Tensor | None = None  # (vocab,) bool: tokens that need no space after them; None: all
    prefix: Tensor | None = None  # (rows, tokens) before the first token; NO_TOKEN where a prefix is shorter

    @property
    def min_tokens(self) -> Tensor:
        """(rows,) the fewest tokens that all phrases take."""
        return (self.counts * self.shortest).sum(1)

    def select(self, rows: Tensor) -> "RequiredPhrases":
        names = ("forms", "lengths", "owner", "counts", "shortest", "no_space_before")
        return replace(self, prefix=None, **{name: getattr(self, name)[rows] for name in names})

    def initial_progress(self) -> PhraseProgress:
        """The progress of one hypothesis per row after the prefix."""
        rows, forms, longest = self.forms.shape
        match = torch.zeros(rows, 1, forms, longest, dtype=torch.bool, device=self.forms.device)
        progress = PhraseProgress(match, self.counts.new_zeros(rows, 1, self.counts.size(1)))
        for token in () if self.prefix is None else self.prefix.unbind(1):
            progress = self.advance(progress, token[:, None])
        return progress

    def advance(self, progress: PhraseProgress, token: Tensor) -> PhraseProgress:
        """The progress after the next token (rows, beams). Shift-And matches all positions of all forms at once."""
        fits = token[:, :, None, None] == self.forms[:, None]  # (rows, beams, forms, longest)
        match = fits & F.pad(progress.match, (1, -1), value=True)
        last = (self.lengths - 1).clamp(min=0)[:, None, :, None].expand(*match.shape[:3], 1)
        complete = match.gather(3, last)  # (rows, beams, forms, 1)
        done = (complete & self.owner[:, None]).any(2)  # (rows, beams, phrases)
        used = (done[:, :, None] & self.owner[:, None]).any(3, keepdim=True)  # occurrences must not overlap
        return PhraseProgress(match & ~used, progress.counts + done)

    def missing_counts(self, progress: PhraseProgress) -> Tensor:
        """(rows, beams, phrases) occurrences that are still missing."""
        return (self.counts[:, None] - progress.counts).clamp(min=0)

    def missing_tokens(self, progress: PhraseProgress) -> Tensor:
        """(rows, beams) the fewest tokens that are still missing."""
        rest = (self.lengths[:, None] - matched_lengths(progress))[..., None]  # (rows, beams, forms, 1)
        rest = torch.where(self.owner[:, None], rest, TOO_MANY).amin(2)  # (rows, beams, phrases)
        missing = self.missing_counts(progress)
        return torch.where(missing > 0, (missing - 1) * self.shortest[:, None] + rest, 0).sum(2)

    def next_tokens(self, progress: PhraseProgress, otherwise: Tensor, before: Tensor | None) -> Tensor:
        """(rows, beams, forms) the token that begins or continues each form of a missing phrase.

        Forms of complete phrases get `otherwise` (rows, beams). `before` (rows, beams) is the last token; None at the
        start of a text.
        """
        forms, matched = self.forms[:, None].expand_as(progress.match), matched_lengths(progress)
        token = forms.gather(3, matched[..., None])[..., 0]
        is_missing = ((self.missing_counts(progress) > 0)[:, :, None] & self.owner[:, None]).any(3)
        if before is not None and self.no_space_after is not None:
            needs_space = (before >= 0) & ~self.no_space_after[before.clamp(min=0)]  # (rows, beams)
            is_missing &= ~(needs_space[:, :, None] & self.no_space_before[:, None] & (matched == 0))
        return torch.where(is_missing, token, otherwise[:, :, None])


def matched_lengths(progress: PhraseProgress) -> Tensor:
    """(rows, beams, forms) how many tokens of each form the hypothesis ends with; complete forms count as 0."""
    lengths = torch.arange(1, progress.match.size(3) + 1, device=progress.match.device)
    return (progress.match * lengths).amax(3)


def required_phrases(
    rows: Sequence[Sequence[Phrase]],
    device: torch.device,
    prefix: Tensor | None = None,
    no_space_after: Tensor | None = None,
) -> RequiredPhrases:
    """The tables for these rows of phrases."""
    forms = [[(i, form) for i, phrase in enumerate(phrases) for form in phrase.forms] for phrases in rows]
    most, phrases = max(map(len, forms)), max(map(len, rows))
    longest = max(len(form) for row in forms for _, form in row)
    shape = len(rows), most
    tokens = torch.full((*shape, longest), -1)
    lengths, owner = torch.zeros(shape, dtype=torch.long), torch.zeros(*shape, phrases, dtype=torch.bool)
    no_space_before = torch.zeros(shape, dtype=torch.bool)
    counts, shortest = torch.zeros(2, len(rows), phrases, dtype=torch.long)
    for row, row_forms in enumerate(forms):
        for index, (number, form) in enumerate(row_forms):
            phrase = rows[row][number]
            tokens[row, index, : len(form)] = torch.tensor(form)
            lengths[row, index], owner[row, index, number] = len(form), True
            no_space_before[row, index] = phrase.no_space_before and form == phrase.forms[-1]
        for i, phrase in enumerate(rows[row]):
            counts[row, i], shortest[row, i] = phrase.count, min(map(len, phrase.forms))
    tables = {"forms": tokens, "lengths": lengths, "owner": owner, "counts": counts, "shortest": shortest}
    on_device = {name: table.to(device) for name, table in (tables | {"no_space_before": no_space_before}).items()}
    return RequiredPhrases(**on_device, no_space_after=no_space_after, prefix=prefix)


class ConstrainedBeamSearch(BeamSearch):
    """Beam search for texts that contain all phrases. Its beam is wider by one for each token of the phrases.

    Where no text contains all phrases, it keeps those that contain the most.
    """

    rule_graph_safe = replicates_prompt = False

    def __init__(
        self,
        settings: SearchSettings,
        required: RequiredPhrases,
        cache: SearchCache,
        limits: Tensor,
        capacity: int = 0,
    ) -> None:
        self.widths = settings.beam + required.min_tokens  # (rows,) the beam width of each row
        super().__init__(settings, cache, limits, capacity, int(self.widths.max()))
        self.required, self.progress = required, required.initial_progress()

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.widths, self.required, self.progress = (
            self.widths[rows],
            self.required.select(rows),
            self.progress.select(rows),
        )

    def choose(self, scores: Tensor, last: Tensor, context: StepContext) -> tuple[Tensor, Tensor]:
        end, exact = self.settings.end, self.settings.early_stopping == "exact"
        before, missing, ending = self.tokens, self._missing_phrases(), self.take_ends(scores)
        scores[:, :, end] = ending.masked_fill((missing > 0) | exact, -torch.inf)
        best, token, origin, progress = self._ranked_candidates(scores)
        ended, rank = token == end, torch.arange(token.size(1), device=token.device)
        step = self.device_step
        if exact:  # every hypothesis that contains all phrases may end, however unlikely
            ending_now = ending.masked_fill(missing > 0, -torch.inf)
            self.pool.add(self.input_row, before, step[:, None] - 1, ending_now, True)
        else:  # as in plain beam search: twice as many candidates; ended ones in the better half enter the pool
            better, tokens = ended & (rank < self.widths[:, None]), extend(before, step, origin, token)
            self.pool.add(self.input_row, tokens, step[:, None] - 1, best.masked_fill(~better, -torch.inf), True)
        best, order = best.masked_fill(ended, -torch.inf), ended.long().argsort(dim=1, stable=True)[:, : self.width]
        self.logprobs, token, origin = (table.gather(1, order) for table in (best, token, origin))
        self.logprobs = self.logprobs.masked_fill(rank[: self.width] >= self.widths[:, None], -torch.inf)
        self.tokens, self.progress = extend(before, step, origin, token), progress.gather_beams(order)
        self._add_truncated(before, ending, missing, last)
        return token, origin

    def _missing_phrases(self) -> Tensor:
        return (self.required.missing_counts(self.progress) > 0).sum(2)  # (rows, beams)

    def _add_truncated(self, before: Tensor, ending: Tensor, missing_before: Tensor, last: Tensor) -> None:
        """At the limit, add hypotheses that contain all phrases; where none does, those that contain the most."""
        step, truncated = self.device_step[:, None], self.logprobs.masked_fill(~last[:, None], -torch.inf)
        missing = self._missing_phrases()
        self.pool.add(self.input_row, self.tokens, step, truncated.masked_fill(missing > 0, -torch.inf), False)
        empty = last & (self.pool.scores[self.input_row].amax(1) == -torch.inf)
        if not empty.any():
            return
        offers = (before, step - 1, ending, missing_before, True), (self.tokens, step, truncated, missing, False)
        counts = [lacking.masked_fill(scores == -torch.inf, TOO_MANY) for _, _, scores, lacking, _ in offers]
        fewest = torch.cat(counts, 1).amin(1)[:, None]
        for tokens, length, scores, lacking, ended in offers:
            chosen = empty[:, None] & (lacking == fewest)
            self.pool.add(self.input_row, tokens, length, scores.masked_fill(~chosen, -torch.inf), ended)

    def _ranked_candidates(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, PhraseProgress]:
        """Scores, tokens, origins and progress of twice as many candidates as beams, in the order of preference."""
        best, token, origin = self._candidates(scores)
        progress = self.required.advance(self.progress.gather_beams(origin), token)
        order = round_robin_order(best, self.required.missing_tokens(progress))[:, : 2 * self.width]
        best, token, origin = (table.gather(1, order) for table in (best, token, origin))
        return best, token, origin, progress.gather_beams(order)

    def _candidates(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, tokens and origins (rows, candidates), each continuation once.

        Candidates are the best token of each hypothesis, the tokens that begin or continue a phrase, and the best
        tokens overall.
        """
        rows, beams, vocab = scores.shape
        first, likeliest = scores.max(2)
        forced = self.required.next_tokens(self.progress, likeliest, self._last_tokens())
        best, token, origin = top_candidates(scores, 2 * self.width)
        rank = torch.arange(best.size(1), device=best.device)
        best = best.masked_fill(rank >= 2 * self.widths[:, None], -torch.inf)
        beam_index = torch.arange(beams, device=scores.device)
        forced_origin = beam_index[None, :, None].expand_as(forced).flatten(1)
        best = torch.cat([first, scores.gather(2, forced).flatten(1), best], 1)
        token = torch.cat([likeliest, forced.flatten(1), token], 1)
        origin = torch.cat([beam_index.expand(rows, -1), forced_origin, origin], 1)
        key, order = (origin * vocab + token).sort(dim=1, stable=True)
        duplicate = F.pad(key[:, 1:] == key[:, :-1], (1, 0))
        best = best.gather(1, order).masked_fill(duplicate, -torch.inf)
        return best, token.gather(1, order), origin.gather(1, order)

    def _last_tokens(self) -> Tensor | None:
        """(rows, beams) the token before the current step; None at the start of a text."""
        if self.step > 1:  # `step` includes the current step
            return self.tokens[:, :, self.step - 2]
        return None if self.required.prefix is None else self.required.prefix[:, -1:]


def round_robin_order(scores: Tensor, missing: Tensor) -> Tensor:
    """Order candidates (rows, candidates): the best of each number of missing tokens in turn, the fewest first."""
    missing = missing.masked_fill(scores == -torch.inf, TOO_MANY)
    best, index = scores.sort(dim=1, descending=True, stable=True)
    order = index.gather(1, tie_break_order(best, index, scores.size(1)))  # by score
    order = order.gather(1, missing.gather(1, order).argsort(dim=1, stable=True))  # by missing tokens, then by score
    missing = missing.gather(1, order)
    index = torch.arange(scores.size(1), device=scores.device).expand_as(order)
    group_starts = F.pad(missing[:, 1:] != missing[:, :-1], (1, 0))
    rank = index - torch.where(group_starts, index, 0).cummax(1).values  # among candidates that miss equally many
    rank = rank.masked_fill(missing == TOO_MANY, scores.size(1))
    return order.gather(1, (rank * (TOO_MANY + 1) + missing).argsort(dim=1, stable=True))
