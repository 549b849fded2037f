"""Word alignments from the cross-attention of translations."""

from collections.abc import Sequence

from torch import Tensor

from ...alignment.links import Links, Symmetrization, symmetrize
from ...decode.search.texts import word_of_token
from ...look import AttentionView


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
