"""One law over all tasks, on their embedded data. Also a script: see `train_all` and `train_and_kill`.

Train 2 steps, killed after the first → resume → the same bytes as without interruption → a text predicted alone equals
that text in a batch → converted and loaded, it predicts the same. Two processes train what one does.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import regard
from regard.adapt.ngrams import ngrams_of
from regard.config.measured import Measurements
from regard.config.registry import TASKS
from regard.errors import UserError
from regard.formats.convert import exporters
from regard.synthetic import captions, dates, digits, language_id, morse, python_tags, scenes, stdlib
from regard.training import curves

WORLD = 2
TINY = {
    "model.size": "tiny", "model.width": 32, "model.heads": 2, "model.layers": 1, "tokenizer.kind": "byte",
    "data.workers": 0, "train.steps": 2, "train.warmup": 1, "train.schedule.kind": "constant", "train.tokens": 300, "train.accumulate": 2, "train.save_every": 1,
    "train.eval_every": 99, "train.log_every": 1, "train.metric": "loss", "train.tensorboard": False, "device": "cpu",
}  # fmt: skip
GENERATE = {"decode.kind": "greedy", "decode.max_tokens": 6}
LANGUAGE = {"data.max_tokens": 24, **GENERATE}
FEW = {"data.examples": 40}
NO_TEXT = {"tokenizer.kind": None}
AUGMENTED = {"data.mixup": 0.5, "data.cutmix": 1.0, "data.randaugment": 2, "data.color": 0.3, "data.erase": 0.5}
AUGMENTED |= {"data.flip": True, "model.depth_dropout": 0.3}
CHANGED = {
    "data.frame_masks": 2,
    "data.frame_width": 8,
    "data.bin_masks": 2,
    "data.bin_width": 5,
    "data.curriculum": True,
}
SPEECH = {**FEW, "model.inner": 48, "model.decoder_layers": 1, "model.channels": 4, "train.tokens": 1500, **CHANGED}
MIXED = {**FEW, "model.inner": 48, "model.decoder_layers": 1, "model.channels": 4, "model.image": 32, "model.patch": 16}
MIXED |= {"model.ctc.weight": 0.3, "train.tokens": 600, "data.weights": "dates:1,scenes:2,morse:1", "data.bins": 20}
MIXED |= {"train.optimizer.eps": 1e-5}  # key biases have no gradient but rounding, and processes sum in another order
TOWERS = {"model.heads": None, "model.layers": None, "train.batch": 6, "decode.labels": ["a b", "c"]}
TOWERS |= {f"model.text.{name}": value for name, value in (("width", 16), ("layers", 1), ("inner", 24))}
ENCODER = {"model.encoder.image": 32, "model.encoder.layers": 1, "data.crop": 0.5, "data.color": 0.3, "data.erase": 0.5}
ENCODER |= {"model.encoder.pool": "first", "model.encoder.positions": "learned"}  # what a folder can have
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "language": ("language", {**LANGUAGE, "model.family": "gpt", "model.inner": 48}),
    "memory": ("language", {**LANGUAGE, "model.family": "xl", "model.memory": 20, "model.inner": 48, "train.batch": 4}),
    "state": ("language", {**LANGUAGE, "model.family": "rnn", "model.carry_state": True, "train.batch": 4}),
    "translate": ("translate", {**FEW, **GENERATE, "model.inner": 48}),
    "nat": ("translate", {**FEW, "model.inner": 48, "model.family": "nat", "decode.kind": "argmax"}),
    "nat-ctc": ("translate", {**FEW, "model.inner": 48, "model.family": "nat-ctc", "decode.kind": "argmax"}),
    "cmlm": ("translate", {**FEW, "model.inner": 48, "model.family": "cmlm", "decode.kind": "mask-predict"}),
    "text2text": ("text2text", {**FEW, **GENERATE, "model.inner": 48, "model.head_width": 16}),
    "spans": ("spans", {**FEW, **GENERATE, "model.inner": 48, "model.head_width": 16, "data.sentinels": 20}),
    "classify": ("classify", {**FEW, "model.inner": 48}),
    "pairs": (
        "classify",
        {"model.inner": 48, "data.ngrams.order": 0, "data.token_masking": 0.2, "data.max_tokens": 40},
    ),
    "labels": ("classify", {"model.inner": 48, "data.class_weights": ("balanced",)}),
    "number": ("classify", {"model.inner": 48}),
    "tag": ("tag", {**FEW, "model.inner": 48, "model.feed.kind": "plain"}),
    "masked": ("masked", {**FEW, "model.inner": 48}),
    "classify-image": (
        "classify-image",
        {**FEW, "model.inner": 48, "model.image": 28, "model.pool": "first", "train.batch": 6, **AUGMENTED, **NO_TEXT},
    ),
    "detect": ("detect", {**FEW, **NO_TEXT, "model.inner": 48, "train.batch": 6, "data.size": 40}),
    "caption": ("caption", {**FEW, **GENERATE, **ENCODER, "model.inner": 48, "train.batch": 6}),
    "transcribe": ("transcribe", {**SPEECH, "data.speed": (0.9, 1.0, 1.1), "data.noise": 0.5, "decode.max_tokens": 6}),
    "multitask": (
        "multitask",
        {**MIXED, "data.frame_masks": 1, "data.flip": True, "decode.max_tokens": 6},
    ),
    "contrastive": (
        "contrastive",
        {**FEW, **TOWERS, "model.source.image": 32, "model.source.pool": "first", "data.crop": 0.5, "data.erase": 0.5},
    ),
    "contrastive sound": (
        "contrastive",
        {
            **FEW,
            **TOWERS,
            "model.source.kind": "audio",
            "model.source.width": 16,
            "model.source.heads": 2,
            "model.source.layers": 1,
            "model.source.channels": 4,
            "data.bins": 20,
            "data.noise": 0.5,
        },
    ),
    "contrastive text": ("contrastive", {**FEW, **TOWERS, "model.source.kind": "text", "model.text.dropout": 0.1}),
    "transcribe masked": ("transcribe", {**SPEECH, "decode.kind": "ctc", "decode.segment": 0.5}),
}
TABLES = {
    "pairs": [{"text1": f"{i} May", "text2": f"{i % 3} June", "label": "xy"[i % 2]} for i in range(40)],
    "labels": [{"text": f"{i} May", "label": ["a", "b"][: i % 3]} for i in range(40)],
    "number": [{"text": f"{i} May", "label": i / 8} for i in range(40)],
}  # of cases without embedded data
UNFIT = {  # what the format of the family cannot represent
    "detect": "model.backbone_norm.kind=group .*, model.anchors=learned",
    "classify": "data.ngrams.order=2",
    "labels": "data.ngrams.order=2",
    "contrastive sound": "model.source.kind=audio",
    "contrastive text": "model.source.kind=text",
}
TEXTS = ["4 July 2026", "the 1st of May", "def f(x): return x", "Monday"]
KILLED = "translate"  # by a signal, in another process; the other cases copy the folder at that moment


def train(case: str, out: Path, **named: Any) -> Any:
    task, settings = CASES[case]
    own = {"data.cache": str(out.parent / f"cache-{case}")} if task == "language" else {}
    if case in TABLES:
        own = {f"data.{split}": str(out.parent.parent / f"{case}.jsonl") for split in ("train", "valid")}
    whole = {key: value for key, value in {**TINY, **settings, **own}.items() if value is not None}
    return regard.train(task, whole, out=out, **named)


@contextmanager
def small_embedded_data() -> Iterator[None]:
    """Fewer days, languages, modules and validation examples; no curves."""
    changes = [
        (dates, "HELD_OUT", 40),
        (dates, "FIRST_DAY", dates.LAST_DAY - timedelta(2000)),
        (language_id, "LOCALES", ("de", "en", "fr")),
        (python_tags, "HELD_OUT", 20),
        (digits, "HELD_OUT", 20),
        (scenes, "HELD_OUT", 20),
        (captions, "HELD_OUT", 20),
        (morse, "HELD_OUT", 8),
        (stdlib, "stdlib_files", cache(partial(one_module, stdlib.stdlib_files))),
        (curves, "draw", lambda folder: None),
    ]
    with ExitStack() as stack:
        for module, name, value in changes:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def one_module(files: Callable[[str], list[Path]], split: str) -> list[Path]:
    """The smallest module above 3 kB."""
    sizes = {path: path.stat().st_size for path in files(split)}
    return [min((path for path in sizes if sizes[path] > 3000), key=lambda path: (sizes[path], path))]


def inputs_of(case: str) -> list[Any]:
    if case in ("classify-image", "detect", "caption", "contrastive"):
        return [np.full((20 + 9 * number, 30), 50 * number, np.uint8) for number in range(4)]
    if case.startswith("transcribe") or case == "contrastive sound":
        return [morse.MorseSource("test", 4)[number][0] for number in range(4)]
    if case == "pairs":
        return [(text, TEXTS[0]) for text in TEXTS]
    if case == "multitask":
        return [TEXTS[0], np.full((20, 30), 90, np.uint8), morse.MorseSource("test", 4)[0][0], TEXTS[1]]
    return ["a <mask> b", "<mask>", "May <mask>"] if case == "masked" else TEXTS


def train_and_kill(case: str, out: Path) -> None:
    """Train until the second step is logged: the checkpoint of the first one is there."""

    def kill(record: Any) -> None:
        if record["step"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    train(case, out, on_event=kill)


def train_all(folder: Path, rank: int) -> None:
    """Train all cases in one of several processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    for case in CASES:
        train(case, folder / "two" / case)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("tasks")
    for name in ("two", "whole", "killed"):
        (path / name).mkdir()
    for name, rows in TABLES.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with small_embedded_data():
        yield path


@pytest.fixture(scope="module")
def workers(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that train all cases, beside the tests."""
    command = [sys.executable, __file__, str(folder)]
    started = [subprocess.Popen([*command, str(rank)]) for rank in range(WORLD)]
    yield started
    for worker in started:
        worker.kill()
        worker.wait()


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, folder: Path, workers: Any) -> tuple[str, Path]:
    """A case, its folder of an uninterrupted run in `whole`, and of a killed one in `killed`."""
    name, killed = request.param, folder / "killed" / request.param
    whole = folder / "whole" / name

    def copy(record: Any) -> None:
        if record["step"] == 2 and not killed.exists():
            shutil.copytree(whole, killed)

    if name == KILLED:
        done = subprocess.run([sys.executable, __file__, str(killed)])
        assert done.returncode == -signal.SIGKILL
    train(name, whole, on_event=None if name == KILLED else copy)
    return name, folder


@pytest.fixture(scope="module")
def resumed(case: tuple[str, Path]) -> Path:
    """The killed run after it was resumed."""
    killed = case[1] / "killed" / case[0]
    assert [each.name for each in (killed / "checkpoints").iterdir()] == ["step-1"]
    train(case[0], killed, resume=True)
    return killed


def test_a_killed_run_goes_on_to_the_same_bytes(case: tuple[str, Path], resumed: Path) -> None:
    name, folder = case
    killed, whole = resumed, folder / "whole" / name
    for file in (
        "model.safetensors",
        "checkpoints/step-2/model.safetensors",
        "checkpoints/step-2/optimizer.safetensors",
    ):
        assert (killed / file).read_bytes() == (whole / file).read_bytes(), file
    first, last = (load_file(whole / "checkpoints" / step / "model.safetensors") for step in ("step-1", "step-2"))
    assert any(not each.equal(last[key]) for key, each in first.items())  # the second step trained


def same(found: Any, wanted: Any) -> None:
    """Equal records, whose numbers may differ by rounding."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            same(found[key], value)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    else:
        assert found == (pytest.approx(wanted, abs=1e-4) if isinstance(wanted, float) else wanted)


def test_a_text_alone_is_predicted_as_in_a_batch(case: tuple[str, Path], resumed: Path) -> None:
    name, folder = case
    predictor, texts = regard.load(folder / "whole" / name), inputs_of(name)
    together = predictor.predict(texts, details=True)
    same([predictor.predict(text, details=True) for text in texts], together)
    same(regard.load(resumed).predict(texts, details=True), together)


def test_a_converted_run_predicts_the_same(case: tuple[str, Path]) -> None:
    name, folder = case
    run, out = folder / "whole" / name, folder / f"hugging-{name}"
    predictor, texts = regard.load(run), inputs_of(name)
    family = predictor.run.model.family
    exporter = next(iter(exporters("huggingface").get(family, [])), None)
    unfit = exporter and (exporter.unsupported(predictor.run.model) or ngrams_of(predictor.module) is not None)
    if unfit:  # what trains from scratch differs from what is published
        with pytest.raises(UserError, match=f"what does not fit: {UNFIT[name]}"):
            regard.convert(run, to="huggingface", out=out)
        assert not out.exists()
    elif exporter:
        regard.convert(run, to="huggingface", out=out)
        predictor.measured = Measurements()  # a folder has no choice of the heads that align
        asked = {"labels": predictor.run.decode.labels} if name == "contrastive" else {}  # a folder has none
        same(regard.load(out).predict(texts, details=True, **asked), predictor.predict(texts, details=True))
    else:
        with pytest.raises(UserError, match=f"cannot become --to huggingface: model.family is {family}; expected "):
            regard.convert(run, to="huggingface", out=out)
        assert not out.exists()


def test_averaged_checkpoints_are_their_mean(case: tuple[str, Path]) -> None:
    name, folder = case
    run, out = folder / "whole" / name, folder / f"average-{name}"
    regard.convert(run, average=2, out=out)
    one, two = (load_file(run / "checkpoints" / step / "model.safetensors") for step in ("step-1", "step-2"))
    for key, each in load_file(out / "model.safetensors").items():
        torch.testing.assert_close(each, ((one[key].float() + two[key].float()) / 2).to(each.dtype))
    texts = inputs_of(name)
    assert len(regard.load(out).predict(texts)) == len(texts)


def test_two_processes_train_what_one_does(case: tuple[str, Path], workers: list[subprocess.Popen[bytes]]) -> None:
    name, folder = case
    assert [worker.wait(120) for worker in workers] == [0] * WORLD
    for step in ("step-1", "step-2"):
        one, two = (
            load_file(folder / run / name / "checkpoints" / step / "model.safetensors") for run in ("whole", "two")
        )
        assert one.keys() == two.keys()
        for key, each in one.items():
            torch.testing.assert_close(two[key], each, rtol=1e-4, atol=1e-5, msg=f"{step} {key}")


def test_every_task_has_a_case() -> None:
    assert {task for task, _ in CASES.values()} == set(TASKS)


if __name__ == "__main__":
    with small_embedded_data():
        if len(sys.argv) == 2:
            train_and_kill(KILLED, Path(sys.argv[1]))
        else:
            train_all(Path(sys.argv[1]), int(sys.argv[2]))
