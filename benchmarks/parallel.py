"""`python -m benchmarks parallel`: all tokens at once beside the beam search of a teacher, from text to text.

Both have the sizes of the recipe multi30k and random weights, and translate the same texts. On a GPU, both replay CUDA
graphs. In the parts with a number, both write exactly that many tokens. NPD includes the scores of the teacher.

    python -m benchmarks.parallel TEACHER STUDENT TEXTS    # trained runs, with the lengths that they choose
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import regard
from regard.config.merge import groups_in, kind_of, settings_of
from regard.config.run import resolve_run
from regard.device import resolve_device
from regard.errors import UserError
from regard.tasks.task import prepare

from .report import Report, Section
from .timing import RunRound, rounds
from .translate import environment

SIZES = ("multi30k", "tiny")
PARTS = ("latency", "latency-50", "throughput")
TEACHER = "teacher"
BEAM = {"kind": "beam", "beam": 5}
OURS: dict[str, dict[str, Any]] = {
    "argmax": {"kind": "argmax", "merge_repeats": False},  # merging would make translations shorter
    "npd, 10 samples": {"kind": "npd", "samples": 10, "teacher": TEACHER, "merge_repeats": False},
}
TOKENS = {"multi30k": (16, 50), "tiny": (3, 6)}  # of a text: natural, long
TINY = {"width": 32, "heads": 2, "layers": 1, "inner": 32}
WORDS = {"multi30k": 7000, "tiny": 90}


def main(device: str, size: str, count: int, parts: tuple[str, ...]) -> Report:
    where, sections = resolve_device(device), list[Section]()
    teacher, student = make_predictors(size, where)
    for part in parts:
        print(f"timing {part} …", file=sys.stderr)
        tokens = TOKENS[size][part == "latency-50"]
        batch = 64 if part == "throughput" else 1
        texts = make_texts(size, 64 if size == "multi30k" else 2, tokens)
        limits = {"max_tokens": tokens}
        fact = f"{len(texts)} texts of {tokens} tokens, {tokens} tokens each, {batch} at once"
        sections.append(section(part, teacher, student, texts, batch, count, fact, limits))
        print(sections[-1].table(), file=sys.stderr, flush=True)
    return Report("parallel", environment(where) | {"size": size, "rounds": count}, sections)


# --- models ----------------------------------------------------------------------------------------------------------


def make_texts(size: str, count: int, tokens: int, seed: int = 1) -> list[str]:
    """Texts of so many words, which are the tokens."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(WORDS[size], (count, tokens), generator=generator)
    return [" ".join(f"w{number}" for number in row) for row in numbers.tolist()]


def make_predictors(size: str, device: torch.device) -> tuple[Any, Any]:
    """The teacher and the student, with random weights and one vocabulary.

    Nine of ten fertilities are 1, the others 2, so that samples differ and no translation is shorter than its source.
    """
    with tempfile.TemporaryDirectory() as folder:
        lines = "".join(f"w{number}\n" for number in range(WORDS[size]))
        for name in ("a", "b"):
            (Path(folder) / name).write_text(lines)
        shared = {"data.train": f"{folder}/a,{folder}/b", "tokenizer.kind": "space", "device": str(device)}
        shared |= {f"model.{key}": value for key, value in TINY.items()} if size == "tiny" else {}
        found = [
            prepare(resolve_run(recipe, shared).run, {}, device).predictor for recipe in ("multi30k", "multi30k-nat")
        ]
    teacher, student = found
    student.model.fertility.weight.data.zero_()
    student.model.fertility.bias.data.fill_(-30.0)
    student.model.fertility.bias.data[1:3] = torch.tensor([2.2, 0.0])
    student.writer.teachers[TEACHER] = teacher
    return teacher, student


# --- timing ----------------------------------------------------------------------------------------------------------


def section(
    name: str,
    teacher: Any,
    student: Any,
    texts: Sequence[str],
    batch: int,
    count: int,
    fact: str,
    limits: dict[str, Any] | None = None,
) -> Section:
    """Texts per second; at batch 1 the reciprocal of the latency. With limits, all texts have max_tokens tokens."""
    exact = limits or {}
    forced = {"min_tokens": exact["max_tokens"] - 1} if exact else {}  # END is the last
    programs = {"beam 5": run_texts(teacher, texts, batch, {**BEAM, **exact, **forced})}
    ours = {key: decode for key, decode in OURS.items() if decode["kind"] in strategies(student)}
    programs |= {key: run_texts(student, texts, batch, {**decode, **exact}) for key, decode in ours.items()}
    if exact:
        check_lengths(teacher, student, texts, exact, forced)
    rates = rounds(programs, count, student.device)
    times = (f"{key}: {1000 / statistics.median(each):.2f} ms per text" for key, each in rates.items())
    facts = [fact, *times]
    return Section(name, "texts/s", rates, tuple(ours), facts)


def strategies(predictor: Any) -> list[str | None]:
    """What the family of a run decodes by."""
    return [kind_of(kind) for kind in groups_in(settings_of(type(predictor.run.decode))["strategy"].annotation)]


def run_texts(predictor: Any, texts: Sequence[str], batch: int, decode: dict[str, Any]) -> RunRound:
    """Translate the texts, `batch` at once, and return their number."""

    def run_round(number: int) -> float:
        for first in range(0, len(texts), batch):
            predictor.predict(list(texts[first : first + batch]), batch=batch, **decode)
        return float(len(texts))

    return run_round


def check_lengths(
    teacher: Any, student: Any, texts: Sequence[str], exact: dict[str, Any], forced: dict[str, Any]
) -> None:
    """Refuse to compare programs that write different numbers of tokens."""
    ways = [(teacher, {**BEAM, **exact, **forced})] + [(student, {**decode, **exact}) for decode in OURS.values()]
    for predictor, decode in ways:
        for text in predictor.predict(list(texts[:2]), **decode):
            if abs(len(text.split()) - exact["max_tokens"]) > 1:  # a beam may end one token earlier
                raise UserError(f"{decode['kind']} wrote {len(text.split())} tokens instead of {exact['max_tokens']}")


def compare_runs(teacher: str, student: str, texts: str, count: int = 5) -> Report:
    """Trained runs, with the lengths that they choose."""
    lines = Path(texts).read_text(encoding="utf-8").splitlines()[:64]
    ours, theirs = regard.load(student), regard.load(teacher)
    if "npd" in strategies(ours):
        ours.writer.teachers[TEACHER] = theirs
    sections = [
        section(f"{batch} at once", theirs, ours, lines, batch, count, f"{len(lines)} texts of {texts}")
        for batch in (1, 64)
    ]
    return Report("parallel", environment(ours.device) | {"rounds": count}, sections)


if __name__ == "__main__":
    print(compare_runs(sys.argv[1], sys.argv[2], sys.argv[3]).table())
