"""What a bench found, as a table for people and as plain values for programs."""

import statistics
from dataclasses import dataclass, field
from typing import Any

from .timing import ratio


@dataclass(frozen=True)
class Section:
    """One kind of work, done in several ways. `ours` are those of them that are this program."""

    name: str
    unit: str
    rates: dict[str, list[float]]  # of every way, its work per second in each round
    ours: tuple[str, ...]
    facts: list[str] = field(default_factory=list)

    @property
    def peers(self) -> list[str]:
        return [name for name in self.rates if name not in self.ours]

    def values(self) -> dict[str, Any]:
        ways = [
            {"name": name, "ours": name in self.ours, "median": statistics.median(rates), "rates": rates}
            for name, rates in self.rates.items()
        ]
        ratios = []
        for name in self.ours:
            for peer in self.peers:
                middle, low, high = ratio(self.rates[name], self.rates[peer])
                ratios.append({"ours": name, "peer": peer, "median": middle, "low": low, "high": high})
        return {"name": self.name, "unit": self.unit, "facts": self.facts, "ways": ways, "ratios": ratios}

    def table(self) -> str:
        """A line for each way; a peer's also says how many times as fast each of ours is, and its single rounds."""
        rows = [[self.name, self.unit, *(f"{name} ×" for name in self.ours)]]
        for name, rates in self.rates.items():
            row = [name, f"{statistics.median(rates):,.4g}"]
            for own in self.ours if name in self.peers else ():
                middle, low, high = ratio(self.rates[own], rates)
                row.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
            rows.append(row)
        return "\n".join([*aligned(rows), *(f"  {fact}" for fact in self.facts)])


@dataclass(frozen=True)
class Report:
    bench: str
    about: dict[str, Any]  # the machine, the versions, what was asked
    sections: list[Section]
    notes: list[str] = field(default_factory=list)  # what could not be timed, and why

    def values(self) -> dict[str, Any]:
        sections = [section.values() for section in self.sections]
        return {"bench": self.bench, **self.about, "sections": sections, "notes": self.notes}

    def table(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return "\n\n".join([f"{self.bench}: {about}", *(section.table() for section in self.sections), *self.notes])


def aligned(rows: list[list[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=False)]
        lines.append("  ".join([f"{row[0]:<{widths[0]}}", *cells]).rstrip())
    return lines
