"""Language models end to end: every verb from files to results, and the errors of the user."""

import gzip
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import marian, small
from helpers.runs import tiny_run

import regard
from regard.cli import main
from regard.training import curves

draw = curves.draw  # below, trainings draw nothing

TINY = (
    "model.size=tiny", "model.width=48", "model.heads=2", "model.layers=1", "model.inner=96", "model.positions.tokens=64", "data.max_tokens=64",
    "tokenizer.vocab=280", "train.batch=8", "train.lr=5e-3", "train.warmup=10", "train.tensorboard=false", "device=cpu", "decode.add_start=true",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """Keep encoded texts in a folder of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for seed, (name, count) in enumerate({"train": 300, "valid": 30, "test": 30}.items()):
        (folder / f"{name}.txt").write_text("\n".join(marian.sentences(count, seed)) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(files, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "lm"
    settings = (f"data.train={files}/train.txt", f"data.valid={files}/valid.txt", f"data.test={files}/test.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "draw", draw)
        code = main(["train", "language", *settings, *TINY, "train.steps=60", "train.eval_every=30", "train.metric=bits_per_byte",
                     "--out", str(out)])  # fmt: skip
    assert code == 0
    return out


def run_cli(capsys, *arguments: Any, stdin: bytes | None = None, monkeypatch: Any = None) -> tuple[int, str, str]:
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def check_error(capsys, *arguments: Any, words: str, **more: Any) -> None:
    code, _, err = run_cli(capsys, *arguments, **more)
    assert code == 2 and words in err and "Traceback" not in err and len(err.splitlines()) <= 3, err


# --- success ---------------------------------------------------------------------------------------------------------


def test_the_run_folder_is_complete(run):
    about = json.loads((run / "run.json").read_text())
    assert about["config"]["task"] == "language" and about["weights"]["metric"] == "bits_per_byte"
    assert {"model.safetensors", "tokenizer.json", "metrics.jsonl", "curves.png"} <= {
        path.name for path in run.iterdir()
    }
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    valid = [event for event in events if event["event"] == "valid"]
    assert valid[-1]["bits_per_byte"] < valid[0]["bits_per_byte"] < 4
    assert valid[-1]["perplexity"] == pytest.approx(math.exp(valid[-1]["loss"]))


def test_a_continuation_is_streamed(run, capsys, monkeypatch):
    pieces: list[str] = []
    how = ("decode.max_tokens=20", "decode.temperature=0.7")
    code, out, err = run_cli(capsys, "predict", run, "--prompt", "the cat", *how)
    predictor = regard.load(run, dict(each.split("=") for each in how))
    assert (code, out, err) == (0, predictor.predict("the cat") + "\n", "")
    monkeypatch.setattr(
        "builtins.print", lambda *words, end="\n", flush=False, **_: pieces.append(f"{words[0] if words else ''}{end}")
    )
    main(["predict", str(run), "--prompt", "the cat", *how])
    assert "".join(pieces) == out and len(pieces) > 3


def test_several_samples_of_a_prompt(run, capsys):
    code, out, _ = run_cli(capsys, "predict", run, "--prompt", "the", "decode.nbest=3", "decode.max_tokens=8")
    assert code == 0 and out == "\n---\n".join(regard.load(run).predict("the", nbest=3, max_tokens=8)) + "\n"
    code, out, _ = run_cli(
        capsys, "predict", run, "--prompt", "the", "decode.nbest=2", "decode.max_tokens=8", "--details"
    )
    record = json.loads(out)
    assert len(record["nbest"]) == 2 and record["finish"] in ("end", "length") and record["logprobs"]


def test_prompts_as_lines_and_records(run, capsys, monkeypatch, tmp_path):
    how = ("decode.kind=greedy", "decode.max_tokens=12")
    texts = regard.load(run).predict(["the cat", "", "a\nb"], kind="greedy", max_tokens=12)
    code, out, _ = run_cli(capsys, "predict", run, *how, stdin=b"the cat\n\n", monkeypatch=monkeypatch)
    assert code == 0 and out == "".join(text.replace("\n", " ") + "\n" for text in texts[:2])
    records = [{"prompt": "the cat", "id": 7}, {"prompt": ""}, {"id": "x", "prompt": "a\nb"}]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    code, out, _ = run_cli(capsys, "predict", run, *how, stdin=lines, monkeypatch=monkeypatch)
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and found == [record | {"text": text} for record, text in zip(records, texts, strict=True)]
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(lines))
    code, out, _ = run_cli(capsys, "predict", run, tmp_path / "in.jsonl.gz", *how, "--details")
    assert [json.loads(line)["text"] for line in out.splitlines()] == texts
    assert json.loads(out.splitlines()[2])["id"] == "x" and "logprobs" in out
    check_error(
        capsys,
        "predict",
        run,
        stdin=lines + b"plain\n",
        monkeypatch=monkeypatch,
        words="line 4 is not a JSON object with",
    )
    plain = b'{"text": 1}\n{"prompt": "x"}\n'  # the first line decides
    assert len(run_cli(capsys, "predict", run, *how, stdin=plain, monkeypatch=monkeypatch)[1].splitlines()) == 2


def test_score_gives_the_log_probability_of_each_line(run, files, capsys, monkeypatch):
    code, out, _ = run_cli(capsys, "score", run, files / "test.txt")
    lines = (files / "test.txt").read_text().splitlines()
    values = [float(line) for line in out.splitlines()]
    assert code == 0 and values == pytest.approx(regard.load(run).score(lines), abs=1e-5)
    shuffled = " ".join(reversed(lines[0].rstrip(".").split())) + "xq"
    code, out, _ = run_cli(
        capsys, "score", run, "--details", stdin=f"{lines[0]}\n{shuffled}\n".encode(), monkeypatch=monkeypatch
    )
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["score"] > second["score"] and first["tokens"][-1] == "■"
    assert sum(first["logprobs"]) == pytest.approx(first["score"])


def test_eval_names_its_window_policy(run, files, capsys):
    code, out, _ = run_cli(capsys, "eval", run, "--json")
    metrics = json.loads(out)
    assert (
        code == 0
        and metrics["policy"] == "non-overlapping 64"
        and metrics["bytes"] == (files / "test.txt").stat().st_size
    )
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert metrics["bits_per_byte"] == pytest.approx(
        metrics["loss"] * metrics["tokens"] / math.log(2) / metrics["bytes"]
    )
    code, out, _ = run_cli(capsys, "eval", run, "--data", files / "test.txt", "data.stride=16", "--json")
    closer = json.loads(out)
    assert (
        closer["policy"] == "stride 16 of 64"
        and closer["loss"] != metrics["loss"]
        and closer["tokens"] == metrics["tokens"]
    )
    code, out, _ = run_cli(capsys, "eval", run, f"{run}", "--data", files / "valid.txt")
    assert code == 0 and out.count("policy non-overlapping 64") == 2 and "bootstrap" not in out
    code, out, _ = run_cli(capsys, "eval", run, f"{run}", "--json")
    assert [system["loss"] for system in json.loads(out)["systems"]] == [metrics["loss"]] * 2


def test_look_draws_a_picture(run, capsys, tmp_path):
    code, out, _ = run_cli(capsys, "look", run, "the cat sees the dog", "--out", tmp_path / "a.png")
    assert code == 0 and out == f"picture {tmp_path / 'a.png'}\n"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_an_ensemble_and_a_smaller_precision(run, capsys):
    code, out, _ = run_cli(
        capsys, "predict", f"{run},{run}", "--prompt", "the", "decode.kind=greedy", "decode.max_tokens=5"
    )
    assert (
        code == 0
        and out == run_cli(capsys, "predict", run, "--prompt", "the", "decode.kind=greedy", "decode.max_tokens=5")[1]
    )
    assert run_cli(capsys, "predict", run, "--prompt", "the", "precision=int8", "decode.max_tokens=5")[0] == 0


@pytest.mark.parametrize("family", ["lm", "xl"])
def test_other_families_train_and_generate(family, files, capsys, tmp_path):
    settings = [each for each in TINY if not each.startswith("model.positions")]
    code, *_ = run_cli(
        capsys, "train", "language", f"model.family={family}", f"data.train={files}", "data.holdout=0.1", *settings, "train.steps=4",
        "train.precision=bf16", "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0
    code, out, _ = run_cli(capsys, "eval", tmp_path / "run", "--data", files / "valid.txt")
    assert code == 0 and ("policy memory 64, segments of 64" if family == "xl" else "policy non-overlapping 64") in out
    code, out, err = run_cli(capsys, "predict", tmp_path / "run", "--prompt", "the", "decode.max_tokens=80")
    assert code == 0 and out.endswith("\n") and not err
    long = "the cat " * 90  # neither has a maximum length; xl warns that its memory is limited
    code, out, err = run_cli(capsys, "predict", tmp_path / "run", "--prompt", long, "decode.max_tokens=3")
    warning = "tokens; the model remembers the last 64 (model.memory)\n"
    assert code == 0 and out.endswith("\n") and (err.endswith(warning) if family == "xl" else not err)


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("decode.temperature=nan", "decode.strategy.temperature is nan; expected a number"),
        ("decode.temperature=0", "decode.strategy.temperature is 0; expected more than 0"),
        ("decode.temperature=inf", "decode.strategy.temperature is inf; expected a number"),
        ("decode.top_p=0", "decode.strategy.top_p is 0; expected more than 0"),
        ("decode.top_p=nan", "decode.strategy.top_p is nan; expected"),
        ("decode.top_p=1.5", "decode.strategy.top_p is 1.5; expected at most 1"),
        ("decode.min_p=1", "decode.strategy.min_p is 1; expected less than 1"),
        ("decode.top_k=-1", "decode.strategy.top_k is -1; expected at least 0"),
        ("decode.repetition_penalty=0", "decode.repetition_penalty is 0; expected more than 0"),
        ("decode.repetition_penalty=nan", "decode.repetition_penalty is nan; expected a number"),
        ("decode.max_tokens=0", "decode.max_tokens is 0; expected at least 1"),
        ('decode.stop=["a", ""]', "decode.stop has an empty string"),
        ("decode.include=x", "decode.include is not a key"),
        ("decode.kind=gready", "did you mean greedy?"),
        ("model.width=3", "model.width has no effect on a finished run"),
    ],
)
def test_invalid_settings(setting, words, run, capsys):
    check_error(capsys, "predict", run, "--prompt", "x", setting, words=words)


def test_invalid_prompts(run, capsys, monkeypatch, tmp_path):
    long = "the cat " * 90
    check_error(capsys, "predict", run, "--prompt", long, words="tokens and the model's context is 64; shorten it")
    check_error(capsys, "predict", run, stdin=f"x\n{long}\n".encode(), monkeypatch=monkeypatch, words="the prompt has")
    (tmp_path / "a.txt").write_text("x\n")
    check_error(capsys, "predict", run, tmp_path / "a.txt", "--prompt", "x", words="give one of the two")
    check_error(capsys, "predict", run, stdin=b"\xff\n", monkeypatch=monkeypatch, words="is not UTF-8")
    code, _, err = run_cli(capsys, "predict", run, "--prompt", "the", "decode.max_tokens=200", "decode.kind=greedy")
    assert code == 0 and err == "regard: the text ends at the model's context of 64 tokens\n"
    with monkeypatch.context() as patch:  # on a terminal the warning is on its own line
        patch.setattr(sys, "stderr", sys.stdout)
        both = run_cli(capsys, "predict", run, "--prompt", "the", "decode.max_tokens=200", "decode.kind=greedy")[1]
        assert both.endswith(f"\n{err}")
    check_error(capsys, "predict", run, "--prompt", "x", "--top", "3", words="--top is for runs that predict labels")
    code, out, _ = run_cli(capsys, "predict", run, "--prompt", "", "decode.max_tokens=5")
    assert code == 0 and out.strip()


def test_a_run_that_is_not_a_language_model(run, capsys, monkeypatch):
    other = small.translator()
    check_error(capsys, "predict", other, "--prompt", "May 1", words="--prompt is for language models")
    both = f"{other} has task translate and {run} has task language; the models of an ensemble need the same"
    check_error(capsys, "predict", f"{other},{run}", stdin=b"", monkeypatch=monkeypatch, words=both)
    words = f"{run} has task language and {other} has task translate"
    check_error(capsys, "predict", f"{run},{other}", stdin=b"", monkeypatch=monkeypatch, words=words)


def test_invalid_training_data(files, capsys, tmp_path, monkeypatch):
    def train(*settings: Any, words: str) -> None:
        check_error(
            capsys, "train", "language", *TINY, "train.steps=2", *settings, "--out", tmp_path / "out", words=words
        )
        assert not (tmp_path / "out").exists()

    (tmp_path / "empty.txt").write_text("")
    train(f"data.train={tmp_path}/empty.txt", words="empty.txt holds no text")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 9)
    train(f"data.train={tmp_path}/binary.txt", words="binary.txt:1")
    train(f"data.train={tmp_path}/none.txt", words="there is no file")
    train(
        f"data.train={files}/train.txt", "data.max_tokens=65", words="a window (data.max_tokens) has 65 tokens and the"
    )
    words = "model.family=transformer cannot be used for the task language; expected one of lm, gpt, xl"
    check_error(capsys, "train", "language", "model.family=transformer", "--out", tmp_path / "out", words=words)
    words = "model.family=gpt cannot be used for the task translate; expected one of transformer, t5"
    check_error(capsys, "train", "translate", "model.family=gpt", "--out", tmp_path / "out", words=words)
    train(f"data.train={files}/train.txt", "train.metric=bleu", words="train.metric is")
    train(
        f"data.train={files}/train.txt",
        "train.metric=word_perplexity",
        f"data.valid={files}/valid.txt",
        words="train.metric=word_perplexity needs data.document=stream",
    )


def test_characters_missing_in_the_vocabulary(files, capsys, tmp_path, monkeypatch):
    (tmp_path / "valid.txt").write_text("the cät.\n")
    code, _, err = run_cli(
        capsys, "train", "language", f"data.train={files}/train.txt", f"data.valid={tmp_path}/valid.txt", *TINY, "tokenizer.kind=char",
        "train.steps=2", "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0 and "1 of 10 tokens are unknown to the tokenizer, such as 'ä'" in err
    check_error(
        capsys, "predict", tmp_path / "run", "--prompt", "ein Bär, Ü", words="vocabulary of characters lacks 'B', 'ä'"
    )
    check_error(capsys, "score", tmp_path / "run", stdin="ü\n".encode(), monkeypatch=monkeypatch, words="lacks 'ü'")
    code, out, err = run_cli(capsys, "eval", tmp_path / "run", "--data", tmp_path / "valid.txt")
    assert code == 0 and "perplexity" in out and "1 of 10 tokens are unknown to the tokenizer, such as 'ä'" in err


def test_an_unwritable_cache_and_a_changed_text(files, capsys, tmp_path):
    (tmp_path / "taken").write_text("")
    text = tmp_path / "text.txt"
    text.write_bytes((files / "train.txt").read_bytes())
    settings = ("train", "language", f"data.train={text}", *TINY, "train.steps=4")
    code, _, err = run_cli(capsys, *settings, f"data.cache={tmp_path}/taken", "--out", tmp_path / "a")
    assert code == 0 and f"the cache {tmp_path}/taken cannot be written" in err
    assert run_cli(capsys, *settings, "--out", tmp_path / "b")[0] == 0
    with text.open("a") as file:
        file.write("the bird never sees the old house.\n")
    check_error(capsys, *settings, "train.steps=5", "--resume", "--out", tmp_path / "b", words="data.train is not what")
    code, _, err = run_cli(capsys, *settings, "--out", tmp_path / "c")
    assert code == 0
    assert run_cli(capsys, *settings, f"data.train={files}/valid.txt,{text}", "--out", tmp_path / "d")[0] == 0


def test_runs_with_other_test_data_cannot_be_compared(run, files, capsys):
    texts = {path.name: path.read_bytes() for path in files.iterdir()}
    settings = {**dict(each.split("=", 1) for each in TINY), "train.steps": 2}
    other = tiny_run(
        "language", texts, **settings, **{"data.train": "{files}/train.txt", "data.test": "{files}/valid.txt"}
    )
    check_error(capsys, "eval", run, other, words="have different test data")
    assert run_cli(capsys, "eval", run, other, "--data", files / "test.txt")[0] == 0
