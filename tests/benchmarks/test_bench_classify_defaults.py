"""`python -m benchmarks.classify_defaults` on a few sentences: the sets, the programs, and that test is read on request."""

import gzip
import lzma
import sys

import pytest

from benchmarks import classify_defaults, inference_pairs, label_sets
from benchmarks.label_sets import Folders, available_sets

ALWAYS = ["dates", "inference"]
SMALL = ["train.steps=2", "train.warmup=1", "train.tokens=200", "tokenizer.vocab=300"]


@pytest.fixture
def folders(tmp_path):
    """Raw files of every set, in the formats of the public ones."""
    for split in ("train", "dev", "test"):
        with gzip.open(tmp_path / f"{split}.tsv.gz", "wt") as file:
            file.writelines(f"{i % 2}\ta {'good' if i % 2 else 'bad'} film {split} {i}\n" for i in range(8))
        with lzma.open(tmp_path / f"en_ewt-ud-{split}.conllu.xz", "wt") as file:
            for i in range(8):
                genre = "email" if i % 2 else "weblog"
                file.write(f"# sent_id = {genre}-x-{i}\n# text = {genre} {split} {i}\n1\t{genre}\t_\n\n")
    lines, captions = tmp_path / "lines", tmp_path / "captions"
    lines.mkdir()
    captions.mkdir()
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
        (lines / f"{split}.tsv").write_text("The same.\tDas Gleiche.\n" + f"one {split}\teins {split}\n")
        for language in ("en", "de"):
            (captions / f"{name}.{language}").write_text(f"THE same!\n{language} {split}\n")
    return Folders(tmp_path, tmp_path, lines, captions)


def test_sets(folders):
    sets = {name: make() for name, make in available_sets(folders).items() if name not in ALWAYS}
    assert list(sets) == ["SST-2", "genre", "language"]
    assert sets["SST-2"]["train"][1] == ("a good film train 1", "1")
    assert sets["genre"]["dev"][:2] == [("weblog dev 0", "weblog"), ("email dev 1", "email")]
    splits = sets["language"]
    assert sorted(splits["dev"]) == [("de valid", "de"), ("eins valid", "de"), ("en valid", "en"), ("one valid", "en")]
    assert ("The same.", "en") in splits["test"] and ("Das Gleiche.", "de") in splits["test"]
    texts = [label_sets._folded(text) for rows in splits.values() for text, _ in rows]
    assert len(texts) == len(set(texts))  # no sentence is in two splits
    assert list(available_sets(Folders())) == ALWAYS


def test_made_up_pairs(tmp_path):
    """Each premise has one pair of every label and belongs to one split; the seed determines all."""
    assert inference_pairs.main([str(tmp_path), "--count", "90", "--seed", "1"]) == 0
    lines = {name: (tmp_path / f"{name}.tsv").read_text().splitlines() for name in label_sets.SPLITS}
    assert all(split[0] == "premise\thypothesis\tlabel" for split in lines.values())
    splits = {name: [line.split("\t") for line in split[1:]] for name, split in lines.items()}
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 63, "dev": 9, "test": 18}
    labels: dict[str, list[tuple[str, str]]] = {}
    for name, rows in splits.items():
        for premise, _, label in rows:
            labels.setdefault(premise, []).append((name, label))
    for found in labels.values():
        assert len({name for name, _ in found}) == 1 and {label for _, label in found} == {*inference_pairs.LABELS}
    assert inference_pairs.make_pairs(90) == inference_pairs.make_pairs(90) != inference_pairs.make_pairs(90, seed=2)


def test_pairs_are_measured(capsys, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(label_sets, "make_pairs", lambda: inference_pairs.make_pairs(60))
    assert classify_defaults.main(["--only", "inference", "--seeds", "1", "--set", *SMALL]) == 0
    assert [row.split("  ")[0] for row in capsys.readouterr().out.splitlines()[1:]] == [
        "inference, TF-IDF, scikit-learn",
        "inference, bag of words, regard",
        "inference, regard train classify",
    ]


def test_programs_are_measured_on_dev_and_test(folders, capsys):
    pytest.importorskip("sklearn")
    options = ["--sst2", str(folders.sst2), "--only", "SST-2", "--seeds", "1", "2"]
    assert classify_defaults.main([*options, "--test", "--set", *SMALL]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert "dev" in head and "test" in head
    assert [row.split("  ")[0] for row in rows] == [
        "SST-2, TF-IDF, scikit-learn",
        "SST-2, bag of words, regard",
        "SST-2, regard train classify",
    ]
    assert rows[0].split()[3] == rows[1].split()[5] == "100.00"


def test_test_data_are_read_on_request_only(folders, capsys):
    pytest.importorskip("sklearn")
    options = ["--ewt", str(folders.ewt), "--only", "genre", "--programs", "tfidf"]
    assert classify_defaults.main(options) == 0
    assert "test" not in capsys.readouterr().out


def test_mistakes(folders, capsys):
    assert classify_defaults.main(["--only", "SST-2"]) == 2
    assert "--only SST-2 needs the folder of its raw files" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "sklearn", None)
        assert classify_defaults.main(["--programs", "tfidf"]) == 2
    assert "sklearn is not installed" in capsys.readouterr().err
    assert classify_defaults.main(["--set", "steps"]) == 2
    assert "'steps' is not a setting; expected key=value" in capsys.readouterr().err
    assert classify_defaults.main(["--sst2", str(folders.multi30k), "--only", "SST-2", "--programs", "tfidf"]) == 2
    assert "has neither train.tsv nor train.tsv.gz" in capsys.readouterr().err
