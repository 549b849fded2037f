"""Types of families and of the models that tasks and the generator use.

The Model of a family satisfies the protocols of its outputs. At the end of this file mypy checks this.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from ..config.merge import Settings
from ..config.types import Base
from ..parts import Cache, Detections, Encoded, Inputs
from ..parts.inputs import TensorKind
from ..parts.media.anchors import NoisedBoxes
from .spec import ModelSpec

C = TypeVar("C")


class Family(Protocol):
    """The module of a family."""

    __name__: str

    @property
    def Config(self) -> type[Base]:
        """The settings of its models."""

    @property
    def SIZES(self) -> Mapping[str, Settings]:
        """Settings by the name of a size."""

    @property
    def SPEC(self) -> ModelSpec:
        """The inputs and outputs of its models."""

    @property
    def Model(self) -> Callable[..., nn.Module]:
        """Build a model with new weights from a Config."""


class ModelBase(Protocol):
    """The methods of nn.Module that predictors call."""

    def to(self, device: torch.device, /) -> Self:
        """The model on a device."""

    def eval(self) -> Self:
        """The model in evaluation mode."""


class TokenModel(Protocol[C]):
    """A model that writes token by token: all that the generator needs. An ensemble has its own kind of cache."""

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None) -> C:
        """A cache for `step`: of these sources, one per row, or of a model that reads none (None).

        With `capacity`, all tensors are allocated at once and have room for that many tokens; else they grow.
        """

    def step(self, tokens: Tensor, cache: C, valid: Tensor | None = None) -> Tensor:
        """Read tokens (rows, tokens), append them to the cache, return logits (rows, tokens, vocab).

        A model with `returns_scores = True` returns scores, of which a search takes no softmax.
        """


class ScoringModel(ModelBase, Protocol):
    """A model that gives scores for every token of a vocabulary."""

    @property
    def members(self) -> Sequence[Self]:
        """The models that predict together: itself. An ensemble has several."""

    def logits(self, states: Tensor) -> Tensor:
        """The logits (…, vocab) of states (…, width)."""


class EncoderDecoderModel(ScoringModel, Protocol):
    """A model that reads a source with its encoder, and a target with its decoder."""

    def encode(self, source: Inputs) -> Encoded:
        """Read the source."""

    def decode(self, target: Inputs, encoded: Encoded) -> Tensor:
        """States (batch, target, width) for a known target, or for what a parallel model reads in its place."""


class Seq2SeqModel(EncoderDecoderModel, TokenModel[Cache], Protocol):
    """A model that reads a source and writes a target, token by token."""


class ParallelModel(EncoderDecoderModel, Protocol):
    """A non-autoregressive model: it writes all target tokens at once. PAD is the mask token; END is not written.

    Its decoder reads copies of source tokens, or masked tokens.
    """


class FertilityModel(ParallelModel, Protocol):
    """A parallel model whose decoder reads each source token as often as its fertility says."""

    fertilities: bool  # false: only the length is predicted, and source tokens are copied evenly

    def decode(self, target: Inputs, encoded: Encoded, shown: Tensor | None = None) -> Tensor:
        """`shown` (batch, target) has target tokens that are read instead of copies; -1: the copy."""

    def length_logits(self, encoded: Encoded) -> Tensor:
        """(batch, largest length + 1), without END, if `fertilities` is false"""

    def fertility_logits(self, encoded: Encoded) -> Tensor:
        """(batch, source, largest fertility + 1), if `fertilities` is true"""


class CtcTranslationModel(ParallelModel, Protocol):
    """A parallel model whose decoder reads every source token equally often, and writes tokens and blanks (CTC)."""

    upsample: int  # copies of a source token


class MaskPredictModel(ParallelModel, Protocol):
    """A parallel model whose decoder fills in masked tokens of a target of known length."""

    def length_logits(self, encoded: Encoded) -> Tensor:
        """(batch, largest length + 1), without END"""


class SpeechModel(Seq2SeqModel, Protocol):
    """A sequence-to-sequence model whose encoder may also predict the tokens, by CTC."""

    ctc_weight: float  # of the CTC loss; 0: it has none
    stride: int  # frames of an encoder position

    def ctc_logits(self, encoded: Encoded) -> Tensor:
        """(batch, positions of the encoder, vocab); PAD is the blank."""

    def start_encoded(self, encoded: Encoded, rows: int, capacity: int | None = None) -> Cache:
        """`start` with a source that is encoded already."""


class CausalModel(ScoringModel, TokenModel[Cache], Protocol):
    """A model that predicts the next token of a text."""

    @property
    def context(self) -> int | None:
        """The longest text; None: any length."""

    def decode(self, text: Inputs, memory: Cache | None = None) -> Tensor:
        """States (batch, tokens, width). With a memory or cache, the text continues what that holds."""

    def new_memory(self, rows: int) -> Cache | None:
        """The memory that carries over between windows of a text; None if the model has none."""


class EncoderModel(ModelBase, Protocol):
    """A model that reads a text in both directions."""

    @property
    def context(self) -> int | None:
        """The longest row; None: any length."""

    def encode(self, text: Inputs) -> Encoded:
        """Read the text, or another input."""


class LabelModel(EncoderModel, Protocol):
    """An encoder with a head for labels or tags."""

    def label_logits(self, encoded: Encoded) -> Tensor:
        """(batch, labels), or of tags (batch, tokens, labels)."""


class MaskedModel(EncoderModel, Protocol):
    """An encoder that predicts masked tokens."""

    def logits(self, states: Tensor) -> Tensor:
        """The logits (…, vocab) of states (…, width)."""

    def next_sentence_logits(self, encoded: Encoded) -> Tensor:
        """(batch, 2)"""


class BoxModel(ModelBase, Protocol):
    """A model that finds objects in an image."""

    denoising: int  # groups of noised boxes in training

    def detect(self, image: Inputs, noised: NoisedBoxes | None = None) -> Detections:
        """The answers of the object queries; `noised` are boxes to denoise, in training."""


class EmbeddingModel(ModelBase, Protocol):
    """A model that embeds texts, and perhaps images or sound, in one space."""

    log_scale: Tensor  # (1,): the logarithm of the factor of the cosines

    @property
    def context(self) -> int | None:
        """The longest text; None: any length."""

    def encode(self, inputs: Inputs, /) -> Encoded: ...

    def vectors(self, inputs: Inputs) -> Tensor:
        """Embeddings of length 1 (batch, width)."""

    def reader(self, modality: TensorKind) -> nn.Module:
        """The part of the model that reads this modality."""


class MemoryLayer(Protocol):
    """The layer cache of a model with memory."""

    tokens: int | None  # how far back it reaches; None: without limit
    policy: str  # how much context a token has, for reports


def memory_layer(memory: Cache) -> MemoryLayer:
    """The first layer of a memory; all layers agree."""
    layer: Any = memory.layers[0]
    memory_layer: MemoryLayer = layer
    return memory_layer


def as_module(model: object) -> nn.Module:
    """The model as an nn.Module, which every model is."""
    assert isinstance(model, nn.Module)
    return model


if TYPE_CHECKING:
    from . import (
        bert,
        bigbird,
        captioner,
        clip,
        cmlm,
        cnn,
        detr,
        generic,
        gpt,
        lm,
        longformer,
        nat,
        nat_ctc,
        omni,
        rnn,
        speech,
        t5,
        transformer,
        vit,
        whisper,
        xl,
    )  # fmt: skip

    _: tuple[Family, ...] = (
        transformer, bert, longformer, bigbird, t5, lm, gpt, xl, rnn, cnn, vit, detr, captioner, speech, whisper, nat,
        nat_ctc, cmlm, omni, clip,
    )  # fmt: skip

    def _check_seq2seq(model: transformer.Model | t5.Model | captioner.Model | generic.Translator) -> Seq2SeqModel:
        return model

    def _check_speech(model: speech.Model | whisper.Model | omni.Model) -> SpeechModel:
        return model

    def _check_fertility(model: nat.Model) -> FertilityModel:
        return model

    def _check_spelling(model: nat_ctc.Model) -> CtcTranslationModel:
        return model

    def _check_mask_predict(model: cmlm.Model) -> MaskPredictModel:
        return model

    def _check_causal(model: lm.Model | gpt.Model | xl.Model | generic.CausalLM) -> CausalModel:
        return model

    def _check_labels(model: bert.Model | vit.Model | generic.RowClassifier) -> LabelModel:
        return model

    def _check_masked(model: bert.Model) -> MaskedModel:
        return model

    def _check_boxes(model: detr.Model) -> BoxModel:
        return model

    def _check_embeddings(model: bert.Model | clip.Model) -> EmbeddingModel:
        return model
