"""Running text: documents in blocks, split points, the token cache, windows for training and evaluation."""

import gzip
import json
import lzma
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from benchmarks import corpus as encode
from regard.config import run as config
from regard.config.data.texts import TextData
from regard.config.train import Train
from regard.data.datasets import token_cache
from regard.data.datasets.corpus import ContiguousSampler, Corpus, WindowSampler, evaluation_windows, memory_windows
from regard.data.files import line_index
from regard.data.loading.loader import Loader
from regard.data.sources import documents as reading
from regard.data.sources import split_points
from regard.data.sources.documents import Documents, open_documents
from regard.data.sources.split_points import CachedEncoder, TextPart
from regard.errors import UserError
from regard.processors.text.tokenizers import END, START, TrainedTokenizer, train_tokenizer, unknown_words
from regard.synthetic import stdlib
from regard.tasks.language.task import split_documents

TEXTS = [
    "The animal didn't cross the street,  because it was too tired (or 'tis said: don't).\n\n\tself.x = f(a1, b_2)\n",
    "Das Tier überquerte die Straße nicht! naïve e\u0301 ﬁ Ⅳ a\u00a0b\u202fPM +\x1c- \u3000 x\r\n ' 's 'll ''s ('s",
    "你好，世界。早上好！ שלום 😀👩\u200d👩 <url> see <two words> ok <url>. tab\there\x0b\x85\u2028end \u0301b",
]
BITS = [
    "a",
    "Z",
    "é",
    "e\u0301",
    "1",
    "²",
    "'",
    "'s",
    "(",
    "_",
    "+",
    " ",
    "  ",
    "\n",
    "\t",
    "\r",
    "\u00a0",
    "\x1c",
    "\u3000",
]
BITS += [
    "，",
    "你",
    "😀",
    "\u200d",
    "\u0338",
    "=",
    "¨",
    "\x0b",
    "\u2028",
    "<url>",
    "<two words>",
    "<two",
    "the",
    " street",
]
# Every neighborhood is frequent enough to become one token, where the tokenizer allows it.
TEXTS.append(" ".join("".join(random.Random(seed).choices(BITS, k=4)) for seed in range(400)))
SYMBOLS = ("<url>", "<two words>")
KINDS = ("bpe", "unigram", "word", "space", "char", "byte")
TRAINED = {
    (kind, more): train_tokenizer(config.TokenizerConfig(kind=kind, vocab=3000, **json.loads(more)), TEXTS)
    for kind in KINDS
    for more in ("{}", json.dumps({"symbols": SYMBOLS}), json.dumps({"normalize": "nfkc+lower"}))
}
BYTES = TRAINED["byte", "{}"]
CHARS = TRAINED["char", "{}"]


def data(tmp_path: Path, **changes) -> TextData:
    return TextData(**{"cache": str(tmp_path / "cache")} | changes)


def write(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def units(texts: Documents) -> list[str]:
    """Whole documents, joined from parts of arbitrary length."""
    found = [""]
    for part in texts.parts(lambda text: len(text)):
        assert part.inner == bool(found[-1])
        found[-1] += part.text
        found += [""] * part.last
    assert found.pop() == ""
    return found


@pytest.fixture(params=[5, 16, 1 << 18], ids=lambda size: f"block{size}")
def block(request, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", request.param)


# --- split points -----------------------------------------------------------------------------------------------------------


class Blocks(Documents):
    """One document, read in these blocks."""

    def __init__(self, blocks: list[str]) -> None:
        self.blocks = blocks

    def _units(self):
        yield from ((block, False) for block in self.blocks)
        yield "", True


@pytest.mark.parametrize("more", ["{}", json.dumps({"symbols": SYMBOLS}), json.dumps({"normalize": "nfkc+lower"})])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(blocks=st.lists(st.lists(st.sampled_from(BITS), max_size=12).map("".join), min_size=1, max_size=6))
@example(blocks=["the <url> street"])
@example(blocks=["see <two words> ok"])
@example(blocks=["the 'street 's ('s)"])
def test_split_parts_encode_like_the_whole(kind, more, blocks):
    tokenizer = TRAINED[kind, more]
    encoder = CachedEncoder(tokenizer)
    parts = list(Blocks(blocks).parts(encoder.rules.last_split))
    assert "".join(part.text for part in parts) == "".join(blocks)
    found = np.frombuffer(b"".join(encoder.encode(parts)), np.uint16)
    assert found.tolist() == tokenizer.encode(["".join(blocks)])[0]


def test_sample_texts_are_split_by_every_tokenizer():
    for tokenizer in TRAINED.values():
        assert len(list(Blocks(TEXTS * 3).parts(split_points.split_rules(tokenizer).last_split))) > 5


def test_word_cache_evicts_and_refills(monkeypatch):
    monkeypatch.setattr(split_points, "CACHED_WORDS", 3)
    tokenizer = TRAINED["bpe", "{}"]
    encoder = CachedEncoder(tokenizer)
    for text in TEXTS * 3:
        assert encoder.encode([TextPart(text, False, True)]) == CachedEncoder(tokenizer).encode(
            [TextPart(text, False, True)]
        )
    asked: list[str] = []
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda texts: asked.extend(texts) or encode(texts))
    fresh = CachedEncoder(tokenizer)
    fresh.encode([TextPart("one two one", False, True), TextPart(" two four", True, True)])
    assert fresh.encode([TextPart("one two three", False, True)]) == [
        b"".join(fresh._encode_texts(["one", " two", " three"]))
    ]
    assert sorted(asked[:-3]) == [" four", " one", " three", " two", "one"]


def test_encoder_is_thread_safe():
    tokenizer = TRAINED["bpe", "{}"]
    encoder = CachedEncoder(tokenizer)

    class Late(dict):
        """Simulates another thread that adds a word right after it was looked up."""

        def __contains__(self, word):
            return self.get(word) is not None

        def get(self, word):
            found = super().get(word)
            self[word] = encoder._encode_texts([word])[0]
            return found

    encoder._older = Late()
    row = encoder.encode([TextPart("one two three two", False, True)])[0]
    assert np.frombuffer(row, np.uint16).tolist() == tokenizer.encode(["one two three two"])[0]


@pytest.mark.parametrize("text", ["ab12(cd)ef,gh" * 9, "你好。早上好！" * 20])
def test_text_without_spaces_uses_fallback_split_points(monkeypatch, text):
    monkeypatch.setattr(split_points, "MAX_UNSPLIT", 40)
    for kind in ("bpe", "unigram", "char", "byte"):
        tokenizer = TRAINED[kind, "{}"]
        encoder = CachedEncoder(tokenizer)
        parts = list(Blocks([text[i : i + 11] for i in range(0, len(text), 11)]).parts(encoder.rules.last_split))
        assert len(parts) > 2 and max(len(part.text) for part in parts) < 60
        found = np.frombuffer(b"".join(encoder.encode(parts)), np.uint16)
        assert found.tolist() == tokenizer.encode([text])[0]


def test_endless_word_is_split_at_the_limit(monkeypatch):
    monkeypatch.setattr(split_points, "MAX_UNSPLIT", 40)
    for kind in ("bpe", "unigram", "word", "space"):
        tokenizer = TRAINED[kind, "{}"]
        encoder = CachedEncoder(tokenizer)
        parts = list(Blocks(["a" * 30] * 9).parts(encoder.rules.last_split))
        assert len(parts) > 3 and "".join(part.text for part in parts) == "a" * 270
        found = np.frombuffer(b"".join(encoder.encode(parts)), np.uint16)
        if kind in ("word", "space"):
            assert len(found) == len(parts)
        else:
            assert tokenizer.decode([found.tolist()]) == ["a" * 270]


def test_unknown_tokenizer_encodes_whole_documents(tmp_path):
    backend = Backend(models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "▁a": 4, "▁b": 5}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    assert split_points.split_rules(TrainedTokenizer(backend)) is None
    greedy = Backend.from_str(TRAINED["bpe", "{}"].backend.to_str())
    greedy.add_tokens([AddedToken("<mask>", lstrip=True)])
    assert split_points.split_rules(TrainedTokenizer(greedy)) is None

    class Alien:
        size, pad, start, end, unk = 70_000, 0, 1, 2, 3

        def encode(self, texts):
            return [[69_999, len(text)] for text in texts]

        def tokens(self, ids):
            return ["x" for _ in ids]

    assert split_points.split_rules(Alien()) is None
    found = Corpus(open_documents(data(tmp_path, train=write(tmp_path / "a", "ab cd " * 10)), "train"), Alien())
    assert found.ids.tolist() == [69_999, 60, END] and found.ids.dtype == np.uint32


# --- reading ---------------------------------------------------------------------------------------------------------

MIXED = "one two\r\n\n  \nthree é\n😀 four\n\n\n\nfive\r\rsix"
PLAIN = MIXED.replace("\r\n", "\n")


@pytest.mark.parametrize(
    "document, expected",
    [
        ("file", [PLAIN]),
        ("line", ["one two", "three é", "😀 four", "five\r\rsix"]),
        ("blank", ["one two", "three é\n😀 four", "five\r\rsix"]),
        ("stream", ["one two", "", "  ", "three é", "😀 four", "", "", "", "five\r\rsix"]),
    ],
)
def test_document_kinds(tmp_path, block, document, expected):
    settings = data(tmp_path, train=write(tmp_path / "a.txt", "\ufeff" + MIXED), document=document)
    assert units(open_documents(settings, "train")) == expected
    ended = data(tmp_path, train=write(tmp_path / "b.txt", MIXED + "\n"), document=document)
    assert units(open_documents(ended, "train")) == ([PLAIN + "\n"] if document == "file" else expected)


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.sampled_from(["a", "é", "😀", "你", " ", "\n", "\r\n", "\r", "word"]), max_size=40).map("".join),
    size=st.integers(4, 20),
)
def test_documents_do_not_depend_on_block_size(tmp_path_factory, text, size):
    folder = tmp_path_factory.mktemp("blocks")
    plain = text.replace("\r\n", "\n")
    lines = plain.split("\n") if plain else []
    lines = lines[:-1] if lines and not lines[-1] else lines
    expected = {"file": [plain] if plain else [], "stream": lines, "line": [line for line in lines if line.strip()]}
    expected["blank"] = [""]
    for line in lines:
        last = expected["blank"]
        last[-1:] = [last[-1] + "\n" * bool(last[-1]) + line] if line.strip() else [last[-1], ""] if last[-1] else [""]
    expected["blank"] = [one for one in expected["blank"] if one]
    path = write(folder / "a", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK_BYTES", size)
        for document, wanted in expected.items():
            assert units(open_documents(data(folder, train=path, document=document), "train")) == wanted


@pytest.mark.parametrize("document", ["file", "line", "blank", "stream"])
def test_long_lines_are_read_in_parts(tmp_path, monkeypatch, document):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 16)
    monkeypatch.setattr(split_points, "MAX_UNSPLIT", 100)
    path = write(tmp_path / "a", "many short words in one line " * 20 + "x" * 500)
    texts = open_documents(data(tmp_path, train=path, document=document), "train")
    parts = list(texts.parts(split_points.WHITESPACE_RULES.last_split))
    assert max(len(part.text) for part in parts) < 150 and len(parts) > 20
    found = Corpus(texts, BYTES)
    assert found.words - (document == "stream") == 121 and BYTES.decode([found.ids.tolist()]) == [
        Path(path).read_text()
    ]


def test_jsonl_records(tmp_path, block):
    rows = [{"text": "one\ntwo"}, {"text": "  "}, {"id": 3, "text": "three é"}]
    content = "\n".join(map(json.dumps, rows)) + "\n\n"
    for name in ("a.jsonl", "b.ndjson"):
        assert units(open_documents(data(tmp_path, train=write(tmp_path / name, content)), "train")) == [
            "one\ntwo",
            "three é",
        ]
    packed = write(tmp_path / "c.jsonl.gz", gzip.compress(content.encode()))
    assert units(open_documents(data(tmp_path, train=packed), "train")) == ["one\ntwo", "three é"]
    plain = data(tmp_path, train=str(tmp_path / "a.jsonl"), format="text")
    assert units(open_documents(plain, "train")) == [content]


@pytest.mark.parametrize("suffix, pack", [(".gz", gzip.compress), (".xz", lzma.compress), (".XZ", lzma.compress)])
def test_compressed_files(tmp_path, block, suffix, pack):
    path = write(tmp_path / f"a.txt{suffix}", pack(MIXED.encode()))
    assert units(open_documents(data(tmp_path, train=path), "train")) == [PLAIN]
    whole = Path(path).read_bytes()
    write(Path(path), whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"a.txt{suffix} is not a complete {suffix} archive"):
        units(open_documents(data(tmp_path, train=path), "train"))


def test_folders_and_globs(tmp_path):
    for name in ("b/two.txt", "b/.hidden", ".git/config", "a.txt", "c.jsonl"):
        write(tmp_path / "in" / name, json.dumps({"text": name}) if name.endswith("jsonl") else name)
    write(tmp_path / "in/empty.txt", "")
    texts = open_documents(data(tmp_path, train=str(tmp_path / "in")), "train")
    assert units(texts) == ["a.txt", "b/two.txt", "c.jsonl"] and texts.counts["empty"] == 1
    assert texts.name == f"{tmp_path / 'in/a.txt'} (and 3 more)"
    for pattern in (f"{tmp_path}/in/*.txt,{tmp_path}/in/b", [[f"{tmp_path}/in/a.txt", f"{tmp_path}/in/b*"]]):
        assert units(open_documents(data(tmp_path, train=pattern), "train")) == ["a.txt", "b/two.txt"]


@pytest.mark.parametrize("document", ["file", "line", "blank", "stream"])
@pytest.mark.parametrize(
    "content, line, words",
    [
        (b"fine\nbad \xff byte\n", 2, "byte 5 of the line is 0xff, which is not valid UTF-8"),
        (b"one\ntwo\nNUL \0 here\n", 3, "a NUL byte, so this looks like a binary file"),
        ("héllo".encode("utf-16"), 1, "this is UTF-16"),
        (b"cut off \xe4\xbd", 1, "not valid UTF-8"),
    ],
)
def test_invalid_text_error_names_file_and_line(tmp_path, block, document, content, line, words):
    path = write(tmp_path / "a.bin", content)
    with pytest.raises(UserError, match=words) as caught:
        units(open_documents(data(tmp_path, train=path, document=document), "train"))
    assert str(caught.value).startswith(f"{path}:{line}: ") and "data.invalid=skip" in str(caught.value)


def test_invalid_text_is_skipped_and_counted(tmp_path, block):
    write(tmp_path / "in/a", b"one\ntwo \xff\nthree\r\n\0\nfour")
    write(tmp_path / "in/b", b"five\n")
    write(tmp_path / "in/c.jsonl", b'{"text": "six"}\n{"text": 7}\n\xff\n[8]\n{"te\n{"text": "nine"}')
    lines = open_documents(data(tmp_path, train=str(tmp_path / "in"), document="line", invalid="skip"), "train")
    assert units(lines) == ["one", "three", "four", "five", "six", "nine"] and lines.counts["lines"] == 6
    files = open_documents(data(tmp_path, train=str(tmp_path / "in"), invalid="skip"), "train")
    assert units(files) == ["five\n", "six", "nine"] and files.counts["files"] == 1
    found = Corpus(lines, BYTES)
    assert found.report() == [
        "6 lines left out because they are not valid (data.invalid=skip)", "1 lines ended in CRLF; the CR was removed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "row, words",
    [
        ('{"txt": "a", "id": 1}', "no text under 'text'; there is txt, id"),
        ("{}", "no text under 'text'; there is nothing"),
        ('{"text": 5}', "no text under 'text' but 5;"),
        ('["a"]', 'not a JSON object such as {"text": …}'),
        ('{"text": "a"', "not one JSON object on one line"),
        ('{"text": "a\\u0000"}', "a NUL or half a surrogate pair"),
        ('{"text": "\\ud800"}', "a NUL or half a surrogate pair"),
    ],
)
def test_jsonl_errors(tmp_path, row, words):
    path = write(tmp_path / "a.jsonl", '{"text": "fine"}\n\n' + row)
    with pytest.raises(UserError) as caught:
        units(open_documents(data(tmp_path, train=path), "train"))
    assert str(caught.value).startswith(f"{path}:3: ") and words in str(caught.value)


def test_missing_files(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, words in (
        ("missing.txt", "there is no file .*missing.txt"),
        ("*.nothing", "no file matches .*nothing"),
        ("empty", "empty holds no text file"),
    ):
        with pytest.raises(UserError, match=words):
            open_documents(data(tmp_path, train=str(tmp_path / name)), "train")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is not a regular file, and text is read more than once"):
        open_documents(data(tmp_path, train=str(tmp_path / "pipe")), "train")
    some = data(tmp_path, train=write(tmp_path / "a", "a"))
    with pytest.raises(UserError, match="no test data; name some, such as data.test=folder$"):
        open_documents(some, "test")
    with pytest.raises(UserError, match="no valid data; .*or hold out a share of data.train .data.holdout"):
        open_documents(some, "valid")


@pytest.mark.parametrize(
    "content, document, why",
    [("", "file", "1 texts left out because they are empty"), (" \n\n", "file", "there are only spaces"), ("\n \n", "stream", "only")],
)  # fmt: skip
def test_texts_without_words_are_errors(tmp_path, content, document, why):
    texts = open_documents(data(tmp_path, train=write(tmp_path / "void.txt", content), document=document), "train")
    tokenizer = train_tokenizer(config.TokenizerConfig(kind="byte"), texts.sample())
    with pytest.raises(UserError, match=f"void.txt holds no text .*{why}"):
        Corpus(texts, tokenizer)


@pytest.mark.parametrize("document", ["file", "line", "stream", "blank"])
def test_holdout_split(tmp_path, block, document):
    content = "".join(f"line {i}\n" + "\n" * (i % 3 == 0) for i in range(40))
    some = data(tmp_path, train=write(tmp_path / "a", content), document=document, holdout=0.1)
    train, valid = (units(open_documents(some, part)) for part in ("train", "valid"))
    whole = units(open_documents(data(tmp_path, train=some.train, document=document), "train"))
    if document == "file":  # one document longer than the held-out share is divided, at nine tenths of its characters
        assert train == [content[: int(len(content) * 0.9)]] and train[0] + valid[0] == content
    else:
        assert train + valid == whole
        held = sum(map(len, valid)) / sum(map(len, whole))
        assert 0.1 <= held < 0.2
    assert open_documents(some, "valid").name == f"the last 10 % of {tmp_path / 'a'}"
    assert open_documents(some, "train").name == f"all but the last 10 % of {tmp_path / 'a'}"
    named = data(tmp_path, train=some.train, valid=write(tmp_path / "v", "v"), document="file", holdout=0.1)
    assert units(open_documents(named, "train")) == [content] and units(open_documents(named, "valid")) == ["v"]
    assert units(open_documents(some, "valid", files=named.valid)) == ["v"]
    with pytest.raises(UserError, match="no test data"):
        open_documents(some, "test")


def test_holdout_does_not_divide_small_documents(tmp_path):
    for name, size in (("a", 500), ("b", 450), ("c", 50)):
        write(tmp_path / "in" / name, name * size)
    some = data(tmp_path, train=str(tmp_path / "in"), holdout=0.1)
    assert units(open_documents(some, "train")) == ["a" * 500, "b" * 400]
    assert units(open_documents(some, "valid")) == ["b" * 50, "c" * 50]
    write(tmp_path / "in/b", "b" * 70)
    assert units(open_documents(some, "train")) == ["a" * 500, "b" * 58]
    assert units(open_documents(some, "valid")) == ["b" * 12, "c" * 50]
    write(tmp_path / "in/b", "b" * 49)
    write(tmp_path / "in/c", "c" * 20)
    assert units(open_documents(some, "train")) == ["a" * 500] and units(open_documents(some, "valid"))[0] == "b" * 49
    most = data(tmp_path, train=str(tmp_path / "in"), holdout=0.9)  # training always keeps something
    assert units(open_documents(most, "train")) == ["a" * 56]


def test_tokenizer_sample_is_bounded(tmp_path, monkeypatch):
    path = write(tmp_path / "a", "".join(f"word{i} \n" for i in range(1000)))
    some = open_documents(data(tmp_path, train=path, document="line"), "train")
    whole = "".join(some.sample())
    monkeypatch.setattr(reading, "SAMPLE_CHARACTERS", 1000)
    sample = list(some.sample())
    assert 700 < sum(map(len, sample)) <= 1000 and sample[1] != "word1 " and sample[-1] in whole
    assert int(sample[-1][4:]) > 950  # up to the end of the file
    assert not isinstance(some.sample(), list)
    learned = train_tokenizer(config.TokenizerConfig(kind="space", vocab=5000, symbols=("word0",)), some.sample())
    assert learned.size == 4 + len(sample) and learned.encode(["word0"]) == [[learned.size - 1]]


# --- the cache -------------------------------------------------------------------------------------------------------


def test_corpus_equals_tokenizer_output(tmp_path, block):
    texts = ["one two\n", "drei é", "😀"]
    for number, text in enumerate(texts):
        write(tmp_path / f"in/{number}", text)
    for tokenizer in (TRAINED["bpe", "{}"], CHARS, BYTES):
        found = Corpus(open_documents(data(tmp_path, train=str(tmp_path / "in")), "train"), tokenizer)
        rows = [[*row, END] for row in tokenizer.encode(texts)]
        assert found.ids.tolist() == [number for row in rows for number in row] and found.ids.dtype == np.uint16
        assert found.ends.tolist() == np.cumsum([len(row) for row in rows]).tolist()
        assert (found.bytes, found.characters, found.words) == (19, 15, 5)
        assert len(found) == len(found.ids) and isinstance(found.ids, np.memmap) and found.ends.flags.aligned


def test_stream_has_end_after_each_line(tmp_path):
    content = " \n = Title = \n \n the <unk> @-@ cat </s> sat . \n"
    path = write(tmp_path / "a", content)
    texts = open_documents(data(tmp_path, train=path, document="stream"), "train")
    words = train_tokenizer(config.TokenizerConfig(kind="space", vocab=50), texts.sample())
    found = Corpus(texts, words)
    kinds = {word: words.encode([word])[0][0] for word in content.split()}
    assert words.size == 4 + 9 and sorted(kinds.values()) == list(range(4, 13))  # a text's <unk> and </s> are words
    title, line = ([kinds[word] for word in content.split("\n")[number].split()] for number in (1, 3))
    assert found.ids.tolist() == [END, *title, END, END, *line, END]
    assert found.ends.tolist() == [len(found)] == [14] and found.report() == []
    assert (found.bytes, found.characters, found.words) == (len(content), len(content), 14)
    assert words.decode([found.ids.tolist()]) == ["= Title = the <unk> @-@ cat </s> sat ."]


def test_second_read_uses_the_cache(tmp_path, monkeypatch):
    some = data(tmp_path, train=write(tmp_path / "a", "text " * 100))
    first = Corpus(open_documents(some, "train"), BYTES)
    (file,) = (tmp_path / "cache").iterdir()
    monkeypatch.setattr(token_cache, "write_token_file", None)
    again = Corpus(open_documents(some, "train"), BYTES)
    assert again.ids.tolist() == first.ids.tolist() and again.report() == []
    assert again.fingerprint() == first.fingerprint() and again.counts == first.counts
    from safetensors import safe_open

    with safe_open(file, "np") as tensors:
        assert tensors.get_tensor("ids").tolist() == first.ids.tolist()
        assert tensors.get_tensor("ends").tolist() == first.ends.tolist()


def test_cache_file_per_request(tmp_path):
    path = write(tmp_path / "a", "text\n" * 4)
    asks = [{}, {"document": "line"}, {"invalid": "skip"}, {"verify": True}, {"format": "text"}, {"holdout": 0.5}]
    for count, ask in enumerate(asks, 1):
        Corpus(open_documents(data(tmp_path, train=path, **ask), "train"), BYTES)
        assert len(list((tmp_path / "cache").iterdir())) == count
    Corpus(open_documents(data(tmp_path, train=path, holdout=0.5), "valid"), BYTES)
    Corpus(open_documents(data(tmp_path, train=path), "train"), CHARS)
    Corpus(open_documents(data(tmp_path, train=write(tmp_path / "b", "text\n" * 4)), "train"), BYTES)
    assert len(list((tmp_path / "cache").iterdir())) == len(asks) + 3


def test_fingerprint_depends_on_content_only(tmp_path):
    def fingerprint(name, content, **more):
        return Corpus(
            open_documents(data(tmp_path, train=write(tmp_path / name, content), **more), "train"), BYTES
        ).fingerprint()

    same = fingerprint("a.txt", "one\ntwo\n")
    assert fingerprint("b.txt", "one\ntwo\n") == fingerprint("c.txt.gz", gzip.compress(b"one\ntwo\n")) == same
    others = {fingerprint("d", "one\ntwp\n"), fingerprint("e", "one\ntwo\n", document="line"), same}
    others.add(fingerprint("f", "one\ntwo\n", document="stream"))
    assert len(others) == 4


CHANGED = "the files have changed since they were last encoded; they were encoded again"


def test_changed_files_are_encoded_again(tmp_path):
    path = Path(write(tmp_path / "a", "abc " * 10))
    some = data(tmp_path, train=str(path))
    before = Corpus(open_documents(some, "train"), BYTES)
    held = before.ids.tolist()
    times = path.stat()
    write(path, "abd " * 10)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # only the content differs
    after = Corpus(open_documents(some, "train"), BYTES)
    assert after.report() == [CHANGED] and BYTES.decode([after.ids.tolist()]) == ["abd " * 10]
    assert before.ids.tolist() == held and after.fingerprint() != before.fingerprint()
    assert Corpus(open_documents(some, "train"), BYTES).report() == []
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert Corpus(open_documents(some, "train"), BYTES).report() == [CHANGED]
    write(path, "abd " * 11)
    assert Corpus(open_documents(some, "train"), BYTES).report() == [CHANGED]
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_verify_compares_all_content(tmp_path, monkeypatch):
    monkeypatch.setattr(line_index, "PROBE_BYTES", 4)
    path = Path(write(tmp_path / "a", "abcdefgh" * 100))
    quick, sure = (data(tmp_path, train=str(path), verify=verify) for verify in (False, True))
    for some in (quick, sure):
        assert Corpus(open_documents(some, "train"), BYTES).report() == []
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[20] = ord("!")
    write(path, bytes(content))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert Corpus(open_documents(quick, "train"), BYTES).report() == []
    assert Corpus(open_documents(sure, "train"), BYTES).report() == [CHANGED]
    assert Corpus(open_documents(sure, "train"), BYTES).report() == []
    for file in (tmp_path / "cache").iterdir():
        content = bytearray(file.read_bytes())
        content[token_cache.HEAD + 50] ^= 1
        file.write_bytes(content)
    assert Corpus(open_documents(quick, "train"), BYTES).report() == []
    assert "was damaged or truncated" in Corpus(open_documents(sure, "train"), BYTES).report()[0]


@pytest.mark.parametrize("keep", [0, 100, token_cache.HEAD - 1, token_cache.HEAD + 100, -1])
def test_truncated_cache_is_rewritten(tmp_path, keep):
    some = data(tmp_path, train=write(tmp_path / "a", "text " * 100))
    whole = Corpus(open_documents(some, "train"), BYTES).ids.tolist()
    (file,) = (tmp_path / "cache").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:keep])
    found = Corpus(open_documents(some, "train"), BYTES)
    assert found.report() == [f"{file} was damaged or truncated; its texts were encoded again"]
    assert found.ids.tolist() == whole and file.read_bytes() == content
    assert Corpus(open_documents(some, "train"), BYTES).report() == []


def test_unwritable_cache_falls_back(tmp_path, monkeypatch):
    write(tmp_path / "file", "")
    some = TextData(train=write(tmp_path / "a", "text"), cache=str(tmp_path / "file/cache"))
    found = Corpus(open_documents(some, "train"), BYTES, tmp_path / "run")
    (told,) = found.report()
    assert "file/cache cannot be written (Not a directory; data.cache); encoded texts are in" in told and "run" in told
    assert len(list((tmp_path / "run").iterdir())) == 1
    monkeypatch.setattr(token_cache, "write_token_file", None)
    assert Corpus(open_documents(some, "train"), BYTES, tmp_path / "run").report() == []
    monkeypatch.undo()
    alone = Corpus(open_documents(some, "train"), BYTES)
    assert "texts are encoded again in every run" in alone.report()[0]
    assert alone.ids.tolist() == found.ids.tolist()
    here = Path(alone.ids.filename).parent
    assert here.exists()
    del alone
    assert not here.exists()


def test_default_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    Corpus(open_documents(TextData(train=write(tmp_path / "a", "text")), "train"), BYTES)
    assert len(list((tmp_path / "xdg/regard").iterdir())) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        token_cache.cache_folder("") == tmp_path / ".cache/regard" and token_cache.cache_folder("~/x") == tmp_path / "x"
    )


def test_files_changed_while_read_are_errors(tmp_path, monkeypatch):
    some = data(tmp_path, train=write(tmp_path / "a", "text"))
    encode = token_cache._encode_job

    def meanwhile(*args):
        write(tmp_path / "a", "other text")
        return encode(*args)

    monkeypatch.setattr(token_cache, "_encode_job", meanwhile)
    with pytest.raises(UserError, match="was changed while it was being read"):
        Corpus(open_documents(some, "train"), BYTES)
    monkeypatch.undo()
    found = Corpus(open_documents(some, "train"), BYTES)
    assert BYTES.decode([found.ids.tolist()]) == ["other text"]


TWICE = """
import sys
from pathlib import Path
from regard.config.data.texts import TextData
from regard.data.datasets import token_cache
from regard.data.datasets.corpus import Corpus
from regard.data.sources.documents import open_documents
from regard.processors.text.tokenizers import load_tokenizer
folder = Path(sys.argv[1])
for turn in range(3):
    some = TextData(train=str(folder / "a.txt"), cache=str(folder / "cache"), stride=turn)
    (folder / "a.txt").touch()  # the other must encode again, too
    try:
        found = Corpus(open_documents(some, "train"), load_tokenizer(folder / "t.json"))
    except token_cache.UserError as error:
        assert "was changed while" in str(error)
    else:
        print(found.fingerprint(), len(found))
"""


def test_concurrent_processes_share_the_cache(tmp_path):
    write(tmp_path / "a.txt", "some words and others\n" * 50_000)
    TRAINED["bpe", "{}"].save(tmp_path / "t.json")
    run = [sys.executable, "-c", TWICE, str(tmp_path)]
    both = [subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=100) for process in both]
    assert not any(errors for _, errors in said), said
    assert (
        len(set(said[0][0].split(b"\n") + said[1][0].split(b"\n"))) == 2
    )  # all lines are equal; the other element is the empty rest
    assert len(list((tmp_path / "cache").iterdir())) == 1  # no draft is left


def test_unknown_words_are_reported(tmp_path):
    some = data(tmp_path, test=write(tmp_path / "a", "abc\tabβ\nγβ " * 3), train=write(tmp_path / "b", "a b\nc "))
    letters = train_tokenizer(config.TokenizerConfig(kind="char", vocab=50), open_documents(some, "train").sample())
    assert letters.size == 4 + 5  # a newline is a character of its own
    found = Corpus(open_documents(some, "test"), letters)
    assert found.report() == ["12 of 34 tokens are unknown to the tokenizer, such as '\\t', 'β', 'γ'"]
    assert Corpus(open_documents(some, "test"), letters).report() == found.report()
    assert unknown_words(letters, "ab\tcβa β") == ["\t", "β"] and unknown_words(letters, "a\nb") == []
    words = train_tokenizer(config.TokenizerConfig(kind="word", vocab=50), ["the cat"])
    assert unknown_words(words, "the dog and the dog's cat") == ["dog", "and", "'s"]
    assert unknown_words(TRAINED["bpe", "{}"], "β") == []


# --- windows ---------------------------------------------------------------------------------------------------------


def make_corpus(tmp_path, *texts: str, **more):
    """A byte-level corpus of these documents."""
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    return Corpus(open_documents(data(tmp_path, train=write(tmp_path / "made.jsonl", content), **more), "train"), BYTES)


def train(**changes) -> Train:
    return Train(**changes)


def load(way, corpus, data, train) -> Loader:
    sampler = way(corpus, data, train)
    return Loader(sampler, sampler)


def text(step):
    """The text of its first micro-batch."""
    return step.micro_batches[0]["text"]


def valid_table(batch) -> torch.Tensor:
    labels = batch["labels"]
    return torch.ones_like(labels.values, dtype=torch.bool) if labels.valid is None else labels.valid


LONG = ["".join(chr(97 + (i * i + j) % 26) for j in range(7 + i * 5 % 23)) for i in range(40)]


def test_inputs_are_shifted_targets(tmp_path):
    found = make_corpus(tmp_path, *LONG)
    seen: dict[int, int] = {}
    heads = {0, *found.ends.tolist()}
    for step in load(WindowSampler, found, data(tmp_path, max_tokens=16), train(tokens=64)).steps(epoch=3):
        (batch,) = step.micro_batches
        assert (
            step.tokens == step.count == batch.count == 64 and batch["labels"].valid is None and len(step.examples) == 4
        )
        assert batch["text"].values.dtype == batch["labels"].values.dtype == torch.int64 and "reset" not in batch
        for begin, row, target in zip(
            step.examples, batch["text"].values.tolist(), batch["labels"].values.tolist(), strict=True
        ):
            assert target == found.ids[begin : begin + 16].tolist()
            for place, token in enumerate(row, begin):
                assert token == (START if place in heads else found.ids[place - 1])
                seen[place] = seen.get(place, 0) + 1
    assert sum(seen.values()) > len(found) - 64 and set(seen) <= set(range(len(found)))


def test_segments_separate_documents(tmp_path):
    found = make_corpus(tmp_path, *LONG)
    for step in load(WindowSampler, found, data(tmp_path, max_tokens=32), train(batch=3)).steps(0):
        (batch,) = step.micro_batches
        for row, begin in enumerate(step.examples):
            documents = np.searchsorted(found.ends, np.arange(begin, begin + 32), side="right")
            pieces = batch["text"].segments[row].numpy()
            assert ((documents[:, None] == documents) == (pieces[:, None] == pieces)).all()
            starts = np.array([np.flatnonzero(documents == one)[0] for one in documents])
            assert batch["text"].positions[row].tolist() == (np.arange(32) - starts).tolist()


def test_no_segments_without_document_borders(tmp_path):
    long = make_corpus(tmp_path, "x" * 500)
    lines = open_documents(data(tmp_path, train=write(tmp_path / "s", "ab\n" * 100), document="stream"), "train")
    for found in (long, Corpus(lines, BYTES)):
        for step in load(WindowSampler, found, data(tmp_path, max_tokens=32), train(batch=2)).steps(0):
            assert text(step).segments is None and text(step).positions is None
    assert END in text(step).values  # in a stream, END is an ordinary token
    assert (
        next(evaluation_windows(found, 8))["text"].values[0, 0] == END
        and next(evaluation_windows(long, 8))["text"].values[0, 0] == START
    )


def test_epoch_covers_every_token(tmp_path):
    found = make_corpus(tmp_path, *LONG)
    orders = []
    for epoch in range(6):
        steps = list(load(WindowSampler, found, data(tmp_path, max_tokens=20), train(batch=1)).steps(epoch))
        begins = [step.examples[0] for step in steps]
        assert {place for begin in begins for place in range(begin, begin + 20)} == set(range(len(found)))
        assert len(begins) <= len(found) // 20 + 2 and len(set(begins)) == len(begins)
        assert [step.index for step in steps] == list(range(1, len(begins) + 1))
        orders.append(begins)
    assert len({min(set(begins) - {0}) for begins in orders}) > 3  # other window borders in each epoch
    assert all(begins != sorted(begins) for begins in orders)
    again = load(WindowSampler, found, data(tmp_path, max_tokens=20), train(batch=1)).steps(2)
    assert [step.examples[0] for step in again] == orders[2]
    other = load(WindowSampler, found, data(tmp_path, max_tokens=20), train(batch=1, seed=2)).steps(2)
    assert [step.examples[0] for step in other] != orders[2]


@pytest.mark.parametrize("way", [WindowSampler, ContiguousSampler])
def test_resume_after_any_step(tmp_path, way):
    found = make_corpus(tmp_path, *LONG)
    cut = load(way, found, data(tmp_path, max_tokens=20), train(batch=3, accumulate=2))
    whole = list(cut.steps(5))
    assert len(whole) > 5
    for number, step in enumerate(whole):
        rest = list(cut.steps(5, step.index))
        assert [one.examples for one in rest] == [one.examples for one in whole[number + 1 :]]
        if rest:
            for batch, other in zip(rest[0].micro_batches, whole[number + 1].micro_batches, strict=True):
                assert torch.equal(batch["text"].values, other["text"].values) and batch.number == other.number
                assert "reset" not in batch or torch.equal(batch["reset"].values, other["reset"].values)
    for index in (1, whole[-1].index + 3):
        with pytest.raises(UserError, match=f"no step ends after {index} windows of the epoch: the data, train.tokens"):
            list(cut.steps(5, index))


def test_micro_batches_of_a_step(tmp_path):
    found = make_corpus(tmp_path, *LONG)
    for accumulate, sizes in ((1, [5]), (2, [3, 2]), (9, [1] * 5)):
        asked = train(tokens=119, accumulate=accumulate)  # five windows of twenty tokens, 19 tokens unused
        step = next(load(WindowSampler, found, data(tmp_path, max_tokens=20), asked).steps(0))
        assert [len(batch["text"]) for batch in step.micro_batches] == sizes and step.count == 100 == step.tokens
        labels = torch.cat([batch["labels"].values for batch in step.micro_batches])
        assert torch.equal(labels, _rows(found, step.examples, 20))
        assert [batch.number for batch in step.micro_batches] == list(range(len(sizes)))
        assert [begin for batch in step.micro_batches for begin in batch.examples] == step.examples


def _rows(found, begins, width):
    return torch.stack([torch.from_numpy(found.ids[begin : begin + width].astype(np.int64)) for begin in begins])


@pytest.mark.parametrize("way", [WindowSampler, ContiguousSampler])
def test_text_shorter_than_a_window(tmp_path, way):
    found = make_corpus(tmp_path, "ab")
    for _ in range(2):
        (step,) = load(way, found, data(tmp_path, max_tokens=20), train(tokens=4096)).steps(0)
        assert step.micro_batches[0]["labels"].values.tolist() == [found.ids.tolist()] and step.count == 3
        assert text(step).values.tolist() == [[START, *found.ids[:2].tolist()]]
        found = make_corpus(tmp_path, "ab", verify=True)
    for context, rows in ((20, 4), (2, 4), (1, 1)):
        assert sum(batch.count for batch in evaluation_windows(found, context, rows=rows)) == 3
        assert sum(batch.count for batch in memory_windows(found, context, rows=rows)) == 3


def test_contiguous_rows_continue_their_text(tmp_path):
    found = make_corpus(tmp_path, *LONG)
    for epoch in range(3):
        steps = list(
            load(ContiguousSampler, found, data(tmp_path, max_tokens=20), train(batch=4, accumulate=2)).steps(epoch)
        )
        assert len(steps) == len(found) // 4 // 20
        for number, step in enumerate(steps):
            assert [batch["reset"].values.tolist() for batch in step.micro_batches] == [[number == 0] * 2] * 2
            assert [batch.number for batch in step.micro_batches] == [0, 1] and text(step).segments is None
            assert step.index == 4 * (number + 1)
        for before, after in pairwise(steps):
            assert [begin + 20 for begin in before.examples] == after.examples
        assert all(b - a == len(found) // 4 for a, b in pairwise(steps[0].examples))
        assert steps[-1].examples[-1] + 20 <= len(found)
    heads = torch.cat([batch["text"].values for step in steps for batch in step.micro_batches]) == START
    assert heads.any() and END not in torch.cat([batch["text"].values for batch in steps[0].micro_batches])
    assert (
        steps[0].examples
        != next(load(ContiguousSampler, found, data(tmp_path, max_tokens=20), train(batch=4)).steps(9)).examples
    )


@pytest.mark.parametrize("context, stride", [(16, 0), (16, 16), (16, 5), (16, 1), (1, 0), (10_000, 0), (10_000, 7)])
@pytest.mark.parametrize("rows", [0, 3])
def test_evaluation_predicts_every_token_once(tmp_path, context, stride, rows):
    found = make_corpus(tmp_path, *LONG)
    predicted, contexts = [], []
    for batch in evaluation_windows(found, context, stride, rows):
        labels, valid = batch["labels"].values, valid_table(batch)
        assert batch.count == valid.sum() and len(labels) <= (rows or len(labels))
        for row in range(len(labels)):
            predicted += labels[row][valid[row]].tolist()
            contexts += valid[row].nonzero()[:, 0].tolist()
    assert predicted == found.ids.tolist()
    if stride and stride < context < len(found):
        assert min(contexts[context:]) == context - stride


def test_padding_after_the_end(tmp_path):
    found = make_corpus(tmp_path, "a", "b" * 9)  # twelve tokens
    first, second = evaluation_windows(found, 8, rows=1)
    assert second["labels"].values[0].tolist() == [*found.ids[8:].tolist(), 0, 0, 0, 0]
    assert second["text"].values[0, 4:].tolist() == [0] * 4
    assert second["labels"].valid[0].tolist() == [True] * 4 + [False] * 4 and first["labels"].valid is None
    assert first["text"].segments[0].tolist() == [1, 1, 2, 2, 2, 2, 2, 2]
    assert first["text"].positions[0].tolist() == [0, 1, 0, 1, 2, 3, 4, 5]
    assert second["text"].segments is None  # padding is not a document border
    (both,) = evaluation_windows(found, 8, rows=2)
    assert both["text"].segments[1].tolist() == [0] * 4 + [-1] * 4 and both.count == 12


@pytest.mark.parametrize("rows", [1, 3, 60])
@pytest.mark.parametrize("stream", [False, True])
def test_memory_windows_follow_the_text(tmp_path, rows, stream):
    found = make_corpus(tmp_path, *LONG)
    if stream:
        path = write(tmp_path / "s", "\n".join(LONG))
        found = Corpus(open_documents(data(tmp_path, train=path, document="stream"), "train"), BYTES)
    texts: list[list[int]] = []
    open_rows: dict[int, list[int]] = {}
    for batch in memory_windows(found, 16, rows):
        for row in range(len(batch["text"])):
            own = batch["labels"].values[row][valid_table(batch)[row]].tolist()
            if batch["reset"].values[row] and own:
                texts.append([])
                open_rows[row] = texts[-1]
                assert stream or batch["text"].values[row, 0] == START
            open_rows.get(row, []).extend(own)
        assert batch["text"].segments is None
    if stream:
        assert len(texts) == rows and sum(texts, []) == found.ids.tolist()
    else:
        assert sorted(texts) == sorted([*BYTES.encode([text])[0], END] for text in LONG)


def test_window_to_device(tmp_path):
    batch = next(
        load(ContiguousSampler, make_corpus(tmp_path, *LONG), data(tmp_path), train(batch=2)).steps(0)
    ).micro_batches[0]
    moved = batch.to("meta")
    assert moved["text"].values.is_meta and moved["labels"].values.is_meta and moved["reset"].values.is_meta
    assert moved["text"].positions is None and moved["labels"].valid is None
    assert (moved.number, moved.count, moved.examples) == (batch.number, batch.count, batch.examples)


def test_stride_above_window_is_an_error():
    with pytest.raises(ValueError, match="data.stride is 300, above data.max_tokens=256, and would skip tokens"):
        TextData(stride=300)


# --- the embedded text -----------------------------------------------------------------------------------------------


def test_embedded_text_is_the_standard_library(tmp_path):
    parts = {part: stdlib.stdlib_files(part) for part in ("train", "valid", "test")}
    names = {part: {path.name for path in files} for part, files in parts.items()}
    every = [path for files in parts.values() for path in files]
    assert len(set(every)) == len(every) > 300 and parts["train"] == sorted(
        parts["train"], key=lambda path: path.as_posix()
    )
    assert len(parts["train"]) > 10 * len(parts["valid"]) > 50 and len(parts["test"]) > 5
    assert "argparse.py" in names["train"] and "datetime.py" in names["test"]  # on every machine
    outside = {"test", "tests", "site-packages", "idle_test", "encodings"}
    root = Path(os.__file__).parent
    assert all(outside.isdisjoint(path.relative_to(root).parts) for path in every)
    texts = split_documents(data(tmp_path, document="line", holdout=0.5, invalid="refuse"), "valid")
    assert texts.files == parts["valid"] and texts.name.startswith(
        "the valid part of the standard library of Python 3."
    )
    found = Corpus(texts, BYTES)
    assert len(found.ends) == len(texts.files) - texts.counts["empty"] - texts.counts["files"]
    assert BYTES.decode([found.ids[: found.ends[0]].tolist()])[0] == parts["valid"][0].read_text()


def test_missing_standard_library_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(stdlib.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="the source of Python's standard library is not at .*name text files"):
        split_documents(data(tmp_path), "train")


# --- speed -----------------------------------------------------------------------------------------------------------


def test_encoding_benchmark(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(encode, "VOCAB", 600)
    monkeypatch.setattr(sys, "argv", ["encode", "--sizes", "1"])
    encode.main()
    said = capsys.readouterr().out
    assert said.startswith("1 MB: ") and "MB/s" in said and said.count("\n") == 1
    encode.write_text(tmp_path / "made", 1)
    content = (tmp_path / "made").read_text()
    assert 1_000_000 <= len(content) <= 1_100_000 and 10_000 < len(set(content.split())) < 60_000
