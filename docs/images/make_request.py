"""Draws docs/images/request.svg, the way of a request: `python docs/images/make_request.py`."""

from html import escape
from pathlib import Path

# Columns: who holds the request, what happens there, where its code is.
STEPS = [
    ("caller", "predict(x, beam=4)   submit(request)   stream(x)", "a request: a frozen value of regard.messages"),
    ("task", "async def answer(request)", "plan: decode.* of the run with what the request changes, checked once"),
    ("engine", "await Read(modality.read, raw)", "many raw items at once; in threads while a server runs"),
    ("engine", "await Generate(prompt, source, strategy …)", "closed batches for predict, an open batch for streams"),
    ("engine", "await Trace · Score · Forward · Encode …", "passes of the model; jobs of one group share a batch"),
    ("task", "return TranslateResult(…)", "the result; its JSON is its type"),
    ("caller", "result   deltas   error", "of this request alone: neighbors change nothing"),
]
COLORS = {"caller": "#dbeafe", "task": "#ede9fe", "engine": "#fce7f3"}
WIDTH, HEIGHT, CODE, ABOUT = 900, 34, 100, 440


def draw_request() -> str:
    """The picture as SVG: a row for each step, colored by who does it."""
    height = len(STEPS) * HEIGHT + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, (who, code, about) in enumerate(STEPS):
        top = 5 + number * HEIGHT
        middle = top + HEIGHT / 2 + 2
        lines += [
            f'<rect x="5" y="{top}" width="{WIDTH - 10}" height="{HEIGHT - 6}" rx="4" fill="{COLORS[who]}"/>',
            f'<text x="15" y="{middle}" font-weight="bold">{who}</text>',
            f'<text x="{CODE}" y="{middle}" font-family="monospace" font-size="12">{escape(code)}</text>',
            f'<text x="{ABOUT}" y="{middle}">{escape(about)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("request.svg").write_text(draw_request(), encoding="utf-8")
