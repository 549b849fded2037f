"""Adapters from the laws to each kind of family, and the slot variants of every family."""

from typing import Any

import torch
from helpers.inputs import inputs
from torch import Tensor, nn

from regard.config.run import family_of
from regard.families import FAMILIES
from regard.parts import Attention, Cache

VOCAB = 53
Texts = list[list[int]]


def ids(rows: int, tokens: int) -> Tensor:
    return torch.randint(4, 40, (rows, tokens))


def some(*lengths: int) -> Texts:
    return [ids(1, length)[0].tolist() for length in lengths]


def padded(texts: Texts, fill: int = 0) -> tuple[Tensor, Tensor]:
    """(tokens, valid), padded on the right."""
    most = max(map(len, texts))
    tokens = torch.tensor([[*text, *[fill] * (most - len(text))] for text in texts])
    return tokens, torch.arange(most)[None] < torch.tensor([[len(text)] for text in texts])


def row(texts: Texts) -> tuple[Tensor, Tensor, Tensor]:
    """Pack all texts into one row: (tokens, positions, segments)."""
    tokens = torch.tensor([[token for text in texts for token in text]])
    at = torch.cat([torch.arange(len(text)) for text in texts])[None]
    segments = torch.arange(len(texts)).repeat_interleave(torch.tensor([len(text) for text in texts]))[None]
    return tokens, at, segments


class DecoderOnly:
    """Decoder-only: each token predicts the next one."""

    writes = True  # token by token, seeing nothing later

    def __init__(self, model: nn.Module) -> None:
        self.model, self.vocab = model, VOCAB

    def read(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        """Read texts of equal length; `rows` are their rows in a larger batch, where that matters."""
        return self.model(inputs(tokens))

    def together(self, texts: Texts, fill: int = 0) -> list[Tensor]:
        """Read texts of any lengths in one batch, padded with `fill`."""
        tokens, valid = padded(texts, fill)
        found = self.model(inputs(tokens, valid))
        return [found[i, : len(each)] for i, each in enumerate(texts)]

    def alone(self, ids: list[int], row: int) -> Tensor:
        """Read the text of this row alone."""
        return self.model(inputs(torch.tensor([ids])))[0]

    def packed(self, texts: Texts) -> list[Tensor]:
        """Read the texts packed into one row."""
        tokens, at, segments = row(texts)
        found = self.model(inputs(tokens, positions=at, segments=segments))
        return list(found[0].split([len(each) for each in texts]))

    def start(self, rows: int, capacity: int | None) -> Cache:
        return self.model.start(None, rows, capacity)

    def paths(self) -> list[str]:
        """The paths of attention modules whose weights can be recorded."""
        return own_attention("stack", self.model.stack)

    def hidden(self, path: str, texts: Texts) -> Tensor:
        """(batch, 1, queries, keys): the pairs that are hidden in `together`."""
        _, valid = padded(texts)
        return (~valid[:, None] | torch.ones(valid.size(1), valid.size(1)).triu(1).bool())[:, None]


class EncoderDecoder:
    """Encoder-decoder: padded and packed texts are sources; targets are read token by token."""

    writes = True

    def __init__(self, model: nn.Module) -> None:
        self.model, self.vocab = model, model.head.out_features
        draw = torch.Generator().manual_seed(3)
        self.source, self.target = (torch.randint(4, 40, (4, n), generator=draw) for n in (8, 6))

    def read(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.model(inputs(self.source[: len(tokens)] if rows is None else self.source[rows]), inputs(tokens))

    def together(self, texts: Texts, fill: int = 0) -> list[Tensor]:
        tokens, valid = padded(texts, fill)
        return list(self.model(inputs(tokens, valid), inputs(self.target[: len(texts)])))

    def alone(self, ids: list[int], row: int) -> Tensor:
        return self.model(inputs(torch.tensor([ids])), inputs(self.target[row : row + 1]))[0]

    def packed(self, texts: Texts) -> list[Tensor]:
        source, source_at, source_segments = row(texts)
        target, at, segments = row(self.target[: len(texts)].tolist())
        sources = inputs(source, positions=source_at, segments=source_segments)
        found = self.model(sources, inputs(target, positions=at, segments=segments))
        return list(found[0].split(self.target.size(1)))

    def start(self, rows: int, capacity: int | None) -> Cache:
        return self.model.start(inputs(self.source[:rows]), rows, capacity)

    def paths(self) -> list[str]:
        cross = [f"decoder.layers.{i}.cross" for i in range(len(self.model.decoder.layers))]
        return own_attention("encoder", self.model.encoder) + own_attention("decoder", self.model.decoder) + cross

    def hidden(self, path: str, texts: Texts) -> Tensor:
        if path.startswith("encoder") or path.endswith("cross"):
            return ~padded(texts)[1][:, None, None]
        return torch.ones(1, 1, self.target.size(1), self.target.size(1)).triu(1).bool()


class EncoderOnly:
    """Encoder-only: an output per token, from the whole text."""

    writes = False

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.vocab = (model.words.out if getattr(model, "words", None) is not None else model.classes).out_features

    def read(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.model(inputs(tokens))

    def together(self, texts: Texts, fill: int = 0) -> list[Tensor]:
        tokens, valid = padded(texts, fill)
        found = self.model(inputs(tokens, valid))
        return [found[i, : len(each)] for i, each in enumerate(texts)]

    def alone(self, ids: list[int], row: int) -> Tensor:
        return self.model(inputs(torch.tensor([ids])))[0]

    def packed(self, texts: Texts) -> list[Tensor]:
        tokens, at, segments = row(texts)
        found = self.model(inputs(tokens, positions=at, segments=segments))
        return list(found[0].split([len(each) for each in texts]))

    def paths(self) -> list[str]:
        return own_attention("encoder", self.model.encoder)

    def hidden(self, path: str, texts: Texts) -> Tensor:
        return ~padded(texts)[1][:, None, None]


def own_attention(name: str, stack: nn.Module) -> list[str]:
    """Paths of attention modules; layers with recurrence or convolution have none."""
    mixers = [layer.attention for layer in stack.layers]
    return [f"{name}.layers.{i}.attention" for i, mixer in enumerate(mixers) if isinstance(mixer, Attention)]


class Globals(EncoderOnly):
    """A layer has a second attention for global queries."""

    def paths(self) -> list[str]:
        layers = range(len(self.model.encoder.layers))
        return [f"encoder.layers.{i}.attention.{side}" for i in layers for side in ("near", "wide")]


KINDS = {
    "transformer": EncoderDecoder, "t5": EncoderDecoder, "lm": DecoderOnly, "gpt": DecoderOnly, "xl": DecoderOnly,
    "bert": EncoderOnly, "longformer": Globals, "bigbird": EncoderOnly,
}  # fmt: skip
FORMS = {"target": EncoderDecoder, "next": DecoderOnly, "tag": EncoderOnly}  # of families that have several

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "transformer": {
        "paper": {},
        "prenorm": {"prenorm": True},
        "additive": {"attention": {"kind": "additive"}},
        "unscaled": {"attention": {"kind": "dense", "scaled": False}},
        "learned": {"positions": {"kind": "learned", "tokens": 64}},
        "rotary": {"positions": {"kind": "rotary"}},
        "buckets": {"positions": {"kind": "buckets"}},
        "gated rms": {"feed": {"kind": "gated"}, "norm": {"kind": "rms"}, "prenorm": True},
        "untied": {"tied": False, "target_vocab": 41, "biased": True, "decoder_layers": 1},
    },
    "t5": {
        "later": {},
        "first": {"tied": True, "feed": {"kind": "plain", "act": "relu"}, "head_width": 24, "decoder_layers": 1},
        "rotary": {"positions": {"kind": "rotary"}, "head_width": 24, "norm": "layer", "target_vocab": 41},
    },
    "bert": {
        "paper": {"head": "words"},
        "tags": {"head": "tag", "labels": 41, "prenorm": True, "positions": "sinusoid"},
        "conv": {"head": "words", "feed": {"kind": "conv", "act": "gelu"}, "positions": "rotary", "tied": False},
        "gated rms": {"head": "words", "feed": "gated", "norm": "rms"},
        "window": {"head": "words", "attention": {"kind": "window", "radius": 3}},
        "favor": {"head": "words", "attention": {"kind": "favor", "features": 32}},
        "lowrank": {
            "head": "words",
            "attention": {"kind": "lowrank", "rank": 5, "tokens": 12},
            "positions": "sinusoid",
        },
        "lowrank layers": {
            "head": "words",
            "attention": {"kind": "lowrank", "rank": 5, "tokens": 12, "sharing": "layers"},
        },
        "additive": {"head": "words", "attention": "additive"},
    },
    "longformer": {
        "paper": {"head": "words", "attention": {"radius": 3}},
        "several": {
            "head": "tag",
            "labels": 41,
            "positions": "rotary",
            "attention": {"radius": [1, 2], "dilation": [1, 2], "globals": 3},
        },
    },
    "bigbird": {
        "paper": {"head": "words", "attention": {"kind": "blocks", "size": 1, "random": 1}},
        "tags": {"head": "tag", "labels": 41, "attention": {"kind": "blocks", "size": 1, "random": 0, "seed": 3}},
        "dense": {"head": "words", "attention": "dense"},
    },
    "lm": {
        "paper": {},
        "untied": {"tied": False},
        "window": {"attention": {"kind": "window", "radius": 3}},
        "favor": {"attention": {"kind": "favor", "features": 32}},
    },
    "gpt": {
        "gpt2": {},
        "modern": {"size": "modern-tiny"},
        "sinusoid": {"positions": "sinusoid", "tied": False, "biased": False},
        "buckets": {"positions": "buckets", "key_heads": 2},
        "window": {"attention": {"kind": "window", "radius": 4}, "key_heads": 2, "positions": "rotary"},
        "dilated": {"attention": {"kind": "window", "radius": [3, 2], "dilation": [1, 2]}},
        "favor": {"attention": {"kind": "favor", "features": 32}, "key_heads": 2, "head_width": 24},
        "additive": {"attention": "additive", "key_heads": 1, "feed": {"kind": "plain", "act": "relu"}},
    },
    "xl": {
        "paper": {},
        "same": {"same_length": True, "memory": 5, "tied": False},
        "prenorm": {"prenorm": True, "norm": "rms", "feed": "gated"},
        "without memory": {"memory": 0},
    },
    "rnn": {
        "translator": {"heads": 4},
        "gru": {"cell": "gru", "attention": "dense", "tied": False, "target_vocab": 41, "decoder_layers": 1},
        "writer": {"head": "next"},
        "plain writer": {"head": "next", "cell": "rnn", "layers": 1, "tied": False, "width": 37},
        "tags": {"head": "tag", "labels": 41},
        "plain tags": {"head": "tag", "labels": 41, "cell": "rnn", "width": 66},
    },
    "cnn": {
        "translator": {},
        "wide": {"kernel_size": 5, "attention": "additive", "tied": False, "target_vocab": 41, "decoder_layers": 2},
        "writer": {"head": "next"},
        "learned": {"head": "next", "kernel_size": 1, "positions": {"kind": "learned", "tokens": 64}},
        "tags": {"head": "tag", "labels": 41, "kernel_size": 5},
    },
}
CASES = [(family, name) for family in FAMILIES for name in VARIANTS[family]]
LOOSE = {
    ("bert", "favor"): {"packed"},
    ("bert", "lowrank"): {"packed", "recorded"},
    ("bert", "lowrank layers"): {"packed", "recorded"},
    ("longformer", "paper"): {"packed"},
    ("longformer", "several"): {"packed"},
    ("bigbird", "paper"): {"packed"},
    ("bigbird", "tags"): {"packed"},
}  # laws that a case does not keep: favor has one sum per row, lowrank one map, whose numbers are no shares; a packed row has
# more than one first token, or first block


def kind(family: str, name: str) -> Any:
    """The adapter class of this case."""
    return KINDS[family] if family in KINDS else FORMS[VARIANTS[family][name].get("head", "target")]


def config(family: str, name: str, **other: Any) -> Any:
    module, variant = family_of(family), VARIANTS[family][name]
    size = variant.get("size", "tiny")
    return module.Config.model_validate({"vocab": VOCAB, "size": size, **module.SIZES[size], **variant, **other})


def loud(family: str, name: str) -> nn.Module:
    """A model with enlarged weights, so that attention is not uniform and errors show."""
    torch.manual_seed(1)
    model = family_of(family).Model(config(family, name))
    keys = [each.std().item() for path, each in model.named_parameters() if path.endswith("key.weight")]
    scale = 0.1 / max(keys, default=0.1)  # not by the queries, which T5 has small
    for each in model.parameters():
        each.data = each.data * max(scale, 1.5) if each.dim() > 1 else each.data + 0.2 * torch.randn_like(each)
    return model.eval()
