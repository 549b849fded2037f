"""The interface of predictors: a model with its processors, which answers requests. `regard.load` returns one."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from ..config.run import Run
from ..config.schema import Sides
from ..data.columns import TEXT, ColumnRule, Role
from ..data.memory import evaluation_sides
from ..data.table_files import SUFFIXES
from ..errors import UserError
from ..families.protocols import as_module
from ..look import CrossAttentionView, SelfAttentionView
from ..metrics.labels import BootstrapResult
from ..processors.base import Processor
from .base import Metrics, Record
from .notices import warn_once
from .requests import Request, Result

Item = TypeVar("Item")  # what is predicted from: a text, or the words of a sentence
RequestType = TypeVar("RequestType", bound=Request)
ResultType = TypeVar("ResultType", bound=Result)
Answer: TypeAlias = Any  # a text, label, number or record, or a list of them: it follows the arguments


class Predictor(ABC, Generic[Item, RequestType, ResultType]):
    """A model with its processors. A result never depends on the other requests of a call.

    Predictors are re-entrant: threads may call all methods of one predictor at the same time.
    """

    run: Run
    model: Any  # an nn.Module with the methods that its task calls; Python cannot type both at once
    device: torch.device
    sides = 1  # of an example to score: a text, or a text and its target
    roles: tuple[Role, ...] = (TEXT,)  # the columns of its examples in a table
    table_formats: frozenset[str] = frozenset(SUFFIXES.values())  # other files are read as lines
    field: str | None = None  # of a JSON record, in which the command line finds the text
    output: str | None = None  # the field of a record that gets the answer; None: the answer is a line of its own
    prints_records = False  # True: the command line prints a JSON record for every item, also without --json
    multiline = False  # True: an item may have several lines, and so may its prediction

    # --- requests and results ------------------------------------------------------------------------------------

    @abstractmethod
    def requests(self, items: Iterable[Item], details: bool = False, **decode: object) -> list[RequestType]:
        """The requests that `predict` makes of its arguments; `decode` takes the names of decode.*."""

    @abstractmethod
    def predict_requests(self, requests: Sequence[RequestType], batch: int | None = None) -> list[ResultType]:
        """The result of every request, in order. `batch` is the number of texts per batch (decode.batch)."""

    @abstractmethod
    def record(self, request: RequestType, result: ResultType) -> Record:
        """The result as a JSON record, for `details`."""

    @abstractmethod
    def answer(self, request: RequestType, result: ResultType) -> Answer:
        """The result as `predict` returns it without details."""

    # --- what people call ----------------------------------------------------------------------------------------

    def predict(self, x: Item | Iterable[Item], details: bool = False, **decode: object) -> Answer:
        """The prediction of every item, in order; one item gives one. `details` gives records.

        `decode` takes the names of decode.*. Notices are issued as warnings, each kind once.
        """
        single = self.is_item(x)
        items: Any = [x] if single else x
        requests = self.requests(items, details, **decode)
        batch = int(float(str(decode["batch"]))) if "batch" in decode else None
        results = self.predict_requests(requests, batch)
        warn_once((notice for result in results for notice in result.notices), len(results))
        make = self.record if details else self.answer
        answers = [make(request, result) for request, result in zip(requests, results, strict=True)]
        return answers[0] if single else answers

    def is_item(self, x: object) -> bool:
        """True for one item, False for several."""
        return isinstance(x, str)

    def score(self, texts: Any, targets: Any = None, details: bool = False) -> Answer:
        """ln P(target | text), or ln P(text) of a language model; with details a record."""
        raise UserError(f"task {self.run.task} gives no probability of one text given another; use eval or predict")

    @abstractmethod
    def look(self, text: str, target: str | None = None) -> CrossAttentionView | SelfAttentionView:
        """The attention weights while the model reads `text`."""

    def evaluate(self, data: Any = None) -> Metrics:
        """Metrics over examples: files ("test.en,test.de"), or data in memory; default: the run's test split."""
        return self.evaluate_with_outputs(evaluation_sides(data))[0]

    @abstractmethod
    def evaluate_with_outputs(self, sides: Sides | None = None) -> tuple[Metrics, list[str] | None, object]:
        """The metrics of `evaluate`, the outputs (None if there are none to compare) and the references."""

    def paired_test(
        self, outputs: Sequence[Sequence[str]], references: Any, /
    ) -> tuple[dict[str, str], list[BootstrapResult]]:
        """Compare the outputs of several predictors with those of the first: signatures, and a result for each."""
        raise UserError("these runs predict no texts or labels, so there is nothing to compare; compare their metrics")

    def column_rule(self, required: int = 1) -> ColumnRule:
        """How the columns of a table are chosen; the first `required` roles must be there."""
        data = self.run.data
        asked, header = getattr(data, "columns", ()), getattr(data, "header", "auto")
        return ColumnRule(self.roles, asked, header, getattr(data, "names", ()), required)

    def input_rule(self) -> ColumnRule:
        """How the column of a table that `predict` reads is chosen."""
        return self.column_rule()

    def items(self, lines: Iterable[str]) -> Iterator[str]:
        """The items to predict from in a stream of lines."""
        return iter(lines)

    @staticmethod
    def ensemble(predictors: Mapping[str, Any]) -> "AnyPredictor":
        """An ensemble of predictors by name."""
        raise UserError(f"{' and '.join(predictors)} cannot form an ensemble; only models that generate texts can")

    @property
    @abstractmethod
    def processors(self) -> dict[str, Processor]:
        """The processors by the name of their field."""

    @property
    def module(self) -> nn.Module:
        """The model as an nn.Module."""
        return as_module(self.model)

    def refuse_adapters(self, requests: Sequence[Request]) -> None:
        """Refuse requests for an adapter: a predictor is one model."""
        for request in requests:
            if request.adapter is not None:
                raise UserError(
                    f"a request names the adapter {request.adapter!r}, but this predictor has none; load tuned runs "
                    "over their base: regard.load(base, tune={name: folder})"
                )


AnyPredictor: TypeAlias = Predictor[Any, Any, Any]


@runtime_checkable
class Streaming(Protocol):
    """A predictor that can yield its text while it is generated."""

    def stream(self, prompt: str, **decode: object) -> Iterator[str]: ...


@runtime_checkable
class FileItems(Protocol):
    """A predictor whose items are files, such as images: the command line gives it files, not lines."""

    def open_items(self, name: str) -> Iterable[tuple[str, Any]]:
        """The items in a file, a folder, an archive or a table of paths, each with its name."""

    def output_line(self, name: str, request: Any, result: Any) -> str:
        """What the command line prints for an item without --json."""


@runtime_checkable
class LineItems(Protocol):
    """A predictor of files whose items may also be texts: lines of stdin are texts, not names of files."""

    def text_item(self, line: str) -> Any:
        """A line as an item."""


@runtime_checkable
class Embedding(Protocol):
    """A predictor that gives vectors of its items."""

    def embed(self, items: Any, /, **decode: object) -> Tensor: ...

    def similar(self, queries: Any, others: Any, **decode: object) -> Answer: ...
