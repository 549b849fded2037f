"""From requests to settings: a plan is decode.* of the run with the changes of a request."""

import dataclasses
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

from ...config.decode import WritingDecode
from ...config.renamed import moved_key
from ...config.run import Run, changed_decode, section_keys
from ...config.strategies import AnyStrategy, OutputRules, TokenRules, with_one_text
from ...config.types import Base
from ...decode.search.constraints import Constraints, ConstraintTokenizer, parse_constraints
from ...errors import UserError
from ...messages.texts import TextRequest

MAX_PLANS = 256  # that are remembered


@dataclass(frozen=True, eq=False)
class Plan:
    """How a text is written."""

    decode: Any  # the decode.* of the task
    rules: TokenRules = TokenRules()
    constraints: Constraints = Constraints()

    @property
    def strategy(self) -> AnyStrategy:
        """How tokens are chosen."""
        strategy: AnyStrategy = self.decode.strategy
        return strategy


class Planner:
    """Makes the plans of requests. Requests with equal settings share a plan, which is checked once."""

    def __init__(self, run: Run, tokenizer: ConstraintTokenizer, context: int | None = None) -> None:
        """`tokenizer` is that of the output; `context` the most tokens of an output with its prefix."""
        self.run, self.tokenizer, self.context = run, tokenizer, context
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._keys: dict[type[TextRequest], dict[str, str]] = {}

    def __call__(self, request: TextRequest, **replaced: object) -> Plan:
        """The plan of a request, with other values for some of its fields."""
        values = {name: getattr(request, name) for name in (*self.keys(type(request)), "strategy", "rules")} | replaced
        key = tuple(tuple(value) if isinstance(value, list) else value for value in values.values())
        if (plan := self._plans.get(key)) is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._new_plan(self.keys(type(request)), values)
        return plan

    def after_prefix(self, request: TextRequest) -> Plan:
        """The plan of a part of a request that does not begin its text: the prefix has been written."""
        return self(request, prefix="") if "decode.prefix" in self.known else self(request)

    @cached_property
    def known(self) -> Container[str]:
        """The keys of decode.*."""
        section: type[Base] = type(self.run.decode)
        return section_keys(section, "decode")

    def keys(self, request: type[TextRequest]) -> dict[str, str]:
        """The keys below decode.* of the fields of a request, apart from `strategy` and `rules`."""
        if request not in self._keys:
            fields = (field.name for field in dataclasses.fields(request) if field.default is None)
            names = [name for name in fields if name not in request.no_settings]
            keys = {name: moved_key(f"decode.{name}", self.known) for name in names}
            self._keys[request] = {name: key.removeprefix("decode.") for name, key in keys.items()}
        return self._keys[request]

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
        if "decode.prefix" not in self.known:
            return [shared | self.settings(request, changed_decode(self.run, settings))] * count
        constraints, changed = parse_constraints(count, settings, partial(changed_decode, self.run))
        shared |= self.settings(request, changed)
        return [shared | constraint._asdict() for constraint in constraints]

    def settings(self, request: type[TextRequest], decode: WritingDecode) -> dict[str, Any]:
        """The fields of requests with these decode.*."""
        keys = {name: key for name, key in self.keys(request).items() if f"decode.{key}" in self.known}
        named = {
            name: attrgetter(key)(decode) for name, key in keys.items() if not key.startswith(("strategy.", "rules."))
        }
        return {**named, "strategy": decode.strategy, "rules": self.rules(decode)}

    def _new_plan(self, keys: Mapping[str, str], values: Mapping[str, Any]) -> Plan:
        changes = {key: values[name] for name, key in keys.items() if values[name] is not None}
        if (strategy := values["strategy"]) is not None:
            changes["strategy"] = asdict(strategy)
        if (rules := values["rules"]) is not None:
            named = {f"rules.{name}": value for name, value in asdict(rules).items()}
            changes |= {key: value for key, value in named.items() if value or f"decode.{key}" in self.known}
        return self.of(changed_decode(self.run, changes))

    def of(self, decode: WritingDecode) -> Plan:
        """The plan of these decode.*."""
        return Plan(decode, self.rules(decode), self._constraints(decode))

    def rules(self, decode: WritingDecode) -> TokenRules:
        """The token rules of decode.*; tokens outside the vocabulary are refused."""
        given: OutputRules | None = vars(decode).get("rules")
        if given is None:
            return TokenRules()
        rules, model = TokenRules.of(given), self.run.model
        vocab = getattr(model, "target_vocab", 0) or model.vocab or self.tokenizer.tokenizer.size
        for name, number in rules.largest_ids().items():
            if number >= vocab:
                raise UserError(
                    f"decode.rules.{name} names token {number:,} and the vocabulary has {vocab:,}; use numbers below "
                    "that"
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


def best_text(run: Run) -> AnyStrategy:
    """The strategy of a run for the best text alone."""
    return with_one_text(run.decode.strategy)


def number_of_texts(strategy: AnyStrategy | None, decode: WritingDecode) -> int:
    """The number of texts that a strategy gives; None: the strategy of the run."""
    return (strategy or decode.strategy).n
