"""The types of sections depend on the task and the family; keys of older formats are read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from helpers import small

import regard
from regard.config import renamed, task_settings
from regard.config.data.sound import SoundData
from regard.config.data.texts import PairData
from regard.config.decode import Seq2SeqDecode
from regard.config.losses import LabelLoss, MaskPredictLoss, SmoothedLoss
from regard.config.merge import flatten, nest
from regard.config.run import Run, load_config, without_foreign
from regard.config.run_folder import read_run
from regard.config.task_settings import section_types
from regard.config.train import Train
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
    assert section_types("text2text", "transformer")["train.objective"] is SmoothedLoss
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
        "decode.beam is not a key; `--show all` lists the keys of this task and family",
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


def in_format_2(run: Path) -> None:
    """Give run.json the format and the keys that it had before the terms of the loss had a group of their own."""
    about = json.loads((run / "run.json").read_text())
    former = {new: old for old, new in renamed.MOVED.items() if new.startswith("train.objective.")}
    for name in ("config", "origin"):
        about[name] = {former.get(key, key): value for key, value in flatten(about[name])}
    unused = {"data.links": "", "data.teacher": "", "data.teacher_weight": 0.0, "data.teacher_init": False}
    about["config"] = nest(unused | {"data.glancing": 0.0, "data.rdrop": 0.0} | about["config"])
    (run / "run.json").write_text(json.dumps(about | {"format": 2}))


FORMER_TERMS = [
    ("nat", {"data.glancing": 0.5, "train.smoothing": 0.05, "decode.kind": "argmax"}),
    ("cmlm", {"data.rdrop": 0.5, "decode.kind": "mask-predict"}),
    ("transformer", {"train.smoothing": 0.2}),
]


@pytest.mark.parametrize(("family", "settings"), FORMER_TERMS, ids=[family for family, _ in FORMER_TERMS])
def test_a_run_of_format_2_resumes_as_before(family, settings, tmp_path):
    """With the terms of its loss; those that its family lacks never had an effect."""
    sides = small.sides_in(small.write_files(tmp_path / "files", train=60))
    whole = {**small.TINY, **sides, "model.family": family, **settings}
    for name, steps in (("whole", 4), ("former", 2)):
        regard.train("translate", {**whole, "train.steps": steps, "train.schedule": "constant"}, out=tmp_path / name)
    in_format_2(tmp_path / "former")
    regard.train("translate", {**settings, "train.steps": 4}, out=tmp_path / "former", resume=True)
    expected, found = (load_run(tmp_path / name) for name in ("whole", "former"))
    assert found.train == expected.train and found.data == expected.data
    same = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "former")]
    assert same[0] == same[1]
    if "data.rdrop" in settings:
        with pytest.raises(UserError, match="objective.rdrop was 0.5 and is now 1.0; a resumed run cannot change it"):
            regard.train("translate", {"data.rdrop": 1}, out=tmp_path / "former", resume=True)


def load_run(folder: Path) -> Run:
    return load_config(read_run(folder)["config"])


def test_another_family_loses_what_only_the_former_has(tmp_path):
    """As with model.*, for layers below the change; its own settings replace them."""
    recipe = tmp_path / "own.toml"
    recipe.write_text('base = "multi30k-nat"\ndata.links = "a"\ndata.train = "a,b"\ntrain.smoothing = 0.3\n')
    assert regard.resolve(str(recipe)).run.data.alignments == "a"
    run = regard.resolve(str(recipe), {"model.family": "cmlm", "decode.kind": "mask-predict"}).run
    assert run.train.objective == MaskPredictLoss(smoothing=0.3) and type(run.data) is PairData
    with pytest.raises(UserError, match="train.objective.glancing is not a key"):
        regard.resolve(str(recipe), {"model.family": "cmlm", "train.objective.glancing": 0.5})
    with pytest.raises(UserError, match="data.glancing is not a key"):
        regard.resolve("translate", {"data.glancing": 0.5})


def test_settings_of_a_loss_are_those_of_the_task_also_in_python():
    model = regard.resolve("classify").run.model
    for train in ({}, {"train": Train(steps=3)}, {"train": {"objective": {}}}):
        assert Run.model_validate({"task": "classify", "model": model, **train}).train.objective == LabelLoss()
    assert Run["any type"] is Run and Train(steps=1) == Train(steps=1)


def test_settings_of_a_missing_plugin_are_kept():
    settings = {"task": "translate", "model.family": "unknown", "decode.own": 3}
    assert without_foreign(settings) == (settings, {key: key for key in settings})


def test_section_types_need_no_family():
    assert section_types("transcribe", None)["data"] is SoundData
    assert task_settings.section_types("classify", "unknown")["train.objective"] is LabelLoss
    assert section_types("detect", None)["train.objective"] is Base
