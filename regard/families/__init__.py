"""One short file per family: Config, SIZES and Model.

A family whose models differ by task has HEADS: its Model builds the one that Config.head names.
"""

from importlib import import_module
from types import ModuleType

from ..config.registry import Registry

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
}
FAMILIES = Registry("family", BUILTIN)  # a module, or its import name


def family(name: str) -> ModuleType:
    found = FAMILIES[name]
    return import_module(found) if isinstance(found, str) else found
