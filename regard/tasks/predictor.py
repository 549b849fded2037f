"""The interface of predictors: a model with its processors, which answers requests. `regard.load` returns one."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from ..config.data.base import DataFiles
from ..config.measured import Measurements, read_measured
from ..config.run import Run
from ..data.sources.data_files import evaluation_files
from ..data.sources.media import RawValue
from ..data.tables.columns import TEXT
from ..decode.engine.activity import Start
from ..decode.engine.answer import Answer, Emit
from ..decode.engine.engine import Engine
from ..decode.engine.jobs import ModelContext, Program
from ..errors import UserError
from ..families.protocols import as_module
from ..files import format_output
from ..html import html_table
from ..look import AttentionView, Which
from ..look.states import Layers, hidden_states
from ..messages.base import Request, Result, to_json
from ..messages.media import Item as RequestItem
from ..messages.media import Media
from ..messages.verbs import LayerAttention, LookRequest, LookResult, ScoreRequest, ScoreResult
from ..metrics.labels import BootstrapResult
from ..parts import Inputs
from ..processors.base import Processor
from .base import Metrics
from .notices import warn_once
from .reading import ItemReader, reader_of
from .saving import save_predictor

Item = TypeVar("Item")  # the input of a prediction: a text, or the words of a sentence
RequestType = TypeVar("RequestType", bound=Request)
ResultType = TypeVar("ResultType", bound=Result)
PlainResult: TypeAlias = Any  # a text, label, number or record, or a list of them, depending on the arguments

R = TypeVar("R")
Q = TypeVar("Q", bound=Request)
A = TypeVar("A", bound=Result)
Coroutines: TypeAlias = Callable[[Q, Emit | None], Program[A]]  # the coroutine that answers a request

ENGINE_LOCK = Lock()


class Predictor(ABC, Generic[Item, RequestType, ResultType]):
    """A model with its processors. A result never depends on the other requests of a call.

    Predictors are re-entrant: threads may call all methods of one predictor at the same time.
    """

    request_type: ClassVar[type[Request]]  # what `answer` takes and gives
    result_type: ClassVar[type[Result]]
    run: Run
    model: Any  # an nn.Module with the methods that its task calls; Python cannot type both at once
    device: torch.device
    is_ensemble = False  # True: several models answer together
    folder_of_run: Path | None = None  # the run folder that it was loaded from
    window = 1 << 16  # requests whose inputs are in memory at once
    _engine: Engine | None = None  # with the first request

    @cached_property
    def measured(self) -> Measurements:
        """What the training has measured for predictions."""
        return Measurements() if self.folder_of_run is None else read_measured(self.folder_of_run)

    # --- requests and results ------------------------------------------------------------------------------------

    @abstractmethod
    def requests(self, items: Iterable[Item], details: bool = False, **decode: object) -> list[RequestType]:
        """The requests for the arguments of `predict`; `decode` takes the names of decode.*."""

    @abstractmethod
    async def answer(self, request: RequestType, emit: Emit | None = None) -> ResultType:
        """The result of a request: a coroutine that awaits jobs of the engine. `emit` gets parts of it as they come."""

    async def view(self, item: Any, target: str | None = None, layer: Which = None) -> AttentionView:
        """The coroutine behind `look`."""
        raise NotImplementedError

    def look_item(self, item: RequestItem) -> RawValue | Media | RequestItem:
        """The item of `view` in a request; one that the model does not read is refused."""
        return item.value_as(str)

    async def answer_look(self, request: LookRequest, emit: Emit | None = None) -> LookResult:
        """The attention of an item."""
        return look_result(await self.view(self.look_item(request.item), request.target, request.layer))

    async def answer_score(self, request: ScoreRequest, emit: Emit | None = None) -> ScoreResult:
        """The probability of a known target."""
        raise UserError(f"task {self.run.task} gives no probability of one text given another; use eval or predict")

    def predict_requests(self, requests: Sequence[RequestType], batch: int | None = None) -> list[ResultType]:
        """The result of every request, in order. `batch` is the number of items per batch (decode.batch)."""
        return self.run_all(self.answer, requests, batch)

    def predict_each(
        self, requests: Sequence[RequestType], batch: int | None = None
    ) -> list[ResultType | BaseException]:
        """The result of every request, in order, or its error: an invalid request does not affect the others."""
        answers = self.engine.run((self.start(self.answer, request) for request in requests), batch=batch)
        return [answer.result() if answer.error is None else answer.error for answer in answers]

    def submit(self, request: RequestType, seconds: float | None = None) -> Answer[ResultType]:
        """Start a request; it is canceled after `seconds`. Iterate the answer for its parts, or wait for its result."""
        return self.engine.submit(self.start(self.answer, request), seconds=seconds)

    def run_all(self, answer: Coroutines[Q, A], requests: Iterable[Q], batch: int | None = None) -> list[A]:
        """The results of coroutines for requests, in order; the first mistake ends all of them."""
        starts = (self.start(answer, request) for request in requests)
        return [done.result() for done in self.engine.run(starts, fail_fast=True, batch=batch)]

    def run_programs(self, programs: Iterable[Program[R]], batch: int | None = None) -> list[R]:
        """The results of coroutines, in order; the first mistake ends all of them."""
        starts = (lambda emit, program=program: program for program in programs)
        return [done.result() for done in self.engine.run(starts, fail_fast=True, batch=batch)]

    def start(self, answer: Coroutines[Q, A], request: Q) -> Start[A]:
        """What begins the coroutine of a request."""
        return partial(begin, answer, request)

    @property
    def engine(self) -> Engine:
        """The engine, which lives as long as the predictor; all threads share it."""
        with ENGINE_LOCK:
            if self._engine is None:
                self._engine = Engine(self.context_of_model(), window=self.window)
            return self._engine

    def context_of_model(self) -> ModelContext:
        """The model and its limits, as the jobs of the engine use them."""
        return ModelContext(self.model, self.device, batch=getattr(self.run.decode, "batch", 1))

    @abstractmethod
    def plain_result(self, request: RequestType, result: ResultType) -> PlainResult:
        """The result as `predict` returns it without details."""

    # --- public methods ------------------------------------------------------------------------------------------

    def predict(self, x: Item | Iterable[Item], details: bool = False, **decode: object) -> PlainResult:
        """The prediction of every item, in order; one item gives one. `details` gives records.

        `decode` takes the names of decode.*. Notices are issued as warnings, one per topic.
        """
        single = self.is_item(x)
        items: Any = [x] if single else x
        requests = self.requests(items, details, **decode)
        batch = int(float(str(decode["batch"]))) if "batch" in decode else None
        results = self.predict_requests(requests, batch)
        warn_once((notice for result in results for notice in result.notices), len(results))
        pairs = zip(requests, results, strict=True)
        outputs = [to_json(result) if details else self.plain_result(request, result) for request, result in pairs]
        return outputs[0] if single else outputs

    def is_item(self, x: object) -> bool:
        """True for one item, False for several."""
        return isinstance(x, str)

    def score(self, items: Any, targets: Any = None, details: bool = False) -> PlainResult:
        """ln P(target | item), or ln P(text) of a language model; with details a record with its tokens."""
        requests, single = self.score_requests(items, targets)
        if details:
            requests = [replace(request, details=True) for request in requests]
        results = self.run_all(self.answer_score, requests)
        warn_once((notice for result in results for notice in result.notices), len(results))
        values: list[Any] = [to_json(result) if details else result.score for result in results]
        return values[0] if single else values

    def score_requests(self, items: Any, targets: Any) -> tuple[list[ScoreRequest], bool]:
        """The requests for the arguments of `score`, and whether there is one item, not a list."""
        raise UserError(f"task {self.run.task} gives no probability of one text given another; use eval or predict")

    def look(self, item: Any, target: str | None = None, layer: Which = None) -> AttentionView:
        """The attention weights while the model reads an item, and writes `target` or its own output.

        `layer` records one layer alone, from 1.
        """
        return self.run_programs([self.view(item, target, layer)])[0]

    def with_model(self, model: nn.Module) -> Self:
        """A copy of this predictor with another model, and an engine of its own."""
        other = copy.copy(self)
        for name in [*vars(other)]:  # they may depend on the model
            if isinstance(getattr(type(self), name, None), cached_property):
                del other.__dict__[name]
        other.model, other._engine = model, None
        return other

    def muted(self, heads: str) -> Self:
        """A predictor over the same weights in which these attention heads give zeros, such as "3.2,encoder.4.*"."""
        from .muting import muted

        return muted(self, heads)

    def norm_weighted(self) -> Self:
        """A predictor over the same weights whose `look` shows norm-weighted attention (2004.10102)."""
        from .muting import norm_weighted

        return norm_weighted(self)

    def states(self, x: Item | Iterable[Item], layers: Layers = None) -> Any:
        """The hidden states of every item, one per token, frame or patch: (layers, tokens, width), in float32.

        `layers` is a number, which gives (tokens, width), or several: 0 is the input of the first layer, -1 the last,
        which has passed the final norm. Models that write texts give the states of their encoder.
        """
        return states_of(self, x, layers)

    def state_inputs(self, items: Iterable[Item]) -> list[Inputs]:
        """The model inputs of every item, as batches of one."""
        raise UserError(f"task {self.run.task} gives no hidden states; use look.states.record_states around its model")

    def read_inputs(self, inputs: Inputs) -> object:
        """Run the model over a batch of `state_inputs`."""
        return self.model.encode(inputs)

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write a complete run folder, which must not exist, or be empty. A tuned run keeps only its tuned parts."""
        return save_predictor(self, folder)

    def describe(self) -> dict[str, str | int]:
        """A readable summary: task, family, size, parameters, processors, device and folder."""
        return facts_of(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {summary(self.describe())}>"

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self.describe())

    def evaluate(self, data: Any = None) -> Metrics:
        """Metrics over examples: files ("test.en,test.de"), or data in memory; default: the run's test split."""
        return self.evaluate_with_outputs(evaluation_files(data))[0]

    @abstractmethod
    def evaluate_with_outputs(self, files: DataFiles | None = None) -> tuple[Metrics, list[str] | None, object]:
        """The metrics of `evaluate`, the outputs (None if there are none to compare) and the references."""

    def paired_test(
        self, outputs: Sequence[Sequence[str]], references: Any, /
    ) -> tuple[dict[str, str], list[BootstrapResult]]:
        """Compare the outputs of several predictors with those of the first: signatures, and a result for each."""
        raise UserError("these runs predict no texts or labels, so there is nothing to compare; compare their metrics")

    @property
    def item_reader(self) -> ItemReader:
        """How files and stdin become items."""
        return reader_of(self.run, TEXT)

    def format_line(self, name: str, request: RequestType, result: ResultType) -> str:
        """The line that the command line prints for an item; `name` is that of an item in a file."""
        return format_output(self.plain_result(request, result))

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


AnyPredictor: TypeAlias = Predictor[Any, Any, Any]


@runtime_checkable
class Streaming(Protocol):
    """A predictor that can yield its text while it is generated."""

    def stream(self, prompt: str, **decode: object) -> Iterator[str]:
        """Yield the text in parts."""


@runtime_checkable
class Embedding(Protocol):
    """A predictor that gives vectors of its items."""

    def embed(self, items: Any, /, **decode: object) -> Tensor:
        """A vector for every item."""

    def similar(self, queries: Any, others: Any, **decode: object) -> PlainResult:
        """The most similar others for every query."""


def begin(answer: Coroutines[Q, A], request: Q, emit: Emit | None) -> Program[A]:
    """The coroutine of a request of a predictor with one model."""
    if (adapter := request.adapter) is not None:
        raise UserError(
            f"a request names the adapter {adapter!r}, but this predictor has none; load tuned runs "
            "over their base: regard.load(base, tune={name: folder})"
        )
    return answer(request, emit)


def states_of(predictor: AnyPredictor, x: object, layers: Layers) -> Tensor | list[Tensor]:
    """The hidden states of one item, or of each of several."""
    single = predictor.is_item(x)
    items: Any = [x] if single else x
    if predictor.is_ensemble:
        raise UserError("an ensemble has the hidden states of several models; load one of them")
    inputs = [item.to(predictor.device) for item in predictor.state_inputs(items)]
    states = hidden_states(inputs, predictor.read_inputs, layers, predictor.run.decode.batch)
    return states[0] if single else states


def facts_of(predictor: AnyPredictor) -> dict[str, str | int]:
    """What is worth knowing about a predictor."""
    run, count = predictor.run, sum(parameter.numel() for parameter in predictor.module.parameters())
    model = f"{run.model.family} {getattr(run.model, 'size', '')}".rstrip()
    facts: dict[str, str | int] = {"task": run.task, "model": model, "parameters": count}
    facts |= {field: processor.kind for field, processor in predictor.processors.items()}
    facts |= {"device": str(predictor.device), "precision": run.precision}
    return facts | ({} if predictor.folder_of_run is None else {"folder": str(predictor.folder_of_run)})


def summary(facts: Mapping[str, str | int]) -> str:
    """The facts about a predictor on one line."""
    place = f", {facts['folder']}" if "folder" in facts else ""
    return f"{facts['model']}, {facts['parameters']:,} parameters, {facts['device']}{place}"


def look_result(view: AttentionView) -> LookResult:
    """A view of attention as a result."""
    layers = []
    for site in view.maps:
        heads = tuple(tuple(map(tuple, head)) for head in site.weights.tolist())
        layers.append(LayerAttention(site.kind, site.layer, site.queries.name, site.keys.name, heads))
    axes = {name: tuple(axis.labels) for name, axis in view.axes.items()}
    return LookResult(axes, tuple(layers), view.logprobs, view.decision)
