"""Word alignments from the cross-attention of translations, and the choice of its layer and head."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from ..alignment.links import Links, Symmetrization, symmetrize
from ..config.measured import AlignmentHeads
from ..decode.search.texts import word_of_token
from ..look import AttentionView

Choices = tuple[Links, Links]  # the source word of each target word, and the target word of each source word


def attention_links(view: AttentionView, symmetrization: Symmetrization = "grow-diag-final-and") -> Links:
    """Links between words, by the cross-attention that aligns.

    The weights are averaged over the tokens of a target word, and added over those of a source word. Each target word
    chooses the source word with the largest weight (forward), and each source word the target word (reverse).
    """
    source, target = (word_of_token(labels) for labels in view.texts())
    weights = aligned_view(view, view.alignment_heads).cross()
    return symmetrize(*_choices(_word_weights(weights, source, target)), symmetrization)


def aligned_view(view: AttentionView, heads: AlignmentHeads | None) -> AttentionView:
    """The view with the heads of its run; if these are unknown, with the layer that suits this text best."""
    return replace(view, alignment_heads=heads or choose_heads([view], single=False))


def choose_heads(views: Iterable[AttentionView], single: bool = True) -> AlignmentHeads | None:
    """The layer in which words of source and target choose each other most often, by the mean of its heads.

    With `single`, one head may be chosen. None without cross-attention. The first of equal ones is chosen.
    """
    counts: dict[AlignmentHeads, tuple[int, int]] = {}
    for view in views:
        for heads, (forward, reverse) in _candidates(view, single):
            both, either = counts.get(heads, (0, 0))
            counts[heads] = both + len(forward & reverse), either + len(forward | reverse)
    return max(counts, key=lambda heads: counts[heads][0] / max(counts[heads][1], 1), default=None)


def _candidates(view: AttentionView, single: bool) -> Iterator[tuple[AlignmentHeads, Choices]]:
    source, target = (word_of_token(labels) for labels in view.texts())
    for attention in view.maps:
        if attention.kind == "cross":
            heads = enumerate(attention.weights, 1) if single else ()
            for head, own in [(None, attention.weights.mean(0)), *heads]:
                yield AlignmentHeads(layer=attention.layer, head=head), _choices(_word_weights(own, source, target))


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


def _choices(weights: Tensor) -> Choices:
    if not weights.numel():
        return frozenset(), frozenset()
    forward, reverse = weights.argmax(1).tolist(), weights.argmax(0).tolist()
    return frozenset((i, j) for j, i in enumerate(forward)), frozenset(enumerate(reverse))
