"""The types of sections depend on the task and the family; keys of older formats are read."""

import json
from dataclasses import replace
from typing import Literal

import pytest

import regard
from regard.config import renamed, task_settings
from regard.config.data.sound import SoundData
from regard.config.decode import Seq2SeqDecode
from regard.config.merge import flatten
from regard.config.run import load_config, without_foreign
from regard.config.run_folder import read_run
from regard.config.task_settings import section_types
from regard.config.types import Base, Share
from regard.errors import UserError
from regard.families import transformer
from regard.tasks.translate import settings as translate


class ShortDecode(Base):
    """Decoding with one setting."""

    width: Literal[1, 2] = 1


class Terms(Base):
    """A term of a loss."""

    extra: Share = 0.25


@pytest.fixture
def own_sections(monkeypatch):
    """The family transformer has a decode section of its own for translation, and the task has a term of the loss."""
    spec = replace(transformer.SPEC, settings={"translate": {"decode": ShortDecode}, "transcribe": {"data": SoundData}})
    monkeypatch.setattr(transformer, "SPEC", spec)
    monkeypatch.setattr(translate, "SETTINGS", replace(translate.SETTINGS, objective=Terms))


@pytest.mark.usefixtures("own_sections")
def test_a_family_has_sections_of_its_own():
    types = section_types("translate", "transformer")
    assert (types["decode"], types["train.objective"]) == (ShortDecode, Terms)
    assert section_types("translate", "cnn")["decode"] is Seq2SeqDecode
    assert section_types("text2text", "transformer")["train.objective"] is Base
    resolved = regard.resolve("translate", {"decode.width": "2", "train.objective.extra": "0.5"})
    run = resolved.run
    assert run.decode == ShortDecode(width=2) and run.train.objective == Terms(extra=0.5)
    assert "train.objective.extra = 0.5" in resolved.show()
    assert resolved.origin["train.objective.extra"] == resolved.origin["decode.width"] == "command line"
    assert load_config(json.loads(json.dumps(run.dump()))) == run


@pytest.mark.usefixtures("own_sections")
def test_mistakes_in_sections_of_a_family_name_the_whole_key():
    with pytest.raises(UserError) as caught:
        regard.resolve("translate", {"decode.beam": "3", "decode.width": "3", "train.objective.extra": "2"})
    assert str(caught.value).splitlines() == [
        "decode.beam is not a key; `--show` lists the keys of this task and family",
        "train.objective.extra is 2; expected less than 1",
        "decode.width is 3; expected a whole number",
    ]


def test_a_moved_key_is_read_wherever_settings_are_given(monkeypatch, tmp_path):
    monkeypatch.setitem(renamed.MOVED, "data.most", "data.max_tokens")
    monkeypatch.setitem(renamed.MOVED, "train.optimizing", "train.optimizer")
    recipe = tmp_path / "own.toml"
    recipe.write_text('base = "translate"\ndata.most = 77\n')
    resolved = regard.resolve(str(recipe), {"train.optimizing.eps": "1e-7"})
    assert resolved.run.data.max_tokens == 77 and resolved.run.train.optimizer.eps == 1e-7
    assert resolved.origin["data.max_tokens"] == f"recipe {recipe}"


def test_a_run_of_format_2_loses_what_never_had_an_effect(monkeypatch, tmp_path):
    monkeypatch.setitem(renamed.MOVED, "data.most", "data.max_tokens")
    config = regard.resolve("translate").run.dump()
    settings = dict(flatten(config)) | {
        "data.most": 78,
        "decode.ctc": 0.3,
        "train.schedule.floor": 0.1,
    }  # noam has none
    del settings["data.max_tokens"]
    origin = dict.fromkeys(settings, "default")
    about = {"format": 2, "recipe": "translate", "config": settings, "origin": origin, "processors": {}}
    (tmp_path / "run.json").write_text(json.dumps(about))
    read = read_run(tmp_path)
    assert read["format"] == 3
    assert load_config(read["config"]).data.max_tokens == 78
    assert read["origin"].keys() == dict(flatten(read["config"])).keys() == dict(flatten(config)).keys()


def test_settings_of_a_missing_plugin_are_kept():
    settings = {"task": "translate", "model.family": "unknown", "decode.own": 3}
    assert without_foreign(settings) == (settings, {key: key for key in settings})


def test_section_types_need_no_family():
    assert section_types("transcribe", None)["data"] is SoundData
    assert task_settings.section_types("classify", "unknown")["train.objective"] is Base
