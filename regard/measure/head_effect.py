"""The effect of each attention head: the score of a run with one head muted, compared with all heads."""

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..adapt.heads import HeadName
from ..adapt.mute import HeadGates, HeadMeans, Means
from ..adapt.ngrams import ngrams_of
from ..config.task_settings import Metric, task_settings
from ..look.draw import Axis, draw_matrices
from ..tasks.base import Metrics, Record
from ..tasks.classify.explain import without_encoder
from ..tasks.label.baselines import without_baselines
from ..tasks.muting import private_copy
from ..tasks.predictor import AnyPredictor


@dataclass(frozen=True)
class HeadEffect:
    """The cost of muting one head: positive if the score becomes worse."""

    head: str
    zero: float  # with zeros in place of the head's output
    mean: float  # with the mean of the head's output over the data


@dataclass(frozen=True)
class EffectReport:
    """The effect of every head on the score of a run."""

    metric: str
    higher_is_better: bool
    score: float  # with all heads
    data: str
    heads: tuple[HeadEffect, ...]
    without_heads: float  # the score with all heads muted by zeros
    ngrams_alone: float | None = None  # the score of the n-grams of a classifier without its encoder; None: it has none

    def record(self) -> Record:
        return asdict(self)

    def draw(self, path: Path) -> None:
        """A picture: a row per head; darker heads cost more. Heads whose muting helps are white."""
        rows = torch.tensor([[effect.zero, effect.mean] for effect in self.heads]).clamp(min=0)
        caption = f"what muting a head costs in {self.metric}: zeros, or the mean of its output"
        names = [effect.head for effect in self.heads]
        draw_matrices(path, [{"": rows}], Axis("head", names), Axis("", ["zero", "mean"]), "effect of heads", caption)


def measure_effect(
    predictor: AnyPredictor, data: Any = None, progress: Callable[[str], None] = lambda line: None
) -> EffectReport:
    """Evaluate the run once with every head muted, by zeros and by the mean of its output over the data."""
    private = private_copy(predictor, "--effect")
    means = _mean_outputs(predictor, data)
    gates = HeadGates(private.module)
    with without_baselines():
        metric, score = _choose_metric(predictor, private.evaluate(data))
    heads = [head for site in gates.sites for head in site.heads]
    effects, started = [], time.monotonic()
    for number, head in enumerate(heads, 1):
        drops = [_drop(private, gates, head, data, metric, score, replacement) for replacement in (None, means)]
        effects.append(HeadEffect(str(head), *drops))
        remaining = (time.monotonic() - started) / number * (len(heads) - number)
        progress(f"head {head} ({number} of {len(heads)}): {metric.name} {drops[0]:+.4f}, {remaining:.0f} s left")
    source = "the test data of the run" if data is None else str(data)
    gates.mute(heads)
    alone = without_encoder(predictor) if ngrams_of(predictor.module) is not None else None
    return EffectReport(
        metric.name,
        metric.higher_is_better,
        score,
        source,
        tuple(effects),
        _score(private, data, metric),
        None if alone is None else _score(alone, data, metric),
    )


def _score(predictor: AnyPredictor, data: Any, metric: Metric) -> float:
    """The score on data that were reported by the first evaluation."""
    with without_baselines(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(predictor.evaluate(data)[metric.name])


def _drop(
    private: AnyPredictor,
    gates: HeadGates,
    head: HeadName,
    data: Any,
    metric: Metric,
    score: float,
    means: Means | None,
) -> float:
    gates.mute([head], means)
    muted = _score(private, data, metric)
    return score - muted if metric.higher_is_better else muted - score


def _mean_outputs(predictor: AnyPredictor, data: Any) -> dict[str, torch.Tensor]:
    private = private_copy(predictor, "--effect")
    means = HeadMeans(private.module)
    with without_baselines(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private.evaluate(data)
    return means.means()


def _choose_metric(predictor: AnyPredictor, metrics: Metrics) -> tuple[Metric, float]:
    """train.metric if the evaluation gives it, else the first metric of the task that it gives."""
    settings = task_settings(predictor.run.task)
    preferred = settings.metric(predictor.run.train.metric)
    for metric in (preferred, *settings.metrics):
        if metric.name in metrics:
            return metric, float(metrics[metric.name])
    raise AssertionError(f"the evaluation of {predictor.run.task} gives none of its metrics")
