"""Word times of recordings with known texts on the command line."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import json_line


def print_alignments(predictor: Any, name: str, text: str | None, as_json: bool) -> None:
    """Print start, end and word for every word, after the path if there are several recordings."""
    if predictor.run.task != "transcribe":
        raise UserError(f"align-audio is for runs of the task transcribe, and this one is of {predictor.run.task}")
    pairs = list(_pairs(predictor, name, text))
    for place, sound, words in pairs:
        found = predictor.align(sound, words)
        if as_json:
            record = {"path": place, "text": words, "score": found.score, "words": [x._asdict() for x in found.words]}
            print(json_line(record))
        else:
            path = f"{place}\t" if len(pairs) > 1 else ""
            sys.stdout.writelines(f"{path}{start:.3f}\t{end:.3f}\t{word}\n" for word, start, end in found.words)
        sys.stdout.flush()


def _pairs(predictor: Any, name: str, text: str | None) -> Iterator[tuple[str, Any, str]]:
    """Recordings with their names and texts: one file, or data as training reads them."""
    from ..data.sources.sounds import is_sound_name, transcribed_sounds

    path = Path(name)
    if text is None and not (path.is_file() and is_sound_name(name)):
        examples = transcribed_sounds([[name]], predictor.run.data)
        examples.require_nonempty(name)
        yield from ((examples.location(index), *examples[index]) for index in range(len(examples)))
        return
    beside = path.with_suffix(".txt")
    if text is None and not beside.is_file():
        raise UserError(f"the words of {name} are not known; give them after it, or in the file {beside}")
    words = beside.read_text(encoding="utf-8") if text is None else text
    yield name, path, " ".join(words.split())
