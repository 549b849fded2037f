"""Wrappers of models: ensembles, models that start from encoded sources, a decoder combined with CTC."""

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from ...families.protocols import SpeechModel, as_module
from ...parts import Encoded, Inputs
from ...parts.cache.base import put_rows, select_rows
from ...parts.parallel.ctc import PrefixScorer
from ..search.beam import OpenCache, update_in_place


class CacheBundle:
    """The caches of all members as one SearchCache."""

    def __init__(self, caches: Sequence[OpenCache]) -> None:
        self.caches, self.fixed = caches, all(cache.fixed for cache in caches)

    def skip_prompt(self) -> None:
        """See `SearchCache`."""
        for cache in self.caches:
            cache.skip_prompt()

    def branch(self, beams: int, steps: int) -> None:
        """See `SearchCache`."""
        for cache in self.caches:
            cache.branch(beams, steps)

    def reorder(self, origin: Tensor) -> None:
        """See `SearchCache`."""
        for cache in self.caches:
            cache.reorder(origin)

    def select(self, rows: Tensor) -> "CacheBundle":
        """See `SearchCache`."""
        for cache in self.caches:
            cache.select(rows)
        return self

    def rebound(self, tokens: int) -> None:
        """See `OpenCache`."""
        for cache in self.caches:
            cache.rebound(tokens)

    def put(self, rows: Tensor, other: "CacheBundle", origin: Tensor) -> None:
        """See `OpenCache`."""
        for cache, theirs in zip(self.caches, other.caches, strict=True):
            cache.put(rows, theirs, origin)


class Ensemble(nn.Module):
    """Models of one vocabulary."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members: Any = nn.ModuleList(members)  # Any: nn.Module does not type `start` and `step`

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None) -> CacheBundle:
        """The caches of all members."""
        return CacheBundle([member.start(source, rows, capacity) for member in self.members])

    def step(self, tokens: Tensor, cache: CacheBundle, valid: Tensor | None = None) -> Tensor:
        """The mean of the members' probabilities, as logits."""
        pairs = zip(self.members, cache.caches, strict=True)
        return mean_logprobs([member.step(tokens, member_cache, valid) for member, member_cache in pairs])

    def new_memory(self, rows: int) -> None:
        """None: an ensemble reads windows of a text, and its members carry nothing over."""


def mean_logprobs(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of the probabilities."""
    logprobs = [scores.float().log_softmax(-1) for scores in logits]
    return logprobs[0] if len(logits) == 1 else torch.stack(logprobs).logsumexp(0) - log(len(logits))


def joint_logits(logits: Sequence[Tensor]) -> Tensor:
    """The logits of the members of a model: those of a single one, else the logarithm of the mean probabilities."""
    return logits[0] if len(logits) == 1 else mean_logprobs(logits)


class EncodedSources(nn.Module):
    """A model whose sources are the outputs of its encoder."""

    def __init__(self, model: SpeechModel) -> None:
        super().__init__()
        self.model: Any = as_module(model)

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None) -> Any:
        """The decoder's cache for encoded sources."""
        assert source is not None and rows == len(source)
        return self.model.start_encoded(Encoded(source.values, source.valid), rows, capacity)

    def step(self, tokens: Tensor, cache: Any, valid: Tensor | None = None) -> Tensor:
        """The logits of the decoder."""
        logits: Tensor = self.model.step(tokens, cache, valid)
        return logits


class PrefixCache:
    """The CTC probabilities of every row, which its beams share, and a state of every hypothesis."""

    def __init__(self, scorer: PrefixScorer, fixed: bool = False) -> None:
        self.scorer, self.state, self.fixed = scorer, scorer.initial(), fixed
        self.beams = 0

    def step(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        """Read tokens (rows, tokens), or (rows, beams) after `branch`; return scores (rows, tokens, vocab)."""
        if self.beams or tokens.size(1) == 1:
            return self._step(tokens, valid)
        read = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        columns = [slice(i, i + 1) for i in range(tokens.size(1))]  # of a prompt, one after another
        return torch.cat([self._step(tokens[:, column], read[:, column]) for column in columns], 1)

    def _step(self, tokens: Tensor, valid: Tensor | None) -> Tensor:
        new = self.scorer.advance(self.state, tokens, valid)
        for name in self.state.NAMES:
            setattr(self.state, name, update_in_place(getattr(self.state, name), getattr(new, name)))
        return self.scorer.scores(self.state)

    def skip_prompt(self) -> None:
        """See `SearchCache`."""

    def rebound(self, tokens: int) -> None:
        """See `OpenCache`."""

    def branch(self, beams: int, steps: int) -> None:
        """See `SearchCache`."""
        assert not self.beams, "a cache branches only once"
        self.beams = beams
        for name in self.state.NAMES:
            setattr(self.state, name, getattr(self.state, name).repeat_interleave(beams, 1))

    def reorder(self, origin: Tensor) -> None:
        """origin (rows, beams): the beam of the last step that each beam of the next step continues."""
        for name in self.state.NAMES:
            old = getattr(self.state, name)
            index = origin if old.dim() == 2 else origin[:, :, None].expand(-1, -1, old.size(2))
            setattr(self.state, name, update_in_place(old, old.gather(1, index)))

    def select(self, rows: Tensor) -> None:
        """See `SearchCache`."""
        for owner in (self.scorer, self.state):
            for name in owner.NAMES:
                setattr(owner, name, select_rows(getattr(owner, name), rows))

    def put(self, rows: Tensor, other: "PrefixCache", origin: Tensor) -> None:
        """Replace these rows by the rows `origin` of another cache, or of this one; the shorter source gets padding."""
        assert not self.beams and not other.beams, "beams share their source: give each a row of its own instead"
        frames = max(self.scorer.frames, other.scorer.frames)
        for cache in (self, other):
            cache.scorer.pad(frames)
            cache.state.pad(frames)
        for owner in ("state",) if other is self else ("scorer", "state"):  # its own beams share a source
            mine, theirs = getattr(self, owner), getattr(other, owner)
            for name in mine.NAMES:
                put_rows(getattr(mine, name), rows, getattr(theirs, name), origin)


class JointCache(CacheBundle):
    """The cache of the decoder and that of CTC; None for one without weight."""

    def __init__(self, decoder: OpenCache | None, prefix: PrefixCache | None, weight: float) -> None:
        super().__init__([cache for cache in (decoder, prefix) if cache is not None])
        self.decoder, self.prefix = decoder, prefix
        self.weight = weight  # part of the cache, so that a search with another weight captures its own CUDA graph


class JointCTC(nn.Module):
    """Scores (1 - weight) · log p of the decoder + weight · log p of CTC for every next token.

    The source is encoded once. With weight 0 there is no CTC, with weight 1 the decoder does not run.
    """

    returns_scores = True  # a search adds them up without a softmax

    def __init__(self, model: SpeechModel, weight: float, blank: int, start: int, end: int) -> None:
        super().__init__()
        if not 0 <= weight <= 1:
            raise ValueError(f"the weight of CTC is {weight}; expected 0 to 1")
        self.model: Any = as_module(model)  # Any: nn.Module does not type the methods of models
        self.weight, self.blank, self.start_token, self.end = weight, blank, start, end

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None) -> JointCache:
        """Encode the source; return the caches of decoder and CTC."""
        assert source is not None and rows == len(source), "a sequence-to-sequence model reads one source per row"
        encoded, decoder, prefix = self.model.encode(source), None, None
        if self.weight < 1:
            decoder = self.model.start_encoded(encoded, rows, capacity)
        if self.weight:
            logits = self.model.ctc_logits(encoded)
            scorer = PrefixScorer(logits, encoded.valid, self.blank, self.start_token, self.end)
            prefix = PrefixCache(scorer, capacity is not None)
        return JointCache(decoder, prefix, self.weight)

    def step(self, tokens: Tensor, cache: JointCache, valid: Tensor | None = None) -> Tensor:
        """The weighted scores of decoder and CTC."""
        ctc = None if cache.prefix is None else cache.prefix.step(tokens, valid).float()
        if cache.decoder is None:
            assert ctc is not None
            return ctc
        logits: Tensor = self.model.step(tokens, cache.decoder, valid)
        scores = logits.float().log_softmax(-1)
        return scores if ctc is None else scores.mul_(1 - cache.weight).add_(ctc, alpha=cache.weight)
