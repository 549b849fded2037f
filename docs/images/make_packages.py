"""Draws docs/images/packages.svg, the packages in their order of imports: `python docs/images/make_packages.py`."""

from html import escape
from pathlib import Path

# From the top: a module imports its own row and the rows below it, as `tests/test_structure.py` checks.
ROWS = [
    ("use", "cli  demo  sklearn", "one function per verb: parse, call, print"),
    ("use", "api  plugins  testing", "train, load, convert …; parts of users; the laws of families"),
    ("runs", "runs", "launch or resume, start from other weights, load, tune over a base, stages"),
    ("runs", "formats", "Hugging Face folders, PEFT, GGUF, CTranslate2, subtitles, COCO results"),
    ("tasks", "measure", "attribution, deletion, head reports and effects, logit lens, comparison"),
    ("tasks", "tasks", "one folder per task; generate/, label/ and parallel/ hold what several share"),
    ("tasks", "modalities", "text, image, sound: read, limit, batch, key, show"),
    ("tasks", "messages", "requests, results, media, alignments: the types that are JSON"),
    ("work", "training", "loop, steps, checkpoints, schedules, optimizer, callbacks, progress"),
    ("work", "decode", "parallel/ → engine/ → search/"),
    ("data", "synthetic", "embedded data"),
    ("data", "data", "datasets/ → sources/ → tables/ → files/ → loading/"),
    ("data", "processors", "text/  image/  sound/  labels, boxes: raw values ⇄ tensors"),
    ("models", "families", "GPT, BERT, T5, ViT, DETR, Whisper …: one short file each"),
    ("models", "look", "record attention, views, pictures, the page"),
    ("models", "adapt", "passes over a finished model: LoRA, adapters, prompts, pruning, precision"),
    ("models", "metrics", "scores of predictions"),
    ("models", "alignment", "word alignment of sentence pairs"),
    ("models", "parts  device", "layers, kernels, positions, caches, masks; media/  parallel/  efficient/  cache/"),
    ("settings", "config", "settings, strategies, merging, registries, run.json; no torch"),
    ("settings", "files  recipes", "atomic writes; TOML recipes"),
    ("settings", "errors  html  progress  threads", "UserError; tables for notebooks; progress; how threads wait"),
]
COLORS = {
    "use": "#dbeafe", "runs": "#e0e7ff", "tasks": "#ede9fe", "work": "#fce7f3", "data": "#ffedd5", "models": "#dcfce7",
    "settings": "#f3f4f6",
}  # fmt: skip
WIDTH, HEIGHT, NAME = 860, 30, 230


def draw_packages() -> str:
    """The picture as SVG: a row per level, colored by what the level is for."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{len(ROWS) * HEIGHT + 10}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{len(ROWS) * HEIGHT + 10}" fill="white"/>',
    ]
    for number, (group, names, contents) in enumerate(ROWS):
        top = 5 + number * HEIGHT
        middle = top + HEIGHT / 2 + 4
        lines += [
            f'<rect x="5" y="{top}" width="{WIDTH - 10}" height="{HEIGHT - 3}" rx="4" fill="{COLORS[group]}"/>',
            f'<text x="15" y="{middle}" font-weight="bold">{escape(" · ".join(names.split()))}</text>',
            f'<text x="{NAME}" y="{middle}">{escape(contents)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("packages.svg").write_text(draw_packages(), encoding="utf-8")
