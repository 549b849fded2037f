"""Input attribution: how much each token of a text contributes to what a model predicts.

Gradient × input is the gradient of the log-probability with respect to a token's embedding, times the embedding.
Integrated gradients (1703.01365) averages the gradient on the path from the mean embedding to the text: the
contributions of all tokens then sum to the difference of the two log-probabilities. (The path does not begin at zero,
where a layer norm has no gradient.)

A classifier may have n-grams beside its encoder. Their logits are exact sums over tokens, so the gradient with respect
to these logits gives the contribution of each token. The path of integrated gradients begins without n-grams.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..adapt.mute import shared_copy
from ..adapt.ngrams import ngrams_of
from ..adapt.precision import Int8Linear
from ..data.datasets.collate import Ids, pad_tokens
from ..errors import UserError
from ..modalities.base import END, START
from ..parts import Inputs
from ..parts.ngrams import NGramCounts
from ..tasks.classify.items import TextItem, as_items
from ..tasks.classify.task import ClassifyPredictor
from ..tasks.generate.plans import best_text
from ..tasks.label.results import label_ids
from ..tasks.label.texts import is_empty
from ..tasks.language.task import LanguagePredictor
from ..tasks.masked.task import MaskedPredictor
from ..tasks.muting import require_one_model
from ..tasks.predictor import AnyPredictor
from ..tasks.translate.task import TranslatePredictor

STEPS = 64  # of integrated gradients
ROWS = 16  # steps that are computed together


@dataclass(frozen=True)
class Readout:
    """One text and the log-probability of one output of the model for it."""

    tokens: list[int]  # of the text, with START and END
    token_texts: list[str]
    fixed: frozenset[int]  # places that no deletion removes: START, END, masks
    query: int | None  # the place whose state predicts the output; None: several do
    output: str  # what is predicted: a label, a token, a text
    score: Callable[[Inputs], Tensor]  # rows of tokens -> log-probabilities (rows,)
    collate: Callable[[Sequence[Ids]], Inputs]
    device: torch.device
    length: int = 1  # tokens of the output, END included

    def inputs(self, rows: Sequence[Sequence[int]]) -> Inputs:
        return self.collate([np.array(row, np.int32) for row in rows]).to(self.device)


def copy_for_hooks(predictor: AnyPredictor, option: str) -> AnyPredictor:
    """A predictor over the same weights to which hooks may be attached."""
    require_one_model(predictor, option)
    return predictor.with_model(shared_copy(predictor.module))


def readout(predictor: AnyPredictor, text: TextItem, target: str | None = None, option: str = "--saliency") -> Readout:
    """The log-probability of the output of a predictor for a text, or of `target`. A classifier may read pairs."""
    if is_empty(text):
        raise UserError("the text is empty, so nothing depends on it; give a sentence")
    if isinstance(predictor, ClassifyPredictor):
        return _class_readout(predictor, text, target)
    if not isinstance(text, str):
        raise UserError(f"{len(text)} texts are given as one item, but task {predictor.run.task} reads one; give one")
    match predictor:
        case MaskedPredictor():
            return _masked_readout(predictor, text, target)
        case LanguagePredictor():
            return _next_readout(predictor, text, target)
        case TranslatePredictor():
            return _target_readout(predictor, text, target)
    raise UserError(
        f"{option} explains labels and tokens, and task {predictor.run.task} has neither for a whole text; give a run "
        "of classify, masked, language or translate"
    )


def _class_readout(predictor: ClassifyPredictor, text: TextItem, target: str | None) -> Readout:
    (row,) = predictor.texts.rows(as_items([text], predictor.pairs))
    tokens, tokenizer = row.tolist(), predictor.tokenizer
    (model_output,) = predictor.predict([text]) if target is None else [target]
    (label,) = label_ids(predictor.labels, [str(model_output)])

    def logprob(inputs: Inputs) -> Tensor:
        return predictor.model.label_logits(predictor.model.encode(inputs)).float().log_softmax(-1)[:, label]

    return Readout(
        tokens,
        tokenizer.tokens(tokens),
        frozenset({0, *(place for place, token in enumerate(tokens) if token == tokenizer.end)}),
        0,
        predictor.labels.names[label],
        logprob,
        predictor.texts.collate,
        predictor.device,
    )


def _masked_readout(predictor: MaskedPredictor, text: str, target: str | None) -> Readout:
    tokens, tokenizer, mask = predictor.masked_row(text), predictor.tokenizer, predictor.mask
    places = [place for place, token in enumerate(tokens) if token == mask]
    if not places:
        raise UserError(f"{text!r:.60} has no <mask>; mark the word to predict")

    def logprobs(inputs: Inputs) -> Tensor:
        states, rows = predictor.model.encode(inputs).states, torch.arange(len(inputs), device=predictor.device)
        first = (inputs.values == mask).int().argmax(1)
        return predictor.model.logits(states[rows, first]).float().log_softmax(-1)

    return Readout(
        tokens,
        tokenizer.tokens(tokens),
        frozenset({0, *places, len(tokens) - 1}),
        places[0],
        *_chosen_token(tokenizer, logprobs, tokens, target, predictor),
        partial(pad_tokens, padding=tokenizer.pad),
        predictor.device,
    )


def _next_readout(predictor: LanguagePredictor, text: str, target: str | None) -> Readout:
    (ids,) = predictor.encode_texts([text])
    tokens, tokenizer, model = [predictor.start_token, *ids], predictor.tokenizer, _model(predictor)
    predictor.refuse_long(len(tokens), "the text")

    def logprobs(inputs: Inputs) -> Tensor:
        rows, valid = torch.arange(len(inputs), device=predictor.device), inputs.valid
        last = inputs.values.size(1) - 1 if valid is None else valid.sum(1) - 1
        logits: Tensor = model.logits(model.decode(inputs)[rows, last])
        return logits[..., : tokenizer.size].float().log_softmax(-1)

    return Readout(
        tokens,
        [START, *tokenizer.tokens(ids)],
        frozenset({0}),
        len(tokens) - 1,
        *_chosen_token(tokenizer, logprobs, tokens, target, predictor),
        partial(pad_tokens, padding=tokenizer.pad),
        predictor.device,
    )


def _target_readout(predictor: TranslatePredictor, text: str, target: str | None) -> Readout:
    model: Any = predictor.model
    output = str(predictor.predict(text, strategy=best_text(predictor.run))) if target is None else target
    (source,), (target_ids,) = predictor.source.encode([text]), predictor.target.encode([output])
    batch = predictor.pair([source], [target_ids])
    labels = batch["labels"].values.flatten()

    def score(inputs: Inputs) -> Tensor:
        prefix = batch["target"].values.expand(len(inputs), -1)
        logits = model.logits(model.decode(Inputs("tokens", prefix), model.encode(inputs))).float().log_softmax(-1)
        logprobs: Tensor = logits.gather(2, labels.expand(len(inputs), -1)[..., None]).sum((1, 2))
        return logprobs

    tokens = [*source, predictor.source.end]
    return Readout(
        tokens,
        [*predictor.source.tokens(source), END],
        frozenset({len(tokens) - 1}),
        None,
        output,
        score,
        partial(pad_tokens, padding=predictor.source.pad),
        predictor.device,
        len(labels),
    )


def _model(predictor: AnyPredictor) -> Any:
    return predictor.model


@torch.no_grad()
def _chosen_token(
    tokenizer: Any, logprobs: Callable[[Inputs], Tensor], tokens: list[int], target: str | None, predictor: AnyPredictor
) -> tuple[str, Callable[[Inputs], Tensor]]:
    """The likeliest token, or the first token of the target, and the function to its log-probability."""
    if target is not None:
        ids = tokenizer.encode([target])[0]
        if not ids:
            raise UserError("the target is empty; give the word whose probability is explained")
        token = ids[0]
    else:
        token = int(logprobs(Inputs("tokens", torch.tensor([tokens], device=predictor.device)))[0].argmax())
    return tokenizer.tokens([token])[0], lambda inputs: logprobs(inputs)[:, token]


class Gradients(NamedTuple):
    """The gradients of scores at some texts."""

    embedding: Tensor  # (rows, tokens, width) with respect to the embeddings
    embeddings: Tensor  # (rows, tokens, width) the embeddings, perhaps moved toward their mean
    scores: Tensor  # (rows,)
    ngrams: Tensor | None  # (rows, labels) with respect to the logits of n-grams


class EmbeddingTap:
    """Captures the token embeddings of a model in the forward pass and scales them toward their mean, and the logits of
    n-grams toward those of no text.

    It attaches hooks, so it needs its own copy of the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.ids: Tensor | None = None
        self.scale: Tensor | None = None
        self.embeddings: Tensor | None = None
        self.ngram_logits: Tensor | None = None
        self.mean = torch.zeros(())
        if any(isinstance(part, Int8Linear) for part in model.modules()):
            raise UserError("precision=int8 has no gradients; use precision=fp32 or bf16")
        for part in model.modules():
            if isinstance(part, nn.Embedding):
                part.register_forward_hook(self._take)
        self.ngrams = ngrams_of(model)
        if self.ngrams is not None:
            self.ngrams.register_forward_hook(self._take_ngrams)

    def _take(self, module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor | None:
        """Capture the output of the first table that reads the tokens; other tables read positions or types."""
        if self.ids is None or self.embeddings is not None or not torch.equal(inputs[0], self.ids):
            return None
        assert isinstance(module, nn.Embedding)
        embeddings, self.mean = out.detach(), module.weight.detach().mean(0)
        if self.scale is not None:
            embeddings = self.mean + (embeddings - self.mean) * self.scale[:, None, None].to(embeddings.dtype)
        self.embeddings = embeddings.requires_grad_()
        return self.embeddings

    def _take_ngrams(self, module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor | None:
        if self.ids is None:
            return None
        assert isinstance(module, NGramCounts)
        logits, constant = out.detach(), module.constant().detach()
        if self.scale is not None:
            logits = constant + (logits - constant) * self.scale[:, None].to(logits.dtype)
        self.ngram_logits = logits.requires_grad_()
        return self.ngram_logits

    def gradients(self, score: Callable[[Inputs], Tensor], inputs: Inputs, scale: Tensor | None) -> Gradients:
        """The gradients at texts, or on the path to them."""
        self.ids, self.scale, self.embeddings, self.ngram_logits = inputs.values, scale, None, None
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # cuDNN's LSTM has no backward in eval
            scores = score(inputs)
            assert self.embeddings is not None, "a model of tokens has an embedding table"
            points = [self.embeddings, *([] if self.ngram_logits is None else [self.ngram_logits])]
            gradients = [gradient.float() for gradient in torch.autograd.grad(scores.sum(), points)]
        self.ids = None
        return Gradients(
            gradients[0], self.embeddings.detach().float(), scores.detach(), gradients[1] if gradients[1:] else None
        )

    def ngram_parts(self, reading: Readout, gradients: Tensor | None) -> Tensor:
        """(tokens,) what n-grams contribute to a score with these gradients (labels,)."""
        if self.ngrams is None or gradients is None:
            return torch.zeros(len(reading.tokens))
        parts = self.ngrams.terms(reading.inputs([reading.tokens])).by_token(len(reading.tokens))[0]
        return (parts @ gradients.to(parts)).float().cpu()


def gradient_input(tap: EmbeddingTap, reading: Readout) -> Tensor:
    """Gradient × input of every token, (2, tokens): by the encoder, and by n-grams."""
    found = tap.gradients(reading.score, reading.inputs([reading.tokens]), None)
    encoder = (found.embedding * found.embeddings).sum(-1)[0].cpu()
    return torch.stack([encoder, tap.ngram_parts(reading, None if found.ngrams is None else found.ngrams[0])])


def integrated_gradients(tap: EmbeddingTap, reading: Readout, steps: int = STEPS) -> Tensor:
    """Integrated gradients of every token, (2, tokens), by the encoder and by n-grams, with the midpoint rule.

    The path begins at the mean embedding, without n-grams.
    """
    total, slope = torch.zeros(len(reading.tokens)), None
    scales = (torch.arange(steps, device=reading.device) + 0.5) / steps
    for batch in torch.split(scales, ROWS):
        found = tap.gradients(reading.score, reading.inputs([reading.tokens] * len(batch)), batch)
        path = (found.embeddings - tap.mean.float()) / batch[:, None, None]  # from the mean to the text itself
        total = total + (found.embedding * path).sum((0, 2)).cpu()
        if found.ngrams is not None:
            slope = found.ngrams.sum(0) + (0 if slope is None else slope)
    return torch.stack([total, tap.ngram_parts(reading, slope)]) / steps


def score_at(tap: EmbeddingTap, reading: Readout, scale: float) -> float:
    """The log-probability on the path of integrated gradients: 0 is its begin, 1 is the text."""
    inputs = reading.inputs([reading.tokens])
    return float(tap.gradients(reading.score, inputs, torch.full((1,), scale, device=reading.device)).scores[0])


@dataclass(frozen=True)
class Saliency:
    """The contribution of every token to one output."""

    tokens: list[str]
    output: str
    logprob: float
    gradient_input: list[float]
    integrated_gradients: list[float]
    baseline: float  # the log-probability for mean embeddings, without n-grams: integrated gradients sum to the rest
    ngram_gradient_input: list[float]  # the part of n-grams in both; empty if the model has none
    ngram_integrated_gradients: list[float]

    @property
    def ngram_share(self) -> float | None:
        """The share of n-grams in the sum of the integrated gradients; None of a model without them."""
        total = sum(self.integrated_gradients)
        return sum(self.ngram_integrated_gradients) / total if self.ngram_integrated_gradients and total else None


def saliency(predictor: AnyPredictor, text: TextItem, target: str | None = None) -> Saliency:
    """The contributions of the tokens of a text to the predicted output, or to `target`."""
    copy = copy_for_hooks(predictor, "--saliency")
    tap, reading = EmbeddingTap(copy.module), readout(copy, text, target)
    inputs, integrated = gradient_input(tap, reading), integrated_gradients(tap, reading)
    return Saliency(
        reading.token_texts,
        reading.output,
        score_at(tap, reading, 1.0),
        inputs.sum(0).tolist(),
        integrated.sum(0).tolist(),
        score_at(tap, reading, 0.0),
        *([] if tap.ngrams is None else parts[1].tolist() for parts in (inputs, integrated)),
    )
