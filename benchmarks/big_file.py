"""A large text file: `python -m benchmarks big-file --lines 10000000`.

Times the index of its lines, the tokenizer and the first update, then opening tables of labeled texts, and a tokenizer
for one very long word; each in a process of its own, whose peak memory is printed beside. The files are generated in a
temporary folder.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .corpus import peak
from .report import align_columns

WORDS = 20_000  # of the vocabulary that the lines are drawn from
MEAN_WORDS = 8  # of a line
LINES = 10_000_000
CHUNK = 100_000  # lines written together
TABLE_LINES = 1_000_000  # of the tables, at most
LONG_WORD = 300_000  # letters


def write_lines(path: Path, lines: int) -> None:
    """Random words, the frequent ones more often; every hundredth line is blank."""
    rng, letters = np.random.default_rng(1), np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(rng.choice(letters, size)) for size in rng.integers(2, 10, WORDS)])
    with open(path, "w", encoding="utf-8") as file:
        for first in range(0, lines, CHUNK):
            count = min(CHUNK, lines - first)
            sizes = np.where(rng.random(count) < 0.01, 0, 1 + rng.poisson(MEAN_WORDS - 1, count))
            chosen = words[(WORDS * rng.random(sizes.sum()) ** 3).astype(int)].tolist()
            ends = sizes.cumsum().tolist()
            file.writelines(
                " ".join(chosen[begin:end]) + "\n" for begin, end in zip([0, *ends[:-1]], ends, strict=True)
            )


def write_tables(path: Path) -> None:
    """The first lines, with one of five labels each, as TSV, JSONL and Parquet beside `path`."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema({"text": pyarrow.string(), "label": pyarrow.string()})
    with (
        open(path, encoding="utf-8") as lines,
        open(path.with_suffix(".tsv"), "w", encoding="utf-8") as tsv,
        open(path.with_suffix(".jsonl"), "w", encoding="utf-8") as jsonl,
        pyarrow.parquet.ParquetWriter(path.with_suffix(".parquet"), schema) as parquet,
    ):
        first = islice(lines, TABLE_LINES)
        while texts := [line.rstrip("\n") for line in islice(first, CHUNK)]:
            rows = [{"text": text, "label": f"label {number % 5}"} for number, text in enumerate(texts)]
            tsv.writelines(f"{row['text']}\t{row['label']}\n" for row in rows)
            jsonl.writelines(json.dumps(row) + "\n" for row in rows)
            parquet.write_table(pyarrow.Table.from_pylist(rows, schema))


# --- phases, each in its own process ---------------------------------------------------------------------------------


def index(path: str) -> dict[str, float]:
    from regard.data.files.lines import TextLines

    began = time.monotonic()
    lines = TextLines([path])
    return {"seconds": time.monotonic() - began, "lines": len(lines)}


def tokenizer(path: str) -> dict[str, float]:
    from regard.config.data.texts import MaskData, TokenizerConfig
    from regard.data.sources.lines import line_examples
    from regard.processors.text.tokenizers import train_tokenizer

    texts = line_examples([[path]], MaskData()).texts(0)
    began = time.monotonic()
    train_tokenizer(TokenizerConfig(vocab=8000), texts)
    return {"seconds": time.monotonic() - began}


def first_update(path: str) -> dict[str, float]:
    """Of a small model and a tokenizer that needs no training; imports and the index of the lines are not counted."""
    import regard
    from regard.data.files.lines import TextLines

    for name in ("torch._dynamo", "regard.tasks.masked.task"):
        import_module(name)
    began = time.monotonic()
    TextLines([path])
    indexed = time.monotonic() - began
    settings: dict[str, Any] = {
        "data.train": path, "data.max_tokens": 96, "tokenizer.kind": "byte", "train.steps": 1, "train.tokens": 4096,
        "model.size": "tiny", "device": "cpu",
    }  # fmt: skip
    times: list[float] = []

    def on_event(record: dict[str, Any]) -> None:
        if record["event"] == "train":
            times.extend([time.monotonic(), time.process_time()])

    with tempfile.TemporaryDirectory() as folder:
        began, cpu = time.monotonic(), time.process_time()
        regard.train("masked", settings, out=Path(folder, "run"), on_event=on_event, progress=False)
    return {"seconds": times[0] - began - indexed, "index seconds": indexed, "cpu seconds": times[1] - cpu}


def table(suffix: str, path: str) -> dict[str, float]:
    """Open a table of labeled texts: every record is checked."""
    from regard.config.data.texts import LabelData
    from regard.data.sources.labeled import labeled_texts

    began = time.monotonic()
    found = labeled_texts([[str(Path(path).with_suffix(suffix))]], LabelData())
    return {"seconds": time.monotonic() - began, "examples": len(found)}


def long_word(path: str) -> dict[str, float]:
    """Train BPE on one word of random letters."""
    from regard.config.data.texts import TokenizerConfig
    from regard.processors.text.tokenizers import train_tokenizer

    letters = np.random.default_rng(1).choice(list("abcdefghijklmnopqrstuvwxyz"), LONG_WORD)
    began = time.monotonic()
    train_tokenizer(TokenizerConfig(vocab=8000), ["".join(letters)])
    return {"seconds": time.monotonic() - began}


PHASES: dict[str, Callable[[str], dict[str, float]]] = {
    "index": index, "index again": index, "tokenizer": tokenizer, "first update": first_update,
    "tsv": partial(table, ".tsv"), "jsonl": partial(table, ".jsonl"), "parquet": partial(table, ".parquet"),
    "long word": long_word,
}  # fmt: skip


@dataclass(frozen=True)
class BigFileReport:
    """Seconds and peak memory of every phase."""

    lines: int
    phases: dict[str, dict[str, float]]

    def values(self) -> dict[str, Any]:
        return {"bench": "big-file", "lines": self.lines, "phases": self.phases}

    def table(self) -> str:
        columns = ("seconds", "cpu seconds", "peak MB")  # a busy machine shows in the difference of the first two
        rows = [["phase", *columns]]
        rows += [[name, *(f"{each[key]:,.2f}" for key in columns)] for name, each in self.phases.items()]
        return "\n".join([f"big-file: {self.lines:,} lines", *align_columns(rows)])


def run_phase(name: str, path: str, cache: str) -> dict[str, float]:
    """The result of a phase, with the peak memory of its process."""
    command = [sys.executable, "-m", "benchmarks.big_file", name, path]
    variables = {**os.environ, "XDG_CACHE_HOME": cache}
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables)
    result: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return result


def measure(lines: int, phases: Iterable[str] = tuple(PHASES)) -> BigFileReport:
    """Generate the file and run the phases on it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lines.txt")
        write_lines(path, lines)
        write_tables(path)
        print(f"{lines:,} lines, {path.stat().st_size / 1e6:,.0f} MB", file=sys.stderr)
        found = {name: run_phase(name, str(path), str(Path(folder, "cache"))) for name in phases}
        return BigFileReport(lines, found)


def main(arguments: list[str]) -> None:
    """One phase, in its own process."""
    name, path = arguments
    began = time.process_time()
    found = PHASES[name](path)
    found = {"cpu seconds": time.process_time() - began} | found
    print(json.dumps({**found, "peak MB": peak()}))


if __name__ == "__main__":
    main(sys.argv[1:])
