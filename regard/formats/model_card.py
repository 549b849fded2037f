"""The README of an exported model: how it is used, what it was trained on and how, how well it does."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..config.merge import flatten
from ..config.run import Run
from ..config.schema import TASKS
from ..errors import UserError
from ..metrics.text import signature
from ..run_folder import read_run

METRICS = ("bleu", "chrf", "ter", "exact", "loss", "perplexity")
TEXT_METRICS = ("bleu", "chrf", "ter")


def model_card(
    system: Any, folder: Path, name: str, library: str, export: Any, figures: Mapping[str, Any] | None, averaged: int
) -> str:
    """README.md for what was made from the run in `folder`; `figures` are of a test, where there was one."""
    about, tag = read_run(folder), export.tag(system.run.model)
    head = [f"library_name: {library}", f"pipeline_tag: {tag}", "tags:", f"- {tag}", "- regard"]
    lines = ["---", *head, *languages(system.run), "---", "", f"# {name}", "", f"Made with regard {__version__}."]
    lines += section("Use", export.usage(system).strip("\n").splitlines())
    lines += section("Data", data(folder))
    lines += section("Training", training(about, averaged))
    valid = [] if averaged else validation_metrics(folder, system.run, about.get("weights", {}).get("step"))
    return "\n".join(lines + section("Figures", [*valid, *test_metrics(system.run, figures)])) + "\n"


def section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []


def languages(run: Run) -> list[str]:
    """Known only of the embedded data; of files nobody said."""
    known = () if run.data.train else getattr(run.data, "locales", ())
    return ["language:", *(f"- {locale.partition('_')[0]}" for locale in known)] if known else []


def data(folder: Path) -> list[str]:
    """What the training said of its data, as it was written down then; of files the names, not where they lay."""
    notes = [event["text"] for event in events(folder) if event.get("event") == "note"]
    return [f"- {re.sub(r'[^ ,]*/', '', note)}" for note in notes]


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not whole ({error}); restore it, or move it away") from error


def training(about: Mapping[str, Any], averaged: int) -> list[str]:
    values = dict(flatten(about["config"]))
    said = [key for key, origin in about.get("origin", {}).items() if origin == "command line" and key in values]
    words = [shlex.quote(f"{key}={command_line_value(values[key])}") for key in said]
    lines = ["```", " ".join(["regard train", str(about.get("recipe")), *words]), "```", ""]
    if averaged:
        lines.append(f"The weights are the mean of the last {averaged} checkpoints.")
    elif step := about.get("weights", {}).get("step"):
        lines.append(f"The weights are those after {step:,} updates.")
    versions = ", ".join(f"{name} {number}" for name, number in about.get("versions", {}).items())
    return [*lines, f"Versions: {versions}."]


def command_line_value(value: Any) -> str:
    """As it is written on the command line; of files the names, not where they lay."""
    if isinstance(value, list):
        return ",".join(Path(each[0]).name if isinstance(each, list) else str(each) for each in value)
    if isinstance(value, str):
        return Path(value).name if Path(value).is_absolute() else value
    return json.dumps(value)


def validation_metrics(folder: Path, run: Run, step: int | None) -> list[str]:
    """The figures on the validation data of the weights that were kept."""
    known = [event for event in events(folder) if event.get("event") == "valid" and event.get("step") == step]
    if not known:
        return []
    said = [name for name in TEXT_METRICS if name in known[-1]]
    right = reference_texts(run) if said else []
    signatures = {name: signature(name, right) for name in said if right}
    how = ", by greedy search" if said else ""
    return [f"On the validation data{how}:", "", *metric_table(run, known[-1], signatures), ""]


def reference_texts(run: Run) -> list[list[str]]:
    """The right answers of the validation data, if it is still there: their number is part of a signature."""
    from ..data.pairs import split_references
    from ..tasks.translate import data_split

    try:
        return [split_references(each[1]) for each in data_split(run, "valid")]
    except UserError:
        return []


def test_metrics(run: Run, figures: Mapping[str, Any] | None) -> list[str]:
    if not figures:
        return []
    signatures = {name: figures[f"{name} signature"] for name in TEXT_METRICS if f"{name} signature" in figures}
    counts = [f"{figures[name]:,} test {name}" for name in ("examples", "tokens") if name in figures]
    policy = f" ({figures['policy']})" if "policy" in figures else ""
    return [f"On {counts[0]}{policy}:", "", *metric_table(run, figures, signatures)]


def metric_table(run: Run, figures: Mapping[str, Any], signatures: Mapping[str, str]) -> list[str]:
    names = [name for name in dict.fromkeys((*METRICS, *TASKS[run.task].metrics)) if name in figures]
    told = {name: text.replace("|", r"\|") for name, text in signatures.items()}  # or each part would be a cell
    rows = [f"| {name} | {figures[name]:.4g} | {told.get(name, '')} |" for name in names]
    return ["| figure | value | signature |", "|---|---|---|", *rows]


def transformers_usage(system: Any) -> str:
    target = "source"
    if system.source is not system.target:
        target = 'AutoTokenizer.from_pretrained(folder, subfolder="target")'
    return f"""
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

folder = "."
source = AutoTokenizer.from_pretrained(folder)
target = {target}
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
batch = source(["a sentence"], return_tensors="pt", padding=True)
print(target.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

transformers ends a beam search as regard does with `decode.early_stopping=heuristic`.
"""


def ctranslate2_usage(system: Any) -> str:
    decode = system.run.decode
    beam = decode.beam if decode.kind == "beam" else 1
    target = "source" if system.source is system.target else 'Tokenizer.from_file("target/tokenizer.json")'
    return f"""
```python
import ctranslate2
from tokenizers import Tokenizer

translator = ctranslate2.Translator(".")
source = Tokenizer.from_file("tokenizer.json")
source.encode_special_tokens = True  # nothing in a text is control
target = {target}
tokens = source.encode("a sentence", add_special_tokens=False).tokens
found = translator.translate_batch([tokens], beam_size={beam}, length_penalty={decode.length_penalty:g},
                                   min_decoding_length=0, suppress_sequences=[["<pad>"], ["<s>"]])
print(target.decode([target.token_to_id(token) for token in found[0].hypotheses[0]]))
```

The model adds END to the source by itself. END counts in the length that a score is divided by, and a beam search ends
as in regard with `decode.early_stopping=first`.
"""


def bert_usage(system: Any) -> str:
    from .huggingface.bert import architecture

    return encoder_usage(architecture(system.run.model))


def encoder_usage(name: str, before: str = "", words: str = "") -> str:
    """`before` is a line before the model is asked, `words` what it is asked besides."""
    shown = "last_hidden_state" if name.endswith("Model") else "to_tuple()[0]"
    return f"""
```python
from transformers import AutoTokenizer, {name}

folder = "."
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {name}.from_pretrained(folder).eval()
batch = tokenizer(["a sentence"], return_tensors="pt", padding=True, truncation=True)
{before}print(model(**batch{words}).{shown})
```
"""
