"""Waiting threads: `python -m benchmarks threads`. Steps of the recipe `dates` on quiet cores, and beside busy loops.

Every training is a process of its own; the settings take turns. Counted are the steps after the first, without imports,
data and validation. `regard` is what the command line sets. The number of different weights is printed below: ways to
wait change no bits.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.threads import VARIABLES, limit_spinning

if TYPE_CHECKING:  # they import torch, which reads how threads wait when it is imported
    from .report import Report, Section

SIZES = ("tiny", "small")  # that of the recipe first
PARTS = ("quiet", "busy")
STEPS = 40
BUSY_LOOPS = 3
OURS = "regard"
ONE_THREAD = "one thread"
SETTINGS: dict[str, dict[str, str]] = {
    "spinning": {},  # the default of OpenMP
    ONE_THREAD: {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "spins 100": {"GOMP_SPINCOUNT": "100"},
    "spins 1000": {"GOMP_SPINCOUNT": "1000"},
    "spins 10000": {"GOMP_SPINCOUNT": "10000"},
    OURS: {},
}


def main(
    device: str, size: str, rounds: int, parts: tuple[str, ...], settings: Mapping[str, Mapping[str, str]] = SETTINGS
) -> "Report":
    """Time all settings. The device is not used: only threads of the CPU wait in this way."""
    from .report import Report

    about: dict[str, Any] = {"cores": os.cpu_count(), "size": size, "steps": STEPS, "rounds": rounds}
    sections = []
    for part in parts:
        with busy_loops(BUSY_LOOPS if part == "busy" else 0):
            sections.append(time_settings(part, size, rounds, settings))
    return Report("threads", about, sections)


def time_settings(part: str, size: str, rounds: int, settings: Mapping[str, Mapping[str, str]]) -> "Section":
    """Steps per second of every setting in every round, in turns."""
    from .report import Section

    rates: dict[str, list[float]] = {name: [] for name in settings}
    weights: dict[str, set[str]] = {name: set() for name in settings}
    for number in range(rounds):
        for name, variables in settings.items():
            found = run_training(name, variables, size)
            rates[name].append(STEPS / found["seconds"])
            weights[name].add(found["weights"])
            print(f"{part}, round {number + 1}, {name}: {found['seconds']:.2f} s", file=sys.stderr)
    several = set().union(*(each for name, each in weights.items() if name != ONE_THREAD))
    fact = f"{len(several)} different weights by {len(settings) - (ONE_THREAD in settings)} ways to wait"
    return Section(f"{part}, recipe dates", "steps/s", rates, (OURS,), [fact])


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Programs that always compute, beside the code of this context."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_training(name: str, variables: Mapping[str, str], size: str) -> dict[str, Any]:
    """Seconds of a training in its own process, with these variables only, and a digest of its weights."""
    own = {key: value for key, value in os.environ.items() if key not in (*VARIABLES, "OMP_NUM_THREADS")}
    command = [sys.executable, "-m", "benchmarks.threads", name, size, str(STEPS)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**own, **variables})
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def train(name: str, size: str, steps: int) -> dict[str, Any]:
    """Train in this process."""
    if name == OURS and not limit_spinning():
        raise RuntimeError("torch was imported too early")
    import torch

    import regard

    torch.set_num_threads(1 if name == ONE_THREAD else torch.get_num_threads())
    settings = {"train.steps": steps + 1, "train.tensorboard": False, "data.examples": 200 * steps, "device": "cpu"}
    times: list[float] = []

    def on_step(context: regard.CallbackContext) -> None:
        if context.moment == "step":
            times.append(time.monotonic())

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        regard.train("dates", {**settings, "model.size": size}, out=out, callbacks=[on_step])
        seconds = times[-1] - times[0]
        digest = hashlib.blake2b((out / "model.safetensors").read_bytes(), digest_size=8).hexdigest()
    return {"seconds": seconds, "weights": digest}


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
