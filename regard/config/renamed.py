"""Former names of settings: run folders of format 1 use them, and a user who types one gets a hint.

Each pair is the dotted key of format 1 and the current one.
"""

from collections.abc import Mapping

from ..files import JsonMapping, JsonObject

RENAMED = {
    "model.same": "model.same_length",
    "model.near": "model.kernel_size",
    "model.carried": "model.carry_state",
    "model.kinds": "model.token_types",
    "model.follow": "model.next_sentence",
    "data.agree": "data.rdrop",
    "data.hide": "data.token_masking",
    "data.whole": "data.whole_words",
    "data.follow": "data.next_sentence",
    "tokenizer.normalise": "tokenizer.normalize",
    "train.optimiser": "train.optimizer",
    "decode.stop": "decode.early_stopping",
    "decode.until": "decode.stop",
    "decode.must": "decode.include",
    "decode.avoid": "decode.exclude",
    "decode.begin": "decode.add_start",
    "decode.normalised": "decode.normalize",
}
RENAMED_VALUES = {"data.embedded": {"phrases": "language_id", "marks": "matching"}}
RENAMED_RECIPES = {"marks": "matching"}


def renamed_key(key: str) -> str:
    """The current name of a dotted key of format 1. Keys below a renamed group move with it."""
    for old, new in RENAMED.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key


def renamed_settings(values: JsonMapping, flat: bool = False, prefix: str = "") -> JsonObject:
    """Settings of format 1 under their current names: nested groups or, with `flat`, a mapping by dotted key."""
    if flat:
        return {renamed_key(key): value for key, value in values.items()}
    current: JsonObject = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            value = renamed_settings(value, prefix=f"{key}.")
        elif isinstance(value, str):
            value = RENAMED_VALUES.get(key, {}).get(value, value)
        current[renamed_key(key).rpartition(".")[2]] = value
    return current
