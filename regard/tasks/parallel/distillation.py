"""Sequence-level distillation (1606.07947): the translations of a run replace the targets of a data set.

Lines are written in order to a folder beside the output. A process that is killed leaves it behind, and the same call
continues there; the finished file is renamed to its place.
"""

import hashlib
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from ...config.data.base import DataFiles
from ...data.files.in_memory import IN_MEMORY
from ...data.files.lines import TextLines
from ...data.files.open import plain_suffix
from ...data.tables.open import file_format
from ...errors import UserError
from ...files import explain_os_error, json_line, read_json, remove, sync, write_json
from ...training.lock import RunLock
from ...training.progress import format_duration
from ..translate.task import TranslatePredictor

CHUNK = 512  # lines that are translated together, and written
EVERY = 10.0  # seconds between reports
PARTS = {"source": "the data", "weights": "the weights of the run", "decode": "decode.*", "pairs": "the format"}


def write_translations(
    predictor: TranslatePredictor,
    data: DataFiles | None,
    out: Path,
    report: Callable[[str], None] = lambda line: None,
    splice: int = 0,
) -> int:
    """Write the translation of every source to a file of lines, or with its source to a .tsv file; return their number.

    `data` has the files of the sources first; None: data.train of the run. `splice` new texts per source follow, made
    of parts of the sources.
    """
    check_output(predictor, out)
    pairs = plain_suffix(str(out)) == ".tsv"
    sources = open_sources(predictor, data, pairs)
    if splice:
        sources = add_splices(sources, splice, pairs, report)
    draft = out.with_name(f"{out.name}.part")
    try:
        draft.mkdir(exist_ok=True)
        with RunLock(draft, "written"):
            begun = begin(draft, describe_job(predictor, sources, pairs))
            if begun:
                report(f"continuing after {begun:,} of {len(sources):,} lines")
            with open(draft / "lines", "r+b" if begun else "wb") as file:
                file.seek(0, os.SEEK_END)
                write_lines(predictor, sources, begun, file, pairs, report)
            sync(draft / "lines")
            os.replace(draft / "lines", out)
            sync(out.parent)
    except OSError as error:
        raise explain_os_error(error, out) from error
    remove(draft)
    return len(sources)


def check_output(predictor: TranslatePredictor, out: Path) -> None:
    """Refuse settings with several targets, and an output that exists or cannot be written."""
    if (count := predictor.run.decode.strategy.n) > 1:
        raise UserError(f"decode.strategy.n is {count}, and a source gets one target; use decode.strategy.n=1")
    if out.exists():
        raise UserError(f"{out} exists already; remove it, or choose another --out")
    if not out.parent.is_dir():
        raise UserError(f"{out} cannot be written: its folder does not exist; choose another --out")


def open_sources(predictor: TranslatePredictor, data: DataFiles | None, pairs: bool) -> Sequence[str]:
    """The source texts. An output without its sources needs files of lines, whose lines it matches."""
    run = predictor.run
    files = run.data.train if data is None else data
    in_files = bool(files) and not files[0][0].endswith(IN_MEMORY)
    if in_files and file_format(files[0][0], run.data.format, "text") == "text":
        return TextLines(files[0], run.data.invalid)
    if not pairs:
        origin = "a table" if in_files else "not in files"
        raise UserError(f"the data are {origin}, so targets alone have no sources; give --out a name that ends in .tsv")
    return predictor.data_split(run, "train", data).texts(0)


def add_splices(sources: Sequence[str], splice: int, pairs: bool, report: Callable[[str], None]) -> Sequence[str]:
    """The sources and new texts, `splice` times as many if there are enough."""
    if not pairs:
        raise UserError(
            "--splice makes new sources, so targets alone do not suffice; give --out a name that ends in .tsv"
        )
    texts = [sources[i] for i in range(len(sources))]
    spliced = splice_texts(texts, splice * len(texts))
    report(f"{len(spliced):,} spliced texts follow the {len(texts):,} of the data")
    return texts + spliced


def describe_job(predictor: TranslatePredictor, sources: Sequence[str], pairs: bool) -> dict[str, str]:
    """Hashes and settings that determine the output."""
    content, weights = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    for source in sources:
        content.update(f"{source}\n".encode())
    for name, tensor in predictor.module.state_dict().items():
        weights.update(name.encode())
        weights.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    settings = json_line(predictor.run.decode.model_dump(mode="json"))
    return {
        "source": content.hexdigest(),
        "weights": weights.hexdigest(),
        "decode": settings,
        "pairs": "pairs" if pairs else "lines",
    }


def begin(draft: Path, job: dict[str, str]) -> int:
    """The number of lines that an earlier call of the same job has written; a line without its end is cut off."""
    about, lines = draft / "job.json", draft / "lines"
    if not about.is_file():
        write_json(about, job)
        return 0
    before = read_json(about)
    for name, value in job.items():
        if before.get(name) != value:
            raise UserError(f"{draft} was begun with other settings: {PARTS[name]} differ; remove it to start again")
    if not lines.is_file():
        return 0
    count, end = 0, 0
    with open(lines, "r+b") as file:
        for line in file:
            if line.endswith(b"\n"):
                count, end = count + 1, end + len(line)
        file.truncate(end)
    return count


def write_lines(
    predictor: TranslatePredictor,
    sources: Sequence[str],
    begun: int,
    file: IO[bytes],
    pairs: bool,
    report: Callable[[str], None],
) -> None:
    """Translate the sources after the first `begun` ones; report progress and the remaining time."""
    started = reported = time.monotonic()
    for first in range(begun, len(sources), CHUNK):
        texts = [sources[i] for i in range(first, min(first + CHUNK, len(sources)))]
        targets = [one_line(text) for text in predictor.predict(texts)]
        lines = [f"{one_line(x)}\t{y}" for x, y in zip(texts, targets, strict=True)] if pairs else targets
        file.write("".join(f"{line}\n" for line in lines).encode())
        file.flush()
        done, now = first + len(texts), time.monotonic()
        if now - reported > EVERY:
            reported = now
            rate = (done - begun) / (now - started)
            remaining = format_duration((len(sources) - done) / rate)
            report(f"{done:,} of {len(sources):,} lines, {rate:.1f} lines/s, {remaining} left")


def one_line(text: str) -> str:
    """The text without line ends and tabs, which separate lines and cells."""
    return " ".join(text.splitlines()).replace("\t", " ")


TRIES = 20  # for every requested text


COMMON = 5  # places that a pair of words must have


SHORTEST = 6  # words of a text that is cut


def splice_texts(texts: Sequence[str], count: int, seed: int = 1) -> list[str]:
    """Up to `count` different new texts: the beginning of one text and the end of another, which share two words.

    "A man is riding a horse." and "A girl is riding a bicycle." give "A man is riding a bicycle." Words are what white
    space separates. The lengths of new texts are those of the given ones, but for the extreme 1 %.
    """
    rows = [text.split() for text in texts]
    seen = {tuple(row) for row in rows}
    places: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for number, row in enumerate(rows):
        for place in range(1, len(row) - 2):
            places[row[place], row[place + 1]].append((number, place))
    lengths = sorted(map(len, rows))
    shortest, longest = (lengths[int(share * len(lengths))] if lengths else 0 for share in (0.005, 0.995))
    draw, spliced = random.Random(seed), list[str]()
    for _ in range(TRIES * count if rows else 0):
        if len(spliced) == count:
            break
        number = draw.randrange(len(rows))
        row = rows[number]
        if len(row) < SHORTEST:
            continue
        cut = draw.randrange(1, len(row) - 2)
        shared = places[row[cut], row[cut + 1]]
        if len(shared) < COMMON:
            continue
        other, place = draw.choice(shared)
        new = row[:cut] + rows[other][place:]
        if other != number and shortest <= len(new) <= longest and tuple(new) not in seen:
            seen.add(tuple(new))
            spliced.append(" ".join(new))
    return spliced
