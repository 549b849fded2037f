"""CIDEr-D (1411.5726): agreement of a caption with the references of its image, in n-grams that few images have."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

LONGEST = 4  # words of an n-gram
SIGMA = 6.0  # of the penalty for a caption that is longer or shorter than the reference, in words
WORD = re.compile(r"\w+(?:['’-]\w+)*")

Ngram = tuple[str, ...]


def cider(predicted: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The mean score of the captions, 0 to 10. N-grams of many images count little, so a single image scores 0.

    Captions are compared in lower case and without punctuation.
    """
    corpus = [[caption_ngrams(text) for text in texts] for texts in references]
    images = Counter(ngram for counts in corpus for ngram in set().union(*counts))
    total = math.log(len(references)) if references else 0.0
    weights = {ngram: total - math.log(count) for ngram, count in images.items()}
    scores = [
        sum(similarity(caption_ngrams(text), reference, weights, total) for reference in counts) / len(counts)
        for text, counts in zip(predicted, corpus, strict=True)
    ]
    return 10 * sum(scores) / max(len(scores), 1)


def caption_ngrams(text: str) -> Counter[Ngram]:
    """How often each n-gram of 1 to 4 words occurs."""
    words = WORD.findall(text.lower())
    return Counter(
        tuple(words[first : first + size]) for size in range(1, LONGEST + 1) for first in range(len(words) - size + 1)
    )


def similarity(
    caption: Counter[Ngram], reference: Counter[Ngram], weights: Mapping[Ngram, float], unseen: float
) -> float:
    """The mean over the sizes of n-grams of the cosine of their tf-idf vectors, times the penalty for the length.

    A count above that of the reference adds nothing. `unseen` is the weight of an n-gram that no reference has.
    """
    vectors = [
        [
            {ngram: count * weights.get(ngram, unseen) for ngram, count in counts.items() if len(ngram) == size}
            for counts in (caption, reference)
        ]
        for size in range(1, LONGEST + 1)
    ]
    longer = _words(caption) - _words(reference)
    penalty = math.exp(-(longer**2) / (2 * SIGMA**2))
    return penalty * sum(_clipped_cosine(*pair) for pair in vectors) / LONGEST


def _words(counts: Counter[Ngram]) -> int:
    return sum(count for ngram, count in counts.items() if len(ngram) == 1)


def _clipped_cosine(caption: Mapping[Ngram, float], reference: Mapping[Ngram, float]) -> float:
    norms = [math.sqrt(sum(value**2 for value in vector.values())) for vector in (caption, reference)]
    if not all(norms):
        return 0.0
    shared = sum(
        min(value, reference[ngram]) * reference[ngram] for ngram, value in caption.items() if ngram in reference
    )
    return shared / math.prod(norms)
