"""Alignments on the command line: word times of recordings, and words of sentence pairs."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..alignment.links import Links, format_pharaoh, parse_pharaoh
from ..errors import UserError
from ..files import json_line
from ..metrics.alignment import alignment_metrics
from .inputs import check_files, split_at_tab, zip_lines
from .lines import decode_lines, open_lines


def print_alignments(predictor: Any, name: str, text: str | None, as_json: bool) -> None:
    """Print start, end and word for every word, after the path if there are several recordings."""
    if predictor.run.task != "transcribe":
        raise UserError(f"align-audio is for runs of the task transcribe, and this one is of {predictor.run.task}")
    from ..tasks.notices import warn_once

    pairs, notices = list(_pairs(predictor, name, text)), list[str]()
    for place, sound, words in pairs:
        aligned = predictor.align(sound, words)
        notices += aligned.notices
        if as_json:
            record = {
                "path": place,
                "text": words,
                "score": aligned.score,
                "words": [asdict(word) for word in aligned.alignment.words],
            }
            print(json_line(record))
        else:
            path = f"{place}\t" if len(pairs) > 1 else ""
            lines = (f"{path}{one.start:.3f}\t{one.end:.3f}\t{one.word}\n" for one in aligned.alignment.words)
            sys.stdout.writelines(lines)
        sys.stdout.flush()
    warn_once(notices, len(pairs))


def _pairs(predictor: Any, name: str, text: str | None) -> Iterator[tuple[str, Any, str]]:
    """Recordings with their names and texts: one file, or data as training reads them."""
    from ..data.sources.sounds import SOUND, TRANSCRIBED_SOUNDS

    path = Path(name)
    if text is None and not (path.is_file() and SOUND.is_name(name)):
        examples = TRANSCRIBED_SOUNDS.open([[name]], predictor.run.data)
        examples.require_nonempty(name)
        yield from ((examples.location(index), *examples[index]) for index in range(len(examples)))
        return
    beside = path.with_suffix(".txt")
    if text is None and not beside.is_file():
        raise UserError(f"the words of {name} are not known; give them after it, or in the file {beside}")
    words = beside.read_text(encoding="utf-8") if text is None else text
    yield name, path, " ".join(words.split())


def print_word_alignments(
    names: Sequence[str], run: str | None, symmetrize: str, iterations: int, gold: str | None
) -> None:
    """Print a line of links for every sentence pair; with `gold`, then the alignment error rate to stderr."""
    from ..runs.work import open_aligner

    if len(names) > 2:
        raise UserError(f"align takes SOURCE and TARGET, or one file of source, tab, target, not {len(names)} files")
    check_files(names)
    align = open_aligner(run, symmetrize, iterations, _report)
    compared = _print_each(align(_read_pairs(names or ["-"])), _read_gold(gold), gold)
    if gold is None:
        for _ in compared:
            pass
    else:
        _report(", ".join(f"{name} {value:.4f}" for name, value in alignment_metrics(compared).items()))


def _read_pairs(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    if len(names) == 2:
        sources, targets = (_read_lines(name) for name in names)
        return zip_lines(names, sources, targets)
    place = "stdin" if names[0] == "-" else names[0]
    return (split_at_tab(line, f"{place}:{number}") for number, line in enumerate(_read_lines(names[0]), 1))


def _read_lines(name: str) -> Iterator[str]:
    return decode_lines(open_lines(name), "stdin" if name == "-" else name)


def _read_gold(name: str | None) -> Iterator[tuple[Links, Links]]:
    """The sure and possible links of every line; without a file, none."""
    if name is None:
        return iter(())
    check_files([name])
    return (parse_pharaoh(line, f"{name}:{number}") for number, line in enumerate(_read_lines(name), 1))


def _print_each(
    alignments: Iterable[Links], gold: Iterator[tuple[Links, Links]], name: str | None
) -> Iterator[tuple[Links, Links, Links]]:
    """Print the links, and yield them with those of the file of this name."""
    count = 0
    for count, links in enumerate(alignments, 1):
        print(format_pharaoh(links))
        if name is not None:
            if (gold_links := next(gold, None)) is None:
                raise UserError(f"{name} has {count - 1} lines and there are more sentence pairs; give a line for each")
            yield links, *gold_links
    if next(gold, None) is not None:
        raise UserError(f"{name} has more lines than the {count} sentence pairs; give a line for each")


def _report(line: str) -> None:
    print(f"regard: {line}", file=sys.stderr)
