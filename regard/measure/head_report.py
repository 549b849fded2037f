"""Reports on attention heads: how well their strongest links match dependency relations and fixed offsets."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..adapt.heads import head_sites
from ..adapt.ngrams import ngrams_of
from ..data.loading.sampler import sorted_batches
from ..data.sources.dependencies import ROOT, DependencyTree, read_trees
from ..errors import UserError
from ..look.draw import Axis, draw_matrices
from ..look.record import NO_ATTENTION, active_recorder
from ..look.word_links import DIRECTIONS, PATTERNS, LinkCounter, WordBatch, WordLinks, WordWeights
from ..modalities.base import END, START
from ..tasks.base import Record, log_facts
from ..tasks.predictor import AnyPredictor
from .text_reader import TextReader, text_reader

BATCH_TOKENS = 2048  # of a batch: the weights of one layer are in memory at a time
MAX_COLUMNS = 24  # relations of a picture
NGRAM_NOTE = "this classifier also adds logits of n-grams, in which heads have no part; see look --ngrams"


@dataclass(frozen=True)
class RelationEntry:
    """A relation in one direction: the head that finds it best, chosen on one set and measured on another."""

    relation: str
    direction: str
    links: int  # words of the measured set that have the relation
    head: str
    chosen: float  # the accuracy of the head where it was chosen
    accuracy: float
    offset: int  # the best fixed distance, chosen where the head was chosen
    offset_accuracy: float


@dataclass(frozen=True)
class HeadEntry:
    """One head: the shares of its strongest links, and the relation that it finds best beside the offset."""

    head: str
    patterns: dict[str, float]
    relation: str
    direction: str
    accuracy: float
    offset_accuracy: float
    relations: dict[str, dict[str, float]]  # by direction and relation: the accuracy


@dataclass(frozen=True)
class HeadReport:
    """The strongest links of all heads over sentences with dependency trees."""

    data: str  # the file on which heads and offsets were chosen
    test: str  # the file on which they were measured; the same if there is no other
    sentences: int
    words: int
    left_out: int  # sentences that are too long
    causal: bool  # only links to earlier words count
    heads: tuple[HeadEntry, ...]
    relations: tuple[RelationEntry, ...]
    note: str = ""  # what else decides, beside the heads

    def record(self) -> Record:
        return asdict(self)

    def draw(self, path: Path) -> None:
        """A picture: a row per head, a column per pattern and relation."""
        columns = [(entry.direction, entry.relation) for entry in self.relations if entry.links][:MAX_COLUMNS]
        rows = [
            [head.patterns[name] for name in PATTERNS]
            + [head.relations[direction].get(name, 0.0) for direction, name in columns]
            for head in self.heads
        ]
        labels = [*PATTERNS, *(f"{name} {'↑' if direction == DIRECTIONS[0] else '↓'}" for direction, name in columns)]
        caption = "share of words whose strongest link is the column; ↑ to their head, ↓ to their dependents"
        names = [head.head for head in self.heads]
        draw_matrices(
            path, [{"": torch.tensor(rows)}], Axis("head", names), Axis("", labels), "what heads attend to", caption
        )


def report_heads(predictor: AnyPredictor, data: str | Path, test: str | Path | None = None) -> HeadReport:
    """Choose a head and an offset for every relation on the trees in `data`, and measure both on those in `test`."""
    reader = text_reader(predictor, "--heads")
    if not head_sites(predictor.module):
        raise UserError(NO_ATTENTION)
    trees = read_trees(data)
    other = trees if test is None else read_trees(test)
    relations = sorted({name for tree in [*trees, *other] for name in tree.relations})
    chosen, left_out = count_links(predictor, reader, trees, relations)
    measured, other_left_out = (chosen, left_out) if test is None else count_links(predictor, reader, other, relations)
    return HeadReport(
        str(data),
        str(data if test is None else test),
        len(other) - other_left_out,
        measured.words,
        other_left_out,
        reader.causal,
        tuple(_head_entries(measured)),
        tuple(_relation_entries(chosen, measured)),
        NGRAM_NOTE if ngrams_of(predictor.module) is not None else "",
    )


@torch.no_grad()
def count_links(
    predictor: AnyPredictor, reader: TextReader, trees: Sequence[DependencyTree], relations: Sequence[str]
) -> tuple[LinkCounter, int]:
    """The strongest links of all heads over these trees, and the number of trees that are too long."""
    counter = LinkCounter(predictor.module, relations, reader.causal)
    numbers = {name: number for number, name in enumerate(counter.relations)}
    rows = reader.word_rows([tree.words for tree in trees])
    readable = [(tree, row) for tree, row in zip(trees, rows, strict=True) if row is not None]
    left_out = len(trees) - len(readable)
    if not readable:
        raise UserError(f"all {len(trees)} sentences are longer than the {reader.room} tokens of the model; split them")
    if left_out:
        log_facts("trees", [f"{left_out} sentences are longer than {reader.room} tokens and are left out"])
    for indices in sorted_batches([len(row.tokens) for _, row in readable], BATCH_TOKENS, predictor.run.decode.batch):
        group = [readable[i] for i in indices]
        text = reader.collate([row.tokens for _, row in group], predictor.device)
        batch = WordBatch([row for _, row in group], text.values.size(1), predictor.device)
        links, separators = _links([tree for tree, _ in group], batch, numbers)
        counter.begin(batch, links, separators)
        with active_recorder(counter):
            reader.read(text)
    return counter, left_out


def _links(
    trees: Sequence[DependencyTree], batch: WordBatch, numbers: dict[str, int]
) -> tuple[WordLinks, torch.Tensor]:
    """The links from every word to its head, and which words are punctuation, (rows, words)."""
    links = [
        (row, word, head, numbers[relation])
        for row, tree in enumerate(trees)
        for word, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True))
        if head != ROOT
    ]
    columns = torch.tensor(links, dtype=torch.long, device=batch.valid.device).reshape(-1, 4).unbind(1)
    separators = torch.zeros_like(batch.valid)
    for row, tree in enumerate(trees):
        separators[row, : len(tree.words)] = torch.tensor(tree.punctuation, device=separators.device)
    return WordLinks(*columns), separators


def _relation_entries(chosen: LinkCounter, measured: LinkCounter) -> Iterator[RelationEntry]:
    """All relations of the measured set that the other has, too: the most frequent first."""
    order = sorted(range(len(chosen.relations)), key=lambda i: -measured.counts[0][i].sources)
    for number in order:
        for way, direction in enumerate(DIRECTIONS):
            choice_counts, counts = chosen.counts[way][number], measured.counts[way][number]
            if not choice_counts.sources or not counts.sources:
                continue
            shares = chosen.accuracies(way)
            head = max(shares, key=lambda name: shares[name][number])
            offset = choice_counts.best_offset()
            yield RelationEntry(
                chosen.relations[number],
                direction,
                counts.sources,
                str(head),
                shares[head][number],
                measured.accuracies(way)[head][number],
                offset,
                counts.share_at(offset),
            )


def _head_entries(counter: LinkCounter) -> Iterator[HeadEntry]:
    shares = [counter.accuracies(way) for way in range(len(DIRECTIONS))]
    baselines = [
        [relation_counts.share_at(relation_counts.best_offset()) for relation_counts in counts]
        for counts in counter.counts
    ]
    for head, patterns in counter.head_patterns().items():
        pairs = [
            (shares[way][head][number] - baselines[way][number], way, number)
            for way in range(len(DIRECTIONS))
            for number in range(1, len(counter.relations))
            if counter.counts[way][number].sources
        ]
        _, way, number = max(pairs, default=(0.0, 0, 0))
        relations = {
            direction: {
                name: share
                for name, share, counts in zip(counter.relations, shares[way][head], counter.counts[way], strict=True)
                if counts.sources
            }
            for way, direction in enumerate(DIRECTIONS)
        }
        yield HeadEntry(
            str(head),
            dict(zip(PATTERNS, patterns, strict=True)),
            counter.relations[number],
            DIRECTIONS[way],
            shares[way][head][number],
            baselines[way][number],
            relations,
        )


# --- the links of one word -------------------------------------------------------------------------------------------


def word_links(predictor: AnyPredictor, text: str, word: str, top: int = 3) -> dict[str, list[tuple[str, float]]]:
    """For every head the words that a word of the text attends to most, with their weights.

    `word` is a word of the text, or `word:2` for its second place. □ and ■ stand for START and END.
    """
    reader = text_reader(predictor, "--word")
    if not head_sites(predictor.module):
        raise UserError(NO_ATTENTION)
    words, row = reader.text_row(text)
    place = _find_word(words, word)
    inputs = reader.collate([row.tokens], predictor.device)
    batch = WordBatch([row], len(row.tokens), predictor.device)
    recorder = WordWeights(predictor.module, batch)
    with active_recorder(recorder), torch.no_grad():
        reader.read(inputs)
    names = [*words, START, END]
    links = {}
    for head, weights in recorder.by_head.items():
        best = weights[place].topk(min(top, len(names)))
        links[str(head)] = [(names[i], value) for value, i in zip(*map(torch.Tensor.tolist, best), strict=True)]
    return links


def _find_word(words: Sequence[str], query: str) -> int:
    name, _, number = query.rpartition(":") if query not in words and ":" in query else (query, "", "1")
    places = [place for place, text in enumerate(words) if text == name]
    if not number.isdecimal() or not 1 <= int(number) <= len(places):
        raise UserError(
            f"--word is {query!r}, which the text does not have that often; it has {', '.join(words)}; write it:2 for "
            "the second it"
        )
    return places[int(number) - 1]
