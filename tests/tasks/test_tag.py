"""Tagging from files to predictions: first tokens of words, windows, and formats of sentences."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from helpers import reads
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.cli import app as cli
from regard.config.data.texts import TagData, TokenizerConfig
from regard.config.run import resolve_run
from regard.config.train import Train
from regard.data.datasets import rows
from regard.data.datasets.collate import IGNORED
from regard.data.datasets.rows import TaggedDataset, encode_sentence, word_windows
from regard.data.loading.loader import Loader
from regard.data.source import InMemorySource
from regard.errors import UserError
from regard.metrics.labels import tag_spans
from regard.processors.text.processor import encode_words
from regard.processors.text.tokenizers import train_tokenizer
from regard.synthetic.python_tags import make_python_tags, role_after, sentences, stdlib_modules
from regard.tasks.tag import task as tag
from regard.tasks.tag.evaluation import MostFrequentTag


@pytest.fixture(scope="module")
def run() -> Path:
    return reads.stored_run("tag", train__metric="spans")


@pytest.fixture(scope="module")
def predictor(run):
    return regard.load(run)


def run_cli(capsys, monkeypatch, stdin: str, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    capsys.readouterr()
    code = cli.main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_training_and_metrics(run, predictor):
    metrics = predictor.evaluate()
    right = [tag for each in reads.tagged_examples(50, 2) for _, tag in each]
    assert metrics["words"] == len(right) and metrics["examples"] == 50
    assert metrics["accuracy"] > 0.95 and metrics["spans"] > 0.9
    assert metrics["majority"] == right.count("O") / len(right) or metrics["majority_label"] != "O"
    # The same words are B-T at the first position of a span and I-T at the second: a word alone does not determine its tag.
    assert metrics["majority"] < metrics["most_frequent_tag"] < 0.88
    weights = json.loads((run / "run.json").read_text())["weights"]
    assert weights["metric"] == "spans" and weights["value"] > 0.9


WORDS, TAGS = ["the", "cat", "house", "sees", "some", "day"], ["O", "B-T", "I-T", "B-D", "O", "B-T"]


def test_predictions_keep_the_input_format(predictor):
    assert predictor.predict([WORDS]) == [TAGS]
    plain = regard.load(run_folder_of(predictor), {"data.format": "text"})
    assert plain.predict(" ".join(WORDS)) == " ".join(f"{a}/{b}" for a, b in zip(WORDS, TAGS, strict=True))
    column = "\n".join(WORDS)
    assert predictor.predict(column) == "\n".join(f"{a} {b}" for a, b in zip(WORDS, TAGS, strict=True))
    record = json.loads(predictor.predict(json.dumps({"id": 7, "tokens": WORDS})))
    assert record == {"id": 7, "tokens": WORDS, "tags": TAGS}
    details = predictor.predict([WORDS], details=True, top=2)[0]
    assert details["tags"] == TAGS and min(details["probabilities"]) > 0.4 and len(details["top"][3]) == 2
    assert details["top"][3][0]["label"] == "B-D" and not predictor.predict([WORDS], details=True)[0]["top"]
    assert predictor.predict([]) == [] and predictor.predict([[]]) == [[]]


def run_folder_of(predictor) -> Path:
    return Path(predictor.run.data.train[0][0]).parent / "run"


CONLLU = "# text = a cat\n1-2\ta cat\t_\t_\t_\t_\t_\t_\t_\t_\n1\ta\t_\tX\t_\t_\t_\t_\t_\t_\n1.1\tz\t_\tX\t_\t_\t_\t_\t_\t_\n2\tcat\t_\tX\t_\t_\t_\t_\t_\t_\n"


def test_command_line_streams(run, tmp_path, capsys, monkeypatch):
    code, out, _ = run_cli(capsys, monkeypatch, f"\n{CONLLU}\n\n{CONLLU}", "predict", run)
    wanted = CONLLU.replace("\ta\t_\tX", "\ta\t_\tO").replace("\tcat\t_\tX", "\tcat\t_\tB-T")
    assert (code, out) == (0, f"{wanted}\n{wanted}\n")
    text = "-DOCSTART- x O\n\nthe x ?\ncat x ?\n\nsees x ?\n"
    assert (
        run_cli(capsys, monkeypatch, text, "predict", run)[1]
        == "-DOCSTART- x O\n\nthe x O\ncat x B-T\n\nsees x B-D\n\n"
    )
    code, out, _ = run_cli(capsys, monkeypatch, "the cat\nsees\n", "predict", run, "data.format=text")
    assert out == "the/O cat/B-T\nsees/B-D\n"
    code, out, _ = run_cli(capsys, monkeypatch, '{"tokens": ["the", "cat"]}\n{"tokens": ["sees"]}\n', "predict", run)
    assert [json.loads(line)["tags"] for line in out.splitlines()] == [["O", "B-T"], ["B-D"]]
    code, out, _ = run_cli(capsys, monkeypatch, "the\ncat\n", "predict", run, "--details")
    assert json.loads(out)["words"] == ["the", "cat"]
    assert run_cli(capsys, monkeypatch, "", "predict", run)[:2] == (0, "")
    code, out, _ = run_cli(capsys, monkeypatch, "", "eval", run)
    assert code == 0 and "span_kinds" in out and "most_frequent_tag" in out


def test_the_first_lines_determine_the_format_of_a_stream(run, tmp_path, capsys, monkeypatch):
    """Later lines may look like a comment, an object or a table; the number of text lines does not change."""
    embedded = tmp_path / "run"
    shutil.copytree(run, embedded)
    about = json.loads((embedded / "run.json").read_text())
    about["config"]["data"]["train"] = []  # so the run does not name a column format
    (embedded / "run.json").write_text(json.dumps(about))
    text = "\nthe cat\n#1 cat\n\n{ cat }\n"
    code, out, _ = run_cli(capsys, monkeypatch, text, "predict", embedded)
    untagged = ["/".join(word.split("/")[:-1]) for line in out.splitlines() for word in line.split()]
    assert code == 0 and untagged == text.split() and [not line for line in out.splitlines()] == [1, 0, 0, 1, 0]
    assert run_cli(capsys, monkeypatch, "# cat\nthe\n", "predict", embedded)[1].count("/") == 3
    code, out, _ = run_cli(capsys, monkeypatch, "# x ?\ncat x ?\n\n# x ?\n", "predict", run)  # columns
    assert code == 0 and [line.split()[0] for line in out.splitlines() if line] == ["#", "cat", "#"]


def test_plain_text_is_tagged_by_a_tagger_that_was_trained_on_columns(run, predictor, capsys, monkeypatch):
    text, tagged = "The cat sees (some day).", "The/{} cat/{} sees/{} (/{} some/{} day/{} )/{} ./{}"
    predictor = regard.load(run)
    assert predictor.run.data.column_count == 3
    (details,) = predictor.predict([text], details=True)
    words = ["The", "cat", "sees", "(", "some", "day", ")", "."]
    assert details["words"] == words and predictor.predict([words]) == [details["tags"]]
    assert [text[start:end] for start, end in details["offsets"]] == words
    marked = [
        (details["offsets"][a][0], details["offsets"][b - 1][1], kind) for a, b, kind in tag_spans(details["tags"])
    ]
    assert [(span["start"], span["end"], span["label"]) for span in details["spans"]] == marked != []
    assert all(text[span["start"] : span["end"]] == span["text"] for span in details["spans"])
    assert predictor.predict(text) == details["text"] == tagged.format(*details["tags"])
    for stdin in (text + "\n", "the cat sees\n"):  # as many words as columns in training
        code, out, _ = run_cli(capsys, monkeypatch, stdin, "predict", run)
        assert (code, out) == (0, predictor.predict(stdin.strip()) + "\n") and out.count("/") == len(out.split())


def test_errors_name_the_line_of_a_stream(run, capsys, monkeypatch):
    text = "the x O\n\n\n" * 1100 + "cat x O\nsees x\n"
    code, _, err = run_cli(capsys, monkeypatch, text, "predict", run)
    assert (
        code == 2 and "the sentence at line 3301, 'cat x O ⏎ sees x ⏎ ': 2 columns, and the lines before have 3" in err
    )


def test_few_embedded_sentences_may_lack_a_role():
    """A tag that only the embedded validation data have is no error."""
    settings = {**reads.TINY, "data.examples": 50}
    objective = tag.prepare(resolve_run("tag", settings).run, {}, torch.device("cpu"))
    assert {role for _, roles in objective.splits["valid"] for role in roles} - set(objective.predictor.labels)


def test_top_tags_need_details(run, capsys, monkeypatch):
    code, out, err = run_cli(capsys, monkeypatch, "the\ncat\n", "predict", run, "--top", 2)
    assert code == 0 and out == "the O\ncat B-T\n\n" and "decode.top" in err and "with details only" in err
    code, out, err = run_cli(capsys, monkeypatch, "the\ncat\n", "predict", run, "--top", 2, "--details")
    assert len(json.loads(out)["top"][0]) == 2 and "details" not in err


def test_errors(predictor, capsys, monkeypatch, run):
    with pytest.raises(UserError, match=r"the sentence, '1\\ta⏎?.*': 2 columns; a line of CoNLL-U has 10"):
        regard.load(run, {"data.format": "conllu", "data.column": ""}).predict(["# x", "1\ta"])
    with pytest.raises(
        UserError, match="the sentence has several lines and looks like text, where a sentence is one line"
    ):
        regard.load(run, {"data.format": "text"}).predict("a\nb")
    with pytest.raises(UserError, match="the sentence, .*: not one JSON object"):
        predictor.predict("{")
    for record, words in (
        ('{"words": 3}', "no list of texts under 'tokens'; there is words"),
        ('{"tokens": ["\\ud800"]}', "half a surr"),
    ):
        with pytest.raises(UserError, match=f"the sentence, .*{words}"):
            predictor.predict([record])
    code, _, err = run_cli(capsys, monkeypatch, "", "score", run)
    assert code == 0
    code, _, err = run_cli(capsys, monkeypatch, "a\tb\n", "score", run)
    assert code == 2 and "task tag gives no probability of one text given another" in err


def test_unseen_tags(run, predictor, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the x O\ncat x B-ODD\n")
    assert predictor.evaluate(((str(path),),))["unseen_labels"] == "B-ODD (1)"
    data = {"data.train": str(run.parent / "train.txt"), "data.valid": str(path)}
    with pytest.raises(UserError, match=r"data\.valid: .*a\.txt:1 has the label 'B-ODD', which data\.train never has"):
        regard.train("tag", {**reads.TINY, **data}, out=tmp_path / "x")
    objective = tag.prepare(
        resolve_run("tag", {**reads.TINY, **data, "data.invalid": "skip"}).run, {}, torch.device("cpu")
    )
    metrics = objective.validate()
    assert metrics["loss"] > 0 and metrics["accuracy"] <= 0.5 and "spans" in metrics


def test_span_metric_needs_span_tags(run, tmp_path):
    data = {"data.train": str(run.parent / "train.txt"), "data.column": "1", "train.metric": "spans"}
    with pytest.raises(UserError, match="data.column is '1'"):
        regard.train("tag", {**reads.TINY, **data}, out=tmp_path / "x")
    path = tmp_path / "a.txt"
    path.write_text("a NOUN\nb VERB\n")
    with pytest.raises(UserError, match="train.metric is spans and the tags mark none, such as NOUN"):
        regard.train("tag", {**reads.TINY, "data.train": str(path), "train.metric": "spans"}, out=tmp_path / "x")


def test_most_frequent_tag_baseline():
    train = InMemorySource("x", [(("a", "b", "a"), ("X", "Y", "X")), (("a", "c"), ("Y", "Y"))])
    baseline = MostFrequentTag(train)
    assert [baseline.tag(word) for word in "abcz"] == ["X", "Y", "Y", "Y"]


# --- tokens and windows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char", "byte", "wordpiece"])
def test_words_are_encoded_as_in_a_text(kind):
    texts = ["the cat sees some houses", "a cat a day", "some new words here"]
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab=300), texts)
    for text in texts:
        pieces = encode_words(tokenizer, [text.split()])[0]
        assert [piece for word in pieces for piece in word] == tokenizer.encode([text])[0]
    odd = encode_words(tokenizer, [["\u200b", "a"], [], ["☃" * 3]])
    assert [len(each) for each in odd] == [2, 0, 1] and all(piece for each in odd for piece in each)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(9, 30), st.integers(0, 12))
def test_windows(sizes, most, overlap):
    """Each word is predicted once, in order, by a window that contains it; windows fit and overlap as set."""
    found = word_windows(sizes, most, overlap)
    assert [word for window in found for word in range(window.scored_first, window.scored_last)] == list(
        range(len(sizes))
    )
    for window in found:
        assert (
            window.first <= window.scored_first < window.scored_last <= window.last
            or window.scored_first == window.scored_last
        )
        assert sum(sizes[window.first : window.last]) <= most
    for one, other in zip(found, found[1:], strict=False):
        assert one.first < other.first <= one.last < other.last and sum(sizes[other.first : one.last]) <= overlap
        assert one.scored_last == other.scored_first == (other.first + one.last + 1) // 2
        # the window is full: the next word would not fit
        assert sum(sizes[one.first : one.last + 1]) > most
    if sum(sizes) <= most:
        assert len(found) == 1


def test_a_word_longer_than_a_window():
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    encoded = encode_sentence(tokenizer, encode_words(tokenizer, [["a" * 50, "b"]])[0], 10, 4)
    assert [len(row) for row in encoded.rows] == [12, 4] and encoded.word_positions == [(0, 1), (1, 1)]


def build_loader(sentences, **data):
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    labels = rows.LabelSet({"x": 1, "y": 1})
    dataset = TaggedDataset(
        InMemorySource("made", sentences), tokenizer, labels, TagData(**data), Train(tokens=60), None
    )
    return Loader.of(dataset)


def test_the_first_token_has_the_tag():
    (step,) = build_loader([(("ab", "c", "def"), ("x", "y", "x"))]).steps(0)
    (piece,) = step.micro_batches
    assert (
        piece["tags"].values.tolist() == [[IGNORED, 0, IGNORED, 1, IGNORED, 0, IGNORED, IGNORED, IGNORED, IGNORED]]
        and step.count == 3
    )
    assert piece["text"].values[0, [1, 3, 5]].tolist() == [4 + ord("a"), 4 + ord(" "), 4 + ord(" ")]


def test_long_sentences_become_rows_with_every_tag_once():
    words, tags = tuple("abcdefghijklmnopqrst"), tuple("xy" * 10)
    loader = build_loader([(words, tags), (("a",), ("x",))], max_tokens=12, overlap=4)
    all_of = [
        row
        for step in loader.steps(0)
        for piece in step.micro_batches
        for row in zip(piece["text"].values, piece["tags"].values, strict=True)
    ]
    assert len(all_of) > 4 and max(len(row) for row, _ in all_of) <= 12
    asked = [
        int(tokens[i + 1]) - 4
        for tokens, labels in all_of
        for i in (labels != IGNORED).nonzero()[:, 0].tolist()
        if tokens[i] == 4 + ord(" ")
    ]
    assert sorted(chr(letter) for letter in asked) == sorted(set(words) - {"a"})
    assert sum(step.count for step in loader.steps(0)) == 21
    assert loader.sampler.costs.shortened.tolist() == [True, False] and loader.report()[0].startswith(
        "1 of 2 sentences have more than 10 tokens and are read in windows that overlap by 4"
    )


def test_long_sentences_are_tagged_completely(run):
    predictor = regard.load(run, {"data.max_tokens": 12, "data.overlap": 6})
    words, tags = WORDS[:4] * 8, TAGS[:4] * 8
    assert predictor.predict([words])[0] == tags
    short = regard.load(run).predict([words], details=True)[0]
    assert short["tags"] == tags


# --- the embedded data -----------------------------------------------------------------------------------------------

SOURCE = '''import os.path as p, re
from json import loads as l, dumps
@decorated(1)
class Small(Base):
    """doc"""
    def name(self, a, *b: int, c=None):
        for i, j in self.items(key=a):
            x = call(i).attribute  # why
            self.other[x] = -1.5
        try:
            pass
        except (OSError, ValueError) as e:
            raise Mistake("é") from e
        return [y for y in a if y]
'''


@pytest.fixture
def tokens(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.synthetic.python_tags.MIN_TOKENS", 1)
    path = tmp_path / "a.py"
    path.write_text(SOURCE, encoding="utf-8")
    return [pair for words, tags in sentences(path) for pair in zip(words, tags, strict=True)]


def test_roles_of_a_small_module(tokens):
    roles_of: dict[str, list[str]] = {}
    for word, role in tokens:
        roles_of.setdefault(word, []).append(role)
    one = {word: some[0] for word, some in roles_of.items() if len(set(some)) == 1}
    assert one["os"] == one["re"] == one["json"] == "module" and one["p"] == one["l"] == "alias"
    assert one["loads"] == one["dumps"] == "imported" and one["decorated"] == "decorator"
    assert one["Small"] == "class" and one["Base"] == "base" and one["name"] == "function"
    assert one["b"] == one["c"] == "parameter" and one["int"] == "annotation"
    assert roles_of["self"] == ["parameter", "read", "read"] and roles_of["a"] == ["parameter", "read", "read"]
    assert (
        roles_of["i"] == ["loop", "read"]
        and one["j"] == "loop"
        and one["items"] == "method"
        and one["key"] == "argument"
    )
    assert (
        roles_of["x"] == ["target", "read"]
        and one["call"] == "called"
        and one["attribute"] == one["other"] == "attribute"
    )
    assert one["OSError"] == one["ValueError"] == one["Mistake"] == "exception" and roles_of["e"] == ["target", "read"]
    assert roles_of["y"] == ["read", "loop", "read"] and one["None"] == "constant" and one["1.5"] == "number"
    assert one["# why"] == "comment" and one['"""doc"""'] == one['"é"'] == "string"
    assert one["for"] == one["return"] == one["from"] == "keyword" and one["-"] == one["["] == "operator"


def test_roles_that_depend_on_the_line():
    assert role_after(["def"]) == "function" and role_after(["x", "=", "def"]) == "function" and role_after([]) == ""
    assert role_after(["from"]) == "module" and role_after(["from", "a", "import"]) == "imported"
    assert role_after(["from", "a", "import", "b", "as"]) == "alias" and role_after(["import", "a", "."]) == "module"
    assert role_after(["except", "E", "as"]) == "target" and role_after(["with", "E", "as"]) == ""


def test_no_module_is_in_two_splits(monkeypatch):
    monkeypatch.setattr("regard.synthetic.python_tags.sentences", lambda path: [((path.name,), ("x",))] * 9)
    names = {split: {words[0] for words, _ in some} for split, some in make_python_tags(3000, seed=1).items()}
    assert (
        not names["train"] & names["valid"]
        and not names["train"] & names["test"]
        and not names["valid"] & names["test"]
    )
    assert min(map(len, names.values())) >= 8 and len(names["train"]) > 100


@pytest.fixture(scope="module")
def embedded():
    return make_python_tags(300, seed=1)


def test_embedded_roles_and_disjoint_splits(embedded):
    found = {role for _, tags in embedded["train"] for role in tags}
    assert len(found) >= 12 and {"called", "attribute", "parameter", "argument", "target", "loop", "module"} <= found
    assert [len(split) for split in embedded.values()] == [300, 400, 400]
    again = make_python_tags(300, seed=2)
    assert list(again["test"]) == list(embedded["test"]) and list(again["train"]) != list(embedded["train"])
    assert (
        embedded["train"].fingerprint()
        == make_python_tags(300, seed=1)["train"].fingerprint()
        != again["train"].fingerprint()
    )
    assert embedded["train"].text(0, 1).split()[0] in found


def test_python_without_source_files(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="holds 0 modules, and the embedded data are made from the source"):
        stdlib_modules()


def test_unparsable_files_are_skipped(tmp_path):
    for name, data in (("a", b"def ("), ("b", b"\xff\xfe"), ("c", b"x = '''")):
        (tmp_path / name).write_bytes(data)
        assert list(sentences(tmp_path / name)) == []
    assert list(sentences(tmp_path / "none")) == []
