"""Compares predictors on the same data."""

from collections.abc import Iterable
from typing import Any

from ..config.data.base import DataFiles
from ..errors import UserError
from ..files import JsonObject
from ..metrics.text import check_same_signatures
from ..tasks.predictor import AnyPredictor


def compare_predictors(predictors: Iterable[tuple[str, AnyPredictor]], files: DataFiles | None) -> JsonObject:
    """Metrics of predictors by name; if they write texts or labels, also a paired bootstrap against the first."""
    systems, tasks = list[JsonObject](), list[str]()
    outputs: list[Any] = []  # (predictions, references) of each
    for name, predictor in predictors:
        metrics, *output = predictor.evaluate_with_outputs(files)
        tasks.append(predictor.run.task)
        systems.append({"run": name, **metrics})
        outputs.append(output)
        if output[1] != outputs[0][1]:
            first = systems[0]["run"]
            if tasks[0] != tasks[-1]:
                raise UserError(
                    f"{first} has task {tasks[0]} and {name} has task {tasks[-1]}; compare runs of one task"
                )
            raise UserError(
                f"{first} and {name} have different test data; set one for all with --data, read in one way "
                "(data.document, data.format)"
            )
    if outputs[0][0] is None:  # no texts were written: only metrics can be compared
        return {"systems": systems}
    check_same_signatures(systems)
    signatures, results = predictor.paired_test([predictions for predictions, _ in outputs], outputs[0][1])
    compared = [system | {"bootstrap": result} for system, result in zip(systems, results, strict=True)]
    return {"systems": compared, "signatures": signatures}
