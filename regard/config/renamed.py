"""Former names of settings: older run folders use them, and a user who types one gets a hint."""

from ..files import JsonMapping, JsonObject

RENAMED = {  # dotted keys of format 1 and of format 2
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


MOVED = {  # dotted keys of format 2, which are still read wherever settings are given, and of format 3
    "data.links": "data.alignments",
    **{
        f"data.{name}": f"train.objective.{name}"
        for name in ("teacher", "teacher_weight", "teacher_init", "glancing", "rdrop")
    },
    "train.smoothing": "train.objective.smoothing",
    "model.ngrams": "data.ngrams",
}


def renamed_key(key: str) -> str:
    """The current name of a dotted key of format 1. Keys below a renamed group move with it."""
    return moved_key(_replace(key, RENAMED))


def moved_key(key: str) -> str:
    """The current name of a dotted key of format 2."""
    return _replace(key, MOVED)


def renamed_settings(values: JsonMapping, former: int) -> JsonObject:
    """Settings of the format `former`, by dotted key, under their current keys."""
    if former > 1:
        return {moved_key(key): value for key, value in values.items()}
    current: JsonObject = {}
    for key, value in values.items():
        current[renamed_key(key)] = RENAMED_VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value
    return current


def _replace(key: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key
