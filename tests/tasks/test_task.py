"""Tasks declare what they need of a model; families of another modality or output are refused."""

from types import ModuleType

import pytest

import regard
from regard.config.registry import FAMILIES, TASKS
from regard.config.task_settings import task_settings
from regard.errors import UserError
from regard.families import bert
from regard.families.spec import ModelSpec
from regard.tasks.task import spec_of, task_module

FITTING = {
    "translate": "transformer t5 rnn cnn omni nat nat-ctc cmlm",
    "text2text": "transformer t5 rnn cnn omni",
    "spans": "transformer t5 rnn cnn omni",
    "language": "lm gpt xl rnn cnn",
    "classify": "bert longformer bigbird rnn cnn",
    "tag": "bert longformer bigbird rnn cnn",
    "masked": "bert longformer bigbird",
    "classify-image": "vit",
    "detect": "detr",
    "caption": "captioner omni",
    "transcribe": "speech whisper omni",
    "multitask": "omni",
    "contrastive": "bert longformer bigbird clip",
}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_fits_the_families_that_read_and_write_what_it_needs(name: str) -> None:
    task = task_module(name).TASK
    assert task.name == name and task.metrics == task_settings(name).metrics
    assert [other for other in FAMILIES if task.fits(spec_of(other))] == FITTING[name].split()


def test_a_family_of_another_modality_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It labels images: its methods have the names that the task calls, and its model could be built."""
    images = ModuleType("images")

    class Config(bert.Config):
        family: str = "images"  # type: ignore[assignment]

    images.Config, images.SIZES, images.Model = Config, bert.SIZES, bert.Model  # type: ignore[attr-defined]
    images.SPEC = ModelSpec(frozenset({"pixels"}), frozenset({"label", "embedding"}))  # type: ignore[attr-defined]
    monkeypatch.setitem(FAMILIES.added, "images", images)
    for task in ("classify", "masked"):
        with pytest.raises(UserError, match="model.family=images cannot be used for the task") as caught:
            regard.build(task, {"model.family": "images"})
        words = {"classify": "a label", "masked": "masked tokens"}[task]
        families = FITTING[task].replace(" ", ", ")
        assert str(caught.value).endswith(f"{task}; expected one of {families}: these read tokens and write {words}")
