"""Continuations of prompts by decoder-only models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...config.strategies import Beam, Greedy, Sample
from ...decode import Hypothesis
from ...decode.engine.answer import Emit
from ...decode.engine.jobs import Gather, Generate, ModelContext
from ...decode.search.texts import added_text, cut_at_stop, without_incomplete
from ...errors import UserError
from ...messages.texts import FinishReason, GeneratedText, LanguageRequest, LanguageResult, Usage
from ...processors.text.tokenizers import Tokenizer
from ..generate.plans import Plan
from ..generate.streams import TextStream
from ..generate.writer import token_alternatives
from ..notices import Notice, full_context, require_finite, short_memory
from .scoring import ScoreWindow
from .settings import LanguageDecode


@dataclass(eq=False)
class PromptWriter:
    """A decoder-only model that continues prompts."""

    context: ModelContext
    memory: int | None = None  # past tokens that it attends to, if it drops older ones silently; None: all

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of prompts and continuations."""
        assert self.context.tokenizer is not None
        return self.context.tokenizer

    async def write(
        self, prompt: Sequence[int], plan: Plan, request: LanguageRequest, emit: Emit | None = None
    ) -> LanguageResult:
        """The continuations of a prompt, the best first; samples in the order of sampling."""
        refuse_long(len(prompt), self.context.positions, "the prompt")
        stop, limit = plan.decode.stop, self.limit(len(prompt), plan.decode)
        stream = None if emit is None else TextStream(self.tokenizer, emit, prompt, stop)
        hypotheses = await self.search(prompt, plan, request.prompt, stream)
        texts = [self._text(prompt, hypothesis, stop, limit) for hypothesis in hypotheses]
        if stream is not None and texts:
            stream.finish(texts[0].text)
        notices = self._notices(len(prompt), texts)
        if request.details:
            pairs = zip(texts, hypotheses, strict=True)
            texts = await Gather([self._with_details(*pair, prompt, request.alternatives) for pair in pairs])
        best = texts[0] if texts else GeneratedText("")
        return LanguageResult(
            **vars(best),
            nbest=tuple(texts),
            usage=Usage(len(prompt), sum(text.length for text in texts)),
            prompt_tokens=tuple(self.tokenizer.tokens(prompt)) if request.details else (),
            notices=notices,
        )

    def limit(self, prompt: int, decode: LanguageDecode) -> int:
        """The most tokens after a prompt of `prompt` tokens; one that decode.max_length excludes is refused."""
        if 0 < decode.max_length <= prompt:
            raise UserError(
                f"the prompt has {prompt:,} tokens and decode.max_length is {decode.max_length:,}, which counts them; "
                "raise it, or set decode.max_tokens instead"
            )
        return min(decode.max_tokens, decode.max_length - prompt) if decode.max_length else decode.max_tokens

    async def search(
        self, prompt: Sequence[int], plan: Plan, key: str, stream: TextStream | None = None
    ) -> list[Hypothesis]:
        """The hypotheses for a prompt; samples depend on `key`."""
        strategy, decode, limit = plan.strategy, plan.decode, self.limit(len(prompt), plan.decode)
        assert isinstance(strategy, Greedy | Beam | Sample)
        free = stream is not None and not isinstance(strategy, Beam)
        hypotheses = await Generate(
            tuple(prompt), None, strategy, limit, repetition_penalty=decode.repetition_penalty, stop=decode.stop,
            key=key, rules=plan.rules, min_tokens=max(decode.min_tokens, decode.min_length - len(prompt)),
            listener=stream.add if stream is not None and free else None,
        )  # fmt: skip
        if not hypotheses:  # the model may be damaged: then say so
            require_finite((await ScoreWindow((*prompt, self.tokenizer.end))).logprobs)
        return hypotheses

    def _text(self, prompt: Sequence[int], hypothesis: Hypothesis, stop: Sequence[str], limit: int) -> GeneratedText:
        """A hypothesis as text: it ends before a stop string, and never inside a character."""
        tokens = hypothesis.tokens
        text, stopped = cut_at_stop(added_text(self.tokenizer.decode, prompt, tokens), stop)
        text = text if stopped else without_incomplete(text, self.tokenizer, tokens)
        cut: FinishReason = "length" if len(tokens) == limit else "context"
        finish: FinishReason = "stop" if stopped else "end" if hypothesis.ended else cut
        return GeneratedText(text, hypothesis.score, hypothesis.logprob, finish, len(tokens) + (finish == "end"))

    async def _with_details(
        self, text: GeneratedText, hypothesis: Hypothesis, prompt: Sequence[int], alternatives: int
    ) -> GeneratedText:
        """`text` with the log-probabilities of its tokens, before filters and penalties."""
        end = (self.tokenizer.end,) if text.finish == "end" else ()
        scores = await ScoreWindow((*prompt, *hypothesis.tokens, *end), len(prompt), alternatives)
        return replace(
            text,
            logprob=math.fsum(scores.logprobs),
            tokens=tuple(self.tokenizer.tokens(hypothesis.tokens)),
            logprobs=tuple(scores.logprobs),
            alternatives=token_alternatives(scores.alternatives, self.tokenizer),
        )

    def _notices(self, prompt: int, texts: Sequence[GeneratedText]) -> tuple[Notice, ...]:
        """The model may drop the beginning of a prompt, and its context may be too short for a text."""
        forgotten = (short_memory(prompt, self.memory),) if self.memory is not None and prompt > self.memory else ()
        short = sum(text.finish == "context" for text in texts)
        return forgotten + ((full_context(short, self.context.positions),) if short else ())


def refuse_long(tokens: int, context: int | None, name: str) -> None:
    """Refuse more tokens than the context of the model."""
    if context is not None and tokens > context:
        raise UserError(
            f"{name} has {tokens:,} tokens and the model's context is {context:,}; shorten it, or train with a "
            "longer context (model.positions.tokens) or with unlimited positions (model.positions=rotary)"
        )
