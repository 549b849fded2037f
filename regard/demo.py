"""`regard demo`: from nothing to a trained, evaluated, translating model and a picture of its attention."""

import sys
import time
from itertools import count
from pathlib import Path

EXAMPLES = 3  # translations before the user's eyes


def demo(out: Path) -> None:
    from .api import train
    from .synthetic.dates import make_dates

    began = time.monotonic()
    folder = free_path(out)
    print(f"English dates to German ones: learning from embedded data, into {folder}", file=sys.stderr)
    system = train("dates", out=folder, progress=True)
    if system is None:
        return  # Ctrl-C; the loop has said how to go on
    test = make_dates(system.run.data.locales, system.run.data.examples, seed=1)["test"]
    figures = system.evaluate()
    print(f"{figures['examples']} examples, none of whose dates was seen in training:")
    chosen = [test[i] for i in range(EXAMPLES)]
    for (source, right), said in zip(chosen, system.predict([source for source, _ in chosen]), strict=True):
        print(f"  {source!r} -> {said!r}{'' if said == right else f', and right is {right!r}'}")
    picture = folder / "attention.png"
    system.look(max((source for source, _ in chosen), key=len)).save(picture)
    print(f"seconds {time.monotonic() - began:.0f}")
    print(f"try it  regard predict {folder}")
    print(f"exact match {figures['exact']:.4f}")
    print(f"picture {picture}")


def free_path(out: Path) -> Path:
    """`out`, or the first of out-2, out-3 … that is not there: an earlier demo is never overwritten."""
    names = (out if number == 1 else out.with_name(f"{out.name}-{number}") for number in count(1))
    return next(name for name in names if not name.exists())
