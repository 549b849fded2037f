"""The base of all predictors that write text: their settings, streams and plain results."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import islice
from typing import Any, TypeVar

from torch import nn

from ...decode import Ensemble, Filter, Suppress
from ...decode.engine.answer import Answer, TextDelta
from ...decode.engine.jobs import ModelContext
from ...decode.search.constraints import ConstraintTokenizer
from ...errors import UserError
from ...messages.texts import TextRequest, TextResult
from ...parts.layer import smallest_context
from ...processors.text.tokenizers import Tokenizer
from ..base import vocabulary
from ..notices import warn_once
from ..predictor import AnyPredictor, Item, PlainResult, Predictor
from ..texts import describe_type
from .plans import Planner, number_of_texts

TextQ = TypeVar("TextQ", bound=TextRequest)
TextA = TypeVar("TextA", bound=TextResult)
P = TypeVar("P", bound=AnyPredictor)


class TextPredictor(Predictor[Item, TextQ, TextA]):
    """A predictor that writes text."""

    filters: tuple[Filter, ...] = ()
    _planner: Planner | None = None

    @property
    def output_tokenizer(self) -> Tokenizer:
        """The tokenizer of the text that it writes."""
        raise NotImplementedError

    @cached_property
    def context(self) -> int | None:
        """The most tokens that the model reads or writes, END included; None: any number."""
        positions = smallest_context(self.module)
        return None if positions is None else positions - getattr(self.run.tune, "length", 0)

    @cached_property
    def constraint_tokenizer(self) -> ConstraintTokenizer:
        """Encodes stop strings and constraints."""
        return ConstraintTokenizer(self.output_tokenizer)

    def context_of_model(self) -> ModelContext:
        return ModelContext(
            self.model, self.device, self.output_tokenizer, self.filters, self.context, self.constraint_tokenizer,
            self.run.decode.batch,
        )  # fmt: skip

    @property
    def suppressed(self) -> list[int]:
        """The tokens that are never generated, for any decode.*."""
        return [token for filter in self.filters if isinstance(filter, Suppress) for token in filter.tokens.tolist()]

    @property
    def plan(self) -> Planner:
        """Makes plans of requests."""
        if self._planner is None or self._planner.run is not self.run:
            self._planner = Planner(self.run, self.constraint_tokenizer, self.context)
        return self._planner

    def plain_result(self, request: TextQ, result: TextA) -> PlainResult:
        """The best text, or all of them where the strategy gives several."""
        several = number_of_texts(request.strategy, self.run.decode) > 1
        return [hypothesis.text for hypothesis in result.nbest] if several else result.text

    def format_line(self, name: str, request: TextQ, result: TextA) -> str:
        """The texts for an item on one line, with tabs between them; those of a file have single spaces."""
        if self.item_reader.files is None:
            return super().format_line(name, request, result)
        plain = self.plain_result(request, result)
        return "\t".join(" ".join(text.split()) for text in ([plain] if isinstance(plain, str) else plain))

    def stream(self, item: Item, **decode: Any) -> Iterator[str]:
        """Yield the text in parts: whole characters, and no part of a stop string.

        A beam search, and one with phrases to include or exclude, yields its text at the end.
        """
        return _stream_item(self, item, decode)


def _stream_item(predictor: TextPredictor[Item, TextQ, TextA], item: Item, decode: dict[str, Any]) -> Iterator[str]:
    """The parts of the text for one item."""
    if not predictor.is_item(item):
        raise UserError(f"the item is {describe_type(item)}; a stream takes one item, in a form that predict takes")
    (request,) = predictor.requests([item], **decode)
    count = number_of_texts(request.strategy, predictor.run.decode)
    if count > 1:
        raise UserError(f"decode.strategy.n is {count}; a stream has one text, use predict or decode.strategy.n=1")
    return stream_text(partial(predictor.submit, request))


def stream_text(submit: Callable[[], Answer[TextA]]) -> Iterator[str]:
    """The parts of a text, of a request that starts with the first and ends when nobody reads on."""
    answer = submit()
    try:
        for delta in answer:
            if isinstance(delta, TextDelta):
                yield delta.text
        warn_once(answer.result().notices, 1)
    finally:
        answer.cancel()


def predict_lazily(
    predictor: TextPredictor[Item, TextQ, TextA], items: Iterable[Item], decode: Mapping[str, Any]
) -> list[str]:
    """The text for every item of a long list; few of the items are in memory at a time."""
    texts, remaining = list[str](), iter(items)
    while chunk := list(islice(remaining, predictor.window)):
        texts += predictor.predict(chunk, **decode)
    return texts


def pair_requests(items: Any, targets: Any, single: bool, nouns: tuple[str, str, str]) -> list[tuple[Any, str]]:
    """The pairs of `score`: an item and its text, or equally many of both. `nouns`: both, the items, the texts."""
    both, several, texts = nouns
    if single and isinstance(targets, str):
        return [(items, targets)]
    if single or isinstance(targets, str) or targets is None:
        raise UserError(f"score takes {both}, or a list of each, not one of both")
    items, targets = [*items], [*targets]
    if len(items) != len(targets):
        item, text = several.removesuffix("s"), texts.removesuffix("s")
        counts = f"{len(items)} {several} and {len(targets)} {texts}"
        raise UserError(f"there are {counts}; give a {text} for each {item}")
    return list(zip(items, targets, strict=True))


def join_models(members: Mapping[str, tuple[nn.Module, Mapping[str, Tokenizer]]], build: Callable[[Ensemble], P]) -> P:
    """The predictor of an ensemble of models by name, each with its tokenizers; their vocabularies must be equal."""
    (name, (_, tokenizers)), *others = members.items()
    for other, (_, theirs) in others:
        for field, tokenizer in tokenizers.items():
            if vocabulary(tokenizer) != vocabulary(theirs[field]):
                raise UserError(
                    f"{name} and {other} have different {field}vocabularies and cannot form an ensemble; "
                    "train the second with the tokenizer of the first"
                )
    predictor = build(Ensemble([model for model, _ in members.values()]))
    predictor.is_ensemble = True
    return predictor
