"""Span corruption: T5's pre-training. `Restorer` says what the sentinels of a text stand for."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config.run import Run
from ..config.schema import Sides
from ..data.examples import Examples
from ..data.spans import SpanCorruptor, SpanSampler
from ..processors.tokenizers import TrainedTokenizer, load_tokenizer, sentinel, train_tokenizer
from . import translate
from .base import build_model, open_lines, open_splits
from .translate import JOINT, VERBS, TranslatePredictor, sized, with_vocab

__all__ = ["VERBS", "SpanObjective", "SpanPredictor", "prepare", "restore", "sized"]


class SpanPredictor(TranslatePredictor):
    """`predict` takes a text with <extra_id_0>, <extra_id_1> … in it and says what each stands for."""

    source: TrainedTokenizer

    part = staticmethod(open_lines)

    def evaluate(self, sides: Sides | None = None) -> dict[str, Any]:
        """Figures over lines of text, corrupted always in the same way."""
        return self.examine(sides)[0]

    def examine(self, sides: Sides | None = None) -> Any:
        examples = self.part(self.run, "test", sides)
        examples.require_nonempty("data.test")
        return {"examples": len(examples), **self.figures(examples)}, None, list(examples.texts(0))

    def figures(self, examples: Examples) -> dict[str, float]:
        """Nats per target token, sentinels and END counted."""
        corruptor, run = SpanCorruptor(self.source, self.run.data), self.run
        batcher = SpanSampler(examples, corruptor, run.data, run.train, self.context)
        logprobs = self.logprobs(*batcher.encode_all(np.random.default_rng(1)))
        loss = -sum(map(sum, logprobs)) / max(sum(map(len, logprobs)), 1)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700))}


class SpanObjective(translate.TranslateObjective):
    """The training side: lines corrupted anew in every epoch."""

    translator: SpanPredictor

    def __init__(self, restorer: SpanPredictor, parts: dict[str, Examples]) -> None:
        self.translator, self.run, self.parts, self.model = restorer, restorer.run, parts, restorer.model
        self.static_shapes = self.run.data.packed
        corruptor = SpanCorruptor(restorer.source, self.run.data)
        self.batcher = SpanSampler(parts["train"], corruptor, self.run.data, self.run.train, restorer.context)

    def validate(self, model: Any) -> dict[str, float]:
        return self.translator.figures(self.parts["valid"]) if "valid" in self.parts else {}


def prepare(
    run: Run, folder: Path | None, device: torch.device
) -> tuple[SpanObjective, dict[str, TrainedTokenizer], Run]:
    """Open the data and learn the tokenizer, or take the one in `folder`; nothing is written."""
    parts = open_splits(run, SpanPredictor.part)
    marks = [sentinel(number) for number in reversed(range(run.data.sentinels))]  # the first has the last number
    tokenizer = (
        load_tokenizer(folder / JOINT)
        if folder
        else train_tokenizer(run.tokenizer, parts["train"].texts(0), control=marks)
    )
    run = with_vocab(run, tokenizer, tokenizer)
    restorer = SpanPredictor(run, build_model(run), tokenizer, tokenizer, device)
    return SpanObjective(restorer, parts), {JOINT: tokenizer}, run


def restore(run: Run, folder: Path, device: torch.device) -> TranslatePredictor:
    return translate.restore(run, folder, device, SpanPredictor)
