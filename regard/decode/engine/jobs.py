"""Jobs: what a request asks of the model. A request is a coroutine (`async def`) that awaits jobs.

    hypotheses = await Generate(prompt, source, strategy)        # mypy knows: list[Hypothesis]

Jobs of one `group` share batches, whichever request they belong to. A job class runs its own batches, so a plugin may
add another class.
"""

from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import torch

from ...parts import Inputs
from ...processors.base import Array
from ...processors.text.tokenizers import Tokenizer
from ..search.beam import Hypothesis
from ..search.constraints import ConstraintTokenizer
from ..search.filters import Filter
from .requests import SearchRequest

R = TypeVar("R")
Raw = TypeVar("Raw")
Program: TypeAlias = Coroutine[Any, Any, R]  # a running request; it awaits only jobs
CPU_BATCH_TOKENS = 1024  # tokens of a batch on a CPU: with more, intermediate results no longer fit its caches


@dataclass(eq=False)
class ModelContext:
    """A loaded model as jobs use it."""

    model: Any
    device: torch.device
    tokenizer: Tokenizer | None = None  # of the text that the model writes
    filters: tuple[Filter, ...] = ()
    positions: int | None = None  # the most tokens that the model can read
    constraint_tokenizer: ConstraintTokenizer | None = None
    batch: int = 64  # rows of a closed batch
    variant: Callable[[Any, Hashable], Any] | None = None  # wraps the model, such as to add CTC scores


@dataclass(frozen=True, eq=False)
class Job(Generic[R]):
    """Something to compute. The reply depends on the job alone."""

    stage: ClassVar[int]  # closed batches run low stages first, so that requests gather at the high ones

    def __await__(self) -> Generator["Job[R]", R, R]:
        reply = yield self
        return reply

    @property
    def cost(self) -> int:
        """What the budget of a batch counts: tokens, frames, patches."""
        return 1

    def group(self) -> Hashable:
        """Jobs of one group can share a batch."""
        return (type(self),)

    def limits(self, context: ModelContext, batch: int) -> tuple[int, int]:
        """Padded tokens and rows of a batch; 0: any number."""
        return 0, batch

    def run(self, jobs: Sequence[Any], context: ModelContext) -> list[R]:
        """The replies to jobs of this group, in order."""
        raise NotImplementedError


AnyJob: TypeAlias = Job[Any]


@dataclass(frozen=True, eq=False)
class Gather(Job[list[R]]):
    """Several coroutines at once; their results in order. At most `limit` run at a time, so inputs may be lazy."""

    programs: Iterable[Program[R]]
    limit: int = 0  # 0: all
    stage: ClassVar[int] = 0


@dataclass(frozen=True, eq=False)
class Read(Job[R], Generic[Raw, R]):
    """Read a raw input: `read` gets many at once. A server reads in threads, so that no token waits for a file."""

    read: Callable[[Sequence[Raw]], Sequence[R]]
    raw: Raw
    stage: ClassVar[int] = 9

    def group(self) -> Hashable:
        return Read, self.read

    def limits(self, context: ModelContext, batch: int) -> tuple[int, int]:
        return 0, 0

    def run(self, jobs: Sequence["Read[Raw, R]"], context: ModelContext) -> list[R]:
        return list(self.read([job.raw for job in jobs]))


@dataclass(frozen=True, eq=False)
class ModelCall(Job[R]):
    """A function of the model that runs alone, such as one that records all attention of an input."""

    function: Callable[[Any], R]
    stage: ClassVar[int] = 4

    def group(self) -> Hashable:
        return ModelCall, id(self)

    @torch.no_grad()
    def run(self, jobs: Sequence["ModelCall[R]"], context: ModelContext) -> list[R]:
        return [job.function(context.model) for job in jobs]


@dataclass(frozen=True, eq=False)
class Generate(SearchRequest, Job[list[Hypothesis]]):
    """A search. `listener` gets the tokens as they become final."""

    encoded: bool = field(default=False, kw_only=True)  # the source is the output of `Encode`
    variant: Hashable = field(default=None, kw_only=True)
    listener: Callable[[list[int]], None] | None = field(default=None, kw_only=True)
    stage: ClassVar[int] = 5

    @property
    def cost(self) -> int:
        return self.length

    def group(self) -> Hashable:
        return Generate, self.variant, self.encoded


@dataclass(frozen=True, eq=False)
class Head(Generic[R]):
    """A forward pass with one reply per row: how rows become a batch, and what to take from the model's output."""

    collate: Callable[[list[Array]], Inputs]
    call: Callable[[Any, Inputs], Iterable[R]]  # of the model and a batch on its device
    cost: Callable[[Array], int] = len
    equal_shapes: bool = False  # True: padding would change results
    tokens: int = CPU_BATCH_TOKENS  # of a batch on a CPU; 0: any number


@dataclass(frozen=True, eq=False)
class Forward(Job[R]):
    """One pass without a search: labels, tags, boxes, embeddings."""

    head: Head[R]
    row: Array
    stage: ClassVar[int] = 6

    @property
    def cost(self) -> int:
        return self.head.cost(self.row)

    def group(self) -> Hashable:
        return Forward, id(self.head), self.row.shape if self.head.equal_shapes else None

    def limits(self, context: ModelContext, batch: int) -> tuple[int, int]:
        return (self.head.tokens if context.device.type == "cpu" else 0), batch

    @torch.no_grad()
    def run(self, jobs: Sequence["Forward[R]"], context: ModelContext) -> list[R]:
        inputs = self.head.collate([job.row for job in jobs]).to(context.device)
        return list(self.head.call(context.model, inputs))
