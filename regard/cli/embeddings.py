"""Embeddings on the command line: JSON vectors, similarity rankings; the picture of a confusion matrix."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from .inputs import Source, chunks
from .io import one_line
from .records import Record

if TYPE_CHECKING:
    from torch import Tensor

    from ..tasks.predictor import Embedding


def print_embeddings(predictor: object, sources: Iterable[Source], others: list[str] | None) -> None:
    """Print the vector of each text; with `others`, these by cosine similarity to the text, most similar first."""
    from ..tasks.predictor import Embedding

    if not isinstance(predictor, Embedding):
        raise UserError("this model has no embeddings; --embed and --similar are for BERT runs and folders")
    vectors: Tensor | list[str] = predictor.embed(others, normalize=True) if others else []
    for chunk in chunks(sources):
        texts = [entry.item for entry in chunk]
        rows = _vectors(predictor, texts) if others is None else _ranking(predictor, texts, others, vectors)
        sys.stdout.writelines(one_line(row) + "\n" for row in rows)
        sys.stdout.flush()


def _vectors(predictor: "Embedding", lines: list[str]) -> Iterator[str]:
    return (json.dumps([round(x, 7) for x in row]) for row in predictor.embed(lines).tolist())


def _ranking(
    predictor: "Embedding", lines: list[str], others: list[str], vectors: "Tensor | list[str]"
) -> Iterator[list[str]]:
    for line, ranked in zip(lines, predictor.similar(lines, vectors), strict=True):
        yield from ([line, f"{cosine:.4f}", others[index]] for index, cosine in ranked)


def save_confusion(metrics: Record, out: Path) -> None:
    """Draw the confusion matrix among the metrics."""
    if "confusion" not in metrics:
        raise UserError("--out draws a confusion matrix, but this run predicts no labels; leave it out")
    from ..look import draw_confusion

    draw_confusion(out, metrics["confusion"])
