"""Embeddings on the command line: JSON vectors, similarity rankings; the picture of a confusion matrix."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import UserError
from ..files import format_output
from .inputs import Entry, InputFile, chunks
from .records import Record

if TYPE_CHECKING:
    from torch import Tensor

    from ..tasks.predictor import AnyPredictor, Embedding


def print_embeddings(predictor: object, sources: Iterable[InputFile], others: list[Entry] | None) -> None:
    """Print the vector of each item; with `others`, these by cosine similarity to the item, most similar first."""
    from ..tasks.label.embedding import unit_length
    from ..tasks.predictor import Embedding

    if not isinstance(predictor, Embedding):
        raise UserError(
            "this model has no embeddings; --embed and --similar are for BERT, ViT and CLIP runs and folders"
        )
    items = [entry.item for entry in others or ()]
    vectors: Tensor | list[str] = (
        predictor.embed(items, **unit_length(cast("AnyPredictor", predictor).run)) if items else []
    )
    for chunk in chunks(sources):
        rows = _vectors(predictor, chunk) if others is None else _ranking(predictor, chunk, others, vectors)
        sys.stdout.writelines(format_output(row) + "\n" for row in rows)
        sys.stdout.flush()


def _vectors(predictor: "Embedding", chunk: list[Entry]) -> Iterator[str]:
    vectors = predictor.embed([entry.item for entry in chunk])
    return (json.dumps([round(x, 7) for x in row]) for row in vectors.tolist())


def _ranking(
    predictor: "Embedding", chunk: list[Entry], others: list[Entry], vectors: "Tensor | list[str]"
) -> Iterator[list[str]]:
    for entry, ranked in zip(chunk, predictor.similar([query.item for query in chunk], vectors), strict=True):
        yield from ([_display_text(entry), f"{cosine:.4f}", _display_text(others[index])] for index, cosine in ranked)


def _display_text(entry: Entry) -> str:
    """The name of a file, or the text itself."""
    return entry.name or str(entry.item)


def save_confusion(metrics: Record, out: Path) -> None:
    """Draw the confusion matrix among the metrics."""
    if "confusion" not in metrics:
        raise UserError("--out draws a confusion matrix, but this run predicts no labels; leave it out")
    from ..look import draw_confusion

    draw_confusion(out, metrics["confusion"])
