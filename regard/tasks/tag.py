"""Tagging: a sentence in, a tag for every word out. `Tagger` is what people use, `Lesson` is what the loop trains."""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config.run import Run
from ..config.schema import Sides
from ..data.collate import IGNORED, TokenRows
from ..data.examples import Examples
from ..data.rows import TaggedSampler, encode_sentence, encode_words
from ..data.tagged import SentenceBlock, TagFormat, detect_format, read_head, tagged_sentences
from ..errors import UserError
from ..metrics.labels import label_metrics, span_metrics
from ..parts.losses import smoothed_cross_entropy
from ..processors.labels import collect_tags
from ..synthetic.python_tags import make_python_tags
from . import encoder
from .base import Objective, build_model, open_split, open_splits
from .encoder import LABELS, TOKENIZER, LabelPredictor, Model, states, tokenizer_of, with_vocab

VERBS = ("encode", "label_logits")  # what a family must have for this task

Words = Sequence[str]


class TagPredictor(LabelPredictor):
    # --- what people ask ---------------------------------------------------------------------------------------

    def predict(self, sentences: str | Sequence[Any], details: bool = False, **decode: Any) -> Any:
        """Each sentence with its tags. A text comes back in its own format: CoNLL-U, columns, a JSON object, or words
        between spaces, then word/TAG; a list of words gives the list of their tags. One text gives one."""
        if isinstance(sentences, str):
            return self.predict([sentences], details, **decode)[0]
        how = self.how(decode)
        cut = [self._cut(number, each) for number, each in enumerate(sentences)]
        found = self._logprobs([words for _, words in cut])
        best = [self.best(rows) for rows in found]
        if details:
            return [
                self._record(words, tags, rows, how.top)
                for (_, words), tags, rows in zip(cut, best, found, strict=True)
            ]
        if how.top:
            warnings.warn("the likeliest tags of each word (decode.top) are told with details alone", stacklevel=2)
        return [
            format.with_tags(each.split("\n"), tags) if format else tags
            for each, (format, _), tags in zip(sentences, cut, best, strict=True)
        ]

    def blocks(self, lines: Iterable[str]) -> Iterator[str]:
        """The sentences of a stream of lines, each as `predict` takes it; the first lines tell their format."""
        lines = iter(lines)
        if head := read_head(lines):
            yield from detect_format(head, self.run.data).blocks(chain(head, lines))

    def evaluate(self, sides: Sides | None = None) -> dict[str, Any]:
        """Figures over tagged sentences; without `sides`, over the run's test part."""
        return self.examine(sides)[0]

    def examine(self, sides: Sides | None = None) -> tuple[dict[str, Any], list[str], list[str]]:
        """What `evaluate` says, with the tags found and the right ones."""
        examples = part(self.run, "test", sides)
        examples.require_nonempty("data.test")
        right = [tags for _, tags in examples]
        found = self.tags([words for words, _ in examples])
        flat, wanted = list(chain(*found)), list(chain(*right))
        told: dict[str, Any] = {"examples": len(right), "words": len(wanted), **label_metrics(flat, wanted)}
        if self.labels.spans:
            told |= span_metrics(found, right)
        return told | self._floors(examples) | self.unseen(wanted), flat, wanted

    # --- how it is done ----------------------------------------------------------------------------------------

    def tags(self, sentences: Sequence[Words]) -> list[list[str]]:
        return [self.best(rows) for rows in self._logprobs(sentences)]

    def loss_over(self, examples: Examples) -> tuple[float, list[list[str]], list[Words]]:
        """Nats per word, with the tags found and the right ones; an unseen tag counts in the tags only."""
        right = [tags for _, tags in examples]
        logprobs = self._logprobs([words for words, _ in examples])
        wanted = torch.tensor([self.labels.ids.get(tag, IGNORED) for tags in right for tag in tags])
        nats = -torch.cat(logprobs).gather(1, wanted.clamp(min=0)[:, None])[wanted != IGNORED].sum()
        return float(nats) / max(int((wanted != IGNORED).sum()), 1), [self.best(rows) for rows in logprobs], right

    def _logprobs(self, sentences: Sequence[Words]) -> list[Tensor]:
        """(words, labels) of each sentence, whatever its length."""
        pieces = encode_words(self.tokenizer, sentences)
        made = [encode_sentence(self.tokenizer, each, self.room, self.run.data.overlap) for each in pieces]
        found = iter(self.logprobs_of([row for each in made for row in each.rows]))
        all_of = []
        for each in made:
            rows = [next(found) for _ in each.rows]
            words = [rows[row][column] for row, column in each.word_positions]
            all_of.append(torch.stack(words) if words else torch.zeros(0, len(self.labels)))
        return all_of

    def _cut(self, number: int, given: Any) -> tuple[TagFormat | None, list[str]]:
        """The words of what was given, and its format where it is a text."""
        if not isinstance(given, str):
            return None, list(given)
        lines, which = given.split("\n"), f"sentence {number + 1}"
        format = detect_format(read_head(iter(lines)), self.run.data)
        if isinstance(given, SentenceBlock):
            format, which = given.tag_format, f"the sentence at line {given.line}"
        if len(lines) > 1 and not format.word_per_line:
            raise UserError(
                f"{which} has several lines and looks like {format.name}, where a sentence is one line; "
                "give each on its own, or say how they are written (data.format)"
            )
        try:
            return format, [word.text for word in format.words(lines, tagged=False).values()]
        except ValueError as error:
            raise UserError(f"{which}, {_short(given)}: {error}") from error

    def _record(self, words: Words, tags: list[str], rows: Tensor, top: int) -> dict[str, Any]:
        told: dict[str, Any] = {"words": list(words), "tags": tags}
        told["probabilities"] = rows.exp().amax(-1).tolist() if len(rows) else []
        return told | ({"top": [self.ranked(row, top) for row in rows]} if top else {})

    def _floors(self, examples: Examples) -> dict[str, Any]:
        """What anybody could reach: the most frequent tag for all, and for each word its own most frequent one."""
        right = [tag for _, tags in examples for tag in tags]
        told = self.majority(right)
        if not told:
            return told
        try:
            train = part(self.run, "train")
        except UserError:  # the files are not here
            return told
        usual = MostFrequentTag(train)
        said = [usual.tag(word) for words, _ in examples for word in words]
        return told | {"most frequent tag of the word": sum(map(str.__eq__, said, right)) / len(right)}


def _short(text: str) -> str:
    line = text.replace("\n", " ⏎ ")
    return repr(line if len(line) <= 60 else f"{line[:57]}…")


class MostFrequentTag:
    """The most frequent tag of each word, and for a new one that of words which were seen once."""

    def __init__(self, train: Examples) -> None:
        counts: dict[str, Counter[str]] = {}
        for words, tags in train:
            for word, tag in zip(words, tags, strict=True):
                counts.setdefault(word, Counter())[tag] += 1
        rare = Counter(next(iter(each)) for each in counts.values() if each.total() == 1)
        every = sum(counts.values(), Counter[str]())
        self.new = (rare or every).most_common(1)[0][0]
        self.known = {word: each.most_common(1)[0][0] for word, each in counts.items()}

    def tag(self, word: str) -> str:
        return self.known.get(word, self.new)


class TagObjective(Objective):
    """The training side: batches from the data, the loss of each, and figures on the validation part."""

    def __init__(self, system: TagPredictor, parts: dict[str, Examples]) -> None:
        self.system, self.run, self.parts, self.model = system, system.run, parts, system.model
        self.batcher = TaggedSampler(
            parts["train"], system.tokenizer, system.labels, self.run.data, self.run.train, system.model.context
        )

    def loss(self, model: Model, batch: TokenRows) -> Tensor:
        """Summed over the words, each told by its first piece."""
        batch = batch.to(self.system.device)
        assert batch.labels is not None
        asked = batch.labels != IGNORED
        found = model.label_logits(states(model, batch), batch.valid)[asked]
        return smoothed_cross_entropy(found, batch.labels[asked], smoothing=self.run.train.smoothing)

    def validate(self, model: Model) -> dict[str, float]:
        if "valid" not in self.parts:
            return {}
        loss, found, right = self.system.loss_over(self.parts["valid"])
        told = label_metrics(list(chain(*found)), list(chain(*right)))
        if self.system.labels.spans:
            told |= span_metrics(found, right)
        return {"loss": loss, **{name: told[name] for name in ("accuracy", "f1", "spans") if name in told}}


# --- from a run to these two ---------------------------------------------------------------------------------------


def prepare(run: Run, folder: Path | None, device: torch.device) -> tuple[TagObjective, dict[str, Any], Run]:
    """Open the data, learn the tags and the tokenizer, or take that of `folder`; nothing is written."""
    parts = open_splits(run, part)
    labels = collect_tags(parts["train"])
    if run.data.valid and run.data.invalid == "refuse":  # embedded data are nobody's mistake
        labels.require_known(parts["valid"], "data.valid")
    if run.train.metric == "spans" and not labels.spans:
        raise UserError(
            f"train.metric is spans and the tags draw none, such as {labels.names[0]}; spans are for tags like B-PER, "
            "I-PER and O, use accuracy or f1"
        )
    tokenizer = tokenizer_of(run, folder, parts["train"])
    run = with_vocab(run, tokenizer, head="tag", labels=len(labels))
    system = TagPredictor(run, build_model(run), tokenizer, labels, device)
    return TagObjective(system, parts), {TOKENIZER: tokenizer, LABELS: labels}, run


restore = TagPredictor.restored
borrowed = partial(TagPredictor.borrowed, task="tag")


def sized(run: Run) -> Run:
    return encoder.sized(run, head="tag", labels=run.model.labels or 2)


def part(run: Run, name: str, sides: Sides | None = None) -> Examples:
    """A part of the data; the embedded ones are the roles of Python's tokens."""
    data = run.data
    made = lambda: make_python_tags(data.examples, seed=1)[name]  # noqa: E731
    return open_split(run, name, sides, lambda some: tagged_sentences(some, data), made, "test.conllu")
