"""The settings of the training loop: limits, schedules, optimizers, precision, checkpoints."""

from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeAlias

from pydantic import Field, SerializeAsAny, field_validator, model_validator
from typing_extensions import TypeVar

from .types import Base as Base
from .types import Count as Count
from .types import Positive as Positive
from .types import Share as Share
from .types import Strings as Strings


class Noam(Base):
    """The rate falls with the inverse square root of the step."""

    kind: Literal["noam"] = "noam"


class Cosine(Base):
    """The rate falls along a cosine to the floor at the last step."""

    kind: Literal["cosine"] = "cosine"
    floor: Share = 0.0  # fraction of the peak


class Linear(Base):
    """The rate falls linearly to the floor at the last step."""

    kind: Literal["linear"] = "linear"
    floor: Share = 0.0  # fraction of the peak


class Constant(Base):
    """The rate stays at its peak."""

    kind: Literal["constant"] = "constant"


class WarmupStableDecay(Base):
    """Warm-up, constant, linear decay."""

    kind: Literal["wsd"] = "wsd"
    decay: Annotated[float, Field(gt=0, le=1)] = 0.2  # fraction of the steps


LayerDecay: TypeAlias = Annotated[float, Field(gt=0, le=1)]
"""The rate of a layer is that of the layer above times this; 1: all layers have the same rate."""


class Adam(Base):
    """Adam, with the constants of "Attention is all you need"."""

    kind: Literal["adam"] = "adam"
    betas: tuple[Share, Share] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-9
    decay: Annotated[float, Field(ge=0)] = 0.0
    layer_decay: LayerDecay = 1.0


class AdamW(Base):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"] = "adamw"
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    decay: Annotated[float, Field(ge=0)] = 0.01
    layer_decay: LayerDecay = 1.0


Schedule: TypeAlias = Annotated[Noam | Cosine | Linear | Constant | WarmupStableDecay, Field(discriminator="kind")]


Optimizer: TypeAlias = Annotated[Adam | AdamW, Field(discriminator="kind")]


class ObjectiveValues(NamedTuple):
    """Settings of an objective that are not validated yet, and their type, which depends on the task and the family."""

    type: type[Base]
    values: Any


L = TypeVar("L", bound=Base, default=Any, covariant=True)


class Train(Base, Generic[L]):
    """Settings of the training loop."""

    steps: Count = 0  # steps, epochs, minutes: the first reached ends the training; one given replaces a recipe's
    epochs: Count = 0
    minutes: Annotated[float, Field(ge=0)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    lr: Annotated[float, Field(gt=0)] = 5e-4  # the peak
    warmup: Count = 400
    schedule: Schedule = Noam()
    optimizer: Optimizer = Adam()
    tokens: Positive = 4096  # tokens per step over all micro-batches, without padding
    batch: Count = 0  # examples (windows of long sentences) per step; if not 0, overrides tokens
    accumulate: Positive = 1  # micro-batches per step
    precision: Literal["fp32", "bf16"] = "fp32"
    clip: Annotated[float, Field(ge=0)] = 1.0  # gradient norm; 0: off
    average: Count = 0  # average of the last checkpoints, tried at the end; 0: off
    ema: Share = 0.0  # decay of a moving average of the weights, which is evaluated and saved; 0: off
    compile: bool = False
    deterministic: bool = False
    save_every: Positive = 500
    keep: Positive = 3
    eval_every: Positive = 500
    metric: str = "loss"  # chooses the best weights; one of the metrics of the task
    patience: Count = 0  # evaluations without improvement before stopping; 0: never stop early
    log_every: Positive = 20
    tensorboard: bool = True
    freeze: Strings = ()  # patterns of parameters that are not trained, such as encoder.layers.0.*
    rates: Strings = ()  # factors of the learning rate, such as encoder.*:0.1
    objective: SerializeAsAny[L] = Field(default_factory=dict, validate_default=True)  # terms of the loss
    own_loss: str = ""  # the name of the Python function that computes the loss; regard.train(loss=…) sets it
    own_metrics: Strings = ()  # names of metrics that Python functions compute; -name: lower is better

    @field_validator("objective", mode="before")
    @classmethod
    def _check_objective(cls, value: Any) -> Any:
        return value.type.model_validate(value.values) if isinstance(value, ObjectiveValues) else value

    @model_validator(mode="after")
    def _check_schedule(self) -> "Train":
        if self.schedule.kind in ("cosine", "linear", "wsd") and not (self.steps or self.epochs or self.minutes):
            raise ValueError(
                f"train.schedule={self.schedule.kind} decays until the training ends, which it does not; set "
                "train.steps, train.epochs or train.minutes, or use noam or constant"
            )
        return self
