"""A long text as numbers, and the windows through which a language model reads it.

Documents lie one after the other, each with END behind it. A window is a run of tokens to predict; what is read in the
place of a token is the one before it, and START where a document begins. Tokens of one document never see another one.
With data.document=stream all lines are one text: END behind each line is a token like any other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config.schema import TextData, Train
from ..errors import UserError
from ..processors.tokenizers import Tokenizer
from .documents import Documents
from .sampler import Step
from .token_cache import cached_tokens

SEEN = 1 << 14  # tokens of a batch in evaluation


class Corpus:
    """Encoded text. `bytes`, `characters` and `words` are counts of the raw text, without END; but in a stream END
    stands for the end of a line, and is one of each."""

    def __init__(self, texts: Documents, tokenizer: Tokenizer, spare: Path | None) -> None:
        found = cached_tokens(texts, tokenizer, spare)
        self.ids, self.ends, self.counts = found.ids, found.ends, found.counts
        self.name, self.stream = texts.name, texts.data.document == "stream"
        self.bytes, self.characters, self.words = (found.counts[name] for name in ("bytes", "characters", "words"))
        self.end, self.pad = tokenizer.end, tokenizer.pad
        self.start = tokenizer.end if self.stream else tokenizer.start
        self._found = found
        if self.words == self.stream * self.counts["documents"]:
            told = "; ".join(self.report()) or "there are only spaces"
            raise UserError(f"{self.name} holds no text ({told}); give at least one word")

    def __len__(self) -> int:
        return len(self.ids)

    def fingerprint(self) -> str:
        """Stands for the content: equal texts have it equal, wherever they lie."""
        return self._found.fingerprint

    def report(self) -> list[str]:
        """What was left out, mended or is unknown, in plain sentences; nothing if all was well."""
        sentences = {
            "empty": "texts left out because they are empty",
            "files": "files left out because they are no text (data.invalid=skip)",
            "lines": "lines left out because they are not valid (data.invalid=skip)",
            "crlf": "lines ended in CRLF; the CR was taken off",
        }
        told = [f"{self.counts[key]:,} {text}" for key, text in sentences.items() if self.counts.get(key)]
        if number := self.counts["unknown"]:
            some = ", ".join(map(repr, self._found.unknown))
            told.append(f"{number:,} of {len(self):,} tokens are unknown to the tokenizer, such as {some}")
        return told + self._found.told


def corpus(texts: Documents, tokenizer: Tokenizer, spare: Path | None = None) -> Corpus:
    """These texts, encoded now or earlier. The cache that cannot be written (data.cache) is made in `spare`."""
    return Corpus(texts, tokenizer, spare)


@dataclass(frozen=True)
class TextWindow:
    """Rows of running text. `at` and `segments` are there if a document begins within a row."""

    tokens: Tensor  # (batch, context): what is read
    targets: Tensor  # (batch, context): what is predicted from it
    real: Tensor  # (batch, context): where a prediction counts
    at: Tensor | None = None  # (batch, context): the place in the piece of a document that is in the row
    segments: Tensor | None = None  # (batch, context): the number of that piece
    fresh: Tensor | None = None  # (batch,): rows that begin anew; the others go on from the batch before. Carried only
    first: int = 0  # the number of the first row, where rows go on and an update has several pieces
    count: int = 0  # of the predictions

    @property
    def full(self) -> bool:
        """Do all predictions count? Known without asking the device."""
        return self.count == self.tokens.numel()

    def to(self, device: torch.device | str) -> "TextWindow":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: own.to(device) for name, own in values.items() if isinstance(own, Tensor)}
        return replace(self, **moved)


def window(
    corpus: Corpus, begins: np.ndarray, width: int, real: np.ndarray | None = None, fresh: np.ndarray | None = None
) -> TextWindow:
    """Rows of `width` tokens to predict, from these places on; those of `real` count. With `fresh`, the rows are read
    with a memory, for which a document's border is no border."""
    places = begins[:, None] + np.arange(-1, width)
    rows = corpus.ids[places.clip(0, len(corpus) - 1)].astype(np.int64)
    tokens, targets, places = rows[:, :-1].copy(), rows[:, 1:].copy(), places[:, 1:]
    heads, shown = places == 0, places < len(corpus)
    if not corpus.stream:
        heads |= (tokens == corpus.end) & shown
    tokens[heads] = corpus.start
    tokens[~shown] = targets[~shown] = corpus.pad
    real = shown if real is None else real & shown
    tables: dict[str, Any] = {"tokens": tokens, "targets": targets, "real": real, "fresh": fresh}
    if not corpus.stream and fresh is None and heads[:, 1:].any():
        place = np.arange(width)
        tables["at"] = place - np.maximum.accumulate(np.where(heads, place, 0), 1)
        tables["segments"] = np.where(shown, heads.cumsum(1), -1)
    made: dict[str, Any] = {name: torch.from_numpy(table) for name, table in tables.items() if table is not None}
    return TextWindow(**made, count=int(real.sum()))


class CorpusSampler:
    """What both ways to train have in common: so many windows of so many tokens for each update."""

    def __init__(self, corpus: Corpus, data: TextData, train: Train) -> None:
        self.corpus, self.train = corpus, train
        self.width = min(data.max_tokens, len(corpus))
        self.rows = train.batch or max(train.tokens // self.width, 1)

    def _from(self, index: int, rows: int, count: int) -> range:
        """The first windows of the updates that follow."""
        if index % rows or index > count:
            raise UserError(
                f"no update ends after {index} windows of the epoch: the data, train.tokens, train.batch or "
                "data.max_tokens are not those of the run that stopped there; set them as they were"
            )
        return range(index, count // rows * rows, rows)

    def _update(self, begins: np.ndarray, index: int, fresh: np.ndarray | None = None) -> Step:
        pieces = []
        for some in np.array_split(np.arange(len(begins)), min(self.train.accumulate, len(begins))):
            own = None if fresh is None else fresh[some]
            pieces.append(replace(window(self.corpus, begins[some], self.width, fresh=own), first=int(some[0])))
        tokens = begins.size * self.width
        return Step(pieces, index, tokens, tokens, begins.tolist())


class WindowSampler(CorpusSampler):
    """Windows in a chance order, cut elsewhere in every epoch. Each epoch has every token at least once, but for the
    windows that do not fill a last update."""

    def steps(self, epoch: int, index: int = 0) -> Iterator[Step]:
        """The updates of an epoch after its first `index` windows; `Update.index` is where to go on."""
        chance = np.random.default_rng([self.train.seed, epoch])
        last = len(self.corpus) - self.width
        begins = np.unique(np.concatenate([[0], np.arange(chance.integers(self.width), last, self.width), [last]]))
        begins = chance.permutation(begins)
        rows = min(self.rows, len(begins))
        for first in self._from(index, rows, len(begins)):
            yield self._update(begins[first : first + rows], first + rows)


class ContiguousSampler(CorpusSampler):
    """For a model with memory: every row reads its own part of the text, window after window, over the borders of
    documents, which START shows. The first windows of an epoch are fresh."""

    def steps(self, epoch: int, index: int = 0) -> Iterator[Step]:
        rows = min(self.rows, max(len(self.corpus) // self.width, 1))
        length = len(self.corpus) // rows
        steps = length // self.width
        shift = np.random.default_rng([self.train.seed, epoch]).integers(length - steps * self.width + 1)
        begins = np.arange(rows) * length + shift
        for first in self._from(index, rows, steps * rows):
            place = begins + first // rows * self.width
            yield self._update(place, first + rows, fresh=np.full(rows, not first))


def evaluation(corpus: Corpus, context: int, stride: int = 0, rows: int = 0) -> Iterator[TextWindow]:
    """Windows in which every token is predicted once: side by side, or moved by `stride` tokens, so that all but the
    first `context` tokens are predicted from at least `context - stride` before them."""
    width = min(context, len(corpus))
    stride = min(stride or width, width)
    begins = np.arange(0, max(len(corpus) - width, 0) + stride, stride)
    rows = rows or max(SEEN // width, 1)
    for first in range(0, len(begins), rows):
        some = begins[first : first + rows]
        places = some[:, None] + np.arange(width)
        new = (places >= some[:, None] + width - stride) | (some[:, None] == 0)
        yield window(corpus, some, width, new)


def recalled(corpus: Corpus, context: int, rows: int = 1) -> Iterator[TextWindow]:
    """Windows for a model with memory, in the order of the text: every token is predicted once. Memory begins anew
    with every document; a stream is read in `rows` parts at a time."""
    ends: Sequence[int] | np.ndarray = corpus.ends
    if corpus.stream:
        ends = [len(corpus) * (row + 1) // rows for row in range(rows)]
    waiting = zip([0, *ends[:-1]], ends, strict=True)
    at, until = np.zeros((2, rows), np.int64)
    while True:
        fresh = at >= until
        for row in fresh.nonzero()[0]:
            at[row], until[row] = next(waiting, (0, 0))
        if not (at < until).any():
            return
        width = min(context, int((until - at).max()))
        real = at[:, None] + np.arange(width) < until[:, None]
        yield window(corpus, at, width, real, fresh)
        at = np.minimum(at + width, until)
