"""`regard demo`: train on embedded data, evaluate, translate some examples and draw the attention of one."""

import sys
import time
from itertools import count
from pathlib import Path

EXAMPLES = 3  # translations that are printed


def run_demo(out: Path) -> int:
    """Run the demo into `out`, or the first free of out-2, out-3 …; return the signal that stopped it, or 0."""
    from .config.data.texts import PairData
    from .config.run import resolve_run
    from .runs.load import load
    from .runs.work import run_training
    from .synthetic.dates import make_dates

    start = time.monotonic()
    folder = free_path(out)
    print(f"training on embedded data, English dates to German, into {folder}", file=sys.stderr)
    training = run_training("dates", {}, out=folder, resume=False, progress=True)
    if training.outcome.signal:
        return training.outcome.signal  # the loop has printed how to resume
    predictor = load(folder)
    data: PairData = resolve_run("dates").run.data
    test = make_dates(data.locales, data.examples, seed=1)["test"]
    metrics = predictor.evaluate()
    print(f"{metrics['examples']} test examples with dates that are not in the training data:")
    examples = [test[i] for i in range(EXAMPLES)]
    outputs = predictor.predict([source for source, _ in examples])
    for (source, reference), output in zip(examples, outputs, strict=True):
        print(f"  {source!r} -> {output!r}{'' if output == reference else f' (correct: {reference!r})'}")
    picture = folder / "attention.png"
    predictor.look(max((source for source, _ in examples), key=len)).save(picture)
    print(f"seconds {time.monotonic() - start:.0f}")
    print(f"try it  regard predict {folder}")
    print(f"exact match {metrics['exact']:.4f}")
    print(f"picture {picture}")
    return 0


def free_path(out: Path) -> Path:
    """`out`, or the first of out-2, out-3 … that does not exist: an earlier demo is never overwritten."""
    names = (out if number == 1 else out.with_name(f"{out.name}-{number}") for number in count(1))
    return next(name for name in names if not name.exists())
