"""BERT (1810.04805): an encoder reads a text from both sides; small heads on top say masked words, classes or tags.

Texts stand between START and END, which are BERT's [CLS] and [SEP]; `kinds` says of a pair of texts which of the two
a token is in. Masked words need a tokenizer whose `mask` is a number (`learn(…, control=(MASK,))`).
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..config.schema import Base, Count, Positive, Share
from ..formats.huggingface.weight_names import WeightRule, one_of, prefixed
from ..parts import Dropout, Layer, Mask, Residual, Stack, slots
from ..parts.feed import ACTIVATIONS
from ..parts.init import as_built, initialize, normal, ones, zeros

Attention = Annotated[
    slots.Dense | slots.Window | slots.Blocks | slots.Favor | slots.Lowrank | slots.Additive,
    Field(discriminator="kind"),
]
Positions = Annotated[slots.Learned | slots.Sinusoid | slots.Rotary, Field(discriminator="kind")]
Feed = Annotated[slots.Feed | slots.Gated | slots.Convolution, Field(discriminator="kind")]
Norm = Annotated[slots.LayerNorm | slots.RMSNorm, Field(discriminator="kind")]


class EncoderConfig(Base):
    """The settings of an encoder with heads on top, with BERT's values: Longformer and BigBird have others."""

    family: str
    size: str = "small"
    vocab: Count = 0  # 0: as many as the tokenizer learns
    token_types: Positive = 2  # of texts that a row may hold
    width: Positive = 512
    heads: Positive = 8
    layers: Positive = 4
    inner: Positive = 2048
    dropout: Share = 0.1
    prenorm: bool = False  # norm first; the paper's is last
    head: Literal["none", "words", "class", "tag"] = "none"
    labels: Count = 0  # of the heads class and tag
    next_sentence: bool = False  # does the second text follow the first? a further head
    pooled: bool = False  # a map of the first token; the heads class and follow have it anyway
    tied: bool = True  # masked words are told by the table of the embeddings
    attention: Attention = slots.Dense(dropout=0.1)
    positions: Positions = slots.Learned()
    feed: Feed = slots.Feed(act="gelu")
    norm: Norm = slots.LayerNorm(eps=1e-12)
    acting: ClassVar[bool] = False  # the head class maps the first token through the activation of `feed`, not tanh

    @model_validator(mode="after")
    def _fits(self) -> Self:
        slots.refuse_uneven(self.width, self.heads, self.positions)
        slots.refuse_layers(self.attention, self.layers)
        return self


class Config(EncoderConfig):
    family: Literal["bert"] = "bert"


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "heads": 2, "layers": 2, "inner": 512},
    "mini": {"width": 256, "heads": 4, "layers": 4, "inner": 1024},
    "small": {"width": 512, "heads": 8, "layers": 4, "inner": 2048},
    "base": {"width": 768, "heads": 12, "layers": 12, "inner": 3072},
    "large": {"width": 1024, "heads": 16, "layers": 24, "inner": 4096},
}


class MaskedLMHead(nn.Module):
    """What stands at a place: one more layer, then a score for every word of the table."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(c.width, c.width), c.norm.build(c.width), nn.Linear(c.width, c.vocab)
        self.act = c.feed.act

    def forward(self, states: Tensor) -> Tensor:
        scores: Tensor = self.out(self.norm(ACTIVATIONS[self.act](self.into(states))))
        return scores


class Model(nn.Module):
    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.head = c.head
        self.squash = ACTIVATIONS[c.feed.act] if c.acting and c.head == "class" else torch.tanh
        self.embed, self.kinds = nn.Embedding(c.vocab, c.width), nn.Embedding(c.token_types, c.width)
        norm = partial(c.norm.build, c.width)
        self.norm, self.dropout = norm(), Dropout(c.dropout)
        self.encoder = Stack(
            [
                Layer(
                    slots.in_layer(c.attention, number).build(c.width, c.heads),
                    c.feed.build(c.width, c.inner),
                    lambda: Residual(norm(), c.prenorm, c.dropout),
                )
                for number in range(c.layers)
            ],
            norm() if c.prenorm else None,
            c.positions.build(c.width, c.heads, causal=False),
        )
        self.words = MaskedLMHead(c) if c.head == "words" else None
        self.pooler = nn.Linear(c.width, c.width) if c.pooled or c.next_sentence or c.head == "class" else None
        self.next = nn.Linear(c.width, 2) if c.next_sentence else None
        self.classes = nn.Linear(c.width, c.labels) if c.head in ("class", "tag") else None
        initialize(self, INITIAL)
        if self.words is not None and c.tied:
            self.words.out.weight = self.embed.weight

    @property
    def context(self) -> int | None:
        return self.encoder.context  # the most positions; None: any number

    def encode(self, tokens: Tensor, mask: Mask = Mask(), token_types: Tensor | None = None) -> Tensor:
        x = self.embed(tokens) + (self.kinds.weight[0] if token_types is None else self.kinds(token_types))
        x = self.dropout(self.norm(self.encoder.add_positions(x, mask.positions)))
        return self.encoder(x, mask)  # (batch, tokens, width)

    def logits(self, states: Tensor) -> Tensor:
        assert self.words is not None, "model.head is not words"
        return self.words(states)  # (…, vocab)

    def pool(self, states: Tensor) -> Tensor:
        assert self.pooler is not None, "model.pooled is false"
        return self.squash(self.pooler(states[:, 0]))  # (batch, width)

    def next_sentence_logits(self, states: Tensor) -> Tensor:
        assert self.next is not None, "model.next_sentence is false"
        return self.next(self.pool(states))  # (batch, 2): the first means yes

    def label_logits(self, states: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits of the heads class and tag. `valid` (batch, tokens) is only for families that pool over all states."""
        assert self.classes is not None, "model.head is neither class nor tag"
        x = self.pool(states) if self.head == "class" else states
        return self.classes(self.dropout(x))  # (batch, labels), or of tags (batch, tokens, labels)

    def forward(self, tokens: Tensor, mask: Mask = Mask(), token_types: Tensor | None = None) -> Tensor:
        states = self.encode(tokens, mask, token_types)
        if self.head == "none":
            return states
        return self.logits(states) if self.head == "words" else self.label_logits(states)


HEAD_MODULES = ("words", "pooler", "next", "classes")  # modules that another task has otherwise, or not at all
LABEL_MODULES = ("classes",)  # those of them that say labels, which are every data's own

INITIAL = {
    r".*norm\.weight": ones,
    r".*bias": zeros,
    r".*kernel\.(keys|values)\.weight": as_built,  # means over neighbours
    r".*\.weight": normal(0.02),
}


# --- Hugging Face BERT ---------------------------------------------------------------------------------------------

ACTS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}
ARCHITECTURES = {
    "BertModel": "none",
    "BertForNextSentencePrediction": "none",
    "BertForMaskedLM": "words",
    "BertForPreTraining": "words",
    "BertForSequenceClassification": "class",
    "BertForTokenClassification": "tag",
}  # to our heads; whether there is a pooler, and a head for next sentences, the tensors say
FOLLOWS = "cls.seq_relationship.weight"


def from_huggingface(theirs: Mapping[str, Any], tensors: Collection[str]) -> Config:
    """Their config.json and the names of their tensors, `bert.` left out, as ours; what we cannot be is refused."""
    for key in ("is_decoder", "add_cross_attention"):
        if theirs.get(key):
            raise ValueError(f"{key} is set; regard's BERT is an encoder")
    if (kind := theirs.get("position_embedding_type") or "absolute") != "absolute":
        raise ValueError(f"position_embedding_type is {kind!r}; expected 'absolute'")
    said = shared(theirs, tensors, ARCHITECTURES)
    return Config(
        **said,
        next_sentence=FOLLOWS in tensors and said["head"] in ("none", "words"),
        attention=slots.Dense(dropout=theirs.get("attention_probs_dropout_prob", 0.1)),
        positions=slots.Learned(tokens=theirs["max_position_embeddings"]),
    )


def shared(theirs: Mapping[str, Any], tensors: Collection[str], architectures: Mapping[str, str]) -> dict[str, Any]:
    """What all encoders of theirs say alike. `architectures` has our head for each class, the first for none."""
    if (kind := theirs.get("problem_type") or "single_label_classification") != "single_label_classification":
        raise ValueError(f"problem_type is {kind!r}; expected 'single_label_classification', one label for each text")
    if (act := theirs.get("hidden_act", "gelu")) not in ACTS:
        raise ValueError(f"hidden_act is {act!r}; expected one of {', '.join(ACTS)}")
    architecture = (theirs.get("architectures") or [next(iter(architectures))])[0]
    if architecture not in architectures:
        raise ValueError(f"architectures has {architecture!r}; expected one of {', '.join(architectures)}")
    head = architectures[architecture]
    return {
        "size": "huggingface",
        "vocab": theirs["vocab_size"],
        "token_types": theirs.get("type_vocab_size", 2),
        "width": theirs["hidden_size"],
        "heads": theirs["num_attention_heads"],
        "layers": theirs["num_hidden_layers"],
        "inner": theirs["intermediate_size"],
        "dropout": theirs.get("hidden_dropout_prob", 0.1),
        "head": head,
        "labels": len(label_names(theirs)) if head in ("class", "tag") else 0,
        "pooled": "pooler.dense.weight" in tensors,
        "tied": theirs.get("tie_word_embeddings", True),
        "feed": slots.Feed(act=ACTS[act]),  # type: ignore[arg-type]
        "norm": slots.LayerNorm(eps=theirs.get("layer_norm_eps", 1e-12)),
    }


def label_names(theirs: Mapping[str, Any]) -> list[str]:
    known = theirs.get("id2label") or {number: f"LABEL_{number}" for number in range(theirs.get("num_labels") or 2)}
    found = [str(known[number]) for number in sorted(known, key=int)]
    if len(set(found)) < len(found):
        raise ValueError(f"id2label calls two labels by one name ({', '.join(found[:6])}); expected a name for each")
    return found


def names(c: EncoderConfig) -> dict[str, str | WeightRule]:
    """Our names to theirs, `bert.` left out."""
    layer: dict[str, str | WeightRule] = {
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
        "attention.out": "attention.output.dense",
        "attention_residual.norm": "attention.output.LayerNorm",
        "feed.into": "intermediate.dense",
        "feed.out": "output.dense",
        "feed_residual.norm": "output.LayerNorm",
    }
    table = "embeddings.word_embeddings.weight"
    return prefixed("encoder.layers.*", "encoder.layer.*", layer) | {
        "embed.weight": table,
        "kinds": "embeddings.token_type_embeddings",
        "encoder.positions.table": "embeddings.position_embeddings",
        "norm": "embeddings.LayerNorm",
        "pooler": "pooler.dense",
        "words.into": "cls.predictions.transform.dense",
        "words.norm": "cls.predictions.transform.LayerNorm",
        "words.out.weight": one_of("cls.predictions.decoder.weight", *([table] if c.tied else [])),
        "words.out.bias": one_of(*(["cls.predictions.bias"] if c.tied else []), "cls.predictions.decoder.bias"),
        "next": "cls.seq_relationship",
        "classes": "classifier",
    }
