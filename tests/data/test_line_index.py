"""The index of text files: what it says, how much memory it takes, and when it is read from disk."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import files
from regard.config.data.texts import LabelData, PairData
from regard.data.files import line_index
from regard.data.files import lines as text_lines
from regard.data.files.line_index import BLANK, VALID, write_index
from regard.data.files.lines import TextLines, blank_lines
from regard.data.sources.labeled import labeled_texts
from regard.data.sources.pairs import open_pairs
from regard.errors import UserError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every file has an index on disk, in this folder; blocks are small."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(line_index, "CACHED_BYTES", 0)
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 50)
    return tmp_path / "cache" / "regard"


def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are scanned from now on."""
    names, scan = [], TextLines._scan
    monkeypatch.setattr(
        TextLines, "_scan", lambda self, path, *rest: names.append(path.name) or scan(self, path, *rest)
    )
    return names


CONTENT = "\ufeffone\r\n\ntwo words\n   \nünï\n" + "a longer line of text " * 9 + "\nlast"


def test_lines_of_a_cached_index_are_equal(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text(CONTENT, encoding="utf-8", newline="")
    seen = scanned(monkeypatch)
    for number in range(3):
        lines = TextLines([str(path)])
        assert list(lines) == ["one", "", "two words", "   ", "ünï", "a longer line of text " * 9, "last"]
        assert lines.counts == {"crlf": 1, "bom": 1} and lines.location(4) == f"{path}:5"
        assert lines.statuses().tolist() == [VALID, BLANK, VALID, BLANK, VALID, VALID, VALID]
        assert lines.digest() == TextLines([str(path)]).digest() and len(seen) == 1, number
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("how", ["size", "time", "content", "way", "damage", "truncated"])
def test_a_changed_file_is_scanned_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    TextLines([str(path)])
    (index,) = cache.iterdir()
    seen = scanned(monkeypatch)
    if how in ("size", "content"):
        path.write_text("one\ntwo\nthree\n" if how == "size" else "1 e\ntwo\n")
        os.utime(path, ns=times)
    if how == "time":
        os.utime(path, ns=(times[0], times[1] + 1))
    if how == "damage":
        index.write_bytes(b"?" + index.read_bytes()[1:])
    if how == "truncated":
        index.write_bytes(index.read_bytes()[:-8])
    lines = TextLines([str(path)], "skip" if how == "way" else "refuse")
    assert list(lines) == path.read_text().splitlines() and seen == ["a.txt"]


def test_a_folder_that_cannot_be_written_is_no_problem(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.mkdir()
    cache.write_text("a file, not a folder")
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    seen = scanned(monkeypatch)
    assert [list(TextLines([str(tmp_path / "a.txt")])) for _ in range(2)] == [["one", "two"]] * 2 and len(seen) == 2


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
def test_an_index_that_cannot_be_written_is_no_problem(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "sync", fail)
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert list(TextLines([str(tmp_path / "a.txt")])) == ["one", "two"] and not list(cache.iterdir())


def test_ways_to_read_a_file_share_no_index(tmp_path: Path, cache: Path) -> None:
    """A line of column names is a header for labeled texts alone, and only if data.header does not deny it."""
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\none\tx\n")
    lines = [("text", "label"), ("one", "x")]
    for _ in range(2):
        assert list(open_pairs([[str(path)]], PairData())) == lines
        assert list(labeled_texts([[str(path)]], LabelData())) == lines[1:]
        assert list(labeled_texts([[str(path)]], LabelData(columns=("1", "2")))) == lines[1:]
        assert list(labeled_texts([[str(path)]], LabelData(header="no"))) == lines
    (tmp_path / "b.jsonl").write_text('{"text": "one", "label": 1}\n')
    assert list(labeled_texts([[str(tmp_path / "b.jsonl")]], LabelData())) == [("one", "1")]
    with pytest.raises(UserError, match="b.jsonl:1: no text under 'target' but 1;"):
        open_pairs([[str(tmp_path / "b.jsonl")]], PairData(columns=("text", "label")))


def test_columns_of_a_cached_file_are_known(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("label\tother\ttext\nx\t1\tone\n\ny\t2\ttwo\n")
    seen = scanned(monkeypatch)
    for _ in range(2):
        assert list(labeled_texts([[str(path)]], LabelData())) == [("one", "x"), ("two", "y")]
        assert list(open_pairs([[str(path)]], PairData(columns=("text", "label")))) == [("one", "x"), ("two", "y")]
    assert len(seen) == 2 and len(list(cache.iterdir())) == 2  # one for each way to read it
    (tmp_path / "b.tsv").write_text("only one\n")
    for _ in range(2):
        with pytest.raises(UserError, match="b.tsv:1: 1 columns, expected at least 2"):
            open_pairs([[str(tmp_path / "b.tsv")]], PairData())


def test_small_and_compressed_files_have_no_index_on_disk(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n"))
    assert list(TextLines([str(tmp_path / "a.txt.gz")])) == ["one"]
    monkeypatch.setattr(line_index, "CACHED_BYTES", 100)
    (tmp_path / "a.txt").write_text("one\n")
    assert list(TextLines([str(tmp_path / "a.txt")])) == ["one"] and not cache.exists()


def test_an_example_takes_few_bytes(tmp_path: Path) -> None:
    count = 20_000
    for name in ("a", "b"):
        (tmp_path / name).write_text("some words\n" * (count - 1) + "\n")  # one blank line: line numbers are needed
    pairs = open_pairs([[str(tmp_path / "a")], [str(tmp_path / "b")]], PairData())
    indices = [file.index for side in pairs.table.lines for file in side._files]
    held = sum(index.offsets.nbytes + (0 if index.statuses is None else index.statuses.nbytes) for index in indices)
    held += pairs.rows.nbytes + pairs.order(np.random.default_rng(1)).nbytes
    assert held <= 16 * count and len(pairs) == count - 1
    assert np.array_equal(pairs.order(np.random.default_rng(1)), np.random.default_rng(1).permutation(count - 1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(st.sampled_from(" \t\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u205f\u3000aéñ日あ▁—"), max_size=4)
    )
)
def test_blank_lines_are_those_of_strip(texts: list[str]) -> None:
    data = "".join(f"{text}\n" for text in texts).encode()
    codes = np.frombuffer(data, np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(codes == 10) + 1])[: len(texts)]
    assert blank_lines(data, codes, starts).tolist() == [VALID if text.strip() else BLANK for text in texts]


def test_lines_beyond_four_gigabytes(tmp_path: Path) -> None:
    """A sparse file: offsets are counted from the beginning of a block."""
    path, place = tmp_path / "a.txt", 5 << 30
    with open(path, "wb") as file:
        file.write(b"first\n")
        file.seek(place)
        file.write(b"second\nthird\n")
    index = line_index.LineIndex(
        np.array([0, 1]), np.array([0, place]), np.array([0, 0, 7], np.uint32), place + 13, None, b""
    )
    write_index(tmp_path / "index", index, "state")
    again = line_index.read_index(tmp_path / "index", "state")
    assert again is not None and [again.span(line) for line in (1, 2)] == [(place, place + 7), (place + 7, place + 13)]
    assert again.span(0) == (0, place) and line_index.read_index(tmp_path / "index", "other") is None
