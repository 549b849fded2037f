"""Span corruption: T5's pre-training. `Restorer` says what the sentinels of a text stand for."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config.run import Run
from ..config.schema import Sides
from ..data.examples import Examples
from ..data.spans import Corruptor, SpanUpdates
from ..processors.tokenizers import Text, learn, load, sentinel
from . import translate
from .base import built, lines_of, opened
from .translate import JOINT, VERBS, Translator, sized, with_vocab

__all__ = ["VERBS", "Lesson", "Restorer", "prepare", "restore", "sized"]


class Restorer(Translator):
    """`predict` takes a text with <extra_id_0>, <extra_id_1> … in it and says what each stands for."""

    source: Text

    part = staticmethod(lines_of)

    def evaluate(self, sides: Sides | None = None) -> dict[str, Any]:
        """Figures over lines of text, corrupted always in the same way."""
        return self.examine(sides)[0]

    def examine(self, sides: Sides | None = None) -> Any:
        examples = self.part(self.run, "test", sides)
        examples.need_some("data.test")
        return {"examples": len(examples), **self.figures(examples)}, None, list(examples.texts(0))

    def figures(self, examples: Examples) -> dict[str, float]:
        """Nats per target token, sentinels and END counted."""
        corruptor, run = Corruptor(self.source, self.run.data), self.run
        batcher = SpanUpdates(examples, corruptor, run.data, run.train, self.context)
        logprobs = self.logprobs(*batcher.every(np.random.default_rng(1)))
        loss = -sum(map(sum, logprobs)) / max(sum(map(len, logprobs)), 1)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700))}


class Lesson(translate.Lesson):
    """The training side: lines corrupted anew in every epoch."""

    translator: Restorer

    def __init__(self, restorer: Restorer, parts: dict[str, Examples]) -> None:
        self.translator, self.run, self.parts, self.model = restorer, restorer.run, parts, restorer.model
        self.steady = self.run.data.packed
        corruptor = Corruptor(restorer.source, self.run.data)
        self.batcher = SpanUpdates(parts["train"], corruptor, self.run.data, self.run.train, restorer.context)

    def validate(self, model: Any) -> dict[str, float]:
        return self.translator.figures(self.parts["valid"]) if "valid" in self.parts else {}


def prepare(run: Run, folder: Path | None, device: torch.device) -> tuple[Lesson, dict[str, Text], Run]:
    """Open the data and learn the tokenizer, or take the one in `folder`; nothing is written."""
    parts = opened(run, Restorer.part)
    marks = [sentinel(number) for number in reversed(range(run.data.sentinels))]  # the first has the last number
    tokenizer = load(folder / JOINT) if folder else learn(run.tokenizer, parts["train"].texts(0), control=marks)
    run = with_vocab(run, tokenizer, tokenizer)
    restorer = Restorer(run, built(run), tokenizer, tokenizer, device)
    return Lesson(restorer, parts), {JOINT: tokenizer}, run


def restore(run: Run, folder: Path, device: torch.device) -> Translator:
    return translate.restore(run, folder, device, Restorer)
