"""N-grams beside the encoder of a classifier (`adapt/ngrams.py`): their settings, and counts of training texts."""

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...adapt.ngrams import attach_ngrams
from ...data.batch import Batch
from ...data.datasets.rows import LabeledTextDataset
from ...parts.ngrams import TOKEN_LETTERS, NGramCounts, Spelling
from ...processors.text.tokenizers import Tokenizer
from ..objectives import LabelObjective
from .settings import ClassifyRun

BATCH = 512  # texts that are counted together
FITTED = 20_000  # texts that the gain is fitted to
FIT_STEPS = 50
PENALTY = 1e-4  # of the gain's distance from 1, and of the bias
SPACES = "▁ "  # a token that begins with one of these begins a word
CONTINUED = "##"  # a token of WordPiece that continues a word begins with it
FIRST_CONTROL = 0x110000  # after the last character of Unicode: numbers of control tokens and bytes
BYTES = re.compile(r"<[0-9a-f]{2}( [0-9a-f]{2})*>")  # parts of a character
M = TypeVar("M", bound=nn.Module)


def add_ngrams(model: M, run: ClassifyRun) -> M:
    """The model with the n-grams of data.ngrams, if there are some. A regression has none."""
    return attach_ngrams(model, run.data.ngrams, run.model.vocab, run.model.labels, run.data.pairs == "yes")


def start_ngrams(ngrams: NGramCounts, head: nn.Linear, dataset: LabeledTextDataset, objective: LabelObjective) -> None:
    """Count the n-grams of the training texts. Where words or characters are counted, fit the gain and the weights of
    missing words, too, and a bias that the head gets.
    """
    count_ngrams(ngrams, dataset, objective)
    if ngrams.spells:
        head.bias.add_(fit_gain(ngrams, dataset, objective).to(head.bias))


def count_ngrams(ngrams: NGramCounts, dataset: LabeledTextDataset, objective: LabelObjective) -> None:
    """Count the n-grams of all training texts. The objective gives the labels of a batch."""
    examples, device = len(dataset.examples), ngrams.texts.device
    ngrams.cpu()
    if ngrams.spells:
        ngrams.set_spelling(spell_tokens(dataset.tokenizer, ngrams.vocab))
    for batch in _batches(dataset, range(examples)):
        ngrams.count(batch["text"], objective.multi_hot(batch["label"].values))
    ngrams.to(device)


def _batches(dataset: LabeledTextDataset, indices: range) -> Iterator[Batch]:
    for first in range(0, len(indices), BATCH):
        yield dataset.collate(list(dataset.encode(list(indices[first : first + BATCH]))))


@torch.no_grad()
def fit_gain(ngrams: NGramCounts, dataset: LabeledTextDataset, objective: LabelObjective) -> Tensor:
    """Set the gain and the weights of missing words, and return a bias for each label: those of the smallest loss on
    training texts, each without its own counts.

    Naive Bayes is badly calibrated: the encoder would spend its training on what these few numbers correct.
    """
    examples, device = len(dataset.examples), ngrams.texts.device
    logits, missing, targets = list[Tensor](), list[Tensor](), list[Tensor]()
    ngrams.cpu()
    for batch in _batches(dataset, range(0, examples, max(examples // FITTED, 1))):
        targets.append(batch["label"].values)
        logits.append(ngrams.evidence(batch["text"], objective.multi_hot(targets[-1])))
        if ngrams.overlap is not None:
            missing.append(ngrams.missing_words(batch["text"])[1])
    evidence, labels = torch.cat(logits).double(), torch.cat(targets)
    features = torch.cat([evidence.new_ones(len(evidence), 1), *([torch.cat(missing)] if missing else [])], 1)
    first = evidence.new_zeros(1 + features.size(1), evidence.size(1))  # the gain, the bias, missing words
    first[0] = 1

    def loss(values: Tensor) -> Tensor:
        return objective.loss(values[0] * evidence + features @ values[1:].view_as(first[1:]), labels) / len(labels)

    values = _minimize(loss, torch.cat([first[0, :1], first[1:].flatten()]))
    ngrams.to(device)
    weights = values[1:].view_as(first[1:])
    ngrams.gain.fill_(float(values[0]))
    if ngrams.overlap is not None:
        ngrams.overlap.copy_(weights[1:])
    return weights[0]


def _minimize(loss: Callable[[Tensor], Tensor], first: Tensor) -> Tensor:
    """The values of the smallest loss near the first ones, which remain if there are none or the gain is negative."""
    values = first.clone().requires_grad_()
    solver = torch.optim.LBFGS([values], max_iter=FIT_STEPS, line_search_fn="strong_wolfe")

    def step() -> float:
        solver.zero_grad()
        with torch.enable_grad():
            total = loss(values) + PENALTY * ((values - first) ** 2).sum()
            total.backward()  # type: ignore[no-untyped-call]
        return float(total.detach())

    solver.step(step)  # type: ignore[no-untyped-call]
    return values.detach() if bool(values.isfinite().all()) and values[0] > 0 else first


def spell_tokens(tokenizer: Tokenizer, vocab: int) -> Spelling:
    """The stems and characters of the tokens, and which tokens continue a word.

    A token that begins with a letter or digit continues the word before it, if the tokenizer marks spaces. Tokens that
    differ only in a space before them have the same stem. Tokens of other tokenizers are words of their own. Control
    tokens and parts of a character count as one character.
    """
    tokens = tokenizer.tokens(range(tokenizer.size))
    wordpiece = any(token.startswith(CONTINUED) and len(token) > len(CONTINUED) for token in tokens)
    spaced = any(token[:1] in SPACES for token in tokens if token)
    control = {tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unk, getattr(tokenizer, "mask", None)}
    stems, joins, ids = torch.arange(vocab), torch.zeros(2, vocab, dtype=torch.bool), dict[str, int]()
    letters = torch.full((vocab, TOKEN_LETTERS), -1, dtype=torch.int32)
    for number, token in enumerate(tokens):
        stem = token.lstrip(SPACES) if spaced else token
        stems[number] = ids.setdefault(stem, number) if stem else -1
        if number in control or not token or BYTES.fullmatch(token):
            letters[number, 0] = FIRST_CONTROL + number
            joins[:, number] = number not in control and bool(token)
            continue
        inner = token.startswith(CONTINUED) if wordpiece else spaced and token[0].isalnum()
        joins[0, number], joins[1, number] = inner, token[-1].isalnum() or token in SPACES
        text = token.removeprefix(CONTINUED) if inner else token if spaced else f"{SPACES[0]}{token}"
        numbers = [ord(letter) for letter in text.replace(SPACES[1], SPACES[0])][:TOKEN_LETTERS]
        letters[number, : len(numbers)] = torch.tensor(numbers, dtype=torch.int32)
    return Spelling(stems, joins, letters)
