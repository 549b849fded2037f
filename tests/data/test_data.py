"""Lines and pairs from files, tokenizers, collating and sampling: lossless, reported and reproducible."""

import gzip
import json
import lzma
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.config import run as config
from regard.config.data.texts import PairData, TokenizerConfig
from regard.data import dataset
from regard.data.batch import Batch
from regard.data.dataset import Dataset
from regard.data.datasets.collate import collate_pairs, pack, pad_rows
from regard.data.datasets.pairs import PairDataset
from regard.data.files import lines as text_lines
from regard.data.files.lines import TextLines
from regard.data.loading.loader import Loader
from regard.data.loading.sampler import BudgetSampler, group_by_budget, sorted_batches, split_evenly
from regard.data.source import InMemorySource
from regard.data.sources.pairs import open_pairs, split_references
from regard.errors import UserError
from regard.parts.inputs import Inputs
from regard.processors.text import tokenizers
from regard.processors.text.tokenizers import END, MASK, PAD, START, UNK, load_tokenizer, train_tokenizer
from regard.synthetic.dates import make_dates

HARD = [
    "Hello  world", "a\u00a0b\u202fPM", "e\u0301 Å ﬁ Ⅳ", "你好，世界", "שלום עולם", "😀👩\u200d👩\u200d👧 ok",
    "tab\there\x0b\x85\u2028end", "<pad><s></s><unk>", "</s>", " leading", "trailing  ", "x<url>y <url>",
    "<café>é驚", "don't stop", "\ufeffbom \ufffd",
]  # fmt: skip


def data(**changes) -> PairData:
    return PairData(**changes)


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


# --- lines -----------------------------------------------------------------------------------------------------


def test_several_files_are_one_sequence(tmp_path):
    write(tmp_path / "b.txt", "three\nfour")  # no newline at the end
    write(tmp_path / "a.txt", "one\ntwo\n")
    write(tmp_path / "c.txt", "")
    lines = TextLines([str(tmp_path / "*.txt")])
    assert list(lines) == ["one", "two", "three", "four"]
    assert lines[-1] == "four" and lines[1:3] == ["two", "three"]
    assert lines.location(2) == f"{tmp_path / 'b.txt'}:1"
    with pytest.raises(IndexError):
        lines[4]


def test_only_newlines_split_lines(tmp_path):
    text = "a\u2028b\x0bc\x85d\x0ce\rf"
    assert list(TextLines([write(tmp_path / "a", f"{text}\nlast\n")])) == [text, "last"]


@pytest.mark.parametrize("block", [1, 3, 7, 1 << 20])
def test_lines_do_not_depend_on_block_size(tmp_path, monkeypatch, block):
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", block)
    content = "\ufeffäöü\r\n\r\n😀 long line here\n\nend\r\n"
    lines = TextLines([write(tmp_path / "a", content)])
    assert list(lines) == ["äöü", "", "😀 long line here", "", "end"]
    assert lines.counts == {"crlf": 3, "bom": 1}
    assert lines.statuses().tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("pack_it, suffix", [(gzip.compress, ".gz"), (lzma.compress, ".xz"), (gzip.compress, ".GZ")])
def test_compressed_files_equal_plain_files(tmp_path, pack_it, suffix):
    content = b"one\r\ntwo\nthree"
    plain = TextLines([write(tmp_path / "a.txt", content)] * 2)
    packed = TextLines([write(tmp_path / f"a.txt{suffix}", pack_it(content))] * 2)
    assert list(packed) == list(plain) == ["one", "two", "three"] * 2
    assert packed.digest() == plain.digest()


def test_pipe_is_readable(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"one\ntwo\n",))
    writer.start()
    assert list(TextLines([str(path)])) == ["one", "two"]
    writer.join()


def test_open_files_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "MAX_OPEN_FILES", 2)
    for i in range(9):
        write(tmp_path / f"{i}.txt", f"{i}\n")
    lines = TextLines([str(tmp_path / "*.txt")])
    assert [lines[i] for i in (8, 0, 5, 8, 3)] == ["8", "0", "5", "8", "3"]
    assert len(lines._handles) == 2


def test_lines_are_thread_safe(tmp_path):
    lines = TextLines([write(tmp_path / "a", "".join(f"line {i}\n" for i in range(2000)))])
    wrong: list[int] = []

    def read(seed: int) -> None:
        for i in np.random.default_rng(seed).permutation(2000).tolist():
            if lines[i] != f"line {i}":
                wrong.append(i)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "content, line, words",
    [
        (b"fine\nna\xefve\n", 2, "byte 3 of the line is 0xef, which is not valid UTF-8"),
        (b"fine\n\nPK\x00\x01\n", 3, "NUL byte"),
        ("one\n".encode("utf-16"), 1, "UTF-16"),
    ],
)
def test_invalid_text_error_names_file_and_line(tmp_path, content, line, words):
    path = write(tmp_path / "a", content)
    with pytest.raises(UserError, match=words) as caught:
        TextLines([path])
    assert f"{path}:{line}: " in str(caught.value) and "data.invalid=skip" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(os.urandom(999))[:-40], b"plain text", gzip.compress(b"x")[:-4]],
    ids=["cut", "plain", "no check"],  # the bytes contain the time and would change the test id
)
def test_damaged_archive_is_an_error(tmp_path, content):
    with pytest.raises(UserError, match="a.gz is not a complete .gz archive"):
        TextLines([write(tmp_path / "a.gz", content)])
    with pytest.raises(UserError, match="a.xz is not a complete .xz archive"):
        TextLines([write(tmp_path / "a.xz", lzma.compress(b"text" * 99)[:-20])])


def test_full_disk_while_decompressing_is_an_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(text_lines.shutil, "copyfileobj", full)
    with pytest.raises(UserError, match="cannot be unpacked into .*No space left.*TMPDIR"):
        TextLines([write(tmp_path / "a.gz", gzip.compress(b"x"))])


def test_missing_and_changed_files_are_errors(tmp_path):
    with pytest.raises(UserError, match="there is no file .*nowhere.txt"):
        TextLines([str(tmp_path / "nowhere.txt")])
    with pytest.raises(UserError, match=r"no file matches .*\*.en"):
        TextLines([str(tmp_path / "*.en")])
    with pytest.raises(UserError, match=r"is a folder.*/\*.txt"):
        TextLines([f"{tmp_path}/"])
    (tmp_path / "inner.en").mkdir()
    with pytest.raises(UserError, match="no file matches"):
        TextLines([str(tmp_path / "*.en")])
    odd = write(tmp_path / "a[1].txt", "here\n")
    assert list(TextLines([odd])) == ["here"]
    for after in (b"he", b"h\xff\xff\xff\n"):
        lines = TextLines([odd])
        write(tmp_path / "a[1].txt", after)
        with pytest.raises(UserError, match="was changed while"):
            lines[0]
        write(tmp_path / "a[1].txt", "here\n")


def test_unreadable_file_is_an_error(tmp_path, monkeypatch):
    def locked(*_, **__):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "a", "x")
    monkeypatch.setattr("builtins.open", locked)
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        TextLines([path])


# --- pairs -----------------------------------------------------------------------------------------------------


def two(tmp_path: Path, source: str | bytes, target: str | bytes) -> list[list[str]]:
    return [[write(tmp_path / "x.en", source)], [write(tmp_path / "x.de", target)]]


def test_pairs_skip_and_count_empty_lines(tmp_path):
    found = open_pairs(two(tmp_path, "a\r\n\nc\n \u3000\ne\n", "A\nB\nC\nD\n\u00a0\n"), data())
    assert list(found) == [("a", "A"), ("c", "C")]
    assert found.counts == {"examples": 2, "empty": 3, "invalid": 0, "crlf": 1, "bom": 0}
    assert found.location(1) == f"{tmp_path}/x.en:3, {tmp_path}/x.de:3"
    assert [sentence.split()[0] for sentence in found.report()] == ["3", "1"]
    assert list(found.texts(1, 0)) == ["A", "C", "a", "c"]


def test_invalid_line_skips_its_pair(tmp_path):
    sides = two(tmp_path, b"a\n\xff\n\nd\n", b"A\nB\n\0\nD\n")
    found = open_pairs(sides, data(invalid="skip"))
    assert list(found) == [("a", "A"), ("d", "D")]
    assert found.counts["invalid"] == 2 and found.counts["empty"] == 0  # no example is counted twice
    assert found.table.lines[0][1] == ""
    assert "2 examples left out because a line is not valid" in found.report()[0]
    with pytest.raises(UserError, match="x.en:2: "):
        open_pairs(sides, data())


def test_report_is_empty_without_problems(tmp_path):
    assert open_pairs(two(tmp_path, "a\n", "A\n"), data()).report() == []


def test_sides_of_different_length_are_errors(tmp_path):
    with pytest.raises(UserError, match=r"x.en has 2 lines and .*x.de has 3"):
        open_pairs(two(tmp_path, "a\nb\n", "A\nB\nC\n"), data())


def test_wrong_number_of_sides(tmp_path):
    one = write(tmp_path / "x.en", "a\n")
    table = write(tmp_path / "x.tsv", "a\tA\n")
    with pytest.raises(UserError, match=r"two sides.*not 1.*data.train=a,b"):
        open_pairs([[one]], data())
    with pytest.raises(UserError, match="two sides.*not 3"):
        open_pairs([[one]] * 3, data())
    with pytest.raises(UserError, match="tsv data hold both sides in one file, and 2 sides"):
        open_pairs([[table], [table]], data())
    with pytest.raises(UserError, match="no data file is named"):
        open_pairs([], data())


def test_require_nonempty(tmp_path):
    found = open_pairs(two(tmp_path, "\n\n", "A\nB\n"), data())
    with pytest.raises(UserError, match=r"data.train: .*x.en.* holds no example \(2 examples left out because a side"):
        found.require_nonempty("data.train")
    with pytest.raises(UserError, match="it has no line"):
        open_pairs(two(tmp_path, "", ""), data()).require_nonempty("data.train")
    open_pairs(two(tmp_path, "a\n", "A\n"), data()).require_nonempty("data.train")


def test_tsv_by_number_and_by_name(tmp_path):
    table = [[write(tmp_path / "x.tsv.gz", gzip.compress(b"a\tA\tone\r\n\nb\t\ttwo\nc\tC\t\n"))]]
    with pytest.raises(
        UserError, match="x.tsv.gz:1: 3 columns without a header.* such as data.columns=1,2, or data.header=yes"
    ):
        open_pairs(table, data())
    found = open_pairs(table, data(columns=("1", "2")))
    assert list(found) == [("a", "A"), ("c", "C")] and found.counts["empty"] == 2 and found.counts["crlf"] == 1
    named = [[write(tmp_path / "1.tsv", "id\ten\tde\n1\ta\tA\n"), write(tmp_path / "2.tsv", "de\ten\nB\tb\n")]]
    found = open_pairs(named, data(columns=("en", "de")))
    assert list(found) == [("a", "A"), ("b", "B")] and found.location(1).endswith("2.tsv:2")
    assert list(found.texts(1)) == ["A", "B"]
    assert list(open_pairs(table, data(columns=("2", "1"))))[0] == ("A", "a")


def test_tsv_errors(tmp_path):
    table = [[write(tmp_path / "x.tsv", "a\tA\nb\n")]]
    with pytest.raises(UserError, match="x.tsv:2: 1 columns, and the first line has 2; correct it"):
        open_pairs(table, data())
    assert open_pairs(table, data(invalid="skip")).counts["invalid"] == 1
    with pytest.raises(UserError, match="x.tsv:1: the header has no column 'en'.*it has a, A"):
        open_pairs(table, data(columns=("en", "de")))
    with pytest.raises(UserError, match="columns=1 names one column"):
        open_pairs(table, data(columns=("1",)))
    with pytest.raises(UserError, match="holds 0"):
        open_pairs(table, data(columns=("0", "1")))


def test_tsv_header_after_a_skipped_line(tmp_path):
    table = [[write(tmp_path / "x.tsv", b"\xff\nen\tde\na\tA\n")]]
    assert list(open_pairs(table, data(invalid="skip", columns=("en", "de")))) == [("a", "A")]


def test_jsonl(tmp_path):
    rows = [
        {"source": "a\n", "target": "A\u2028", "more": 1},
        {"target": "B", "source": " "},
        {"source": "c", "target": "C"},
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    found = open_pairs([[write(tmp_path / "x.jsonl.xz", lzma.compress(content.encode()))]], data())
    assert list(found) == [("a\n", "A\u2028"), ("c", "C")] and found.counts["empty"] == 1
    named = [[write(tmp_path / "x.json", '{"en": "a", "de": "A"}\n\n')]]
    assert list(open_pairs(named, data(columns=("en", "de")))) == [("a", "A")]


@pytest.mark.parametrize(
    "row, words",
    [
        ('{"source": "a"', "not one JSON object on one line"),
        ("[1, 2]", "not a JSON object"),
        ('{"source": "a", "goal": "b"}', "no text under 'target'; there is source, goal"),
        ('{"source": 1, "target": "b"}', "no text under 'source'"),
        ('{"source": "\\ud800", "target": "b"}', "half a surrogate pair"),
        ('{"source": "\\u0000", "target": "b"}', "NUL"),
        ("[" * 100_000, "not one JSON object on one line"),
    ],
)
def test_jsonl_errors(tmp_path, row, words):
    path = write(tmp_path / "x.jsonl", '{"source": "a", "target": "A"}\n' + row + "\n")
    with pytest.raises(UserError, match=words) as caught:
        open_pairs([[path]], data())
    assert "x.jsonl:2: " in str(caught.value)
    assert len(open_pairs([[path]], data(invalid="skip"))) == 1


def test_references_for_evaluation(tmp_path):
    assert split_references("one\ttwo\t \tthree") == ["one", "two", "three"]
    assert split_references("one") == ["one"] and split_references("") == [""]
    table = [[write(tmp_path / "x.tsv", "a\tA1\tA2\nb\tB1\nc\tC1\t\n")]]
    asked = data(columns=("1", "2", "3"))
    assert [split_references(y) for _, y in open_pairs(table, asked, references=True)] == [["A1", "A2"], ["B1"], ["C1"]]
    assert [y for _, y in open_pairs(table, asked)] == ["A1", "B1", "C1"]  # training reads the first only


def test_fingerprint_depends_on_content_only(tmp_path):
    first = open_pairs(two(tmp_path, "a\nb\n", "A\nB\n"), data()).fingerprint()
    (tmp_path / "moved").mkdir()
    packed = [[write(tmp_path / "moved/y.gz", gzip.compress(b"a\nb\n"))], [write(tmp_path / "moved/z", "A\nB\n")]]
    assert open_pairs(packed, data()).fingerprint() == first
    assert open_pairs(packed[::-1], data()).fingerprint() != first
    assert open_pairs(two(tmp_path, "a\nc\n", "A\nB\n"), data()).fingerprint() != first
    table = [[write(tmp_path / "x.tsv", "a\tA\tO\n")]]
    one, other = (open_pairs(table, data(columns=columns)).fingerprint() for columns in (("1", "2"), ("1", "3")))
    assert one != other


# --- tokenizers ------------------------------------------------------------------------------------------------

CORPUS = ["The animal did not cross the street.", "Das Tier überquerte die Straße nicht!", *HARD] * 3
SYMBOLS = ("<url>", "<café>")
TRAINED = {
    kind: train_tokenizer(TokenizerConfig(kind=kind, vocab=700, symbols=SYMBOLS), CORPUS)
    for kind in ("bpe", "unigram", "word", "char", "byte")
}


@pytest.fixture(params=TRAINED)
def stored(request, tmp_path):
    """A tokenizer of every kind, saved and loaded."""
    TRAINED[request.param].save(tmp_path / "tokenizer.json")
    return load_tokenizer(tmp_path / "tokenizer.json")


def test_round_trip_of_known_text(stored):
    assert stored.decode(stored.encode(HARD)) == HARD


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte"])
@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.lists(st.sampled_from(HARD)).map("".join)
)
def test_round_trip_of_any_text(kind, text):
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode([text])
    assert tokenizer.decode(ids) == [text]
    assert all(UNK < i < tokenizer.size for i in ids[0])


def test_control_names_in_text_are_text(stored):
    for name in tokenizers.SPECIALS:
        ids = stored.encode([f"a{name}b", name])
        assert not {PAD, START, END} & {i for row in ids for i in row}
        assert stored.decode([[START, *ids[1], END, PAD, PAD]]) == [name]


def test_specials_have_fixed_ids(stored):
    assert [stored.backend.token_to_id(name) for name in tokenizers.SPECIALS] == [0, 1, 2, 3]
    assert (stored.pad, stored.start, stored.end, stored.unk) == (0, 1, 2, 3)


def test_symbols_are_single_tokens(stored):
    number = stored.backend.token_to_id("<url>")
    assert stored.encode(["<url>"]) == [[number]]
    ids = stored.encode(["see <url>.<café><url>"])[0]
    assert ids.count(number) == 2 and stored.size == max(*stored.symbols, number) + 1
    assert stored.decode([ids])[0].endswith("<café><url>")
    assert stored.tokens([number, END]) == ["<url>", "</s>"]


def test_symbols_are_not_normalized():
    tokenizer = train_tokenizer(config.TokenizerConfig(normalize="lower", symbols=("<URL>",), vocab=300), ["ABC abc"])
    assert tokenizer.decode(tokenizer.encode(["See <URL> NOW <url>"])) == ["see <URL> now <url>"]


@pytest.mark.parametrize(
    "normalize, text, result",
    [
        ("none", "Ⅳ E\u0301", "Ⅳ E\u0301"),
        ("nfc", "Ⅳ E\u0301", "Ⅳ É"),
        ("nfkc", "Ⅳ E\u0301", "IV É"),
        ("lower", "Ⅳ", "ⅳ"),
        ("nfkc+lower", "Ⅳ É", "iv é"),
    ],
)
def test_normalize_is_saved(tmp_path, normalize, text, result):
    for kind in ("bpe", "word", "byte"):
        train_tokenizer(TokenizerConfig(kind=kind, normalize=normalize, vocab=600), [text, result]).save(
            tmp_path / "t.json"
        )
        tokenizer = load_tokenizer(tmp_path / "t.json")
        assert tokenizer.decode(tokenizer.encode([text])) == [result]


def test_unknown_words_and_characters():
    words = train_tokenizer(config.TokenizerConfig(kind="word", vocab=50), ["the cat sat", "cat food"])
    assert words.encode(["the cat"])[0][1] == words.encode(["cat"])[0][0]  # the same token at the beginning and inside
    assert words.decode(words.encode(["dog sat food"])) == ["<unk> sat food"]
    assert words.decode(words.encode(["the dog sat"])) == ["the <unk> sat"]
    letters = train_tokenizer(config.TokenizerConfig(kind="char", vocab=50), ["abc "])
    assert letters.encode(["a猫b"]) == [[letters.encode(["a"])[0][0], UNK, letters.encode(["b"])[0][0]]]
    assert letters.decode(letters.encode(["a猫b"])) == ["a<unk>b"]


def test_pieces_are_readable():
    pieces = {kind: tokenizer.tokens(tokenizer.encode(["the 你"])[0]) for kind, tokenizer in TRAINED.items()}
    assert pieces["byte"] == ["t", "h", "e", "▁", "<e4>", "<bd>", "<a0>"]
    assert pieces["char"] == ["t", "h", "e", "▁", "你"]
    assert pieces["word"][0] == "▁the"
    assert TRAINED["bpe"].tokens([PAD, START, UNK]) == ["<pad>", "<s>", "<unk>"]


def test_byte_ids_follow_byte_values():
    assert TRAINED["byte"].encode(["aé"]) == [[4 + byte for byte in "aé".encode()]]
    letters = set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert set(tokenizers.byte_letters()) == letters


def test_vocabulary_size_is_respected():
    many = [f"word{i} and{i % 7}" for i in range(500)]
    for kind in ("bpe", "unigram", "word", "char"):
        assert train_tokenizer(TokenizerConfig(kind=kind, vocab=300, symbols=SYMBOLS), many).size <= 300
    for kind in ("bpe", "unigram"):
        for texts in ([], [""], ["a"], ["猫" * 3000], ["ab"] * 3):
            assert 260 <= train_tokenizer(TokenizerConfig(kind=kind, vocab=261), texts).size <= 261


def test_wordpiece():
    texts = ["The unbelievable animals, the believers!", "believe it", "naïve 你好"] * 3
    text = train_tokenizer(
        config.TokenizerConfig(kind="wordpiece", vocab=90, symbols=("<url>",)), texts, control=(MASK,)
    )
    assert text.size <= 90 and text.mask == text.size - 1
    ids = text.encode(["The  unbelievers <url>你 <mask> </s>[x]"])[0]
    pieces = text.tokens(ids)
    assert "".join(pieces).replace("##", "").startswith("Theunbelievers<url>你<unk>")
    assert any(batch.startswith("##") for batch in pieces) and not {PAD, START, END, text.mask} & {*ids}
    assert text.decode([[START, *ids[:-3], END, text.mask]])[0].startswith("The unbelievers <url> 你")
    assert not {"##,", "##!", "##你"} & {*text.backend.get_vocab()}  # never inside a word
    assert text.encode(["zzz"]) == [[UNK]] and text.encode(["", " \n"]) == [[], []]
    once = train_tokenizer(
        config.TokenizerConfig(kind="wordpiece", vocab=90, symbols=("<url>",)), iter(texts), control=(MASK,)
    )
    assert once.backend.to_str() == text.backend.to_str()
    lower = train_tokenizer(config.TokenizerConfig(kind="wordpiece", vocab=90, normalize="lower"), texts)
    assert lower.encode(["THE ANIMALS"]) == lower.encode(["the animals"]) != [[UNK, UNK]]


def test_wordpiece_keeps_the_most_frequent_letters(monkeypatch):
    texts = ["aaaa bbb cc d"] * 2 + [chr(0x4E00 + i) for i in range(200)]
    small = train_tokenizer(config.TokenizerConfig(kind="wordpiece", vocab=10), texts)
    assert small.size <= 10 and small.tokens(small.encode(["abcd"])[0]) == ["<unk>"]
    assert small.tokens(small.encode(["aab c"])[0])[-1] in ("c", "cc")
    monkeypatch.setattr(tokenizers, "MAX_LETTERS", 2)
    few = train_tokenizer(config.TokenizerConfig(kind="wordpiece", vocab=500), texts)
    assert few.encode(["c"]) == few.encode(["d"]) == [[UNK]] and few.encode(["ab"]) != [[UNK]]


def test_extra_control_tokens_come_last(tmp_path):
    for kind in TRAINED:
        train_tokenizer(TokenizerConfig(kind=kind, vocab=700, symbols=SYMBOLS), CORPUS, control=(MASK,)).save(
            tmp_path / "t.json"
        )
        text = load_tokenizer(tmp_path / "t.json")
        assert text.mask == text.size - 1 and text.mask not in text.encode(["a <mask>", MASK])[0]
        assert text.tokens([text.mask]) == [MASK] and MASK in text.decode([[text.mask]])[0]
        assert TRAINED[kind].mask is None and TRAINED[kind].sentinels == []
    marks = [tokenizers.sentinel(i) for i in reversed(range(3))]
    text = train_tokenizer(TokenizerConfig(vocab=300), CORPUS, control=marks)
    assert text.size == 300 and text.sentinels == [299, 298, 297]
    assert text.encode(["<extra_id_0><extra_id_2>"]) == [[299, 297]]  # a text may ask for a span
    assert text.encode(["<extra_id_3>"])[0][-1] < 297


def test_symbols_are_not_trained_on():
    plain = train_tokenizer(config.TokenizerConfig(vocab=400), ["ab cd", " ef"])
    marked = train_tokenizer(config.TokenizerConfig(vocab=400, symbols=("<zzz>",)), ["ab cd<zzz> ef"])
    assert marked.size == plain.size + 1


def test_training_sample_is_evenly_spaced(monkeypatch):
    monkeypatch.setattr(tokenizers, "SAMPLE", 10)
    asked: list[int] = []

    class Texts(list):
        def __getitem__(self, index):
            asked.append(index)
            return super().__getitem__(index)

    train_tokenizer(config.TokenizerConfig(kind="word", vocab=30), Texts(["a"] * 95))
    assert asked == [0, 9, 19, 28, 38, 47, 57, 66, 76, 85]


LEARN = """
import sys
from regard.config.data.texts import PairData
from regard.config.data.texts import TokenizerConfig
from regard.processors.text.tokenizers import train_tokenizer
texts = [f"{i * i % 97} nights and {i} days, {chr(0x4e00 + i)} é{i % 13}" for i in range(400)]
for kind in ("bpe", "unigram", "wordpiece", "word", "char"):
    sys.stdout.write(train_tokenizer(TokenizerConfig(kind=kind, vocab=500), texts).backend.to_str(pretty=True))
"""


def test_tokenizer_training_is_reproducible():
    found = set()
    for seed, threads in (("1", "false"), ("2", "true"), ("3", "true")):
        env = os.environ | {"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": threads}
        done = subprocess.run([sys.executable, "-c", LEARN], env=env, capture_output=True, check=True)
        found.add(done.stdout)
        assert len(done.stdout) > 10_000 and not done.stderr
    assert len(found) == 1


FORK = """
import os
from regard.config.data.texts import PairData
from regard.config.data.texts import TokenizerConfig
from regard.processors.text.tokenizers import train_tokenizer
tokenizer = train_tokenizer(TokenizerConfig(vocab=300), ["a b c"] * 5000)
tokenizer.encode(["a b c"] * 5000)
assert os.environ["TOKENIZERS_PARALLELISM"] == "false"  # older versions of the library warn without it
pid = os.fork()
if pid == 0:
    tokenizer.encode(["a b"] * 100)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_fork_does_not_warn():
    env = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run([sys.executable, "-c", FORK], env=env, capture_output=True, timeout=60)
    assert done.returncode == 0 and not done.stderr


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"vocab": 100}, "tokenizer.vocab=100 is too small.*at least 260"),
        ({"vocab": 260, "kind": "unigram"}, "at least 261"),
        ({"vocab": 5, "kind": "wordpiece"}, "at least 6"),
        ({"vocab": 261, "symbols": SYMBOLS}, "besides 2 symbols: at least 262"),
        ({"symbols": ("</s>",)}, "'</s>' is a control token already"),
        ({"symbols": (" ",)}, "' ' is empty"),
        ({"symbols": ("é",)}, "'é' is already a token.*<é>"),
    ],
)
def test_tokenizer_errors(asked, words):
    with pytest.raises(UserError, match=words):
        train_tokenizer(config.TokenizerConfig(**asked), ["some text"])
    with pytest.raises(UserError, match="'<mask>' is a control token already"):
        train_tokenizer(config.TokenizerConfig(symbols=(MASK,)), ["some text"], control=(MASK,))


def test_damaged_tokenizers_are_errors(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match="cannot be read .No such file"):
        load_tokenizer(path)
    TRAINED["bpe"].save(path)
    whole = path.read_text()
    assert str(tmp_path) not in whole
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a complete tokenizer"):
        load_tokenizer(path)
    path.write_text(whole.replace('"<pad>"', '"<nil>"'))
    with pytest.raises(UserError, match="not a tokenizer of regard"):
        load_tokenizer(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not a complete tokenizer"):
        load_tokenizer(path)


def test_half_a_surrogate_pair_is_an_error():
    with pytest.raises(UserError, match="half a surrogate pair"):
        TRAINED["bpe"].encode(["fine", "a\ud800"])
    with pytest.raises(TypeError):
        TRAINED["bpe"].encode([7])


# --- batches ---------------------------------------------------------------------------------------------------

BYTE = TRAINED["byte"]


def some(count: int, longest: int = 30, seed: int = 0) -> InMemorySource:
    rng = np.random.default_rng(seed)
    words = [("a" * int(x), "b" * int(y)) for x, y in rng.integers(1, longest, (count, 2))]
    return InMemorySource("made up", [(f"{i}{x}", f"{i}{y}") for i, (x, y) in enumerate(words)])


def make_loader(examples, seed: int = 1, **changes) -> Loader:
    for_data = {name: changes.pop(name) for name in ("max_tokens", "packed", "workers") if name in changes}
    train = config.Train(seed=seed, **changes)
    made = Loader.of(PairDataset(examples, BYTE, BYTE, PairData(**for_data), train))
    made.sampler.pool_size = 1000  # so that few examples need several pools
    return made


def texts(step) -> list[tuple[str, str]]:
    """The examples of a step, decoded from its tensors, padded or packed."""
    found = []
    for batch in step.micro_batches:
        source, target, labels, written = batch["source"], batch["target"], *label_table(batch)
        for row in range(len(source)):
            segments = [0] if source.segments is None else range(int(source.segments[row].max()) + 1)
            for segment in segments:
                own = [source.valid, written] if source.valid is not None else [source.segments, target.segments]
                read, kept = (each[row] if source.valid is not None else each[row] == segment for each in own)
                x, y, z = source.values[row][read], labels[row][kept], target.values[row][kept]
                assert x[-1] == END and y[-1] == END and z[0] == START and torch.equal(y[:-1], z[1:])
                found.append(tuple(BYTE.decode([x.tolist(), y.tolist()])))
    return found


def label_table(batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The predicted tokens in the places of the target, and where they are valid; also of padded rows."""
    labels, shape = batch["labels"], batch["target"].values.shape
    if labels.positions is None:
        return labels.values, labels.valid
    table, valid = torch.full(shape, PAD), torch.zeros(shape, dtype=torch.bool)
    table.view(-1)[labels.positions], valid.view(-1)[labels.positions] = labels.values, True
    return table, valid


def tensors(batch) -> list[torch.Tensor]:
    fields = [value for name in sorted(batch.inputs) for value in vars(batch[name]).values()]
    return [value for value in fields if isinstance(value, torch.Tensor)]


def same(one, other) -> bool:
    fields = ("index", "tokens", "count", "examples")
    return all(getattr(one, name) == getattr(other, name) for name in fields) and all(
        torch.equal(a, b)
        for p, q in zip(one.micro_batches, other.micro_batches, strict=True)
        for a, b in zip(tensors(p), tensors(q), strict=True)
    )


def test_collate_shifts_and_pads():
    made = collate_pairs([[5, 6], [7]], [[8], [9, 10, 11]], BYTE, BYTE)
    labels, valid = label_table(made)
    assert made["source"].values.tolist() == [[5, 6, END], [7, END, PAD]]
    assert made["source"].valid.tolist() == [[True, True, True], [True, True, False]]
    assert made["target"].values.tolist() == [[START, 8, PAD, PAD], [START, 9, 10, 11]]
    assert labels.tolist() == [[8, END, PAD, PAD], [9, 10, 11, END]]
    assert made["labels"].values.tolist() == [8, END, 9, 10, 11, END] and made.count == 6  # padding gets no logits
    assert valid.sum(1).tolist() == [2, 4]
    assert made["source"].values.dtype == torch.long and made["source"].segments is None
    assert made["target"].valid is None  # its padding comes last, where causal attention never looks
    assert made.to("meta")["target"].values.device.type == "meta" and made.to("cpu")["target"].positions is None


def test_collate_uses_each_tokenizers_control_ids():
    class Other:
        pad, start, end = 77, 78, 79

    made = collate_pairs([[1], [1, 2]], [[1], [1, 2]], Other(), BYTE)
    assert made["source"].values.tolist() == [[1, 79, 77], [1, 2, 79]]
    assert label_table(made)[0][0].tolist() == [1, END, PAD]


def test_collate_packs():
    made = collate_pairs([[5, 6], [7], [8, 8, 8]], [[9], [10, 11, 12], []], BYTE, BYTE, width=6)
    source, target, labels = made["source"], made["target"], made["labels"]
    assert source.values.tolist() == [[7, END, 8, 8, 8, END], [5, 6, END, PAD, PAD, PAD]]
    assert target.values.tolist() == [[START, 10, 11, 12, START, PAD], [START, 9, PAD, PAD, PAD, PAD]]
    assert labels.values.tolist() == [[10, 11, 12, END, END, PAD], [9, END, PAD, PAD, PAD, PAD]]
    assert target.segments.tolist() == [[0, 0, 0, 0, 1, -1], [0, 0, -1, -1, -1, -1]]
    assert source.segments.max() == 1 and target.segments.shape == target.values.shape
    assert torch.equal(source.segments >= 0, source.values != PAD)
    assert torch.equal(target.segments >= 0, labels.valid) and made.count == labels.valid.sum() == 7
    assert source.values.shape[1] <= 6 and target.values.shape[1] <= 6
    for at, segments in ((source.positions, source.segments), (target.positions, target.segments)):
        for row in range(len(at)):
            for segment in range(int(segments[row].max()) + 1):
                places = at[row][segments[row] == segment]
                assert places.tolist() == list(range(len(places)))
    moved = made.to("meta")
    assert moved["target"].positions.device.type == moved["source"].segments.device.type == "meta"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=40))
def test_packing_never_overlaps(sizes):
    lengths = np.array(sizes)
    rows, starts, segments = pack(lengths, 12)
    for side in (0, 1):
        places = zip(rows, starts[:, side], lengths[:, side], strict=True)
        taken = [(row, start + k) for row, start, size in places for k in range(size)]
        assert len(taken) == len(set(taken)) and max(column for _, column in taken) < 12
    assert len(set(zip(rows.tolist(), segments.tolist(), strict=True))) == len(sizes)
    assert set(rows.tolist()) == set(range(rows.max() + 1))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_epoch_has_every_example_once(packed, accumulate):
    examples = some(2500)
    made = list(make_loader(examples, tokens=300, packed=packed, accumulate=accumulate, max_tokens=64).steps(0))
    assert sorted(text for step in made for text in texts(step)) == sorted(examples)
    assert sorted(i for step in made for i in step.examples) == list(range(2500))
    for step in made:
        inside = [examples[i] for i in step.examples]
        assert sorted(texts(step)) == sorted(inside)
        assert step.tokens == sum(max(len(x), len(y)) + 1 for x, y in inside) <= 300
        assert step.count == sum(len(y) + 1 for _, y in inside)
        assert step.count == sum(int(label_table(batch)[1].sum()) for batch in step.micro_batches)
        assert len(step.micro_batches) == min(accumulate, len(inside))
        assert all(len(batch["source"]) and batch["source"].values.shape[1] <= 64 for batch in step.micro_batches)
    assert [step.index for step in made] == np.cumsum([len(step.examples) for step in made]).tolist()
    full = sum(step.tokens for step in made) / len(made) / 300
    assert full > 0.9


def test_packed_rows_are_fewer_and_full():
    examples = some(1000)
    padded, packed = (list(make_loader(examples, tokens=2000, packed=each).steps(0)) for each in (False, True))
    rows = [sum(len(batch["source"]) for step in made for batch in step.micro_batches) for made in (padded, packed)]
    assert rows[1] * 8 < rows[0]


def test_order_depends_on_seed_and_epoch_only():
    examples = some(1500)
    first = list(make_loader(examples, tokens=200).steps(3))
    again = make_loader(examples, tokens=200)
    list(again.steps(0))  # the cache of encoded examples changes nothing
    assert all(map(same, first, again.steps(3)))
    others = [make_loader(examples, tokens=200).steps(4), make_loader(examples, seed=2, tokens=200).steps(3)]
    assert all(next(other).examples != first[0].examples for other in others)
    pool = [max(map(len, examples[step.examples[0]])) for step in first if step.index <= 1000]
    assert len(pool) > 50 and pool != sorted(pool)


@pytest.mark.parametrize("changes", [{}, {"batch": 7}, {"max_tokens": 20}, {"max_tokens": 20, "packed": True}])
def test_resume_after_any_step(changes):
    examples = some(2300)  # three pools
    whole = list(make_loader(examples, tokens=300, accumulate=2, **changes).steps(5))
    assert len({step.index for step in whole}) == len(whole) and whole[-1].index == 2300
    for i in [0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 2, len(whole) - 1]:
        rest = list(make_loader(examples, tokens=300, accumulate=2, **changes).steps(5, whole[i].index))
        assert len(rest) == len(whole) - i - 1 and all(map(same, whole[i + 1 :], rest))


def test_resume_with_other_settings_is_an_error():
    wanted = {step.index for step in make_loader(some(900), batch=7).steps(0)}
    assert 10 not in wanted
    with pytest.raises(UserError, match="no step ends after 10 examples.*train.batch"):
        next(make_loader(some(900), batch=7).steps(0, 10))


def test_long_examples_are_left_out_and_reported():
    examples = some(2300)
    longer = {i for i, (x, y) in enumerate(examples) if max(len(x), len(y)) + 1 > 25}
    made = make_loader(examples, tokens=300, max_tokens=25)
    seen = {i for step in made.steps(0) for i in step.examples}
    assert (
        500 < len(longer) < 1800 and set(made.sampler.too_long.tolist()) == longer and seen == set(range(2300)) - longer
    )
    assert made.report() == [
        f"{len(longer):,} of 2,300 examples left out because they have a side of more than 25 tokens (data.max_tokens), "
        f"such as made up, example {min(longer) + 1}"
    ]
    assert make_loader(examples).report() == []


def test_only_long_examples_is_an_error():
    with pytest.raises(UserError, match="all 1,100 examples of data.train have a side of more than 3 tokens"):
        list(make_loader(some(1100), max_tokens=3).steps(0))
    with pytest.raises(UserError, match="data.train: made up holds no example"):
        make_loader(some(0))


class Frames(Dataset):
    """Frames of sound or pixels: arrays of floats with two dimensions."""

    def encode(self, indices):
        return [(self.examples[i][0],) for i in indices]

    def sizes(self, item):
        return len(item[0]), len(item[0])

    def collate(self, items):
        return Batch({"frames": Inputs("frames", pad_rows([item[0] for item in items], 0))}, len(items))


def test_arrays_keep_their_types():
    values = [np.random.default_rng(i).random((2 + i % 3, 4), np.float32) for i in range(20)]
    examples = InMemorySource("frames", [(each,) for each in values])
    made = Loader.of(Frames(examples, PairData(), config.Train(tokens=9)))
    for _ in range(2):  # encoded, and then from the cache
        seen = {}
        for step in made.steps(0):
            (batch,) = step.micro_batches
            seen |= dict(zip(batch.examples, batch["frames"].values, strict=True))
        assert sorted(seen) == list(range(20)) and all(each.dtype == torch.float32 for each in seen.values())
        assert all(np.array_equal(seen[i][: len(each)].numpy(), each) for i, each in enumerate(values))
    assert pad_rows([np.array([1, 2], np.uint16), np.array([3], np.uint16)], -1).tolist() == [[1, 2], [3, -1]]


def test_example_over_the_budget_is_a_step():
    made = list(make_loader(InMemorySource("one", [("a" * 50, "b" * 60), ("c", "d")]), tokens=10).steps(0))
    assert sorted(step.tokens for step in made) == [2, 61]


def test_small_data_are_cached_in_memory(monkeypatch):
    examples, asked = some(1200), []
    encode = type(BYTE).encode
    monkeypatch.setattr(type(BYTE), "encode", lambda self, rows: asked.extend(rows) or encode(self, rows))
    made = make_loader(examples)
    first = [list(made.steps(epoch)) for epoch in (0, 1)]
    assert len(asked) == 2400
    monkeypatch.setattr(dataset, "CACHED_EXAMPLES", 1000)
    anew = make_loader(examples)
    second = [list(anew.steps(epoch)) for epoch in (0, 1)]
    assert len(asked) == 2400 + 4800
    assert all(same(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


def test_group_by_budget():
    assert group_by_budget(np.array([5, 5, 5, 5, 11, 3]), 10) == [slice(0, 2), slice(2, 4), slice(4, 5), slice(5, 6)]
    assert group_by_budget(np.array([9, 9, 9]), 1, batch=2) == [slice(0, 2), slice(2, 3)]


def test_split_evenly():
    lengths = np.array([1, 1, 1, 1, 10, 10, 30, 30, 40])
    assert [int(lengths[run].sum()) for run in split_evenly(lengths, 3)] == [54, 30, 40]
    assert split_evenly(np.array([5, 5]), 4) == [slice(0, 1), slice(1, 2)]
    assert split_evenly(np.array([1, 1, 100]), 2) == [slice(0, 2), slice(2, 3)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 9))
def test_split_evenly_covers_all_items(lengths, pieces):
    runs = split_evenly(np.array(lengths), pieces)
    assert len(runs) == min(pieces, len(lengths))
    assert [i for run in runs for i in range(run.start, run.stop)] == list(range(len(lengths)))
    assert all(run.stop > run.start for run in runs)


def test_sorted_batches():
    lengths = [3, 9, 1, 7, 2]
    assert sorted_batches(lengths) == [[1, 3, 0, 4, 2]]
    assert sorted_batches(lengths, rows=2) == [[1, 3], [0, 4], [2]]
    assert sorted_batches(lengths, tokens=9) == [[1], [3], [0, 4, 2]]
    assert sorted_batches(lengths, tokens=9, rows=2) == [[1], [3], [0, 4], [2]]
    assert sorted_batches([]) == []


def test_pool_is_larger_than_a_step():
    def pool(**train):
        pairs = PairDataset(some(9), BYTE, BYTE, PairData(), config.Train(**train))
        return BudgetSampler(pairs).pool_size

    assert pool(tokens=4096) == pool(batch=900) == 50_000
    assert pool(tokens=10_000_000) == 4 * 10_000_000 // 32
    assert pool(batch=20_000) == 80_000


def test_padding_is_below_three_percent():
    train = make_dates(("en", "de"), 6000, 1)["train"]
    tokenizer = train_tokenizer(config.TokenizerConfig(vocab=1000), train.texts(0, 1))
    pairs = PairDataset(train, tokenizer, tokenizer, PairData(), config.Train(tokens=1024))
    made = Loader.of(pairs).steps(0)
    found = [batch for step in made for batch in step.micro_batches]
    cells = sum(batch["source"].values.numel() + batch["target"].values.numel() for batch in found)
    assert sum(int(batch["source"].valid.sum()) + batch.count for batch in found) / cells > 0.97
