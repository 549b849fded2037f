"""`python -m benchmarks look`: the time and size of a page of attention, and how soon a browser shows it.

An encoder reads a text of 200 tokens with 12 layers × 12 heads. Its weights are random: as they are ("random"), where
attention is almost uniform and compresses worst, and with queries and keys scaled by PEAKED ("peaked"), which
stands for sharper heads. The factor is not fitted to a trained model; the entropy of a head is printed beside both.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from regard.device import resolve_device
from regard.families import bert
from regard.look import AttentionView, ViewAxis, record_layers
from regard.parts import Attention, Inputs

SIZES = ("base", "tiny")
PARTS = ("random", "peaked")
SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "base": ({"width": 768, "heads": 12, "layers": 12, "inner": 3072}, 200),
    "tiny": ({"width": 32, "heads": 2, "layers": 2, "inner": 32}, 12),
}
PEAKED = 3.2  # times the projections of queries and keys
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]


@dataclass
class LookReport:
    """Seconds are medians over the rounds."""

    size: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        return {"bench": "look", "size": self.size, "rows": self.rows}

    def table(self) -> str:
        names = list(self.rows[0])
        lines = [names, *([str(row[name]) for name in names] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )


def main(device: str, size: str, rounds: int, parts: Sequence[str]) -> LookReport:
    report = LookReport(size)
    for part in parts:
        report.rows.append(measure(part, resolve_device(device), size, rounds))
    return report


def make_model(part: str, size: str, device: torch.device) -> nn.Module:
    settings, tokens = SHAPES[size]
    torch.manual_seed(1)
    config = bert.Config(**settings, size="tiny", vocab=500, positions={"kind": "learned", "tokens": tokens})
    model = bert.Model(config).to(device).eval()
    if part == "peaked":
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, Attention):
                    module.query.weight.mul_(PEAKED)
                    module.key.weight.mul_(PEAKED)
    return model


def measure(part: str, device: torch.device, size: str, rounds: int) -> dict[str, Any]:
    model, tokens = make_model(part, size, device), SHAPES[size][1]
    text = Inputs("tokens", torch.randint(500, (1, tokens), device=device))
    axis = ViewAxis.of_tokens("token", [f"▁{each}" for each in text.values[0].tolist()])
    seconds, processor = [], []
    with TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        for _ in range(rounds):
            began, spent = time.perf_counter(), time.process_time()
            with record_layers(model) as recorder:
                model.encode(text)  # type: ignore[operator]
            view = AttentionView.recorded(recorder, {"source": axis}, "bert, random weights")
            view.save(path)
            seconds.append(time.perf_counter() - began)
            processor.append(time.process_time() - spent)
        weights = torch.stack([each.weights for each in view.maps])
        entropy = -(weights * weights.clamp(min=1e-12).log()).sum(-1).mean()
        return {
            "weights": part,
            "nats per head": round(float(entropy), 2),
            "seconds to HTML": round(sorted(seconds)[len(seconds) // 2], 2),
            "of processor": round(sorted(processor)[len(processor) // 2], 2),
            "MB": round(path.stat().st_size / 1e6, 2),
            "ms to interactive": browser_milliseconds(path, rounds),
        }


def browser_milliseconds(path: Path, rounds: int) -> int | None:
    """From the navigation to the first view, which answers keys; the median. None without chromium or playwright."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if found is None:
        return None
    times = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=found, args=FLAGS)
        for _ in range(rounds):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(path.as_uri())
            page.wait_for_selector("#main[data-ready]")
            times.append(page.evaluate("performance.getEntriesByName('ready')[0].startTime"))
            page.close()
        browser.close()
    return round(sorted(times)[len(times) // 2])
