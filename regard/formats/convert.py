"""A finished run in other people's formats, or with other weights. What is written appears whole and checked."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..config.run import Run
from ..config.schema import Sides
from ..errors import UserError
from ..files import atomic_write
from ..parts.layer import smallest_context
from ..processors.external import MarianTokenizer
from ..run_folder import is_run, read_run, write_run
from . import ctranslate2, peft
from .huggingface import bert_export, causal_parity, gpt2_export, longformer_export, marian_export, t5_export
from .model_card import bert_usage, ctranslate2_usage, model_card, transformers_usage
from .parity import check_ctranslate2, check_texts, export_error

MAX_DIFFERENCE = 1e-4  # of the largest logit, at most, between a model with LoRA beside its maps and with LoRA in them
PROBE_TOKENS = 9  # tokens of the texts that are compared
LIBRARIES = {"huggingface": "transformers", "ctranslate2": "ctranslate2", "peft": "peft"}  # by format: what reads it


class Exporter(NamedTuple):
    """How a family is written in a format."""

    name: str
    unsupported: Callable[[Any], list[str]]  # what of a model's config does not fit, in words
    write: Callable[[Any, Path, str], None]  # (system, draft, precision): everything but the README
    check: Callable[[Any, Path, str], str]  # (system, draft, precision): what was found equal, in words
    usage: Callable[[Any], str]  # (system): how the README says to use it
    tag: Callable[[Any], str] = lambda c: "translation"  # (config): what the Hub calls such a model


EXPORTERS = {
    ("huggingface", "transformer"): Exporter(
        "a Marian folder", marian_export.unsupported, marian_export.write, check_texts, transformers_usage
    ),
    ("huggingface", "t5"): Exporter(
        "a T5 folder", t5_export.unsupported, t5_export.write, check_texts, transformers_usage
    ),
    ("huggingface", "bert"): Exporter(
        "a BERT folder", bert_export.unsupported, bert_export.write, bert_export.check, bert_usage, bert_export.tag
    ),
    ("huggingface", "longformer"): Exporter(
        "a Longformer folder", longformer_export.unsupported, longformer_export.write, longformer_export.check,
        longformer_export.usage, bert_export.tag,
    ),
    ("ctranslate2", "transformer"): Exporter(
        "a CTranslate2 model", ctranslate2.unsupported, ctranslate2.write, check_ctranslate2, ctranslate2_usage
    ),
    ("huggingface", "gpt"): Exporter(
        "a GPT-2 or Llama folder", gpt2_export.unsupported, gpt2_export.write, causal_parity.check, gpt2_export.usage,
        lambda c: "text-generation",
    ),
    ("peft", "gpt"): Exporter(
        "a PEFT folder", gpt2_export.unsupported, peft.write, peft.check, peft.usage, lambda c: "text-generation"
    ),
    ("peft", "bert"): Exporter(
        "a PEFT folder", bert_export.unsupported, peft.write, peft.check, peft.usage, bert_export.tag
    ),
    ("peft", "t5"): Exporter("a PEFT folder", t5_export.unsupported, peft.write, peft.check, peft.usage),
}  # fmt: skip


def find_exporter(path: Path, to: str, model: Any) -> Exporter:
    """The way to this format, if the model fits it."""
    if (to, model.family) not in EXPORTERS:
        able = ", ".join(family for format, family in EXPORTERS if format == to)
        raise UserError(f"{path} cannot become --to {to}: model.family is {model.family}; expected {able}")
    export = EXPORTERS[to, model.family]
    if found := export.unsupported(model):
        raise UserError(f"{path} cannot become {export.name}; what does not fit: {', '.join(found)}")
    return export


def convert(
    path: Path,
    out: Path,
    load: Callable[[Path], Any],
    to: str | None = None,
    average: int = 0,
    precision: str = "fp32",
    data: Sides | None = None,
    merge: bool = False,
) -> dict[str, str]:
    """Write `out` and tell what was checked. `load` gives what the run holds, in fp32 and on the CPU."""
    check_arguments(path, out, to, average, precision, merge)
    system = load(path)
    check_tuning(path, system.run, to, merge)
    export = None if to is None else find_exporter(path, to, system.run.model)
    if export is not None and any(isinstance(each, MarianTokenizer) for each in system.tokenizers.values()):
        raise UserError(
            f"{path} cannot become {export.name}: it began with a Marian folder, and this export does not write "
            "sentencepiece vocabularies; use the run itself"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    told = {"out": str(out)}
    with average_weights(path, system.model, average), atomic_write(out) as draft:
        if merge:
            told["merged"] = merge_lora(system)
        figures = system.evaluate(data) if data is not None else {}
        if to is None or export is None:
            copy_run(path, system, draft, average, merge)
        else:
            export.write(system, draft, precision)
            told["checked"] = export.check(system, draft, precision)
            readme = model_card(system, path, out.name, LIBRARIES[to], export, figures, average)
            (draft / "README.md").write_text(readme, encoding="utf-8")
    return told | {name: f"{value:.4f}" for name, value in figures.items() if isinstance(value, float)}


def check_arguments(path: Path, out: Path, to: str | None, average: int, precision: str, merge: bool = False) -> None:
    formats, precisions = f"{', '.join(list(LIBRARIES)[:-1])} or {list(LIBRARIES)[-1]}", ", ".join(ctranslate2.TYPES)
    if to is not None and to not in LIBRARIES:
        raise UserError(f"--to {to} is no format; expected {formats}")
    if to is None and not average and not merge:
        raise UserError(f"there is nothing to convert to; say --to {formats}, --average 5 or --merge")
    if average < 0 or average == 1:
        raise UserError(f"--average {average} averages nothing; expected a number of checkpoints, 2 or more")
    if precision not in ctranslate2.TYPES:
        raise UserError(f"--precision {precision} is unknown; expected {precisions}")
    if precision != "fp32" and to != "ctranslate2":
        raise UserError(
            f"--precision {precision} is for --to ctranslate2; elsewhere the weights stay fp32, leave it out"
        )
    if out.exists():
        raise UserError(f"{out} exists; choose another --out, so that nothing there is lost")
    if not is_run(path):
        raise UserError(f"{path} is no run folder: it has no run.json; give one that `regard train` made")
    if to == "ctranslate2":
        ctranslate2.import_ctranslate2()


def check_tuning(path: Path, run: Run, to: str | None, merge: bool) -> None:
    kind = run.tune.kind
    if to == "peft" and (kind == "none" or merge):
        what = "has nothing" if kind == "none" else "is to have nothing left (--merge)"
        raise UserError(f"{path} {what} beside its weights; --to peft is for what tuning has learnt")
    if to == "peft":
        peft.check_family(str(path), kind, run.model.family)
        return
    if merge and kind != "lora":
        what = "is not tuned" if kind == "none" else f"is tuned by {kind}, which no weight of the base can take in"
        raise UserError(f"{path} {what}; --merge is for tune.kind=lora")
    if kind != "none" and to is not None and not merge:
        how = "add --merge" if kind == "lora" else f"tune.kind={kind} has no place in that format"
        raise UserError(f"{path} is tuned over another model and --to {to} writes whole ones; {how}")


def merge_lora(system: Any) -> str:
    """Fold LoRA into the base, if that says the same; what was found, in words. The model is then a whole one."""
    from ..adapt import lora, tune

    before = probe_logits(system)
    paths = len(list(lora.branches(system.model)))
    lora.merge(system.model)
    apart, largest = (probe_logits(system) - before).abs().max().item(), before.abs().max().item()
    if not apart <= MAX_DIFFERENCE * max(largest, 1.0):
        raise export_error(f"merged and unmerged logits are apart by {apart:.2g}")
    tune.keep_merged(system.model)
    return f"{paths} maps; logits apart by {apart:.1g}"


@torch.no_grad()
def probe_logits(system: Any) -> Tensor:
    """What the model says to some tokens, in as many texts as it reads at once."""
    c, model = system.run.model, system.model
    vocabs = [size for size in (c.vocab, getattr(c, "target_vocab", 0)) if size]
    needed = [each for each in signature(model.forward).parameters.values() if each.default is each.empty]
    draw = torch.Generator().manual_seed(1)
    context = smallest_context(model)
    room = PROBE_TOKENS if context is None else context - getattr(system.run.tune, "length", 0)
    tokens = max(1, min(PROBE_TOKENS, room))
    found: Tensor = model(*(torch.randint(min(vocabs), (4, tokens), generator=draw) for _ in needed))
    return found


def average_weights(path: Path, model: Any, count: int) -> AbstractContextManager[None]:
    """Inside, the model has the mean of the weights of the run's last checkpoints."""
    from ..training import checkpoint
    from ..training.average import averaged_checkpoints

    if not count:
        return nullcontext()
    found = checkpoint.latest(path, count)
    if len(found) < count:
        raise UserError(
            f"{path} has {len(found)} checkpoints and not the {count} of --average; "
            f"average fewer, or train with train.keep={count}"
        )
    return averaged_checkpoints(model, found)


def copy_run(path: Path, system: Any, draft: Path, average: int, merge: bool = False) -> None:
    """The run with other weights. Its checkpoints stay where they are: there is nothing to go on with."""
    from ..training import save_model

    draft.mkdir()
    about = read_run(path)
    step = about.get("weights", {}).get("step", 0)
    about |= {"weights": {"step": step, "averaged": average}}
    if merge:
        about |= {"config": about["config"] | {"tune": {"kind": "none"}}, "merged": about["config"]["tune"]}
    write_run(draft, about)
    save_model(system.model, draft / "model.safetensors", step)
    for file in (*path.glob("*tokenizer.json"), *path.glob("labels.json"), *path.glob("metrics.jsonl")):
        shutil.copy(file, draft / file.name)
