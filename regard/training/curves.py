"""curves.png: what metrics.jsonl says, drawn."""

from pathlib import Path
from typing import Any

from .. import files
from .progress import Record, read

INK, TRAIN, VALID = "#30343b", "#3b6fb6", "#d1622b"
SHOWN = {
    "bleu": "BLEU", "chrf": "chrF", "exact": "exact match", "spans": "F1 of spans", "accuracy": "accuracy",
    "perplexity": "perplexity",
}  # in order of preference  # fmt: skip


def draw(folder: Path) -> Path | None:
    """Draw the loss, the figure of the evaluations and the learning rate of a run; None where nothing is recorded."""
    records = read(folder / "metrics.jsonl")
    train, valid = ([record for record in records if record["event"] == event] for event in ("train", "valid"))
    if not train:
        return None
    import matplotlib
    from matplotlib.figure import Figure  # without pyplot: no window, no state shared with the caller's own drawing

    metric = next((name for name in SHOWN if _points(valid, name)[0]), None)
    style: Any = dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context({"font.size": 9, **style}):
        figure = Figure(figsize=(11 if metric else 8, 3.4), dpi=120, layout="constrained")
        panels = list(figure.subplots(1, 3 if metric else 2))
        _loss(panels[0], train, valid)
        if metric:
            _line(panels[1], valid, metric, VALID, "valid")
            panels[1].set_title(f"{SHOWN[metric]} on valid")
        _line(panels[-1], train, "lr", TRAIN, "")
        panels[-1].set_title("learning rate")
        panels[-1].ticklabel_format(axis="y", style="sci", scilimits=(-3, 3), useMathText=True)
        for panel in panels:
            _dress(panel)
        path = folder / "curves.png"
        with files.atomic_write(path) as draft:
            figure.savefig(draft, format="png", metadata={"Software": None})
    return path


def _loss(panel: Any, train: list[Record], valid: list[Record]) -> None:
    _line(panel, train, "loss", TRAIN, "train")
    _line(panel, valid, "loss", VALID, "valid")
    panel.set_title("loss per token, nats")
    panel.legend(frameon=False)


def _line(panel: Any, records: list[Record], name: str, colour: str, label: str) -> None:
    steps, values = _points(records, name)
    marks: dict[str, Any] = {"marker": "o", "markersize": 3.5} if label == "valid" or len(steps) == 1 else {}
    panel.plot(steps, values, color=colour, linewidth=1.5, label=label, **marks)


def _points(records: list[Record], name: str) -> tuple[list[int], list[float]]:
    """Steps and values, without those that were no numbers."""
    found = [(record["step"], record[name]) for record in records if isinstance(record.get(name), int | float)]
    return [step for step, _ in found], [value for _, value in found]


def _dress(panel: Any) -> None:
    panel.set_xlabel("updates")
    panel.set_xlim(left=0)
    panel.title.set_fontweight("bold")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e3e6ea", linewidth=0.8)
    panel.set_axisbelow(True)
