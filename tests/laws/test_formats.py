"""One law over all formats: the same records give the same examples, weights, metrics and answers."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pytest
from helpers.containers import CONTAINERS, FILES, PACKERS, Columns, holds_line_breaks, holds_lists, rows_of
from helpers.reads import TINY, labeled_examples
from helpers.runs import tiny_run

import regard
from regard.cli import app as cli
from regard.config.data.texts import LabelData, MaskData, MixData, PairData, SpanData, TagData, TextData
from regard.data.sources.data_files import evaluation_files
from regard.data.sources.documents import open_documents
from regard.data.sources.labeled import detect_problem, labeled_texts
from regard.data.sources.lines import line_examples
from regard.data.sources.mixture import open_mixture
from regard.data.sources.pairs import open_pairs
from regard.data.sources.tagged import tagged_sentences

WEIRD = [
    '"quoted", and; more',
    "naïve 東京 🙂",
    "a 'b' c|d",
    " spaces  inside ",
    "1",
    "null",
    "[x]",
    '{"a": 1}',
    "#",
    "\\t",
]
TEXTS: Columns = {"text": [*WEIRD, "x", None, "y"]}
PAIRS: Columns = {"source": [*WEIRD, "x", None, "y"], "target": [*WEIRD[::-1], "X", "Y", None]}
LABELED: Columns = {"text": [*WEIRD, "x", None, "y"], "label": [*["pos", "neg"] * 5, None, "pos", "neg"]}
TAGGED: Columns = {
    "tokens": [["The", "cat"], ["naïve"], ['"', ";", "🙂"], []],
    "tags": [["O", "B-T"], ["O"], ["O", "O", "I-T"], []],
}


def sides_of(data: Any) -> Any:
    return evaluation_files(data)


def whole(columns: Columns) -> list[tuple[Any, ...]]:
    return [row for row in rows_of(columns) if all(row)]


TASKS: dict[str, tuple[Columns, Any]] = {
    "classify": (LABELED, lambda sides: labeled_texts(sides, LabelData())),
    "translate": (PAIRS, lambda sides: open_pairs(sides, PairData())),
    "text2text": (PAIRS, lambda sides: open_mixture(sides, MixData(), False)),
    "masked": (TEXTS, lambda sides: line_examples(sides, MaskData())),
    "spans": (TEXTS, lambda sides: line_examples(sides, SpanData())),
    "tag": (TAGGED, lambda sides: tagged_sentences(sides, TagData())),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_container_gives_the_same_examples(task: str, tmp_path: Path) -> None:
    columns, read = TASKS[task]
    expected = [tuple(tuple(side) if isinstance(side, list) else side for side in row) for row in whole(columns)]
    fingerprints = {}
    for name, make in CONTAINERS.items():
        if task != "tag" or holds_lists(name):
            (folder := tmp_path / name).mkdir()
            examples = read(sides_of(make(columns, folder)))
            assert list(examples) == expected, name
            assert examples.counts["empty"] == len(rows_of(columns)) - len(expected), name
            fingerprints[name] = examples.fingerprint()
    in_memory = {value for name, value in fingerprints.items() if name not in FILES}
    assert len(in_memory) == 1  # a run resumes with the same records in any of them


def test_every_container_gives_the_same_running_text(tmp_path: Path) -> None:
    for name, make in CONTAINERS.items():
        (folder := tmp_path / name).mkdir()
        documents = open_documents(TextData(), "train", sides_of(make(TEXTS, folder)))
        assert [part.text for part in documents.parts(None)] == [text for text in TEXTS["text"] if text], name
        assert documents.counts["empty"] == 1, name


def test_line_breaks_and_tabs_stay_in_their_cells(tmp_path: Path) -> None:
    columns = {"text": ["two\nlines", "a\ttab", "CR\r\nLF", "\n", "end\n"], "label": ["a", "b", "a", "b", "c"]}
    expected = [row for row in rows_of(columns) if row[0].strip()]
    for name, make in CONTAINERS.items():
        if holds_line_breaks(name):
            (folder := tmp_path / name).mkdir()
            examples = labeled_texts(sides_of(make(columns, folder)), LabelData())
            assert list(examples) == expected and examples.counts["empty"] == 1, name


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([3, 0, 3], ["3", "0", "3"]),
        ([True, False, True], ["true", "false", "true"]),
        ([1, None, 0], ["1", "0"]),
        ([0.5, 1.0, -2.5], ["0.5", "1.0", "-2.5"]),
        ([0.5, None, 1.0], ["0.5", "1.0"]),
    ],
)
def test_labels_may_be_numbers(labels: list[Any], expected: list[str], tmp_path: Path) -> None:
    columns = {"text": ["one", "two", "three"], "label": labels}
    for name, make in CONTAINERS.items():
        (folder := tmp_path / name).mkdir()
        examples = labeled_texts(sides_of(make(columns, folder)), LabelData())
        assert [label for _, label in examples] == expected, name
        assert examples.counts["empty"] == labels.count(None), name


def test_missing_cells_of_frames() -> None:
    nan = float("nan")
    frames = [
        pandas.DataFrame({"text": ["a", nan, "c", pandas.NA], "label": [1, 0, nan, 1]}),
        pandas.DataFrame({"text": ["a", None, "c", pandas.NaT], "label": pandas.array([1, 0, None, 1], "Int64")}),
        polars.DataFrame({"text": ["a", None, "c", None], "label": [1, 0, None, 1]}),
        pyarrow.table({"text": ["a", None, "c", None], "label": [1, 0, None, 1]}),
        [("a", 1), (nan, 0), ("c", nan), (None, 1)],
        ({"text": text, "label": label} for text, label in [("a", 1), (nan, 0), ("c", nan), (None, 1)]),
        {"text": np.array(["a", None, "c", nan], object), "label": [np.int64(1), np.int64(0), np.float32("nan"), 1]},
    ]
    for frame in frames:
        examples = labeled_texts(sides_of(frame), LabelData())
        assert list(examples) == [("a", "1")] and examples.counts["empty"] == 3, type(frame)


def test_columns_of_categories_and_times() -> None:
    columns = {"text": ["a", "b"], "label": ["x", "y"]}
    dictionary = pyarrow.table({name: pyarrow.array(each).dictionary_encode() for name, each in columns.items()})
    frames = [
        pandas.DataFrame(columns, dtype="category"),
        polars.DataFrame(columns, schema=dict.fromkeys(columns, polars.Categorical)),
        dictionary,
    ]
    for frame in frames:
        assert list(labeled_texts(sides_of(frame), LabelData())) == rows_of(columns)


# --- headers ---------------------------------------------------------------------------------------------------------


def running_texts(sides: Any, data: TextData) -> list[tuple[str]]:
    return [(part.text,) for part in open_documents(data, "train", sides).parts(None)]


HEADED: dict[str, tuple[tuple[str, ...], Any, type[Any], dict[str, str]]] = {
    "masked": (("text",), line_examples, MaskData, {}),
    "spans": (("sentence",), line_examples, SpanData, {}),
    "translate": (("source", "target"), open_pairs, PairData, {}),
    "text2text": (("input", "output"), lambda sides, data: open_mixture(sides, data, False), MixData, {}),
    "classify": (("review", "sentiment"), labeled_texts, LabelData, {}),
    "regression": (("text", "rating"), labeled_texts, LabelData, {"problem_type": "regression"}),
    "several labels": (("text", "labels"), labeled_texts, LabelData, {"problem_type": "multi_label"}),
    "pairs": (("premise", "hypothesis", "label"), labeled_texts, LabelData, {"pairs": "yes"}),
    "language": (("text",), running_texts, TextData, {}),
    "pair regression": (
        ("sentence1", "sentence2", "score"),
        labeled_texts,
        LabelData,
        {"pairs": "yes", "problem_type": "regression"},
    ),
}
DELIMITERS = {"a.tsv": "\t", "a.csv": ",", "tabs.csv": "\t", "a.tsv.gz": "\t"}


@pytest.mark.parametrize("task", HEADED)
def test_one_rule_for_the_header_of_every_text_table(task: str, tmp_path: Path) -> None:
    """A header is no example, whether its names are known, given or passed over; without one, every line is."""
    names, read, settings, fixed = HEADED[task]
    cells = [[f"text {number}", f"more {number}"][: len(names) - 1] + [str(number % 2)] for number in range(12)]
    expected = [(*row[:1], *row[-1:], *row[1:-1]) if len(names) > 2 else tuple(row) for row in cells]
    if task == "several labels":
        expected = [(text, (label,)) for text, label in expected]
    own = [f"column {number}" for number in range(len(names))]
    numbers = ",".join(str(number + 1) for number in range(len(names)))
    ways: list[tuple[Any, dict[str, str]]] = [
        (names, {}),
        ([name.title() for name in names], {}),
        (names, {"header": "yes"}),
        (names, {"columns": ",".join(names)}),
        (names, {"columns": numbers}),
        (names, {"columns": numbers, "header": "yes"}),
        (own, {"columns": ",".join(own)}),
        (own, {"columns": numbers, "header": "yes"}),
        (None, {"header": "no"}),
        (None, {"columns": numbers, "header": "no"}),
    ]
    for (name, delimiter), (header, choice) in product(DELIMITERS.items(), ways):
        lines = [delimiter.join(row) for row in [header, *cells] if row is not None]
        content = "\n".join(["", *lines[:4], "", *lines[4:], ""]).encode()
        (tmp_path / name).write_bytes(PACKERS[".gz" if name.endswith(".gz") else ""](content))
        examples = read(sides_of(str(tmp_path / name)), settings(**fixed, **choice))
        assert list(examples) == expected, (name, header, choice)
        if task == "pairs" and header and not (header == own and choice.get("header")):
            data = LabelData(train=sides_of(str(tmp_path / name)), **choice)
            assert list(detect_problem(data).examples or []) == expected, (name, header, choice)


# --- Hugging Face ----------------------------------------------------------------------------------------------------


def named_labels() -> datasets.Dataset:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    return datasets.Dataset.from_dict({"text": ["good", "bad", "fine"], "label": [1, 0, 1]}, features)


def named_tags() -> datasets.Dataset:
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"]))
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "ner_tags": tags})
    return datasets.Dataset.from_dict({"tokens": [["I", "am", "Ann"], ["no"]], "ner_tags": [[0, 0, 1], [0]]}, features)


def stored_forms(data: datasets.Dataset, folder: Path) -> dict[str, Any]:
    """A data set, and the files and objects that keep its label names."""
    data.to_parquet(folder / "data.parquet")
    data.save_to_disk(folder / "saved")
    (arrow,) = (folder / "saved").glob("*.arrow")
    return {
        "data set": data,
        "iterable": data.to_iterable_dataset(),
        "parquet": str(folder / "data.parquet"),
        "arrow": str(arrow),
        "table": data.data.table,
        "split": datasets.DatasetDict({"validation": data})["validation"],
    }


def test_integer_labels_have_the_names_of_their_class_label(tmp_path: Path) -> None:
    expected = [("good", "pos"), ("bad", "neg"), ("fine", "pos")]
    for name, data in stored_forms(named_labels(), tmp_path).items():
        assert list(labeled_texts(sides_of(data), LabelData())) == expected, name
    plain = {"text": ["good", "bad", "fine"], "label": [1, 0, 1]}
    for name, make in CONTAINERS.items():
        (folder := tmp_path / name).mkdir()
        assert list(labeled_texts(sides_of(make(plain, folder)), LabelData(names="neg,pos"))) == expected, name


def test_integer_tags_have_the_names_of_their_class_label(tmp_path: Path) -> None:
    expected = [(("I", "am", "Ann"), ("O", "O", "B-PER")), (("no",), ("O",))]
    for name, data in stored_forms(named_tags(), tmp_path).items():
        assert list(tagged_sentences(sides_of(data), TagData())) == expected, name
    plain = {"tokens": [["I", "am", "Ann"], ["no"]], "ner_tags": [[0, 0, 1], [0]]}
    for name, make in CONTAINERS.items():
        if holds_lists(name):
            (folder := tmp_path / name).mkdir()
            data = sides_of(make(plain, folder))
            assert list(tagged_sentences(data, TagData(names="O,B-PER"))) == expected, name


def test_translations_are_read_from_objects_inside(tmp_path: Path) -> None:
    pairs = [{"de": "Guten Tag", "en": "Good day"}, {"de": "ja", "en": "yes"}]
    languages = datasets.Translation(languages=["de", "en"])
    features = datasets.Features({"id": datasets.Value("string"), "translation": languages})
    plain = {"id": ["0", "1"], "translation": pairs}
    nameless = [name for name in CONTAINERS if "without names" in name or "tuples" in name or name == "sequence"]
    for columns, order in (((), 1), ("translation.de,translation.en", 1), ("de,en", 1), ("en,de", -1)):
        forms = stored_forms(datasets.Dataset.from_dict(plain, features), tmp_path)
        for name, make in CONTAINERS.items():
            if holds_lists(name) and name not in nameless:
                (folder := tmp_path / name).mkdir(exist_ok=True)
                forms[f"plain {name}"] = make(plain, folder)
        for name, data in forms.items():
            examples = open_pairs(sides_of(data), PairData(columns=columns))
            assert [pair[::order] for pair in examples] == [("Guten Tag", "Good day"), ("ja", "yes")], name


# --- train, evaluate, predict ----------------------------------------------------------------------------------------

TRAIN = labeled_examples(60, seed=1)
TEST = labeled_examples(20, seed=2)
TRAINED = ("tsv", "tsv without header", "csv", "csv with semicolons .gz", "jsonl", "json array .zst", "parquet")
TRAINED += ("arrow file", "pandas", "polars", "data set", "dict of columns", "tuples", "dicts", "iterable data set")


def as_columns(examples: list[tuple[str, str]]) -> Columns:
    return {"text": [text for text, _ in examples], "label": [label for _, label in examples]}


SETTINGS = {**TINY, "train.steps": 2, "train.warmup": 1, "train.save_every": 2, "train.eval_every": 2}


def test_every_container_trains_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.curves.draw", lambda folder: None)
    weights, metrics, answers = set(), [], []
    for name in TRAINED:
        (folder := tmp_path / name).mkdir()
        data = {"train": CONTAINERS[name](as_columns(TRAIN), folder), "holdout": 0.1}
        predictor = regard.train("classify", SETTINGS, out=folder / "run", data=data)
        assert predictor is not None
        weights.add((folder / "run" / "model.safetensors").read_bytes())
        (other := folder / "test").mkdir()
        metrics.append(predictor.evaluate(CONTAINERS[name](as_columns(TEST), other)))
        answers.append(predictor.predict([text for text, _ in TEST]))
    assert len(weights) == 1
    assert all(each == metrics[0] for each in metrics) and metrics[0]["examples"] == len(TEST)
    assert all(each == answers[0] for each in answers)


ANSWERED = [name for name in FILES if not name.endswith((".gz", ".bz2", ".xz"))]


def test_the_command_line_answers_as_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One answer per record, in order; a record without text has an empty one."""
    monkeypatch.setattr("regard.training.curves.draw", lambda folder: None)
    run = tiny_run("classify", data={"train": TRAIN}, **SETTINGS)
    predictor = regard.load(run)
    columns = as_columns(TEST)
    columns["text"][3] = None
    texts = [text for text in columns["text"] if text]
    expected = predictor.predict(texts)
    expected.insert(3, "")
    metrics = predictor.evaluate(rows_of(columns))
    for name in ANSWERED:
        (folder := tmp_path / name).mkdir()
        path = CONTAINERS[name](columns, folder)
        capsys.readouterr()
        assert cli.main(["predict", str(run), path]) == 0, name
        assert capsys.readouterr().out.split("\n")[:-1] == expected, name
        assert cli.main(["eval", str(run), "--data", path, "--json"]) == 0, name
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(metrics)), name
