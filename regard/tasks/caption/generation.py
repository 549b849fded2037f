"""Generation from images: captions by a search, and log-probabilities and attention of known captions."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import torch

from ...decode import Hypothesis
from ...decode.search.constraints import Constraints
from ...errors import UserError
from ...families.protocols import Seq2SeqModel
from ...look import AttentionView, PatchSegment
from ...modalities.axes import image_axis
from ...processors.base import Array
from ...processors.image.processor import ImageProcessor
from ...processors.image.read import RawImage
from ..generate.seq2seq import SourceGeneration, SourceInputs
from ..generate.views import known_logprobs, trace_target
from ..notices import Notice, missing_phrase
from ..requests import Caption, CaptionResult


class CaptionTrace(NamedTuple):
    """Log-probabilities and attention of the tokens of a hypothesis, from a second pass."""

    logprobs: list[float]  # of the tokens and of END
    view: AttentionView
    before: int  # encoder positions before the patches: a class token
    columns: int  # patches of a row

    def patches(self) -> tuple[tuple[int, int], ...]:
        """Row and column of the patch with the largest attention weight, for every token without END."""
        weights = self.view.cross()[: len(self.view.target) - 1, self.before :]
        best: list[int] = weights.argmax(1).tolist() if weights.numel() else []
        return tuple(divmod(place, self.columns) for place in best)


class ImageGeneration(SourceGeneration[Array]):
    """Sources that are pixels."""

    model: Seq2SeqModel
    image: ImageProcessor
    max_tokens = 100  # of a caption, if decode.max_tokens is 0

    def sources(self, items: Sequence[Array]) -> list[SourceInputs]:
        return [SourceInputs(self.image.collate([pixels]), self.max_tokens, pixels_key(pixels)) for pixels in items]

    def refuse_long(self, rows: Sequence[Sequence[int]], name: str = "a caption") -> None:
        longest = max(map(len, rows), default=0) + 1
        if (context := self.context) is not None and longest > context:
            raise UserError(
                f"{name} has {longest:,} tokens with END and the model has {context:,} positions; shorten it, or "
                "train with more (model.positions.tokens)"
            )

    @torch.no_grad()
    def target_logprobs(self, images: Iterable[RawImage], targets: Sequence[list[int]]) -> list[list[float]]:
        """The log-probability of every token of known captions and of END."""
        self.refuse_long(targets)
        logprobs, size, images = list[list[float]](), self.run.decode.batch, iter(images)
        while rows := list(islice(images, size)):
            encoded = self.model.encode(self.image.collate(self.image.encode_all(rows)).to(self.device))
            batch_targets, prompts = (
                targets[len(logprobs) : len(logprobs) + len(rows)],
                [(self.target.start,)] * len(rows),
            )
            logprobs += known_logprobs(self.model, encoded, prompts, batch_targets, self.target)
        return logprobs

    @torch.no_grad()
    def traces(self, pixels: Array, targets: Sequence[Sequence[int]]) -> list[CaptionTrace]:
        """The traces of several captions of one image."""
        encoded = self.model.encode(self.image.collate([pixels]).to(self.device))
        axis = image_axis(self.model, pixels, encoded.states.size(1))
        patches = axis.segments[-1]
        assert isinstance(patches, PatchSegment)
        results = []
        for tokens in targets:
            logprobs, view = trace_target(self.model, self.target, encoded, axis, tokens, (self.target.start,))
            results.append(CaptionTrace(logprobs, view, len(axis) - patches.rows * patches.columns, patches.columns))
        return results


def pixels_key(pixels: Array) -> str:
    """A hash of the pixels, which seeds sampling."""
    return hashlib.blake2b(pixels.tobytes(), digest_size=16).hexdigest()


def no_text() -> Notice:
    """The notice for an image for which no text satisfies decode.*."""
    return Notice(
        "no text satisfies decode.* for the image",
        lambda count, total: f"no text satisfies decode.* for {count} of {total} images",
    )


def caption_result(
    texts: Sequence[str], hypotheses: Sequence[Hypothesis], traces: Sequence[CaptionTrace], constraints: Constraints
) -> CaptionResult:
    """The result of one image. `traces` is empty without details."""
    nbest = []
    for number, (text, hypothesis) in enumerate(zip(texts, hypotheses, strict=True)):
        prefix, details = len(constraints.prefix), dict[str, object]()
        if traces:
            trace = traces[number]
            tokens = tuple(trace.view.target[:-1])
            logprobs = tuple(trace.logprobs[: len(tokens) + bool(hypothesis.ended)])
            details = {"pieces": tokens, "logprobs": logprobs, "patches": trace.patches()}
        details |= {"given": prefix, "length": len(hypothesis.tokens) + hypothesis.ended - prefix}
        missing = tuple(constraints.missing(text))
        nbest.append(Caption(text, hypothesis.score, hypothesis.logprob, hypothesis.ended, missing=missing, **details))  # type: ignore[arg-type]
    if not nbest:
        return CaptionResult("", missing=tuple(constraints.missing("")), notices=(no_text(),))
    best = nbest[0]
    lacks_phrase = best.missing and not traces  # details list them
    notices = (missing_phrase(best.missing[0]),) if lacks_phrase else ()
    return CaptionResult(**vars(best), nbest=tuple(nbest), notices=notices)
