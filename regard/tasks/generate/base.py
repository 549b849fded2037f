"""The base of all predictors that generate text: the generator, strategies, token rules, groups of requests."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar, cast

import torch

from ...config.decode import NEUTRAL_SAMPLING, DecodeBase
from ...config.run import Run
from ...config.strategies import Beam, BestPath, DecodeStrategy, Greedy, ParallelStrategy, Sample, TokenRules
from ...decode import (
    Ensemble,
    Filter,
    Generator,
    Handle,
    Hypothesis,
    SearchRequest,
    Suppress,
    strategy_from,
)
from ...decode.search.constraints import ConstraintTokenizer
from ...errors import UserError
from ...families import family
from ...families.protocols import CausalModel, Seq2SeqModel, TokenModel
from ...messages.speech import TranscribeRequest, TranscribeResult
from ..notices import require_finite
from ..requests import (
    CaptionRequest,
    CaptionResult,
    LanguageRequest,
    LanguageResult,
    MultitaskRequest,
    MultitaskResult,
    TranslateRequest,
    TranslateResult,
)


class TextGeneration:
    """The base of the predictors of all tasks that generate text."""

    run: Run
    model: Seq2SeqModel | CausalModel | Ensemble
    device: torch.device
    filters: tuple[Filter, ...]
    constraint_tokenizer: ConstraintTokenizer  # of the generated text

    @property
    def context(self) -> int | None:
        raise NotImplementedError

    def token_model(self, settings: DecodeBase) -> TokenModel[Any]:
        """The model that the generator runs."""
        return cast(TokenModel[Any], self.model)

    def generator(self, settings: DecodeBase, rows: int, capacity: int | None = None) -> Generator:
        """A generator on this model. With `capacity`, the tokens of a row, requests may join a running batch."""
        end, model = self.constraint_tokenizer.tokenizer.end, self.token_model(settings)
        return Generator(model, end, self.filters, rows, capacity, self.context, self.constraint_tokenizer)

    def strategy(self, settings: DecodeBase) -> DecodeStrategy:
        """The strategy of decode.*; a strategy that the family does not declare is refused."""
        self.check_kind(settings)
        return strategy_from(settings)

    def check_kind(self, settings: DecodeBase) -> None:
        """Refuse a decode.kind that the family does not declare."""
        name = self.run.model.family
        if settings.kind not in (allowed := family(name).SPEC.strategies):
            problem = f"decode.kind is {settings.kind} and model.family={name} decodes by {' or '.join(allowed)}"
            raise UserError(f"{problem}; use one of these")

    @property
    def suppressed(self) -> list[int]:
        """The tokens that are never generated, for any decode.*."""
        return [token for filter in self.filters if isinstance(filter, Suppress) for token in filter.tokens.tolist()]

    def rules(self, settings: DecodeBase) -> TokenRules:
        """The token rules of decode.*; tokens outside the vocabulary are refused."""
        rules = TokenRules.of(settings)
        self.refuse_unknown_ids(rules, "decode.")
        return rules

    def refuse_unknown_ids(self, rules: TokenRules, prefix: str) -> None:
        model = self.run.model
        vocab = getattr(model, "target_vocab", 0) or model.vocab or self.constraint_tokenizer.tokenizer.size
        for name, number in rules.largest_ids().items():
            if number >= vocab:
                raise UserError(
                    f"{prefix}{name} names token {number:,} and the vocabulary has {vocab:,}; use numbers below that"
                )

    def plain_result(
        self,
        request: TranslateRequest | LanguageRequest | TranscribeRequest | CaptionRequest | MultitaskRequest,
        result: TranslateResult | LanguageResult | TranscribeResult | CaptionResult | MultitaskResult,
    ) -> str | list[str]:
        """The best text, or all of them where the strategy gives several."""
        several = number_of_texts(request.strategy, self.run.decode) > 1
        return [hypothesis.text for hypothesis in result.nbest] if several else result.text

    def run_requests(self, requests: Sequence[SearchRequest], settings: DecodeBase) -> list[list[Hypothesis]]:
        """The hypotheses of every request, best first, samples in their order."""
        generator = self.generator(settings, settings.batch)
        handles = [generator.submit(request) for request in requests]
        generator.drain()
        return [
            self.explain_empty(*pair) for pair in zip(requests, (handle.result() for handle in handles), strict=True)
        ]

    @torch.no_grad()
    def explain_empty(self, request: SearchRequest, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """The hypotheses of a request. Without any, the prompt is read again to refuse outputs that are not finite."""
        if not hypotheses:
            source = None if request.source is None else request.source.to(self.device)
            prompt = torch.tensor([request.prompt], device=self.device)
            model = cast(TokenModel[Any], self.model)
            require_finite([float(model.step(prompt, model.start(source, 1)).sum())])
        return hypotheses

    def start_stream(self, request: SearchRequest, settings: DecodeBase) -> Handle:
        """The handle of a request that runs alone, token by token."""
        capacity = len(request.prompt) + request.max_tokens
        if self.context is not None:
            capacity = min(capacity, max(self.context, len(request.prompt)) + 1)  # the last token is not read
        return self.generator(settings, request.width, capacity).submit(request)


def refuse_several(nbest: int) -> None:
    """Refuse several outputs for a stream."""
    if nbest > 1:
        raise UserError(f"decode.nbest is {nbest}; a stream has one text, use predict or decode.nbest=1")


T = TypeVar("T")


def strategy_settings(strategy: DecodeStrategy | BestPath | ParallelStrategy | None) -> dict[str, object]:
    """A strategy as decode.*; None: the settings of the run apply."""
    match strategy:
        case None:
            return {}
        case Greedy() | BestPath():
            settings: dict[str, object] = {"nbest": 1}
        case Beam(size, n):
            settings = {"beam": size, "nbest": n, "early_stopping": strategy.early_stopping}
        case Sample(temperature, top_k, top_p, min_p, n, seed):
            settings = {
                "temperature": temperature,
                "top_k": top_k,
                "top_p": top_p,
                "min_p": min_p,
                "nbest": n,
                "seed": seed,
            }
        case _:
            settings = {"nbest": 1, **asdict(strategy)}
    return {**NEUTRAL_SAMPLING, "kind": strategy.kind, "length_penalty": strategy.length_penalty, **settings}


def rule_settings(rules: TokenRules | None, section: type[DecodeBase]) -> dict[str, object]:
    """Rules as decode.*; None: the settings of the run apply."""
    fields = section.model_fields
    return {name: value for name, value in asdict(rules).items() if name in fields or value} if rules else {}


def number_of_texts(strategy: DecodeStrategy | BestPath | ParallelStrategy | None, settings: DecodeBase) -> int:
    """The number of texts that a strategy gives; None: the strategy of the run."""
    if strategy is None:
        return settings.nbest
    return strategy.n if isinstance(strategy, Beam | Sample) else 1


def group_indices(items: Sequence[T], key: Callable[[T], Hashable]) -> list[list[int]]:
    """The indices of items with equal keys, in the order of their first item."""
    groups: dict[Hashable, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(key(item), []).append(index)
    return list(groups.values())
