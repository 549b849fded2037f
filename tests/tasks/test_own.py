"""Own code in a training: callbacks, loss, metrics, tokenizer, frozen parameters, modules; saving and hidden states."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import reads
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from torch import Tensor, nn

import regard
from regard.errors import UserError
from regard.look.states import hidden_states
from regard.processors.text.custom import TOKENIZERS, as_tokenizer
from regard.tasks.predictor import Predictor
from regard.training import checkpoint, curves
from regard.training.custom import CustomMetric

EXAMPLES = reads.labeled_examples(40, 1)
TINY: dict[str, Any] = {
    **reads.TINY, "model.width": 16, "model.inner": 16, "train.steps": 8, "train.warmup": 1, "train.batch": 8,
    "train.save_every": 4, "train.eval_every": 4, "train.log_every": 1, "tokenizer.kind": "char", "model.dropout": 0.1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "draw", lambda folder: None)


def train(out: Path, settings: dict[str, Any] | None = None, **own: Any) -> Any:
    data = {"train": EXAMPLES, "valid": EXAMPLES[:10]}
    return regard.train("classify", {**TINY, **(settings or {})}, out=out, data=data, **own)


def weights(folder: Path) -> dict[str, Tensor]:
    return checkpoint._read(folder / "model.safetensors")[0]


def records(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each["event"] == event]


def summed(model: Any, batch: regard.Batch) -> Tensor:
    logits = model.label_logits(model.encode(batch["text"]))
    return nn.functional.cross_entropy(logits, batch["label"].values, reduction="sum")


class Halve:
    """A callback with state: it halves the rate in every third step of its own count."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, at: regard.CallbackContext) -> None:
        self.calls += at.moment == "step"
        if at.moment == "step" and self.calls % 3 == 0:
            at.rate_scale *= 0.5

    def state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


# --- callbacks -------------------------------------------------------------------------------------------------------


def test_a_callback_sees_the_training_and_changes_the_rate(tmp_path: Path) -> None:
    seen: list[regard.CallbackContext] = []
    rates: list[float] = []

    def watch(at: regard.CallbackContext) -> None:
        seen.append(at)
        rates.append(at.optimizer.param_groups[0]["lr"])
        at.model.eval()  # the loop returns to training mode

    train(tmp_path / "a", {"train.schedule": "constant"}, callbacks=[watch, Halve()])
    moments = [(at.moment, at.step) for at in seen]
    assert moments[:3] == [("step", 1), ("step", 2), ("step", 3)] and moments[-1] == ("end", 8)
    assert moments[3:5] == [("valid", 4), ("step", 4)] and seen[3].metrics["accuracy"] <= 1
    assert isinstance(seen[0].model, nn.Module) and seen[0].epoch == 0 and seen[0].loss > 0
    by_step = [rate / rates[0] for rate, (moment, _) in zip(rates, moments, strict=True) if moment == "step"]
    assert by_step == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25])
    logged = [each["lr"] for each in records(tmp_path / "a", "train")]
    assert logged[3] / logged[2] == pytest.approx(0.5)


def test_a_callback_stops_and_a_resumed_run_is_exact(tmp_path: Path) -> None:
    def stop(at: regard.CallbackContext) -> None:
        if at.step == 5 and at.moment == "step":
            at.stop()

    own = {"loss": summed, "metrics": {"size": lambda references, predictions: len(references)}}
    train(tmp_path / "whole", callbacks=[Halve()], **own)
    train(tmp_path / "parts", callbacks=[Halve(), stop], **own)
    (end,) = records(tmp_path / "parts", "end")
    assert (end["status"], end["step"]) == ("early", 5)
    assert "the callback stop ended the training after step 5" in str(records(tmp_path / "parts", "note"))
    data = {"train": EXAMPLES, "valid": EXAMPLES[:10]}
    assert regard.train(out=tmp_path / "parts", resume=True, data=data, callbacks=[Halve()], **own) is not None
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    last = [tmp_path / name / "checkpoints" / "step-8" for name in ("whole", "parts")]
    assert all(torch.equal(one[name], other[name]) for name in one)
    states = [json.loads((path / "state.json").read_text()) for path in last]
    assert states[0]["checksums"] == states[1]["checksums"] and states[0]["rate_scale"] == 0.25
    assert states[0]["callbacks"] == states[1]["callbacks"] == {"0 Halve": {"calls": 8}}


def test_a_callback_that_raises_loses_nothing(tmp_path: Path) -> None:
    def broken(at: regard.CallbackContext) -> None:
        if at.step == 3:
            raise ValueError("one\ntwo")

    with pytest.raises(UserError, match=r"the callback broken failed after step 3 \(ValueError: one two\)") as caught:
        train(tmp_path / "a", callbacks=[broken])
    assert "\n" not in str(caught.value) and isinstance(caught.value.__cause__, ValueError)
    assert (tmp_path / "a" / "checkpoints" / "step-3").is_dir() and (tmp_path / "a" / "model.safetensors").is_file()
    with pytest.raises(UserError, match="a callback set rate_scale=-1; expected a number of 0 or more"):
        train(tmp_path / "b", callbacks=[lambda at: setattr(at, "rate_scale", -1)])
    with pytest.raises(UserError, match="callbacks has a int; expected functions of a CallbackContext"):
        train(tmp_path / "c", callbacks=[5])


# --- loss and metrics ------------------------------------------------------------------------------------------------


def test_an_own_loss_equals_the_built_in_one(tmp_path: Path) -> None:
    settings = {"train.accumulate": 2, "data.ngrams.order": 0}  # the built-in loss leaves out a text's own n-grams
    train(tmp_path / "own", settings, loss=summed)
    train(tmp_path / "built-in", settings)
    one, other = weights(tmp_path / "own"), weights(tmp_path / "built-in")
    assert all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)
    with pytest.raises(UserError, match="train.own_loss='summed', but loss= gives none; give the same functions"):
        regard.train(out=tmp_path / "own", resume=True, data={"train": EXAMPLES, "valid": EXAMPLES[:10]})
    assert regard.load(tmp_path / "own").run.train.own_loss == "summed"  # it loads without the function


def test_bad_losses(tmp_path: Path) -> None:
    for loss, words in [
        (lambda model, batch: 1 / 0, r"the loss <lambda> failed \(ZeroDivisionError: division by zero\)"),
        (lambda model, batch: model.encode(batch["text"]).states, "returns a tensor of shape .*; expected one number"),
        (lambda model, batch: 1.0, "the loss <lambda> returns a float; expected one number as a tensor, or a LossSum"),
    ]:
        with pytest.raises(UserError, match=words):
            train(tmp_path / "a", loss=loss)
        assert not (tmp_path / "a").exists()


def test_own_metrics_choose_the_weights(tmp_path: Path) -> None:
    values = iter([0.5, float("nan"), 0.9])
    settings = {"train.metric": "odd", "train.steps": 6, "train.eval_every": 2}

    def odd(references: list[str], predictions: list[str]) -> float:
        assert references == [label for _, label in EXAMPLES[:10]] and set(predictions) <= {"glad", "sad"}
        return next(values)

    train(tmp_path / "a", settings, metrics={"odd": CustomMetric(odd, higher_is_better=False)})
    valid = records(tmp_path / "a", "valid")
    assert [each["odd"] for each in valid] == [0.5, None, 0.9]
    assert json.loads((tmp_path / "a" / "run.json").read_text())["weights"] == {
        "step": 2,
        "metric": "odd",
        "value": 0.5,
    }
    notes = [each["text"] for each in records(tmp_path / "a", "note")]
    assert "the metric odd is nan at step 4 and selects no weights" in notes
    assert regard.load(tmp_path / "a").run.train.own_metrics == ("-odd",)


def test_bad_metrics(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the metric broken failed \(KeyError: 1\); correct it and resume"):
        train(tmp_path / "a", metrics={"broken": lambda references, predictions: {}[1]})
    assert (tmp_path / "a" / "checkpoints" / "step-4").is_dir()  # nothing is lost
    for metrics, words in [
        ({"two words": len}, "the metric name 'two words' is not a name"),
        ({"number": 5}, "the metric number is a int; expected a function that returns a number"),
    ]:
        with pytest.raises(UserError, match=words):
            train(tmp_path / "b", metrics=metrics)
    with pytest.raises(UserError, match=r"metrics= gives size, but there are no validation data; set data\.valid"):
        regard.train("classify", TINY, out=tmp_path / "b", data={"train": EXAMPLES}, metrics={"size": len})
    masked = {**TINY, "train.eval_every": 1, "train.metric": "loss"}
    lines = {"train": [(text,) for text, _ in EXAMPLES], "valid": [("a day",)]}
    with pytest.raises(
        UserError, match="metrics= needs examples with an input and a reference, and this task has none"
    ):
        regard.train("masked", masked, out=tmp_path / "c", data=lines, metrics={"size": lambda a, b: 1})


# --- frozen parameters and rates -------------------------------------------------------------------------------------


def test_freezing_and_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frozen = {"train.freeze": ["embed", "encoder.layers.0.feed.*"], "train.rates": "classes.*:0.5,classes.bias:2"}
    groups: dict[str, float] = {}

    def watch(at: regard.CallbackContext) -> None:
        names = {id(each): name for name, each in at.model.named_parameters()}
        for group in at.optimizer.param_groups:
            groups.update({names[id(each)]: group["rate_scale"] for each in group["params"]})

    train(tmp_path / "a", {**frozen, "train.steps": 1}, callbacks=[watch])
    train(tmp_path / "b", frozen)
    one, other = weights(tmp_path / "a"), weights(tmp_path / "b")
    same = {name for name in one if torch.equal(one[name], other[name])}
    fixed = {name for name in one if name.startswith(("embed.", "encoder.layers.0.feed."))}
    assert fixed and fixed <= same and "classes.weight" not in same
    assert not fixed & set(groups) and groups["classes.weight"] == 0.5 and groups["classes.bias"] == 2.0
    for settings, words in [
        ({"train.freeze": "encoder.layer.0.*"}, r"train.freeze: 'encoder.layer.0.\*' matches no parameter .*did you mean encoder.layers.0\?"),
        ({"train.freeze": "xyz"}, "train.freeze: 'xyz' matches no parameter of the model; `regard train RECIPE --dry`"),
        ({"train.rates": "classes.*"}, r"train.rates: 'classes.\*' is not PATTERN:FACTOR with a factor above 0"),
        ({"train.freeze": "*"}, "every parameter is frozen"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=words):
            train(tmp_path / "c", settings)
        assert not (tmp_path / "c").exists()


# --- tokenizers ------------------------------------------------------------------------------------------------------


class Letters:
    size = 30

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % 30 for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + number) for number in ids)


def test_an_object_as_tokenizer(tmp_path: Path) -> None:
    predictor = train(tmp_path / "a", tokenizer=Letters())
    assert (
        predictor.tokenizer.encode(["ab"]) == [[7, 8]] and predictor.tokenizer.size == 34 == predictor.run.model.vocab
    )
    assert predictor.tokenizer.tokens([0, 30]) == ["a", "<pad>"] and predictor.tokenizer.decode([[31, 0, 32]]) == ["a"]
    loaded = regard.load(tmp_path / "a")
    assert loaded.predict("a day", details=True) == predictor.predict("a day", details=True)
    kept = TOKENIZERS.added.pop("Letters")
    with pytest.raises(UserError, match=r"trained with the tokenizer Letters of a Python program; register it first"):
        regard.load(tmp_path / "a")

    class Other(Letters):
        name = "Letters"
        size = 40

    regard.register(tokenizer=Other())
    with pytest.raises(UserError, match="the registered tokenizer Letters differs from that of this run"):
        regard.load(tmp_path / "a")
    regard.register(tokenizer=kept)
    assert regard.load(tmp_path / "a").predict("a day") == predictor.predict("a day")


def test_tokenizers_of_the_library(tmp_path: Path) -> None:
    words = Backend(
        models.WordLevel({word: place for place, word in enumerate(["[UNK]", "a", "day", "good"])}, "[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.enable_padding()
    predictor = train(tmp_path / "a", tokenizer=words)
    assert predictor.tokenizer.encode(["a good xyz"]) == [[1, 3, 0]] and predictor.tokenizer.unk == 0
    assert predictor.tokenizer.size == 7 and words.get_vocab_size() == 4  # a copy got START, END and PAD
    assert regard.load(tmp_path / "a").predict(["a good day"], top=2) == predictor.predict(["a good day"], top=2)
    folder = tmp_path / "folder"
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"pad_token": {"content": "day"}}')
    read = as_tokenizer(folder)
    assert read.pad == 2 and read.encode(["a good"]) == [[1, 3]]
    assert as_tokenizer(read) is read


class NoSize:
    def encode(self, text: str) -> list[int]:
        return [99]

    def decode(self, ids: list[int]) -> str:
        return ""


def test_bad_tokenizers(tmp_path: Path) -> None:
    small = type("Small", (NoSize,), {"size": 10})()
    for tokenizer, words in [
        (5, "tokenizer is a int without encode; expected encode"),
        (NoSize(), "the tokenizer NoSize does not tell its size; give it an attribute `size`"),
        (tmp_path / "absent", "absent cannot be read .*; expected a folder with tokenizer.json"),
        (small, "the tokenizer Small encodes .* with the id 99; expected numbers from 0 to 13"),
    ]:
        with pytest.raises(UserError, match=words):
            train(tmp_path / "a", tokenizer=tokenizer)
    run = train(tmp_path / "run").folder_of_run
    settings = {key: value for key, value in TINY.items() if not key.startswith(("model.", "tokenizer."))}
    with pytest.raises(UserError, match="tokenizer= is given, but start=.* brings its own; leave one of them out"):
        regard.train(
            "classify", settings, out=tmp_path / "b", start=str(run), data={"train": EXAMPLES}, tokenizer=Letters()
        )


# --- predictors ------------------------------------------------------------------------------------------------------


def test_save(tmp_path: Path) -> None:
    predictor = train(tmp_path / "a")
    assert predictor.save(tmp_path / "deep" / "b") == tmp_path / "deep" / "b"
    saved = regard.load(tmp_path / "deep" / "b")
    assert saved.predict("a good day", details=True) == predictor.predict("a good day", details=True)
    assert {path.name for path in (tmp_path / "deep" / "b").iterdir()} == {
        "run.json", "model.safetensors", "tokenizer.json", "labels.json",
    }  # fmt: skip
    with pytest.raises(UserError, match="b exists already; save to another folder, so that nothing there is lost"):
        predictor.save(tmp_path / "deep" / "b")
    (tmp_path / "empty").mkdir()
    assert saved.save(tmp_path / "empty") and regard.load(tmp_path / "empty").run == predictor.run
    with pytest.raises(UserError, match="loaded with precision=bf16, which has rounded its weights"):
        regard.load(tmp_path / "a", precision="bf16").save(tmp_path / "c")
    assert re.fullmatch(r"<ClassifyPredictor: bert tiny, [\d,]+ parameters, cpu, .*/a>", repr(predictor))
    assert "<td" in predictor._repr_html_() and "bert tiny" in predictor._repr_html_()
    (result,) = predictor.predict_requests(predictor.requests(["a <day>"]))
    assert "ClassifyResult" in result._repr_html_()
    assert (
        repr(predictor.run)
        == f"<Run: classify with bert tiny, {str(predictor.run)[len('<Run: classify with bert tiny, ') :]}"
    )
    assert (
        "train.lr" in predictor.run._repr_html_() and "(command line)" in regard.resolve("classify", TINY)._repr_html_()
    )


def test_save_a_tuned_run(tmp_path: Path) -> None:
    base = train(tmp_path / "base").folder_of_run
    keys = {key: each for key, each in TINY.items() if not key.startswith(("model.", "tokenizer."))}
    data = {"train": EXAMPLES, "valid": EXAMPLES[:10]}
    tuned = regard.train("classify", keys, out=tmp_path / "tuned", start=str(base), tune={"kind": "lora"}, data=data)
    assert tuned is not None
    tuned.save(tmp_path / "elsewhere" / "copy")
    copy = regard.load(tmp_path / "elsewhere" / "copy")
    assert copy.predict("a good day", details=True) == tuned.predict("a good day", details=True)
    switch: Any = regard.load(base, tune={"one": tmp_path / "tuned"})
    assert torch.equal(switch.states("a day", layers=-1), tuned.states("a day", layers=-1))
    switch.save(tmp_path / "third")
    tuned.folder_of_run = None
    with pytest.raises(UserError, match="this adapter comes from a PEFT folder and is not saved as a run"):
        tuned.save(tmp_path / "fourth")


def test_an_ensemble_is_neither_saved_nor_has_states(tmp_path: Path) -> None:
    settings = {**TINY, "train.steps": 1, "model.decoder_layers": 1}
    pairs = {"train": [("a day", "ein Tag")] * 8}
    one = regard.train("translate", settings, out=tmp_path / "a", data=pairs)
    assert one is not None and one.states(["a day", "a a"], layers=[0, 1])[0].shape == (2, 6, 16)
    both = regard.load(f"{tmp_path / 'a'},{tmp_path / 'a'}")
    with pytest.raises(UserError, match="an ensemble has several models and is not saved as one; save each of them"):
        both.save(tmp_path / "b")
    with pytest.raises(UserError, match="an ensemble has the hidden states of several models; load one of them"):
        both.states("a day")


def test_states_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    predictor = train(tmp_path / "a", {"model.layers": 2})
    texts = ["a good day", "so", "a rainy da"]
    found = predictor.states(texts)
    assert [each.shape for each in found] == [(3, len(text) + 2, 16) for text in texts]
    for text, states in zip(texts, found, strict=True):
        assert torch.allclose(predictor.states(text), states, atol=1e-6)
        assert torch.equal(predictor.states(text, layers=-1), predictor.states(text)[2])
    mean = torch.nn.functional.normalize(found[0][-1].mean(0), dim=0)
    assert torch.allclose(predictor.embed("a good day"), mean, atol=1e-5)
    for layers in (3, -4, [0, 9]):
        with pytest.raises(UserError, match=r"layers has .*; expected numbers from 0 \(the embeddings\) to 2"):
            predictor.states("a", layers=layers)


def test_states_equal_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    settings = {**TINY, "model.layers": 2, "train.steps": 1, "tokenizer.kind": "wordpiece", "data.ngrams.order": 0}
    predictor = train(tmp_path / "a", settings)
    regard.convert(tmp_path / "a", to="huggingface", out=tmp_path / "hf")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    (inputs,) = predictor.state_inputs(["a good day"])
    with torch.no_grad():
        expected = theirs(input_ids=inputs.values, output_hidden_states=True).hidden_states
    assert torch.allclose(predictor.states("a good day"), torch.cat(expected), atol=1e-5)


def test_states_that_there_are_not(tmp_path: Path) -> None:
    predictor = train(tmp_path / "a")
    with pytest.raises(UserError, match="task classify gives no hidden states; use look.states.record_states around"):
        Predictor.state_inputs(predictor, ["a"])
    with pytest.raises(UserError, match="this model has no stack of layers, so its hidden states cannot be told apart"):
        hidden_states(predictor.state_inputs(["a"]), lambda inputs: None, None, 8)


# --- modules of the user ---------------------------------------------------------------------------------------------


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(3, 1)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = batch["x"]
        for layer in self.layers:
            x = self.drop(layer(x))
        return ((self.out(x)[:, 0] - batch["y"]) ** 2).mean()


ROWS = [{"x": row, "y": row.sum()} for row in torch.randn(25, 3, generator=torch.Generator().manual_seed(1))]
FIT: dict[str, Any] = {
    "train.lr": 0.05, "train.batch": 8, "train.save_every": 2, "train.eval_every": 4, "train.tensorboard": False,
    "device": "cpu", "train.optimizer.layer_decay": 0.5,
}  # fmt: skip
COLLATE = torch.utils.data.default_collate


def test_fit_learns_resumes_exactly_and_keeps_the_best_weights(tmp_path: Path) -> None:
    whole, parts = Line(), Line()
    first = whole({"x": ROWS[0]["x"][None], "y": ROWS[0]["y"][None]}).item()
    metrics = {"error": lambda module: module.out.bias.abs().item()}
    own = {"collate": COLLATE, "valid": ROWS, "metrics": metrics}
    settings = {**FIT, "train.epochs": 8, "train.accumulate": 2}
    outcome = regard.fit(whole, ROWS, out=tmp_path / "a", overrides=settings, **own)
    assert outcome.steps == 8 * 4 and outcome.best is not None and outcome.best < first
    stop = lambda at: at.stop() if at.step == 11 else None  # noqa: E731
    regard.fit(parts, ROWS, out=tmp_path / "b", overrides=settings, callbacks=[stop], **own)
    parts = Line()
    resumed = regard.fit(parts, ROWS, out=tmp_path / "b", overrides=settings, resume=True, **own)
    assert resumed.steps == 32 and resumed.best == outcome.best
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))
    assert "error" in records(tmp_path / "a", "valid")[0]
    with pytest.raises(UserError, match="train.batch was 8 and is now 4; a resumed run cannot change it"):
        regard.fit(parts, ROWS, out=tmp_path / "b", overrides={**settings, "train.batch": 4}, resume=True, **own)
    with pytest.raises(UserError, match="data has 24 entries and had 25; give the same data"):
        regard.fit(parts, ROWS[1:], out=tmp_path / "b", overrides=settings, resume=True, **own)
    with pytest.raises(UserError, match=r"a is not empty; resume the run there \(resume=True\)"):
        regard.fit(parts, ROWS, out=tmp_path / "a", overrides=settings, **own)
    with pytest.raises(UserError, match="a was trained by regard.fit and has no recipe; load its weights into the mod"):
        regard.load(tmp_path / "a")


def test_fit_equals_a_plain_loop(tmp_path: Path) -> None:
    """Batches in order, Adam without decay: the same weights as torch's own loop."""

    class Batches:
        def __iter__(self) -> Any:
            return iter([COLLATE(ROWS[start : start + 5]) for start in range(0, 25, 5)])

    one, other = Line(), Line()
    one.drop.p = other.drop.p = 0.0
    settings = {"train.epochs": 2, "train.lr": 0.01, "train.schedule": "constant", "train.clip": 0, "device": "cpu"}
    settings |= {"train.optimizer": {"kind": "adam", "betas": (0.9, 0.999), "eps": 1e-8}, "train.tensorboard": False}
    assert regard.fit(one, Batches(), out=tmp_path / "a", overrides=settings).steps == 10
    optimizer = torch.optim.Adam(other.parameters(), 0.01)
    for batch in [*Batches(), *Batches()]:
        optimizer.zero_grad()
        other(batch).backward()
        optimizer.step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_bad_fits(tmp_path: Path) -> None:
    steps: dict[str, Any] = {"overrides": {**FIT, "train.steps": 2}, "out": tmp_path / "a"}
    for call, words in [
        (lambda: regard.fit(Line(), ROWS, out=tmp_path / "a", collate=COLLATE, train={"schedule": "constant"}), "the training has no end; set"),
        (lambda: regard.fit(Line(), iter(ROWS), **steps), "data is a list_iterator; expected a list, or another"),
        (lambda: regard.fit(Line(), [], **steps), "data is empty; give at least one example"),
        (lambda: regard.fit(Line(), ROWS, **steps, train={"lrr": 1}), "train.lrr is not a key; did you mean train.lr"),
        (lambda: regard.fit(Line(), ROWS, **steps, train={"metric": "f1"}), 'train.metric is "f1"; expected one of loss'),
        (lambda: regard.fit(len, ROWS, **steps), "objective is a builtin_function_or_method; expected an nn.Module"),  # type: ignore[arg-type]
        (lambda: regard.fit(Line(), ROWS, **steps, metrics={"a": len}), "but there are no data for validation; give valid="),
        (lambda: regard.fit(Line(), ROWS, **steps, resume=True), "holds no run to resume; leave out resume to start one"),
        (lambda: regard.fit(Line(), ROWS, **steps, collate=lambda rows: rows[99]), r"the function <lambda> failed on data"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=words):
            call()
    train(tmp_path / "recipe")
    with pytest.raises(UserError, match="recipe holds a run of a recipe; resume it with regard.train"):
        regard.fit(Line(), ROWS, out=tmp_path / "recipe", overrides=steps["overrides"], resume=True)


# --- scikit-learn ----------------------------------------------------------------------------------------------------


def test_scikit_learn_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "regard.sklearn", raising=False)
    with pytest.raises(UserError, match=r"regard.sklearn needs scikit-learn; install it with: pip install"):
        importlib.import_module("regard.sklearn")


def test_the_classifier_of_scikit_learn() -> None:
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import GridSearchCV, cross_val_score

    from regard.sklearn import Classifier

    texts, labels = [text for text, _ in EXAMPLES], [label == "glad" for _, label in EXAMPLES]
    settings = {key: each for key, each in TINY.items() if key not in ("train.lr", "train.steps")}
    settings |= {
        "tokenizer.kind": "word",
        "model.dropout": 0.0,
        "model.width": 32,
        "data.ngrams.order": 0,  # they need no training, whatever the rate
        "train.warmup": 5,
        "train.eval_every": 50,
    }
    classifier = Classifier(steps=4, settings=settings)
    with pytest.raises(NotFittedError):
        classifier.predict(texts)
    copy = clone(classifier)
    assert copy.get_params() == classifier.get_params() and copy is not classifier
    assert cross_val_score(classifier, texts, labels, cv=2).shape == (2,)
    search = GridSearchCV(classifier, {"lr": [1e-5, 1e-2], "steps": [40]}, cv=2).fit(texts, labels)
    assert search.best_params_["lr"] == 1e-2 and search.score(texts, labels) > 0.7
    best = search.best_estimator_
    assert best.predict_proba(texts[:3]).sum(1) == pytest.approx([1, 1, 1]) and best.predict([]).shape == (0,)
    assert set(best.predict(texts).tolist()) <= {True, False}
    with pytest.raises(UserError, match="all 2 texts have the same label; a classifier needs at least two"):
        classifier.fit(["a", "b"], [1, 1])
    with pytest.raises(UserError, match="there are 2 texts and 1 labels; give one label for each text"):
        classifier.fit(["a", "b"], [1])
