"""What a server asks of the open batch: `python -m benchmarks.open_batch [--size tiny]`.

Prints how long prompts of unequal length take that enter together, one request that is left of many, sampling with
different settings, and the tokens of short streams while long prompts arrive: medians of interleaved rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from regard.decode import DecodeStrategy, Generator, Greedy, Sample, SearchRequest, Suppress
from regard.families import gpt

END = 0


@dataclass(frozen=True)
class Workload:
    """A model and the requests of each case."""

    width: int = 384
    layers: int = 6
    vocab: int = 8000
    sampled_width: int = 768  # of the model that samples from `sampled_vocab` tokens
    sampled_layers: int = 12
    sampled_vocab: int = 50257
    short: int = 20  # tokens of a prompt
    long: int = 600
    rows: int = 64
    tokens: int = 60  # of a stream


SIZES = {"base": Workload(), "tiny": Workload(64, 2, 300, 64, 2, 2000, 5, 160, 8, 20)}


def build(width: int, layers: int, vocab: int) -> gpt.Model:
    """A model with random weights."""
    torch.manual_seed(0)
    positions = {"kind": "learned", "tokens": 1024}
    settings = {"width": width, "heads": width // 64, "layers": layers, "inner": 4 * width, "vocab": vocab}
    return gpt.Model(gpt.Config.model_validate({**gpt.SIZES["tiny"], **settings, "positions": positions})).eval()


def requests(
    lengths: Sequence[int], tokens: int, vocab: int, strategy: DecodeStrategy | None = None
) -> list[SearchRequest]:
    """Prompts of these lengths; no text ends before its limit."""
    rng = torch.Generator().manual_seed(1)
    prompts = [tuple(torch.randint(1, vocab, (length,), generator=rng).tolist()) for length in lengths]
    return [SearchRequest(prompt, None, strategy or Greedy(), tokens, key=str(i)) for i, prompt in enumerate(prompts)]


def generator(model: gpt.Model, rows: int) -> Generator:
    return Generator(model, END, (Suppress([END]),), rows, 1024, 1024)


def seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def first_tokens(model: gpt.Model, lengths: Sequence[int], w: Workload) -> float:
    """Seconds until all of these prompts have their first token."""
    engine = generator(model, w.rows)
    for request in requests(lengths, 1, w.vocab):
        engine.submit(request)
    return seconds(engine.drain)


def entering(model: gpt.Model, w: Workload) -> float:
    """The time of short prompts and a long one together, by the sum of their separate times."""
    short = [w.short] * 15
    return first_tokens(model, [*short, w.long], w) / (first_tokens(model, short, w) + first_tokens(model, [w.long], w))


def one_left(model: gpt.Model, w: Workload) -> float:
    """A step when one request of many is left, by a step of a batch of one."""

    def step(lengths: Sequence[int]) -> float:
        engine = generator(model, w.rows)
        limits = [w.tokens] + [3] * (len(lengths) - 1)
        for request, limit in zip(requests(lengths, 1, w.vocab), limits, strict=True):
            engine.submit(replace(request, max_tokens=limit))
        while len(engine._batch.handles) != 1 or len(engine._batch.handles[0].tokens) < 8:
            engine.tick()
        return statistics.median(seconds(engine.tick) for _ in range(w.tokens - 12))

    return step([w.short] * w.rows) / step([w.short])


def sampling(model: gpt.Model, w: Workload) -> float:
    """The share of a step that 32 samples of eight settings take, beside the step of greedy search."""
    settings = [Sample(temperature=0.7 + number / 10, top_p=0.8 + number / 50, seed=number) for number in range(8)]

    def step(strategies: Sequence[DecodeStrategy]) -> float:
        engine = generator(model, 32)
        plain = requests([w.short] * 32, 30, w.sampled_vocab)
        for number, request in enumerate(plain):
            engine.submit(replace(request, strategy=strategies[number % len(strategies)]))
        engine.tick()
        return statistics.median(seconds(engine.tick) for _ in range(7))

    sampled, greedy = step(settings), step([Greedy()])
    return (sampled - greedy) / sampled


def beside_long_prompts(model: gpt.Model, w: Workload) -> float:
    """The 99th percentile of the time of a token of 12 streams while eight long prompts arrive, by that without."""

    def percentile(prompts: int) -> float:
        engine, times = generator(model, w.rows), list[float]()
        streams = [engine.submit(request) for request in requests([w.short] * 12, w.tokens, w.vocab)]
        engine.tick()
        arriving = requests([w.long * 5 // 4] * prompts, 2, w.vocab)
        while not all(stream.done for stream in streams):
            if arriving and len(times) % 4 == 0:
                engine.submit(arriving.pop())
            times.append(seconds(engine.tick))
        return statistics.quantiles(times, n=100)[98]

    return percentile(8) / percentile(0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    w = SIZES[given.size]
    model, sampled = build(w.width, w.layers, w.vocab), build(w.sampled_width, w.sampled_layers, w.sampled_vocab)
    cases: dict[str, Callable[[], float]] = {
        f"15 prompts of {w.short} tokens and one of {w.long} together / apart": lambda: entering(model, w),
        f"step of 1 request left of {w.rows} / of a batch of 1": lambda: one_left(model, w),
        "share of sampling with top_p, 32 rows, 8 settings": lambda: sampling(sampled, w),
        "p99 of a token beside 8 long prompts / without": lambda: beside_long_prompts(model, w),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(given.rounds):
        for name, case in cases.items():
            found[name].append(case())
    for name, values in found.items():
        print(f"{name}: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
