"""Every verb end to end, from files to results, and the errors of the user."""

import gzip
import io
import json
import lzma
import math
import os
import shutil
import subprocess
import sys
import zipfile
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from helpers import marian, reads, small
from helpers.runs import copy_run, tiny_run

import regard
from regard.cli import main
from regard.cli.runner import is_out_of_memory
from regard.errors import UserError
from regard.files import atomic_write
from regard.look.html import PAGE_FILES
from regard.synthetic import dates
from regard.training import curves
from regard.training.progress import read_records

draw = curves.draw  # below, trainings draw nothing

TINY = (
    "model.size=tiny",
    "model.width=64",
    "model.layers=1",
    "model.inner=128",
    "tokenizer.vocab=300",
    "train.tensorboard=false",
)


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> Path:
    """Files of sentences and of the same in capitals: train, valid, test."""
    folder = tmp_path_factory.mktemp("files")
    for seed, (name, count) in enumerate({"train": 400, "valid": 40, "test": 60}.items()):
        texts = marian.sentences(count, seed)
        (folder / f"{name}.low").write_text("\n".join(texts) + "\n")
        (folder / f"{name}.up").write_text("\n".join(text.upper() for text in texts) + "\n")
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """A run that was trained briefly, and that tests may resume."""
    return copy_run(small.half_trained(), tmp_path_factory.mktemp("runs") / "upper")


def run_cli(capsys, *arguments: str, stdin: bytes = b"", monkeypatch=None) -> tuple[int, str, str]:
    if monkeypatch is not None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def check_error(capsys, *arguments: str, words: str) -> None:
    code, out, err = run_cli(capsys, *arguments)
    assert code == 2 and words in err and "Traceback" not in err and len(err.splitlines()) <= 4, err


# --- success ---------------------------------------------------------------------------------------------------------


def test_the_run_folder_is_complete(run):
    about = json.loads((run / "run.json").read_text())
    assert about["format"] == 3 and about["config"]["model"]["width"] == 64 and about["versions"]["torch"]
    assert about["weights"]["metric"] == "bleu"
    names = {path.name for path in run.iterdir()}
    assert {"model.safetensors", "tokenizer.json", "metrics.jsonl", "checkpoints"} <= names
    assert not any(path.suffix in (".pt", ".bin", ".pkl", ".pth") for path in run.rglob("*"))
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {"train", "valid"} <= {event["event"] for event in events}
    assert [event["bleu"] for event in events if event["event"] == "valid"][-1] > 20


def test_predict_lines_and_files(run, files, capsys, monkeypatch, tmp_path):
    lines = (files / "test.low").read_text().splitlines()[:6]
    text = "\n".join([lines[0], "", *lines[1:]]) + "\n"
    code, out, err = run_cli(capsys, "predict", run, stdin=text.encode(), monkeypatch=monkeypatch)
    found = out.split("\n")
    assert (
        code == 0
        and len(found) == 8
        and found[1] == ""
        and found[-1] == ""
        and all(found[i] for i in (0, 2, 3, 4, 5, 6))
    )
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress(text.encode()))
    code, again, _ = run_cli(capsys, "predict", run, tmp_path / "in.txt.gz", "decode.batch=2")
    assert (code, again) == (0, out)
    code, out, _ = run_cli(
        capsys, "predict", run, tmp_path / "in.txt.gz", "--details", "decode.nbest=2", "decode.beam=4"
    )
    records = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and records[1]["text"] == "" and len(records[0]["nbest"]) == 2
    assert records[0]["score"] >= records[0]["nbest"][1]["score"] and records[0]["text"]
    assert len(records[0]["alignment"]["positions"]) == len(records[0]["tokens"])
    assert "".join(records[0]["tokens"]).replace("▁", " ") == records[0]["text"]


def test_translations_are_batch_invariant(run, files):
    """Batches of 1, 7 and 64, shuffled, greedy and beam give the same texts, and scores to 1e-5."""
    predictor = regard.load(run)
    texts = (files / "test.low").read_text().splitlines()[:30]
    for how in ({"kind": "greedy"}, {"beam": 5}, {"beam": 5, "early_stopping": "first"}):
        whole = predictor.predict(texts, batch=64, **how)
        assert whole == predictor.predict(texts, batch=7, **how) == [predictor.predict(text, **how) for text in texts]
        order = torch.randperm(len(texts)).tolist()
        shuffled = predictor.predict([texts[i] for i in order], batch=16, **how)
        assert shuffled == [whole[i] for i in order]
        long = " ".join(texts[:6])
        assert predictor.predict([*texts[:3], long], **how)[:3] == whole[:3]  # any padding
    one = [predictor.predict([text], details=True)[0]["score"] for text in texts[:9]]
    many = [record["score"] for record in predictor.predict(texts[:9], details=True)]
    assert one == pytest.approx(many, abs=1e-5)


def test_score_is_the_log_probability(run, files, capsys, monkeypatch, tmp_path):
    predictor = regard.load(run)
    texts = (files / "test.low").read_text().splitlines()[:5]
    records = predictor.predict(texts, details=True)
    forced = predictor.score(texts, [record["text"] for record in records], details=True)
    for record, each in zip(records, forced, strict=True):
        assert each["score"] == pytest.approx(sum(each["logprobs"]), abs=1e-4)
        if record["finish"] == "end" and each["tokens"][:-1] == record["tokens"]:
            assert each["score"] == pytest.approx(record["logprob"], abs=1e-3)
    lines = "".join(f"{text}\t{record['text']}\n" for text, record in zip(texts, records, strict=True))
    code, out, _ = run_cli(capsys, "score", run, stdin=lines.encode(), monkeypatch=monkeypatch)
    assert code == 0 and [float(line) for line in out.split()] == pytest.approx(
        [each["score"] for each in forced], abs=1e-4
    )
    code, out, _ = run_cli(capsys, "score", run, files / "test.low", files / "test.up")
    assert code == 0 and len(out.splitlines()) == 60
    assert predictor.score("the cat.", "THE CAT.") > predictor.score("the cat.", "QUICKLY THE TREE NEVER")


def test_eval_prints_metrics_with_signatures(run, files, capsys, tmp_path):
    code, out, _ = run_cli(capsys, "eval", run, "--data", f"{files}/test.low,{files}/test.up", "--json")
    metrics = json.loads(out)
    assert code == 0 and metrics["examples"] == 60 and "version:" in metrics["bleu_signature"]
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    found = regard.load(run).predict((files / "test.low").read_text().splitlines())
    import sacrebleu

    right = [(files / "test.up").read_text().splitlines()]
    assert metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(found, right).score)
    assert metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(found, right).score)
    assert metrics["ter"] == pytest.approx(sacrebleu.corpus_ter(found, right).score)
    several = tmp_path / "several.up"
    several.write_text("".join(f"NO SUCH WORD\t{text}\n" for text in found))
    code, out, _ = run_cli(capsys, "eval", run, "--data", f"{files}/test.low,{several}")
    lines = dict(line.rsplit(" ", 1) for line in out.splitlines())
    assert code == 0 and float(lines["exact"]) == 1.0 and float(lines["bleu"]) > 99 and "nrefs:2" in out


def test_look_draws_a_picture(run, capsys, tmp_path):
    code, out, _ = run_cli(capsys, "look", run, "the cat sees the dog.", "--out", tmp_path / "a.png")
    assert code == 0 and (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    view = regard.load(run).look("the cat.", "THE CAT.")
    assert view.cross().shape == (len(view.target), len(view.source))
    assert (view.cross().sum(1) - 1).abs().max() < 1e-5


def test_list_show_and_dry(capsys):
    code, out, _ = run_cli(capsys, "list")
    assert code == 0 and "translate" in out and "dates" in out and "tiny, small, base, big" in out
    code, out, _ = run_cli(capsys, "train", "translate", "train.lr=1e-3", "--show")
    assert code == 0 and "train.lr = 0.001" in out and "# command line" in out and "# size" in out
    assert "decode.strategy" not in out and "other settings have their defaults" in out
    code, out, _ = run_cli(capsys, "train", "translate", "--show", "all", "train.lr=1e-3")
    assert code == 0 and "decode.strategy.size = 5" in out and "train.lr = 0.001" in out and "other settings" not in out
    code, out, _ = run_cli(capsys, "train", "translate", "model.size=base", "tokenizer.vocab=37000", "--dry")
    assert code == 0 and "parameters 63,08" in out and "optimizer" in out  # the paper's 65M counts other norms
    assert "encoder.layers.0.attention.query.weight" in out and "(512, 512)" in out


def test_parameter_counts_of_the_paper():
    with torch.device("meta"):
        base = regard.build("translate", {"model.size": "base", "model.vocab": 37000})
        big = regard.build("translate", {"model.size": "big", "model.vocab": 37000})
    counts = [sum(each.numel() for each in model.parameters()) / 1e6 for model in (base, big)]
    assert counts == pytest.approx([63, 214], abs=1)


@pytest.mark.parametrize("kind", ["tsv", "tsv.gz", "jsonl.xz", "text"])
def test_every_data_format_trains_the_same(files, tmp_path, kind):
    sides = [(files / f"train.{side}").read_text().splitlines()[:50] for side in ("low", "up")]
    if kind == "text":
        names = [tmp_path / "a", tmp_path / "b"]
        for name, texts in zip(names, sides, strict=True):
            name.write_text("\r\n".join(texts))
        data = ",".join(map(str, names))
    else:
        rows = zip(*sides, strict=True)
        form = (
            (lambda a, b: f"{a}\t{b}\n")
            if "tsv" in kind
            else (lambda a, b: json.dumps({"source": a, "target": b}) + "\n")
        )
        pack = {"gz": gzip.compress, "xz": lzma.compress}.get(kind.split(".")[-1], bytes)
        data = tmp_path / f"pairs.{kind}"
        data.write_bytes(pack("".join(form(a, b) for a, b in rows).encode()))
    overrides = dict(each.split("=") for each in TINY) | {
        "data.train": str(data),
        "train.steps": 3,
        "train.tokens": 300,
    }
    predictor = regard.train("translate", overrides, out=tmp_path / "run")
    assert isinstance(predictor.predict("the cat."), str)
    names = {"a": "\n".join(sides[0]), "b": "\n".join(sides[1])}
    plain = tiny_run("translate", names, **overrides | {"data.train": "{files}/a,{files}/b"})
    first, wanted = (
        next(each["loss"] for each in read_records(run / "metrics.jsonl") if each["event"] == "train")
        for run in (tmp_path / "run", plain)
    )
    assert first == pytest.approx(wanted, abs=1e-6)


def test_the_python_interface(tmp_path, monkeypatch):
    monkeypatch.setattr(dates, "HELD_OUT", 500)
    monkeypatch.setattr(dates, "FIRST_DAY", dates.LAST_DAY - timedelta(20000))
    events = []
    predictor = regard.train(
        "dates", out=tmp_path / "x", on_event=events.append, model={"size": "tiny", "width": 32, "heads": 2}, data={"examples": 300},
        train={"steps": 4, "tokens": 500, "tensorboard": False},
    )  # fmt: skip
    assert {"train", "valid"} <= {event["event"] for event in events}
    one = predictor.predict("January 1, 2024")
    assert isinstance(one, str) and predictor.predict(["January 1, 2024", ""]) == [one, ""]
    assert predictor.evaluate()["examples"] >= 500
    packed = regard.train(
        "dates", {"data.packed": True, "tokenizer.joint": False, "train.accumulate": 2}, out=tmp_path / "y", data={"examples": 300},
        model={"size": "tiny", "width": 32, "heads": 2}, train={"steps": 3, "tokens": 500, "tensorboard": False, "precision": "bf16"},
    )  # fmt: skip
    assert (tmp_path / "y" / "source.tokenizer.json").exists() and isinstance(packed.predict("Jan 1, 2024"), str)
    assert regard.load(tmp_path / "y", decode={"kind": "beam", "beam": 2}).run.decode.strategy.size == 2


def test_the_wheel_works_outside_the_checkout(tmp_path):
    root, copy = Path(__file__).parents[2], tmp_path / "copy"
    shutil.copytree(root / "regard", copy / "regard", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, copy)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, copy],
        check=True, capture_output=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )  # fmt: skip
    (wheel,) = tmp_path.glob("regard-*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    assert "regard/recipes/translate.toml" in inside and "regard/py.typed" in inside
    assert {f"regard/look/page/{name}" for name in PAGE_FILES} <= {*inside}
    assert not any(name.startswith("tests") for name in inside)
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    there = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = "import regard, sys; print(regard.__file__); from regard.cli import main; sys.exit(main(['train', 'dates', '--show']))"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=there, capture_output=True, text=True)
    assert done.returncode == 0 and str(tmp_path) in done.stdout and "train.steps" in done.stdout, done.stderr


# --- errors ----------------------------------------------------------------------------------------------------------


def test_out_and_resume_lose_nothing(run, files, capsys, tmp_path):
    data = f"data.train={files}/train.low,{files}/train.up"
    check_error(capsys, "train", "translate", data, "--out", run, words="already holds a run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    check_error(capsys, "train", "translate", "--out", tmp_path / "other", words="exists and is not a run")
    assert (tmp_path / "other" / "thesis.txt").exists()
    check_error(capsys, "train", "translate", "--resume", "--out", tmp_path / "none", words="holds no run to resume")
    check_error(
        capsys,
        "train",
        "translate",
        "model.layers=2",
        "--resume",
        "--out",
        run,
        words="model.layers was 1 and is now 2",
    )
    check_error(capsys, "train", "translate", "train.seed=9", "--resume", "--out", run, words="train.seed")
    check_error(capsys, "train", "dates", "--resume", "--out", run, words="started with recipe 'translate'")
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    about = json.loads((copy / "run.json").read_text())
    about["data"]["train"] = "0" * 32
    (copy / "run.json").write_text(json.dumps(about))
    check_error(capsys, "train", "translate", "--resume", "--out", copy, words="data.train is not what")
    before = (run / "model.safetensors").read_bytes()
    code, _, err = run_cli(capsys, "train", "translate", "--resume", "--out", run)  # it is already finished
    assert code == 0 and (run / "model.safetensors").read_bytes() == before, err


def test_resume_with_more_steps(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "draw", draw)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    code, _, err = run_cli(capsys, "train", "translate", "train.steps=170", "--resume", "--out", copy)
    assert code == 0, err
    assert (copy / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (copy / "checkpoints" / "step-170").is_dir() and json.loads((copy / "run.json").read_text())["config"][
        "train"
    ]["steps"] == 170


def test_resume_without_a_recipe(run, files, capsys, tmp_path, monkeypatch):
    """Everything comes from run.json; further settings are checked as they are with the recipe."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    monkeypatch.chdir(tmp_path)
    code, _, err = run_cli(
        capsys, "train", "--resume", "--out", "copy", "train.steps=165", f"data.test={files}/test.low"
    )
    assert code == 0 and "finished after 165 steps" in err and not (copy / ".lock").exists()
    code, _, err = run_cli(capsys, "train", "train.steps=170", "train.lr=1e-4", "--resume", "--out", "copy")
    assert code == 0 and "finished after 170 steps" in err
    assert json.loads((copy / "run.json").read_text())["recipe"] == "translate"
    assert regard.train(out=copy, resume=True, train={"epochs": 1}).run.train.steps == 0  # another limit replaces it
    for arguments, words in (
        (["model.layers=2", "--resume", "--out", "copy"], "model.layers was 1 and is now 2; a resumed run cannot"),
        (["train.sed=9", "--resume", "--out", "copy"], "train.sed is not a key; did you mean train.seed?"),
        (["--resume", "--out", "none"], "none holds no run to resume"),
        (["--resume"], "--resume without RECIPE needs the folder of the run; give --out RUN"),
        (["dates", "--resume", "--out", "copy"], "or without any: `regard train --resume --out copy`"),
        (["--resume", "--out", "copy", "--show"], "missing argument 'RECIPE'"),
    ):
        check_error(capsys, "train", *arguments, words=words)
    with pytest.raises(UserError, match="no recipe is given; give a name from"):
        regard.train(out=tmp_path / "new")


def test_a_folder_that_another_process_creates_stays(capsys, tmp_path, monkeypatch):
    """Two trainings begin with one --out: the second one is refused when it comes to create the folder."""
    from regard.runs import launch

    def create(out, *given):
        shutil.copytree(tmp_path / "other", out)
        return original(out, *given)

    original = launch.create_run
    (tmp_path / "other").mkdir()
    (tmp_path / "other/run.json").write_text("{}")
    monkeypatch.setattr(launch, "create_run", create)
    reads.write_texts(tmp_path / "a.tsv", reads.labeled_examples(9, 1))
    arguments = [
        "train",
        "classify",
        f"data.train={tmp_path}/a.tsv",
        *TINY[1:],
        "model.heads=2",
        "--out",
        tmp_path / "x",
    ]
    check_error(capsys, *arguments, words="already holds a run; add --resume to continue it")
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["run.json"]
    with pytest.raises(UserError, match="not empty"), atomic_write(tmp_path / "x", replace=False) as draft:
        draft.mkdir()


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda data: data.update({"train": "missing.low,missing.up"}), "missing.low"),
        (lambda data: data.update({"train": "train.low,short.up"}), "399"),
        (lambda data: data.update({"train": "empty.low,empty.up"}), "no example"),
        (lambda data: data.update({"train": "binary.low,train.up"}), "binary.low:1"),
        (lambda data: data.update({"train": "train.low"}), "two sides"),
        (lambda data: data.update({"valid": "train.low,nothing.up"}), "nothing.up"),
    ],
    ids=["missing", "shorter", "empty", "binary", "one side", "valid"],
)
def test_bad_data_leaves_nothing_behind(files, capsys, tmp_path, monkeypatch, change, words):
    for path in files.iterdir():
        shutil.copy(path, tmp_path)
    (tmp_path / "short.up").write_text("\n".join((files / "train.up").read_text().splitlines()[:-1]))
    (tmp_path / "empty.low").write_text("")
    (tmp_path / "empty.up").write_text("")
    (tmp_path / "binary.low").write_bytes(b"\x00\xff" * 400)
    monkeypatch.chdir(tmp_path)
    data = {"train": "train.low,train.up", "valid": "valid.low,valid.up"}
    change(data)
    before = set(tmp_path.iterdir())
    check_error(
        capsys,
        "train",
        "translate",
        *[f"data.{key}={value}" for key, value in data.items()],
        *TINY,
        "--out",
        "new/run",
        words=words,
    )
    assert set(tmp_path.iterdir()) == before


def test_wrong_settings(capsys, tmp_path):
    for setting, words in (
        ("train.step=5", "did you mean train.steps"),
        ("train.lr=fast", "train.lr"),
        ("model.width=100 model.heads=8", "use 96 or 104"),
        ("train.steps=-5", "train.steps"),
        ("model.size=huge", "model.size"),
        ("model.family=transfomer", "transformer"),
        ("device=cuda:9", "cuda:9"),
        ("tokenizer.vocab=100", "tokenizer.vocab"),
        ("decode.strategy=beam decode.beam=0", "decode.strategy.size is 0; expected at least 1"),
        ("model.attention.kind=windwo", "model.attention"),
        ("data.locales=en,xx", "xx"),
        ("model.attention.dropout=5", "model.attention.dropout is 5.0; expected at least 0"),
        ("model.positions=learned model.positions.tokens=-1", "model.positions.tokens is -1"),
        ("model.feed=gated model.feed.dropout=-0.1", "model.feed.dropout is -0.1"),
        ("model.positions=buckets model.positions.buckets=1", "model.positions.buckets is 1"),
    ):
        check_error(capsys, "train", "dates", *setting.split(), "--out", tmp_path / "x", words=words)
        assert not (tmp_path / "x").exists()
    check_error(capsys, "train", "tranlate", "--out", tmp_path / "x", words="did you mean translate")
    check_error(capsys, "trian", words="did you mean train")


def test_damaged_run_folders(run, capsys, tmp_path):
    check_error(capsys, "predict", tmp_path / "none", words="does not exist")
    check_error(capsys, "predict", tmp_path, words="is not a run")
    copy = tmp_path / "copy"

    def fresh() -> Path:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        return copy

    text = (fresh() / "run.json").read_text()
    (copy / "run.json").write_text(text[: len(text) // 2])
    check_error(capsys, "predict", copy, words="is not valid JSON")
    (copy / "run.json").write_text("{}")
    check_error(capsys, "predict", copy, words="run.json")
    (copy / "run.json").write_text(text.replace('"format": 3', '"format": 99'))
    check_error(capsys, "predict", copy, words="format 99")
    data = (fresh() / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(data[:-100])
    check_error(capsys, "predict", copy, words="truncated or damaged")
    (copy / "model.safetensors").write_bytes(b"\xff" * 50 + data[50:])
    check_error(capsys, "predict", copy, words="truncated or damaged")
    (copy / "model.safetensors").unlink()
    check_error(capsys, "predict", copy, words="does not exist")
    about = json.loads((fresh() / "run.json").read_text())
    about["config"]["model"]["inner"] = 96
    (copy / "run.json").write_text(json.dumps(about))
    check_error(capsys, "predict", copy, words="does not fit this model")
    (fresh() / "tokenizer.json").write_text("{")
    check_error(capsys, "predict", copy, words="tokenizer.json")


def test_processors_that_are_missing_or_unknown(run, capsys, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    about = json.loads((copy / "run.json").read_text())
    assert about["processors"] == dict.fromkeys(("source", "target"), {"kind": "text", "file": "tokenizer.json"})

    def list_processors(**entries: object) -> None:
        (copy / "run.json").write_text(json.dumps({**about, "processors": {**about["processors"], **entries}}))

    list_processors(target={"kind": "smell", "file": "smell.json"})
    check_error(capsys, "predict", copy, words="smell.json holds a processor of kind 'smell'; this regard has text, ")
    list_processors(image={"kind": "image", "file": "image.json"})
    check_error(
        capsys, "predict", copy, words="image.json cannot be read (No such file or directory); it belongs to the run"
    )
    (copy / "image.json").write_text('{"kind": "image", "version": 2}')
    check_error(
        capsys, "predict", copy, words="has version 2 of the processor 'image' and this version of regard reads up to 1"
    )
    (copy / "run.json").write_text(json.dumps({**about, "processors": {}}))
    check_error(capsys, "predict", copy, words="run.json lists no text processor for the field 'source'")
    (copy / "run.json").write_text(json.dumps(about))
    (copy / "tokenizer.json").unlink()
    for verb in (["predict", copy], ["eval", copy], ["convert", copy, "--average", "2", "--out", tmp_path / "mean"]):
        check_error(
            capsys, *verb, words="tokenizer.json cannot be read (No such file or directory); it belongs to the run"
        )


def test_a_broken_checkpoint_falls_back_to_an_older_one(run, capsys, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    newest = copy / "checkpoints" / "step-160" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-50])
    code, _, err = run_cli(capsys, "train", "translate", "--resume", "--out", copy)
    assert code == 0 and "step-160" in err, err
    assert newest.read_bytes() == (run / "checkpoints" / "step-160" / "model.safetensors").read_bytes()


def test_predict_with_odd_input(run, capsys, monkeypatch):
    code, out, _ = run_cli(capsys, "predict", run, stdin=b"", monkeypatch=monkeypatch)
    assert (code, out) == (0, "")
    code, out, _ = run_cli(
        capsys, "predict", run, stdin="日本 👩‍👩‍👧 </s> <pad>\u202f!\r\n\n".encode(), monkeypatch=monkeypatch
    )
    assert code == 0 and len(out.split("\n")) == 3
    code, _, err = run_cli(capsys, "predict", run, stdin=b"\xff\xfe\n", monkeypatch=monkeypatch)
    assert code == 2 and "stdin:1 is not UTF-8" in err
    check_error(capsys, "predict", run, "decode.bean=3", words="did you mean decode.strategy.size")
    check_error(capsys, "predict", run, "train.steps=3", words="train.steps has no effect")
    check_error(capsys, "predict", run, "no-such-file.txt", words="no-such-file.txt cannot be read")
    check_error(capsys, "eval", run, words="no test data")
    check_error(capsys, "eval", run, "--data", "", words="--data names no file; give files")


def test_out_of_memory(run, capsys, monkeypatch):
    for more in ("decode.max_tokens=100000000000000000", "decode.beam=1000000000000"):
        code, _, err = run_cli(
            capsys, "predict", run, "decode.kind=beam", more, stdin=b"a cat\n", monkeypatch=monkeypatch
        )
        assert code == 2 and err.startswith("regard: not enough memory; lower decode.batch")
    assert is_out_of_memory(MemoryError()) and is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))


def test_paths_that_cannot_be_written(run, capsys, tmp_path):
    """The message names the given path, not the temporary one."""
    missing = tmp_path / "missing" / "a.png"
    check_error(
        capsys, "look", run, "a cat", "--out", missing, words=f"{missing} cannot be written: its folder does not exist"
    )


def test_a_closed_stdin_and_a_closed_stdout(run):
    """With real pipes: `predict` without stdin, and into `head`, which closes the pipe."""
    here = Path(__file__).parents[2]
    done = subprocess.run(
        f"'{sys.executable}' -m regard predict '{run}' <&-; echo code $?; (echo the cat.; echo the dog.) | "
        f"'{sys.executable}' -m regard predict '{run}' | head -1; echo code ${{PIPESTATUS[1]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, cwd=here,
    )  # fmt: skip
    assert done.stdout.count("code 0") == 2 and "Traceback" not in done.stderr, (done.stdout, done.stderr)


# --- older runs ------------------------------------------------------------------------------------------------------


def test_the_first_run_of_format_1_loads():
    predictor = regard.load(Path(__file__).parents[1] / "old" / "format-1")
    assert isinstance(predictor.predict("January 1, 2024", max_tokens=5), str)
    assert predictor.score("January 1, 2024", "1. Januar 2024") == pytest.approx(-45.2957, abs=1e-3)


def test_several_outputs_are_printed_on_one_line(run, capsys, monkeypatch):
    code, out, _ = run_cli(capsys, "predict", run, "decode.nbest=3", stdin=b"the cat.\n\n", monkeypatch=monkeypatch)
    assert code == 0 and len(out.splitlines()[0].split("\t")) == 3 and out.splitlines()[1] == ""
