"""Images on the command line: files, folders, archives, tables and names from stdin."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import reads
from helpers.runs import copy_run
from PIL import Image

import regard
from regard.cli.app import main


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("image files")
    copy_run(reads.image_run(), folder / "run")
    for number in range(3):
        image = Image.fromarray(np.random.default_rng(number).integers(0, 255, (20, 30 + number, 3), np.uint8))
        image.save(folder / f"{number}.png")
    return folder / "run"


def lines(capsys, *arguments: object) -> list[str]:
    assert main([str(each) for each in arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_line_has_path_label_and_score(run, capsys):
    files = [run.parent / f"{number}.png" for number in range(3)]
    results = regard.load(run).predict([*map(str, files)])
    found = lines(capsys, "predict", run, *files)
    assert found == [f"{path}\t{each.label}\t{each.score:.4f}" for path, each in zip(files, results, strict=True)]
    top = [line.split("\t") for line in lines(capsys, "predict", run, *files, "--top", 2)]
    assert [cells[:2] for cells in top] == [line.split("\t")[:2] for line in found] and {
        len(cells) for cells in top
    } == {5}
    records = [json.loads(line) for line in lines(capsys, "predict", run, *files, "--json")]
    assert [record["path"] for record in records] == [str(path) for path in files]
    assert [record["label"] for record in records] == [each.label for each in results]
    assert all(len(record["top"]) == 10 for record in records)


def test_folders_archives_tables_and_stdin_name_the_same_images(run, capsys, monkeypatch, tmp_path):
    files = [run.parent / f"{number}.png" for number in range(3)]
    expected = [line.split("\t")[1:] for line in lines(capsys, "predict", run, *files)]
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for path in files:
        (tmp_path / "folder" / "inner" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "folder" / "notes.txt").write_text("no image")
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for path in files:
            archive.write(path, path.name)
    table = tmp_path / "images.tsv"
    table.write_text("path\tlabel\n" + "".join(f"folder/inner/{path.name}\tx\n" for path in files))
    for source in (tmp_path / "folder", tmp_path / "images.zip", table):
        assert [line.split("\t")[1:] for line in lines(capsys, "predict", run, source)] == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("".join(f"{path}\n" for path in files).encode())))
    assert [line.split("\t")[1:] for line in lines(capsys, "predict", run)] == expected
    (tmp_path / "none").mkdir()
    assert main(["predict", str(run), str(tmp_path / "none")]) == 2
    assert "has no images" in capsys.readouterr().err


def test_an_image_that_cannot_be_read_keeps_the_answers_before_it(run, capsys, tmp_path):
    bad, files = tmp_path / "bad.png", [run.parent / f"{number}.png" for number in range(3)]
    bad.write_bytes(files[0].read_bytes()[:100])
    expected = lines(capsys, "predict", run, *files)
    assert main(["predict", str(run), *map(str, [*files[:2], bad, files[2]])]) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines() == expected[:2] and captured.err.count("bad.png") == 1
    assert main(["predict", str(run), *map(str, [*files[:2], bad, files[2]]), "data.invalid=skip"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [*expected[:2], f"{bad}\t", expected[2]]
    assert "bad.png" in captured.err and "1 file cannot be read (data.invalid=skip)" in captured.err
    assert main(["predict", str(run), str(bad), "--json", "data.invalid=skip"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["path"] == str(bad) and "bad.png" in record["error"]
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.write(bad, "bad.png")
    assert main(["predict", str(run), str(tmp_path / "images.zip")]) == 2
    assert "images.zip/bad.png" in capsys.readouterr().err


def test_embeddings_and_similar_images(run, capsys):
    files = [run.parent / f"{number}.png" for number in range(3)]
    predictor = regard.load(run)
    vectors = predictor.embed([*map(str, files)])
    found = [json.loads(line) for line in lines(capsys, "predict", run, *files, "--embed")]
    assert np.allclose(found, vectors.numpy(), atol=1e-6) and np.allclose(vectors.norm(dim=1), 1, atol=1e-5)
    assert predictor.embed(str(files[0])).shape == (16,)
    ranked = [line.split("\t") for line in lines(capsys, "predict", run, files[1], "--similar", run.parent)]
    assert ranked[0] == [str(files[1]), "1.0000", str(files[1])] and len(ranked) >= 3
    best = predictor.similar(str(files[1]), [*map(str, files)])
    assert best[0][0] == 1 and predictor.similar(str(files[1]), vectors)[0][0] == 1
    with pytest.raises(regard.UserError, match=r"the vectors are 2 × 3; expected images × 16"):
        predictor.similar(str(files[1]), vectors[:2, :3])
    with pytest.raises(regard.UserError, match="there is no image to compare with"):
        predictor.similar(str(files[1]), [])
