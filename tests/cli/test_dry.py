"""`--dry` counts what is in the data, or says that it has read none."""

from pathlib import Path
from typing import Any

import pytest
from helpers import marian, reads, small

from regard.cli import main

TINY = [f"{key}={value}" for key, value in {**reads.TINY, "model.size": "tiny"}.items()]
TINY = [each for each in TINY if not each.startswith(("model.width", "model.heads", "model.inner", "tokenizer"))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dry")
    small.write_files(path, train=60, valid=1, test=1)
    examples = [(text, f"label{number % 5}") for number, (text, _) in enumerate(reads.labeled_examples(60, 1))]
    reads.write_texts(path / "labeled.tsv", examples)
    reads.write_columns(path / "tagged.txt", reads.tagged_examples(40, 1))
    (path / "lines.txt").write_text("\n".join(marian.sentences(60, 1)) + "\n")
    return path


CASES: dict[str, tuple[str, list[str]]] = {
    "classify": ("labeled.tsv", ["labels 5", "train: 60 examples", "(5, "]),
    "tag": ("tagged.txt", ["labels 4", "train: 40 examples"]),
    "masked": ("lines.txt", ["train: 60 examples"]),
    "language": ("lines.txt", ["train: "]),
    "spans": ("lines.txt", ["train: 60 examples"]),
    "translate": ("train.low,train.up", ["train: 60 examples"]),
}


@pytest.mark.parametrize("task", CASES)
def test_real_counts(task: str, files: Path, capsys: Any) -> None:
    names, expected = CASES[task]
    data = ",".join(str(files / name) for name in names.split(","))
    assert main(["train", task, f"data.train={data}", "tokenizer.kind=byte", *TINY, "--dry"]) == 0
    out = capsys.readouterr().out
    vocabulary = next(line for line in out.splitlines() if line.startswith("vocabulary "))
    assert vocabulary in [f"vocabulary {260 + more}" for more in (0, 1, 100)]  # bytes, control symbols, sentinels
    assert all(words in out for words in expected) and "no data" not in out
    assert "parameters " in out and "memory weights" in out


@pytest.mark.parametrize(("task", "labels"), [("classify", " and 2 labels"), ("language", "")])
def test_no_data_were_read(task: str, labels: str, capsys: Any) -> None:
    assert main(["train", task, "tokenizer.vocab=700", "--dry"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"no data were read: a vocabulary of 700{labels} is assumed; set data.train to count them"


@pytest.mark.parametrize("task", ["classify-image", "detect"])
def test_models_of_images_have_no_vocabulary(task: str, capsys: Any) -> None:
    assert main(["train", task, "--dry"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "no data were read: 2 labels are assumed; set data.train to count them"


def test_wrong_data_are_reported(tmp_path: Path, capsys: Any) -> None:
    assert main(["train", "classify", f"data.train={tmp_path}/none.tsv", "--dry"]) == 2
    assert "none.tsv" in capsys.readouterr().err
