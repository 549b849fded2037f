"""The generator: one engine for every model that writes token by token.

`submit` a request and get its handle. `drain` runs all waiting requests in closed batches with equal settings, for
offline prediction. `step` runs an open batch (continuous batching), for streaming and serving: requests join and leave
it while others run. Results are the same either way, and never depend on other requests.

A lock guards the generator: one thread may use handles while another calls `step`.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor

from ...data.loading.sampler import sorted_batches
from ...errors import UserError
from ...families.protocols import TokenModel
from ...progress import track
from ..search.beam import Hypothesis, OpenCache
from ..search.constraints import Constraints, ConstraintTokenizer
from ..search.filters import Filter
from ..search.texts import added_text
from .closed_batch import run_search
from .open_batch import OpenBatch, Prefill
from .requests import Finish, SearchRequest, SettingsBuilder, pad_prompts


class Handle:
    """A submitted request. Iterating it yields the tokens of its best hypothesis, streamed if there is only one."""

    def __init__(self, generator: "Generator", request: SearchRequest, limit: int) -> None:
        self.request, self.limit = request, limit  # `limit`: the most tokens after the prompt
        self.tokens: list[int] = []  # of the best hypothesis so far, without END
        self.done = False
        self.finish: Finish | None = None  # why it ended; None also if no token was possible
        self._generator = generator
        self._error: BaseException | None = None
        self._found: list[Hypothesis] = []

    def __iter__(self) -> Iterator[int]:
        sent, done = 0, False
        while not done:
            with self._generator.lock:
                if sent == len(self.tokens) and not self.done:
                    self._step()
                new, done = self.tokens[sent:], self.done
            yield from new
            sent += len(new)
        self._raise_error()

    def result(self) -> list[Hypothesis]:
        """Step until done; return the hypotheses, best first (samples in their order), none after `cancel`."""
        while not self.done:
            with self._generator.lock:  # only for a step: other threads may submit and cancel meanwhile
                if not self.done:
                    self._step()
        self._raise_error()
        return self._found

    def complete(self, hypotheses: list[Hypothesis]) -> None:
        """Called by the generator at the end."""
        self._found, self.tokens = hypotheses, hypotheses[0].tokens if hypotheses else self.tokens
        self.finish = self._generator.finish_of(self.request, hypotheses[0]) if hypotheses else None
        self.done = True

    def fail(self, error: BaseException) -> None:
        """Called by the generator when the model failed."""
        self._error, self.done = error, True

    def cancel(self) -> None:
        """Cancel the request."""
        self._generator.cancel(self)

    def _step(self) -> None:
        """Step the generator. Failures of other requests are left to their handles."""
        failures = self._generator.failures
        try:
            self._generator.step()
        except Exception:
            if self.done or self._generator.failures == failures:
                raise

    def _raise_error(self) -> None:
        if self._error is not None:
            raise RuntimeError(f"the generator failed: {self._error}") from self._error


class Generator:
    """Runs requests on one model or ensemble."""

    def __init__(
        self,
        model: TokenModel[Any],
        end: int,
        filters: tuple[Filter, ...] = (),
        rows: int = 64,
        capacity: int | None = None,
        context: int | None = None,
        tokenizer: ConstraintTokenizer | None = None,
    ) -> None:
        """`rows`: requests of a closed batch, and rows of the open batch, one per hypothesis.

        `capacity`: tokens of a row of the open batch, including the prompt; None: there are only closed batches.
        `context`: the most tokens that the model can read. `tokenizer` is needed for stop strings and constraints.
        """
        self.rows, self.capacity, self.context = rows, capacity, context
        self.lock, self.failures = FairLock(), 0  # `failures`: requests that failed so far
        softmax = not getattr(model, "returns_scores", False)
        self._model, self._builder = model, SettingsBuilder(end, filters, tokenizer, softmax)
        self._prefill = Prefill(model, context)
        self._waiting: deque[Handle] = deque()
        self._batch = self._new_batch()

    def submit(self, request: SearchRequest) -> Handle:
        """Queue a request. It must fit into the open batch, if there is one."""
        limit = request.max_tokens
        if self.context is not None:  # the model never reads the last token
            limit = min(limit, self.context + 1 - len(request.prompt))
            if limit < 1:
                tokens = len(request.prompt)
                raise UserError(
                    f"the prompt has {tokens:,} tokens and the model's context is {self.context:,}; shorten it"
                )
        if self.capacity is not None:
            self._refuse_above_capacity(request, limit)
        if request.stop or request.constraints != Constraints(request.constraints.prefix):
            self._builder.required_tokenizer()
        handle = Handle(self, request, limit)
        with self.lock:
            self._waiting.append(handle)
        return handle

    def cancel(self, handle: Handle) -> None:
        """End a request without a result. A finished request keeps its result."""
        with self.lock:
            if handle.done:
                return
            if handle in self._waiting:
                self._waiting.remove(handle)
            else:
                self._batch.remove(handle)
            handle.done, handle.finish = True, "canceled"

    def step(self) -> None:
        """Admit requests into the open batch and generate one token for each of its rows. Without one: drain."""
        if self.capacity is None:
            return self.drain()
        with self.lock, torch.no_grad():
            entering = self._next_handles()
            read = self._read_prompts(entering)
            try:
                if read is not None:
                    self._batch.admit(entering, *read)
                self._batch.advance()
            except BaseException as error:
                self._fail([*entering, *self._batch.handles], error)
                self._batch = self._new_batch()
                raise

    def drain(self) -> None:
        """Run until all requests are done."""
        with self.lock:
            if not self._batch.searches:
                try:
                    self._run_closed_batches()
                except BaseException as error:
                    self._fail(self._waiting, error)
                    raise
                finally:
                    self._waiting.clear()
            while self._waiting or self._batch.searches:
                self.step()

    # --- internals ---------------------------------------------------------------------------------------------

    def finish_of(self, request: SearchRequest, hypothesis: Hypothesis) -> Finish:
        """Why a hypothesis ended."""
        if hypothesis.ended:
            return "end"
        if request.stop:
            text = added_text(self._builder.decode, request.prompt, hypothesis.tokens)
            if any(string in text for string in request.stop):
                return "stop"
        return "length" if len(hypothesis.tokens) >= request.max_tokens else "context"

    def _refuse_above_capacity(self, request: SearchRequest, limit: int) -> None:
        assert self.capacity is not None
        if request.width > self.rows:
            raise UserError(
                f"the request needs {request.width} rows and the generator has {self.rows}; ask for fewer hypotheses"
            )
        if (tokens := len(request.prompt) + limit) > self.capacity:
            raise UserError(
                f"the request needs {tokens:,} tokens, {len(request.prompt):,} of them for its prompt, and the "
                f"generator has {self.capacity:,} per row; shorten the prompt or lower max_tokens"
            )

    def _next_handles(self) -> list[Handle]:
        """Requests to admit, in order of arrival. A request that needs more rows than are free blocks later ones."""
        handles: list[Handle] = []
        free = self._batch.free
        while self._waiting and self._waiting[0].request.width <= free:
            if handles and source_tensor_kind(handles[0]) != source_tensor_kind(self._waiting[0]):
                break
            handles.append(self._waiting.popleft())
            free -= handles[-1].request.width
        return handles

    def _read_prompts(self, handles: list[Handle]) -> tuple[OpenCache, Tensor] | None:
        """The cache of these requests and the logits of their first tokens. A failure does not affect running ones."""
        if not handles:
            return None
        room = self._batch.prefill_room(max(len(handle.request.prompt) for handle in handles))
        try:
            return self._prefill.read([handle.request for handle in handles], room)
        except BaseException as error:
            self._fail(handles, error)
            raise

    def _fail(self, handles: Iterable[Handle], error: BaseException) -> None:
        for handle in handles:
            if not handle.done:
                handle.fail(error)
                self.failures += 1

    def _new_batch(self) -> OpenBatch:
        fixed = self._prefill.device.type == "cuda"
        return OpenBatch(self._model, self.rows, self.capacity or 0, self._builder, fixed)

    def _run_closed_batches(self) -> None:
        groups: dict[Hashable, list[Handle]] = {}
        for handle in self._waiting:
            groups.setdefault(handle.request.agreement(), []).append(handle)
        batches = (
            [handles[i] for i in indices]
            for handles in groups.values()
            for indices in sorted_batches([handle.request.length for handle in handles], rows=self.rows)
        )
        for batch in track(batches, "texts written", len(self._waiting), len):
            self._run_closed(batch)

    def _run_closed(self, handles: list[Handle]) -> None:
        requests, device = [handle.request for handle in handles], self._prefill.device
        settings = self._builder(requests, device)
        limits = [handle.limit for handle in handles]
        with torch.no_grad():
            cache = self._prefill.growing_or_fixed(requests, max(limits))
        prompt, valid = pad_prompts([request.prompt for request in requests], device)
        results = run_search(self._model, cache, prompt, torch.tensor(limits, device=device), settings, valid)
        for handle, best in zip(handles, results, strict=True):
            handle.complete(best)


def source_tensor_kind(handle: Handle) -> str | None:
    """The tensor kind of a request's source."""
    return None if handle.request.source is None else handle.request.source.modality


class FairLock:
    """A reentrant lock. A waiting thread comes before the one that has just released it."""

    def __init__(self) -> None:
        self._turn, self._lock = Lock(), Lock()  # the thread that is next holds `_turn`
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        if self._owner != get_ident():
            with self._turn:
                self._lock.acquire()
            self._owner = get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()
