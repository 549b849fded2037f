"""Labeled texts and tagged words from every format, label sets, and label metrics."""

import gzip
import json
import lzma
import math
from pathlib import Path

import numpy as np
import pytest

from regard.config.data.texts import LabelData, TagData
from regard.data.sources.labeled import labeled_texts
from regard.data.sources.tagged import (
    Columns,
    Conllu,
    PlainText,
    Records,
    detect_format,
    read_first_lines,
    tagged_sentences,
)
from regard.errors import UserError
from regard.look import draw_confusion
from regard.metrics.labels import ConfusionMatrix, label_metrics, paired_accuracy_bootstrap, span_metrics, tag_spans
from regard.processors.labels import LabelProcessor, LabelSet, collect_labels, collect_tags, sorted_labels
from regard.processors.text.words import split_words


def write_file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    packers = {".gz": gzip.compress, ".xz": lzma.compress}
    path.write_bytes(packers.get(path.suffix, bytes)(text.encode()))
    return path


def texts(path: Path, **data) -> list[tuple[str, ...]]:
    return list(labeled_texts(((str(path),),), LabelData(**data)))


# --- texts with labels -----------------------------------------------------------------------------------------------

GOOD = [("so good", "pos"), ("so bad, really", "neg"), ("fine", "pos")]


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.tsv", "so good\tpos\nso bad, really\tneg\nfine\tpos\n", ()),
        ("a.txt.gz", "so good\t pos\r\nso bad, really\tneg\r\nfine\tpos", ()),
        ("a.tsv.xz", "pos\tso good\nneg\tso bad, really\npos\tfine\n", "label,text"),
        ("a.tsv", "pos\tso good\nneg\tso bad, really\npos\tfine\n", "2,1"),
        ("a.tsv", "1\tpos\tso good\n2\tneg\tso bad, really\n3\tpos\tfine\n", "id,label,text"),
        ("a.tsv", "label\ttext\npos\tso good\nneg\tso bad, really\npos\tfine\n", ()),
        ("a.tsv", "label\tn\ttext\npos\t1\tso good\nneg\t2\tso bad, really\npos\t3\tfine\n", "label,text"),
        ("a.tsv", "stars\treview\npos\tso good\nneg\tso bad, really\npos\tfine\n", "review,stars"),
        ("a.csv", 'text,label\nso good,pos\n"so bad, really",neg\nfine,pos\n', ()),
        ("a.csv.gz", '\ufefflabel,n,text\npos,1,so good\nneg,2,"so bad, really"\n\npos,3,fine\n', "text,label"),
        ("a.csv", 'stars,review\npos,so good\nneg,"so bad, really"\npos,fine\n', "review,stars"),
        ("a.csv", 'stars,review\npos,so good\nneg,"so bad, really"\npos,fine\n', "2,1"),
        ("a.jsonl", '{"text": "so good", "label": "pos"}\n{"label": "neg", "text": "so bad, really"}\n'
                    '{"text": "fine", "label": "pos"}\n', ()),
        ("a.json", '{"s": "so good", "l": "pos"}\n{"s": "so bad, really", "l": "neg"}\n{"s": "fine", "l": "pos"}\n', "s,l"),
    ],
)  # fmt: skip
def test_formats_are_equivalent(tmp_path, name, text, columns):
    path = write_file(tmp_path, name, text)
    assert texts(path, columns=columns) == GOOD
    assert collect_labels(labeled_texts(((str(path),),), LabelData(columns=columns))).counts == {"neg": 1, "pos": 2}


def test_locations_and_newlines_in_quotes(tmp_path):
    path = write_file(tmp_path, "a.csv", 'text,label\n"two\nlines ""and"" quotes",x\n,y\nlast,y\n')
    read = labeled_texts(((str(path),),), LabelData())
    assert list(read) == [('two\nlines "and" quotes', "x"), ("last", "y")]
    assert (read.location(0), read.location(1)) == (f"{path}:2", f"{path}:5")
    chosen = "text is column text, label is column label (of text, label)"
    assert read.report() == [chosen, "1 examples left out because a side is empty"]
    plain = labeled_texts(((str(write_file(tmp_path, "b.tsv", "a\tx\n\t\nb\ty\n")),),), LabelData())
    assert plain.location(1) == f"{tmp_path / 'b.tsv'}:3" and plain.counts["empty"] == 1


def test_numeric_labels_are_sorted_by_value(tmp_path):
    path = write_file(
        tmp_path, "a.jsonl", "\n".join(json.dumps({"text": "a", "label": n}) for n in (10, 2, True, 2, 1.5))
    )
    assert collect_labels(labeled_texts(((str(path),),), LabelData())).names == ["2", "10", "1.5", "true"]


def test_several_files_and_fingerprints(tmp_path):
    for name in ("a", "b"):
        write_file(tmp_path, f"{name}.tsv", f"{name}\tx\n{name}{name}\ty\n")
    both = labeled_texts(((f"{tmp_path}/?.tsv",),), LabelData())
    assert len(both) == 4 and both[3] == ("bb", "y")
    one = labeled_texts(((f"{tmp_path}/a.tsv",),), LabelData())
    assert (
        both.fingerprint() != one.fingerprint() == labeled_texts(((f"{tmp_path}/a.tsv",),), LabelData()).fingerprint()
    )
    other = labeled_texts(((f"{tmp_path}/a.tsv",),), LabelData(columns=("2", "1")))
    assert other.fingerprint() != one.fingerprint()


def wide(count: int, labels: int) -> str:
    return "".join(f"text {i}\tlabel {i % labels}\n" for i in range(count))


@pytest.mark.parametrize(
    ("name", "text", "data", "words"),
    [
        ("a.tsv", "a\tx\nb\n", {}, "a.tsv:2: 1 columns, and the first line has 2; correct it"),
        ("a.tsv", "a\tb\n", {"columns": "c,d"}, "a.tsv:1: the header has no column 'c' (data.columns), it has a, b"),
        ("a.tsv", "a\tb\n", {"columns": "0,1"}, "holds 0; columns are counted from 1"),
        ("a.tsv", "a\tb\n", {"columns": "a,b,c"}, "data.columns=a,b,c is not clear; expected two"),
        ("a.csv", "a,b\n1,2\n", {}, "a.csv:1: the first line, a, b, has no known column name; set data.columns to the names"),
        ("a.csv", "", {}, "a.csv:1: the columns are nothing, and none of them is known to be the text"),
        ("a.csv", "a,b\n1,2\n", {"columns": "1,3", "header": "yes"}, "a.csv:1: the header has no column '3' (data.columns), it has a, b"),
        ("a.csv", "a,b\n1,2\n", {"columns": "0,1", "header": "yes"}, "a.csv:1: the header has no column '0' (data.columns), it has a, b"),
        ("a.csv", "text,label\n1,2,3\n", {}, "a.csv:2: 3 cells, and the header has 2; correct it"),
        ("a.csv", 'text,label\n"a"b,2\n', {}, "a.csv:2: this is not CSV"),
        ("a.csv", 'text,label\n"a,2\n', {}, "this is not CSV"),
        ("a.jsonl", '{"text": "a"}\n', {}, "a.jsonl:1: the columns are text, and none of them is known to be the label; name the text's and the label's"),
        ("a.jsonl", '{"text": 3, "label": "x"}\n', {}, "a.jsonl:1: no text under 'text' but 3; correct it"),
        ("a.jsonl", "[1]\n", {}, 'a.jsonl:1: not a JSON object such as {"text": …, "label": …}'),
    ],
)  # fmt: skip
def test_label_file_errors(tmp_path, name, text, data, words):
    path = write_file(tmp_path, name, text)
    with pytest.raises(UserError) as error:
        texts(path, **data)
    assert words in str(error.value)


def test_invalid_rows_are_skipped(tmp_path):
    for name, text in (("a.csv", "text,label\n1,2,3\na,x\n"), ("a.tsv", "b\na\tx\n")):
        read = labeled_texts(((str(write_file(tmp_path, name, text)),),), LabelData(invalid="skip"))
        assert list(read) == [("a", "x")] and read.counts["invalid"] == 1


def test_csv_with_invalid_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\n\xff,x\n")
    with pytest.raises(UserError, match="a.csv:2: byte 1 of the line is 0xff, which is not valid UTF-8"):
        texts(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.csv.gz", gzip.compress(b"text,label\n" * 99)[:-20]), ("a.csv.gz", b"plain"),
     ("a.csv.xz", lzma.compress(b"text,label\n" * 99)[:-20]), ("a.csv.xz", b"plain")],
    ids=["cut gz", "no gz", "cut xz", "no xz"],
)  # fmt: skip
def test_csv_in_a_damaged_archive(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(
        UserError, match=rf"{name} is not a complete .{name[-2:]} archive \(.*\); download or compress it again"
    ):
        texts(path)


def test_two_sides_are_errors():
    with pytest.raises(UserError, match="texts and labels are in one file, but 2 were given"):
        labeled_texts((("a",), ("b",)), LabelData())
    with pytest.raises(UserError, match="words and tags are in one file, but 2 were given"):
        tagged_sentences((("a",), ("b",)), TagData())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (wide(3, 3), "has 3 labels in 3 lines, such as 'label 2': perhaps the columns are swapped; set data.columns"),
        (wide(1500, 1001), "has 1,001 labels in 1,500 lines"),
        (wide(3, 1), "is 'label 0', expected at least two"),
    ],
)
def test_implausible_labels_are_errors(tmp_path, text, words):
    read = labeled_texts(((str(write_file(tmp_path, "a.tsv", text)),),), LabelData())
    with pytest.raises(UserError) as error:
        collect_labels(read)
    assert words in str(error.value) and "data.columns=label,text" in str(error.value)


def test_a_thousand_labels_are_allowed(tmp_path):
    assert (
        len(collect_labels(labeled_texts(((str(write_file(tmp_path, "a.tsv", wide(3000, 1000))),),), LabelData())))
        == 1000
    )


def test_unseen_label_error(tmp_path):
    labels = sorted_labels({"pos": 3, "neg": 4})
    valid = labeled_texts(((str(write_file(tmp_path, "a.tsv", "a\tpos\nb\tneutral\n")),),), LabelData())
    with pytest.raises(UserError, match=r"data\.valid: .*a\.tsv:2 has the label 'neutral', which data\.train never has; "
                                      r"expected neg, pos\. .*data\.invalid=skip"):  # fmt: skip
        labels.require_known(valid, "data.valid")


def test_label_set_round_trip(tmp_path):
    labels = LabelSet({"b": 2, "a": 5})
    LabelProcessor(labels).save(tmp_path / "labels.json")
    again = LabelProcessor.load(tmp_path / "labels.json").labels
    assert again.counts == labels.counts and again.names == ["b", "a"] == list(again) and again.majority == "a"
    with pytest.raises(UserError, match="belongs to the run"):
        LabelProcessor.load(tmp_path / "none.json")
    for labels in ("3", '["a"]', '{"a": null}'):
        (tmp_path / "bad.json").write_text(f'{{"labels": {labels}}}')
        with pytest.raises(UserError, match="belongs to the run"):
            LabelProcessor.load(tmp_path / "bad.json")


def test_span_labels_are_detected():
    def draws(*names):
        return LabelSet(dict.fromkeys(names, 1)).spans

    assert draws("O", "B-PER", "I-PER") and draws("B-A", "E-A", "S-A") and not draws("O")
    assert not draws("NOUN", "VERB") and not draws("O", "B-PER", "X") and not draws("B-", "O")


# --- words with tags -------------------------------------------------------------------------------------------------

CONLLU = """# sent_id = 1
# text = I won't go.
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\twon't\t_\t_\t_\t_\t_\t_\t_\t_
2\two\twill\tAUX\tMD\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
4.1\tgone\tgo\tVERB\tVBN\t_\t_\t_\t_\t_
5\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

# sent_id = 2
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""
COLUMNS = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""
WORDS = [(("I", "wo", "n't", "go", "."), ("PRON", "AUX", "PART", "VERB", "PUNCT")), (("Yes",), ("INTJ",))]
NAMES = [(("EU", "rejects"), ("B-ORG", "O")), (("Peter", "Blackburn"), ("B-PER", "I-PER"))]


def sentences(path: Path, **data):
    return tagged_sentences(((str(path),),), TagData(**data))


def test_conllu(tmp_path):
    path = write_file(tmp_path, "a.conllu.xz", CONLLU)
    read = sentences(path)
    assert list(read) == WORDS and read.location(0) == f"{path}:1" and read.location(1) == f"{path}:11"
    assert read.text(0, 0) == "I wo n't go ."
    assert [tags for _, tags in sentences(path, column="xpos")][1] == ("UH",)
    assert [tags for _, tags in sentences(path, column="8")][1] == ("root",)
    assert (
        read.fingerprint()
        == sentences(path).fingerprint()
        != sentences(write_file(tmp_path, "b.conllu", CONLLU + "\n# x")).fingerprint()
    )


def test_columns(tmp_path):
    path = write_file(tmp_path, "eng.train.gz", COLUMNS)
    assert list(sentences(path)) == NAMES
    assert sentences(path, column="2")[1] == (("Peter", "Blackburn"), ("NNP", "NNP"))
    tabs = write_file(tmp_path, "a.tsv", COLUMNS.replace(" ", "\t").replace("\n", "\r\n"))
    assert list(sentences(tabs)) == NAMES
    spaced = write_file(tmp_path, "b.tsv", "New York\tB-LOC\nis\tO\n")
    assert sentences(spaced)[0] == (("New York", "is"), ("B-LOC", "O"))


def test_tagged_jsonl(tmp_path):
    lines = [json.dumps({"tokens": list(words), "tags": list(tags)}) for words, tags in NAMES]
    assert list(sentences(write_file(tmp_path, "a.jsonl", "\n".join(lines)))) == NAMES
    other = json.dumps({"words": ["a"], "ner": ["O"]})
    assert (
        list(sentences(write_file(tmp_path, "b.jsonl", other + "\n\n" + other), column="ner")) == [(("a",), ("O",))] * 2
    )


@pytest.mark.parametrize(
    ("name", "text", "data", "words"),
    [
        ("a.conllu", CONLLU.replace("\t_\t_\n\n", "\t_\n\n"), {}, "a.conllu:9: 9 columns; a line of CoNLL-U has 10"),
        ("a.conllu", CONLLU.replace("4.1\t", "x\t"), {}, "a.conllu:8: the id is 'x'; expected a number, a range"),
        ("a.conllu", CONLLU.replace("\tYes\t", "\t\t"), {}, "a.conllu:12: the word is empty"),
        ("a.conllu", CONLLU, {"column": "pos"}, "data.column is 'pos'; expected one of id, form"),
        ("a.conllu", CONLLU, {"column": "11"}, "data.column is '11'; expected one of id, form"),
        ("a.txt", COLUMNS.replace("Blackburn NNP ", "Blackburn "), {}, "a.txt:7: 3 columns, and the lines before have 4"),
        ("a.txt", COLUMNS, {"column": "5"}, "a.txt:3: 4 columns, expected at least 5 (data.column)"),
        ("a.txt", COLUMNS, {"column": "ner"}, "data.column is 'ner' and these columns have no names; give a number"),
        ("a.txt", COLUMNS, {"column": "1"}, "data.column is '1' and these columns"),
        ("a.txt", "a\nb\n", {}, "a.txt:1: one column; expected a word and its tag"),
        ("a.txt", "a\t\n", {}, "a.txt:1: the tag is empty"),
        ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["x"]}', {}, "a.jsonl:1: 2 tokens and 1 tags; expected equally many"),
        ("a.jsonl", '{"tokens": ["a"]}', {}, "a.jsonl:1: the columns are tokens, and none of them is known to be the tags"),
        ("a.jsonl", '{"tags": ["a"]}', {}, "a.jsonl:1: the columns are tags, and none of them is known to be the tokens"),
        ("a.jsonl", '{"tokens": [1], "tags": ["x"]}', {}, "no list of texts under 'tokens' but one with 1"),
        ("a.jsonl", '{"tokens": ["\\ud800"], "tags": ["x"]}', {}, "a.jsonl:1: a text with a NUL or half a surr"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["\\u0000x"]}', {}, "a.jsonl:1: a text with a NUL or half a surr"),
        ("a.jsonl", "{", {}, "a.jsonl:1: not one JSON object"),
        ("a.jsonl", "3", {}, "a.jsonl:1: not a JSON object"),
        ("a.txt", "a b", {"format": "text"}, "data.format=text has no tags for training or evaluation"),
    ],
)  # fmt: skip
def test_tag_file_errors(tmp_path, name, text, data, words):
    path = write_file(tmp_path, name, text)
    with pytest.raises(UserError) as error:
        sentences(path, **data)
    assert words in str(error.value)


def test_invalid_line_skips_its_sentence(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a X\nb\n\nc X\n\n\xff\xfe Y\nd X\n\ne Y\n\nf X\n\xff Y\n")
    read = sentences(path, invalid="skip")
    assert list(read) == [(("c",), ("X",)), (("e",), ("Y",))]
    assert read.counts["invalid"] == 3 and read.location(1) == f"{path}:9"


def test_single_tag_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"every tag of .* is '_', expected at least two; choose the column"):
        collect_tags(sentences(write_file(tmp_path, "a.conllu", CONLLU), column="deps"))
    assert collect_tags(sentences(write_file(tmp_path, "a.conllu", CONLLU))).counts["PRON"] == 1


def test_conllu_round_trip():
    """Comments, ranges and empty nodes are kept; only the tags change."""
    blocks = list(Conllu("").blocks(CONLLU.splitlines()))
    assert "\n".join(blocks) == CONLLU + ("" if CONLLU.endswith("\n\n") else "") and len(blocks) == 2
    written = Conllu("upos").with_tags(blocks[0].split("\n"), list("ABCDE"))
    assert (
        written.count("\t") == blocks[0].count("\t")
        and "2-3\twon't\t_\t_" in written
        and "4.1\tgone\tgo\tVERB" in written
    )
    assert [
        line.split("\t")[3] for line in written.splitlines() if line[0].isdecimal() and line.split("\t")[0].isdecimal()
    ] == list("ABCDE")
    again = Conllu("").with_tags(blocks[0].split("\n"), WORDS[0][1])
    assert again == blocks[0]


@pytest.mark.parametrize("header", ["word x tag\n", "Token\tpos\tner_tags\n", "tokens x labels\n\n", ""])
def test_the_header_of_columns_is_no_sentence(header, tmp_path):
    tab = "\t" if "\t" in header else " "
    lines = [tab.join(cells) for cells in (("EU", "x", "O"), ("word", "x", "O"), ("x", "x", "tag"))]
    path = write_file(tmp_path, "a.txt", header + "\n".join(lines) + "\n")
    assert list(tagged_sentences([[str(path)]], TagData())) == [(("EU", "word", "x"), ("O", "O", "tag"))]
    tagged = Columns("").with_tags([*header.splitlines(), *lines], ["A", "B", "C"])
    assert tagged.splitlines()[: len(header.splitlines())] == header.splitlines() and tagged.endswith(f"{tab}C")


def test_columns_with_tags():
    lines = COLUMNS.split("\n")[2:4]
    assert Columns("").with_tags(lines, ["X", "Y"]) == "EU NNP B-NP X\nrejects VBZ B-VP Y"
    assert Columns("2").with_tags(lines, ["X", "Y"]) == "EU X B-NP B-ORG\nrejects Y B-VP O"
    assert Columns("").with_tags(["EU", "rejects"], ["X", "Y"]) == "EU X\nrejects Y"
    assert Columns("3").with_tags(["a\tb"], ["X"]) == "a\tb\tX"
    assert Columns("").with_tags(["-DOCSTART- -X- O"], []) == "-DOCSTART- -X- O"


def test_records_and_plain_text_with_tags():
    assert json.loads(Records("").with_tags(['{"id": 3, "tokens": ["a", "ü"]}'], ["X", "Y"])) == {
        "id": 3,
        "tokens": ["a", "ü"],
        "tags": ["X", "Y"],
    }
    assert PlainText().with_tags(["a  b"], ["X", "Y"]) == "a/X b/Y"


def test_detect_format():
    conllu, columns = TagData(train="a.conllu", column="xpos"), TagData(train="a.txt")
    lines = CONLLU.splitlines()
    assert detect_format(lines[:3], conllu).column == 4
    assert detect_format(lines[:3], columns).column == 3 and isinstance(detect_format(lines[:3], columns), Conllu)
    assert isinstance(detect_format([lines[2]], TagData()), Conllu)
    assert isinstance(detect_format(["# text", "1\tragged"], conllu), Conllu)
    assert isinstance(detect_format(["a b", "c d"], columns), Columns)
    assert isinstance(detect_format(["a b", "c d"], conllu), PlainText)
    assert isinstance(detect_format(["a\tb", "c\td"], conllu), Columns)
    assert isinstance(detect_format(['{"tokens"'], columns), Records)
    assert isinstance(detect_format(["{"], TagData(format="text")), PlainText)
    assert isinstance(detect_format(["a b"], TagData(format="columns")), Columns)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (["EU NNP O", "rejects VBZ O"], "columns"),
        (["EU\tNNP\tO", "", "rejects\tVBZ\tO"], "columns"),
        (["EU", "rejects"], "columns"),  # words alone
        (["-DOCSTART- -X- O"], "columns"),
        (["EU NNP O"], "text"),
        (["EU rejects"], "text"),
        (["EU"], "text"),
        (["EU rejects German", "calls to boycott"], "columns"),  # nothing tells them apart
        (["EU rejects German", "calls to"], "text"),
        (["EU rejects", "calls to"], "text"),
        (["EU rejects German calls", "to boycott British lamb"], "text"),
    ],
)
def test_columns_are_as_many_as_in_training_on_more_than_one_line(lines, name):
    data = TagData(train="a.txt", column_count=3)
    assert detect_format(read_first_lines(iter(lines), data), data).name == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Anna lives in Berlin.", "Anna|lives|in|Berlin|."),
        ('He said: "No (never)!" ', 'He|said|:|"|No|(|never|)|!|"'),
        ("Dr. J. Smith of the U.S. paid $3.50, e.g. cash...", "Dr.|J.|Smith|of|the|U.S.|paid|$3.50|,|e.g.|cash|..."),
        ("Anna lives in St.Gallen .", "Anna|lives|in|St.Gallen|."),
        ("Mr. No (x) , went", "Mr.|No|(x)|,|went"),  # already split
        (":-) don't — ¿qué? «oui»", ":-)|don't|—|¿|qué|?|«|oui|»"),
        (" \u00a0", ""),
    ],
)
def test_words_of_plain_text(text, words):
    spans = split_words(text)
    assert "|".join(text[start:end] for start, end in spans) == words
    assert "".join(text[start:end] for start, end in spans) == "".join(text.split())


def test_hash_is_a_comment_only_before_conllu():
    conllu, columns = TagData(train="a.conllu"), TagData(train="a.txt")
    assert isinstance(detect_format(["#1 in sales"], conllu), PlainText)
    assert isinstance(detect_format(["", "#1 in sales", "a b"], conllu), PlainText)
    assert isinstance(detect_format(["", "1\tO", "2\tO"], conllu), Columns)
    assert isinstance(detect_format(["#\tSYM", "1\tCD"], columns), Columns)
    lines = iter(["", "# a", " ", "b", "c"])
    assert read_first_lines(lines, conllu) == ["", "# a", " ", "b"] and list(lines) == ["c"]
    assert read_first_lines(iter(["# a"]), conllu) == ["# a"] and read_first_lines(iter([]), conllu) == []


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_label_metrics():
    found, right = list("aabbca"), list("aabcab")
    told = label_metrics(found, right)
    assert told["accuracy"] == told["micro_f1"] == 0.5
    assert told["labels"]["a"] == {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "count": 3}
    assert told["labels"]["c"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "count": 1}
    assert told["f1"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert told["confusion"] == {"a": {"a": 2, "c": 1}, "b": {"a": 1, "b": 1}, "c": {"b": 1}}
    assert json.loads(json.dumps(told))["confusion"]["a"]["c"] == 1
    uneven = label_metrics(list("aab"), list("abb"))["labels"]
    assert (uneven["a"]["precision"], uneven["a"]["recall"]) == (1 / 2, 1.0)


def test_metric_tables_as_text(tmp_path):
    told = label_metrics(list("aabbca"), list("aabcab"))
    assert str(told["labels"]).splitlines()[2].split() == ["a", "0.6667", "0.6667", "0.6667", "3"]
    lines = str(told["confusion"]).splitlines()
    assert lines[1].split()[:3] == ["a", "b", "c"] and lines[2].split() == ["a", "2", "0", "1"]
    many = [f"{number:02}" for number in range(20)]
    assert len(str(ConfusionMatrix(many[:17], many[:17])).splitlines()) == 19  # a matrix of all 17 parts of speech
    worst = str(ConfusionMatrix([*many[1:], "00", "05", "05"], [*many, "03", "03"])).splitlines()
    assert "20 labels" in worst[1] and worst[2].split() == ["2", "03", "predicted", "as", "05"] and len(worst) == 14
    draw_confusion(tmp_path / "a.png", told["confusion"])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("labels", [2, 600])
def test_confusion_matrix_picture(tmp_path, labels):
    """The title is complete, and the size of the picture is bounded."""
    from PIL import Image

    names = [f"label {number}" for number in range(labels)]
    draw_confusion(tmp_path / "a.png", ConfusionMatrix(names, names))
    with Image.open(tmp_path / "a.png") as picture:
        gray = np.asarray(picture.convert("L"))
    assert max(gray.shape) < 5000 and (gray[:, :4] > 250).all() and (gray[:, -4:] > 250).all()


def test_span_metrics():
    """As in seqeval's default mode: its own examples, and cases checked against it."""
    assert tag_spans(["B-PER", "I-PER", "O", "B-LOC"]) == [(0, 2, "PER"), (3, 4, "LOC")]
    assert tag_spans(["I-PER", "I-PER", "B-PER", "I-LOC", "O"]) == [(0, 2, "PER"), (2, 3, "PER"), (3, 4, "LOC")]
    assert tag_spans(["B-A", "E-A", "I-A", "S-A", "I-A"]) == [(0, 2, "A"), (2, 3, "A"), (3, 4, "A"), (4, 5, "A")]
    assert tag_spans(["O", "O"]) == [] and tag_spans(["B-A-B", "I-A-B", "I-A"]) == [(0, 2, "A-B"), (2, 3, "A")]
    right = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    found = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    told = span_metrics(found, right)
    assert told["spans"] == told["span_precision"] == told["span_recall"] == 0.5
    assert told["span_kinds"]["PER"]["f1"] == 1.0 and told["span_kinds"]["MISC"]["f1"] == 0.0
    assert str(told["span_kinds"]).splitlines()[2].split()[0] == "MISC"
    half = span_metrics([["B-A", "O", "O"]], [["B-A", "O", "B-A"]])
    assert (half["span_precision"], half["span_recall"]) == (1.0, 0.5) and half["spans"] == pytest.approx(2 / 3)


def test_spans_equal_seqeval():
    from seqeval.metrics import sequence_labeling as theirs

    rng = np.random.default_rng(1)
    tags = ["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B"]
    for _ in range(2000):
        some = rng.choice(tags, rng.integers(1, 9)).tolist()
        assert tag_spans(some) == [(first, last + 1, kind) for kind, first, last in theirs.get_entities(some)]


def test_paired_bootstrap():
    rng = np.random.default_rng(1)
    right = rng.integers(2, size=400).tolist()
    poor = [each if rng.random() < 0.6 else 1 - each for each in right]
    good = [each if rng.random() < 0.9 else 1 - each for each in right]
    signatures, results = paired_accuracy_bootstrap([poor, good, list(poor)], right)
    assert "examples:400" in signatures["accuracy"]
    assert (
        results[0]["accuracy"]["p"] is None
        and results[1]["accuracy"]["p"] < 0.01
        and results[2]["accuracy"]["p"] == 1.0
    )
    share = sum(a == b for a, b in zip(good, right, strict=True)) / 400
    assert results[1]["accuracy"]["score"] == pytest.approx(100 * share)
    deviation = 100 * math.sqrt(share * (1 - share) / 400)
    assert results[1]["accuracy"]["interval"] == pytest.approx(1.96 * deviation, rel=0.15)


def test_a_first_line_that_may_be_a_header_is_refused(tmp_path):
    rows = "".join(f"text {i}\t{i % 3}\n" for i in range(12))
    path = write_file(tmp_path, "a.tsv", "phrase\tstars\n" + rows)
    with pytest.raises(UserError, match=r"a.tsv:1: the line phrase \| stars may name the columns.*set data.header=yes"):
        texts(path)
    assert len(texts(path, header="yes", columns=("phrase", "stars"))) == 12 and len(texts(path, header="no")) == 13
    assert len(texts(write_file(tmp_path, "b.tsv", rows))) == 12
