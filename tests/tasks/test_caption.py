"""Captions: details, scores, attention, training, evaluation, mistakes, CIDEr-D."""

import copy
import json
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.cli import main
from regard.data.sources.data_files import evaluation_files
from regard.decode import Beam
from regard.errors import UserError
from regard.messages.media import Image as Media
from regard.messages.texts import CaptionRequest, GeneratedText, Usage
from regard.metrics.captions import cider
from regard.parts import Inputs
from regard.synthetic import captions
from regard.tasks.caption.task import CaptionPredictor, loss_metrics
from regard.tasks.generate.writer import TextWriter
from regard.tasks.task import prepare
from regard.training import curves

ENCODER = {
    "model.encoder.pool": "first",
    "model.encoder.image": 16,
    "model.encoder.patch": 8,
    "model.encoder.width": 24,
    "model.encoder.layers": 1,
}
TINY = {
    **ENCODER, "model.width": 32, "model.layers": 2, "model.inner": 32, "data.examples": 30, "train.steps": 2,
    "train.warmup": 1, "train.batch": 8, "train.eval_every": 2, "train.save_every": 1, "train.metric": "loss",
    "train.tensorboard": False, "device": "cpu", "decode.max_tokens": 8,
}  # fmt: skip
RNG = np.random.default_rng(2)
IMAGES = [RNG.integers(0, 256, (20 + 9 * number, 30, 3), np.uint8) for number in range(3)]


@pytest.fixture(scope="module", autouse=True)
def few() -> Any:
    with mock.patch.object(captions, "HELD_OUT", 6), mock.patch.object(curves, "draw", lambda folder: None):
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("caption") / "run"
    regard.train("caption", TINY, out=out)
    return out


@pytest.fixture(scope="module")
def predictor(run: Path) -> CaptionPredictor:
    """It writes nonsense that depends on the image: its weights are larger than those of a training."""
    found: CaptionPredictor = regard.load(run)
    with torch.no_grad():
        for weight in found.module.parameters():
            weight.mul_(4 if weight.dim() > 1 else 1)
    return found


# --- predictions -----------------------------------------------------------------------------------------------------


def test_details_and_constraints(predictor: CaptionPredictor) -> None:
    settings = {"kind": "beam", "beam": 4, "nbest": 2, "include": "red cross", "max_tokens": 12}
    record = predictor.predict(IMAGES[0], details=True, **settings)
    assert json.loads(json.dumps(record)) == record and "red cross" in record["text"] and len(record["nbest"]) == 2
    assert list(record)[:4] == ["text", "score", "logprob", "finish"] and record["nbest"][0]["text"] == record["text"]
    patches = record["alignment"]["patches"]
    assert len(patches) == len(record["tokens"]) and all(0 <= row < 2 > column >= 0 for row, column in patches)
    assert record["usage"]["input"] == 4 and record["usage"]["output"] == sum(
        each["length"] for each in record["nbest"]
    )
    plain = predictor.predict(IMAGES[0], details=True, kind="greedy")
    assert sum(plain["logprobs"]) == pytest.approx(plain["logprob"], abs=1e-4)
    request = CaptionRequest(Media(IMAGES[0]), include=("blue",), strategy=Beam(2))
    for texts, words in (
        ([GeneratedText("red", -1.0, -1.0, "end", missing=("blue",))], "lacks the phrase 'blue'"),
        ([], "no text satisfies decode.* for the image"),
    ):
        with mock.patch.object(TextWriter, "write", writes(texts)):
            (result,) = predictor.predict_requests([request])
        assert result.missing == ("blue",) and result.text == "".join(text.text for text in texts)
        (notice,) = result.notices
        assert words in notice


def writes(texts: list[GeneratedText]) -> Any:
    """In place of TextWriter.write."""

    async def write(*_: object) -> Any:
        source = SimpleNamespace(array=np.arange(12).reshape(3, 2, 2))
        return SimpleNamespace(source=source, texts=texts, usage=Usage(4, 0))

    return write


def test_scores_are_those_of_the_model(predictor: CaptionPredictor) -> None:
    texts = ["a red circle", "a blue cross above a red circle", "white"]
    alone = [predictor.score(image, text) for image, text in zip(IMAGES, texts, strict=True)]
    assert predictor.score(IMAGES, texts) == pytest.approx(alone, abs=1e-4)
    (ids,) = predictor.target.encode(texts[:1])
    source = predictor.image.collate([predictor.image.encode(IMAGES[0])])
    logits = predictor.model(source, Inputs("tokens", torch.tensor([[predictor.target.start, *ids]])))
    wanted = logits[0].log_softmax(-1)[range(len(ids) + 1), [*ids, predictor.target.end]].tolist()
    found = predictor.score(IMAGES[:1], texts[:1], details=True)[0]
    assert found["logprobs"] == pytest.approx(wanted, abs=1e-4) and found["score"] == pytest.approx(alone[0], abs=1e-4)
    assert found["tokens"][-1] == "■" and len(found["tokens"]) == len(ids) + 1
    for arguments in ((IMAGES[0],), (IMAGES, "a"), (IMAGES[0], ["a"])):
        with pytest.raises(UserError, match="score takes an image and its caption, or a list of each"):
            predictor.score(*arguments)
    with pytest.raises(UserError, match="3 images and 1 captions; give a caption for each image"):
        predictor.score(IMAGES, ["a"])
    with pytest.raises(UserError, match="a caption has 202 tokens with END and the model has 128 positions"):
        predictor.score(IMAGES[:1], ["red " * 200])


def test_attention_over_patches(predictor: CaptionPredictor, tmp_path: Path) -> None:
    view = predictor.look(IMAGES[0], "a red circle")
    patches = [f"row {row}, column {column}" for row in (1, 2) for column in (1, 2)]
    assert view.source == ["[CLS]", *patches] and view.target[-1] == "■"
    assert view.kinds == ["encoder", "decoder", "cross"]
    assert [segment.kind for segment in view.axes["source"].segments] == ["tokens", "patches"]
    assert {name: len(axis) for name, axis in view.axes.items()} == {"source": 5, "target": 4, "prefix": 4}
    weights = view.cross()
    assert weights.shape == (4, 5) and torch.allclose(weights.sum(1), torch.ones(4))
    own, written = predictor.look(IMAGES[0]), predictor.predict(IMAGES[0], details=True, kind="beam")
    assert own.cross().size(1) == 5 and own.target[:-1] == written["tokens"]
    first = predictor.look(IMAGES[0], "a red circle", layer=1)
    assert {(each.kind, each.layer) for each in first.maps} == {("encoder", 1), ("decoder", 1), ("cross", 1)}
    torch.testing.assert_close(first.layer_map(1, "cross").weights, view.layer_map(1, "cross").weights)
    view.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


# --- runs ------------------------------------------------------------------------------------------------------------


def test_evaluation_has_one_item_for_an_image(run: Path, tmp_path: Path) -> None:
    predictor = regard.load(run)
    rows = [(image, ["a red circle", "the red circle"]) for image in IMAGES]
    metrics = predictor.evaluate(rows)
    assert metrics["examples"] == 3 and {"bleu", "chrf", "cider", "exact", "loss", "perplexity"} <= metrics.keys()
    assert "nrefs:2" in metrics["bleu signature"]
    loss = -sum(predictor.score(IMAGES, ["a red circle"] * 3)) / 12
    assert metrics["loss"] == pytest.approx(loss, abs=1e-4)
    with mock.patch.object(CaptionPredictor, "predict", lambda self, images, **_: ["the red circle"] * len(images)):
        _, found, references = predictor.evaluate_with_outputs(evaluation_files(rows))
        assert predictor.evaluate(rows)["exact"] == 1.0
    signatures, results = predictor.paired_test([found, ["a"] * 3], references)
    assert set(signatures) == {"bleu", "chrf"} and results[1]["chrf"]["score"] < results[0]["chrf"]["score"]


def test_a_damaged_model_has_no_answer_and_a_loss_that_is_not_a_number(predictor: CaptionPredictor) -> None:
    """So training reports the loss, and goes on or ends by its own rules."""
    damaged = predictor.with_model(copy.deepcopy(predictor.module))
    with torch.no_grad():
        next(damaged.module.parameters()).fill_(math.nan)
    for call in (lambda: damaged.score(IMAGES[0], "a"), lambda: damaged.predict(IMAGES[0])):
        with pytest.raises(UserError, match="the model gives numbers that are not finite"):
            call()
    examples: Any = [(image, "a") for image in IMAGES]
    assert math.isnan(loss_metrics(damaged, examples, [["a"]] * 3)["loss"])


def test_training_on_files_with_several_captions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every caption is an example; a text score chooses the weights; long captions are left out and reported."""
    for number, image in enumerate(IMAGES):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png\t{word} dog {number}" for number in range(3) for word in ("a", "the", "one")]
    (tmp_path / "c.tsv").write_text("\n".join([*lines, f"2.png\t{'dog ' * 300}"]) + "\n")
    settings = [f"{key}={value}" for key, value in TINY.items() if key != "data.examples"]
    table, out = f"{tmp_path}/c.tsv", tmp_path / "run"
    changes = ["train.metric=cider", "data.erase=0.5", "data.color=0.2"]
    command = ["train", "caption", f"data.train={table}", f"data.valid={table}", *settings, *changes]
    assert main([*command, "--out", str(out)]) == 0
    report = capsys.readouterr().err
    assert "train: 10 examples" in report and "valid: 3 examples" in report and "10 captions of 3 images" in report
    assert "cider" in report
    job = prepare(regard.load(out).run, {}, torch.device("cpu"))
    assert sum(len(batch["source"]) for step in job.steps(0, 0) for batch in step.micro_batches) == 9
    facts = job.describe_data()
    assert facts[-1].startswith("1 of 10 examples left out because they have a caption of more than 128 tokens")
    assert facts[-1].endswith(f"(model.positions.tokens), such as {table}:10")
    assert main(["predict", str(out), str(tmp_path / "0.png"), str(tmp_path / "1.png")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["predict", str(out), str(tmp_path / "0.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(tmp_path / "0.png")
    assert main(["look", str(out), str(tmp_path / "0.png"), "--out", str(tmp_path / "look.png")]) == 0
    assert (tmp_path / "look.png").is_file()
    tuned = [*command, f"start={out}", "tune.kind=lora", "--out", str(tmp_path / "tuned")]
    assert main([each for each in tuned if not each.startswith("model.")]) == 0


def test_mistakes_end_with_one_sentence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(words: str, *arguments: object) -> None:
        assert main([str(each) for each in arguments]) == 2
        error = capsys.readouterr().err.strip()
        assert re.search(words, error) and error.count("\n") == 0, error

    (tmp_path / "a.txt").write_text("a sentence\n")
    refused("a.txt cannot be read as an image", "predict", run, tmp_path / "a.txt")
    refused("decode.split_sentences is not a key", "predict", run, tmp_path / "a.txt", "decode.split_sentences=true")
    refused("decode.encoder_no_repeat_ngram_size is not a key", "eval", run, "decode.encoder_no_repeat_ngram_size=2")
    refused(
        "model.family=vit cannot be used for the task caption; expected .*captioner",
        "train",
        "caption",
        "model.family=vit",
        "--dry",
    )
    with pytest.raises(UserError, match="a caption of data.valid has .* tokens with END and the model has 6 positions"):
        regard.train("caption", TINY | {"model.positions.tokens": 6}, out=tmp_path / "no")
    about = json.loads((run / "run.json").read_text())
    del about["processors"]["image"]
    shutil.copytree(run, tmp_path / "without")
    (tmp_path / "without" / "run.json").write_text(json.dumps(about))
    refused("without lacks its image processor; restore it", "predict", tmp_path / "without", tmp_path / "a.txt")


def test_a_text_run_refuses_an_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(IMAGES[0]).save(tmp_path / "a.png")
    settings = {"model.width": 16, "model.heads": 2, "model.layers": 1, "model.inner": 16, "train.steps": 1}
    settings |= {"train.warmup": 1, "data.examples": 20, "train.eval_every": 9, "train.tensorboard": False}
    regard.train("translate", settings, out=tmp_path / "run")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "a.png")]) == 2
    error = capsys.readouterr().err.strip()
    assert "a.png" in error and error.splitlines()[-1].startswith("regard: ")


# --- CIDEr-D ---------------------------------------------------------------------------------------------------------


def published_cider(predicted: list[str], references: list[list[str]]) -> float:
    """The formula of the paper, with vectors over all n-grams: an independent computation."""
    texts = [text for own in references for text in own] + predicted
    scores = np.zeros((len(predicted), 4))
    for size in range(1, 5):
        grams = {
            text: [" ".join(text.split()[i : i + size]) for i in range(len(text.split()) - size + 1)] for text in texts
        }
        names = sorted({gram for own in grams.values() for gram in own})
        df = np.array([max(sum(any(name in grams[text] for text in own) for own in references), 1) for name in names])
        weigh = lambda text: np.array([grams[text].count(name) for name in names]) * np.log(len(references) / df)  # noqa: E731, B023
        for i, (text, own) in enumerate(zip(predicted, references, strict=True)):
            for reference in own:
                c, s = weigh(text), weigh(reference)
                norm = np.linalg.norm(c) * np.linalg.norm(s)
                gauss = math.exp(-((len(text.split()) - len(reference.split())) ** 2) / (2 * 6**2))
                scores[i, size - 1] += 10 / len(own) * gauss * (np.minimum(c, s) @ s / norm if norm else 0.0)
    return float(scores.mean())


def test_cider_is_the_published_formula() -> None:
    predicted = ["a red circle red", "a blue cross above a red circle", "a dog runs fast over the green grass", "cat"]
    references = [
        ["a red circle", "one red circle on gray"], ["a blue cross above a red square"],
        ["a dog runs over the grass", "the green grass and a dog", "dog"], ["a small cat"],
    ]  # fmt: skip
    found = cider(predicted, references)
    assert found == pytest.approx(published_cider(predicted, references), rel=1e-9) and 0 < found < 10
    long = ["a red circle left of it", "a blue cross above a red square"]
    assert cider(long, [[text] for text in long]) == pytest.approx(10.0)
    assert cider(["A red, circle!", "x"], [["a red circle"], ["y"]]) == cider(
        ["a red circle", "x"], [["a red circle"], ["y"]]
    )
    assert cider(["a"], [["a"]]) == 0.0 == cider([], []) == cider(["", "b"], [["a"], ["c"]])
