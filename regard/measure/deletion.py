"""Deletion curves: how fast a prediction falls as the tokens that a method finds important are deleted.

AOPC is the mean fall over all shares of deleted tokens: a faithful method deletes what the model uses, so its AOPC is
high. Random order is the reference.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config.data.base import DataFiles
from ..data.sources.data_files import evaluation_files
from ..errors import UserError
from ..look.draw import draw_curves
from ..look.norms import weigh_by_norm
from ..look.record import record_layers
from ..look.rollout import rollout
from ..tasks.base import Record, open_lines
from ..tasks.classify import items as text_items
from ..tasks.classify.items import TextItem
from ..tasks.classify.task import ClassifyPredictor
from ..tasks.label.texts import is_empty
from ..tasks.masked.task import MaskedPredictor
from ..tasks.predictor import AnyPredictor
from ..tasks.translate.task import TranslatePredictor
from .attribution import EmbeddingTap, Readout, copy_for_hooks, gradient_input, integrated_gradients, readout

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)  # of the tokens of a text, without START, END and masks
RANDOM_ORDERS = 3
STEPS = 32  # of integrated gradients
SEED = 1
RANDOM = "random"


@dataclass(frozen=True)
class DeletionCurve:
    """One method: the mean fall of the probability after deleting each share of tokens, and their mean."""

    method: str
    aopc: float
    error: float  # standard error of the AOPC over the texts
    falls: tuple[float, ...]


@dataclass(frozen=True)
class DeletionReport:
    """The deletion curves of all methods that the model supports."""

    texts: int
    shares: tuple[float, ...]
    curves: tuple[DeletionCurve, ...]

    def record(self) -> Record:
        return asdict(self)

    def draw(self, path: Path) -> None:
        lines = {f"{curve.method} (AOPC {curve.aopc:.3f})": (0.0, *curve.falls) for curve in self.curves}
        draw_curves(path, (0.0, *self.shares), lines, "share of deleted tokens", "fall of the probability")


class Attributions:
    """The importance of every token of a text by each method, for one predictor."""

    def __init__(self, predictor: AnyPredictor) -> None:
        self.plain = copy_for_hooks(predictor, "--deletion")
        self.normed = copy_for_hooks(predictor, "--deletion")
        self.tap = EmbeddingTap(self.plain.module)
        weigh_by_norm(self.normed.module)

    def of(self, reading: Readout) -> dict[str, Tensor]:
        """The importance of the tokens (tokens,) by method. Rollout is for encoders, whose attention is not causal."""
        importance = {}
        if reading.query is None and (cross := self._cross(reading)):
            importance["attention"] = torch.stack(cross).mean(0)
        if reading.query is not None and (layers := self._layers(self.plain, reading)):
            importance["attention"] = layers[-1].mean(0)[reading.query]
            importance["norm-weighted attention"] = self._layers(self.normed, reading)[-1].mean(0)[reading.query]
            importance["rollout"] = rollout(layers)[-1][reading.query]
        importance["gradient × input"] = gradient_input(self.tap, reading).sum(0)
        importance["integrated gradients"] = integrated_gradients(self.tap, reading, STEPS).sum(0)
        if self.tap.ngrams is not None:
            gradients = self.tap.gradients(reading.score, reading.inputs([reading.tokens]), None).ngrams
            assert gradients is not None
            importance["n-grams"] = self.tap.ngram_parts(reading, gradients[0])
        return importance

    def _cross(self, reading: Readout) -> list[Tensor]:
        """Cross-attention of every layer, (source,): the mean over heads and target tokens."""
        with record_layers(self.plain.module) as recorder:
            reading.score(reading.inputs([reading.tokens]))
        return [weights.mean((0, 1)) for site, weights in recorder.layers() if site.kind == "cross"]

    def _layers(self, predictor: AnyPredictor, reading: Readout) -> list[Tensor]:
        model: Any = predictor.model
        try:
            with record_layers(predictor.module) as recorder:
                model.encode(reading.inputs([reading.tokens]))
        except UserError:  # a family without attention
            return []
        return [weights for _, weights in recorder.layers()]


def deletion_report(predictor: AnyPredictor, data: Any = None, examples: int = 100) -> DeletionReport:
    """Deletion curves over the first `examples` texts of the data; by default the test data of the run."""
    if examples < 1:
        raise UserError(f"--examples is {examples}; expected 1 or more")
    falls: dict[str, list[Tensor]] = {}
    methods = Attributions(predictor)
    for reading in _readings(methods.plain, evaluation_files(data), examples):
        for method, fall in text_falls(methods.of(reading), reading).items():
            falls.setdefault(method, []).append(fall)
    if not falls:
        raise UserError("no text of the data has two tokens to delete; give longer texts (--data)")
    curves = [_curve(method, torch.stack(rows)) for method, rows in falls.items()]
    ranked = sorted(curves, key=lambda curve: -curve.aopc)
    return DeletionReport(len(falls[RANDOM]), SHARES, tuple(ranked))


def _curve(method: str, falls: Tensor) -> DeletionCurve:
    """`falls` is (texts, shares)."""
    means = falls.mean(1)
    error = float(means.std() / len(means) ** 0.5) if len(means) > 1 else 0.0
    return DeletionCurve(method, float(means.mean()), error, tuple(falls.mean(0).tolist()))


@torch.no_grad()
def text_falls(importance: dict[str, Tensor], reading: Readout) -> dict[str, Tensor]:
    """The fall of the probability by method, (shares,), all from one forward pass.

    The probability of an output of several tokens is the geometric mean of theirs.
    """
    free = [place for place in range(len(reading.tokens)) if place not in reading.fixed]
    ranks = {method: (-values).tolist() for method, values in importance.items()}
    orders = {method: sorted(free, key=rank.__getitem__) for method, rank in ranks.items()}
    shuffled = [
        random.Random(f"{SEED} {number} {reading.tokens}").sample(free, len(free)) for number in range(RANDOM_ORDERS)
    ]
    rows = [_without(reading.tokens, order, share) for order in [*orders.values(), *shuffled] for share in SHARES]
    scores = (reading.score(reading.inputs([reading.tokens, *rows])) / reading.length).exp().cpu()
    falls = torch.unflatten(scores[0] - scores[1:], 0, (-1, len(SHARES)))
    method_falls = dict(zip(orders, falls, strict=False))
    return method_falls | {RANDOM: falls[len(orders) :].mean(0)}


def _without(tokens: Sequence[int], order: Sequence[int], share: float) -> list[int]:
    """The tokens without the first share of an order, at least one token."""
    deleted = set(order[: max(1, round(share * len(order)))])
    return [token for place, token in enumerate(tokens) if place not in deleted]


def _readings(predictor: AnyPredictor, files: DataFiles | None, count: int) -> Iterator[Readout]:
    """The readouts of texts of the data; texts of fewer than two tokens have nothing to delete."""
    texts: Iterable[TextItem]
    match predictor:
        case ClassifyPredictor():
            texts = map(text_items.item_of_example, text_items.data_split(predictor.run, "test", files))
        case MaskedPredictor():
            texts = (_mask_word(text) for (text, *_) in open_lines(predictor.run, "test", files))
        case TranslatePredictor():
            texts = (pair[0] for pair in predictor.data_split(predictor.run, "test", files))
        case _:
            raise UserError(
                f"--deletion deletes tokens of texts that are read as a whole, and task {predictor.run.task} reads "
                "none; give a run of classify, masked or translate"
            )
    yielded = 0
    for text in texts:
        if yielded == count:
            return
        reading = None if is_empty(text) else readout(predictor, text, option="--deletion")
        if reading is not None and len(reading.tokens) - len(reading.fixed) > 1:
            yielded += 1
            yield reading


def _mask_word(text: str) -> str:
    """The text with one random word masked."""
    words = text.split()
    if not words:
        return ""
    words[random.Random(f"{SEED} {text}").randrange(len(words))] = "<mask>"
    return " ".join(words)
