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
    betas: tuple[Share, Share] = (0.9, 0.98)  # decay rates of the mean and the variance of the gradients
    eps: Annotated[float, Field(gt=0)] = 1e-9  # added to the square root of that variance
    decay: Annotated[float, Field(ge=0)] = 0.0  # weight decay
    layer_decay: LayerDecay = 1.0  # the rate of a layer is that of the layer above times this


class AdamW(Base):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"] = "adamw"
    betas: tuple[Share, Share] = (0.9, 0.999)  # decay rates of the mean and the variance of the gradients
    eps: Annotated[float, Field(gt=0)] = 1e-8  # added to the square root of that variance
    decay: Annotated[float, Field(ge=0)] = 0.01  # weight decay, which is not scaled by the gradients
    layer_decay: LayerDecay = 1.0  # the rate of a layer is that of the layer above times this


Schedule: TypeAlias = Annotated[Noam | Cosine | Linear | Constant | WarmupStableDecay, Field(discriminator="kind")]


Optimizer: TypeAlias = Annotated[Adam | AdamW, Field(discriminator="kind")]


class ObjectiveValues(NamedTuple):
    """Settings of an objective that are not validated yet, and their type, which depends on the task and the family."""

    type: type[Base]
    values: Any


L = TypeVar("L", bound=Base, default=Any, covariant=True)


class Train(Base, Generic[L]):
    """Settings of the training loop."""

    steps: Count = 0  # the first reached of steps, epochs and minutes ends a training; 0: no limit. A given one
    # replaces a recipe's
    epochs: Count = 0  # passes over the training data, at most; 0: no limit
    minutes: Annotated[float, Field(ge=0)] = 0.0  # duration, at most; 0: no limit
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1  # equal seeds give equal runs
    lr: Annotated[float, Field(gt=0)] = 5e-4  # peak learning rate
    warmup: Count = 400  # steps until the peak
    schedule: Schedule = Noam()  # how the learning rate changes after the warm-up
    optimizer: Optimizer = Adam()  # how gradients change the weights
    tokens: Positive = 4096  # tokens per step over all micro-batches: the sum of the longer sides, without padding
    batch: Count = 0  # examples (windows of long sentences) per step; if not 0, overrides tokens
    accumulate: Positive = 1  # micro-batches per step: less memory, same result
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: faster on newer GPUs
    clip: Annotated[float, Field(ge=0)] = 1.0  # maximum gradient norm; 0: off
    average: Count = 0  # average this many last checkpoints at the end; used if better on data.valid; 0: off
    ema: Share = 0.0  # decay of a moving average of the weights, which is evaluated and saved; 0: off
    compile: bool = False  # torch.compile: slower start, faster on a GPU
    deterministic: bool = False  # bitwise reproducible on a GPU too
    save_every: Positive = 500  # steps between checkpoints
    keep: Positive = 3  # number of checkpoints to keep
    eval_every: Positive = 500  # steps between evaluations on data.valid
    metric: str = "loss"  # chooses the best weights; one of the metrics of the task
    patience: Count = 0  # evaluations without improvement before stopping; 0: never stop early
    log_every: Positive = 20  # steps between records in metrics.jsonl
    tensorboard: bool = True  # also write TensorBoard logs
    freeze: Strings = ()  # patterns of parameters that are not trained, such as encoder.layers.0.*; `--dry` lists the
    # names
    rates: Strings = ()  # factors of the learning rate by pattern, such as encoder.*:0.1; later entries win
    objective: SerializeAsAny[L] = Field(default_factory=dict, validate_default=True)  # terms of the loss
    own_loss: str = ""  # the name of the loss function that Python gave (regard.train(loss=…)); not set by hand
    own_metrics: Strings = ()  # the names of the metrics that Python gave; -name: lower is better; not set by hand

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
