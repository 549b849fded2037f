"""What predict, score, eval and look read: tables by their columns, lines, pipes; records in = records out."""

import csv
import datetime
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from helpers.runs import copy_run, tiny_run

import regard
from regard.cli import main
from regard.cli.inputs import Entry, InputFile, chunks
from regard.cli.lines import PipeLines

TINY = ("model.size=tiny", "train.steps=3", "train.warmup=1", "tokenizer.kind=char", "train.tokens=64",
    "train.tensorboard=false")  # fmt: skip
TEXTS = ["so good, really", 'so "bad"', "fine\nand more", "", "poor", " ünlü; çok "]
LABELS = ["pos", "neg", "pos", "neg", "neg", "pos"]


def write_table(path: Path, columns: dict[str, list[str]]) -> Path:
    """The same columns in the format of the suffix. TSV has no line breaks."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.table(columns), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(row.values() for row in rows)
    else:
        lines = ("\t".join(cell.replace("\n", " ") for cell in row.values()) + "\n" for row in rows)
        path.write_text("\t".join(columns) + "\n" + "".join(lines))
    return path


FORMATS = ["tsv", "csv", "jsonl", "json", "parquet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of four tasks: classify, translate, tag and lm."""
    place = tmp_path_factory.mktemp("inputs")
    words, tags = [["Dogs", "bark"], ["A", "cat"]] * 3, [["N", "V"], ["D", "N"]] * 3
    data = {
        "classify": {"sentence": [*TEXTS] * 2, "label": LABELS * 2},
        "translate": {"source": TEXTS[:3] * 4, "target": [text.upper() for text in TEXTS[:3] * 4]},
        "tag": {"tokens": words, "tags": tags},
        "language": {"text": TEXTS * 3},
    }
    for task, columns in data.items():
        path = write_table(place / f"{task}.jsonl", columns)
        settings = dict(each.split("=") for each in TINY)
        run = tiny_run(task, {path.name: path.read_bytes()}, **settings, **{"data.train": f"{{files}}/{path.name}"})
        copy_run(run, place / task)
    return place


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[str, str]:
    capsys.readouterr()
    code = main([str(each) for each in arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err


def check_error(capsys: pytest.CaptureFixture[str], *arguments: object, words: str) -> None:
    capsys.readouterr()
    code = main([str(each) for each in arguments])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and words in err and len(err.splitlines()) == 1, err


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_one_answer_per_record(kind, folder, tmp_path, capsys):
    path = write_table(tmp_path / f"test.{kind}", {"id": list("abcdef"), "sentence": TEXTS, "label": LABELS})
    predictor = regard.load(folder / "classify")
    texts = [text.replace("\n", " ") for text in TEXTS] if kind == "tsv" else TEXTS
    with pytest.warns(UserWarning, match="1 of 6 texts are empty"):
        expected = predictor.predict(texts)
    out, err = run_cli(capsys, "predict", folder / "classify", path)
    assert out == "".join(label + "\n" for label in expected) and expected[3] == ""
    assert err.splitlines()[0] == f"regard: {path}: text is column sentence (of id, sentence, label)"
    details = [
        json.loads(line) for line in run_cli(capsys, "predict", folder / "classify", path, "--details")[0].splitlines()
    ]
    assert [each["id"] for each in details] == list("abcdef") and [each["input_label"] for each in details] == LABELS
    assert [each["label"] or "" for each in details] == expected and details[0]["probability"] > 0
    filled = [place for place, text in enumerate(texts) if text.strip()]
    scores = [float(line) for line in run_cli(capsys, "score", folder / "classify", path)[0].splitlines()]
    direct = predictor.score([texts[i] for i in filled], [LABELS[i] for i in filled])
    assert len(scores) == 6 and [scores[i] for i in filled] == pytest.approx(direct, abs=1e-5)
    out, err = run_cli(capsys, "eval", folder / "classify", "--data", path)
    assert "examples 5\n" in out and f"regard: {path}: labels: pos 3, neg 2\n" in err
    assert f"regard: {path}: text is column sentence, label is column label (of id, sentence, label)\n" in err
    vectors = run_cli(capsys, "predict", folder / "classify", "--embed", path)[0].splitlines()
    assert len(vectors) == 6
    ranked = run_cli(capsys, "predict", folder / "classify", "--similar", path, "--top", 2, path)[0].splitlines()
    assert len(ranked) == 12 and ranked[0].split("\t")[0] == TEXTS[0]


@pytest.mark.parametrize("kind", FORMATS)
def test_both_sides_of_a_translation(kind, folder, tmp_path, capsys):
    texts = [TEXTS[0], "", TEXTS[1]]
    targets = [text.upper() or "X" for text in texts]
    path = write_table(tmp_path / f"test.{kind}", {"source": texts, "target": targets})
    predictor = regard.load(folder / "translate")
    assert run_cli(capsys, "predict", folder / "translate", path)[0].splitlines() == predictor.predict(texts)
    scores = [float(line) for line in run_cli(capsys, "score", folder / "translate", path)[0].splitlines()]
    assert scores == pytest.approx(predictor.score(texts, targets), abs=1e-5)
    check_error(capsys, "score", folder / "translate", path, path, words="is a table, which holds both sides; give it")


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_tables_of_words(kind, folder, tmp_path, capsys):
    columns = {"id": [1, 2, 3], "words": [["Dogs", "bark"], [], ["A", "cat"]], "ner_tags": [["X", "X"], [], ["X", "X"]]}
    path = write_table(tmp_path / f"test.{kind}", columns)
    found = regard.load(folder / "tag").predict(columns["words"])
    out, err = run_cli(capsys, "predict", folder / "tag", path)
    assert err == f"regard: {path}: tokens is column words (of id, words, ner_tags)\n"
    rows = zip(columns["id"], columns["words"], found, strict=True)
    assert [json.loads(line) for line in out.splitlines()] == [dict(zip(columns, row, strict=True)) for row in rows]
    detail = json.loads(run_cli(capsys, "predict", folder / "tag", path, "--details")[0].splitlines()[0])
    assert detail["tags"] == found[0] and detail["ner_tags"] == ["X", "X"] and detail["id"] == 1
    unlabeled = write_table(tmp_path / f"bare.{kind}", {"tokens": columns["words"]})
    bare = [json.loads(line) for line in run_cli(capsys, "predict", folder / "tag", unlabeled)[0].splitlines()]
    assert [each["tags"] for each in bare] == found


def test_prompts_in_tables_are_answered_by_records(folder, tmp_path, capsys):
    how = ("decode.kind=greedy", "decode.max_tokens=4")
    texts = regard.load(folder / "language").predict(["so", "a\nb"], kind="greedy", max_tokens=4)
    for kind in FORMATS[1:]:
        path = write_table(tmp_path / f"a.{kind}", {"prompt": ["so", "a\nb"], "text": ["x", "y"]})
        found = [
            json.loads(line) for line in run_cli(capsys, "predict", folder / "language", path, *how)[0].splitlines()
        ]
        assert [each["text"] for each in found] == texts and [each["input_text"] for each in found] == ["x", "y"]
    path = write_table(tmp_path / "b.csv", {"id": ["1"], "text": ["so"]})
    out, err = run_cli(capsys, "predict", folder / "language", path, *how)
    assert json.loads(out) == {"id": "1", "text": texts[0], "input_text": "so"} and "prompt is column text" in err
    out, err = run_cli(capsys, "score", folder / "language", path)
    assert float(out) == pytest.approx(regard.load(folder / "language").score("so"), abs=1e-5)


def test_dates_and_missing_cells_in_records(folder, tmp_path, capsys):
    table = pa.table({
        "text": ["a", None], "when": [datetime.date(2024, 1, 2), None], "x": [float("nan"), 1.5], "in": [{"a": [1]}, None],
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    out, _ = run_cli(capsys, "predict", folder / "classify", tmp_path / "a.parquet", "--details")
    first, second = (json.loads(line) for line in out.splitlines())
    assert (first["when"], first["x"], first["in.a"]) == ("2024-01-02", None, [1])
    assert (second["text"], second["when"], second["label"]) == (None, None, None)


def test_settings_of_the_command_line_win(folder, tmp_path, capsys):
    run = folder / "classify"
    path = tmp_path / "test.dat"  # a suffix that says nothing: lines
    path.write_text("neg\tso bad\npos\tso good\n")
    out, err = run_cli(capsys, "predict", run, path)
    assert len(out.splitlines()) == 2
    assert err == f"regard: {path}: the lines contain tabs and are read whole; data.format=tsv reads columns\n"
    out, err = run_cli(capsys, "predict", run, path, "data.format=tsv", "data.columns=label,text", "--details")
    assert json.loads(out.splitlines()[0])["2"] == "so bad" and err == f"regard: {path}: text is column 2 (no header)\n"
    check_error(
        capsys, "predict", run, path, "data.format=tsv", "data.columns=3", words=f"{path}:1: 2 columns, expected"
    )
    named = write_table(tmp_path / "test.csv", {"text": TEXTS, "sentence": TEXTS[::-1]})
    assert "text is column text (" in run_cli(capsys, "predict", run, named)[1]
    assert "text is column sentence (" in run_cli(capsys, "predict", run, named, "data.columns=sentence")[1]
    out, err = run_cli(capsys, "predict", run, named, "data.format=text")
    assert len(out.splitlines()) == len(named.read_text().splitlines()) and not err.startswith(f"regard: {named}")
    words = "data.format=text has no labels for training or evaluation"
    check_error(capsys, "eval", run, "--data", named, "data.format=text", words=words)


def test_columns_of_the_run_are_the_default(folder, tmp_path, capsys):
    train = tmp_path / "train.dat"
    train.write_text("".join(f"{label}|x|{text}\n" for text, label in [("good", "pos"), ("bad", "neg")] * 4))
    settings = ("data.format=csv", "data.columns=3,1", "data.header=no")
    run_cli(capsys, "train", "classify", f"data.train={train}", *settings, *TINY, "--out", tmp_path / "run")
    out, err = run_cli(capsys, "predict", tmp_path / "run", train)
    assert len(out.splitlines()) == 8 and f"regard: {train}: text is column 3 (no header)" in err
    table = write_table(tmp_path / "a.jsonl", {"label": ["pos"], "x": ["y"], "text": ["good"]})
    assert (
        "text is column text (" in run_cli(capsys, "predict", tmp_path / "run", table)[1]
    )  # 3 is for files without names
    check_error(capsys, "predict", tmp_path / "run", table, "data.columns=9", words="the header has no column '9'")


def test_records_that_are_not_valid(folder, tmp_path, capsys):
    run, good = folder / "classify", "so good\tpos\n"
    path = tmp_path / "test.tsv"
    path.write_text(f"text\tlabel\n{good}a\tb\tc\n{good}")
    check_error(capsys, "predict", run, path, words=f"{path}:3: 3 columns, and the header has 2; correct it")
    out, err = run_cli(capsys, "predict", run, path, "data.invalid=skip")
    lines = out.split("\n")
    assert len(lines) == 4 and lines[0] == lines[2] and lines[1] == lines[3] == "" and lines[0]
    assert f"regard: {path}: 1 records are not valid and get an empty answer (data.invalid=skip)\n" in err
    path = tmp_path / "test.csv"
    path.write_text("text,label\na,b\na,b,c\n")
    check_error(capsys, "predict", run, path, words=f"{path}:3: 3 cells, and the header has 2")
    assert len(run_cli(capsys, "predict", run, path, "data.invalid=skip", "--details")[0].splitlines()) == 2
    path = tmp_path / "test.json"
    path.write_text('[{"text": "a"}, 5]')
    assert len(run_cli(capsys, "predict", run, path, "data.invalid=skip", "--details")[0].splitlines()) == 2
    path = tmp_path / "test.jsonl"
    path.write_text('{"text": "a"}\n{"text": 5}\n')
    check_error(capsys, "predict", run, path, words=f"{path}:2: no text under 'text' but 5")
    path.write_text('{"sentence": "a", "review": "b"}\n')
    check_error(
        capsys, "predict", run, path, words="sentence and review may each be the text; name the text's, such as"
    )
    check_error(capsys, "predict", run, tmp_path / "none.jsonl", words="none.jsonl cannot be read: No such file")
    check_error(capsys, "predict", run, tmp_path, words="cannot be read: Is a directory")
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    check_error(capsys, "predict", run, tmp_path / "a.xlsx", words="a.xlsx is a .xlsx file, which regard does not read")


def test_blank_lines_never_shift(folder, tmp_path, capsys):
    path = tmp_path / "test.tsv"
    path.write_text("\ntext\tlabel\nso good\tpos\n\n\tneg\nso bad\tneg\n\n")  # blank lines before the header are none
    found = run_cli(capsys, "predict", folder / "classify", path)[0].split("\n")
    assert [bool(each) for each in found] == [True, False, False, True, False, False]
    path = tmp_path / "test.jsonl"
    path.write_text('\n{"text": "so good"}\n\n{"text": null}\n{"text": "so bad"}\n')
    found = run_cli(capsys, "predict", folder / "classify", path)[0].split("\n")
    assert [bool(each) for each in found] == [False, True, False, False, True, False]
    run_cli(capsys, "predict", folder / "classify", path, "--details")


def test_a_first_line_that_may_be_a_header(folder, tmp_path, capsys):
    """Training reads it as an example; predict knows less, because only the source must be there."""
    path = tmp_path / "test.tsv"
    path.write_text("question\tFrage\nanswer\tAntwort\n")
    words = (
        f"{path}:1: the first line, question | Frage, may name the columns or be an example; set data.header=yes or no"
    )
    check_error(capsys, "predict", folder / "translate", path, words=words)
    assert len(run_cli(capsys, "predict", folder / "translate", path, "data.header=no")[0].splitlines()) == 2
    assert len(run_cli(capsys, "predict", folder / "translate", path, "data.header=yes")[0].splitlines()) == 1
    (tmp_path / "test.csv").write_text("question,Frage\nanswer,Antwort\n")
    check_error(
        capsys, "predict", folder / "translate", tmp_path / "test.csv", words="test.csv:1: the first line, question"
    )
    labeled = tmp_path / "labeled.tsv"
    labeled.write_text("foo\tbar\n" + "so good\tpos\nso bad\tneg\n" * 5)
    words = f"{labeled}:1: the line foo | bar may name the columns, because no other line has the label 'bar'"
    check_error(capsys, "predict", folder / "classify", labeled, words=words)
    path.write_text("id\tsource\tdate\n1\ta\t2\n")
    out, err = run_cli(capsys, "predict", folder / "translate", path)
    assert len(out.splitlines()) == 1 and "source is column source (of id, source, date)" in err


def test_prefixes_of_text2text(tmp_path, capsys):
    path = write_table(tmp_path / "train.tsv", {"source": ["a", "b"] * 4, "target": ["A", "B"] * 4})
    settings = ("data.prefixes=up: ", "tokenizer.vocab=60")
    run_cli(capsys, "train", "text2text", f"data.train={path}", *settings, *TINY, "--out", tmp_path / "run")
    predictor = regard.load(tmp_path / "run")
    out, _ = run_cli(capsys, "predict", tmp_path / "run", path)
    assert out.splitlines() == predictor.predict(["up: a", "up: b"] * 4)
    scores = [float(line) for line in run_cli(capsys, "score", tmp_path / "run", path)[0].splitlines()]
    assert scores == pytest.approx(predictor.score(["up: a", "up: b"] * 4, ["A", "B"] * 4), abs=1e-5)
    check_error(
        capsys, "predict", tmp_path / "run", path, path, words="data.prefixes has 1 entries and there are 2 files"
    )


def test_look_reads_a_record(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    looked = []

    def look(task: str, *arguments: object) -> str:
        """What is printed to stderr; `looked` gets the text."""
        with monkeypatch.context() as patch:
            kind = type(regard.load(folder / task))
            own = kind.look
            patch.setattr(
                kind, "look", lambda self, *given: looked.append(tuple(filter(None, given))) or own(self, *given)
            )
            return run_cli(capsys, "look", folder / task, *arguments)[1]

    write_table(Path("test.csv"), {"text": TEXTS, "label": LABELS})
    assert "test.csv: reading record 1\n" in look("classify", "test.csv")
    assert "test.csv: text is column text (of text, label)\n" in look("classify", "test.csv", "--record", 3)
    Path("lines.txt").write_text("so good\nso bad\n")
    look("classify", "lines.txt", "--record", 2)
    look("translate", "lines.txt", "SO GOOD")
    look("classify", "no file")
    write_table(Path("words.jsonl"), {"tokens": [["Dogs", "bark"]]})
    look("tag", "words.jsonl")
    Path("words.tsv").write_text("Dogs\tN\nbark\tV\n\n")
    look("tag", "words.tsv")
    texts = [
        ("so good, really",),
        ("fine\nand more",),
        ("so bad",),
        ("so good", "SO GOOD"),
        ("no file",),
        ("Dogs bark",),
    ]
    assert looked[:-1] == texts and looked[-1][0].startswith("Dogs\t")
    check_error(
        capsys, "look", folder / "classify", "lines.txt", "--record", 3, words="lines.txt has 2 records; give a"
    )
    check_error(
        capsys, "look", folder / "classify", "no file", "--record", 1, words="'no file' is a text and not a file"
    )


# --- stdin -----------------------------------------------------------------------------------------------------------


def test_records_and_tables_on_stdin(folder, tmp_path, capsys, feed):
    run = folder / "classify"
    labels = regard.load(run).predict(["so good", "so bad"])
    plain = "".join(label + "\n" for label in labels)
    lines = '{"text": "so good", "id": 1}\n{"text": "so bad", "id": 2}\n'
    feed(lines)
    assert run_cli(capsys, "predict", run) == (plain, "regard: stdin: text is column text (of text, id)\n")
    feed(lines)
    found = [json.loads(line) for line in run_cli(capsys, "predict", run, "--details")[0].splitlines()]
    assert [(each["id"], each["label"]) for each in found] == [(1, labels[0]), (2, labels[1])]
    (tmp_path / "lines").write_text(lines)  # a suffix that says nothing
    assert run_cli(capsys, "predict", run, tmp_path / "lines")[0] == plain
    feed(lines)
    out, err = run_cli(capsys, "predict", run, "data.format=text")
    assert len(out.splitlines()) == 2 and err == ""
    for kind, text in {
        "jsonl": lines,
        "tsv": "text\tlabel\nso good\tpos\nso bad\tneg\n",
        "csv": 'label,text\npos,"so good"\nneg,so bad\n',
        "json": "[" + lines.replace("}\n{", "},{") + "]",
    }.items():
        feed(text)
        out, err = run_cli(capsys, "predict", run, f"data.format={kind}")
        assert out == plain and err.startswith("regard: stdin: text is column text (of ")
    feed("text\tlabel\nso good\tpos\tx\n")
    check_error(capsys, "predict", run, "data.format=tsv", words="regard: stdin:2: 3 columns, and the header has 2")
    feed(lines + "plain\n")
    assert main(["predict", str(run)]) == 2
    assert "regard: stdin:3: not one JSON object on one line" in capsys.readouterr().err
    feed('{"sentence": "a", "review": "b"}\n')
    check_error(
        capsys, "predict", run, words="stdin:1: the columns are sentence, review, and sentence and review may each"
    )
    feed('{"other": 1}\n')  # no known column: a text
    assert len(run_cli(capsys, "predict", run)[0].splitlines()) == 1
    feed('{"text": "so good", "label": "pos"}\n\n')
    assert main(["score", str(run)]) == 2 and "'' is no label of this run" in capsys.readouterr().err
    feed('{"text": "so good", "label": "pos"}\n')
    assert float(run_cli(capsys, "score", run)[0]) == pytest.approx(regard.load(run).score("so good", "pos"), abs=1e-5)


PREDICT = """
import sys
from regard.cli import main
sys.exit(main(["predict", *sys.argv[1:]]))
"""


def test_a_pipe_is_answered_as_its_lines_come(folder):
    """Each line is answered before the next one is written."""
    command = [sys.executable, "-c", PREDICT, str(folder / "classify")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        for _ in range(3):
            process.stdin.write(b"so good\n")
            process.stdin.flush()
            assert process.stdout.readline().strip() in (b"pos", b"neg")
        process.stdin.write(b"no newline")
        process.stdin.close()
        assert process.stdout.readline().strip() and not process.stdout.read()
        assert process.wait() == 0


def read_pipe(write: Callable[[int], None]) -> list[list[bytes]]:
    """The chunks of a pipe that another process fills."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        write(writing)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        lines = PipeLines(file)
        found = [[entry.item for entry in chunk] for chunk in chunks([InputFile(map(Entry, lines), lines.ready)])]
    os.wait()
    return found


def test_a_fast_pipe_is_read_in_large_chunks():
    sizes = [
        len(chunk) for chunk in read_pipe(lambda pipe: [os.write(pipe, b"word\n" * 1000) for _ in range(20)] and None)
    ]
    assert sum(sizes) == 20_000 and len(sizes) < 60  # 20 if the writer never waits for its processor
    long = b"x" * 300_000

    def write_parts(pipe: int) -> None:
        for part in (b"a\nb", b"", b"c\n", long, b"\n\n", b"end"):
            os.write(pipe, part)
            time.sleep(0.02)

    chunk = read_pipe(write_parts)
    assert [line for lines in chunk for line in lines] == [b"a", b"bc", long, b"", b"end"] and len(chunk) > 1
