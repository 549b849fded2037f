"""README.md of an exported model: its usage, training data, training command and metrics."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..config.merge import flatten
from ..config.run import Run
from ..config.run_folder import is_run, read_run
from ..config.task_settings import task_settings
from ..errors import UserError
from ..files import JsonMapping, JsonObject
from ..metrics.text import signature
from ..metrics.tokenization import choose_tokenization

if TYPE_CHECKING:
    from ..data.source import Source
    from ..tasks.predictor import AnyPredictor
    from .exporter import Exporter

METRICS = ("bleu", "chrf", "ter", "exact", "loss", "perplexity")
TEXT_METRICS = ("bleu", "chrf", "ter")


def model_card(
    predictor: "AnyPredictor",
    folder: Path,
    name: str,
    library: str,
    exporter: "Exporter",
    metrics: JsonMapping | None,
    averaged: int,
) -> str:
    """README.md of an export of the run in `folder`; `metrics` are those on test data, if it was measured."""
    about, tag = read_run(folder) if is_run(folder) else {}, exporter.tag(predictor.run.model)
    head = [f"library_name: {library}", f"pipeline_tag: {tag}", "tags:", f"- {tag}", "- regard"]
    lines = ["---", *head, *languages(predictor.run), "---", "", f"# {name}", "", f"Made with regard {__version__}."]
    lines += section("Use", exporter.usage(predictor).strip("\n").splitlines())
    lines += section("Data", data(folder))
    lines += section("Training", training(about, averaged) if about else [f"The weights are those of {folder.name}."])
    step = about.get("weights", {}).get("step")
    valid = [] if averaged else validation_metrics(folder, predictor.run, step)
    return "\n".join(lines + section("Metrics", [*valid, *evaluation_metrics(predictor.run, metrics)])) + "\n"


def section(title: str, lines: list[str]) -> list[str]:
    """A heading with its text; empty without text."""
    return ["", f"## {title}", "", *lines] if lines else []


def languages(run: Run) -> list[str]:
    """The languages of the embedded data; those of files are unknown."""
    locales = () if run.data.train else getattr(run.data, "locales", ())
    return ["language:", *(f"- {locale.partition('_')[0]}" for locale in locales)] if locales else []


def data(folder: Path) -> list[str]:
    """The facts that training logged about its data, with file names instead of paths."""
    notes = [event["text"] for event in events(folder) if event.get("event") == "note"]
    return [f"- {re.sub(r'[^ ,]*/', '', note)}" for note in notes]


def events(folder: Path) -> list[JsonObject]:
    """The records of metrics.jsonl."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it, or move it away") from error


def training(about: JsonMapping, averaged: int) -> list[str]:
    """The training command, the step of the weights, and the versions."""
    values = dict(flatten(about["config"]))
    keys = [key for key, origin in about.get("origin", {}).items() if origin == "command line" and key in values]
    settings = [shlex.quote(f"{key}={command_line_value(values[key])}") for key in keys]
    lines = ["```", " ".join(["regard train", str(about.get("recipe")), *settings]), "```", ""]
    if averaged:
        lines.append(f"The weights are the mean of the last {averaged} checkpoints.")
    elif step := about.get("weights", {}).get("step"):
        lines.append(f"The weights are those after {step:,} steps.")
    versions = ", ".join(f"{name} {number}" for name, number in about.get("versions", {}).items())
    return [*lines, f"Versions: {versions}."]


def command_line_value(value: object) -> str:
    """A setting as on the command line, with file names instead of paths."""
    if isinstance(value, list):
        return ",".join(Path(item[0]).name if isinstance(item, list) else str(item) for item in value)
    if isinstance(value, str):
        return Path(value).name if Path(value).is_absolute() else value
    return json.dumps(value)


def validation_metrics(folder: Path, run: Run, step: int | None) -> list[str]:
    """The metrics of the kept weights on validation data."""
    records = [event for event in events(folder) if event.get("event") == "valid" and event.get("step") == step]
    if not records:
        return []
    names = [name for name in TEXT_METRICS if name in records[-1]]
    references = reference_texts(run) if names else []
    tokenization = choose_tokenization(references, run.eval) if references else None
    signatures = {name: signature(name, references, tokenization) for name in names if references}
    search = ", by greedy search" if names else ""
    return [f"On the validation data{search}:", "", *metric_table(run, records[-1], signatures), ""]


def reference_texts(run: Run) -> list[list[str]]:
    """The references of the validation data if it still exists: a signature states their number."""
    from ..data.sources.pairs import split_references
    from ..tasks.task import task_module
    from ..tasks.translate.evaluation import data_split

    open_split: Callable[..., Source] = getattr(task_module(run.task), "data_split", data_split)
    try:
        examples = open_split(run, "valid")
        return [split_references(examples.text(index, 1)) for index in range(len(examples))]
    except UserError:
        return []


def evaluation_metrics(run: Run, metrics: JsonMapping | None) -> list[str]:
    """The metrics on test data."""
    if not metrics:
        return []
    signatures = {name: metrics[f"{name}_signature"] for name in TEXT_METRICS if f"{name}_signature" in metrics}
    counts = [f"{metrics[name]:,} test {name}" for name in ("examples", "tokens") if name in metrics]
    policy = f" ({metrics['policy']})" if "policy" in metrics else ""
    return [f"On {counts[0]}{policy}:", "", *metric_table(run, metrics, signatures)]


def metric_table(run: Run, metrics: JsonMapping, signatures: Mapping[str, str]) -> list[str]:
    """Metrics as a table in Markdown."""
    candidates = (*METRICS, *(metric.name for metric in task_settings(run.task).metrics))
    names = [name for name in dict.fromkeys(candidates) if name in metrics]
    escaped = {name: text.replace("|", r"\|") for name, text in signatures.items()}  # or each part would be a cell
    rows = [f"| {name} | {metrics[name]:.4g} | {escaped.get(name, '')} |" for name in names]
    return ["| metric | value | signature |", "|---|---|---|", *rows]


# --- usage examples --------------------------------------------------------------------------------------------------


def encoder_usage(name: str, before: str = "", arguments: str = "") -> str:
    """The example for a transformers class. `before` is a line before the call, `arguments` follow `**batch` in it."""
    output = "last_hidden_state" if name.endswith("Model") else "to_tuple()[0]"
    return f"""
```python
from transformers import AutoTokenizer, {name}

folder = "."
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {name}.from_pretrained(folder).eval()
batch = tokenizer(["a sentence"], return_tensors="pt", padding=True, truncation=True)
{before}print(model(**batch{arguments}).{output})
```
"""


def image_usage(name: str, last: str, mode: str) -> str:
    """The example for a transformers class that reads an image in this mode; `last` prints its `outputs`."""
    return f"""
```python
from PIL import Image
from transformers import AutoImageProcessor, {name}

folder = "."
processor = AutoImageProcessor.from_pretrained(folder)
model = {name}.from_pretrained(folder).eval()
image = Image.open("image.png").convert("{mode}")
outputs = model(**processor(image, return_tensors="pt"))
{last}
```
"""
