"""Predictors with muted attention heads."""

import warnings
from typing import TypeVar

from ..adapt.heads import head_sites, join_names, parse_heads
from ..adapt.mute import muted_copy, shared_copy
from ..adapt.ngrams import ngrams_of
from ..errors import UserError
from ..look.norms import weigh_by_norm
from .predictor import AnyPredictor

P = TypeVar("P", bound=AnyPredictor)


def muted(predictor: P, heads: str) -> P:
    """A predictor over the same weights whose heads give zeros; it warns if a layer has none left."""
    require_one_model(predictor, "--mute")
    chosen = parse_heads(heads, predictor.module)
    silent = [site.heads for site in head_sites(predictor.module) if set(site.heads) <= set(chosen)]
    if silent:
        remaining = "; the n-grams beside the encoder still decide" if ngrams_of(predictor.module) is not None else ""
        warnings.warn(
            f"{join_names([head for names in silent for head in names])} are all heads of their layers, whose "
            "attention then adds only its bias" + remaining,
            stacklevel=4,
        )
    return predictor.with_model(muted_copy(predictor.module, chosen))


def private_copy(predictor: P, option: str) -> P:
    """A predictor over the same weights with a private copy of the model, to which hooks may be attached."""
    require_one_model(predictor, option)
    if not head_sites(predictor.module):
        raise UserError(f"{option} needs attention heads, and this model has none; choose another model")
    return predictor.with_model(shared_copy(predictor.module))


def norm_weighted(predictor: P) -> P:
    """A predictor whose `look` shows ‖α f(x)‖, as shares of each row."""
    weighted = private_copy(predictor, "--norms")
    weigh_by_norm(weighted.module)
    return weighted


def require_one_model(predictor: AnyPredictor, option: str) -> None:
    """Raise an error if the predictor is an ensemble, with which `option` does not work."""
    if predictor.is_ensemble:
        raise UserError(f"{option} works with one model, and an ensemble has several; give one of them")
