"""Generation from encoded sources: a source that is decoded several times is encoded once."""

from typing import Any

import torch
from torch import Tensor, nn

from ...families.protocols import SpeechModel, as_module
from ...parts import Encoded, Inputs


class EncodedSources(nn.Module):
    """A model whose sources are the outputs of its encoder."""

    def __init__(self, model: SpeechModel) -> None:
        super().__init__()
        self.model: Any = as_module(model)

    def start(self, source: Inputs | None, rows: int, capacity: int | None = None) -> Any:
        assert source is not None and rows == len(source)
        return self.model.start_encoded(Encoded(source.values, source.valid), rows, capacity)

    def step(self, tokens: Tensor, cache: Any, valid: Tensor | None = None) -> Tensor:
        logits: Tensor = self.model.step(tokens, cache, valid)
        return logits


def source_rows(encoded: Encoded) -> list[Inputs]:
    """The rows of a batch as sources."""
    return [Inputs("frames", row[None]) for row in torch.unbind(encoded.states)]
