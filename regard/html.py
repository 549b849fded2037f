"""Tables in HTML, for notebooks."""

from collections.abc import Mapping
from html import escape
from typing import Any

LONG = 200  # characters of a value that are shown


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """A table of names and values below a title."""
    lines = "".join(
        f"<tr><td style='text-align:left'>{escape(name)}</td><td style='text-align:left'>{_cell(value)}</td></tr>"
        for name, value in rows.items()
    )
    return f"<b>{escape(title)}</b><table>{lines}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return escape(text if len(text) <= LONG else f"{text[: LONG - 1]}…")
