"""An engine over a tiny model, and requests for it."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from helpers.generation import PAD_AND_START, START, TOKENIZER, Letters, build
from torch import nn

from regard.decode import Greedy, Hypothesis, SearchRequest
from regard.decode.engine.answer import Answer, Emit
from regard.decode.engine.engine import Engine
from regard.decode.engine.jobs import Forward, Generate, Head, ModelContext, Read
from regard.parts import Inputs

R = TypeVar("R")
Start = Callable[[Emit | None], Coroutine[Any, Any, R]]


def engine_of(model: nn.Module | str = "gpt", **settings: Any) -> Engine:
    built = build(model) if isinstance(model, str) else model
    return Engine(ModelContext(built, torch.device("cpu"), Letters(), PAD_AND_START, 64, TOKENIZER), **settings)


def generate(request: SearchRequest, **more: Any) -> Generate:
    """The job of a request of the generator."""
    return Generate(**{field.name: getattr(request, field.name) for field in fields(request)}, **more)


def search(request: SearchRequest, **more: Any) -> Start[list[Hypothesis]]:
    async def program() -> list[Hypothesis]:
        return await generate(request, **more)

    return lambda emit: program()


def greedy(*tokens: int, count: int = 6, **more: Any) -> Start[list[Hypothesis]]:
    """Write exactly so many tokens after a prompt."""
    return search(SearchRequest((START, *tokens), None, Greedy(), count, min_tokens=count - 1), **more)


def read(function: Callable[[Sequence[Any]], Sequence[R]], raw: Any) -> Start[R]:
    async def program() -> R:
        return await Read(function, raw)

    return lambda emit: program()


def double(raws: Sequence[Any]) -> list[Any]:
    return [2 * raw for raw in raws]


def head_of(call: Callable[[Sequence[float]], Iterable[Any]], cost: int = 1) -> Head[Any]:
    """A pass whose reply is a function of the row; its batches have any number of tokens."""
    collate = lambda rows: Inputs("tokens", torch.tensor([[row[0]] for row in rows]))  # noqa: E731
    return Head(collate, lambda model, inputs: call(inputs.values[:, 0].tolist()), lambda row: cost, tokens=0)


def forward(head: Head[R], value: float) -> Start[R]:
    async def program() -> R:
        return await Forward(head, torch.tensor([value]).numpy())

    return lambda emit: program()


def finish(engine: Engine, answers: Iterable[Answer[Any]]) -> None:
    """Step as a server does, in this thread."""
    waiting = list(answers)
    while not all(answer.done for answer in waiting):
        engine.step()


def is_idle(engine: Engine) -> bool:
    """Nothing is left of any request."""
    stats, scheduler = engine.stats(), engine.scheduler
    if scheduler.planned or any(pool.busy for pool in [*scheduler.pools.values()]):  # a thread may be about to end
        return False
    counts = [stats[name] for name in ("waiting", "active", "queued_jobs", "rows")]
    return not any(counts) and not any(activity.open for activity, *_ in [*engine.activities.replies])


@dataclass(frozen=True, eq=False)
class FailingFilter:
    """A filter that fails in the middle of a search; `times`: so often, then it does nothing."""

    error: BaseException
    times: list[None]

    def __call__(self, scores: torch.Tensor, context: Any) -> torch.Tensor:
        if self.times:
            self.times.pop()
            raise self.error
        return scores
