"""The logit lens: the prediction after each layer, as if the stack ended there, with the final norm applied."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..modalities.base import START
from ..parts import Inputs, Stack
from ..processors.text.tokenizers import Tokenizer
from ..tasks.base import Record
from ..tasks.generate.plans import best_text
from ..tasks.language.task import LanguagePredictor
from ..tasks.masked.task import MaskedPredictor
from ..tasks.predictor import AnyPredictor
from ..tasks.translate.task import TranslatePredictor
from .attribution import copy_for_hooks


@dataclass(frozen=True)
class LensCell:
    """The likeliest tokens at one place after one layer."""

    tokens: tuple[str, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class Lens:
    """For every place the likeliest tokens after each layer; the last layer is the model's own output."""

    places: tuple[str, ...]  # the token that was read last; in masked models the token itself
    layers: tuple[tuple[LensCell, ...], ...]  # by layer and place

    def record(self) -> Record:
        return asdict(self)


def lens(predictor: AnyPredictor, text: str, target: str | None = None, top: int = 3) -> Lens:
    """The predictions of a decoder or a masked model after each layer. A decoder reads `target`, or its own output."""
    places, layers, tokenizer = layer_logits(predictor, text, target)
    cells = []
    for logits in layers:
        best = logits[:, : tokenizer.size].softmax(-1).topk(min(top, tokenizer.size))
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        cells.append(tuple(LensCell(tuple(tokenizer.tokens(ids)), tuple(values)) for ids, values in rows))
    return Lens(tuple(places), tuple(cells))


@torch.no_grad()
def layer_logits(
    predictor: AnyPredictor, text: str, target: str | None = None
) -> tuple[list[str], list[Tensor], Tokenizer]:
    """The places that are read, the logits (places, vocab) after every layer, and the tokenizer of the output."""
    if not text.strip():
        raise UserError("the text is empty, so there is nothing to predict; give a sentence")
    copy = copy_for_hooks(predictor, "--lens")
    places, run, tokenizer = _forward(copy, text, target)
    stacks = [part for part in copy.module.modules() if isinstance(part, Stack)]
    tap = StackTap(stacks[-1])  # of an encoder–decoder model the decoder
    run()
    layers = []
    for states in list(tap.states):
        tap.override = states
        layers.append(run().float().cpu())
    return places, layers, tokenizer


class StackTap:
    """Records the output of every layer of a stack. With `override`, the stack returns it, after its norm."""

    def __init__(self, stack: Stack) -> None:
        self.states: list[Tensor] = []
        self.override: Tensor | None = None
        for layer in stack.layers:
            layer.register_forward_hook(self._keep)
        stack.register_forward_hook(self._replace)

    def _keep(self, layer: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> None:
        if self.override is None:
            self.states.append(out)

    def _replace(self, stack: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor | None:
        assert isinstance(stack, Stack)
        normed: Tensor | None = None if self.override is None else stack.norm(self.override)
        return normed


def _forward(
    predictor: AnyPredictor, text: str, target: str | None
) -> tuple[list[str], Callable[[], Tensor], Tokenizer]:
    """The places, the function to their logits (places, vocab), and the tokenizer of the output."""
    model: Any = predictor.model
    match predictor:
        case MaskedPredictor():
            if target is not None:
                raise UserError("a masked model takes no target; give the text alone")
            tokens, texts = predictor.masked_row(text), predictor.tokenizer.tokens(predictor.masked_row(text))
            places = [i for i, token in enumerate(tokens) if token == predictor.mask] or list(range(len(tokens)))
            inputs = _row(tokens, predictor)
            run = lambda: model.logits(model.encode(inputs).states)[0, places]  # noqa: E731
            return [texts[i] for i in places], run, predictor.tokenizer
        case LanguagePredictor():
            (ids,) = predictor.encode_texts([text + (target or "")])
            predictor.refuse_long(len(ids) + 1, "the text")
            inputs = _row([predictor.start_token, *ids], predictor)
            run = lambda: model.logits(model.decode(inputs))[0]  # noqa: E731
            return [START, *predictor.tokenizer.tokens(ids)], run, predictor.tokenizer
        case TranslatePredictor() if hasattr(model, "step"):
            output = str(predictor.predict(text, strategy=best_text(predictor.run))) if target is None else target
            (source,), (target_ids,) = predictor.source.encode([text]), predictor.target.encode([output])
            batch = predictor.pair([source], [target_ids])
            run = lambda: model.logits(model.decode(batch["target"], model.encode(batch["source"])))[0]  # noqa: E731
            return [START, *predictor.target.tokens(target_ids)], run, predictor.target
    raise UserError(
        f"--lens shows the tokens that a decoder or a masked model would write, and a run of {predictor.run.task} with "
        f"{predictor.run.model.family} writes none one by one; give a run of language, masked or translate"
    )


def _row(tokens: list[int], predictor: AnyPredictor) -> Inputs:
    return Inputs("tokens", torch.tensor([tokens], device=predictor.device))
