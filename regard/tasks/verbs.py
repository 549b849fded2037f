"""What a predictor can do, by name, with the types of its requests and results: what a server offers of it."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ..decode.engine.answer import Answer, Emit
from ..errors import UserError
from ..files import JsonObject
from ..messages.base import Request, Result, message_adapter, message_schema
from ..messages.speech import AlignAudioResult
from ..messages.verbs import (
    AlignRequest,
    AlignResult,
    EmbedRequest,
    EmbedResult,
    LookRequest,
    LookResult,
    ScoreRequest,
    ScoreResult,
    SimilarRequest,
    SimilarResult,
)
from .predictor import AnyPredictor, Predictor

OTHERS: dict[str, tuple[type[Request], type[Result]]] = {
    "score": (ScoreRequest, ScoreResult),
    "embed": (EmbedRequest, EmbedResult),
    "similar": (SimilarRequest, SimilarResult),
    "look": (LookRequest, LookResult),
    "align": (AlignRequest, AlignResult),
    "align_audio": (AlignRequest, AlignAudioResult),
}


@dataclass(frozen=True)
class Verb:
    """One thing that a predictor can do."""

    request: type[Request]
    result: type[Result]
    answer: Callable[[Any, Emit | None], Coroutine[Any, Any, Result]]

    def schemas(self) -> dict[str, JsonObject]:
        """The JSON schemas of its request and its result."""
        return {"request": message_schema(self.request), "result": message_schema(self.result)}


def verbs_of(predictor: AnyPredictor) -> dict[str, Verb]:
    """The verbs of a predictor."""
    verbs = {"predict": Verb(predictor.request_type, predictor.result_type, predictor.answer)}
    for name, (request, result) in OTHERS.items():
        method = getattr(predictor, f"answer_{name}", None)
        inherited = getattr(Predictor, f"answer_{name}", None)
        if method is not None and (name == "look" or getattr(method, "__func__", None) is not inherited):
            verbs[name] = Verb(request, result, method)
    return verbs


def submit_json(predictor: AnyPredictor, verb: str, body: str | bytes, seconds: float | None = None) -> Answer[Result]:
    """Start a request that is given as JSON. Unknown verbs, unknown fields and wrong values are refused by name."""
    verbs = verbs_of(predictor)
    if verb not in verbs:
        raise UserError(f"this model has no verb {verb!r}; expected {', '.join(verbs)}")
    request = message_adapter(verbs[verb].request).validate_json(body)
    return predictor.engine.submit(predictor.start(verbs[verb].answer, request), seconds=seconds)
