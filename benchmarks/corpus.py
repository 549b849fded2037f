"""`python -m benchmarks.corpus`: made text into the token cache, by a byte-level BPE of 16 k; speed, peak memory."""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from regard.config.schema import TextData, TokenizerConfig
from regard.data.corpus import Corpus
from regard.data.documents import open_documents
from regard.processors.tokenizers import load_tokenizer, train_tokenizer

TYPES = 400_000  # words of the made language; few of them make most of a text
VOCAB = 16_000


def lexicon() -> list[str]:
    """Words of one to three syllables, the short ones first."""
    syllables = [head + middle for head in [*"bcdfghlmnprstvw", "st", "tr", "ch"] for middle in [*"aeiou", "ea", "ou"]]
    made = [*syllables]
    for word in made:  # it grows meanwhile
        made += [word + more for more in syllables]
        if len(made) >= TYPES:
            return made[:TYPES]
    raise AssertionError


def text(path: Path, megabytes: int) -> None:
    """Sentences and paragraphs; how often a word comes goes down with its rank, and numbers come that never did."""
    chance = np.random.default_rng(1)
    words = np.array(lexicon(), object)
    sums = (np.arange(3, len(words) + 3) ** -1.3).cumsum()
    left = megabytes * 1_000_000
    with open(path, "w", encoding="utf-8") as file:
        while left > 0:
            chosen = words[np.searchsorted(sums, chance.random(100_000) * sums[-1])]
            ends = chance.random(len(chosen))
            chosen[ends < 0.005] = [f"{number}" for number in chance.integers(0, 10**9, (ends < 0.005).sum())]
            for share, mark in ((0.01, ".\n\n"), (0.06, "."), (0.12, ",")):
                now = (ends > 0.005) & (ends < share)
                chosen[now] += mark
                ends[now] = 1
            left -= file.write(" ".join(chosen)[:left] + "\n")


def measure(path: Path, tokenizer: Path) -> dict[str, float]:
    """In a process of its own: what it takes to encode this file and write the cache."""
    with tempfile.TemporaryDirectory() as cache:
        texts = open_documents(TextData(train=f"{path}", cache=cache), "train")  # type: ignore[arg-type]
        learnt = load_tokenizer(tokenizer)
        before = peak()
        began, worked = time.perf_counter(), time.process_time()
        found = Corpus(texts, learnt)
        seconds, busy = time.perf_counter() - began, time.process_time() - worked
    rates = {"rate": found.bytes / 1e6 / seconds, "each": found.bytes / 1e6 / busy}
    return rates | {"tokens": len(found), "before": before, "peak": peak()}


def peak() -> float:
    """MB that this process has held at most. Linux knows; elsewhere what the parent held may count too."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 500], help="MB of made text")
    parser.add_argument("--measure", nargs=2, metavar=("TEXT", "TOKENIZER"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measure(*map(Path, asked.measure))))
        return
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, made = Path(folder, "tokenizer.json"), Path(folder, "made.txt")
        text(made, min(10, *asked.sizes))
        train_tokenizer(TokenizerConfig(vocab=VOCAB), open_documents(TextData(train=f"{made}"), "train").sample()).save(
            tokenizer
        )  # type: ignore[arg-type]
        for size in asked.sizes:
            text(made, size)
            own = [sys.executable, "-m", "benchmarks.corpus", "--measure", f"{made}", f"{tokenizer}"]
            found = json.loads(subprocess.run(own, check=True, stdout=subprocess.PIPE).stdout)
            print(
                f"{size} MB: {found['rate']:.1f} MB/s ({found['each']:.1f} per processor second), "
                f"{found['tokens']:,} tokens, "
                f"peak {found['peak']:.0f} MB ({found['before']:.0f} MB of it before the first byte was read)"
            )


if __name__ == "__main__":
    main()
