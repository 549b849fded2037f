"""`python -m benchmarks.classify_defaults`: the default recipe of `classify` beside a bag of words.

The recipe trains from scratch with several seeds. Beside it: TF-IDF of words and word pairs with logistic regression,
by scikit-learn alone and as `regard train` has it, C of 1 or 10 chosen on dev. Test data are scored with --test only.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import regard
from regard.data.source import InMemorySource
from regard.errors import UserError
from regard.tasks.label.baselines import STRENGTHS, baseline_text, fit_bag_of_words

from .label_sets import Folders, Rows, Splits, Text, available_sets
from .report import align_columns
from .translate.peers import installed

Scores = dict[str, float]  # accuracy in percent by split; seconds
SETS = ["SST-2", "genre", "language", "dates", "inference"]
SCIKIT, OWN_BAG, RECIPE = "TF-IDF, scikit-learn", "bag of words, regard", "regard train classify"


class Work(NamedTuple):
    """One program on one set. A seed of the recipe; 0: the program has none."""

    name: str
    program: str
    seed: int
    folders: Folders
    splits: tuple[str, ...]
    settings: dict[str, Any]


def accuracy(found: Sequence[str], rows: Rows) -> float:
    return 100 * sum(label == own for label, (_, own) in zip(found, rows, strict=True)) / len(rows)


def named_row(text: Text, label: str) -> dict[str, str]:
    """An example with names by which pairs are recognized."""
    texts = {"text": text} if isinstance(text, str) else {"premise": text[0], "hypothesis": text[1]}
    return {**texts, "label": label}


def joined(rows: Rows) -> list[str]:
    """The texts as a bag of words reads them: both of a pair in one."""
    return [text if isinstance(text, str) else " ".join(text) for text, _ in rows]


def train_recipe(data: Splits, splits: Sequence[str], seed: int, settings: dict[str, Any]) -> Scores:
    """The accuracy of the default recipe, trained with this seed."""
    others = {"train.seed": seed, "train.tensorboard": False, "eval.baseline": False, "device": "cpu", **settings}
    rows = {"train": data["train"], "valid": data["dev"]}
    tables = {name: [named_row(text, label) for text, label in own] for name, own in rows.items()}
    with tempfile.TemporaryDirectory() as folder:
        predictor: Any = regard.train("classify", others, out=Path(folder, "run"), data=tables, progress=False)
        return {name: accuracy(predictor.predict([text for text, _ in data[name]]), data[name]) for name in splits}


def fit_scikit(data: Splits, splits: Sequence[str]) -> Scores:
    """scikit-learn's logistic regression over TF-IDF of words and word pairs; dev chooses C."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(ngram_range=(1, 2))
    vectorizer.fit(joined(data["train"]))
    rows = {name: vectorizer.transform(joined(data[name])) for name in ("train", "dev", *splits)}
    models = [LogisticRegression(C=c, max_iter=2000) for c in STRENGTHS]
    for model in models:
        model.fit(rows["train"], [label for _, label in data["train"]])
    best = max(models, key=lambda each: accuracy(each.predict(rows["dev"]), data["dev"]))
    return {name: accuracy(best.predict(rows[name]), data[name]) for name in splits}


def fit_own_bag(data: Splits, splits: Sequence[str]) -> Scores:
    """The baseline that `regard train classify` prints beside its scores."""
    examples = {
        name: [(*texts[:1], label, *texts[1:]) for texts, label in _tuples(rows)] for name, rows in data.items()
    }
    train, dev = (InMemorySource(name, examples[name]) for name in ("train", "dev"))
    bag = fit_bag_of_words("single_label", train, dev)
    return {name: accuracy(bag.predict(list(map(baseline_text, examples[name]))), data[name]) for name in splits}


def _tuples(rows: Rows) -> list[tuple[tuple[str, ...], str]]:
    return [((text,) if isinstance(text, str) else text, label) for text, label in rows]


def measure(work: Work) -> Scores:
    """Fit or train one program, and score it."""
    data, began = available_sets(work.folders)[work.name](), time.monotonic()
    if work.program == RECIPE:
        found = train_recipe(data, work.splits, work.seed, work.settings)
    else:
        found = (fit_scikit if work.program == SCIKIT else fit_own_bag)(data, work.splits)
    found["seconds"] = time.monotonic() - began
    scores = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    print(f"{work.name}, {work.program}{f', seed {work.seed}' if work.seed else ''}: {scores}", file=sys.stderr)
    return found


def plan(options: argparse.Namespace, notes: list[str]) -> list[Work]:
    """Everything that is to be measured, the longest first."""
    if wrong := [each for each in options.settings if "=" not in each]:
        raise UserError(f"{wrong[0]!r} is not a setting; expected key=value, such as train.steps=500")
    folders = Folders(options.sst2, options.ewt, options.tatoeba, options.multi30k)
    sets = [name for name in available_sets(folders) if not options.only or name in options.only]
    if missing := set(options.only or ()) - set(sets):
        raise UserError(f"--only {sorted(missing)[0]} needs the folder of its raw files; see --help")
    programs = [RECIPE] if "recipe" in options.programs else []
    if "tfidf" in options.programs:
        programs += [SCIKIT, OWN_BAG] if installed("sklearn", notes) else []
    if not programs:
        raise UserError(notes[0])
    splits = ("dev", "test") if options.test else ("dev",)
    settings = dict(each.split("=", 1) for each in options.settings)
    return [
        Work(name, program, seed, folders, splits, settings)
        for program in programs
        for name in reversed(sets)
        for seed in (options.seeds if program == RECIPE else [0])
    ]


def table(works: Sequence[Work], scores: Sequence[Scores]) -> str:
    """A line for each program on each set: its accuracy on each split, the mean and each seed."""
    splits = works[0].splits
    grouped: dict[tuple[str, str], list[Scores]] = {}
    for work, found in zip(works, scores, strict=True):
        grouped.setdefault((work.name, work.program), []).append(found)
    rows = [["set, program", *(cell for split in splits for cell in (split, "of each seed")), "seconds"]]
    for (name, program), each in sorted(grouped.items()):
        row = [f"{name}, {program}"]
        for split in splits:
            values = [found[split] for found in each]
            row += [f"{sum(values) / len(values):.2f}", " ".join(f"{value:.2f}" for value in values)]
        rows.append([*row, f"{max(found['seconds'] for found in each):.0f}"])
    return "\n".join(align_columns(rows))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.classify_defaults", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--sst2", type=Path, help="folder of train, dev and test.tsv: label, tab, sentence")
    parser.add_argument("--ewt", type=Path, help="folder of en_ewt-ud-train, -dev and -test.conllu")
    parser.add_argument("--tatoeba", type=Path, help="folder of train, valid and test.tsv: English, tab, German")
    parser.add_argument("--multi30k", type=Path, help="folder of train, val and test_2016_flickr.en and .de")
    parser.add_argument("--only", action="append", choices=SETS, help="repeatable")
    parser.add_argument("--programs", nargs="+", choices=["recipe", "tfidf"], default=["recipe", "tfidf"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="processes; give each one thread by OMP_NUM_THREADS=1")
    parser.add_argument("--test", action="store_true", help="score test data, too")
    parser.add_argument("--set", dest="settings", nargs="+", default=[], help="settings of the recipe: train.steps=500")
    return parser


def main(arguments: list[str]) -> int:
    options, notes = make_parser().parse_args(arguments), list[str]()
    try:
        works = plan(options, notes)
        if options.jobs > 1:
            with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
                scores = list(pool.map(measure, works))
        else:
            scores = [measure(work) for work in works]
    except UserError as error:
        print(f"regard: {error}", file=sys.stderr)
        return 2
    print("\n".join([table(works, scores), *notes]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
