"""Draw curves.png from metrics.jsonl."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from .progress import Record, read_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, TRAIN, VALID = "#30343b", "#3b6fb6", "#d1622b"
METRIC_TITLES = {
    "bleu": "BLEU", "chrf": "chrF", "exact": "exact match", "spans": "span F1", "accuracy": "accuracy",
    "perplexity": "perplexity",
}  # in order of preference  # fmt: skip


def draw(folder: Path) -> Path | None:
    """Draw the loss, one validation metric and the learning rate of a run; return None if there are no records."""
    records = read_records(folder / "metrics.jsonl")
    train, valid = ([record for record in records if record["event"] == event] for event in ("train", "valid"))
    if not train:
        return None
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: no window, no state shared with the caller's own figures

    metric = next((name for name in METRIC_TITLES if _points(valid, name)[0]), None)
    colors: Any = dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context({"font.size": 9, **colors}):
        figure = Figure(figsize=(11 if metric else 8, 3.4), dpi=120, layout="constrained")
        panels = list(figure.subplots(1, 3 if metric else 2))
        _draw_loss(panels[0], train, valid)
        if metric:
            _draw_line(panels[1], valid, metric, VALID, "valid")
            panels[1].set_title(f"{METRIC_TITLES[metric]} on valid")
        _draw_line(panels[-1], train, "lr", TRAIN, "")
        panels[-1].set_title("learning rate")
        panels[-1].ticklabel_format(axis="y", style="sci", scilimits=(-3, 3), useMathText=True)
        for panel in panels:
            _style(panel)
        path = folder / "curves.png"
        with files.atomic_write(path) as draft:
            figure.savefig(draft, format="png", metadata={"Software": None})
    return path


def _draw_loss(panel: "Axes", train: list[Record], valid: list[Record]) -> None:
    _draw_line(panel, train, "loss", TRAIN, "train")
    _draw_line(panel, valid, "loss", VALID, "valid")
    panel.set_title("loss per token, nats")
    panel.legend(frameon=False)


def _draw_line(panel: "Axes", records: list[Record], name: str, color: str, label: str) -> None:
    steps, values = _points(records, name)
    marks: dict[str, Any] = {"marker": "o", "markersize": 3.5} if label == "valid" or len(steps) == 1 else {}
    panel.plot(steps, values, color=color, linewidth=1.5, label=label, **marks)


def _points(records: list[Record], name: str) -> tuple[list[int], list[float]]:
    """Steps and values, without records whose value is not a number."""
    points = [(record["step"], record[name]) for record in records if isinstance(record.get(name), int | float)]
    return [step for step, _ in points], [value for _, value in points]


def _style(panel: "Axes") -> None:
    panel.set_xlabel("steps")
    panel.set_xlim(left=0)
    panel.title.set_fontweight("bold")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e3e6ea", linewidth=0.8)
    panel.set_axisbelow(True)
