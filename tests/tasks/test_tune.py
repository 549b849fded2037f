"""Tuned runs end to end: what they train, save and load, and which errors they report."""

import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from helpers import bert as folders
from helpers import marian, reads, small
from helpers.runs import copy_run, tiny_run
from safetensors import safe_open

import regard
from regard.adapt import lora
from regard.cli import app as cli
from regard.errors import UserError

FINE = {
    "train.steps": 60, "train.eval_every": 30, "train.save_every": 20, "train.tensorboard": False, "device": "cpu",
    "train.lr": 6e-3, "train.warmup": 5, "train.schedule.kind": "constant", "train.tokens": 500, "data.max_tokens": 64,
}  # fmt: skip
KINDS = {
    "lora": {"tune.rank": 4, "tune.alpha": 2.0, "tune.pattern": "(attention|feed)"},
    "adapter": {"tune.bottleneck": 6},
    "prompt": {"tune.length": 4},
    "prefix": {"tune.length": 4, "tune.words": "the day"},
}
TEXTS = [text for text, _ in reads.labeled_examples(25, 8)]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tune")


@pytest.fixture(scope="module")
def base() -> Path:
    """A classifier. The runs tuned over it learn other names for the same labels, from the files beside it."""
    texts = reads.file_texts("classify")
    first = {f"first/{name}": text for name, text in texts.items()}
    renamed = {name: text.replace("\tglad", "\tup").replace("\tsad", "\tdown") for name, text in texts.items()}
    return tiny_run("classify", first | renamed, **reads.all_settings("classify", "{files}/first"))


def tuning(base: Path, kind: str, **settings) -> dict[str, object]:
    parts = {f"data.{name}": str(base.parent / f"{name}.txt") for name in ("train", "valid", "test")}
    own = {"tune.kind": kind, **KINDS[kind]} | {key.replace("__", "."): value for key, value in settings.items()}
    return {**FINE, **parts, "start": str(base), **own}


def tune_over(base: Path, out: Path, kind: str, resume: bool = False, recipe: str = "classify", **settings):
    return regard.train(recipe, tuning(base, kind, **settings), out=out, resume=resume)


@pytest.fixture(scope="module")
def runs(base, home) -> dict[str, Path]:
    """A classifier tuned over one base, for each kind, in folders of different names."""
    for kind in KINDS:
        copy_run(tiny_run("classify", **tuning(base, kind)), home / kind)
    return {kind: home / kind for kind in KINDS}


def names(path: Path) -> set[str]:
    with safe_open(path, "pt") as file:
        return set(file.keys())


def run_cli(capsys, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = cli.main([str(each) for each in arguments])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("kind", KINDS)
def test_only_tuned_parameters_are_saved(runs, base, kind):
    run = runs[kind]
    kept = names(run / "model.safetensors")
    new = {"classes.weight", "classes.bias"}
    assert new < kept and all(name.startswith("tune.") for name in kept - new)
    assert names(run / "checkpoints/step-60/model.safetensors") == kept
    assert {name.rpartition("/")[0] for name in names(run / "checkpoints/step-60/optimizer.safetensors")} == kept
    about = json.loads((run / "run.json").read_text())
    assert about["config"]["tune"]["kind"] == kind and about["config"]["start"] == str(base)
    assert about["start"]["folder"] == str(base) and len(about["start"]["weights"]) == 32
    notes = [json.loads(line).get("text", "") for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any(f"tune: {kind} trains " in note and "gradients and optimizer take" in note for note in notes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tuned_run_learns_and_loads_with_or_without_its_base(runs, base, kind):
    alone, over_base = regard.load(runs[kind]), regard.load(base, tune=runs[kind])
    assert alone.predict(TEXTS) == over_base.predict(TEXTS)
    assert alone.score(TEXTS[:5], ["up"] * 5) == over_base.score(TEXTS[:5], ["up"] * 5)
    records = [json.loads(line) for line in (runs[kind] / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["event"] == "train"]
    assert losses[-1] < 0.5 * losses[0]  # the labels of the base are exchanged, so it begins with every answer wrong
    if kind in ("lora", "adapter"):  # 194 parameters of a prompt learn it in 60 steps with two seeds of three
        assert alone.evaluate()["accuracy"] > 0.85
    assert len(alone.look(TEXTS[0]).tokens) == alone.look(TEXTS[0]).weights().shape[1]


def test_a_new_head_is_saved_too(home):
    words = reads.stored_run("masked", train__steps=2)
    predictor = tune_over(words, home / "new", "lora", train__steps=2, precision="int8")
    heads = {"classes.weight", "classes.bias", "pooler.weight", "pooler.bias"}
    assert {name for name in names(home / "new/model.safetensors") if not name.startswith("tune.")} == heads
    assert type(predictor.model.pooler).__name__ == "Linear" and len(predictor.labels) == 2


@pytest.mark.parametrize("kind", ["lora", "prefix"])
def test_tuning_over_a_hugging_face_folder(base, tmp_path, kind):
    path = folders.folder(tmp_path / "hf", "BertForMaskedLM")
    tags = reads.write_columns(tmp_path / "tags", reads.tagged_examples(30, 1))
    own = {"data__train": str(tags), "data__valid": "", "data__test": "", "data__max_tokens": 30, "tune__words": "the"}
    own |= {} if kind == "prefix" else {"tune__words": None}
    own = {key: value for key, value in own.items() if value is not None}
    predictor = tune_over(path, tmp_path / "run", kind, recipe="tag", train__steps=2, **own)
    words = ["the", "cat", "sees"]
    assert regard.load(path, tune=tmp_path / "run").predict([words]) == predictor.predict([words])
    assert {"classes.weight", "classes.bias"} < names(tmp_path / "run/model.safetensors")


@pytest.mark.parametrize("kind", ["lora", "prompt"])
def test_a_tuned_run_resumes_to_the_same_bytes(runs, base, home, kind):
    before = (base / "model.safetensors").read_bytes()
    tune_over(base, home / f"parts-{kind}", kind, train__steps=40)
    tune_over(base, home / f"parts-{kind}", kind, resume=True)
    assert (base / "model.safetensors").read_bytes() == before
    for name in ("model", "optimizer"):
        file = f"checkpoints/step-60/{name}.safetensors"
        assert (home / f"parts-{kind}" / file).read_bytes() == (runs[kind] / file).read_bytes()
    with pytest.raises(UserError, match="tune.rank|tune.length"):
        tune_over(
            base, home / f"parts-{kind}", kind, resume=True, **{"tune__rank" if kind == "lora" else "tune__length": 2}
        )


def test_several_tuned_runs_share_one_base(runs, base):
    alone = {kind: regard.load(run).score(TEXTS, ["up"] * 25) for kind, run in runs.items()}
    many = regard.load(base, tune=runs)
    for kind in ("prefix", "lora", "prompt", "adapter", "lora"):
        assert many.use(kind).score(TEXTS, ["up"] * 25) == pytest.approx(alone[kind], abs=1e-5)
    assert many.name == "lora" and many.run.tune.kind == "lora"
    tables = {id(predictor.model.embed.weight) for predictor in many.predictors.values()}
    assert len(tables) == 1
    with pytest.raises(
        UserError, match="there is no tuned run 'lore' over this base; expected one of lora, .* did you mean lora"
    ):
        many.use("lore")
    with pytest.raises(UserError, match="the base is shared with other loaded models, which a merge would change"):
        lora.merge(many.use("lora").model)
    listed = regard.load(base, tune=list(runs.values()))
    assert listed.use("prompt").predict(TEXTS) == many.use("prompt").predict(TEXTS)
    with pytest.raises(UserError, match="two folders in tune have the same name"):
        regard.load(base, tune=[runs["lora"], runs["lora"]])
    with pytest.raises(UserError, match="tune is empty; give the folder"):
        regard.load(base, tune=[])


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_in_lower_precision_stay_close(runs, kind, precision):
    exact, rough = (regard.load(runs[kind], each) for each in ({}, {"precision": precision}))
    assert rough.score(TEXTS, ["up"] * 25) == pytest.approx(exact.score(TEXTS, ["up"] * 25), abs=0.3)
    assert rough.score(TEXTS, ["up"] * 25) != exact.score(TEXTS, ["up"] * 25)


@pytest.mark.parametrize("kind", ["lora", "adapter"])
def test_tuning_over_an_int8_base(base, home, kind):
    predictor = tune_over(base, home / f"int8-{kind}", kind, precision="int8")
    assert type(predictor.model.encoder.layers[0].attention.query).__name__ == "Int8Linear"
    assert type(predictor.model.pooler).__name__ == "Int8Linear" and predictor.evaluate()["accuracy"] > 0.85
    assert regard.load(home / f"int8-{kind}").predict(TEXTS) == predictor.predict(TEXTS)
    if kind == "lora":
        with pytest.raises(
            UserError, match="is stored in int8, which cannot be merged into; load it with precision=fp32"
        ):
            lora.merge(predictor.model)


def test_the_gradient_through_int8_is_that_of_the_linear_layer():
    from regard.adapt.precision import Int8Linear

    linear, x = torch.nn.Linear(40, 36), torch.randn(3, 40, requires_grad=True)
    rough = Int8Linear(linear)
    assert rough(x).equal(rough(x.detach()))
    (gradient,), (expected,) = (torch.autograd.grad(each(x).square().sum(), x) for each in (rough, linear))
    assert (gradient - expected).abs().max() < 0.05 * expected.abs().max()


# --- merging ---------------------------------------------------------------------------------------------------------


def test_a_merged_run_is_an_ordinary_run(runs, base, home, capsys):
    out = home / "merged"
    code, out_text, _ = run_cli(capsys, "convert", runs["lora"], "--merge", "--out", out)
    assert code == 0 and "merged 6 maps; logits apart by " in out_text
    whole, tuned = regard.load(out), regard.load(runs["lora"])
    assert whole.predict(TEXTS) == tuned.predict(TEXTS) and whole.run.tune.kind == "none"
    assert json.loads((out / "run.json").read_text())["merged"]["kind"] == "lora"
    assert set(names(out / "model.safetensors")) == set(whole.model.state_dict())
    regard.convert(runs["lora"], out=home / "hf", to="huggingface", merge=True)
    assert regard.load(home / "hf").predict(TEXTS) == tuned.predict(TEXTS)
    tuned_again = tune_over(out, home / "again", "adapter", data__train=str(base.parent / "train.txt"),
                 data__valid="", data__test="", train__steps=2)  # fmt: skip
    assert tuned_again.run.tune.kind == "adapter"


def test_a_merge_that_changes_the_logits_is_not_saved(runs, home, monkeypatch):
    plain = lora.LoraBranch.fold
    monkeypatch.setattr(lora.LoraBranch, "fold", lambda self, weight: plain(self, weight.mul_(1.5)))
    with pytest.raises(RuntimeError, match="merging gives logits that are apart by"), torch.no_grad():
        regard.convert(runs["lora"], out=home / "wrong", merge=True)
    assert not (home / "wrong").exists()


# --- other tasks -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def language_run() -> Path:
    counts = {"train": 150, "valid": 20, "test": 20}
    texts = {
        f"{name}.txt": "\n".join(marian.sentences(count, i)) + "\n" for i, (name, count) in enumerate(counts.items())
    }
    settings = {key: value for key, value in reads.TINY.items() if key != "train.tokens"} | {
        "model.positions.tokens": 64, "data.max_tokens": 40, "train.batch": 8, "train.steps": 20, "data.document": "line",
    }  # fmt: skip
    return tiny_run("language", texts, **settings, **{f"data.{name}": f"{{files}}/{name}.txt" for name in counts})


def test_initial_words_need_tokens_of_one_vocabulary():
    from types import SimpleNamespace

    from regard.processors.text.processor import TextProcessor
    from regard.runs import tuned as tuned_run

    class Empty:
        def encode(self, texts):
            return [[] for _ in texts]

    def run(kind: str, **model: int) -> SimpleNamespace:
        return SimpleNamespace(tune=SimpleNamespace(kind=kind, words="the day"), model=SimpleNamespace(**model))

    with pytest.raises(UserError, match="source and target have separate vocabularies; leave it out"):
        tuned_run._initial_tokens(run("prefix", target_vocab=9), {"a": TextProcessor(Empty())})
    with pytest.raises(UserError, match="tune.words is 'the day', which has no tokens"):
        tuned_run._initial_tokens(run("prompt", target_vocab=9), {"a": TextProcessor(Empty())})


@pytest.mark.parametrize("kind", KINDS)
def test_a_tuned_language_model_is_batch_invariant(language_run, home, kind):
    predictor = tune_over(language_run, home / f"lm-{kind}", kind, recipe="language", train__steps=10, train__batch=8,
                  data__max_tokens=40, data__document="line")  # fmt: skip
    plain = regard.load(language_run)
    prompts = ["the old", "a bird never likes", "x"]
    greedy = predictor.predict(prompts, kind="greedy", max_tokens=8, details=True)
    beams = predictor.predict(prompts, kind="beam", beam=3, max_tokens=8, details=True)
    for prompt, record, best in zip(prompts, greedy, beams, strict=True):  # batch invariance
        one = predictor.predict(prompt, kind="greedy", max_tokens=8, details=True)
        assert one["text"] == record["text"] and one["logprob"] == pytest.approx(record["logprob"], abs=1e-4)
        beam = predictor.predict(prompt, kind="beam", beam=3, max_tokens=8, details=True)
        assert beam["text"] == best["text"] and beam["score"] == pytest.approx(best["score"], abs=1e-4)
    assert predictor.score(prompts[0]) != pytest.approx(plain.score(prompts[0]), abs=1e-4)
    assert predictor.context == (60 if kind in ("prompt", "prefix") else 64)
    assert predictor.evaluate()["loss"] < plain.evaluate()["loss"] + 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_tuned_translator(home, kind):
    run = small.translator()
    parts = small.sides_in(run.parent / "files")
    settings = {"tune.kind": kind, **KINDS[kind], "tune.words": "the"} if kind in ("prompt", "prefix") else KINDS[kind]
    overrides = {**FINE, **parts, "start": str(run), "tune.kind": kind, **settings, "train.steps": 4}
    predictor = regard.train("translate", overrides, out=home / f"pairs-{kind}")
    source = "the old cat sees the dog"
    records = predictor.predict([source, "a bird"], kind="beam", beam=3, details=True)
    assert records[0]["text"] == predictor.predict(source, kind="beam", beam=3)
    assert predictor.look(source).cross().shape[1] == len(predictor.look(source).source)


# --- the command line, and errors of the user ------------------------------------------------------------------------


def test_verbs_accept_tune(runs, base, capsys, monkeypatch):
    lines = ("\n".join(TEXTS) + "\n").encode()
    for verb, more in (("predict", ()), ("eval", ("--data", base.parent / "test.txt"))):
        for arguments in ((runs["lora"],), (base, "--tune", runs["lora"])):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
            code, out, _ = run_cli(capsys, verb, *arguments, *more, "device=cpu")
            assert code == 0
            if len(arguments) == 1:
                first = out
        assert out == first and len(out) > 20
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the day\tup\n")))
    assert run_cli(capsys, "score", base, "--tune", runs["prefix"])[0] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_dry_counts_the_trained_parameters(base, capsys, kind):
    settings = [f"{key}={value}" for key, value in KINDS[kind].items()]
    parts = [f"data.train={base.parent / 'train.txt'}", f"start={base}", f"tune.kind={kind}", *settings]
    code, out, err = run_cli(capsys, "train", "classify", *parts, "--dry")
    assert code == 0 and "\ntune." in out, err
    whole, trained = (int(word.replace(",", "")) for word in out.split("parameters ")[1].split()[:3:2])
    assert trained < whole / 5 and ", trained " in out


def test_dry_reports_the_errors_of_training(base, capsys):
    parts = [f"data.train={base.parent / 'train.txt'}", f"start={base}", "tune.kind=prefix", "tune.length=600"]
    code, _, err = run_cli(capsys, "train", "classify", *parts, "--dry")
    assert code == 2 and "tune.length is 600, but the model has 512 positions" in err and err.count("\n") == 1


def test_tune_needs_exactly_one_base(runs, base, capsys):
    code, _, err = run_cli(capsys, "eval", f"{base},{base}", "--tune", runs["lora"])
    assert code == 2 and "--tune needs one base, and" in err
    with pytest.raises(UserError, match="--force applies only to --tune"):
        regard.load(base, force=True)
    code, _, err = run_cli(capsys, "eval", base, "--tune", runs["lora"], "--tune", runs["prefix"])
    assert code == 2 and err.count("\n") == 1 and "--tune is given 2 times, but a verb uses one; run the verb" in err


def test_the_wrong_base(runs, base, home, capsys):
    other = reads.stored_run("classify", train__steps=2)
    code, _, err = run_cli(capsys, "eval", other, "--tune", runs["lora"])
    assert code == 2 and err.count("\n") == 1
    assert f"{runs['lora']} was tuned over {base} (weights " in err and "--force`, whose output may be nonsense" in err
    code, out, err = run_cli(capsys, "eval", other, "--tune", runs["lora"], "--force")
    assert code == 0 and "--force uses it anyway, and the output may be nonsense" in err
    code, _, err = run_cli(capsys, "eval", other, "--force")
    assert code == 2 and "--force applies only to --tune" in err
    wide = reads.stored_run("classify", train__steps=1, model__width=48, model__heads=2)
    code, _, err = run_cli(capsys, "eval", wide, "--tune", runs["lora"], "--force")  # shapes cannot be forced
    assert (
        code == 2 and err.count("\n") == 1 and f"{wide} cannot be the base of {runs['lora']}: embed.weight is (" in err
    )


def test_a_missing_base(runs, base, home, tmp_path):
    moved = tmp_path / "run"
    tune_over(base, moved, "lora", train__steps=1)
    about = json.loads((moved / "run.json").read_text())
    about["config"]["start"] = str(tmp_path / "nowhere")
    (moved / "run.json").write_text(json.dumps(about))
    with pytest.raises(
        UserError,
        match="nowhere, which does not exist; restore it, or name its new place: `regard predict BASE --tune",
    ):
        regard.load(moved)
    assert len(regard.load(base, tune=moved).predict(TEXTS)) == 25


def test_a_base_is_found_from_any_directory(base, tmp_path, monkeypatch, capsys):
    """Both may move together, the run may move alone, and the current directory does not matter."""
    here, there = tmp_path / "here", tmp_path / "there"
    shutil.copytree(base, here / "base/run")
    for name in ("train", "valid", "test"):
        shutil.copy(base.parent / f"{name}.txt", tmp_path / f"{name}.txt")
    data = {f"data__{name}": str(tmp_path / f"{name}.txt") for name in ("train", "valid", "test")}
    monkeypatch.chdir(here)
    tune_over(Path("base/run"), Path("tuned"), "lora", train__steps=1, **data)
    assert json.loads(Path("tuned/run.json").read_text())["start"]["relative"] == "../base/run"
    expected = regard.load("tuned").predict(TEXTS)
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert regard.load("../here/tuned").predict(TEXTS) == expected
    here.rename(there)
    assert regard.load(there / "tuned").predict(TEXTS) == expected
    code, _, err = run_cli(capsys, "train", "--resume", "--out", there / "tuned", "train.steps=2")
    assert code == 0 and "finished after 2 steps" in err
    there.rename(here)
    (here / "tuned").rename(tmp_path / "else/alone")
    assert len(regard.load("alone").predict(TEXTS)) == len(TEXTS)
    (here / "base").rename(tmp_path / "gone")
    words = f"alone is tuned over {here}/base/run, which does not exist; restore it, or name its new place: "
    with pytest.raises(UserError, match=re.escape(words)):
        regard.load("alone")


def test_a_run_whose_start_is_missing_is_not_resumed(base, tmp_path, capsys):
    shutil.copytree(base, tmp_path / "base")
    data = {f"data.{name}": str(base.parent / f"{name}.txt") for name in ("train", "valid", "test")}
    regard.train("classify", {**FINE, **data, "start": str(tmp_path / "base"), "train.steps": 1}, out=tmp_path / "run")
    (tmp_path / "base").rename(tmp_path / "gone")
    code, _, err = run_cli(capsys, "train", "--resume", "--out", tmp_path / "run")
    assert code == 2 and f"was started from {tmp_path}/base, which does not exist; restore it" in err


def test_other_errors(runs, base, home, tmp_path, capsys):
    for call, words in (
        (lambda: regard.load(base, tune=tmp_path), "is not a tuned run: it has no run.json"),
        (lambda: regard.load(base, tune=base), "is not tuned but a whole model; load it without a base"),
        (lambda: tune_over(runs["lora"], tmp_path / "x", "lora"), "is a tuned run; merge it into one model first"),
        (lambda: regard.resolve("classify", {"tune.kind": "lora"}), "tune.kind is lora but start is not set; set start"),
        (lambda: regard.resolve("classify", {"tune.kind": "lore", "start": str(base)}), "tune.kind is \"lore\"; expected one of none"),
        (lambda: regard.resolve("classify", {"tune.kind": "lora", "tune.rank": 0, "start": str(base)}), "tune.rank is 0; expected at least 1"),
        (lambda: regard.resolve("classify", {"tune.kind": "lora", "tune.length": 3, "start": str(base)}), "tune.length does not belong to tune=lora"),
        (lambda: tune_over(base, tmp_path / "x", "lora", tune__rank=33), "tune.rank is 33, above the 32 that encoder.layers.0.attention.query"),
        (lambda: tune_over(base, tmp_path / "x", "lora", tune__pattern="qurey"), "matches no linear layer of the model; it has encoder.layers.*.attention.query"),
        (lambda: tune_over(base, tmp_path / "x", "prompt", data__max_tokens=510), "data.max_tokens is 510, but tune.length=4 leaves 508 of the model's 512 positions"),
        (lambda: tune_over(base, tmp_path / "x", "prompt", tune__length=512), "tune.length is 512, but the model has 512 positions for it and a text; use less"),
        (lambda: regard.convert(runs["lora"], out=tmp_path / "x", merge=True, to="peft"), "--merge leaves no adapter in"),
        (lambda: regard.convert(base, out=tmp_path / "x", merge=True), "is not tuned; --merge is for tune.kind=lora"),
        (lambda: regard.convert(runs["adapter"], out=tmp_path / "x", merge=True), "is tuned by adapter, which cannot be merged into the base"),
        (lambda: regard.convert(runs["lora"], out=tmp_path / "x", to="huggingface"), "--to huggingface writes whole models; add --merge"),
        (lambda: regard.convert(runs["prompt"], out=tmp_path / "x", to="huggingface"), "tune.kind=prompt has no place in that format"),
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            call()
        assert words in str(error.value) and "\n" not in str(error.value), error.value
        assert not (tmp_path / "x").exists()
    code, _, err = run_cli(capsys, "eval", base, runs["lora"], "--tune", runs["lora"])
    assert code == 2 and "--tune works with one run, but several are compared" in err


def test_an_unsupported_family_is_named(home, tmp_path):
    own = {key: value for key, value in reads.TINY.items() if key != "train.tokens"} | {
        "train.batch": 4,
        "train.steps": 1,
    }
    parts = {"data.train": str(home / "lm/train.txt"), "data.max_tokens": 20, "data.document": "line"}
    (home / "lm").mkdir(exist_ok=True)
    (home / "lm/train.txt").write_text("\n".join(marian.sentences(60, 0)) + "\n")
    regard.train("language", {"model.family": "xl", **own, **parts}, out=tmp_path / "xl")
    overrides = {**FINE, **parts, "model.family": "xl", "start": str(tmp_path / "xl"), "tune.kind": "prefix"}
    with pytest.raises(
        UserError, match="tune.kind=prefix does not work with model.family=xl: its attention .RollingSoftmaxKernel."
    ):
        regard.train("language", overrides, out=tmp_path / "x")


def test_prompts_do_not_work_with_packed_rows(home):
    run = small.translator()
    overrides = {
        **FINE,
        "data.train": small.sides_in(run.parent / "files")["data.train"],
        "start": str(run),
        "data.packed": True,
    }
    with pytest.raises(
        UserError, match="tune.kind=prompt goes before a text, but packed rows hold several; set data.pack"
    ):
        regard.train("translate", {**overrides, "tune.kind": "prompt"}, out=home / "packed")
    regard.train("translate", {**overrides, "tune.kind": "lora", "train.steps": 1}, out=home / "packed")


@pytest.mark.parametrize(("change", "words"), [
    ("missing", "tune.encoder.layers.0.attention.query.down is missing"),
    ("unexpected", "tune.more is not in the model"),
    ("shape", "tune.encoder.layers.0.attention.query.down has shape (3, 32) and the model's has (4, 32)"),
])  # fmt: skip
def test_a_file_that_does_not_fit(runs, base, tmp_path, change, words):
    from safetensors.torch import load_file, save_file

    for name in ("run.json", "tokenizer.json", "labels.json"):
        (tmp_path / name).write_bytes((runs["lora"] / name).read_bytes())
    tensors, name = load_file(runs["lora"] / "model.safetensors"), "tune.encoder.layers.0.attention.query.down"
    if change == "missing":
        del tensors[name]
    elif change == "unexpected":
        tensors["tune.more"] = torch.zeros(2)
    else:
        tensors[name] = tensors[name][:3].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError) as error:
        regard.load(base, tune=tmp_path)
    assert words in str(error.value)
