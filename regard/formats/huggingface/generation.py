"""generation_config.json and our decode settings, both ways, for encoder-decoder models.

An exported folder also keeps the decode settings of its run in config.json, under `regard`: other programs ignore the
entry, and transformers' settings express ours only approximately.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from ...config.renamed import renamed_settings
from ...config.run import Run
from ...config.schema import NEUTRAL_SAMPLING, Seq2SeqDecode
from ...decode import Filter, Forbid, ForcedEnd, Renormalize, Suppress
from ...errors import UserError
from ...files import JsonMapping, JsonObject, read_optional_json
from ...processors.tokenizers import Tokenizer
from ...run_folder import FORMAT

GENERATION_FILE = "generation_config.json"
SAVED_DECODE = {"kind", "beam", "length_penalty", "early_stopping", "max_tokens", *NEUTRAL_SAMPLING}

# --- reading ---------------------------------------------------------------------------------------------------------


def read_generation_config(path: Path, config: JsonMapping) -> JsonObject:
    """generation_config.json over config.json, with the types of the settings that regard uses checked."""
    own = read_optional_json(path / GENERATION_FILE)
    merged = {**config, **own}
    for name, (fits, expected) in GENERATION_TYPES.items():
        if (value := merged.get(name)) is not None and not fits(value):
            file = path / (GENERATION_FILE if name in own else "config.json")
            raise UserError(f"{file}: {name} is {value!r}; expected {expected}, correct the file")
    return merged


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integer_list(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_integer, value))


GENERATION_TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(
        ("num_beams", "max_length", "max_new_tokens", "forced_eos_token_id"), (_is_integer, "a whole number")
    ),
    "length_penalty": (lambda value: isinstance(value, int | float), "a number"),
    "suppress_tokens": (_is_integer_list, "a list of numbers"),
    "bad_words_ids": (
        lambda value: isinstance(value, list) and all(map(_is_integer_list, value)),
        "a list of lists of numbers",
    ),
}


def decode_from_generation(generation: JsonMapping) -> Seq2SeqDecode:
    """The decode settings of a folder's generation_config.json."""
    if generation.get("do_sample"):
        raise UserError("generation_config.json asks for sampling (do_sample); set it to false")
    beams = generation.get("num_beams") or 1
    penalty = generation.get("length_penalty")
    max_length = generation.get("max_length") or 1  # START counts there
    return Seq2SeqDecode(
        kind="beam" if beams > 1 else "greedy",
        beam=beams,
        length_penalty=1.0 if penalty is None else penalty,
        early_stopping=early_stopping(generation.get("early_stopping", False)),
        max_tokens=generation.get("max_new_tokens") or max(max_length - 1, 0),
    )


def early_stopping(theirs: object) -> Literal["exact", "first", "heuristic"]:
    """decode.early_stopping for transformers' setting of that name."""
    return "first" if theirs is True else "exact" if theirs == "never" else "heuristic"


def logit_filters(generation: JsonMapping) -> tuple[Filter, ...]:
    """The logit filters of a folder, in the order in which transformers applies them."""
    filters: list[Filter] = []
    bad_words = generation.get("bad_words_ids") or []
    if any(len(word) == 1 for word in bad_words):
        filters.append(Suppress([word[0] for word in bad_words if len(word) == 1]))
    if any(len(word) > 1 for word in bad_words):
        filters.append(Forbid([[word for word in bad_words if len(word) > 1]]))
    if generation.get("suppress_tokens"):
        filters.append(Suppress(generation["suppress_tokens"]))
    if generation.get("forced_eos_token_id") is not None:
        filters.append(ForcedEnd(generation["forced_eos_token_id"]))
    if generation.get("renormalize_logits"):
        filters.append(Renormalize())
    return tuple(filters)


# --- decode settings of ours in an exported config.json --------------------------------------------------------------


def regard_entry(config: JsonMapping) -> JsonObject:
    """The `regard` entry of an exported config.json, with today's setting names; empty in other folders."""
    entry = config.get("regard")
    if not isinstance(entry, dict) or not isinstance(entry.get("decode"), dict):
        return {}
    if entry.get("format", 1) == 1:  # exported before settings were renamed
        return entry | {"decode": renamed_settings({"decode": entry["decode"]})["decode"]}
    return entry


def saved_decode(config: JsonMapping, generation: JsonMapping) -> Seq2SeqDecode | None:
    """The decode settings of the exported run; None if there are none or generation_config.json was changed since."""
    if not (entry := regard_entry(config)):
        return None
    try:
        decode = Seq2SeqDecode(**entry["decode"])
    except (TypeError, ValidationError):
        return None
    expected = generation_settings(decode, generation.get("max_length"))
    return decode if all(generation.get(key) == value for key, value in expected.items()) else None


def decode_entry(run: Run) -> JsonObject:
    """The `regard` entry that `saved_decode` reads."""
    return {"regard": {"format": FORMAT, "decode": run.decode.model_dump(mode="json", include=SAVED_DECODE)}}


# --- writing ---------------------------------------------------------------------------------------------------------


def generation_settings(decode: Seq2SeqDecode, max_length: int | None) -> JsonObject:
    """generation_config.json of our decode settings. `max_length` counts START and applies if decode has no limit."""
    limit = {"max_length": decode.max_tokens + 1 if decode.max_tokens else max_length}
    if decode.kind == "sample":
        sampling = {name: getattr(decode, name) for name in ("temperature", "top_k", "top_p")}
        return {"do_sample": True, "num_beams": 1, **sampling, **limit}
    if decode.kind == "greedy":
        return {"do_sample": False, "num_beams": 1, **limit}
    # transformers has no rule equal to `exact`, and its nearest one searches very long: its own default is written
    beam = {"early_stopping": decode.early_stopping == "first", "length_penalty": decode.length_penalty}
    return {"do_sample": False, "num_beams": decode.beam, **beam, **limit}


def generation_config(run: Run, tokenizer: Tokenizer, max_length: int) -> JsonObject:
    """generation_config.json of an exported encoder-decoder run."""
    return generation_settings(run.decode, max_length) | {
        "pad_token_id": tokenizer.pad,
        "bos_token_id": tokenizer.start,
        "eos_token_id": tokenizer.end,
        "decoder_start_token_id": tokenizer.start,
        "suppress_tokens": list(dict.fromkeys([tokenizer.pad, tokenizer.start])),
    }


def max_positions(run: Run) -> int:
    """The number of positions for formats that need one: enough for the data's longest source and its output."""
    longest: int = run.data.max_tokens
    return max(1024, 2 * longest + 32)
