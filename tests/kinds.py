"""How the laws speak to each kind of family: one small class per kind, and the variants of every family's slots."""

from typing import Any

import torch
from torch import Tensor, nn

from regard.config import family_of
from regard.families import FAMILIES
from regard.parts import Cache, Cross, Mask

VOCAB = 53
Texts = list[list[int]]


def ids(rows: int, tokens: int) -> Tensor:
    return torch.randint(4, 40, (rows, tokens))


def some(*lengths: int) -> Texts:
    return [ids(1, length)[0].tolist() for length in lengths]


def padded(texts: Texts, fill: int = 0) -> tuple[Tensor, Tensor]:
    """(tokens, real), the texts on the left."""
    most = max(map(len, texts))
    tokens = torch.tensor([[*text, *[fill] * (most - len(text))] for text in texts])
    return tokens, torch.arange(most)[None] < torch.tensor([[len(text)] for text in texts])


def row(texts: Texts) -> tuple[Tensor, Tensor, Tensor]:
    """All texts in one row: (tokens, at, segments)."""
    tokens = torch.tensor([[token for text in texts for token in text]])
    at = torch.cat([torch.arange(len(text)) for text in texts])[None]
    segments = torch.arange(len(texts)).repeat_interleave(torch.tensor([len(text) for text in texts]))[None]
    return tokens, at, segments


class DecoderOnly:
    """A text is all there is; each of its tokens predicts the next one."""

    writes = True  # token by token, seeing nothing later

    def __init__(self, model: nn.Module) -> None:
        self.model, self.vocab = model, VOCAB

    def read(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        """Texts of equal length; `rows` says which of the rows of a larger batch they are, where that matters."""
        return self.model(tokens)

    def together(self, texts: Texts, fill: int = 0) -> list[Tensor]:
        """Texts of any lengths in one batch, padded with `fill`."""
        tokens, real = padded(texts, fill)
        found = self.model(tokens, Mask(keys=real))
        return [found[i, : len(text)] for i, text in enumerate(texts)]

    def alone(self, text: list[int], row: int) -> Tensor:
        """The text that stood in this row."""
        return self.model(torch.tensor([text]))[0]

    def packed(self, texts: Texts) -> list[Tensor]:
        """The same in one row."""
        tokens, at, segments = row(texts)
        found = self.model.logits(self.model.decode(tokens, Mask(at=at, segments=segments)))
        return list(found[0].split([len(text) for text in texts]))

    def start(self, rows: int, capacity: int | None) -> Cache:
        return self.model.start(rows, capacity)

    def paths(self) -> list[str]:
        """Where there is attention to record."""
        return [f"stack.layers.{i}.attention" for i in range(len(self.model.stack.layers))]

    def hidden(self, path: str, texts: Texts) -> Tensor:
        """(batch, 1, queries, keys): what `together` must not look at."""
        _, real = padded(texts)
        return (~real[:, None] | torch.ones(real.size(1), real.size(1)).triu(1).bool())[:, None]


class EncoderDecoder:
    """The texts that are padded and packed are sources; what is read token by token is a target."""

    writes = True

    def __init__(self, model: nn.Module) -> None:
        self.model, self.vocab = model, model.head.out_features
        draw = torch.Generator().manual_seed(3)
        self.source, self.target = (torch.randint(4, 40, (4, n), generator=draw) for n in (8, 6))

    def read(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.model(self.source[: len(tokens)] if rows is None else self.source[rows], tokens)

    def together(self, texts: Texts, fill: int = 0) -> list[Tensor]:
        tokens, real = padded(texts, fill)
        return list(self.model(tokens, self.target[: len(texts)], Mask(keys=real)))

    def alone(self, text: list[int], row: int) -> Tensor:
        return self.model(torch.tensor([text]), self.target[row : row + 1])[0]

    def packed(self, texts: Texts) -> list[Tensor]:
        source, source_at, source_segments = row(texts)
        target, at, segments = row(self.target[: len(texts)].tolist())
        memory = self.model.encode(source, Mask(at=source_at, segments=source_segments))
        cross = Cross(memory, Mask(segments=segments, keys_segments=source_segments))
        found = self.model.logits(self.model.decode(target, cross, Mask(at=at, segments=segments)))
        return list(found[0].split(self.target.size(1)))

    def start(self, rows: int, capacity: int | None) -> Cache:
        return self.model.start(self.source[:rows], capacity=capacity)

    def paths(self) -> list[str]:
        encoder = [f"encoder.layers.{i}.attention" for i in range(len(self.model.encoder.layers))]
        layers = range(len(self.model.decoder.layers))
        return encoder + [f"decoder.layers.{i}.{part}" for i in layers for part in ("attention", "cross")]

    def hidden(self, path: str, texts: Texts) -> Tensor:
        if path.startswith("encoder") or path.endswith("cross"):
            return ~padded(texts)[1][:, None, None]
        return torch.ones(1, 1, self.target.size(1), self.target.size(1)).triu(1).bool()


class EncoderOnly:
    """Every token of a text is told something, knowing the whole text."""

    writes = False

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.vocab = (model.words.out if model.words is not None else model.classes).out_features

    def read(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        return self.model(tokens)

    def together(self, texts: Texts, fill: int = 0) -> list[Tensor]:
        tokens, real = padded(texts, fill)
        found = self.model(tokens, Mask(keys=real))
        return [found[i, : len(text)] for i, text in enumerate(texts)]

    def alone(self, text: list[int], row: int) -> Tensor:
        return self.model(torch.tensor([text]))[0]

    def packed(self, texts: Texts) -> list[Tensor]:
        tokens, at, segments = row(texts)
        return list(self.model(tokens, Mask(at=at, segments=segments))[0].split([len(text) for text in texts]))

    def paths(self) -> list[str]:
        return [f"encoder.layers.{i}.attention" for i in range(len(self.model.encoder.layers))]

    def hidden(self, path: str, texts: Texts) -> Tensor:
        return ~padded(texts)[1][:, None, None]


KINDS = {
    "transformer": EncoderDecoder, "t5": EncoderDecoder, "lm": DecoderOnly, "gpt": DecoderOnly, "xl": DecoderOnly,
    "bert": EncoderOnly,
}  # fmt: skip

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
        "favor": {"attention": {"kind": "favor", "features": 32}, "key_heads": 2, "head_width": 24},
        "additive": {"attention": "additive", "key_heads": 1, "feed": {"kind": "plain", "act": "relu"}},
    },
    "xl": {
        "paper": {},
        "same": {"same": True, "memory": 5, "tied": False},
        "prenorm": {"prenorm": True, "norm": "rms", "feed": "gated"},
        "without memory": {"memory": 0},
    },
}
CASES = [(family, name) for family in FAMILIES for name in VARIANTS[family]]
LOOSE = {
    ("bert", "favor"): {"packed"},
    ("bert", "lowrank"): {"packed", "recorded"},
    ("bert", "lowrank layers"): {"packed", "recorded"},
}  # laws that a case does not keep: favor has one sum per row, lowrank one map, whose numbers are no shares


def config(family: str, name: str, **other: Any) -> Any:
    module, variant = family_of(family), VARIANTS[family][name]
    size = variant.get("size", "tiny")
    return module.Config.model_validate({"vocab": VOCAB, "size": size, **module.SIZES[size], **variant, **other})


def loud(family: str, name: str) -> nn.Module:
    """Weights are larger than at birth, so that attention is not flat and mistakes show."""
    torch.manual_seed(1)
    model = family_of(family).Model(config(family, name))
    keys = [each.std().item() for path, each in model.named_parameters() if path.endswith("key.weight")]
    scale = 0.1 / max(keys)  # not by the queries, which T5 has small
    for each in model.parameters():
        each.data = each.data * max(scale, 1.5) if each.dim() > 1 else each.data + 0.2 * torch.randn_like(each)
    return model.eval()
