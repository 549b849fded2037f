"""One short file per family: Config, SIZES, SPEC and Model. Where models differ by task, Config.head names the task."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, cast

from ..config.registry import Registry

if TYPE_CHECKING:
    from .protocols import Family

BUILTIN: dict[str, str | ModuleType] = {
    "transformer": "regard.families.transformer",
    "bert": "regard.families.bert",
    "longformer": "regard.families.longformer",
    "bigbird": "regard.families.bigbird",
    "t5": "regard.families.t5",
    "lm": "regard.families.lm",
    "gpt": "regard.families.gpt",
    "xl": "regard.families.xl",
    "rnn": "regard.families.rnn",
    "cnn": "regard.families.cnn",
    "vit": "regard.families.vit",
    "detr": "regard.families.detr",
    "captioner": "regard.families.captioner",
    "speech": "regard.families.speech",
    "whisper": "regard.families.whisper",
    "omni": "regard.families.omni",
    "nat": "regard.families.nat",
    "nat-ctc": "regard.families.nat_ctc",
    "cmlm": "regard.families.cmlm",
    "clip": "regard.families.clip",
}
FAMILIES = Registry("family", BUILTIN)  # a module, or its import name


def family(name: str) -> "Family":
    """The module of a family by name."""
    found = FAMILIES[name]
    return cast("Family", import_module(found) if isinstance(found, str) else found)
