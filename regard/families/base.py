"""What models do with the modules that their constructors wire: encode, decode, predict, generate.

The constructor of a family is the picture of its paper; these methods are the same for all of them. Where a paper
differs, as T5 with its dropout after the decoder, the file of the family says so.
"""

from typing import Protocol, Self

from torch import Tensor, nn

from ..parts import Cache, Cross, Dropout, Encoded, Inputs, Mask, Stack


class TokenScorer(nn.Module):
    """A model whose head gives scores for every token of a vocabulary."""

    dropout: Dropout
    head: nn.Linear
    scale: float = 1.0  # of the embeddings

    @property
    def members(self) -> tuple[Self, ...]:
        """The models that predict together: an ensemble has several."""
        return (self,)

    def scaled(self, embeddings: Tensor) -> Tensor:
        """The embeddings as the first layer reads them."""
        return embeddings if self.scale == 1.0 else embeddings * self.scale

    def logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.head(states)
        return logits  # (…, vocab)


class EncoderDecoder(TokenScorer):
    """An encoder reads the source; a decoder attends to it."""

    target: nn.Embedding
    decoder: Stack

    def encode(self, source: Inputs) -> Encoded:
        """Read the source."""
        raise NotImplementedError

    def cross(self, encoded: Encoded, target: Inputs | None = None) -> Cross:
        """What the decoder attends to; without a target, sources are not packed."""
        return encoded.cross(target)

    def embed_target(self, tokens: Tensor) -> Tensor:
        """The embeddings of target tokens."""
        return self.scaled(self.target(tokens))

    def decode(self, target: Inputs, encoded: Encoded) -> Tensor:
        return self._decode(target.values, target.mask(), self.cross(encoded, target))

    def _decode(self, tokens: Tensor, mask: Mask, cross: Cross | None = None, cache: Cache | None = None) -> Tensor:
        x = self.decoder.add_positions(self.embed_target(tokens), mask.positions)
        states: Tensor = self.decoder(self.dropout(x), mask, cross, cache)
        return states  # (batch, target, width)

    def forward(self, source: Inputs, target: Inputs) -> Tensor:
        return self.logits(self.decode(target, self.encode(source)))


class Seq2Seq(EncoderDecoder):
    """An encoder reads the source; a causal decoder attends to it and writes the target, token by token."""

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None) -> Cache:
        """A cache for `step` that holds every layer's projection of the source."""
        assert source is not None and rows == len(source), "a sequence-to-sequence model reads one source per row"
        return self.start_encoded(self.encode(source), rows, capacity)

    def start_encoded(self, encoded: Encoded, rows: int, capacity: int | None = None) -> Cache:
        """`start` with a source that is encoded already."""
        return self.decoder.cache(rows, capacity, self.cross(encoded))

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self.logits(self._decode(tokens, cache.next_mask(tokens, valid), cache=cache))


class TokenEncoder(Protocol):
    """A model whose encoder reads tokens."""

    source: nn.Embedding
    dropout: Dropout
    encoder: Stack

    def scaled(self, embeddings: Tensor, /) -> Tensor:
        """The embeddings as the first layer reads them."""


def encode_tokens(model: TokenEncoder, source: Inputs) -> Encoded:
    """Read tokens: the method `encode` of a model of texts."""
    x = model.encoder.add_positions(model.scaled(model.source(source.values)), source.positions)
    states: Tensor = model.encoder(model.dropout(x), source.mask())
    return Encoded(states, source.valid, source.segments)


class LanguageModel(TokenScorer):
    """A causal stack predicts the next token of a text at every position."""

    embed: nn.Embedding
    stack: Stack

    @property
    def context(self) -> int | None:
        """The longest text in tokens; None: any length."""
        return self.stack.context

    def decode(self, text: Inputs, memory: Cache | None = None) -> Tensor:
        """With a memory or cache, the text continues what that holds."""
        mask = text.mask() if memory is None else memory.next_mask(text.values, text.valid)
        return self._decode(text.values, mask, memory)

    def _decode(self, tokens: Tensor, mask: Mask, cache: Cache | None) -> Tensor:
        x = self.stack.add_positions(self.scaled(self.embed(tokens)), mask.positions)
        states: Tensor = self.stack(self.dropout(x), mask, cache=cache)
        return states  # (batch, tokens, width)

    def forward(self, text: Inputs, memory: Cache | None = None) -> Tensor:
        return self.logits(self.decode(text, memory))

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None) -> Cache:
        """An empty cache for `step`."""
        assert source is None, "a language model reads no source"
        return self.stack.cache(rows, capacity)

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self.logits(self.decode(Inputs("tokens", tokens, valid), cache))

    def new_memory(self, rows: int) -> Cache | None:
        """None: this family carries no state from one batch of a text to the next."""
        return None
