"""docs/heads.md: all its commands run, on its sentences and small runs of the names that it uses."""

import re
import shlex
from pathlib import Path

import regard
from benchmarks import heads
from regard.cli import main
from regard.data.sources.dependencies import read_trees
from regard.training import curves

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = re.findall(r"^    (regard .*)$", (DOCS / "heads.md").read_text(encoding="utf-8"), re.MULTILINE)
SMALL = {
    "model.size": "tiny", "model.width": 32, "model.heads": 2, "model.layers": 2, "model.inner": 32, "train.steps": 1,
    "tokenizer.vocab": 280, "train.tokens": 400, "train.tensorboard": False, "device": "cpu",
}  # fmt: skip


def write_runs() -> None:
    """The files sentences, train, dev and test, and the runs bert, tagger and classifier."""
    content = (DOCS / "sentences.conllu").read_text(encoding="utf-8")
    for name in ("sentences", "train", "dev", "test"):
        Path(f"{name}.conllu").write_text(content, encoding="utf-8")
    texts = [" ".join(tree.words) for tree in read_trees("sentences.conllu")]
    wordpiece = {"tokenizer.kind": "wordpiece", "tokenizer.normalize": "lower"}
    regard.train("masked", SMALL | wordpiece, data={"train": [{"text": text} for text in texts]}, out="runs/bert")
    train = {name: value for name, value in SMALL.items() if name.startswith("train.")} | {"device": "cpu"}
    regard.train("tag", train | {"start": "runs/bert", "data.train": "train.conllu"}, out="runs/tagger")
    labeled = [(text, "ab"[len(text) % 2]) for text in texts]
    Path("test.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in labeled))
    regard.train("classify", SMALL, data={"train": labeled, "test": "test.tsv"}, out="runs/classifier")


def test_the_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(curves, "draw", lambda folder: None)
    write_runs()
    assert len(COMMANDS) == 14
    for command in COMMANDS:
        few = ["train.steps=1", "train.tokens=400", "train.tensorboard=false"] if "train tag" in command else []
        arguments = [*shlex.split(command)[1:], *few]
        arguments = ["4" if each == "20" else each for each in arguments]
        assert main(arguments) == 0, (command, capsys.readouterr().err)
    for name in ("heads.png", "heads.json", "effect.json", "deletion.png", "norms.png", "bert-folder/config.json"):
        assert Path(name).stat().st_size > 100
    assert regard.load("runs/c").run.pruned_heads == regard.load("runs/b").run.pruned_heads != ()
    capsys.readouterr()
    heads.main(["test.conllu", "runs/tagger", "runs/b"], count=1)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [["run", "heads"], ["runs/tagger", "4"], ["runs/b", "3"]]
