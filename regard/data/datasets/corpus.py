"""Running text as token ids, and the windows in which a language model reads it.

Documents are concatenated, with END after each. A window is a run of tokens to predict. The input for a token is the
token before it, or START at the beginning of a document. Tokens never attend to another document. With
data.document=stream, all lines are one text: END after each line is an ordinary token.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from ...config.data.texts import TextData
from ...config.train import Train
from ...errors import UserError
from ...parts.inputs import Inputs
from ...processors.text.tokenizers import Tokenizer
from ..batch import Batch
from ..dataset import Measured
from ..loading.sampler import Pool, Step, StepSampler
from ..sources.documents import Documents
from .token_cache import cached_tokens

EVAL_TOKENS = 1 << 14  # of a batch in evaluation


class Corpus:
    """Encoded text, from the cache or encoded now. `fallback` is the cache folder if data.cache cannot be written.

    `bytes`, `characters` and `words` count the raw text, without END. In a stream, END replaces a newline and counts
    as one of each.
    """

    def __init__(self, texts: Documents, tokenizer: Tokenizer, fallback: Path | None = None) -> None:
        tokens = cached_tokens(texts, tokenizer, fallback)
        self.ids, self.ends, self.counts = tokens.ids, tokens.ends, tokens.counts
        self.name, self.stream, self.facts = texts.name, texts.data.document == "stream", texts.facts()
        self.bytes, self.characters, self.words = (tokens.counts[name] for name in ("bytes", "characters", "words"))
        self.end, self.pad = tokenizer.end, tokenizer.pad
        self.start = tokenizer.end if self.stream else tokenizer.start
        self._tokens = tokens
        if self.words == self.stream * self.counts["documents"]:
            reason = "; ".join(self.report()) or "there are only spaces"
            raise UserError(f"{self.name} holds no text ({reason}); give at least one word")

    def __len__(self) -> int:
        return len(self.ids)

    def fingerprint(self) -> str:
        """A hash of the content; it does not depend on file names."""
        return self._tokens.fingerprint

    def report(self) -> list[str]:
        """Sentences about what was skipped, repaired or unknown; empty if nothing was."""
        sentences = {
            "empty": "texts left out because they are empty",
            "files": "files left out because they are not text (data.invalid=skip)",
            "lines": "lines left out because they are not valid (data.invalid=skip)",
            "crlf": "lines ended in CRLF; the CR was removed",
        }
        report = [f"{self.counts[key]:,} {text}" for key, text in sentences.items() if self.counts.get(key)]
        if number := self.counts["unknown"]:
            some = ", ".join(map(repr, self._tokens.unknown))
            report.append(f"{number:,} of {len(self):,} tokens are unknown to the tokenizer, such as {some}")
        return report + self._tokens.messages


def build_window(
    corpus: Corpus, begins: np.ndarray, width: int, valid: np.ndarray | None = None, reset: np.ndarray | None = None
) -> Batch:
    """Rows of `width` tokens to predict, from these offsets on: `text` and `labels`. Only `valid` labels count.

    `text` has positions and segments if a document begins within a row. `reset` is for a model with memory: its memory
    crosses document borders within a row, and these rows reset it.
    """
    offsets = begins[:, None] + np.arange(-1, width)
    rows = corpus.ids[offsets.clip(0, len(corpus) - 1)].astype(np.int64)
    tokens, targets, offsets = rows[:, :-1].copy(), rows[:, 1:].copy(), offsets[:, 1:]
    heads, inside = offsets == 0, offsets < len(corpus)
    if not corpus.stream:
        heads |= (tokens == corpus.end) & inside
    tokens[heads] = corpus.start
    tokens[~inside] = targets[~inside] = corpus.pad
    valid = inside if valid is None else valid & inside
    positions = segments = None
    if not corpus.stream and reset is None and heads[:, 1:].any():
        columns = np.arange(width)
        positions = torch.from_numpy(columns - np.maximum.accumulate(np.where(heads, columns, 0), 1))
        segments = torch.from_numpy(np.where(inside, heads.cumsum(1), -1))
    inputs = {
        "text": Inputs("tokens", torch.from_numpy(tokens), None, positions, segments),
        "labels": Inputs("tokens", torch.from_numpy(targets), None if valid.all() else torch.from_numpy(valid)),
    }
    if reset is not None:
        inputs["reset"] = Inputs("labels", torch.from_numpy(reset))
    return Batch(inputs, int(valid.sum()), examples=tuple(begins.tolist()))


class CorpusSampler(StepSampler):
    """The base of both samplers: a number of windows of equal width for each step.

    The examples of a step are the offsets where its windows begin. A window needs no encoding, so the sampler also
    builds the batches.
    """

    def __init__(self, corpus: Corpus, data: TextData, train: Train) -> None:
        self.corpus, self.train = corpus, train
        self.width = min(data.max_tokens, len(corpus))
        self.rows = train.batch or max(train.tokens // self.width, 1)

    def pools(self, epoch: int, index: int = 0) -> Iterator[Pool]:
        """A single pool: all windows cost the same."""
        yield Pool(epoch, 0, np.zeros(0, np.int64))

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        return build_window(self.corpus, indices, self.width)

    def measure(self, indices: np.ndarray, keep: bool = False) -> Measured:
        raise NotImplementedError("all windows cost the same")

    def _step_starts(self, index: int, rows: int, count: int) -> range:
        """The first window of each remaining step."""
        if index % rows or index > count:
            raise UserError(
                f"no step ends after {index} windows of the epoch: the data, train.tokens, train.batch or "
                "data.max_tokens are not those of the interrupted run; restore them"
            )
        return range(index, count // rows * rows, rows)

    def _step(self, epoch: int, begins: np.ndarray, index: int) -> Step:
        parts = np.array_split(begins, min(self.train.accumulate, len(begins)))
        return Step(epoch, index, begins.size * self.width, tuple(parts))


class WindowSampler(CorpusSampler):
    """Windows in random order, with other borders in every epoch.

    An epoch has every token at least once, except for windows that do not fill the last step.
    """

    def plan(self, pool: Pool, index: int = 0) -> Iterator[Step]:
        rng = np.random.default_rng([self.train.seed, pool.epoch])
        begins = rng.permutation(self._window_begins(rng))
        rows = min(self.rows, len(begins))
        for first in self._step_starts(index, rows, len(begins)):
            yield self._step(pool.epoch, begins[first : first + rows], first + rows)

    def planned_steps(self, epochs: int) -> float:
        """Exact: epochs may differ by a window."""
        generators = (np.random.default_rng([self.train.seed, epoch]) for epoch in range(epochs))
        windows = (len(self._window_begins(rng)) for rng in generators)
        return float(sum(count // min(self.rows, count) for count in windows))

    def _window_begins(self, rng: np.random.Generator) -> np.ndarray:
        """The offsets of the windows of an epoch, ascending."""
        last = len(self.corpus) - self.width
        return np.unique(np.concatenate([[0], np.arange(rng.integers(self.width), last, self.width), [last]]))


class ContiguousSampler(CorpusSampler):
    """For a model with memory: every row reads its own part of the text, window after window.

    Rows cross document borders, which START marks. The first windows of an epoch reset the memory. A row stays in the
    micro-batch of the same number, so its memory stays in one process.
    """

    def plan(self, pool: Pool, index: int = 0) -> Iterator[Step]:
        begins, steps = self._row_begins(pool.epoch)
        rows = len(begins)
        for first in self._step_starts(index, rows, steps * rows):
            yield self._step(pool.epoch, begins + first // rows * self.width, first + rows)

    def batch(self, indices: np.ndarray, epoch: int, rows: np.ndarray | None = None) -> Batch:
        return build_window(self.corpus, indices, self.width, reset=np.isin(indices, self._row_begins(epoch)[0]))

    def _row_begins(self, epoch: int) -> tuple[np.ndarray, int]:
        """Where each row begins in an epoch, and the number of its windows."""
        rows = min(self.rows, max(len(self.corpus) // self.width, 1))
        length = len(self.corpus) // rows
        steps = length // self.width
        shift = np.random.default_rng([self.train.seed, epoch]).integers(length - steps * self.width + 1)
        return np.arange(rows) * length + shift, steps


def evaluation_windows(corpus: Corpus, context: int, stride: int = 0, rows: int = 0) -> Iterator[Batch]:
    """Windows in which every token is predicted once.

    Windows are adjacent, or begin `stride` tokens apart. Then all but the first `context` tokens are predicted from at
    least `context - stride` tokens before them.
    """
    width = min(context, len(corpus))
    stride = min(stride or width, width)
    begins = np.arange(0, max(len(corpus) - width, 0) + stride, stride)
    rows = rows or max(EVAL_TOKENS // width, 1)
    for first in range(0, len(begins), rows):
        some = begins[first : first + rows]
        offsets = some[:, None] + np.arange(width)
        new = (offsets >= some[:, None] + width - stride) | (some[:, None] == 0)
        yield build_window(corpus, some, width, new)


def memory_windows(corpus: Corpus, context: int, rows: int = 1) -> Iterator[Batch]:
    """Windows for a model with memory, in text order; every token is predicted once.

    The memory is reset at every document; a stream is read in `rows` parallel parts.
    """
    ends: Sequence[int] | np.ndarray = corpus.ends
    if corpus.stream:
        ends = [len(corpus) * (row + 1) // rows for row in range(rows)]
    waiting = zip([0, *ends[:-1]], ends, strict=True)
    current, stop = np.zeros((2, rows), np.int64)
    while True:
        reset = current >= stop
        for row in reset.nonzero()[0]:
            current[row], stop[row] = next(waiting, (0, 0))
        if not (current < stop).any():
            return
        width = min(context, int((stop - current).max()))
        valid = current[:, None] + np.arange(width) < stop[:, None]
        yield build_window(corpus, current, width, valid, reset)
        current = np.minimum(current + width, stop)
