"""docs/data.md: all its commands and its Python run on files of the kinds that it names."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from regard.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (regard .*)$", PAGE, re.MULTILINE)
TINY = ["model.size=tiny", "train.steps=2", "train.warmup=1", "tokenizer.kind=char", "train.tokens=64"]
REVIEWS = [("so good, really", "pos"), ('so "bad"', "neg"), ("fine\nand more", "pos"), ("poor", "neg")] * 5


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [(i, text.replace('"', '""'), label) for i, (text, label) in enumerate(REVIEWS)]
    quoted = "".join(f'{i},"{text}",{label}\n' for i, text, label in texts)
    Path("reviews.csv").write_text("id,review,sentiment\n" + quoted)
    Path("ratings.csv").write_text("who,comment,stars\n" + quoted)
    Path("pairs.tsv").write_text("".join(f"{i}\tone {i}\teins {i}\n" for i in range(9)))
    Path("new.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in REVIEWS))
    columns = {"sentence": [text for text, _ in REVIEWS], "label": [label for _, label in REVIEWS]}
    pyarrow.parquet.write_table(pa.table(columns), "more.parquet")
    assert len(COMMANDS) == 5
    printed = []
    for command in COMMANDS:
        arguments = command.split()[1:]
        assert main(arguments + TINY * (arguments[0] == "train")) == 0, command
        printed.append(capsys.readouterr())
    example = re.search(r"^train: text is column .*$", PAGE, re.MULTILINE)
    assert example and example[0] in printed[0].err
    assert "text is column comment, label is column stars (of who, comment, stars)" in printed[3].err
    assert "source is column 2, target is column 3 (no header)" in printed[4].err
    assert f"examples {len(REVIEWS)}" in printed[1].out
    assert set(printed[2].out.split()) <= {"pos", "neg"} and len(printed[2].out.splitlines()) == len(REVIEWS)


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block and block[1].count(', "holdout": 0.1})') == 1
    settings = ', "holdout": 0.1}, overrides=dict(each.split("=") for each in TINY))'
    names: dict[str, object] = {"TINY": TINY}
    exec(block[1].replace(', "holdout": 0.1})', settings), names)
    assert json.loads(Path("runs/memory/run.json").read_text())["data"].keys() == {"train", "valid"}
