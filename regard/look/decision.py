"""How an encoder and n-grams beside it decide on a label together: the parts of the logits, by token and by n-gram."""

from dataclasses import asdict, dataclass

from ..files import JsonObject


@dataclass(frozen=True)
class NGramEntry:
    """An n-gram of a text, and what all of its occurrences add to the logit of a label."""

    text: str
    kind: str  # token, tokens, word, words, characters, missing word
    value: float


@dataclass(frozen=True)
class Decision:
    """The logits of the likeliest labels for one text. They are the sums of those of encoder and n-grams.

    The rows of `contributions` and `constant` sum to `ngrams`: each n-gram is divided evenly among its tokens.
    """

    labels: tuple[str, ...]  # the likeliest first
    single: bool  # False: a text may have several labels, or none
    encoder: tuple[float, ...]  # logits of the encoder and the bias of its head
    ngrams: tuple[float, ...]  # logits of the n-grams
    constant: tuple[float, ...]  # the part of them that a text without n-grams has
    tokens: tuple[str, ...]
    contributions: tuple[tuple[float, ...], ...]  # (tokens, labels)
    top: tuple[tuple[NGramEntry, ...], ...]  # for each label the n-grams that speak for it most

    @property
    def lead(self) -> tuple[float, float]:
        """The lead of the first label over the second, by the encoder and by n-grams. Where a text may have several
        labels: over not having it.
        """
        if not self.single or len(self.labels) < 2:
            return self.encoder[0], self.ngrams[0]
        return self.encoder[0] - self.encoder[1], self.ngrams[0] - self.ngrams[1]

    @property
    def ngram_share(self) -> float:
        """The share of the n-grams in the lead: above 1 if the encoder speaks against the label."""
        total = sum(self.lead)
        return self.lead[1] / total if total else 0.0

    @property
    def summary(self) -> str:
        """One sentence: how much of the decision the encoder and the n-grams carry."""
        encoder, ngrams = self.lead
        other = f"over {self.labels[1]!r}" if self.single and len(self.labels) > 1 else "over not having it"
        return (
            f"{self.labels[0]!r} leads by {encoder + ngrams:.2f} {other}: {encoder:+.2f} from the encoder, "
            f"{ngrams:+.2f} from n-grams ({self.ngram_share:.0%})"
        )

    def record(self) -> JsonObject:
        """The parts as JSON."""
        return {**asdict(self), "ngram_share": self.ngram_share, "summary": self.summary}
