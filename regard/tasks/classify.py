"""Classification: a text in, one label out. `Classifier` is what people use, `Lesson` is what the loop trains."""

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config.run import Run
from ..config.schema import Sides
from ..data.collate import TokenRows
from ..data.examples import Examples
from ..data.labeled import labeled_texts
from ..data.rows import LabeledTextSampler
from ..errors import UserError
from ..metrics.labels import label_metrics
from ..parts.losses import rdrop_divergence, smoothed_cross_entropy
from ..processors.labels import collect_labels
from ..synthetic.language_id import make_phrases
from ..synthetic.matching import make_matching
from . import encoder
from .base import Objective, build_model, open_split, open_splits
from .encoder import LABELS, TOKENIZER, LabelPredictor, Model, states, tokenizer_of, with_vocab

VERBS = ("encode", "label_logits")  # what a family must have for this task


class ClassifyPredictor(LabelPredictor):
    sides = 2  # a text and its label

    def predict(self, texts: str | Sequence[str], details: bool = False, **decode: Any) -> Any:
        """The label of every text; one text gives one. With decode.top, so many labels with their probabilities, the
        likeliest first. An empty text has none."""
        if isinstance(texts, str):
            return self.predict([texts], details, **decode)[0]
        how = self.how(decode)
        full = [i for i, text in enumerate(texts) if text.strip()]
        logprobs = dict(zip(full, self._logprobs([texts[i] for i in full]), strict=True))
        found = [self.ranked(logprobs[i], how.top) if i in logprobs else [] for i in range(len(texts))]
        if empty := len(texts) - len(full):
            warnings.warn(f"{empty} of {len(texts)} texts are empty and get no label", stacklevel=2)
        if details:
            return [_record(ranked) for ranked in found]
        if how.top:
            return found
        return [ranked[0][0] if ranked else "" for ranked in found]

    def score(self, texts: Any, targets: Any = None, details: bool = False) -> Any:
        """ln P(label | text)"""
        if isinstance(texts, str):
            return self.score([texts], [targets], details)[0]
        if targets is None or len(texts) != len(targets):
            raise UserError("score takes as many labels as texts")
        for label in targets:
            if label not in self.labels.ids:
                raise UserError(f"{label!r} is no label of this run; it has {', '.join(self.labels.names)}")
        logprobs = self._logprobs(texts)
        values = [float(row[self.labels.ids[label]]) for row, label in zip(logprobs, targets, strict=True)]
        return [{"score": value} for value in values] if details else values

    def evaluate(self, sides: Sides | None = None) -> dict[str, Any]:
        """Figures over labelled texts; without `sides`, over the run's test part."""
        return self.examine(sides)[0]

    def examine(self, sides: Sides | None = None) -> tuple[dict[str, Any], list[str], list[str]]:
        """What `evaluate` says, with the labels found and the right ones."""
        examples = part(self.run, "test", sides)
        examples.require_nonempty("data.test")
        texts, right = [each[0] for each in examples], [each[1] for each in examples]
        found = [name for row in self._logprobs(texts) for name in self.best(row[None])]
        told = {"examples": len(right), **label_metrics(found, right)}
        return told | self.majority(right) | self.unseen(right), found, right

    def loss_over(self, examples: Examples) -> tuple[float, list[str], list[str]]:
        """Nats per text, with the labels found and the right ones; examples with an unseen label are left out."""
        known = [each for each in examples if each[1] in self.labels.ids]
        right = [label for _, label in known]
        logprobs = torch.stack(self._logprobs([text for text, _ in known])) if known else torch.zeros(0, 1)
        wanted = torch.tensor([self.labels.ids[label] for label in right], dtype=torch.long)
        nats = -float(logprobs.gather(1, wanted[:, None]).sum())
        return nats / max(len(right), 1), self.best(logprobs), right

    def _logprobs(self, texts: Sequence[str]) -> list[Tensor]:
        """(labels,) of each text."""
        return self.logprobs_of(self.encoded(texts))


def _record(ranked: list[tuple[str, float]]) -> dict[str, Any]:
    label, probability = ranked[0] if ranked else (None, None)
    best = [{"label": name, "probability": value} for name, value in ranked]
    return {"label": label, "probability": probability, "top": best}


class ClassifyObjective(Objective):
    """The training side: batches from the data, the loss of each, and figures on the validation part."""

    def __init__(self, system: ClassifyPredictor, parts: dict[str, Examples]) -> None:
        self.system, self.run, self.parts, self.model = system, system.run, parts, system.model
        self.batcher = LabeledTextSampler(
            parts["train"], system.tokenizer, system.labels, self.run.data, self.run.train, system.model.context
        )

    def loss(self, model: Model, batch: TokenRows) -> Tensor:
        """Summed over the texts; with data.rdrop, the mean of two readings, and how far these are apart besides."""
        batch = batch.to(self.system.device)
        assert batch.labels is not None
        agree, smoothing = self.run.data.rdrop, self.run.train.smoothing
        found = [model.label_logits(states(model, batch), batch.valid) for _ in range(2 if agree else 1)]
        loss = torch.stack([smoothed_cross_entropy(each, batch.labels, smoothing=smoothing) for each in found]).mean()
        return loss + agree * rdrop_divergence(*found) if agree else loss

    def validate(self, model: Model) -> dict[str, float]:
        if "valid" not in self.parts:
            return {}
        loss, found, right = self.system.loss_over(self.parts["valid"])
        told = label_metrics(found, right)
        return {"loss": loss, "accuracy": told["accuracy"], "f1": told["f1"]}


# --- from a run to these two ---------------------------------------------------------------------------------------


def prepare(run: Run, folder: Path | None, device: torch.device) -> tuple[ClassifyObjective, dict[str, Any], Run]:
    """Open the data, learn the labels and the tokenizer, or take that of `folder`; nothing is written."""
    parts = open_splits(run, part)
    labels = collect_labels(parts["train"])
    if run.data.valid and run.data.invalid == "refuse":  # embedded data are nobody's mistake
        labels.require_known(parts["valid"], "data.valid")
    tokenizer = tokenizer_of(run, folder, parts["train"])
    run = with_vocab(run, tokenizer, head="class", labels=len(labels))
    system = ClassifyPredictor(run, build_model(run), tokenizer, labels, device)
    return ClassifyObjective(system, parts), {TOKENIZER: tokenizer, LABELS: labels}, run


restore = ClassifyPredictor.restored
borrowed = partial(ClassifyPredictor.borrowed, task="classify")


def sized(run: Run) -> Run:
    return encoder.sized(run, head="class", labels=run.model.labels or 2)


def part(run: Run, name: str, sides: Sides | None = None) -> Examples:
    """A part of the data; the embedded ones are phrases or marks."""
    data = run.data

    def made() -> Examples:
        if data.embedded == "matching":
            return make_matching(data.max_tokens - 2, data.examples, seed=1)[name]
        return make_phrases(data.locales, data.examples, seed=1)[name]

    return open_split(run, name, sides, lambda some: labeled_texts(some, data), made, "test.tsv")
