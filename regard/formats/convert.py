"""Conversion of a run to other formats, or to other weights. Output appears only complete and checked."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from ..adapt.ngrams import ngrams_of
from ..config.data.base import DataFiles
from ..config.run import Run
from ..config.run_folder import is_run, read_run
from ..errors import UserError
from ..files import atomic_write
from ..parts.ngrams import NGramCounts
from ..processors.text.external import MarianTokenizer
from ..processors.text.processor import TextProcessor
from ..progress import report_stage
from . import ctranslate2
from .exporter import Exporter
from .huggingface.folder import written_formats
from .model_card import model_card
from .model_files import find_gguf
from .parity import check_close
from .peft.names import check_peft_family
from .peft.write import EXPORTERS as PEFT
from .pruned_run import probe_logits, with_filled_heads, write_copy

if TYPE_CHECKING:
    from ..tasks.predictor import AnyPredictor

LIBRARIES = {"huggingface": "transformers", "ctranslate2": "ctranslate2", "peft": "peft"}  # by format: its library


def exporters(to: str) -> Mapping[str, Sequence[Exporter]]:
    """By family: the exporters of a format."""
    others = {"ctranslate2": ctranslate2.EXPORTERS, "peft": PEFT}
    formats = {} if to in others else written_formats()
    return others.get(to) or {name: [each.exporter for each in found] for name, found in formats.items()}


def find_exporter(path: Path, to: str, run: Run, ngrams: NGramCounts | None = None) -> Exporter:
    """The exporter for a model's family and a format; a UserError lists what does not fit. No format has n-grams."""
    model, found = run.model, exporters(to)
    if model.family not in found:
        families = ", ".join(found)
        raise UserError(f"{path} cannot become --to {to}: model.family is {model.family}; expected {families}")
    exporter = min(found[model.family], key=lambda each: len(each.unsupported(model)))
    refusals = exporter.unsupported(model)
    if ngrams is not None:
        refusals.append(f"data.ngrams.order={ngrams.order} (expected 0: there are no n-grams beside the encoder)")
    if refusals:
        names = " or ".join(each.name for each in found[model.family])
        raise UserError(
            f"{path} cannot become {names}; what does not fit: {', '.join(refusals)}; use the run itself, or "
            "train with the expected settings"
        )
    return exporter


def convert_run(
    path: Path,
    out: Path,
    load: Callable[[Path], "AnyPredictor"],
    to: str | None = None,
    average: int = 0,
    precision: str = "fp32",
    data: DataFiles | None = None,
    merge: bool = False,
) -> dict[str, str]:
    """Write `out` and return a report of the checks. `load` returns the run's predictor in fp32 on the CPU."""
    check_arguments(path, out, to, average, precision, merge)
    predictor = load(path)
    check_tuning(path, predictor.run, to, merge)
    exporter = None if to is None else find_exporter(path, to, predictor.run, ngrams_of(predictor.module))
    tokenizers = (
        processor.tokenizer for processor in predictor.processors.values() if isinstance(processor, TextProcessor)
    )
    if to == "ctranslate2" and any(isinstance(tokenizer, MarianTokenizer) for tokenizer in tokenizers):
        raise UserError(
            f"{path} cannot become a CTranslate2 model: it began with a Marian folder, whose sentencepiece models this "
            "export does not write; use --to huggingface, and ct2-transformers-converter for that folder"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    report = {"out": str(out)}
    with average_weights(path, predictor.module, average), atomic_write(out) as draft:
        if merge:
            report["merged"] = merge_lora(predictor)
        if to is not None and (names := predictor.run.pruned_heads):
            predictor = with_filled_heads(predictor)
            report["heads"] = f"{len(names)} pruned heads are zeros: the format has as many heads in every layer"
        metrics = predictor.evaluate(data) if data is not None else {}
        report_stage(f"writing {to or 'the run'}")
        if to is None or exporter is None:
            copy_run(path, predictor, draft, average, merge)
        else:
            exporter.write(predictor, draft, precision)
            report_stage(f"comparing it with {path}")
            report["checked"] = exporter.verify(predictor, draft, precision)
            readme = model_card(predictor, path, out.name, LIBRARIES[to], exporter, metrics, average)
            (draft / "README.md").write_text(readme, encoding="utf-8")
    return report | {name: f"{value:.4f}" for name, value in metrics.items() if isinstance(value, float)}


def check_arguments(path: Path, out: Path, to: str | None, average: int, precision: str, merge: bool = False) -> None:
    """Refuse arguments that cannot work, before the run is loaded."""
    formats, precisions = f"{', '.join(list(LIBRARIES)[:-1])} or {list(LIBRARIES)[-1]}", ", ".join(ctranslate2.TYPES)
    if to is not None and to not in LIBRARIES:
        raise UserError(f"--to {to} is no format; expected {formats}")
    if to is None and not average and not merge:
        raise UserError(f"there is nothing to convert to; add --to {formats}, --average 5 or --merge")
    if average < 0 or average == 1:
        raise UserError(f"--average {average} averages nothing; expected a number of checkpoints, 2 or more")
    if precision not in ctranslate2.TYPES:
        raise UserError(f"--precision {precision} is unknown; expected {precisions}")
    if precision != "fp32" and to != "ctranslate2":
        raise UserError(
            f"--precision {precision} is for --to ctranslate2; other formats keep fp32 weights, leave it out"
        )
    if out.exists():
        raise UserError(f"{out} exists; choose another --out, so that nothing there is lost")
    if not is_run(path) and (to is None or average or merge or find_gguf(path) is None):
        hint = " (a GGUF file can become another format, with --to alone)" if find_gguf(path) else ""
        raise UserError(f"{path} is not a run folder: it has no run.json; give one that `regard train` wrote{hint}")
    if to == "ctranslate2":
        ctranslate2.import_ctranslate2()


def check_tuning(path: Path, run: Run, to: str | None, merge: bool) -> None:
    """Refuse tuned runs in formats for whole models, and untuned runs in formats for adapters."""
    kind = run.tune.kind
    if to == "peft" and kind == "none":
        raise UserError(f"{path} is not tuned; --to peft writes adapters, use --to huggingface")
    if to == "peft" and merge:
        raise UserError(f"--merge leaves no adapter in {path}, and --to peft writes adapters; leave out one of the two")
    if to == "peft" and run.pruned_heads:
        raise UserError(f"{path} is tuned over a pruned model, which PEFT cannot load; merge it (--merge)")
    if to == "peft":
        check_peft_family(str(path), kind, run.model.family)
        return
    if merge and kind != "lora":
        tuning = "is not tuned" if kind == "none" else f"is tuned by {kind}, which cannot be merged into the base"
        raise UserError(f"{path} {tuning}; --merge is for tune.kind=lora")
    if kind != "none" and to is not None and not merge:
        remedy = "add --merge" if kind == "lora" else f"tune.kind={kind} has no place in that format"
        raise UserError(f"{path} is tuned over another model and --to {to} writes whole models; {remedy}")


def merge_lora(predictor: "AnyPredictor") -> str:
    """Merge LoRA into the base, check that the logits stay, and report their difference."""
    from ..adapt import lora, tune

    before = probe_logits(predictor)
    maps = len(list(lora.branches(predictor.module)))
    lora.merge(predictor.module)
    difference = check_close("merging gives logits", probe_logits(predictor), before)
    tune.keep_merged(predictor.module)
    return f"{maps} maps; logits apart by {difference:.1g} (relative)"


def average_weights(path: Path, model: nn.Module, count: int) -> AbstractContextManager[None]:
    """A context in which the model has the mean weights of the run's last checkpoints."""
    from ..training import checkpoint
    from ..training.finish import averaged_checkpoints

    if not count:
        return nullcontext()
    checkpoints = checkpoint.latest_checkpoints(path, count)
    if len(checkpoints) < count:
        raise UserError(
            f"{path} has {len(checkpoints)} checkpoints and not the {count} of --average; "
            f"average fewer, or train with train.keep={count}"
        )
    return averaged_checkpoints(model, checkpoints)


def copy_run(path: Path, predictor: "AnyPredictor", draft: Path, average: int, merge: bool = False) -> None:
    """Write the run with the predictor's weights. Checkpoints are not copied, so it cannot be resumed."""
    about = read_run(path)
    about |= {"weights": {"step": about.get("weights", {}).get("step", 0), "averaged": average}}
    if merge:
        about |= {"config": about["config"] | {"tune": {"kind": "none"}}, "merged": about["config"]["tune"]}
    write_copy(path, draft, about, predictor.module)
