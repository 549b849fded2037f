"""Writing the text for one input: search, and search again while phrases are missing or forbidden.

One coroutine serves every task with a source. Which modality it reads is an argument.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ...config.strategies import Beam
from ...decode import Hypothesis
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Gather, Generate, ModelCall, ModelContext, Read
from ...decode.engine.passes import Encode, Score, TokenTrace, Trace
from ...decode.search.constraints import MAX_SEARCHES, Constraints
from ...decode.search.texts import without_incomplete
from ...errors import UserError
from ...families.protocols import as_module
from ...look import AttentionView, ViewAxis, Which, record_layers
from ...messages.media import Media
from ...messages.texts import FinishReason, GeneratedText, TextRequest, TokenLogprob, Usage
from ...messages.verbs import ScoreRequest, ScoreResult
from ...modalities.base import END, EncodedInput, Modality, Raw, target_axes, trace_view
from ..notices import missing_phrase, require_finite
from ..texts import as_text
from .plans import Plan
from .streams import TextStream

VALIDATION_DECODE: Mapping[str, Any] = {"strategy": {"kind": "greedy"}, "include": ()}
"""Validation decodes greedily, whatever decode.* the run has."""


@dataclass(frozen=True, eq=False)
class WrittenTexts:
    """The texts for an input, the best first."""

    source: EncodedInput
    texts: list[GeneratedText]
    usage: Usage


@dataclass(eq=False)
class TextWriter:
    """A model that writes token by token, with what its texts need.

    `score` and `trace` are the passes over known targets; families that write all tokens at once have their own.
    """

    context: ModelContext
    family: str = ""
    pad: int = 0  # of sources of tokens
    noun: str = "a text"  # what it writes, for messages
    validation_decode: ClassVar[Mapping[str, Any]] = VALIDATION_DECODE
    sequential: ClassVar[bool] = True  # it writes token by token
    score: ClassVar[type[Score]] = Score
    trace: ClassVar[type[Trace]] = Trace

    @property
    def target(self) -> Any:
        """The tokenizer of the output."""
        return self.context.tokenizer

    async def write(
        self,
        modality: Modality[Raw],
        raw: Raw | Media,
        plan: Plan,
        request: TextRequest,
        emit: Emit | None = None,
        prompt: tuple[int, ...] = (),
        variant: Any = None,
    ) -> WrittenTexts:
        """The texts for one input. `prompt`: tokens after START; `variant`: the wrapper that the strategy needs."""
        source: EncodedInput = await Read(modality.read, raw)
        start = (self.target.start, *prompt)
        stream = None if emit is None else TextStream(self.target, emit)
        hypotheses, limit = await self._search(source, plan, start, stream, variant)
        texts = [self.text(hypothesis, plan.constraints, limit) for hypothesis in hypotheses]
        if request.details:
            traces = await self._traces(modality, source, start, hypotheses, request.alternatives)
            triples = zip(texts, hypotheses, traces, strict=True)
            texts = [self._with_details(*triple, modality, source) for triple in triples]
        if stream is not None and texts:
            stream.finish(texts[0].text)
        usage = Usage(modality.cost(source.array), sum(text.length for text in texts))
        return WrittenTexts(source, texts, usage)

    async def search(self, source: EncodedInput, plan: Plan, prompt: tuple[int, ...] = ()) -> list[Hypothesis]:
        """The hypotheses for an input, with the tokens of their prefixes."""
        hypotheses, _ = await self._search(source, plan, (self.target.start, *prompt), None, None)
        return hypotheses

    async def _search(
        self, source: EncodedInput, plan: Plan, start: tuple[int, ...], stream: TextStream | None, variant: Any
    ) -> tuple[list[Hypothesis], int]:
        """The hypotheses for an input, and the most tokens that they could have after their prefix."""
        asked = constraints = plan.constraints
        free = stream is not None and not isinstance(plan.strategy, Beam) and not (asked.include or asked.exclude)
        if stream is not None and free:
            stream.add(asked.prefix)
        limit = self.limit(source.max_tokens, plan)
        for search in range(MAX_SEARCHES + 1):
            hypotheses = await Generate(
                (*start, *constraints.prefix), source.inputs, plan.strategy, limit,  # type: ignore[arg-type]
                repetition_penalty=plan.decode.repetition_penalty, constraints=constraints, key=source.key,
                rules=plan.rules, min_tokens=plan.decode.min_tokens, variant=variant,
                listener=stream.add if stream is not None and free else None,
            )  # fmt: skip
            require_finite([one.score for one in hypotheses])
            if not hypotheses:
                await self._require_finite(source, start)
            if asked.prefix:
                hypotheses = [replace(one, tokens=[*asked.prefix, *one.tokens]) for one in hypotheses]
            if not (constraints.include or constraints.exclude):
                break
            tokenizer = self.context.constraint_tokenizer
            assert tokenizer is not None
            revised = tokenizer.revise(constraints, [one.tokens for one in hypotheses])
            if revised is None:
                break
            if search == MAX_SEARCHES:  # an excluded phrase is worse than no text
                texts = self.target.decode([one.tokens for one in hypotheses])
                pairs = zip(hypotheses, texts, strict=True)
                hypotheses = [one for one, text in pairs if revised.allows(text)]
            constraints = revised
        return hypotheses, limit

    def limit(self, tokens: int, plan: Plan) -> int:
        """The most tokens of a text after its prefix; `tokens` by the length of its source."""
        constraints, decode = plan.constraints, plan.decode
        limit: int = decode.max_tokens or max(tokens + constraints.min_tokens, decode.min_tokens + 1)
        context = self.context.positions
        return limit if context is None else min(limit, context - 1 - len(constraints.prefix))  # START

    def text(self, hypothesis: Hypothesis, constraints: Constraints, limit: int) -> GeneratedText:
        """A hypothesis as text. Bytes that only begin a character, where a limit cut it, are left out."""
        (decoded,) = self.target.decode([hypothesis.tokens])
        text, prefix = without_incomplete(decoded, self.target, hypothesis.tokens), len(constraints.prefix)
        length = len(hypothesis.tokens) - prefix
        finish: FinishReason = "end" if hypothesis.ended else "length" if length >= limit else "context"
        return GeneratedText(
            text, hypothesis.score, hypothesis.logprob, finish, length + hypothesis.ended, prefix,
            tuple(constraints.missing(text)),
        )  # fmt: skip

    # --- known texts -------------------------------------------------------------------------------------------

    async def score_text(
        self, modality: Modality[Any], request: ScoreRequest, prompt: tuple[int, ...] = ()
    ) -> ScoreResult:
        """ln P(target | input), END included."""
        tokens, logprobs = await self.logprobs(modality, modality.value_of(request.item), str(request.target), prompt)
        require_finite(logprobs)
        if not request.details:
            return ScoreResult(sum(logprobs))
        return ScoreResult(sum(logprobs), (*self.target.tokens(tokens), END), tuple(logprobs))

    async def logprobs(
        self, modality: Modality[Raw], raw: Raw | Media, target: str, prompt: tuple[int, ...] = ()
    ) -> tuple[list[int], list[float]]:
        """The tokens of a known text, and the log-probabilities of them and of END, which may be NaN."""
        source: EncodedInput = await Read(modality.read, raw)
        tokens: list[int] = await Read(self.target.encode, target)
        self.refuse_long(len(prompt) + len(tokens) + 1)
        return tokens, await self.score(source.inputs, (self.target.start, *prompt), tuple(tokens))

    async def score_tokens(self, modality: Modality[Raw], source: Sequence[int], target: Sequence[int]) -> list[float]:
        """The log-probability of every token of a known target and of END, for the tokens of a source."""
        inputs = modality.collate([np.asarray(source, np.int32)])
        for tokens in (source, (*target, self.target.end)):
            self.refuse_long(len(tokens))
        return await self.score(replace(inputs, valid=None), (self.target.start,), tuple(target))

    async def trace_view(self, modality: Modality[Raw], raw: Raw | Media, tokens: Sequence[int]) -> AttentionView:
        """The cross-attention while the model writes known tokens."""
        source: EncodedInput = await Read(modality.read, raw)
        self.refuse_long(len(tokens) + 1)
        trace = await self.trace(source.inputs, (self.target.start,), tuple(tokens))
        axis = modality.axis(source, self.context.model, len(trace.states))
        return modality.aligned(trace_view(axis, trace, tokens, self.target))

    def refuse_long(self, tokens: int, name: str = "") -> None:
        """Refuse more tokens of a target, END included, than the model reads."""
        if (context := self.context.positions) is not None and tokens > context:
            raise UserError(
                f"{name or self.noun} has {tokens:,} tokens with END and the model has {context:,} positions; shorten "
                "it, or train with more (model.positions.tokens)"
            )

    async def look(
        self,
        modality: Modality[Raw],
        raw: Raw | Media,
        plan: Plan,
        target: str | None = None,
        layer: Which = None,
        title: str = "",
        prompt: tuple[int, ...] = (),
    ) -> AttentionView:
        """The attention weights while the model reads an input and writes `target`, or its own output."""
        source = modality.look_input(raw)
        if target is not None:
            (tokens,) = self.target.encode([as_text(target, "target")])
        else:
            hypotheses = await self.search(source, plan, prompt)
            tokens = hypotheses[0].tokens if hypotheses else []
        return await self.view(modality, source, tokens, layer, title, prompt)

    async def view(
        self,
        modality: Modality[Raw],
        source: EncodedInput,
        tokens: Sequence[int],
        layer: Which = None,
        title: str = "",
        prompt: tuple[int, ...] = (),
    ) -> AttentionView:
        """The attention weights while the model reads an input and writes these tokens."""
        self.refuse_long(len(prompt) + len(tokens) + 1)
        job = self.score(source.inputs, (self.target.start, *prompt), tuple(tokens))

        def record(model: Any) -> AttentionView:
            shown = model.members[0]
            with record_layers(as_module(shown), layer) as recorder:
                (row,), encoded = job.read([job], self.context)
            maps = recorder.layers()  # rows of the decoder before START predict the prompt itself
            maps = [(site, weights[:, len(prompt) :] if site.kind == "cross" else weights) for site, weights in maps]
            axis = modality.axis(source, shown, encoded.states.size(1))
            axes = {"source": axis, **self.target_axes(source, tokens, job.prompt)}
            view = AttentionView.of(maps, axes, recorder.counts, title, row.logprobs)
            return modality.aligned(replace(view, left_out=recorder.left_out))

        call: ModelCall[AttentionView] = ModelCall(record)
        return await call

    def target_axes(self, source: EncodedInput, tokens: Sequence[int], prompt: Sequence[int]) -> dict[str, ViewAxis]:
        """The axes of what the decoder writes and reads."""
        return target_axes(self.target, tokens, prompt)

    # --- a second pass -----------------------------------------------------------------------------------------

    async def _traces(
        self,
        modality: Modality[Raw],
        source: EncodedInput,
        start: tuple[int, ...],
        hypotheses: Sequence[Hypothesis],
        alternatives: int,
    ) -> list[TokenTrace]:
        """Log-probabilities and attention of finished texts."""
        inputs = await Encode(source.inputs) if modality.keeps_encoded and hypotheses else source.inputs

        async def trace(tokens: Sequence[int]) -> TokenTrace:
            encoded = modality.keeps_encoded
            return await self.trace(inputs, start, tuple(tokens), encoded=encoded, alternatives=alternatives)

        return await Gather([trace(one.tokens) for one in hypotheses])

    def _with_details(
        self,
        text: GeneratedText,
        hypothesis: Hypothesis,
        trace: TokenTrace,
        modality: Modality[Raw],
        source: EncodedInput,
    ) -> GeneratedText:
        tokens, count = hypothesis.tokens, len(hypothesis.tokens) + hypothesis.ended
        return replace(
            text,
            tokens=tuple(self.target.tokens(tokens)),
            logprobs=tuple(trace.logprobs[:count]),
            alternatives=token_alternatives(trace.alternatives[:count], self.target),
            alignment=modality.align(source, trace, text.text, tokens, self.target, self.context.model),
        )

    async def _require_finite(self, source: EncodedInput, start: tuple[int, ...]) -> None:
        """A model without any hypothesis may be damaged: then say so. The first step may still be finite."""
        context = self.context.positions
        known = start[-1:] if context is None or len(start) < context else ()
        require_finite(await self.score(source.inputs, start, known))


def token_alternatives(
    places: Sequence[Sequence[tuple[int, float]]], tokenizer: Any
) -> tuple[tuple[TokenLogprob, ...], ...]:
    """The likeliest tokens at every place; empty if none were asked for."""
    if not any(places):
        return ()
    return tuple(
        tuple(TokenLogprob(tokenizer.tokens([token])[0], logprob) for token, logprob in place) for place in places
    )


def text_fields(texts: Sequence[GeneratedText], plan: Plan, details: bool) -> dict[str, Any]:
    """The fields of a result with these texts, the best first."""
    best = texts[0] if texts else GeneratedText("", missing=tuple(plan.constraints.missing("")))
    lacking = best.missing and not details  # details list them
    return {**vars(best), "nbest": tuple(texts), "notices": (missing_phrase(best.missing[0]),) if lacking else ()}
