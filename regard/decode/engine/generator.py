"""The generator: the searches of one model that writes token by token.

`submit` a request and get its handle. `closed_batches` runs all waiting requests in batches with equal settings, for
offline prediction. `tick` runs an open batch (continuous batching), for streaming and serving: requests join and leave
it while others run. Results are the same either way, and never depend on other requests; neither do failures.

Only one thread may use a generator; the engine has a lock.
"""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

from ...data.loading.sampler import sorted_batches
from ...errors import UserError
from ...families.protocols import TokenModel
from ..search.beam import Hypothesis
from ..search.constraints import Constraints, ConstraintTokenizer
from ..search.filters import Filter
from ..search.texts import added_text
from .closed_batch import run_search
from .open_batch import OpenBatch
from .prefill import LongPrompt, Prefill, groups_by_length
from .requests import Finish, SearchRequest, SettingsBuilder, pad_prompts

MAX_OVERTAKES = 32  # requests that may pass one that waits for more rows; then rows are kept free for it
PREFILL_BUDGET = (
    4096  # the most tokens, frames or patches of prompts and sources that one step reads; one may be longer
)


class Handle:
    """A submitted request."""

    def __init__(self, generator: "Generator", request: SearchRequest, limit: int) -> None:
        self.request, self.limit = request, limit  # `limit`: the most tokens after the prompt
        self.tokens: list[int] = []  # of the best hypothesis so far, without END
        self.done = False
        self.finish: Finish | None = None  # why it ended; None also if no token was possible
        self.hypotheses: list[Hypothesis] = []
        self.error: BaseException | None = None
        self.owner: object = None  # set by the scheduler
        self.sent = 0  # tokens that the listener has
        self._generator = generator
        self._listener: Callable[[list[int]], None] | None = getattr(request, "listener", None)

    def result(self) -> list[Hypothesis]:
        """Run all requests; return the hypotheses of this one, best first (samples in order), none after `cancel`."""
        if not self.done:
            self._generator.drain()
        if self.error is not None:
            raise self.error
        return self.hypotheses

    def complete(self, hypotheses: list[Hypothesis]) -> None:
        """Called by the generator at the end."""
        self.hypotheses, self.tokens = hypotheses, hypotheses[0].tokens if hypotheses else self.tokens
        self.finish = self._generator.finish_of(self.request, hypotheses[0]) if hypotheses else None
        self.done = True

    def fail(self, error: BaseException) -> None:
        """Called by the generator when this request failed."""
        self.error, self.done = error, True

    def cancel(self) -> None:
        """Cancel the request."""
        self._generator.cancel(self)

    def notify(self) -> None:
        """Give new tokens to the listener. A listener that fails ends its request."""
        if self._listener is None or self.sent >= len(self.tokens):
            return
        new, self.sent = self.tokens[self.sent :], len(self.tokens)
        try:
            self._listener(new)
        except Exception as error:
            self.cancel()
            self.fail(error)


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
        self._overtakes = 0  # requests that have passed the first waiting one
        softmax = not getattr(model, "returns_scores", False)
        self._model, self._builder = model, SettingsBuilder(end, filters, tokenizer, softmax)
        self._prefill = Prefill(model, context)
        self._waiting: deque[Handle] = deque()
        self._batch = self._new_batch()
        self._long: tuple[Handle, LongPrompt] | None = None  # its prompt is read in parts
        self._step_seconds = 0.0  # the time of the last step of the open batch

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
        self._waiting.append(handle)
        return handle

    def cancel(self, handle: Handle) -> None:
        """End a request without a result. A finished request keeps its result."""
        if handle.done:
            return
        if handle in self._waiting:
            self._waiting.remove(handle)
        elif self._long is not None and self._long[0] is handle:
            self._long = None
        else:
            self._batch.remove(handle)
        handle.done, handle.finish = True, "canceled"

    @torch.no_grad()
    def tick(self) -> list[Handle]:
        """Admit requests into the open batch and generate one token for each of its rows; return finished requests."""
        entering = self._next_handles()
        handles = [*self._running, *entering]
        try:
            self._advance(entering)
            for handle in handles:
                handle.notify()
        except BaseException:  # an interrupt in the middle of a step: begin again
            self._batch, self._long = self._new_batch(), None
            for handle in reversed(handles):
                handle.done, handle.tokens = False, []
                self._waiting.appendleft(handle)
            raise
        return [handle for handle in handles if handle.done]

    def drain(self) -> None:
        """Run until all requests are done, in the open batch if there is one."""
        while self.capacity is not None and self.busy:
            self.tick()
        for _ in self.closed_batches():
            pass

    def closed_batches(self) -> Iterator[list[Handle]]:
        """Run all waiting requests in batches with equal settings; yield each batch when it is done."""
        waiting = list(self._waiting)
        self._waiting.clear()
        groups: dict[Hashable, list[Handle]] = {}
        for handle in waiting:
            groups.setdefault(handle.request.agreement(), []).append(handle)
        try:
            for handles in groups.values():
                for indices in sorted_batches([handle.request.length for handle in handles], rows=self.rows):
                    batch = [handles[i] for i in indices if not handles[i].done]
                    if batch:
                        self._run_halves(batch)
                        yield batch
        finally:  # after an interrupt the others wait again
            self._waiting.extendleft(handle for handle in reversed(waiting) if not handle.done)

    @property
    def busy(self) -> bool:
        """True while requests wait or run in the open batch."""
        return bool(self._waiting or self._long or self._batch.searches)

    @property
    def running_rows(self) -> int:
        """The rows of the open batch that are in use, or will be when a prompt is read."""
        return len(self._batch.used) + self._reserved

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

    def _advance(self, entering: list[Handle]) -> None:
        """A step of the open batch. If it fails, its requests run alone: the others get the same tokens as before."""
        handles = [*self._running, *entering]
        try:
            self._read_part()
            requests = [handle.request for handle in entering]
            for group in groups_by_length(requests):
                room = self._batch.prefill_room(max(len(requests[i].prompt) for i in group))
                read = self._prefill.read([requests[i] for i in group], room)
                self._batch.admit([entering[i] for i in group], *read)
            begin = time.perf_counter()
            self._batch.advance()
            self._step_seconds = time.perf_counter() - begin
        except Exception:
            self._batch, self._long = self._new_batch(), None
            for handle in handles:
                handle.done = False
                self._run_halves([handle])

    def _read_part(self) -> None:
        """Read a part of the long prompt; after the last one its request enters the batch."""
        if self._long is None:
            return
        handle, prompt = self._long
        if (logits := prompt.read_part(self._step_seconds if self._batch.searches else 0.0)) is not None:
            self._long = None
            self._batch.admit([handle], prompt.cache, logits)

    @property
    def _running(self) -> list[Handle]:
        """The requests in the open batch, and the one whose prompt is read."""
        return [*self._batch.handles, *([] if self._long is None else [self._long[0]])]

    @property
    def _reserved(self) -> int:
        """Rows that the request will need whose prompt is read."""
        return 0 if self._long is None else self._long[0].request.width

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
        """Requests to admit, in order of arrival, within the budget of a prefill.

        Narrow requests pass one that needs more rows than are free, but not more than MAX_OVERTAKES times. Long prompts
        are read one at a time, in parts; others pass them.
        """
        self._begin_long()
        handles: list[Handle] = []
        free, budget = self._batch.free - self._reserved, PREFILL_BUDGET
        waiting = [handle for handle in self._waiting if not self._is_long(handle)] if free else []
        for handle in waiting:
            first, cost = handle is waiting[0], handle.request.length + len(handle.request.prompt)
            if not first and self._overtakes >= MAX_OVERTAKES:
                break
            if handle.request.width > free:
                continue
            if handles and (cost > budget or source_tensor_kind(handles[0]) != source_tensor_kind(handle)):
                break
            self._overtakes = 0 if first else self._overtakes + 1
            handles.append(handle)
            self._waiting.remove(handle)
            free, budget = free - handle.request.width, budget - cost
        return handles

    def _begin_long(self) -> None:
        """Choose the next long prompt to read if there are rows for it."""
        long = next(filter(self._is_long, self._waiting), None)
        if self._long is None and long is not None and long.request.width <= self._batch.free:
            self._waiting.remove(long)
            room = self._batch.prefill_room(len(long.request.prompt))
            self._long = long, LongPrompt(self._prefill, long.request, room)

    def _is_long(self, handle: Handle) -> bool:
        """True for a prompt that is read in parts; beside a source, which is read at once, it is not."""
        return handle.request.source is None and len(handle.request.prompt) > self._prefill.part

    def _run_halves(self, handles: list[Handle]) -> None:
        """A closed batch. If it fails, its halves run: in the end one request fails, and no other."""
        try:
            self._run_closed(handles)
        except Exception as error:
            if len(handles) == 1:
                handles[0].fail(error)
                return
            middle = len(handles) // 2
            self._run_halves(handles[:middle])
            self._run_halves(handles[middle:])

    def _new_batch(self) -> OpenBatch:
        fixed = self._prefill.device.type == "cuda"
        return OpenBatch(self._model, self.rows, self.capacity or 0, self._builder, fixed)

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
