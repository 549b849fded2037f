"""Scores of known targets by a translation model: probabilities, attention weights and word alignments."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from ...alignment.links import Links, Symmetrization, symmetrize
from ...data.loading.sampler import sorted_batches
from ...decode import Ensemble
from ...decode.parallel.decoding import padded_source, target_logprobs
from ...decode.parallel.prefix_tree import PrefixTrees, reads_trees, tree_logprobs
from ...decode.search.constraints import parse_constraints
from ...decode.search.texts import word_of_token
from ...errors import UserError
from ...families.protocols import Seq2SeqModel, as_module
from ...look import AttentionView, ViewAxis, Which, attention_sites, record_attention, record_layers
from ..base import view_title
from ..notices import require_finite
from ..predictor import PlainResult
from ..texts import as_pairs, as_text
from .results import TranslationTrace
from .seq2seq import TextSourceGeneration
from .views import logits

START, END = "□", "■"  # their symbols in details and pictures
ALIGN_CHUNK = 256  # pairs that are aligned together
TRACE_BATCH = 16  # targets of a batch whose attention weights are all kept in memory


class Scorer(TextSourceGeneration):
    """Score, look at and align pairs of a source and its target."""

    def score(
        self, sources: str | Iterable[str], targets: str | Iterable[str] | None = None, details: bool = False
    ) -> PlainResult:
        """ln P(target | source), END included; with details also per token."""
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets], details)[0]
        sources, targets = as_pairs(sources, targets, ("source", "target"))
        logprobs = self.logprobs(self.source.encode(sources), target_ids := self.target.encode(targets))
        totals = [sum(tokens) for tokens in logprobs]
        require_finite(totals)
        if not details:
            return totals
        return [
            {"score": total, "pieces": [*self.target.tokens(ids), END], "logprobs": tokens}
            for total, ids, tokens in zip(totals, target_ids, logprobs, strict=True)
        ]

    def look(self, text: str, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights while the model reads `text` and generates `target`, or its own translation."""
        if not as_text(text).strip():
            raise UserError("the text is empty and has no attention to show; give a sentence")
        if target is not None:
            target_ids = self.target.encode([as_text(target, "target")])[0]
        else:
            requests, settings = parse_constraints(1, {"nbest": 1}, self.decode_settings)
            (hypotheses,) = self.generate([text], settings, self.constraints(requests, settings))
            target_ids = hypotheses[0].tokens if hypotheses else []
        source_ids = self.source.encode([text])[0]
        with record_layers(as_module(self._first_member), layer) as recorder:
            (logprobs,) = self._target_logprobs([source_ids], [target_ids])
        axes = self.view_axes(source_ids, target_ids)
        return AttentionView.recorded(recorder, axes, view_title(self.run), logprobs)

    def align(
        self, sources: Sequence[str], targets: Sequence[str], symmetrization: Symmetrization = "grow-diag-final-and"
    ) -> list[Links]:
        """Links between the white-space separated words of texts and their translations, by cross-attention."""
        sources, targets = as_pairs(sources, targets, ("source", "target"))
        encoded = self.source.encode(sources), self.target.encode(targets)
        return [attention_links(view, symmetrization) for _, view in self._views(*encoded)]

    def align_chunks(self, pairs: Iterable[tuple[str, str]], symmetrization: Symmetrization) -> Iterator[Links]:
        """`align` for any number of pairs; few of them are in memory at a time."""
        while chunk := list(islice(pairs := iter(pairs), ALIGN_CHUNK)):
            yield from self.align([source for source, _ in chunk], [target for _, target in chunk], symmetrization)

    @torch.no_grad()
    def logprobs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """The log-probability of every token of known targets and of END, in one forward pass."""
        rows: list[list[float]] = [[] for _ in sources]
        lengths = [max(len(x), len(y)) for x, y in zip(sources, targets, strict=True)]
        for indices in sorted_batches(lengths, rows=self.run.decode.batch):
            batch_targets = [targets[i] for i in indices]
            for i, row in zip(
                indices, self._target_logprobs([sources[i] for i in indices], batch_targets), strict=True
            ):
                rows[i] = row
        return rows

    def _target_logprobs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        batch = self.pair(sources, targets)
        scores = logits(self.model, batch).float().log_softmax(-1)
        chosen = iter(scores.gather(-1, batch["labels"].values[:, None])[:, 0].tolist())
        return [[next(chosen) for _ in range(len(target) + 1)] for target in targets]

    @torch.no_grad()
    def candidate_scores(
        self, texts: Sequence[str], candidates: Sequence[tuple[int, str]], length_penalty: float
    ) -> list[float]:
        """ln P / length^length_penalty of targets, each with the number of its text; every text is encoded once."""
        if isinstance(self.model, Ensemble):
            raise TypeError("an ensemble scores no candidates")
        sources = [[*ids, self.source.end] for ids in self.source.encode(list(texts))]
        targets = self.target.encode([target for _, target in candidates])
        self.refuse_long([*(ids[:-1] for ids in sources), *targets])
        source = padded_source(sources, self.source.pad, self.device)
        numbers = [number for number, _ in candidates]
        if self.reads_trees:
            trees = PrefixTrees.of(targets, numbers, self.target.start)
            logprobs = tree_logprobs(self.model, source, trees, self.target.end).tolist()
        else:
            rows = [[self.target.start, *ids, self.target.end] for ids in targets]
            logprobs = target_logprobs(self.model, source, numbers, rows).tolist()
        return [total / (len(ids) + 1) ** length_penalty for total, ids in zip(logprobs, targets, strict=True)]

    @cached_property
    def reads_trees(self) -> bool:
        """True if equal prefixes of candidates are read once. A GPU replays rows of fixed shapes instead."""
        return self.device.type == "cpu" and reads_trees(as_module(self._first_member))

    def loss_over(self, sources: Sequence[str], targets: Sequence[str]) -> float:
        """Nats per target token, END included, without label smoothing."""
        logprobs = self.logprobs(self.source.encode(list(sources)), self.target.encode(list(targets)))
        return -sum(map(sum, logprobs)) / max(sum(map(len, logprobs)), 1)

    def traces(self, sources: list[list[int]], targets: list[list[int]]) -> list[TranslationTrace]:
        """Log-probabilities and alignments of finished targets, from one more forward pass."""
        if not sources:
            return []
        return [
            TranslationTrace(logprobs, *view.texts(), view.alignment())
            for logprobs, view in self._views(sources, targets)
        ]

    @torch.no_grad()
    def _views(self, sources: list[list[int]], targets: list[list[int]]) -> Iterator[tuple[list[float], AttentionView]]:
        """The log-probabilities of known targets, and their cross-attention, in order."""
        views: dict[int, tuple[list[float], AttentionView]] = {}
        model = as_module(self._first_member)
        sites = [site for site in attention_sites(model) if site.kind == "cross"]
        lengths = [max(len(x), len(y)) for x, y in zip(sources, targets, strict=True)]
        for indices in sorted_batches(lengths, rows=TRACE_BATCH):
            with record_attention(model, [site.path for site in sites]) as maps:
                logprobs = self._target_logprobs([sources[i] for i in indices], [targets[i] for i in indices])
            cross = [(site, maps[site.path].cpu()) for site in sites]
            for row, i in enumerate(indices):
                layers = [(site, weights[row]) for site, weights in cross]
                views[i] = logprobs[row], AttentionView.of(layers, self.view_axes(sources[i], targets[i]))
        return (views[i] for i in range(len(sources)))

    def view_axes(self, source: list[int], target: list[int]) -> dict[str, ViewAxis]:
        """The axes of attention: the tokens of the source, of the target, and of the prefix that the decoder reads."""
        tokens = self.target.tokens(target)
        return {
            "source": ViewAxis.of_tokens("source", [*self.source.tokens(source), END], ended=True),
            "target": ViewAxis.of_tokens("target", [*tokens, END], ended=True),
            "prefix": ViewAxis.of_tokens("token", [START, *tokens]),
        }

    @property
    def _first_member(self) -> Seq2SeqModel:
        """The model whose attention is recorded: the first of an ensemble."""
        first: Seq2SeqModel = self.model.members[0] if isinstance(self.model, Ensemble) else self.model
        return first


def attention_links(view: AttentionView, symmetrization: Symmetrization) -> Links:
    """Links between words, by the layer in which source and target words choose each other most often.

    The weights of a layer are averaged over its heads and over the tokens of a target word, and added over those of a
    source word. Each target word chooses the source word with the largest weight (forward), and each source word the
    target word (reverse).
    """
    source, target = (word_of_token(labels) for labels in view.texts())
    layers = [weights.mean(0) for weights in view.cross_layers()]
    chosen = [_choices(_word_weights(layer, source, target)) for layer in layers]
    return symmetrize(*max(chosen, key=_agreement), symmetrization)  # the first of equal layers


def _word_weights(weights: Tensor, source: Sequence[int | None], target: Sequence[int | None]) -> Tensor:
    """(target words, source words) of the weights (target tokens, source tokens)."""
    sources, targets = _membership(source, weights), _membership(target, weights)
    token_weights = weights[: len(target), : len(source)]
    return (targets @ token_weights @ sources.T) / targets.sum(1, keepdim=True).clamp(min=1)


def _membership(words: Sequence[int | None], like: Tensor) -> Tensor:
    """(words, tokens): 1 where a token belongs to a word."""
    table = like.new_zeros(max((word for word in words if word is not None), default=-1) + 1, len(words))
    for token, word in enumerate(words):
        if word is not None:
            table[word, token] = 1
    return table


def _choices(weights: Tensor) -> tuple[Links, Links]:
    if not weights.numel():
        return frozenset(), frozenset()
    forward, reverse = weights.argmax(1).tolist(), weights.argmax(0).tolist()
    return frozenset((i, j) for j, i in enumerate(forward)), frozenset(enumerate(reverse))


def _agreement(choices: tuple[Links, Links]) -> float:
    forward, reverse = choices
    return len(forward & reverse) / max(len(forward | reverse), 1)
