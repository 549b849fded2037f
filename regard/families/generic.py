"""What a stack can be used for, beside attention's own families: the recurrent and the convolutional one share this.

`Config.head`, which the task sets, says which it is: the words of a target, the next word, a class, or a tag.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..config.schema import Base, Count, Positive, Share
from ..parts import Cache, Cross, Dropout, Mask, Stack
from ..parts.init import Rule, initialize
from ..parts.pooling import Pooling, pooled

Head = Literal["target", "next", "class", "tag"]


class BaseConfig(Base):
    """What the configs of both families have."""

    vocab: Count = 0  # of the source; 0: as many as the tokenizer learns
    target_vocab: Count = 0  # 0: source and target share one vocabulary and one table
    width: Positive = 256
    heads: Positive = 4  # of the attention with which a decoder looks at its source
    layers: Positive = 2
    decoder_layers: Count = 0  # 0: as many as `layers`
    dropout: Share = 0.1
    tied: bool = True  # the output's table is that of the tokens
    head: Head = "target"  # the task sets it, and how many labels there are
    labels: Count = 0
    pooling: Pooling = "max"  # of a class: over the states of all tokens, or the first one's


class StackBuilder:
    """How a family makes its stacks, and how their weights begin."""

    def __init__(
        self,
        encoder: Callable[[Any], Stack],
        decoder: Callable[[Any, bool], Stack],
        table: dict[str, Rule],
        scale: float = 1.0,
    ) -> None:
        """`decoder` is asked whether it looks at a source; `scale` is of embedded tokens."""
        self.encoder, self.decoder, self.table, self.scale = encoder, decoder, table, scale

    def __call__(self, c: Any) -> nn.Module:
        model: Any = HEADS[c.head](c, self)
        initialize(model, self.table)
        if c.tied:
            model.tie()
        return model


class Seq2Seq(nn.Module):
    """An encoder reads the source, a decoder writes the target looking at it."""

    def __init__(self, c: BaseConfig, build: StackBuilder) -> None:
        super().__init__()
        self.scale = build.scale
        self.source = nn.Embedding(c.vocab, c.width)
        self.target = nn.Embedding(c.target_vocab, c.width) if c.target_vocab else self.source
        self.dropout = Dropout(c.dropout)
        self.encoder, self.decoder = build.encoder(c), build.decoder(c, True)
        self.head = nn.Linear(c.width, self.target.num_embeddings, bias=False)

    def tie(self) -> None:
        self.head.weight = self.target.weight

    def encode(self, source: Tensor, mask: Mask = Mask()) -> Tensor:
        x = self.encoder.add_positions(self.source(source) * self.scale, mask.positions)
        return self.encoder(self.dropout(x), mask)  # (batch, source, width)

    def decode(self, target: Tensor, cross: Cross | None, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        x = self.decoder.add_positions(self.target(target) * self.scale, mask.positions)
        return self.decoder(self.dropout(x), mask, cross, cache)  # (batch, target, width)

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states)  # (…, vocab)

    def forward(self, source: Tensor, target: Tensor, mask: Mask = Mask()) -> Tensor:
        return self.logits(self.decode(target, Cross(self.encode(source, mask), mask)))

    def start(self, source: Tensor, mask: Mask = Mask(), capacity: int | None = None) -> Cache:
        return self.decoder.cache(len(source), capacity, self.encode(source, mask), mask)

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self.logits(self.decode(tokens, None, cache.next_mask(tokens, valid), cache))


class CausalLM(nn.Module):
    """A language model: each token of a text predicts the next one."""

    def __init__(self, c: BaseConfig, build: StackBuilder) -> None:
        super().__init__()
        self.scale, self.carried = build.scale, getattr(c, "carry_state", False)
        self.embed, self.dropout = nn.Embedding(c.vocab, c.width), Dropout(c.dropout)
        self.stack = build.decoder(c, False)
        self.head = nn.Linear(c.width, c.vocab, bias=False)

    def tie(self) -> None:
        self.head.weight = self.embed.weight

    @property
    def context(self) -> int | None:
        """How many tokens a text may have; None: any number."""
        return self.stack.context

    def decode(self, tokens: Tensor, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        x = self.stack.add_positions(self.embed(tokens) * self.scale, mask.positions)
        return self.dropout(self.stack(self.dropout(x), mask, cache=cache))  # (batch, tokens, width)

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states)  # (…, vocab)

    def forward(self, tokens: Tensor, mask: Mask = Mask(), cache: Cache | None = None) -> Tensor:
        return self.logits(self.decode(tokens, mask, cache))

    def start(self, rows: int, capacity: int | None = None) -> Cache:
        """An empty cache, from which `step` goes on."""
        return self.stack.cache(rows, capacity)

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return self(tokens, cache.next_mask(tokens, valid), cache)

    def new_memory(self, rows: int) -> Cache | None:
        """What goes on from batch to batch of a text that is read in order: a state, if the family carries one."""
        return self.stack.cache(rows) if self.carried else None


class Classifier(nn.Module):
    """An encoder reads a text from both sides; its states say a class or tags."""

    def __init__(self, c: BaseConfig, build: StackBuilder) -> None:
        super().__init__()
        self.scale, self.pooling = build.scale, c.pooling if c.head == "class" else None
        self.embed, self.dropout = nn.Embedding(c.vocab, c.width), Dropout(c.dropout)
        self.encoder = build.encoder(c)
        self.classes = nn.Linear(c.width, c.labels)

    def tie(self) -> None:
        """Nothing says words here."""

    @property
    def context(self) -> int | None:
        return self.encoder.context  # the most positions; None: any number

    def encode(self, tokens: Tensor, mask: Mask = Mask()) -> Tensor:
        x = self.encoder.add_positions(self.embed(tokens) * self.scale, mask.positions)
        return self.encoder(self.dropout(x), mask)  # (batch, tokens, width)

    def label_logits(self, states: Tensor, valid: Tensor) -> Tensor:
        x = states if self.pooling is None else pooled(states, valid, self.pooling)
        return self.classes(self.dropout(x))  # (batch, labels), or of tags (batch, tokens, labels)

    def forward(self, tokens: Tensor, mask: Mask = Mask()) -> Tensor:
        valid = torch.ones_like(tokens, dtype=torch.bool) if mask.key_valid is None else mask.key_valid
        return self.label_logits(self.encode(tokens, mask), valid)


HEADS: dict[Head, Any] = {"target": Seq2Seq, "next": CausalLM, "class": Classifier, "tag": Classifier}
HEAD_MODULES = ("classes",)  # modules that another task has otherwise, or not at all
LABEL_MODULES = HEAD_MODULES  # those of them that say labels, which are every data's own
