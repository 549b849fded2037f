"""From requests to settings: a plan is decode.* of the run with the changes of a request."""

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ...config.decode import NEUTRAL_SAMPLING, DecodeBase
from ...config.run import Run, changed_decode
from ...config.strategies import (
    Beam,
    BestPath,
    DecodeStrategy,
    Greedy,
    ParallelStrategy,
    Sample,
    TokenRules,
    parallel_strategy_from,
    strategy_from,
)
from ...decode.search.constraints import Constraints, ConstraintTokenizer, parse_constraints
from ...errors import UserError
from ...families import family
from ...messages.texts import TargetRequest, TextRequest

MAX_PLANS = 256  # that are remembered
AnyStrategy = DecodeStrategy | ParallelStrategy | BestPath
SEARCHED = {"greedy", "beam", "sample"}


@dataclass(frozen=True, eq=False)
class Plan:
    """How a text is written."""

    decode: Any  # the decode.* of the task
    strategy: AnyStrategy
    rules: TokenRules
    constraints: Constraints = Constraints()


class Planner:
    """Makes the plans of requests. Requests with equal settings share a plan, which is checked once."""

    def __init__(self, run: Run, tokenizer: ConstraintTokenizer, context: int | None = None) -> None:
        """`tokenizer` is that of the output; `context` the most tokens of an output with its prefix."""
        self.run, self.tokenizer, self.context = run, tokenizer, context
        self._plans: dict[tuple[object, ...], Plan] = {}

    def __call__(self, request: TextRequest, **replaced: object) -> Plan:
        """The plan of a request, with other values for some of its fields."""
        values = {name: getattr(request, name) for name in self.names(type(request))} | replaced
        key = tuple(tuple(value) if isinstance(value, list) else value for value in values.values())
        if (plan := self._plans.get(key)) is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._new_plan(values)
        return plan

    def names(self, request: type[TextRequest]) -> list[str]:
        """The fields of a request that are decode.*, and those that stand for several."""
        known = {*type(self.run.decode).model_fields, "strategy", "rules"}
        return [field.name for field in dataclasses.fields(request) if field.name in known]

    def fields(
        self, request: type[TextRequest], count: int, details: bool, decode: Mapping[str, object]
    ) -> list[dict[str, Any]]:
        """The fields of `count` requests for the arguments of `predict`.

        `prefix`, `include` and `exclude` may be lists with one entry per item.
        `alternatives` may stand beside decode.*.
        """
        settings = {name: value for name, value in decode.items() if name != "alternatives"}
        shared: dict[str, Any] = {"details": details, "alternatives": int(str(decode.get("alternatives", 0)))}
        if not settings:
            return [shared] * count
        if not issubclass(request, TargetRequest):
            return [shared | self.settings(request, changed_decode(self.run, settings))] * count
        constraints, changed = parse_constraints(count, settings, partial(changed_decode, self.run))
        shared |= self.settings(request, changed)
        return [shared | constraint._asdict() for constraint in constraints]

    def settings(self, request: type[TextRequest], decode: Any) -> dict[str, Any]:
        """The fields of requests with these decode.*."""
        named = {name: getattr(decode, name) for name in self.names(request) if name not in ("strategy", "rules")}
        return {**named, "strategy": self.strategy(decode), "rules": self.rules(decode)}

    def _new_plan(self, values: Mapping[str, Any]) -> Plan:
        changes = {name: value for name, value in values.items() if value is not None}
        strategy, rules = changes.pop("strategy", None), changes.pop("rules", None)
        changes |= strategy_settings(strategy) | rule_settings(rules, type(self.run.decode))
        return self.of(changed_decode(self.run, changes))

    def of(self, decode: DecodeBase) -> Plan:
        """The plan of these decode.*."""
        return Plan(decode, self.strategy(decode), self.rules(decode), self._constraints(decode))

    def strategy(self, decode: DecodeBase) -> AnyStrategy:
        """The strategy of decode.*; one that the family does not declare is refused."""
        name, kind = self.run.model.family, str(decode.kind)
        if kind == "ctc":
            return BestPath(decode.length_penalty)
        if kind not in (allowed := family(name).SPEC.strategies):
            problem = f"decode.kind is {kind} and model.family={name} decodes by {' or '.join(allowed)}"
            raise UserError(f"{problem}; use one of these")
        return strategy_from(decode) if kind in SEARCHED else parallel_strategy_from(decode)  # type: ignore[arg-type]

    def rules(self, decode: DecodeBase) -> TokenRules:
        """The token rules of decode.*; tokens outside the vocabulary are refused."""
        rules, model = TokenRules.of(decode), self.run.model
        vocab = getattr(model, "target_vocab", 0) or model.vocab or self.tokenizer.tokenizer.size
        for name, number in rules.largest_ids().items():
            if number >= vocab:
                raise UserError(
                    f"decode.{name} names token {number:,} and the vocabulary has {vocab:,}; use numbers below that"
                )
        return rules

    def _constraints(self, decode: Any) -> Constraints:
        values = vars(decode)
        prefix: str = values.get("prefix", "")
        include, exclude = values.get("include", ()), values.get("exclude", ())
        if not (prefix or include or exclude):
            return Constraints()
        constraints = self.tokenizer.encode(prefix, include, exclude)
        if self.context is not None and (longest := len(constraints.prefix) + 2) > self.context:
            raise UserError(
                f"decode.prefix with one more token has {longest:,} tokens with END and the model has "
                f"{self.context:,} positions; shorten it, or train with more (model.positions.tokens)"
            )
        needed = constraints.min_tokens
        if constraints.include and 0 < decode.max_tokens <= needed:
            raise UserError(
                f"decode.include takes {needed} tokens and END, and decode.max_tokens is {decode.max_tokens}; "
                f"raise it to {needed + 1} or more"
            )
        return constraints


def strategy_settings(strategy: AnyStrategy | None) -> dict[str, object]:
    """A strategy as decode.*; None: the settings of the run apply."""
    match strategy:
        case None:
            return {}
        case Greedy() | BestPath():
            settings: dict[str, object] = {"nbest": 1}
        case Beam(size, n):
            settings = {"beam": size, "nbest": n, "early_stopping": strategy.early_stopping}
        case Sample(temperature, top_k, top_p, min_p, n, seed):
            shape = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
            settings = {**shape, "nbest": n, "seed": seed}
        case _:
            settings = {"nbest": 1, **asdict(strategy)}
    return {**NEUTRAL_SAMPLING, "kind": strategy.kind, "length_penalty": strategy.length_penalty, **settings}


def rule_settings(rules: TokenRules | None, section: type[DecodeBase]) -> dict[str, object]:
    """Rules as decode.*; None: the settings of the run apply."""
    known = section.model_fields
    return {name: value for name, value in asdict(rules).items() if name in known or value} if rules else {}


def number_of_texts(strategy: AnyStrategy | None, decode: DecodeBase) -> int:
    """The number of texts that a strategy gives; None: the strategy of the run."""
    if strategy is None:
        return decode.nbest
    return strategy.n if isinstance(strategy, Beam | Sample) else 1
