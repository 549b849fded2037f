"""`regard distill`: the translations of a run, in order; a call that was killed continues, and mistakes are one sentence."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from helpers import reads, small
from helpers.runs import tiny_run

import regard
from regard.cli import main
from regard.tasks.parallel import distillation
from regard.tasks.parallel.distillation import splice_texts
from regard.tasks.translate.task import TranslatePredictor
from regard.training.lock import RunLock


@pytest.fixture(scope="module")
def run() -> Path:
    return small.translator()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "CHUNK", 3)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    lines = ["the cat sleeps.", "", "a dog runs", "x", "the tree\tis old", "one two", "a bird sings", "home"]
    (tmp_path / "a.en").write_text("\n".join(lines) + "\n")
    return tmp_path / "a.en"


def distill(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["distill", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_lines_correspond_to_their_sources(run: Path, source: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(distillation, "EVERY", -1.0)
    out = tmp_path / "a.de"
    code, printed, err = distill(capsys, run, "decode.beam=2", "--data", source, "--out", out)
    assert code == 0 and printed == "lines 8\n"
    assert "regard: 3 of 8 lines, " in err and " lines/s, 0:00:0" in err and err.endswith(" left\n")
    lines = source.read_text().splitlines()
    assert out.read_text().split("\n")[:-1] == regard.load(run).predict(lines, beam=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.de", "a.en"]
    assert distill(capsys, run, "decode.beam=2", "--data", source, "--out", tmp_path / "a.tsv")[0] == 0
    pairs = [line.split("\t") for line in (tmp_path / "a.tsv").read_text().splitlines()]
    assert [each[1] for each in pairs] == out.read_text().splitlines()
    assert [each[0] for each in pairs] == [line.replace("\t", " ") for line in lines]


def test_spliced_texts_follow_the_sources(run: Path, tmp_path: Path, capsys) -> None:
    animals, places = ("cat", "dog", "bird", "cow", "fox", "hen"), ("house", "tree", "lake", "road", "hill", "barn")
    lines = [f"the {one} is sitting near the {other} ." for one, other in zip(animals, places, strict=True)]
    (tmp_path / "a.en").write_text("\n".join(lines) + "\n")
    out = tmp_path / "a.tsv"
    code, printed, err = distill(capsys, run, "--data", tmp_path / "a.en", "--splice", "3", "--out", out)
    assert code == 0 and printed == "lines 24\n" and "18 spliced texts follow the 6 of the data" in err
    sources, targets = zip(*(line.split("\t") for line in out.read_text().splitlines()), strict=True)
    assert list(sources[:6]) == lines and len(set(sources)) == 24
    assert all(each.split()[1] in animals and each.split()[-2] in places for each in sources)
    assert list(targets) == regard.load(run).predict(list(sources))


def test_texts_without_shared_words_give_no_splices() -> None:
    assert splice_texts(["one two three four five six", "a b c d e f"], 9) == [] == splice_texts([], 9)
    assert splice_texts(["one two three four five six"] * 9, 3) == []  # all would be known


def test_splices_need_room_for_their_sources(run: Path, source: Path, tmp_path: Path, capsys) -> None:
    code, printed, err = distill(capsys, run, "--data", source, "--splice", 2, "--out", tmp_path / "a.de")
    assert code == 2 and not printed and "give --out a name that ends in .tsv" in err


@pytest.mark.parametrize("cut", [0, 2, 40])
def test_a_killed_call_continues(run: Path, source: Path, tmp_path: Path, capsys, monkeypatch, cut: int) -> None:
    """Also if its last line was half written. The second call translates only what is missing."""
    whole = tmp_path / "whole.de"
    distill(capsys, run, "--data", source, "--out", whole)
    predict, asked = TranslatePredictor.predict, list[list[str]]()

    def interrupted(self: Any, texts: Any, **decode: Any) -> Any:
        asked.append(texts)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return predict(self, texts, **decode)

    monkeypatch.setattr(TranslatePredictor, "predict", interrupted)
    out = tmp_path / "a.de"
    assert distill(capsys, run, "--data", source, "--out", out)[0] == 130
    assert not out.exists() and (tmp_path / "a.de.part" / "lines").read_bytes().count(b"\n") == 6
    if cut:
        lines = tmp_path / "a.de.part" / "lines"
        os.truncate(lines, max(lines.stat().st_size - cut, 0))
    left = 8 - (tmp_path / "a.de.part" / "lines").read_bytes().count(b"\n")
    code, _, err = distill(capsys, run, "--data", source, "--out", out)
    assert code == 0 and out.read_bytes() == whole.read_bytes() and not (tmp_path / "a.de.part").exists()
    assert sum(map(len, asked[3:])) == left and (left == 8 or f"continuing after {8 - left} of 8 lines" in err)


def test_embedded_data_and_tables_become_pairs(tmp_path: Path, capsys) -> None:
    run = tiny_run("translate", **small.TINY, **{"data.examples": 9, "train.steps": 1})
    assert regard.distill(run, {"decode.kind": "greedy"}, out=tmp_path / "a.tsv") == 9
    rows = [line.split("\t") for line in (tmp_path / "a.tsv").read_text().splitlines()]
    assert len(rows) == 9 and all(len(row) == 2 and row[0] for row in rows)
    (tmp_path / "b.tsv").write_text("one\ttwo\nthree\tfour\n")
    found = distill(capsys, run, "--data", tmp_path / "b.tsv", "--out", tmp_path / "c.tsv")
    assert found[0] == 0 and [line.split("\t")[0] for line in (tmp_path / "c.tsv").read_text().splitlines()] == [
        "one",
        "three",
    ]
    for data, words in (([], "not in files"), (["--data", tmp_path / "b.tsv"], "a table")):
        code, _, err = distill(capsys, run, *data, "--out", tmp_path / "c.de")
        assert code == 2 and f"the data are {words}, so targets alone have no sources" in err


def test_mistakes(run: Path, source: Path, tmp_path: Path, capsys) -> None:
    out, part = tmp_path / "a.de", tmp_path / "a.de.part"
    classifier = reads.stored_run("classify", train__steps=2)
    (tmp_path / "old.de").write_text("x")
    part.mkdir()
    (part / "job.json").write_text('{"source": "other"}')
    busy = tmp_path / "busy.de"
    busy.with_name("busy.de.part").mkdir()
    for arguments, sentence in [
        ([classifier, "--out", out], "is a run of the task classify; distill takes one that writes texts"),
        (
            [run, "decode.nbest=2", "--data", source, "--out", out],
            "decode.strategy.n is 2, and a source gets one target",
        ),
        ([run, "--data", source, "--out", tmp_path / "old.de"], "old.de exists already; remove it, or choose another"),
        ([run, "--data", source, "--out", tmp_path / "no" / "a.de"], "its folder does not exist; choose another --out"),
        ([run, "--data", source, "--out", out], "a.de.part was begun with other settings: the data differ; remove it"),
        ([run, "--data", source, "--out", busy], "busy.de.part is being written by this process already"),
        ([run, "--data", tmp_path / "gone", "--out", tmp_path / "b.de"], "gone"),
        ([run, "--data", source], "missing option '--out'"),
    ]:
        with RunLock(busy.with_name("busy.de.part"), "written"):
            code, _, err = distill(capsys, *arguments)
        assert code == 2 and sentence in err, (arguments, err)


def test_a_full_disk_is_reported(run: Path, source: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(distillation.os, "replace", full)
    monkeypatch.setattr(distillation, "write_json", lambda *_: None)
    code, _, err = distill(capsys, run, "--data", source, "--out", tmp_path / "a.de")
    assert code == 2 and f"no space left while writing {tmp_path / 'a.de'}" in err


def test_a_distilled_file_that_was_cut_is_refused(run: Path, source: Path, tmp_path: Path, capsys) -> None:
    """A file that is not complete has fewer lines than its sources."""
    out = tmp_path / "a.de"
    distill(capsys, run, "--data", source, "--out", out)
    out.write_bytes(out.read_bytes()[: out.stat().st_size // 2])
    with pytest.raises(regard.UserError, match="the sides of the data differ in length"):
        regard.train("translate", {**small.TINY, "data.train": f"{source},{out}", "train.steps": 1}, out=tmp_path / "r")
