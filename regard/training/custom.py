"""Custom losses and metrics: functions of the user."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from ..config.registry import describe_error
from ..config.train import Train
from ..data.batch import Batch
from ..errors import UserError
from ..files import Json
from .callbacks import CustomCodeError, name_of
from .objective import LossSum, Objective

LossFunction: TypeAlias = Callable[[Any, Batch], Tensor | LossSum]
MetricFunction: TypeAlias = Callable[..., float]


class FailedMetric(CustomCodeError):
    """A custom metric failed. Only the first of several processes evaluates, so only it raises this error."""


@dataclass(frozen=True)
class CustomMetric:
    """A custom metric with its direction, by which train.metric selects the best weights."""

    function: MetricFunction
    higher_is_better: bool = True

    def __call__(self, name: str, *arguments: Any) -> float:
        """The value of the metric `name`; an error if it is not a number. The loop reports NaN."""
        try:
            return float(self.function(*arguments))
        except Exception as error:
            raise FailedMetric(f"the metric {name} failed ({describe_error(error)}); correct it and resume") from error


Metrics: TypeAlias = Mapping[str, MetricFunction | CustomMetric]


def as_metrics(metrics: Metrics | None) -> dict[str, CustomMetric]:
    """Metrics by name; for a plain function, higher is better."""
    converted = {}
    for name, metric in (metrics or {}).items():
        if not isinstance(name, str) or not name.isidentifier():
            raise UserError(f"the metric name {name!r} is not a name; expected one such as error_rate")
        if not callable(metric):
            raise UserError(
                f"the metric {name} is a {type(metric).__name__}; expected a function that returns a number"
            )
        converted[name] = metric if isinstance(metric, CustomMetric) else CustomMetric(metric)
    return converted


def custom_settings(loss: LossFunction | None, metrics: Mapping[str, CustomMetric]) -> dict[str, str | tuple[str, ...]]:
    """The settings that record the custom functions of a run, by dotted key."""
    names = tuple(name if metric.higher_is_better else f"-{name}" for name, metric in metrics.items())
    return ({"train.own_loss": name_of(loss)} if loss else {}) | ({"train.own_metrics": names} if names else {})


def check_custom(train: Train, loss: LossFunction | None, metrics: Mapping[str, CustomMetric]) -> None:
    """Refuse a run without its custom functions, for example when the command line resumes it."""
    settings = custom_settings(loss, metrics)
    for key, argument in (("own_loss", "loss"), ("own_metrics", "metrics")):
        expected, actual = getattr(train, key), settings.get(f"train.{key}") or type(getattr(train, key))()
        if expected != actual:
            raise UserError(
                f"this run has train.{key}={expected!r}, but {argument}= gives {actual or 'none'}; give the same "
                f"functions in Python: regard.train(…, {argument}=…)"
            )


class FunctionObjective(Objective):
    """A custom loss function. It returns the loss summed over the `batch.count` predictions."""

    def __init__(self, model: nn.Module, function: LossFunction) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, batch: Batch) -> LossSum:
        name = name_of(self.function)
        try:
            loss = self.function(self.model, batch)
        except Exception as error:
            raise CustomCodeError(f"the loss {name} failed ({describe_error(error)}); correct it and resume") from error
        return as_loss(loss, 1, f"the loss {name}")


def as_loss(loss: object, count: int, what: str) -> LossSum:
    """Convert a loss that user code returned: a LossSum, or a scalar, which is multiplied by `count`."""
    if isinstance(loss, LossSum):
        return loss
    if not isinstance(loss, Tensor) or loss.dim():
        shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise CustomCodeError(f"{what} returns {shape}; expected one number as a tensor, or a LossSum")
    return LossSum(loss * count if count != 1 else loss)


def measure_examples(
    metrics: Mapping[str, CustomMetric], predict: Callable[[Sequence[Any]], Any], examples: Sequence[Any]
) -> dict[str, float]:
    """Metrics of references and predictions, in the order of scikit-learn."""
    if not metrics:
        return {}
    pairs = [tuple(example) if isinstance(example, tuple | list) else (example,) for example in examples]
    if any(len(pair) != 2 for pair in pairs):
        raise UserError(
            f"metrics= needs examples with an input and a reference, and this task has none; measure in a callback: "
            f"{', '.join(metrics)}"
        )
    predictions, references = predict([pair[0] for pair in pairs]), [pair[1] for pair in pairs]
    return {name: metric(name, references, predictions) for name, metric in metrics.items()}


def nonfinite_metrics(metrics: Mapping[str, Json]) -> list[str]:
    """The names of metrics that are NaN or infinite."""
    return [name for name, value in metrics.items() if isinstance(value, float) and not math.isfinite(value)]
