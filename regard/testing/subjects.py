"""Models behind the interface of one of their outputs, as the laws need them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from ..config.merge import Settings
from ..config.types import Base
from ..families.protocols import (
    BoxModel,
    CausalModel,
    EmbeddingModel,
    EncoderModel,
    Family,
    LabelModel,
    MaskedModel,
    ParallelModel,
    Seq2SeqModel,
    TokenModel,
)
from ..families.spec import Output
from ..parts import Cache, Stack
from ..parts.inputs import Inputs
from ..processors.base import Array
from .probes import Probe, pack_tokens

LABELS = 41
HEAD: dict[Output, str] = {
    "target": "target", "next": "next", "masked": "words", "label": "class", "tags": "tag", "embedding": "none",
}  # fmt: skip
Rows = list[Tensor]  # the valid outputs of every row


class Subject(ABC):
    """A small model of a family, and how to read one of its outputs. Its weights are enlarged, so that errors show."""

    packs: ClassVar[bool] = True  # it has outputs for each of several examples in one row
    exempt: frozenset[str] = frozenset()  # laws that a variant of a family satisfies only in part

    def __init__(self, family: Family, output: Output, probe: Probe, settings: Settings) -> None:
        self.family, self.output, self.probe = family, output, probe
        self.config: Any = small_config(family, output, probe, settings)
        torch.manual_seed(1)
        self.module = enlarge(family.Model(self.config)).eval()

    @property
    def size(self) -> int:
        """The size of an output vector."""
        return LABELS if self.output in ("label", "tags") else self.probe.vocab

    @abstractmethod
    def read(self, inputs: Inputs) -> Rows:
        """The outputs of every row of a batch."""

    def batch(self, examples: Sequence[Array], fill: int = 0) -> Rows:
        """Read the examples together; padding holds `fill`."""
        return self.read(self.probe.batch(examples, fill))

    def read_alone(self, example: Array, row: int) -> Tensor:
        """The output of one example, read alone; `row` is its row in the batch."""
        return self.batch([example])[0]

    def output_shape(self, example: Array) -> tuple[int, ...]:
        """The shape of the output of one row."""
        return len(example), self.size

    def read_packed(self, examples: Sequence[Array]) -> Rows:
        """Read the examples from one packed row."""
        raise NotImplementedError

    @abstractmethod
    def key_valid(self, inputs: Inputs) -> Tensor | None:
        """(batch, keys): the keys that attention to these inputs may use; None: all."""

    def hidden_pairs(self, path: str, weights: Tensor, inputs: Inputs) -> Tensor:
        """Bool, as `weights` (batch, heads, queries, keys): the pairs that the attention at `path` must not use."""
        hidden = torch.zeros_like(weights, dtype=torch.bool)
        stack = self.module.get_submodule(path.partition(".layers.")[0])
        if isinstance(stack, Stack) and stack.causal and not path.endswith(".cross"):
            hidden |= torch.ones(weights.shape[2:], dtype=torch.bool).triu(1)
            if isinstance(self, TargetTokens):  # the decoder does not read these inputs
                return hidden
        valid = self.key_valid(inputs)
        if valid is not None and valid.shape == (len(weights), weights.size(3)):
            hidden |= ~valid[:, None, None]
        return hidden

    def runs(self, part: nn.Module) -> bool:
        """True if `read` runs this part of the model."""
        return True

    def sample(self, *lengths: int) -> list[Array]:
        return [self.probe.example(length) for length in lengths]


class EncoderSubject(Subject):
    """A model that encodes its input."""

    def key_valid(self, inputs: Inputs) -> Tensor | None:
        return cast(EncoderModel, self.module).encode(inputs).valid


class TokenOutputs(EncoderSubject):
    """One output per token of the text: masked tokens, tags."""

    def logits(self, inputs: Inputs) -> Tensor:
        if self.output == "masked":
            masked = cast(MaskedModel, self.module)
            return masked.logits(masked.encode(inputs).states)
        labeled = cast(LabelModel, self.module)
        return labeled.label_logits(labeled.encode(inputs))

    def read(self, inputs: Inputs) -> Rows:
        return split_rows(self.logits(inputs), inputs)

    def read_packed(self, examples: Sequence[Array]) -> Rows:
        return list(torch.split(self.logits(self.probe.pack(examples))[0], [len(example) for example in examples]))


class LabelOutput(EncoderSubject):
    """One output for the whole input."""

    packs = False

    def output_shape(self, example: Array) -> tuple[int, ...]:
        return (self.size,)

    def read(self, inputs: Inputs) -> Rows:
        model = cast(LabelModel, self.module)
        return list(model.label_logits(model.encode(inputs)))


class EmbeddingOutput(EncoderSubject):
    """One vector of length 1; a model of several modalities is read in that of the probe."""

    packs = False

    def __init__(self, family: Family, output: Output, probe: Probe, settings: Settings) -> None:
        super().__init__(family, output, probe, {**family.SPEC.reading.get(probe.modality, {}), **settings})

    @property
    def size(self) -> int:
        return int(self.config.width)

    def output_shape(self, example: Array) -> tuple[int, ...]:
        return (self.size,)

    def read(self, inputs: Inputs) -> Rows:
        return list(cast(EmbeddingModel, self.module).vectors(inputs))

    def runs(self, part: nn.Module) -> bool:
        tower = getattr(self.module, "tower", None)
        return tower is None or any(part is module for module in tower(self.probe.modality)[0].modules())


class BoxOutput(Subject):
    """The class logits and the box of every object query."""

    packs = False

    @property
    def size(self) -> int:
        return LABELS + 1 + 4

    def output_shape(self, example: Array) -> tuple[int, ...]:
        return int(self.config.queries), self.size

    def read(self, inputs: Inputs) -> Rows:
        detections = cast(BoxModel, self.module).detect(inputs)
        return list(torch.cat([detections.logits[-1], detections.boxes[-1]], -1))

    def key_valid(self, inputs: Inputs) -> Tensor | None:
        return None


class Writer(Subject):
    """A model that generates token by token."""

    @abstractmethod
    def write(self, tokens: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """(rows, tokens, vocab): the outputs of known tokens; `rows` are their rows in a larger batch."""

    @abstractmethod
    def start(self, rows: int, capacity: int | None) -> Cache: ...

    def step(self, tokens: Tensor, cache: Cache, valid: Tensor | None = None) -> Tensor:
        return cast(TokenModel[Cache], self.module).step(tokens, cache, valid)


class NextToken(Writer):
    """Models that predict the next token."""

    @property
    def model(self) -> CausalModel:
        (model,) = cast(CausalModel, self.module).members
        return model

    def logits(self, inputs: Inputs) -> Tensor:
        return self.model.logits(self.model.decode(inputs))

    def read(self, inputs: Inputs) -> Rows:
        return split_rows(self.logits(inputs), inputs)

    def read_packed(self, examples: Sequence[Array]) -> Rows:
        return list(torch.split(self.logits(self.probe.pack(examples))[0], [len(example) for example in examples]))

    def key_valid(self, inputs: Inputs) -> Tensor | None:
        return inputs.valid

    def write(self, tokens: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        return self.logits(Inputs("tokens", tokens))

    def start(self, rows: int, capacity: int | None) -> Cache:
        return self.model.start(None, rows, capacity)


class TargetTokens(Writer):
    """Examples are sources; each row has a target of its own."""

    def __init__(self, family: Family, output: Output, probe: Probe, settings: Settings) -> None:
        super().__init__(family, output, probe, settings)
        self.target = torch.randint(4, 40, (4, 6), generator=torch.Generator().manual_seed(3))
        self.sources = self.sample(8, 8, 8, 8)

    @property
    def model(self) -> Seq2SeqModel:
        (model,) = cast(Seq2SeqModel, self.module).members
        return model

    @property
    def size(self) -> int:
        return getattr(self.config, "target_vocab", 0) or self.probe.vocab

    def logits(self, source: Inputs, target: Inputs) -> Tensor:
        return self.model.logits(self.model.decode(target, self.model.encode(source)))

    def read(self, inputs: Inputs) -> Rows:
        return list(self.logits(inputs, Inputs("tokens", self.target[: len(inputs)])))

    def read_alone(self, example: Array, row: int) -> Tensor:
        return self.logits(self.probe.batch([example]), Inputs("tokens", self.target[row : row + 1]))[0]

    def output_shape(self, example: Array) -> tuple[int, ...]:
        return self.target.size(1), self.size

    def key_valid(self, inputs: Inputs) -> Tensor | None:
        return self.model.encode(inputs).valid

    def read_packed(self, examples: Sequence[Array]) -> Rows:
        target = pack_tokens(list(self.target[: len(examples)].numpy()))
        return list(torch.split(self.logits(self.probe.pack(examples), target)[0], self.target.size(1)))

    def write(self, tokens: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        sources = [self.sources[row] for row in (range(len(tokens)) if rows is None else rows)]
        return self.logits(self.probe.batch(sources), Inputs("tokens", tokens))

    def start(self, rows: int, capacity: int | None) -> Cache:
        return self.model.start(self.probe.batch(self.sources[:rows]), rows, capacity)


class ParallelTokens(EncoderSubject):
    """Examples are sources, and the decoder reads the same tokens: one copy of each."""

    @property
    def size(self) -> int:
        return getattr(self.config, "target_vocab", 0) or self.probe.vocab

    def logits(self, inputs: Inputs) -> Tensor:
        (model,) = cast(ParallelModel, self.module).members
        return model.logits(model.decode(inputs, model.encode(inputs)))

    def read(self, inputs: Inputs) -> Rows:
        return split_rows(self.logits(inputs), inputs)

    def read_packed(self, examples: Sequence[Array]) -> Rows:
        return list(torch.split(self.logits(self.probe.pack(examples))[0], [len(example) for example in examples]))


SUBJECTS: dict[Output, type[Subject]] = {
    "next": NextToken,
    "target": TargetTokens,
    "masked": TokenOutputs,
    "tags": TokenOutputs,
    "label": LabelOutput,
    "embedding": EmbeddingOutput,
    "boxes": BoxOutput,
    "fertility": ParallelTokens,
    "ctc": ParallelTokens,
    "mask_predict": ParallelTokens,
}


def small_config(family: Family, output: Output, probe: Probe, settings: Settings) -> Base:
    """The family's config of size tiny for this output."""
    values: dict[str, Any] = {"size": "tiny", "vocab": probe.vocab, "head": HEAD.get(output), "labels": LABELS}
    fields = family.Config.model_fields
    values = {name: value for name, value in values.items() if name in fields} | dict(settings)
    return family.Config.model_validate({**family.SIZES[values.get("size", "tiny")], **values})


def enlarge(model: nn.Module) -> nn.Module:
    """Enlarge the weights, so that attention is not uniform and biases are not zero."""
    keys = [weight.std().item() for path, weight in model.named_parameters() if path.endswith("key.weight")]
    scale = 0.1 / max(keys, default=0.1)  # not by the queries, which T5 has small
    for parameter in model.parameters():
        large = parameter.dim() > 1 and bool(parameter.any())  # a head of zeros would hide every error
        parameter.data = (
            parameter.data * max(scale, 1.5) if large else parameter.data + 0.2 * torch.randn_like(parameter)
        )
    return model


def split_rows(outputs: Tensor, inputs: Inputs) -> Rows:
    """The valid outputs (tokens, …) of every row."""
    lengths = [outputs.size(1)] * len(outputs) if inputs.valid is None else inputs.valid.sum(1).tolist()
    return [row[:length] for row, length in zip(outputs, lengths, strict=True)]
