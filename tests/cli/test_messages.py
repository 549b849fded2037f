"""Sentences for mistakes that no end-to-end test makes."""

import errno
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard import plugins, recipes
from regard.adapt.injection import Injection
from regard.adapt.virtual_tokens import initial_tokens
from regard.cli.embeddings import print_embeddings
from regard.config.run import load_config
from regard.config.tuning import Lora, Untuned
from regard.data.files.open import open_decompressed
from regard.data.tables import arrow
from regard.errors import UserError
from regard.families import gpt
from regard.families.spec import ModelSpec
from regard.files import atomic_write
from regard.formats import model_card
from regard.formats.ctranslate2 import import_ctranslate2
from regard.formats.peft.read import load_adapter
from regard.formats.peft.virtual_tokens import VECTORS, load_virtual_tokens
from regard.parts.layer import smallest_context
from regard.processors.image.processor import open_image
from regard.processors.sound.log_mel import read_sound, resample
from regard.processors.text.external import sentencepiece_processor
from regard.runs.tuned import base_folder
from regard.synthetic.matching import MatchingSource
from regard.tasks.predictor import Predictor
from regard.tasks.translate.task import TranslatePredictor
from regard.testing import outputs_of
from regard.training import loop


def test_a_module_is_tuned_once():
    injection = Injection("lora")
    injection.attach("encoder.query", nn.Linear(2, 2))
    with pytest.raises(UserError, match="encoder.query is tuned already; a module takes one method"):
        injection.attach("encoder.query", nn.Linear(2, 2))


def test_a_tuned_base_takes_no_adapter():
    tuned = SimpleNamespace(run=SimpleNamespace(tune=Lora()))
    with pytest.raises(UserError, match="runs/a is tuned itself, so lora cannot be attached to it; merge it first"):
        load_adapter(tuned, Path("lora"), "runs/a")


@pytest.mark.parametrize("tune, words", [(Untuned(), "was started from"), (Lora(), "is tuned over")])
def test_a_start_that_is_gone(tmp_path, tune, words):
    (tmp_path / "run.json").write_text(json.dumps({"format": 3, "config": {}, "processors": {}}))
    run = SimpleNamespace(start=str(tmp_path / "gone"), tune=tune)
    with pytest.raises(UserError, match=f"{words} {tmp_path}/gone, which does not exist; restore it"):
        base_folder(run, tmp_path)


def test_a_training_needs_a_recipe(tmp_path):
    with pytest.raises(UserError, match="no recipe is given; give a name from `regard list` or a .toml file"):
        regard.train(out=tmp_path / "run")


def test_every_source_needs_its_target():
    with pytest.raises(UserError, match="there are 1 sources and 2 targets; each source needs its target"):
        TranslatePredictor.score_requests(SimpleNamespace(), ["a"], ["b", "c"])


def test_other_sounds_need_a_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(UserError, match=r"the bytes is no plain WAV; for other formats: pip install 'regard\[audio\]'"):
        read_sound(b"fLaC")


def missing(monkeypatch, *modules: str) -> None:
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    "module, call, words",
    [
        (
            "pyarrow",
            lambda: arrow._import_arrow("a.parquet"),
            r"a.parquet needs pyarrow, .* pip install 'regard\[tables\]'",
        ),
        (
            "zstandard",
            lambda: open_decompressed(Path("a.zst")),
            r"a.zst needs zstandard, .* pip install 'regard\[tables\]'",
        ),
        ("ctranslate2", import_ctranslate2, r"--to ctranslate2 needs ctranslate2; .* pip install 'regard\[export\]'"),
        (
            "scipy.signal",
            lambda: resample(np.zeros(9), 8000, 16000),
            r"resampled by 2/1; pip install 'regard\[audio\]'",
        ),
        (
            "sentencepiece",
            sentencepiece_processor,
            r"Marian folders need sentencepiece; .* pip install 'regard\[marian\]'",
        ),
        ("PIL", lambda: open_image(b""), r"images need Pillow; .* pip install 'regard\[vision\]'"),
    ],
)
def test_a_package_that_is_missing(monkeypatch, module, call, words):
    missing(monkeypatch, module)
    with pytest.raises(UserError, match=words):
        call()


def test_virtual_tokens_need_an_embedding():
    with pytest.raises(UserError, match="has no token embedding to put virtual tokens before; use tune.kind=lora"):
        initial_tokens(nn.Sequential(nn.Linear(2, 2)), 3, ())


def test_only_some_models_have_embeddings():
    with pytest.raises(UserError, match="has no embeddings; --embed and --similar are for BERT, ViT and CLIP runs"):
        print_embeddings(object(), [], None)


def test_a_recipe_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"cannot be read: Is a directory; give a readable .toml file"):
        recipes.load_recipe(tmp_path)


def test_a_path_that_cannot_be_written(tmp_path):
    refused = PermissionError(errno.EACCES, "Permission denied")
    with (
        pytest.raises(UserError, match="a.json cannot be written .Permission denied.; choose another path"),
        atomic_write(tmp_path / "a.json"),
    ):
        raise refused


@pytest.mark.parametrize(("sources", "targets"), [("a", ["b"]), (["a"], "b"), ("a", None)])
def test_score_takes_two_of_a_kind(sources, targets):
    with pytest.raises(UserError, match="score takes two texts or two lists of texts, not one of each"):
        TranslatePredictor.score_requests(SimpleNamespace(), sources, targets)


def test_some_runs_cannot_be_compared():
    with pytest.raises(UserError, match="these runs predict no texts or labels, so there is nothing to compare"):
        Predictor.paired_test(SimpleNamespace(), [], [])


def test_marks_need_room():
    with pytest.raises(UserError, match="data.max_tokens=4 leaves 2 words for the marks; use at least"):
        MatchingSource("train", 2, 10, seed=1)


def test_there_are_laws_for_some_outputs_only():
    for spec, words in (
        (ModelSpec(frozenset({"smells"}), frozenset({"next"})), "reads smells"),
        (ModelSpec(frozenset({"tokens"}), frozenset()), "writes nothing"),
    ):
        with pytest.raises(UserError, match=f"odd {words}; there are laws for "):
            outputs_of(SimpleNamespace(__name__="odd", SPEC=spec))


def test_a_damaged_log(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1')
    with pytest.raises(UserError, match=r"metrics.jsonl is damaged .*; restore it, or move it away"):
        model_card.events(tmp_path)


def test_a_prompt_of_another_shape():
    for count, words in (
        (9, r"is \(4, 8\); expected num_virtual_tokens \(9\) rows"),
        ("4", r"expected num_virtual_tokens \('4'\) rows"),
    ):
        with pytest.raises(UserError, match=words):
            load_virtual_tokens(nn.Module(), "prompt", Path("folder"), {VECTORS: torch.zeros(4, 8)}, count)
    settings = {
        "vocab": 9,
        "width": 8,
        "heads": 2,
        "layers": 1,
        "inner": 8,
        "positions": {"kind": "learned", "tokens": 4},
    }
    short = gpt.Model(gpt.Config.model_validate(settings))
    assert smallest_context(short) == 4
    with pytest.raises(UserError, match="folder has 4 virtual tokens, and this base has 4 positions in all"):
        load_virtual_tokens(short, "prompt", Path("folder"), {VECTORS: torch.zeros(4, 8)}, 4)


def test_a_plugin_family_needs_a_name():
    with pytest.raises(UserError, match="Config of the family module odd has no default for `family`; give its name"):
        plugins._family_name(SimpleNamespace(__name__="odd", Config=SimpleNamespace(model_fields={})))


def test_a_new_training_keeps_the_checkpoints_of_another(tmp_path, monkeypatch):
    monkeypatch.setattr(loop.checkpoint, "newest_checkpoint", lambda *_: tmp_path / "step-3")
    ranks = SimpleNamespace(first=True, idle_note=lambda _: [], share=lambda value: value)
    trainer = SimpleNamespace(ranks=ranks, settings=SimpleNamespace(accumulate=1), folder=tmp_path)
    with pytest.raises(UserError, match="already holds a training up to step-3; add --resume to continue it"):
        loop.Trainer.prepare(trainer, resume=False)


def test_a_compiler_that_fails_in_one_of_several_processes():
    def fail(*_):
        raise RuntimeError("no compiler\nat all")

    trainer = SimpleNamespace(
        state=SimpleNamespace(compiled=True), gradients=SimpleNamespace(run=fail), ranks=SimpleNamespace(world=2),
        objective_state=dict,
    )  # fmt: skip
    with pytest.raises(UserError, match=r"torch.compile failed \(no compiler\); set train.compile=false"):
        loop.Trainer.compute_gradients(trainer, 1, SimpleNamespace(micro_batches=[]))


def test_a_run_of_a_plugin_that_is_not_installed():
    with pytest.raises(UserError, match="x/run.json has task=rate, which is not built in; install the plugin"):
        load_config({"task": "rate", "model": {"family": "bert"}}, "x/run.json")
