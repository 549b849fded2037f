"""What the n-grams beside the encoder of a classifier contribute to its labels."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from ...adapt.mute import shared_copy
from ...adapt.ngrams import ngrams_of
from ...families.protocols import LabelModel
from ...look.decision import Decision, NGramEntry
from ...parts import Inputs
from ...parts.ngrams import NGramCounts, NGramTerms
from ...processors.text.tokenizers import Tokenizer
from ..predictor import AnyPredictor
from .ngrams import FIRST_CONTROL, SPACES

LABELS = 5  # of a decision: the likeliest
TOP = 10  # n-grams of each label
LEAST = 5e-4  # that an n-gram adds; smaller ones are not listed
Totals = dict[tuple[str, str], Tensor]  # by kind and text of an n-gram: what it adds to the logits (labels,)
P = TypeVar("P", bound=AnyPredictor)


@torch.no_grad()
def decide(model: nn.Module, text: Inputs, tokenizer: Tokenizer, names: Sequence[str], single: bool) -> Decision | None:
    """The parts of the decision on one row of tokens, None without n-grams. `single`: a text has just one label."""
    ngrams, labeler = ngrams_of(model), cast(LabelModel, model)
    if ngrams is None:
        return None
    terms, logits = ngrams.terms(text), labeler.label_logits(labeler.encode(text)).float()
    order, (row,) = logits[0].topk(min(LABELS, logits.size(1))).indices, text.values.tolist()
    encoder, ngram_logits, constant = (
        tuple(part[order].tolist()) for part in ((logits - terms.logits)[0], terms.logits[0], terms.constant)
    )
    totals = Totals()
    add_terms(totals, ngrams, terms, text, tokenizer)
    return Decision(
        tuple(names[label] for label in order.tolist()),
        single,
        encoder,
        ngram_logits,
        constant,
        tuple(tokenizer.tokens(row)),
        tuple(tuple(values) for values in terms.by_token(len(row))[0, :, order].tolist()),
        tuple(top_entries(totals, label, TOP) for label in order.tolist()),
    )


def add_terms(totals: Totals, ngrams: NGramCounts, terms: NGramTerms, text: Inputs, tokenizer: Tokenizer) -> None:
    """Add the n-grams of one text to those of others."""
    (row,) = text.values.tolist()
    names = list(name_ngrams(ngrams, terms, row, tokenizer))
    for key, value in zip(zip(terms.kinds, names, strict=True), terms.values[0].cpu(), strict=True):
        if bool(value.any()):
            totals[key] = totals[key] + value if key in totals else value


def name_ngrams(ngrams: NGramCounts, terms: NGramTerms, row: Sequence[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The text of each n-gram of one row, as people read it."""
    tokens, letters = tokenizer.tokens(row), list[str]()
    if ngrams.characters:
        numbers = ngrams.letters[torch.tensor(row, device=ngrams.letters.device)].flatten().tolist()
        owners = [token for token in tokens for _ in range(ngrams.letters.size(1))]
        letters = [
            owner if number >= FIRST_CONTROL else chr(number)
            for owner, number in zip(owners, numbers, strict=True)
            if number >= 0
        ]
    seen: dict[str, int] = defaultdict(int)
    for kind, first, last in zip(terms.kinds, terms.first[0].tolist(), terms.last[0].tolist(), strict=True):
        number, seen[kind] = seen[kind], seen[kind] + 1
        if kind == "characters":
            text = "".join(letters[number : number + ngrams.characters])
        elif kind in ("token", "tokens"):
            text = " ".join(tokens[first : last + 1])
        else:
            text = "".join(tokens[first : last + 1]).replace("##", "").strip(SPACES)
        yield text if kind in ("token", "tokens") else text.replace(SPACES[0], SPACES[1])


def top_entries(totals: Totals, label: int, count: int, texts: int = 1) -> tuple[NGramEntry, ...]:
    """The n-grams that add most to the logit of a label, divided by the number of texts."""
    ranked = sorted(totals.items(), key=lambda item: (-float(item[1][label]), item[0]))[:count]
    return tuple(
        NGramEntry(text, kind, float(value[label]) / texts)
        for (kind, text), value in ranked
        if value[label] > LEAST * texts
    )


def without_encoder(predictor: P) -> P:
    """A predictor over the same weights whose encoder says nothing: the bias of its head and the n-grams remain."""
    model: Any = shared_copy(predictor.module)
    model.classes.register_forward_hook(lambda module, inputs, out: module.bias.expand_as(out))
    return predictor.with_model(model)
