"""Former names of settings: older run folders use them, and a user who types one gets a hint."""

from collections.abc import Container

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


STRATEGY = (
    "kind", "length_penalty", "early_stopping", "temperature", "top_k", "top_p", "min_p", "seed", "samples", "teacher",
    "iterations", "length_beam", "merge_repeats",
)  # fmt: skip
RULES = (
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "forced_bos_token_id",
    "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "eos_token_id", "renormalize_logits",
)  # fmt: skip
WINDOWS = (
    "timestamps", "sequential", "condition_on_previous", "temperatures", "compression_ratio_threshold",
    "logprob_threshold", "no_speech_threshold",
)  # fmt: skip
MOVED = {  # dotted keys of format 2, which are still read wherever settings are given, and of format 3
    "decode.beam": "decode.strategy.size",
    "decode.nbest": "decode.strategy.n",
    **{f"decode.{name}": f"decode.strategy.{name}" for name in STRATEGY},
    **{f"decode.{name}": f"decode.rules.{name}" for name in RULES},
    **{f"decode.{name}": f"decode.windows.{name}" for name in WINDOWS},
    "decode.split": "decode.split_sentences",
    "decode.segment": "decode.max_segment_seconds",
    "data.prompts": "data.keep_prompts",
    "data.links": "data.alignments",
    **{
        f"data.{name}": f"train.objective.{name}"
        for name in ("teacher", "teacher_weight", "teacher_init", "glancing", "rdrop")
    },
    "train.smoothing": "train.objective.smoothing",
    "model.ngrams": "data.ngrams",
}
MOVED_ELSEWHERE = {"decode.seed": "decode.windows.seed"}  # where a section lacks the key of MOVED


def renamed_key(key: str) -> str:
    """The name in format 2 of a dotted key of format 1. Keys below a renamed group move with it."""
    return _replace(key, RENAMED)


def moved_key(key: str, *known: Container[str]) -> str:
    """The name among the `known` keys of a dotted key of format 2; the key itself if they have it, or none."""
    names = (key, _replace(key, MOVED), _replace(key, MOVED_ELSEWHERE))
    return next((name for name in names if any(name in keys for keys in known)), key)


def renamed_settings(values: JsonMapping, former: int) -> JsonObject:
    """Settings of the format `former`, by dotted key, under their keys in format 2."""
    if former > 1:
        return dict(values)
    current: JsonObject = {}
    for key, value in values.items():
        current[renamed_key(key)] = RENAMED_VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value
    return current


def _replace(key: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key
