"""The laws have teeth: a broken model is refused by the law it breaks; toys of other modalities keep all laws."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config.types import Base
from regard.errors import UserError
from regard.families import bert, gpt
from regard.families.base import LanguageModel, Seq2Seq, encode_tokens
from regard.families.spec import ModelSpec
from regard.parts import (
    Attention,
    Dropout,
    Encoded,
    FeedForward,
    Inputs,
    Layer,
    Mask,
    Residual,
    SinusoidPositions,
    Stack,
)
from regard.testing import LAWS, BrokenLaw, check_family


def variant(family, model: type[nn.Module]) -> SimpleNamespace:
    """The family with another model, and with one output."""
    spec = replace(family.SPEC, writes=family.SPEC.writes & {"next", "masked"})
    return SimpleNamespace(__name__="broken", Config=family.Config, SIZES=family.SIZES, SPEC=spec, Model=model)


class NotFinite(gpt.Model):
    def logits(self, states: Tensor) -> Tensor:
        return super().logits(states) / 0


class OneLogitTooMany(gpt.Model):
    def logits(self, states: Tensor) -> Tensor:
        return F.pad(super().logits(states), (0, 1))


class DropoutInEvaluation(gpt.Model):
    def logits(self, states: Tensor) -> Tensor:
        return super().logits(F.dropout(states, 0.1, training=True))


class IgnoresPadding(bert.Model):
    def encode(self, text: Inputs) -> Encoded:
        return replace(super().encode(replace(text, valid=None)), valid=text.valid)


class MixesRows(gpt.Model):
    def logits(self, states: Tensor) -> Tensor:
        return super().logits(states + states.mean(0, keepdim=True)[:, :1])


class NotCausal(gpt.Model):
    def __init__(self, c: gpt.Config) -> None:
        super().__init__(c)
        self.stack.causal = False


class StepsAtPositionZero(gpt.Model):
    def step(self, tokens: Tensor, cache, valid: Tensor | None = None) -> Tensor:
        mask = cache.next_mask(tokens, valid)
        x = self.stack.add_positions(self.embed(tokens), torch.zeros_like(mask.positions))
        return self.logits(self.stack(x, mask, cache=cache))


class CountsOneTooMany(gpt.Model):
    """Only if the cache has a fixed size."""

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None):
        cache = super().start(source, rows, capacity)
        if capacity is not None:
            super().step(torch.full((rows, 1), 5), cache)
        return cache


class IgnoresSegments(gpt.Model):
    def decode(self, text: Inputs, memory=None) -> Tensor:
        return super().decode(replace(text, segments=None), memory)


class FailsOnSegments(gpt.Model):
    def decode(self, text: Inputs, memory=None) -> Tensor:
        if text.segments is not None:
            raise ValueError("segments")
        return super().decode(text, memory)


class SavesOneTensorTooFew(gpt.Model):
    def __init__(self, c: gpt.Config) -> None:
        super().__init__(c)
        self.gain = torch.rand(c.vocab) + 0.5  # neither a parameter nor a buffer

    def logits(self, states: Tensor) -> Tensor:
        return super().logits(states) * self.gain


class DoesNotLearn(gpt.Model):
    def logits(self, states: Tensor) -> Tensor:
        logits = super().logits(states)
        return logits.detach() + 0 * logits


class OwnRandomNumbers(gpt.Model):
    """Its initial weights do not depend on the seed."""

    def __init__(self, c: gpt.Config) -> None:
        super().__init__(c)
        self.embed.weight.data *= 1 + 0.1 * random.random()


class UnusedAttention(gpt.Model):
    def __init__(self, c: gpt.Config) -> None:
        super().__init__(c)
        self.extra = Attention(c.width, c.heads)


BROKEN = {
    "shapes": [
        (gpt, NotFinite, "an output is not finite"),
        (gpt, OneLogitTooMany, "the output of a row has the shape"),
    ],
    "determinism": [(gpt, DropoutInEvaluation, "the same batch, read twice, has two outputs")],
    "batch_invariance": [
        (bert, IgnoresPadding, "the output of a row depends on the other rows"),
        (gpt, MixesRows, "the output of a row depends on the other rows"),
    ],
    "causality": [(gpt, NotCausal, "an output depends on a later token")],
    "growing_cache": [(gpt, StepsAtPositionZero, "a step with a cache gives another output")],
    "fixed_cache": [(gpt, CountsOneTooMany, "a step with a cache gives another output")],
    "packing": [
        (gpt, IgnoresSegments, "an example in a packed row has another output"),
        (gpt, FailsOnSegments, "a packed row fails: segments"),
    ],
    "saving": [(gpt, SavesOneTensorTooFew, "a loaded model gives another output")],
    "learning": [
        (gpt, DoesNotLearn, "of its outputs are right, expected over 90%"),
        (gpt, OwnRandomNumbers, "the same seed gives other weights"),
    ],
    "recording": [(gpt, UnusedAttention, "expected ['extra', 'stack.layers.0.attention'")],
}


def test_every_law_has_a_broken_model():
    assert BROKEN.keys() == LAWS.keys()


@pytest.mark.parametrize(
    ("law", "family", "model", "problem"),
    [pytest.param(law, *case, id=f"{law} {case[1].__name__}") for law, cases in BROKEN.items() for case in cases],
)
def test_a_broken_model_is_refused_by_its_law(law, family, model, problem):
    with pytest.raises(BrokenLaw) as caught:
        check_family(variant(family, model))
    sentence = str(caught.value)
    output = "masked" if family is bert else "next"
    assert sentence.startswith(f"{family.__name__.rpartition('.')[2]}, tokens to {output}: "), sentence
    assert problem in sentence and f"; {law} is a law of every family" in sentence and "\n" not in sentence


def test_a_family_without_laws_is_refused():
    family = SimpleNamespace(__name__="dual", SPEC=ModelSpec(frozenset({"pixels"}), frozenset({"waveform"})))
    with pytest.raises(UserError, match="dual writes waveform; there are laws for next, target, masked, tags, label"):
        check_family(family)


# --- toys that read pixels and frames --------------------------------------------------------------------------------


class ToyConfig(Base):
    family: Literal["toy"] = "toy"
    vocab: int = 0
    labels: int = 0
    width: int = 32
    dropout: float = 0.0


def layer(c: ToyConfig, cross: bool = False) -> Layer:
    attention = Attention(c.width, 4)
    residual = lambda: Residual(nn.LayerNorm(c.width), dropout=c.dropout)  # noqa: E731
    return Layer(attention, FeedForward(c.width, 64), residual, cross=Attention(c.width, 4) if cross else None)


class ToyViT(nn.Module):
    """Patches of 4 × 4 pixels with their place; the mean of the valid ones gives the label."""

    def __init__(self, c: ToyConfig) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, c.width, 4, 4)
        self.rows, self.columns = nn.Embedding(8, c.width), nn.Embedding(32, c.width)
        self.encoder = Stack([layer(c), layer(c)], nn.LayerNorm(c.width))
        self.classes = nn.Linear(c.width, c.labels)

    def encode(self, inputs: Inputs) -> Encoded:
        x = self.patches(inputs.values).movedim(1, -1)  # (batch, rows, columns, width)
        x = x + self.rows.weight[: x.size(1), None] + self.columns.weight[: x.size(2)]
        valid = None if inputs.valid is None else inputs.valid[:, ::4, ::4].flatten(1)
        return Encoded(self.encoder(x.flatten(1, 2), Mask(key_valid=valid)), valid)

    def label_logits(self, encoded: Encoded) -> Tensor:
        states, valid = encoded.states, encoded.valid
        if valid is None:
            return self.classes(states.mean(1))
        return self.classes((states * valid[..., None]).sum(1) / valid.sum(1, keepdim=True))


class ToySpeech(Seq2Seq):
    """Two frames become one state; a decoder writes tokens."""

    def __init__(self, c: ToyConfig) -> None:
        super().__init__()
        self.frames = nn.Conv1d(80, c.width, 3, 2, padding=1)
        self.target, self.dropout = nn.Embedding(c.vocab, c.width), Dropout(c.dropout)
        self.encoder = Stack([layer(c)], nn.LayerNorm(c.width))
        self.decoder = Stack([layer(c, cross=True)], nn.LayerNorm(c.width), causal=True)
        self.head = nn.Linear(c.width, c.vocab)

    def encode(self, source: Inputs) -> Encoded:
        values, valid = source.values, source.valid
        if valid is not None:
            values, valid = values * valid[..., None], valid[:, ::2]
        x = self.frames(values.transpose(1, 2)).transpose(1, 2)
        return Encoded(self.encoder(x, Mask(key_valid=valid)), valid)


class ToyTranslator(Seq2Seq):
    """The methods are those of the base; the constructor wires the modules."""

    encode = encode_tokens

    def __init__(self, c: ToyConfig) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(c.vocab, c.width), nn.Embedding(c.vocab, c.width)
        self.dropout = Dropout(c.dropout)
        self.encoder = Stack([layer(c)], nn.LayerNorm(c.width), SinusoidPositions(c.width))
        self.decoder = Stack([layer(c, cross=True)], nn.LayerNorm(c.width), SinusoidPositions(c.width), causal=True)
        self.head = nn.Linear(c.width, c.vocab)


class ToyWriter(LanguageModel):
    """A language model that only wires its modules."""

    def __init__(self, c: ToyConfig) -> None:
        super().__init__()
        self.embed, self.dropout = nn.Embedding(c.vocab, c.width), Dropout(c.dropout)
        self.stack = Stack([layer(c)], nn.LayerNorm(c.width), SinusoidPositions(c.width), causal=True)
        self.head = nn.Linear(c.width, c.vocab)


def toy(model: type[nn.Module], reads: str, writes: str) -> SimpleNamespace:
    spec = ModelSpec(frozenset({reads}), frozenset({writes}))
    return SimpleNamespace(__name__="toy", Config=ToyConfig, SIZES={"tiny": {}}, SPEC=spec, Model=model)


def test_a_family_that_reads_pixels_keeps_all_laws():
    checked = check_family(toy(ToyViT, "pixels", "label"))
    laws = ["shapes", "determinism", "batch_invariance", "saving", "learning", "recording"]
    assert checked == [f"toy, pixels to label: {law}" for law in laws]


def test_a_family_that_reads_frames_keeps_all_laws():
    checked = check_family(toy(ToySpeech, "frames", "target"))
    assert checked == [f"toy, frames to target: {law}" for law in LAWS if law != "packing"]


@pytest.mark.parametrize(("model", "writes"), [(ToyTranslator, "target"), (ToyWriter, "next")])
def test_a_model_that_only_wires_its_modules_keeps_all_laws(model, writes):
    assert check_family(toy(model, "tokens", writes)) == [f"toy, tokens to {writes}: {law}" for law in LAWS]


class PatchesWithoutMask(ToyViT):
    def encode(self, inputs: Inputs) -> Encoded:
        return replace(super().encode(replace(inputs, valid=None)), valid=None)


class FramesWithoutMask(ToySpeech):
    def encode(self, source: Inputs) -> Encoded:
        return super().encode(replace(source, valid=None))


@pytest.mark.parametrize(
    "family", [toy(PatchesWithoutMask, "pixels", "label"), toy(FramesWithoutMask, "frames", "target")]
)
def test_padding_of_pixels_and_frames_must_change_nothing(family):
    with pytest.raises(BrokenLaw, match="the output of a row depends on the other rows.* batch_invariance is a law"):
        check_family(family)
