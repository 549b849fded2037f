"""Errors and odd inputs of tables: columns, data in memory, Arrow, iterables, archives, missing packages."""

import bz2
import gzip
import io
import lzma
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from helpers.containers import Records

import regard
from regard.config.data.texts import LabelData, MaskData, PairData, TagData, TextData
from regard.data.files import open as open_file
from regard.data.sources.data_files import evaluation_files
from regard.data.sources.documents import open_documents
from regard.data.sources.labeled import labeled_texts
from regard.data.sources.lines import line_examples
from regard.data.sources.pairs import open_pairs
from regard.data.sources.tagged import tagged_sentences
from regard.data.tables import arrow
from regard.data.tables.columns import LABEL, SOURCE, TARGET, TEXT, ColumnRule, label_value, text_value
from regard.data.tables.open import open_table
from regard.errors import UserError
from regard.files import cache_folder


def labeled(data: Any, **settings: Any) -> list[tuple[str, ...]]:
    return list(labeled_texts(evaluation_files(data), LabelData(**settings)))


def pairs(data: Any, **settings: Any) -> list[tuple[str, ...]]:
    return list(open_pairs(evaluation_files(data), PairData(**settings)))


def tagged(data: Any, **settings: Any) -> list[tuple[Any, ...]]:
    return list(tagged_sentences(evaluation_files(data), TagData(**settings)))


def refusal(call: Any, *arguments: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as error:
        call(*arguments, **settings)
    assert "; " in str(error.value), "a remedy follows the problem"
    return str(error.value)


def write(path: Path, data: str | bytes) -> str:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


# --- columns ---------------------------------------------------------------------------------------------------------


def test_known_names_rank_by_their_certainty():
    rule = ColumnRule((TEXT, LABEL))
    assert rule.by_name(["sentence", "text", "class", "label"]).indices == (1, 3)
    assert rule.by_name(["Review", "n", "Sentiment "]).indices == (0, 2)
    assert rule.by_name(["sentence", "x"]).indices == (0, 1)  # what is left must be the label
    assert ColumnRule((SOURCE, TARGET)).by_name(["en", "de"]).indices == (0, 1)
    assert ColumnRule((SOURCE, TARGET)).by_name(["id", "translation.en", "translation.de", "n"]).indices == (1, 2)


@pytest.mark.parametrize(
    ("names", "asked", "words"),
    [
        (["review", "comment", "label"], (), "review and comment may each be the text; name the text's and the label's"),
        (["text", "class", "topic"], (), "class and topic may each be the label"),
        (["a", "b"], (), "the columns are a, b, and none of them is known to be the text"),
        (["text", "x", "y"], (), "none of them is known to be the label; name the text's and the label's, such as data.columns=text,x"),
        (["text", "text"], (), "text and text may each be the text"),
        (["text", "y", "y"], ("text", "y"), "columns 2 and 3 are both 'y' (data.columns); give the number of one"),
        (["a.y", "b.y", "text"], ("text", "y"), "columns 1 and 2 are both 'y'"),
        (["text", "label"], ("text", "stars"), "the header has no column 'stars' (data.columns), it has text, label; name one of these"),
        (["text", "label"], ("text",), "data.columns=text names one column, expected two: text, label"),
        (["text", "label"], ("text", "label", "3", "4"), None),
        (["text", "label"], ("1", "2", "3"), "data.columns=1,2,3 is not clear; expected two, the text's and the label's"),
    ],
)  # fmt: skip
def test_unclear_columns_are_refused_with_the_choices(names, asked, words):
    rule = ColumnRule((TEXT, LABEL), asked)
    if words is None:
        assert rule.by_name(names).indices == (0, 1)
    else:
        with pytest.raises(UserError, match=re.escape(words)):
            rule.by_name(names)


def test_columns_by_number(tmp_path):
    path = write(tmp_path / "a.tsv", "one two three four five six seven eight nine\tx\tpos\n")
    assert labeled(path, columns="1,3") == [("one two three four five six seven eight nine", "pos")]
    assert "3 columns without a header" in refusal(labeled, path)
    assert "a.tsv:1: the columns have no names, and data.columns asks for 'x'; give its number" in refusal(
        labeled, path, columns="1,x", header="no"
    )
    assert "columns are counted from 1" in refusal(labeled, path, columns="0,1")
    assert "3 columns, expected at least 4 (data.columns); correct it" in refusal(labeled, path, columns="1,4")
    csv = write(tmp_path / "a.csv", "only one column of long text in here, is it not\n".replace(",", " -"))
    assert "a.csv:1: 1 columns, expected at least 2 (data.columns); separate the cells" in refusal(
        labeled, csv, header="no"
    )


def test_further_references_may_be_missing(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tb\tc\na\tb\na\n")
    data = PairData(columns="1,2,3", header="no", invalid="skip")
    examples = open_pairs(((path,),), data, references=True)
    assert list(examples) == [("a", "b\tc"), ("a", "b")] and examples.counts["invalid"] == 1
    with pytest.raises(UserError, match="a.tsv:3: 1 columns, expected at least 2"):
        open_pairs(((path,),), PairData(columns="1,2,3", header="no"), references=True)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"text": 5, "label": "a"}, "no text under 'text' but 5"),
        ({"text": "x", "label": ["a"]}, "no label under 'label' but [\"a\"]"),
        ({"text": "x", "label": object()}, "no label under 'label' but a object"),
        ({"text": "x\0", "label": "a"}, "a text with a NUL or half a surrogate pair"),
        ({"text": "\ud83d", "label": "a"}, "a text with a NUL or half a surrogate pair"),
        ({"label": "a"}, "no text under 'text'; there is label"),
        (("x", "a"), "a tuple, and the first record is a dict"),
    ],
)
def test_invalid_records_in_memory(record, words):
    records = [{"text": "fine", "label": "a"}, record]
    assert f"list of 2 records in memory, record 2: {words}" in refusal(labeled, records)
    examples = labeled_texts(evaluation_files(records), LabelData(invalid="skip"))
    assert list(examples) == [("fine", "a")] and examples.counts["invalid"] == 1


def test_nested_values_are_shown_shortened():
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="a list"):
        text_value(deep)
    with pytest.raises(ValueError, match="a list"):
        label_value(deep)
    while deep:  # CPython frees deep lists one by one only so
        deep = deep.pop()


def test_label_names():
    rows = {"text": ["a", "b", "c"], "label": [0, 1, 2]}
    assert labeled(rows, names="no,yes,maybe") == [("a", "no"), ("b", "yes"), ("c", "maybe")]
    assert "record 3: no label under 'label' but 2, which is no index of the 2 names (data.names)" in refusal(
        labeled, rows, names="no,yes"
    )
    assert labeled({"text": ["a"], "label": ["yes"]}, names="no,yes") == [("a", "yes")]
    assert "-1, which is no index" in refusal(labeled, {"text": ["a"], "label": [-1]}, names="no,yes")
    assert labeled({"text": ["a", "b"], "label": [np.int64(1), np.bool_(True)]}) == [("a", "1"), ("b", "true")]


@pytest.mark.parametrize(
    ("tokens", "tags", "words"),
    [
        (["a", "b"], ["X"], "2 tokens and 1 tags; expected equally many"),
        (["a", " "], ["X", "Y"], "an empty word or tag"),
        (["a", 3], ["X", "Y"], "no list of texts under 'tokens' but one with 3"),
        ("a b", ["X", "Y"], "no list of texts under 'tokens' but \"a b\""),
        (["a"], 7, "no list of tags under 'tags' but 7"),
    ],
)
def test_invalid_tagged_records(tokens, tags, words):
    assert f"record 1: {words}" in refusal(tagged, [{"tokens": tokens, "tags": tags}])


# --- data in memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (5, "data is a int; expected file names, a list of tuples or dicts"),
        ({"text": "a", "label": "b"}, "data is a dict; expected"),
        ({("a", "b")}, "data is a set; expected"),
        (b"a\tb\n", "data is a bytes; expected"),
        ([], "the data are empty; give at least one example"),
        ([["a", 1]], "the data are a list; expected"),
        ([5, 6], "list of 2 records in memory: its first record is a int; expected tuples, dicts or texts"),
        ([()], "its first record is a tuple"),
        ([("a", "b"), ("c",)], "record 2: 1 values, and the first record has 2; correct it"),
        ([("a", "b"), "c"], "record 2: 1 values, and the first record has 2"),
        ([("a", "b"), 5], "record 2: 1 values, and the first record has 2"),
        ([("a", "b", "c")], "3 columns without a header"),
        ([("a",)], "1 columns, expected at least 2 (data.columns)"),
        ({"text": ["a"], "label": ["b", "c"]}, "dict of 1 records in memory: the columns differ in length: 1, 2; give equal ones"),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), "two columns have the same name; rename one of text, text"),
        (pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, ["text", "text"]), "two columns have the same name"),
        (pandas.Series(["a"]), "a pandas Series has no columns; give a frame"),
        (polars.Series(["a"]), "a polars Series has no columns; give a frame"),
    ],
)  # fmt: skip
def test_data_that_are_no_records(data, words):
    assert words in refusal(labeled, data)


def test_training_refuses_data_that_are_no_records(tmp_path):
    with pytest.raises(UserError, match="data.train is a int; expected"):
        regard.train("classify", out=tmp_path / "run", data={"train": 5})
    with pytest.raises(UserError, match="data.train"):
        regard.train("classify", out=tmp_path / "run", data={"train": []})
    with pytest.raises(UserError, match="holds no example"):
        regard.train("classify", out=tmp_path / "run", data={"train": pandas.DataFrame({"text": [], "label": []})})


def test_texts_alone_are_records_of_one_column():
    texts = Records(["a text", "", "another"])
    examples = line_examples(evaluation_files(texts), MaskData())
    assert list(examples) == [("a text",), ("another",)] and examples.counts["empty"] == 1
    documents = open_documents(TextData(), "train", evaluation_files(iter(["one", "two"])))
    assert [part.text for part in documents.parts(None)] == ["one", "two"]


def test_data_of_another_program_are_asked_for_again():
    with pytest.raises(
        UserError, match="the data are a list of 3 records in memory of another program; give them again"
    ):
        labeled("list of 3 records in memory")


# --- iterables -------------------------------------------------------------------------------------------------------


def spools() -> list[Path]:
    return [*cache_folder().glob(".spool*")]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "data is an iterable without records; give at least one"),
        ([("a", "b"), ("c",)], "data: record 2 is a tuple of 1; the first one is a tuple of 2; give equal ones"),
        ([{"text": "a"}, ("b",)], "data: record 2 is a tuple of 1; the first one is a dict"),
        ([5], "data: record 1 is a int; expected tuples, dicts or texts"),
        ([("a", 1), ("b", "x")], "data, records 1 to 2: no table holds them"),
        ([("a", 1), ("b", 2.5)], "2 has both integers and decimals); give the same fields and types to all"),
        ([("a", 2**70)], "no table holds them"),
        ([("\ud83d", "x")], "no table holds them"),
        ([("a", object())], "no table holds them"),
    ],
)
def test_iterables_of_unequal_records(records, words):
    assert words in refusal(labeled, iter(records))
    assert not spools()


def test_iterables_are_spooled_in_chunks(monkeypatch, capsys):
    monkeypatch.setattr(arrow, "SPOOLED_ROWS", 3)
    rows = [(f"text {number}", number % 2) for number in range(10)]
    assert labeled(iter(rows)) == [(text, str(label)) for text, label in rows]
    assert re.search(
        r"regard: data: wrote 10 records to \S+\.arrow, because an iterable is read only", capsys.readouterr().err
    )
    assert "records 10 to 10: no table" in refusal(labeled, iter([*rows[:-1], ("x", "y")])) and not spools()


def test_errors_of_an_iterable_are_its_own():
    def failing():
        yield ("a", "b")
        raise FileNotFoundError("mine")

    with pytest.raises(FileNotFoundError, match="mine"):
        labeled(failing())
    assert not spools()


def test_cache_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "file/regard cannot be written (Not a directory); free space there, or set XDG_CACHE_HOME" in refusal(
        labeled, iter([("a", "b")])
    )


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1 damaged PAR1", b"ARROW1\0\0 damaged", b"no table"])
def test_damaged_tables_of_arrow(tmp_path, suffix, content):
    path = write(tmp_path / f"a{suffix}", content)
    assert refusal(labeled, path).startswith(path)


def test_truncated_parquet(tmp_path):
    table, buffer = pyarrow.table({"text": ["a"] * 100, "label": ["b"] * 100}), io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    for size in (100, len(buffer.getvalue()) - 5):
        path = write(tmp_path / "a.parquet", buffer.getvalue()[:size])
        assert "is not a whole Parquet or Arrow file" in refusal(labeled, path)


def test_parquet_that_cannot_be_read(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", b"PAR1")

    def locked(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pyarrow.parquet, "read_table", locked)
    assert refusal(labeled, path) == f"{path} cannot be read: Permission denied; check its name and content"


@pytest.mark.parametrize("package", ["pyarrow", "zstandard"])
def test_missing_packages_are_named(tmp_path, monkeypatch, package):
    suffix = ".parquet" if package == "pyarrow" else ".tsv.zst"
    path = write(tmp_path / f"a{suffix}", b"PAR1")
    monkeypatch.setitem(sys.modules, package, None)
    assert f"needs {package}, which is not installed; pip install 'regard[tables]'" in refusal(labeled, path)
    if package == "pyarrow":
        assert "data is an iterable, and needs pyarrow" in refusal(labeled, iter([("a", "b")]))


PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.json", "a.jsonl"])
def test_damaged_archives(tmp_path, suffix, name):
    packed = PACKERS[suffix](b'[{"text": "a", "label": "b"}]\n' * 1000)
    for data in (packed[:-5], packed[: len(packed) // 2], b"no archive at all"):
        path = write(tmp_path / f"{name}{suffix}", data)
        assert f"is not a complete {suffix} archive" in refusal(labeled, path)


@pytest.mark.parametrize("suffix", PACKERS)
def test_archives_of_several_streams(tmp_path, suffix):
    lines = [f"text number {number} with some more words\tx{number % 3}\n" for number in range(30_000)]
    halves = "".join(lines[:9000]).encode(), "".join(lines[9000:]).encode()
    expected = [tuple(line.rstrip("\n").split("\t")) for line in lines]
    for name in ("a.tsv", "a.csv"):
        path = write(tmp_path / f"{name}{suffix}", b"".join(map(PACKERS[suffix], halves)))
        assert labeled(path, header="no", columns="1,2") == expected


def test_unreadable_csv(tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv", "text,label\na,b\n")

    def locked(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(open_file, "_open_plain", locked)
    assert "cannot be read: Permission denied" in refusal(labeled, path)


@pytest.mark.parametrize("name", ["a.xlsx", "a.pdf", "a.zip", "a.pkl", "a.db", "a.xlsx.gz", "A.XLSX"])
def test_other_files_are_refused_by_name(tmp_path, name):
    path = write(tmp_path / name, b"PK")
    assert "which regard does not read; " in refusal(labeled, path)
    with pytest.raises(UserError, match="which regard does not read"):
        list(open_documents(TextData(), "train", ((path,),)).parts(None))


def test_json_arrays_and_lines_in_one_glob(tmp_path):
    write(tmp_path / "a.json", '[{"text": "a", "label": "x"}]')
    write(tmp_path / "b.json", '{"text": "b", "label": "y"}\n')
    write(tmp_path / "c.json", "[]")
    write(tmp_path / "d.json", "")
    assert labeled(str(tmp_path / "*.json")) == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"text": "a", "label": "x"},\n]', "a.json:2: not valid JSON"),
        ('[\n{"text": "a", "label": "x"}]]', "a.json:2: not valid JSON (text after the array"),
        ('[{"text": "a"}\n{"text": "b"}]', "a.json:2: not valid JSON (expected a comma or ]"),
        ("[1,\n2]", "a.json:1: the columns are nothing"),
        ('[{"text": "a", "label": "x"},\n7]', "a.json:2: not a JSON object but 7"),
        ("[" + "1" * 5000 + "]", "a.json:1: not valid JSON"),
        ("[" * 100_000, "a.json:1: not valid JSON"),
        (
            '[\n\n{"x": 1, "y": 2, "z": 3}]',
            "a.json:3: the columns are x, y, z, and none of them is known to be the text",
        ),
    ],
)
def test_damaged_json_arrays(tmp_path, text, words):
    assert words in refusal(labeled, write(tmp_path / "a.json", text))


def test_unclear_columns_of_running_text_name_the_line(tmp_path):
    path = write(tmp_path / "a.jsonl", '\n{"x": "a", "y": "b"}\n')
    with pytest.raises(UserError, match=r"a\.jsonl:2: the columns are x, y, and none of them is known to be the text"):
        list(open_documents(TextData(), "train", ((path,),)).parts(None))


@pytest.mark.parametrize(("name", "text"), [("a.tsv", "source\tx\n"), ("a.csv", "source,x\n")])
def test_a_first_line_that_may_be_either(tmp_path, name, text):
    """Where the target is optional, as in prediction, a known name beside an unknown one is not clear."""
    rule = ColumnRule((SOURCE, TARGET), required=1)
    words = rf"{name}:1: the first line, source \| x, may name the columns or be an example; set data.header=yes or no"
    with pytest.raises(UserError, match=words):
        open_table([write(tmp_path / name, text)], rule, "auto", "refuse")


def test_csv_quotes_and_blank_lines(tmp_path):
    text = '\n \n"te""xt",label\n\n"two\nlines",x\n   \n"a ""b""",y\n'
    path = write(tmp_path / "a.csv", text)
    assert labeled(path, columns='te"xt,label') == [("two\nlines", "x"), ('a "b"', "y")]
    write(tmp_path / "a.csv", '"multi\nline";label\na;b\n')
    assert labeled(path, columns="1,label") == [("a", "b")]
    write(tmp_path / "a.csv", '5" pipe;x\n3" pipe;y\n')
    assert labeled(path, header="no") == [('5" pipe', "x"), ('3" pipe', "y")]
    write(tmp_path / "a.csv", 'text,label\na,"b\nc,d\n')
    assert "a.csv:2: this is not CSV (unexpected end of data); check its quotes" in refusal(labeled, path)
    write(tmp_path / "a.csv", "text,label\na\nb,c,d\ne,f\n")
    assert "a.csv:2: 1 cells, and the header has 2; correct it, or set data.invalid=skip" in refusal(labeled, path)
    assert labeled(path, invalid="skip") == [("e", "f")]


def test_bytes_that_are_no_text_leave_out_their_record(tmp_path):
    broken = b'text,label\n"a \xff\n",x\nfine,y\nn\0l,z\n'
    path = write(tmp_path / "a.csv", broken)
    assert "a.csv:2: byte 4 of the line is 0xff" in refusal(labeled, path)
    examples = labeled_texts(((path,),), LabelData(invalid="skip"))
    assert list(examples) == [("fine", "y")] and examples.counts["invalid"] == 2
    write(tmp_path / "a.csv", "text,label\na,b\n".encode("utf-16"))
    assert "a.csv:1: this is UTF-16" in refusal(labeled, path, invalid="skip")


def test_one_side_and_one_task(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tb\n")
    with pytest.raises(UserError, match="text has one side, but 2 were given"):
        line_examples(((path,), (path,)), MaskData())
    assert "tsv data hold both sides in one file" in refusal(pairs, f"{path},{path}", format="tsv")
