"""From prompts to continuations: the searching half of a writer."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config.run import Run, change_settings
from ..config.schema import LanguageDecode
from ..data.sampler import sorted_batches
from ..decode import Ensemble, Filter, Hypothesis, RepetitionPenalty, SearchSettings, StopStrings, search, steps
from ..decode.beam import ROUND
from ..decode.filters import NOTHING
from ..decode.sample import sampling_settings
from ..decode.stop_strings import cut, held
from ..decode.texts import added
from ..errors import UserError
from ..processors.tokenizers import Tokenizer, unknown_words


@dataclass(frozen=True)
class Continuation:
    """A continuation."""

    text: str  # without the string that stopped it
    tokens: list[int]  # all that were chosen, but for END
    ended: str  # end: by itself; stop: at a string of decode.stop; max: at decode.max_tokens; context: no room is left
    score: float  # Σ log p / length^α, as the search saw it


class PromptBatch(NamedTuple):
    """Prompts that are continued together, as a search takes them."""

    prompt: Tensor  # (rows, tokens)
    limits: Tensor  # (rows,)
    settings: SearchSettings
    real: Tensor | None


class PromptGenerator:
    """A model that can `start` and `step`, with its vocabulary. Prompts of any lengths are continued in batches."""

    run: Run
    model: Any
    tokenizer: Tokenizer
    device: torch.device
    filters: tuple[Filter, ...]

    @property
    def context(self) -> int | None:
        """How many tokens the model can read at once; None: any number."""
        members = self.model.members if isinstance(self.model, Ensemble) else [self.model]
        return min((member.context for member in members if member.context is not None), default=None)

    @property
    def memory(self) -> int | None:
        """How many tokens back the model sees while it writes, where that ends without a refusal."""
        members = self.model.members if isinstance(self.model, Ensemble) else [self.model]
        kept = [cache.layers[0].tokens for member in members if (cache := member.new_memory(1)) is not None]
        return min((tokens for tokens in kept if tokens is not None), default=None)

    @property
    def opening(self) -> int:
        """What is read before the first token of a text: in a stream, the end of the line before."""
        return self.tokenizer.end if self.run.data.document == "stream" else self.tokenizer.start

    def refuse_long(self, tokens: int, what: str) -> None:
        if (context := self.context) is not None and tokens > context:
            raise UserError(
                f"{what} has {tokens:,} tokens and the model's context is {context:,}; shorten it, or train with a "
                "longer context (model.positions.tokens) or with positions that have no end (model.positions=rotary)"
            )

    def stream(self, prompt: str, **decode: Any) -> Iterator[str]:
        """The continuation in pieces, as they come: never half a character, never a part of a string that stops it.
        A beam knows its text only at the end."""
        how = self._how(decode)
        if how.nbest > 1:
            raise UserError(f"decode.nbest is {how.nbest} and a stream is of one text; use predict, or decode.nbest=1")
        return self._stream(prompt, self._prompts([prompt], how)[0], how)

    def _stream(self, prompt: str, ids: list[int], how: LanguageDecode) -> Iterator[str]:
        teller, batch = IncrementalDetokenizer(self.tokenizer.decode, ids, how.stop), self._batch([prompt], [ids], how)
        for walk in steps(self.model, self._start(batch), *batch):
            if (
                how.kind != "beam"
                and not walk.finished
                and (piece := teller.hear(int(walk.tokens[0, 0, walk.step - 1])))
            ):
                yield piece
        found = [self._said(ids, each, how) for each in walk.results()[0]]
        yield from filter(None, (said.text[teller.told :] for said in found))
        self._warn([found])

    def continued(self, prompts: Sequence[str], ids: list[list[int]], how: LanguageDecode) -> list[list[Continuation]]:
        """The continuations of every prompt, best first, samples as drawn."""
        found: list[list[Continuation]] = [[] for _ in prompts]
        for chosen in sorted_batches([len(each) for each in ids], rows=how.batch):
            batch = self._batch([prompts[i] for i in chosen], [ids[i] for i in chosen], how)
            best = search(self.model, self._start(batch), *batch)
            for i, some in zip(chosen, best, strict=True):
                found[i] = [self._said(ids[i], each, how) for each in some]
        self._warn(found)
        return found

    # --- how it is done ----------------------------------------------------------------------------------------

    def _prompts(self, texts: Sequence[str], how: LanguageDecode) -> list[list[int]]:
        """Tokens to begin with, START before them if asked for; it stands for an empty prompt in any case."""
        found = self.encoded(texts)
        found = [[self.opening, *ids] if how.add_start or not ids else ids for ids in found]
        for number, ids in enumerate(found, 1):
            self.refuse_long(len(ids), f"prompt {number}")
        longest, memory = max(map(len, found), default=0), self.memory
        if memory is not None and longest > memory:
            warnings.warn(
                f"a prompt has {longest:,} tokens; what is written looks back {memory:,} (model.memory)", stacklevel=4
            )
        return found

    def encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of texts. Words may be unknown, but not characters: nothing could be made of them."""
        found = self.tokenizer.encode(list(texts))
        for text, ids in zip(texts, found, strict=True):
            if self.run.tokenizer.kind == "char" and self.tokenizer.unk in ids:
                strange = ", ".join(map(repr, unknown_words(self.tokenizer, text)[:5]))
                raise UserError(
                    f"the run's vocabulary of characters lacks {strange}; leave it out, or train with another tokenizer"
                )
        return found

    def _batch(self, prompts: list[str], ids: list[list[int]], how: LanguageDecode) -> PromptBatch:
        longest, device = max(map(len, ids)), self.device
        prompt = torch.tensor([row + [self.tokenizer.pad] * (longest - len(row)) for row in ids], device=device)
        lengths = torch.tensor([len(row) for row in ids], device=device)
        real = torch.arange(longest, device=device) < lengths[:, None]
        limits = torch.full_like(lengths, how.max_tokens)
        if (context := self.context) is not None:
            limits = torch.minimum(limits, context - lengths + 1)  # the last token is said and never read
        ragged = any(len(row) < longest for row in ids)
        return PromptBatch(prompt, limits, self._settings(prompts, ids, how, prompt, real), real if ragged else None)

    def _settings(
        self, prompts: list[str], ids: list[list[int]], how: LanguageDecode, prompt: Tensor, real: Tensor
    ) -> SearchSettings:
        beam, stop = (how.beam, how.early_stopping) if how.kind == "beam" else (1, "first")
        draw = sampling_settings(prompts, how, self.device) if how.kind == "sample" else None
        given = prompt.masked_fill(~real, NOTHING)
        raw = (RepetitionPenalty(how.repetition_penalty, given),) if how.repetition_penalty != 1 else ()
        stops = StopStrings(how.stop, self.tokenizer.decode, ids) if how.stop else None
        filters, end, penalty = self.filters, self.tokenizer.end, how.length_penalty
        return SearchSettings(end, beam, penalty, how.nbest, stop, filters, draw, raw=raw, stops=stops)

    def _start(self, batch: PromptBatch) -> Any:
        """On a GPU with room for all, in rounded shapes: a step can then be recorded, and used again."""
        rows, tokens = batch.prompt.shape
        if self.device.type != "cuda":
            return self.model.start(rows)
        return self.model.start(rows, ((tokens + int(batch.limits.max())) // ROUND + 2) * ROUND)

    def _said(self, ids: list[int], found: Hypothesis, how: LanguageDecode) -> Continuation:
        text, stopped = cut(added(self.tokenizer.decode, ids, found.tokens), how.stop)
        if stopped:
            ended = "stop"
        elif found.ended:
            ended = "end"
        else:
            ended = "max" if len(found.tokens) == how.max_tokens else "context"
        return Continuation(text, found.tokens, ended, found.score)

    def _warn(self, found: list[list[Continuation]]) -> None:
        short = sum(said.ended == "context" for some in found for said in some)
        if short:
            texts = "the text ends" if short == 1 else f"{short} texts end"
            warnings.warn(f"{texts} where the model's context of {self.context:,} tokens does", stacklevel=4)

    def _how(self, decode: Mapping[str, Any]) -> LanguageDecode:
        how: LanguageDecode = change_settings(self.run, {"decode": decode}).decode if decode else self.run.decode
        return how


class IncrementalDetokenizer:
    """Tokens in, text out, as much of it as no later token can change."""

    def __init__(
        self, decode: Callable[[Sequence[Sequence[int]]], list[str]], given: Sequence[int], stops: Sequence[str]
    ) -> None:
        self.decode, self.stops = decode, stops
        self.read = list(given)  # tokens whose text is whole
        self.pending: list[int] = []  # tokens behind them: the beginning of a character
        self.text = ""  # of what was read after the given tokens
        self.told = 0  # characters of it

    def hear(self, token: int) -> str:
        """What can be told now; often nothing."""
        self.pending.append(token)
        new = added(self.decode, self.read, self.pending)
        if new.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self.read += self.pending
        self.pending = []
        self.text += new
        text, stopped = cut(self.text, self.stops)
        before, self.told = self.told, max(self.told, len(text) - (0 if stopped else held(text, self.stops)))
        return text[before : self.told]
