"""`regard align`: files, stdin and runs; a mistake is one sentence with exit code 2."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import small
from helpers.runs import copy_run

import regard
from regard.cli import main
from regard.config.measured import AlignmentHeads
from regard.config.run_folder import read_run, update_run
from regard.look import AttentionSite, AttentionView, ViewAxis
from regard.modalities.alignments import attention_links, choose_heads
from regard.runs import work

SOURCES = ["the red house", "the old book", "a red book", "an old house", "the house is red", "", "the book is old"]
TARGETS = ["das rote haus", "das alte buch", "ein rotes buch", "ein altes haus", "das haus ist rot", "leer", ""]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a.en").write_text("\n".join(SOURCES) + "\n")
    (tmp_path / "a.de").write_text("\n".join(TARGETS) + "\n")
    (tmp_path / "a.tsv").write_text("".join(f"{x}\t{y}\n" for x, y in zip(SOURCES, TARGETS, strict=True)))
    return [str(tmp_path / "a.en"), str(tmp_path / "a.de")]


@pytest.fixture(scope="module")
def run() -> Path:
    return small.translator()


def align(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str], str]:
    code = main(["align", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_all_inputs_agree(files: list[str], capsys, monkeypatch) -> None:
    code, lines, err = align(capsys, *files)
    assert code == 0 and len(lines) == 7 and lines[5:] == ["", ""] and lines[0].startswith("0-0")
    assert "regard: source to target, iteration 1 of 5: " in err
    table = files[0].replace(".en", ".tsv")
    assert align(capsys, table)[1] == lines
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(table).read_bytes())))
    assert align(capsys)[1] == lines
    found = regard.align(SOURCES, TARGETS)
    assert [" ".join(f"{i}-{j}" for i, j in links) for links in found] == lines


def test_options_change_the_links(files: list[str], capsys) -> None:
    kinds = {kind: align(capsys, *files, "--symmetrize", kind)[1] for kind in ("intersect", "union", "reverse")}
    for one, all_ in zip(kinds["intersect"], kinds["union"], strict=True):
        assert set(one.split()) <= set(all_.split())
    assert "iteration 1 of 1" in align(capsys, *files, "--iterations", 1)[2]


def test_gold_reports_the_error_rate(files: list[str], capsys, tmp_path: Path) -> None:
    lines = align(capsys, *files)[1]
    (tmp_path / "gold").write_text("\n".join(lines) + "\n")
    assert (
        "regard: precision 1.0000, recall 1.0000, aer 0.0000" in align(capsys, *files, "--gold", tmp_path / "gold")[2]
    )


def test_a_run_aligns_by_attention(run: Path, files: list[str], capsys, monkeypatch) -> None:
    monkeypatch.setattr(work, "ALIGN_CHUNK", 2)
    code, lines, err = align(capsys, *files, "--run", run)
    assert code == 0 and err == "" and len(lines) == 7 and lines[5:] == ["", ""]
    predictor = regard.load(run)
    alone = [predictor.align([x], [y])[0] for x, y in zip(SOURCES, TARGETS, strict=True)]
    assert [[tuple(map(int, link.split("-"))) for link in line.split()] for line in lines] == list(map(sorted, alone))
    assert regard.align(SOURCES, TARGETS, run=run) == list(map(sorted, alone))
    for source, target, links in zip(SOURCES, TARGETS, alone, strict=True):
        assert all(i < len(source.split()) and j < len(target.split()) for i, j in links)


def test_attention_of_words_is_that_of_their_tokens() -> None:
    """Two tokens of a source word count together; the layer whose directions agree is used."""
    weights = torch.tensor([[0.3, 0.3, 0.4, 0.0], [0.1, 0.1, 0.8, 0.0], [0.0, 0.0, 0.0, 1.0]])
    uniform = torch.full((2, 3, 4), 0.25)
    maps = enumerate((uniform, weights.expand(2, 3, 4)), 1)
    layers = [(AttentionSite(f"decoder.layers.{i}.cross", "cross", i, 2), each) for i, each in maps]
    texts = {"source": ["▁old", "er", "▁book", "■"], "target": ["▁älteres", "▁buch", "■"]}
    axes = {name: ViewAxis.of_tokens(name, labels, ended=True) for name, labels in texts.items()}
    assert attention_links(AttentionView.of(layers, axes), "grow-diag-final-and") == {(0, 0), (1, 1)}
    with pytest.raises(regard.UserError, match="has no attention"):
        AttentionView.of([], axes)


def views_of(*right: int) -> list[AttentionView]:
    """Views of three words whose attention is uniform, apart from these layers, which align word by word."""
    labels = ["▁a", "▁b", "▁c", "■"]
    axes = {name: ViewAxis.of_tokens(name, labels, ended=True) for name in ("source", "target")}
    weights = [
        torch.full((2, 4, 4), 0.25) if layer not in right else torch.eye(4).repeat(2, 1, 1) for layer in (1, 2, 3)
    ]
    weights[0][1] = torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(4, 4)
    sites = [AttentionSite(f"decoder.layers.{layer}.cross", "cross", layer, 2) for layer in (1, 2, 3)]
    return [AttentionView.of(zip(sites, weights, strict=True), axes)]


def test_the_heads_are_those_in_which_words_agree() -> None:
    assert choose_heads(views_of(3)) == AlignmentHeads(layer=3) and choose_heads(views_of(2, 3)) == AlignmentHeads(
        layer=2
    )
    views = views_of(1)  # its mean over the heads is less sure, but right
    assert choose_heads(views) == AlignmentHeads(layer=1) and choose_heads([]) is None
    views[0].maps[0].weights[1] = torch.tensor([9.0, 0.0, 0.0, 0.0])
    assert choose_heads(views) == AlignmentHeads(layer=1, head=1)


@pytest.fixture(scope="module")
def layers() -> Path:
    return small.translator(model__layers=2)


@pytest.mark.parametrize("heads", [{"layer": 1}, {"layer": 2, "head": 3}, {"layer": 1, "head": 2}])
def test_every_verb_uses_the_heads_of_the_run(layers: Path, heads: dict[str, int], tmp_path: Path, capsys) -> None:
    """Details, known pairs, pictures, numbers and pages show one alignment."""
    chosen = read_run(layers)["measured"]["alignment"]
    assert chosen["layer"] in (1, 2) and regard.load(layers).measured.alignment == AlignmentHeads(**chosen)
    run = copy_run(layers, tmp_path / "run")
    update_run(run, measured={"alignment": heads, "of a later version": 1})
    predictor, source = regard.load(run), "the red house is old"
    record = predictor.predict(source, details=True, max_tokens=12)
    view = predictor.look(source, record["text"])
    layer = [attention for attention in view.maps if attention.kind == "cross"][heads["layer"] - 1].weights
    weights = layer[heads["head"] - 1] if "head" in heads else layer.mean(0)
    assert view.layer_map().layer == heads["layer"] and np.array_equal(view.weights(), weights.numpy())
    assert view.target[:-1] == record["tokens"] and record["alignment"]["positions"] == view.alignment()
    assert view.alignment() == weights[: len(view.target) - 1, : len(view.source) - 1].argmax(1).tolist()
    (links,) = predictor.align([source], [record["text"]])
    assert [tuple(link) for link in record["alignment"]["words"]] == sorted(links) == sorted(attention_links(view))
    view.save(tmp_path / "page.html")
    first = {"layer": heads["layer"], "head": heads.get("head")}
    assert f'"cross": {json.dumps(first)}' in (tmp_path / "page.html").read_text()
    assert predictor.look(source, record["text"], layer=2).layer_map().layer == 2


def test_a_run_without_a_choice_takes_the_layer_that_suits_each_text(layers: Path, tmp_path: Path) -> None:
    run = copy_run(layers, tmp_path / "run")
    update_run(run, measured={})
    predictor = regard.load(run)
    record = predictor.predict("the red house", details=True, max_tokens=9)
    view = predictor.look("the red house", record["text"])
    assert (
        view.alignment_heads == choose_heads([view], single=False)
        and record["alignment"]["positions"] == view.alignment()
    )
    update_run(run, measured={"alignment": {"layer": 0}})
    with pytest.raises(
        regard.UserError, match=r"run.json: measured.alignment.layer is 0; restore it, or remove measured"
    ):
        regard.load(run).predict("the red house")


def test_mistakes(run: Path, files: list[str], capsys, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("one line\n")
    (tmp_path / "tabs").write_text("a\tb\nno tab\n")
    (tmp_path / "wrong").write_text("0-0\n" * 3 + "1:2\n" + "\n" * 3)
    (tmp_path / "few").write_text("0-0\n")
    (tmp_path / "many").write_text("0-0\n" * 8)
    (tmp_path / "latin").write_bytes(b"gr\xfcn\n" * 7)
    classifier = tmp_path / "classifier"
    tiny = {"model.size": "tiny", "train.steps": 1, "train.tensorboard": False, "device": "cpu", "data.examples": 20}
    regard.train("classify", tiny, out=classifier)
    for arguments, sentence in [
        ([*files, files[0]], "align takes SOURCE and TARGET, or one file of source, tab, target, not 3 files"),
        ([files[0], tmp_path / "gone"], "gone cannot be read: No such file or directory"),
        ([files[0], tmp_path / "short"], "expected equally many"),
        ([tmp_path / "tabs"], "tabs:2 has 0 tabs; expected the source, one tab and the target"),
        ([files[0], tmp_path / "latin"], "latin:1 is not UTF-8"),
        ([*files, "--symmetrize", "grow"], "--symmetrize is 'grow'; expected one of grow-diag-final-and, intersect,"),
        ([*files, "--iterations", "0"], "--iterations is 0; expected 1 or more"),
        ([*files, "--gold", tmp_path / "wrong"], "wrong:4 has '1:2'; expected links such as 0-0 1-2"),
        ([*files, "--gold", tmp_path / "few"], "few has 1 lines and there are more sentence pairs"),
        ([*files, "--gold", tmp_path / "many"], "many has more lines than the 7 sentence pairs"),
        ([*files, "--gold", tmp_path / "gone"], "gone cannot be read"),
        ([*files, "--run", tmp_path / "nothing"], "nothing"),
        ([*files, "--run", classifier], "is a run of the task classify and aligns no words; give one of translate"),
    ]:
        code, _, err = align(capsys, *arguments)
        assert code == 2 and sentence in err.replace("\n", " "), (arguments, err)
    with pytest.raises(regard.UserError, match="there are 2 sources and 1 targets"):
        regard.align(["a", "b"], ["c"])
