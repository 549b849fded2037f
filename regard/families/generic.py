"""Models that the recurrent and the convolutional family share: each wraps stacks that the family builds.

The task sets `Config.head`: target (sequence to sequence), next (language model), class or tag.
"""

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from torch import Tensor, nn

from ..config.types import Base, Count, Positive, Share
from ..parts import Cache, Dropout, Encoded, Inputs, Mask, Stack
from ..parts.init import Rule, initialize
from ..parts.pooling import Pooling, pool
from .base import LanguageModel, Seq2Seq, encode_tokens
from .spec import TOKENS, ModelSpec

Head = Literal["target", "next", "class", "tag"]

SPEC = ModelSpec(
    TOKENS,
    frozenset({"target", "next", "label", "tags"}),
    head_modules=("classes",),
    label_modules=("classes",),
)


class BaseConfig(Base):
    """Settings of both families."""

    vocab: Count = 0  # of the source; 0: the tokenizer's size
    target_vocab: Count = 0  # 0: source and target share one vocabulary and one embedding table
    width: Positive = 256
    heads: Positive = 4  # of the decoder's attention to the source
    layers: Positive = 2
    decoder_layers: Count = 0  # 0: equal to `layers`
    dropout: Share = 0.1
    tied: bool = True  # the head shares the embedding table
    head: Head = "target"  # the task sets it and the number of labels
    labels: Count = 0
    pooling: Pooling = "max"  # for a class: of the states of all tokens, or the first one


C = TypeVar("C", bound=BaseConfig)


class StackBuilder(Generic[C]):
    """How a family builds its stacks and initializes their weights."""

    def __init__(
        self,
        encoder: Callable[[C], Stack],
        decoder: Callable[[C, bool], Stack],
        table: dict[str, Rule],
        scale: float = 1.0,
        carry_state: bool = False,
    ) -> None:
        """`decoder` takes whether it attends to a source; `scale` multiplies the embeddings.

        With `carry_state` a language model continues from one window of a text to the next.
        """
        self.encoder, self.decoder, self.table = encoder, decoder, table
        self.scale, self.carry_state = scale, carry_state

    def __call__(self, c: C) -> "GenericModel":
        build: Callable[[C, StackBuilder[C]], GenericModel] = HEADS[c.head]
        model = build(c, self)
        initialize(model, self.table)
        if c.tied:
            model.tie()
        return model


class Translator(Seq2Seq):
    """An encoder reads the source; a decoder attends to it and predicts the target."""

    encode = encode_tokens

    def __init__(self, c: C, build: StackBuilder[C]) -> None:
        super().__init__()
        self.scale = build.scale
        self.source = nn.Embedding(c.vocab, c.width)
        self.target = nn.Embedding(c.target_vocab, c.width) if c.target_vocab else self.source
        self.dropout = Dropout(c.dropout)
        self.encoder, self.decoder = build.encoder(c), build.decoder(c, True)
        self.head = nn.Linear(c.width, self.target.num_embeddings, bias=False)

    def tie(self) -> None:
        """Share the embedding with the output projection."""
        self.head.weight = self.target.weight


class CausalLM(LanguageModel):
    """A language model: predicts the next token at every position."""

    def __init__(self, c: C, build: StackBuilder[C]) -> None:
        super().__init__()
        self.scale, self.carry_state = build.scale, build.carry_state
        self.embed, self.dropout = nn.Embedding(c.vocab, c.width), Dropout(c.dropout)
        self.stack = build.decoder(c, False)
        self.head = nn.Linear(c.width, c.vocab, bias=False)

    def tie(self) -> None:
        """Share the embedding with the output projection."""
        self.head.weight = self.embed.weight

    def _decode(self, tokens: Tensor, mask: Mask, cache: Cache | None) -> Tensor:
        states: Tensor = self.dropout(super()._decode(tokens, mask, cache))
        return states

    def new_memory(self, rows: int) -> Cache | None:
        """The state carried from one batch of a text to the next; None if the family carries none."""
        return self.stack.cache(rows) if self.carry_state else None


class RowClassifier(nn.Module):
    """A bidirectional encoder whose states give a class or tags."""

    def __init__(self, c: C, build: StackBuilder[C]) -> None:
        super().__init__()
        self.scale, self.pooling = build.scale, c.pooling if c.head == "class" else None
        self.embed, self.dropout = nn.Embedding(c.vocab, c.width), Dropout(c.dropout)
        self.encoder = build.encoder(c)
        self.classes = nn.Linear(c.width, c.labels)

    def tie(self) -> None:
        """There is no output table to tie."""

    @property
    def context(self) -> int | None:
        return self.encoder.context  # the longest text in tokens; None: any length

    def encode(self, text: Inputs) -> Encoded:
        x = self.encoder.add_positions(self.embed(text.values) * self.scale, text.positions)
        states: Tensor = self.encoder(self.dropout(x), text.mask())
        return Encoded(states, text.valid, text.segments)

    def label_logits(self, encoded: Encoded) -> Tensor:
        x = encoded.states if self.pooling is None else pool(encoded.states, encoded.valid, self.pooling)
        logits: Tensor = self.classes(self.dropout(x))
        return logits  # (batch, labels); for tags (batch, tokens, labels)

    def forward(self, text: Inputs) -> Tensor:
        return self.label_logits(self.encode(text))


GenericModel = Translator | CausalLM | RowClassifier
HEADS: dict[Head, type[Translator] | type[CausalLM] | type[RowClassifier]] = {
    "target": Translator,
    "next": CausalLM,
    "class": RowClassifier,
    "tag": RowClassifier,
}
