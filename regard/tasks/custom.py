"""The parts of a training that a user gives as Python objects: a loss, metrics, a tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..config.run import Run
from ..errors import UserError
from ..processors.base import Processor
from ..processors.text.processor import TextProcessor
from ..processors.text.tokenizers import Tokenizer
from ..training.custom import (
    CustomMetric,
    FunctionObjective,
    LossFunction,
    check_custom,
    custom_settings,
    measure_examples,
)
from .base import TrainingJob


@dataclass(frozen=True)
class CustomParts:
    """The Python objects that `regard.train` takes besides settings."""

    loss: LossFunction | None = None
    metrics: Mapping[str, CustomMetric] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None

    @property
    def settings(self) -> dict[str, str | tuple[str, ...]]:
        """The settings that record the functions in run.json, by dotted key."""
        return custom_settings(self.loss, self.metrics)

    @property
    def processors(self) -> dict[str, Processor]:
        """The tokenizer as the processor of every field of text."""
        if self.tokenizer is None:
            return {}
        shared = TextProcessor(self.tokenizer)
        return {"text": shared, "source": shared, "target": shared}

    def check(self, run: Run) -> None:
        """Refuse parts that the run cannot use, and a run that needs a part that is missing."""
        check_custom(run.train, self.loss, self.metrics)
        if self.tokenizer is not None and run.start:
            raise UserError(f"tokenizer= is given, but start={run.start} brings its own; leave one of them out")

    def apply(self, job: TrainingJob) -> None:
        """Let the job use the loss and the metrics."""
        if self.loss is not None:
            job.objective = FunctionObjective(job.model, self.loss)
        if not self.metrics:
            return
        if "valid" not in job.splits:
            raise UserError(
                f"metrics= gives {', '.join(self.metrics)}, but there are no validation data; set data.valid or "
                "data.holdout"
            )
        built_in, examples = job.validate, job.splits["valid"]

        def validate() -> dict[str, float]:
            return built_in() | measure_examples(self.metrics, job.predictor.predict, list(examples))  # type: ignore[call-overload]

        job.validate = validate  # type: ignore[method-assign]


NO_CUSTOM_PARTS = CustomParts()
