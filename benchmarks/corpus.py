"""`python -m benchmarks.corpus`: tokenize synthetic text into the token cache, with a byte-level BPE of 16 k tokens."""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from regard.config.data.texts import TextData, TokenizerConfig
from regard.data.datasets.corpus import Corpus
from regard.data.sources.documents import open_documents
from regard.processors.text.tokenizers import load_tokenizer, train_tokenizer

TYPES = 400_000  # word types of the synthetic language; a few of them make up most of a text
VOCAB = 16_000


def lexicon() -> list[str]:
    """Words of one to three syllables, short ones first."""
    syllables = [head + middle for head in [*"bcdfghlmnprstvw", "st", "tr", "ch"] for middle in [*"aeiou", "ea", "ou"]]
    words = [*syllables]
    for word in words:  # the list grows during the loop
        words += [word + more for more in syllables]
        if len(words) >= TYPES:
            return words[:TYPES]
    raise AssertionError


def write_text(path: Path, megabytes: int) -> None:
    """Write sentences and paragraphs. Word frequency falls with its rank; some words are new numbers."""
    rng = np.random.default_rng(1)
    words = np.array(lexicon(), object)
    sums = (np.arange(3, len(words) + 3) ** -1.3).cumsum()
    left = megabytes * 1_000_000
    with open(path, "w", encoding="utf-8") as file:
        while left > 0:
            chosen = words[np.searchsorted(sums, rng.random(100_000) * sums[-1])]
            ends = rng.random(len(chosen))
            chosen[ends < 0.005] = [f"{number}" for number in rng.integers(0, 10**9, (ends < 0.005).sum())]
            for share, mark in ((0.01, ".\n\n"), (0.06, "."), (0.12, ",")):
                now = (ends > 0.005) & (ends < share)
                chosen[now] += mark
                ends[now] = 1
            left -= file.write(" ".join(chosen)[:left] + "\n")


def measure(path: Path, tokenizer: Path) -> dict[str, float]:
    """Encode the file and write the cache; return speed and peak memory. Runs in a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        texts = open_documents(TextData(train=f"{path}", cache=cache), "train")  # type: ignore[arg-type]
        loaded = load_tokenizer(tokenizer)
        before = peak()
        start, cpu_start = time.perf_counter(), time.process_time()
        encoded = Corpus(texts, loaded)
        seconds, busy = time.perf_counter() - start, time.process_time() - cpu_start
    rates = {"rate": encoded.bytes / 1e6 / seconds, "each": encoded.bytes / 1e6 / busy}
    return rates | {"tokens": len(encoded), "before": before, "peak": peak()}


def peak() -> float:
    """Peak memory of this process in MB. Outside Linux that of the parent may count too."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 500], help="MB of synthetic text")
    parser.add_argument("--measure", nargs=2, metavar=("TEXT", "TOKENIZER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*map(Path, options.measure))))
        return
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, text = Path(folder, "tokenizer.json"), Path(folder, "text.txt")
        write_text(text, min(10, *options.sizes))
        train_tokenizer(TokenizerConfig(vocab=VOCAB), open_documents(TextData(train=f"{text}"), "train").sample()).save(
            tokenizer
        )  # type: ignore[arg-type]
        for size in options.sizes:
            write_text(text, size)
            command = [sys.executable, "-m", "benchmarks.corpus", "--measure", f"{text}", f"{tokenizer}"]
            result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            print(
                f"{size} MB: {result['rate']:.1f} MB/s ({result['each']:.1f} per processor second), "
                f"{result['tokens']:,} tokens, "
                f"peak {result['peak']:.0f} MB ({result['before']:.0f} MB before the first byte was read)"
            )


if __name__ == "__main__":
    main()
