"""The work of a stage: train a run, write the translations of a run, align words. torch is imported lazily."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..alignment.ibm import align_words
from ..alignment.links import Links, check_symmetrization
from ..config.merge import Section, Settings
from ..data.sources.data_files import evaluation_files
from ..errors import UserError
from ..files import path_name
from .load import load, merge_settings, open_pretrained

if TYPE_CHECKING:
    from .launch import FinishedTraining, LaunchOptions

ALIGN_CHUNK = 256  # pairs that a run aligns together


def run_training(
    recipe: str | None, changes: Settings, *, out: Path, resume: bool, **options: "Unpack[LaunchOptions]"
) -> "FinishedTraining":
    """Train as `regard.train` does, without loading the result; the command line needs only the outcome."""
    from .launch import launch

    return launch(out, recipe, changes, resume=resume, open_start=open_pretrained, **options)


def distill(
    path: str | PathLike[str],
    overrides: Settings | None = None,
    *,
    out: str | PathLike[str],
    data: Any = None,
    splice: int = 0,
    report: Callable[[str], None] = lambda line: None,
    **sections: Section,
) -> int:
    """Write the translations of a run to `out`, in order: lines, or pairs in a .tsv file. Return their number.

    `data` names the files of the sources; by default those that the run was trained on. `splice` new texts for each
    source, made of parts of the sources, follow in a .tsv file. The same call continues one that was killed.
    """
    from ..tasks.parallel.distillation import write_translations as write
    from ..tasks.translate.task import TranslatePredictor

    predictor = load(path, merge_settings(overrides, sections))
    if not isinstance(predictor, TranslatePredictor):
        raise UserError(f"{path} is a run of the task {predictor.run.task}; distill takes one that writes texts")
    return write(predictor, evaluation_files(data), Path(path_name(out, "out")), report, splice)


def open_aligner(
    run: str | None, symmetrize: str, iterations: int, report: Callable[[str], None] = lambda line: None
) -> Callable[[Iterable[tuple[str, str]]], Iterator[Links]]:
    """A function from sentence pairs to their links, in order. That of a run reads the pairs in chunks."""
    symmetrization = check_symmetrization(symmetrize)
    if run is None:
        if iterations < 1:
            raise UserError(f"--iterations is {iterations}; expected 1 or more")
        return lambda pairs: align_words(pairs, symmetrization, iterations, report)
    from ..tasks.translate.task import TranslatePredictor

    predictor = load(run)
    if not isinstance(predictor, TranslatePredictor):
        raise UserError(f"{run} is a run of the task {predictor.run.task} and aligns no words; give one of translate")

    def align(pairs: Iterable[tuple[str, str]]) -> Iterator[Links]:
        while chunk := list(islice(pairs := iter(pairs), ALIGN_CHUNK)):  # few attention weights are in memory
            yield from predictor.align([source for source, _ in chunk], [target for _, target in chunk], symmetrization)

    return align
