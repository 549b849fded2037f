"""The files of processors in a run folder."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path

from ..config.run_folder import check_entries, read_run
from ..errors import UserError
from ..files import read_optional_json, write_json
from .base import PROCESSORS, Processor, read_processor_file
from .labels import LabelProcessor, LabelSet, TagProcessor

LIST = "processors.json"  # in folders without run.json


def processor_class(kind: str) -> type[Processor]:
    """The class of a kind of processor."""
    entry = PROCESSORS[kind]
    if not isinstance(entry, str):
        return entry
    module, _, name = entry.partition(":")
    imported: type[Processor] = getattr(import_module(module), name)
    return imported


def load_processor(path: Path, kind: str | None = None) -> Processor:
    """The processor in a file. Files of tokenizers do not name their kind: it is text, unless `kind` is another."""
    if kind is None:
        whole = read_processor_file(path)
        saved_kind = whole.get("kind") or ("labels" if "labels" in whole else "text")
    else:
        saved_kind = kind
    if not isinstance(saved_kind, str) or saved_kind not in PROCESSORS:
        raise UserError(
            f"{path} holds a processor of kind {saved_kind!r}; this regard has {', '.join(PROCESSORS)}; install the "
            "plugin that defines it, or update regard"
        )
    return processor_class(saved_kind).load(path)


def save_processors(folder: Path, processors: Mapping[str, Processor]) -> dict[str, dict[str, str]]:
    """Save each processor once; return the entry of run.json: {field: {"kind", "file"}}."""
    entries: dict[str, dict[str, str]] = {}
    for field, processor in processors.items():
        shared = next((name for name in entries if processors[name] is processor), None)
        if shared is None:
            alone = all(other is processor or other.file != processor.file for other in processors.values())
            file = processor.file if alone else f"{field}.{processor.file}"
            processor.save(folder / file)
        else:
            file = entries[shared]["file"]
        entries[field] = {"kind": processor.kind, "file": file}
    return entries


def load_processors(folder: Path) -> dict[str, Processor]:
    """The processors of a run folder by field. Fields with one file share one processor."""
    processors: dict[str, Processor] = {}
    files: dict[str, Processor] = {}
    for field, entry in read_run(folder)["processors"].items():
        if entry["file"] not in files:
            files[entry["file"]] = load_processor(folder / entry["file"], entry["kind"])
        processors[field] = files[entry["file"]]
    return processors


# --- folders of other formats, which have no run.json ----------------------------------------------------------------


def export_processors(folder: Path, processors: Mapping[str, Processor]) -> None:
    """Save the processors with their list."""
    write_json(folder / LIST, save_processors(folder, processors))


def imported_processor(folder: Path, *kinds: str) -> Processor | None:
    """The first processor of these kinds that `export_processors` saved; None if there is none."""
    entries = check_entries(read_optional_json(folder / LIST), folder / LIST).values()
    entry = next((entry for entry in entries if entry["kind"] in kinds), None)
    return None if entry is None else load_processor(folder / entry["file"], entry["kind"])


def imported_labels(folder: Path) -> LabelSet | None:
    """The labels that `export_processors` saved; None if there are none."""
    processor = imported_processor(folder, LabelProcessor.kind, TagProcessor.kind)
    return None if processor is None else saved_labels([processor])


def saved_labels(processors: Iterable[Processor]) -> LabelSet | None:
    """The label set among these processors."""
    return next(
        (processor.labels for processor in processors if isinstance(processor, LabelProcessor | TagProcessor)), None
    )
