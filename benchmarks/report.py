"""Reports of a benchmark, as a table for people and as plain values for programs."""

import statistics
from dataclasses import dataclass, field
from typing import Any

from .timing import ratio


@dataclass(frozen=True)
class Section:
    """One workload, run by several programs. `ours` are the names of those that are regard."""

    name: str
    unit: str
    rates: dict[str, list[float]]  # work per second of every program in each round
    ours: tuple[str, ...]
    facts: list[str] = field(default_factory=list)

    @property
    def peers(self) -> list[str]:
        return [name for name in self.rates if name not in self.ours]

    def values(self) -> dict[str, Any]:
        programs = [
            {"name": name, "ours": name in self.ours, "median": statistics.median(rates), "rates": rates}
            for name, rates in self.rates.items()
        ]
        ratios = []
        for name in self.ours:
            for peer in self.peers:
                middle, low, high = ratio(self.rates[name], self.rates[peer])
                ratios.append({"ours": name, "peer": peer, "median": middle, "low": low, "high": high})
        return {"name": self.name, "unit": self.unit, "facts": self.facts, "ways": programs, "ratios": ratios}

    def table(self) -> str:
        """One line per program; a peer's line has the speed-up of each of ours, with the range of single rounds."""
        rows = [[self.name, self.unit, *(f"{name} ×" for name in self.ours)]]
        for name, rates in self.rates.items():
            row = [name, f"{statistics.median(rates):,.4g}"]
            for own in self.ours if name in self.peers else ():
                middle, low, high = ratio(self.rates[own], rates)
                row.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
            rows.append(row)
        return "\n".join([*align_columns(rows), *(f"  {fact}" for fact in self.facts)])


@dataclass(frozen=True)
class Report:
    """All sections of a benchmark."""

    bench: str
    about: dict[str, Any]  # the machine, the versions, the options
    sections: list[Section]
    notes: list[str] = field(default_factory=list)  # what was not timed, and why

    def values(self) -> dict[str, Any]:
        sections = [section.values() for section in self.sections]
        return {"bench": self.bench, **self.about, "sections": sections, "notes": self.notes}

    def table(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return "\n\n".join([f"{self.bench}: {about}", *(section.table() for section in self.sections), *self.notes])


def align_columns(rows: list[list[str]]) -> list[str]:
    """Align the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=False)]
        lines.append("  ".join([f"{row[0]:<{widths[0]}}", *cells]).rstrip())
    return lines
