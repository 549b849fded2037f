"""Sentences for mistakes that no end-to-end test makes."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

import regard
from regard.adapt.injection import Injection
from regard.adapt.tuned_run import base_folder
from regard.config.tuning import Lora, Untuned
from regard.errors import UserError
from regard.formats.peft import load_adapter
from regard.processors.audio import read_sound
from regard.tasks.translate import TranslatePredictor


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
    (tmp_path / "run.json").write_text(json.dumps({"format": 2, "config": {}, "processors": {}}))
    run = SimpleNamespace(start=str(tmp_path / "gone"), tune=tune)
    with pytest.raises(UserError, match=f"{words} {tmp_path}/gone, which does not exist; restore it"):
        base_folder(run, tmp_path)


def test_a_training_needs_a_recipe(tmp_path):
    with pytest.raises(UserError, match="no recipe is given; give a name from `regard list` or a .toml file"):
        regard.train(out=tmp_path / "run")


def test_every_source_needs_its_target():
    with pytest.raises(UserError, match="there are 1 sources and 2 targets; each source needs its target"):
        TranslatePredictor.score(SimpleNamespace(), ["a"], ["b", "c"])


def test_other_sounds_need_a_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(UserError, match=r"the bytes is no plain WAV; for other formats: pip install 'regard\[audio\]'"):
        read_sound(b"OggS")
