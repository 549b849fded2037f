"""Texts, images and sound in one model: prediction by kind and task, evaluation, errors, and single tasks."""

import json
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import regard
from regard.cli.app import main
from regard.data.sources.task_mixture import TaskMixture
from regard.errors import UserError
from regard.messages.media import Image as Media
from regard.messages.media import Item
from regard.messages.verbs import LookRequest, ScoreRequest
from regard.processors.sound.read import Samples
from regard.tasks.multitask.items import as_item, input_of, is_single
from regard.tasks.multitask.task import losses
from regard.training import curves
from regard.training.step import GradientStep

SETTINGS = {
    "model.size": "tiny", "model.width": 32, "model.heads": 2, "model.layers": 1, "model.decoder_layers": 1,
    "model.inner": 48, "model.channels": 4, "model.image": 16, "model.patch": 8, "tokenizer.kind": "char", "data.rate": 8000,
    "data.bins": 20, "data.crop": 1, "data.flip": False, "train.steps": 3, "train.warmup": 1, "train.tokens": 400,
    "train.tensorboard": False, "train.metric": "exact", "decode.kind": "greedy", "decode.max_tokens": 5, "device": "cpu",
}  # fmt: skip
RNG = np.random.default_rng(1)
IMAGE = RNG.integers(0, 256, (16, 16, 3), np.uint8)
SOUND = Samples(RNG.normal(0, 0.1, 4000).astype(np.float32), 8000)
LINES = [
    *({"text": text, "target": text[::-1], "task": "reverse"} for text in ("abc", "bca", "cab", "acb")),
    *({"text": text, "target": text, "task": "copy"} for text in ("abc", "ccb", "bab")),
    *({"image": RNG.integers(0, 256, (16, 16, 3), np.uint8), "target": "abba"} for _ in range(3)),
    *({"audio": Samples(RNG.normal(0, 0.1, 3000).astype(np.float32), 8000), "target": "cc"} for _ in range(3)),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with mock.patch.object(curves, "draw", lambda folder: None):
        data = {"train": LINES, "valid": LINES[::2]}
        regard.train("multitask", SETTINGS, data=data, out=(out := tmp_path_factory.mktemp("omni") / "run"))
    return out


@pytest.fixture(scope="module")
def predictor(run):
    return regard.load(run)


def test_validation_has_a_loss_for_every_kind_and_a_score_for_every_task(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = next(each for each in reversed(records) if "text_loss" in str(each))
    whole = found.get("valid", found)
    assert {"loss", "text_loss", "image_loss", "audio_loss", "exact", "reverse_exact", "copy_exact"} <= whole.keys()


def test_the_kind_decides_the_task_unless_there_are_several(predictor):
    found = predictor.predict([IMAGE, SOUND], details=True)
    assert [each["task"] for each in found] == ["image", "audio"] and len(found[0]["logprobs"]) >= 1
    image, sound = (each["alignment"] for each in found)
    assert image["kind"] == "patches" and sound["kind"] == "times"
    assert all(0 <= row < 2 > column >= 0 for row, column in image["patches"])
    assert all(0 <= start < end < 0.6 for start, end in sound["times"])
    assert [len(image["patches"]), len(sound["times"])] == [len(each["tokens"]) for each in found]
    assert [each["usage"]["input"] for each in found] == [4, 96]  # patches and frames
    with pytest.raises(UserError, match="2 tasks for inputs of kind text; choose one: decode.task=reverse"):
        predictor.predict("abc")
    with pytest.raises(UserError, match="decode.task is 'revers', which this run did not learn; .* mean reverse"):
        predictor.predict("abc", task="revers")
    both = predictor.predict([{"text": "abc", "task": "copy"}, {"text": "abc", "task": "reverse"}], details=True)
    assert [each["task"] for each in both] == ["copy", "reverse"]
    assert both[0]["logprob"] != both[1]["logprob"]  # the decoder reads the tag
    aligned = both[0]["alignment"]
    assert aligned["kind"] == "tokens" and all(0 <= place <= 3 for place in aligned["positions"])
    assert aligned["source"] == ["a", "b", "c"] and len(aligned["positions"]) == len(both[0]["tokens"])
    assert predictor.predict({"text": " ", "task": "copy"}) == ""


def test_attention_is_over_tokens_patches_and_times(predictor):
    text = {"text": "cab", "task": "copy"}
    for item, first, kind in ((IMAGE, "row 1, column 1", "patches"), (SOUND, "0.01", "frames"), (text, "c", "tokens")):
        view = predictor.look(item, "ab")
        assert view.source[0] == first and view.target == ["a", "b", "■"]
        assert [segment.kind for segment in view.axes["source"].segments][-1] == kind
        assert view.kinds == ["encoder", "decoder", "cross"]
        encoder = predictor.look(item, "ab", layer=1).layer_map(1, "encoder")
        assert encoder.weights.shape[1:] == (len(view.source), len(view.source))
        torch.testing.assert_close(encoder.weights, view.layer_map(1, "encoder").weights)
        assert tuple(view.cross().shape) == (3, len(view.source))
        torch.testing.assert_close(view.cross().sum(1), torch.ones(3))
    assert predictor.look(IMAGE).target[-1] == "■"


def test_an_item_of_a_request_has_its_task(predictor):
    """Also one whose text is like the name of a file."""
    item, given = Item(text="a.png", task="copy"), {"text": "a.png", "task": "copy"}
    (scored,) = predictor.run_all(predictor.answer_score, [ScoreRequest(item, "ab", details=True)])
    assert scored.score == pytest.approx(predictor.score(given, "ab")) and scored.tokens == ("a", "b", "■")
    assert scored.score != pytest.approx(predictor.score({**given, "task": "reverse"}, "ab"))
    (shown,) = predictor.run_all(predictor.answer_look, [LookRequest(item, "ab")])
    assert shown.axes["source"][0] == "a" and shown.axes["prefix"][0] == "□"
    assert sum(shown.logprobs) == pytest.approx(scored.score)
    (image,) = predictor.run_all(predictor.answer_look, [LookRequest(Item(image=Media(IMAGE)))])
    assert image.axes["source"][0] == "row 1, column 1"


def test_evaluation_has_the_metrics_of_every_task_and_their_mean(predictor):
    metrics, found, references = predictor.evaluate_with_outputs(regard.data.sources.data_files.evaluation_files(LINES))
    assert metrics["examples"] == len(LINES) == len(found) and references[0] == "cba"
    tasks = metrics["tasks"]
    assert {name: [*each] for name, each in tasks.items()} == {
        "reverse": ["bleu", "chrf", "exact"], "copy": ["bleu", "chrf", "exact"], "image": ["bleu", "chrf", "exact"],
        "audio": ["wer", "cer", "exact"],
    }  # fmt: skip
    assert metrics["exact"] == pytest.approx(sum(each["exact"] for each in tasks.values()) / 4)
    mixture = TaskMixture(regard.data.sources.manifest.ManifestRecords("x", LINES, predictor.run.data))
    assert metrics["loss"] == pytest.approx(losses(predictor, mixture)["loss"])
    signatures, results = predictor.paired_test([found, found], references)
    assert signatures and results
    with pytest.raises(
        UserError, match="record 1 has the task sing .audio., which data.train never has; expected reverse"
    ):
        predictor.evaluate([{"audio": SOUND, "target": "a", "task": "sing"}])


def test_items_are_told_apart_by_a_rule(tmp_path):
    from PIL import Image

    assert as_item("a sentence.") == Item(text="a sentence.") == as_item(Item(text="a sentence."))
    for image in ("a.png", tmp_path / "a.JPG", Image.new("L", (2, 2)), np.zeros((4, 4))):
        assert input_of(as_item(image))[0] == "image"
    for sound in ("b.wav", SOUND, np.zeros(9)):
        assert input_of(as_item(sound))[0] == "audio"
    assert input_of(as_item("a.png"))[1].raw == Path("a.png") and input_of(as_item(SOUND))[1].raw is SOUND
    assert as_item({"text": "a.png"}) == Item(text="a.png")
    assert as_item({"text": "a", "task": "copy"}) == Item(text="a", task="copy")
    assert is_single(SOUND) and is_single({"text": "a"}) and not is_single(["a"]) and not is_single(("a", "b"))
    for wrong, message in (
        (tmp_path / "a.doc", "neither an image nor"),
        (5, "a int is no text"),
        ({}, "an input has no"),
    ):
        with pytest.raises(UserError, match=message):
            as_item(wrong)


def test_the_command_line_reads_files_by_their_names(run, tmp_path, capsys, monkeypatch):
    import io

    import soundfile
    from PIL import Image

    Image.fromarray(IMAGE).save(tmp_path / "a.png")
    soundfile.write(tmp_path / "b.wav", SOUND.samples, 8000)
    (tmp_path / "c.txt").write_text("abc\nbca\n")
    (tmp_path / "d.jsonl").write_text('{"image": "a.png"}\n\n{"text": "cab", "task": "copy"}\n')
    files = [str(tmp_path / name) for name in ("a.png", "b.wav", "c.txt", "d.jsonl")]
    assert main(["predict", str(run), *files, "decode.task=copy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\ncc\n")))
    assert main(["predict", str(run), "--task", "copy", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["path"], each["task"]) for each in records] == [("stdin:1", "copy"), ("stdin:2", "copy")]
    assert records[0]["text"] == lines[2]
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.png").rename(tmp_path / "folder" / "a.png")
    assert main(["predict", str(run), str(tmp_path / "folder")]) == 0
    assert main(["look", str(run), str(tmp_path / "folder" / "a.png"), "--out", str(tmp_path / "look.png")]) == 0
    assert (tmp_path / "look.png").stat().st_size > 1000
    (tmp_path / "e.bin").write_text("a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "f.jsonl").write_text('{"video": "a"}\n')
    for name, message in (
        ("e.bin", "e.bin is neither an image nor a recording by its name"),
        ("empty", "has neither images nor recordings"),
        ("f.jsonl", "f.jsonl:1: no input of a known kind"),
    ):
        capsys.readouterr()
        assert main(["predict", str(run), str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err


def refused(message, tmp_path, lines=LINES, valid=LINES, **settings):
    with pytest.raises(UserError, match=message):
        regard.train("multitask", {**SETTINGS, **settings}, data={"train": lines, "valid": valid}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bad_data_are_refused_before_training(tmp_path):
    refused("data.valid: .* has no line with 'audio', and data.train has; add some", tmp_path, valid=LINES[:9])
    wrong = [{**LINES[0], "task": "other"}, *LINES]
    refused("data.valid: .* record 1 has the task other .text., which data.train never has", tmp_path, valid=wrong)
    refused("data.weights names the task 'x', which data.train lacks", tmp_path, **{"data.weights": "x:1"})
    refused(
        "decode.split is not a key; `--show all` lists the keys of this task and family",
        tmp_path,
        **{"decode.split": True},
    )
    with pytest.raises(UserError, match="model.family=vit cannot be used for the task multitask; expected one of omni"):
        regard.train("multitask", {"model.family": "vit", "model.size": "tiny"}, data={"train": LINES}, out=tmp_path)


def test_a_run_reads_the_kinds_that_it_learned(tmp_path):
    with mock.patch.object(curves, "draw", lambda folder: None):
        texts = regard.train("multitask", SETTINGS, data={"train": LINES[:4]}, out=tmp_path / "run")
    assert texts.run.model.inputs == ("tokens",) and texts.predict("abc") == regard.load(tmp_path / "run").predict(
        "abc"
    )
    with pytest.raises(UserError, match="this run reads text, but an input is of kind image; leave it out"):
        texts.predict(IMAGE, task="reverse")
    with pytest.raises(UserError, match="this run reads text, but an input is of kind audio; leave it out"):
        texts.score(SOUND, "a")
    values = json.loads((tmp_path / "run" / "run.json").read_text())
    del values["processors"]["task"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="lacks the tags of its tasks; restore them"):
        regard.load(tmp_path / "run")


def test_a_run_without_a_processor_is_refused(run, tmp_path):
    import shutil

    shutil.copytree(run, tmp_path / "run")
    values = json.loads((tmp_path / "run" / "run.json").read_text())
    del values["processors"]["audio"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="run.json lists no processor of frames; restore it"):
        regard.load(tmp_path / "run")


def test_long_recordings_are_refused(predictor):
    long = Samples(np.zeros(8000 * 31, np.float32), 8000)
    with pytest.raises(UserError, match="a sound has 31.0 seconds and this run reads at most 30"):
        predictor.predict(long)


def test_gradients_of_a_step_do_not_depend_on_accumulation(run):
    """The loss of a step is divided by the target tokens of all its kinds."""
    from regard.config.run import resolve_run
    from regard.tasks.task import prepare

    gradients = []
    for count in (1, 3):
        given = {**SETTINGS, "train.accumulate": count, "model.dropout": 0.0, "model.ctc.weight": 0.3}
        given["data.train"] = ((regard.data.files.in_memory.InMemory(LINES),),)
        job = prepare(resolve_run("multitask", given).run, {}, torch.device("cpu"))
        step = next(job.steps(0, 0))
        GradientStep(job.objective, torch.device("cpu")).run(1, step.micro_batches)
        gradients.append({name: each.grad for name, each in job.model.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, each in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], each, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("task", ["translate", "caption", "transcribe"])
def test_single_tasks_train_the_same_family(task, tmp_path):
    own = {"transcribe": {"data.examples": 8, "model.ctc.weight": 0.3}}.get(task, {"data.examples": 30})
    left = ("data.crop", "data.flip", "train.metric", *(("data.rate", "data.bins") if task != "transcribe" else ()))
    given = {key: value for key, value in SETTINGS.items() if key not in left}
    given |= {"model.family": "omni", "train.steps": 1, "train.eval_every": 99, **own}
    with mock.patch.object(curves, "draw", lambda folder: None), small_data():
        found = regard.train(task, given, out=tmp_path / "run")
    assert found.run.model.inputs == {"translate": ("tokens",), "caption": ("pixels",), "transcribe": ("frames",)}[task]
    assert isinstance(found.predict({"translate": "4 July 2026", "caption": IMAGE, "transcribe": SOUND}[task]), str)


def small_data():
    from contextlib import ExitStack

    from regard.synthetic import captions, dates, morse

    stack = ExitStack()
    for module in (captions, dates, morse):
        stack.enter_context(mock.patch.object(module, "HELD_OUT", 4))
    return stack


def test_one_vocabulary(tmp_path):
    with pytest.raises(UserError, match="the positions of patches need a width that 4 divides, not 34"):
        regard.resolve("multitask", {"model.width": 34, "model.heads": 1})
    with pytest.raises(UserError, match="model.target_vocab is .*, but model.family=omni has one vocabulary; use"):
        regard.train(
            "translate",
            {
                "model.family": "omni",
                "model.size": "tiny",
                "tokenizer.joint": False,
                "data.examples": 50,
                "tokenizer.vocab": 300,
            },
            out=tmp_path / "run",
        )
