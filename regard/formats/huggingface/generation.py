"""generation_config.json and our decode settings, both ways.

An exported folder also keeps the decode settings of its run in config.json, under `regard`: other programs ignore the
entry, and transformers' settings express ours only approximately.
"""

import warnings
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from ...config.decode import DecodeBase, Seq2SeqDecode, TargetDecode
from ...config.merge import flatten, nest
from ...config.renamed import renamed_settings
from ...config.run import AnyRun, Run, change_settings, without_foreign
from ...config.run_folder import FORMAT
from ...config.strategies import Beam, Sample
from ...decode import Filter
from ...errors import UserError
from ...files import Json, JsonMapping, JsonObject, read_optional_json
from ...processors.text.tokenizers import Tokenizer
from .files import parse_config

if TYPE_CHECKING:
    from .format import Folder

GENERATION_FILE = "generation_config.json"
SAVED_DECODE: dict[str, Any] = {"strategy": True, "max_tokens": True}
SAVED_STRATEGY = {"strategy": {"n", "seed"}}  # all but these
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
RULES = {
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "bad_words_ids": None,
    "forced_bos_token_id": None, "forced_eos_token_id": None, "suppress_tokens": None, "begin_suppress_tokens": None,
    "renormalize_logits": False,
}  # fmt: skip  # keys that both sides name alike, with the values that change nothing
STRATEGY = (
    "do_sample", "num_beams", "length_penalty", "early_stopping", "num_return_sequences", "max_length",
    "max_new_tokens", "min_length", "min_new_tokens", "stop_strings", *SAMPLING,
)  # fmt: skip
UNUSED = {
    "sequence_bias": None, "encoder_repetition_penalty": 1.0, "guidance_scale": 1.0, "max_time": None,
    "exponential_decay_length_penalty": None, "remove_invalid_values": False, "watermarking_config": None,
    "token_healing": False, "num_beam_groups": 1, "diversity_penalty": 0.0, "penalty_alpha": 0.0, "dola_layers": None,
    "force_words_ids": None, "constraints": None,
}  # fmt: skip  # keys that transformers applies and regard does not, with the values that change nothing
UNUSED_SAMPLING = {"typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None}  # the same, if it samples

# --- reading ---------------------------------------------------------------------------------------------------------


def read_generation_config(path: Path, config: JsonMapping) -> JsonObject:
    """generation_config.json over config.json, with the types of the settings that regard uses checked.

    As in transformers, those of config.json, where old folders have them, hold only without generation_config.json.
    """
    settings = read_optional_json(path / GENERATION_FILE)
    replaced = {*RULES, "repetition_penalty", *STRATEGY, *UNUSED, *UNUSED_SAMPLING} if settings else set()
    merged = {key: value for key, value in config.items() if key not in replaced} | settings
    for name, (fits, expected) in GENERATION_TYPES.items():
        if (value := merged.get(name)) is not None and not fits(value):
            file = path / (GENERATION_FILE if name in settings else "config.json")
            raise UserError(f"{file}: {name} is {value!r}; expected {expected}, correct the file")
    return merged


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list_of(fits: Callable[[object], bool], value: object) -> bool:
    return isinstance(value, list) and all(map(fits, value))


def _are_ids(value: object) -> bool:
    return _is_integer(value) or _is_list_of(_is_integer, value)


def _are_strings(value: object) -> bool:
    return isinstance(value, str) or _is_list_of(lambda item: isinstance(item, str), value)


INTEGERS = (
    "num_beams", "max_length", "max_new_tokens", "min_length", "min_new_tokens", "num_return_sequences",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "forced_bos_token_id",
)  # fmt: skip
GENERATION_TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(INTEGERS, (_is_integer, "a whole number")),
    **dict.fromkeys(("length_penalty", "repetition_penalty"), (_is_number, "a number")),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), (_are_ids, "a list of numbers")),
    **dict.fromkeys(("forced_eos_token_id", "eos_token_id"), (_are_ids, "a whole number or a list of them")),
    "bad_words_ids": (
        lambda value: _is_list_of(lambda word: _is_list_of(_is_integer, word), value),
        "a list of lists of numbers",
    ),
    "stop_strings": (_are_strings, "text or a list of texts"),
}


def strategy_from_generation(generation: JsonMapping) -> JsonObject:
    """The search strategy of transformers, as decode.strategy."""
    beams = generation.get("num_beams") or 1
    strategy: JsonObject = {"kind": "greedy"}
    if generation.get("do_sample"):
        strategy = {"kind": "sample", "top_k": 50}  # transformers' default
        strategy |= {name: generation[name] for name in SAMPLING if generation.get(name) is not None}
    elif beams > 1:
        strategy = {"kind": "beam", "size": beams, "length_penalty": 1.0, "early_stopping": "heuristic"}
        strategy |= beams_from_generation(generation)
    several = generation.get("num_return_sequences") or 1
    return strategy | ({"n": several} if several > 1 else {})


def beams_from_generation(generation: JsonMapping) -> JsonObject:
    """The settings of a beam search that a folder has, whether it searches with beams or not."""
    penalty, early = generation.get("length_penalty"), generation.get("early_stopping")
    settings: JsonObject = {} if penalty is None else {"length_penalty": penalty}
    return settings if early is None else {**settings, "early_stopping": early_stopping(early)}


def rules_from_generation(generation: JsonMapping) -> JsonObject:
    """The rules of a folder's generation_config.json that have an effect, as decode.rules."""
    return {key: generation[key] for key, none in RULES.items() if generation.get(key) not in (None, none, [])}


def penalty_from_generation(generation: JsonMapping) -> JsonObject:
    """The repetition penalty, as a decode setting."""
    penalty = generation.get("repetition_penalty")
    return {} if penalty is None else {"repetition_penalty": penalty}


def ends_from_generation(generation: JsonMapping, end: int, vocab: int) -> JsonObject:
    """The tokens that end a text, as one of decode.rules, if they are others than END of the tokenizer."""
    ends = generation.get("eos_token_id")
    ids = [token for token in (ends if isinstance(ends, list) else [ends]) if token is not None and 0 <= token < vocab]
    return {"eos_token_id": ids} if ids and ids != [end] else {}


def decode_from_generation(generation: JsonMapping) -> JsonObject:
    """The strategy and limits of an encoder-decoder model. There START counts in lengths."""
    decode = {"strategy": strategy_from_generation(generation), **penalty_from_generation(generation)}
    longest, shortest = ((generation.get(key) or 1) - 1 for key in ("max_length", "min_length"))
    most = generation.get("max_new_tokens") or max(longest, 0)
    fewest = generation.get("min_new_tokens") or max(shortest, 0)
    limits = {"max_tokens": most, "min_tokens": min(fewest, most or fewest)}  # there the maximum wins
    return decode | {key: value for key, value in limits.items() if value}


def early_stopping(theirs: object) -> Literal["first", "heuristic", "never"]:
    """early_stopping of a beam search for transformers' setting of that name."""
    return "first" if theirs is True else "never" if theirs == "never" else "heuristic"


def warn_of_unused(path: Path, generation: JsonMapping, further: Collection[str] = ()) -> None:
    """One warning about all settings that transformers applies and regard does not; `further` names those of a task."""
    samples = bool(generation.get("do_sample"))
    none = UNUSED | (UNUSED_SAMPLING if samples else {}) | {key: RULES.get(key) for key in further}
    keys = [key for key, value in none.items() if generation.get(key) not in (None, value, False, [], {})]
    if samples and (generation.get("num_beams") or 1) > 1:
        keys.append("num_beams beside do_sample")
    if keys:
        message = f"{path}: regard does not apply these generation settings of the folder: {', '.join(keys)}"
        warnings.warn(f"{message}; its texts may differ from those of transformers", stacklevel=2)


def split_suppressed(
    config: JsonMapping, generation: JsonObject, never: Collection[int]
) -> tuple[JsonObject, tuple[Filter, ...] | None]:
    """The settings without tokens that a predictor of ours never generates, and the filters for the predictor.

    An exported run has these tokens among suppress_tokens; of another folder, only its own settings hold.
    """
    suppressed = generation.get("suppress_tokens") or []
    if not regard_entry(config) or not isinstance(suppressed, list) or not set(never) <= set(suppressed):
        return generation, ()
    return {**generation, "suppress_tokens": [token for token in suppressed if token not in never]}, None


@dataclass(frozen=True)
class Generation:
    """How the generation settings of folders become the decode settings of a task."""

    task: str
    limits: Callable[[JsonMapping], JsonObject]  # the strategy and limits of generation_config.json, as decode settings
    saved: Callable[[JsonMapping, JsonMapping], JsonObject]  # those of an exported run, by config.json and both files
    unused: tuple[str, ...]  # keys of rules that this task does not have

    def decode(self, generation: JsonMapping, end: int, vocab: int) -> JsonObject:
        """The decode settings of a folder; `end` is END of its tokenizer."""
        rules = rules_from_generation(generation) | ends_from_generation(generation, end, vocab)
        return self.limits(generation) | {"rules": {key: rules[key] for key in rules if key not in self.unused}}

    def run(
        self, folder: "Folder", generation: JsonObject, target: Tokenizer, overrides: JsonMapping, **defaults: Json
    ) -> tuple[AnyRun, tuple[Filter, ...] | None]:
        """The run of a folder, and the filters of its predictor; `defaults` hold unless a run saved its own."""
        warn_of_unused(folder.path, generation, self.unused)
        c, never = folder.config, {target.pad, target.start} - {target.end}
        generation, filters = split_suppressed(folder.theirs, generation, never)

        def to_run(generation: JsonMapping) -> AnyRun:
            decode = self.decode(generation, target.end, getattr(c, "target_vocab", 0) or c.vocab)
            saved = self.saved(folder.theirs, generation) or defaults
            return Run(task=self.task, model=c, decode=decode | saved)

        run = parse_config(folder.path, generation, to_run, GENERATION_FILE)
        return change_settings(run, overrides), filters


# --- decode settings of ours in an exported config.json --------------------------------------------------------------


def regard_entry(config: JsonMapping, task: str = "translate", family: str = "transformer") -> JsonObject:
    """The `regard` entry of an exported config.json, with today's setting names; empty in other folders."""
    entry = config.get("regard")
    if not isinstance(entry, dict) or not isinstance(entry.get("decode"), dict):
        return {}
    if (former := entry.get("format", 1)) in (1, 2):  # exported before settings were renamed
        settings = {f"decode.{key}": value for key, value in flatten(entry["decode"])}
        run = {"task": task, "model.family": family, **renamed_settings(settings, former)}
        return {**entry, "decode": nest(without_foreign(run)[0])["decode"]}
    return entry


def saved_decode(config: JsonMapping, generation: JsonMapping) -> JsonObject:
    """The decode settings of the exported run; empty if there are none or generation_config.json was changed since."""
    if not (entry := regard_entry(config)):
        return {}
    try:
        decode = Seq2SeqDecode(**entry["decode"])
    except (TypeError, ValidationError):
        return {}
    expected = generated_strategy(decode) | max_length_setting(decode, generation.get("max_length"))
    if any(generation.get(key) != value for key, value in expected.items()):
        return {}
    saved = decode.model_dump(include=SAVED_DECODE)
    several = {key: value for key, value in strategy_from_generation(generation).items() if key == "n"}
    return {**saved, "strategy": saved["strategy"] | several}


SEQ2SEQ = Generation("translate", decode_from_generation, saved_decode, ("stop_strings",))


def decode_entry(run: Run) -> JsonObject:
    """The `regard` entry that `saved_decode` reads."""
    decode = run.decode.model_dump(mode="json", include=SAVED_DECODE, exclude=SAVED_STRATEGY)
    return {"regard": {"format": FORMAT, "decode": decode}}


# --- writing ---------------------------------------------------------------------------------------------------------


def generated_strategy(decode: DecodeBase) -> JsonObject:
    """generation_config.json of our strategy."""
    match decode.strategy:
        case Sample(temperature, top_k, top_p, min_p):
            shape = {"temperature": temperature, "top_k": top_k, "top_p": top_p} | ({"min_p": min_p} if min_p else {})
            return {"do_sample": True, "num_beams": 1, **shape}
        case Beam(size, _, length_penalty, early_stopping):
            # transformers has no rule equal to `exact`, and its nearest one searches very long: its own default is
            # written
            early = "never" if early_stopping == "never" else early_stopping == "first"
            beams = {"num_beams": size, "early_stopping": early, "length_penalty": length_penalty}
            return {"do_sample": False, **beams}
        case _:
            return {"do_sample": False, "num_beams": 1}


def generated_rules(decode: DecodeBase, suppressed: Collection[int]) -> JsonObject:
    """generation_config.json of our rules, beside tokens that the predictor never generates."""
    rules, several = decode.rules, decode.strategy.n
    values: JsonObject = {key: value for key, value in asdict(rules).items() if key in RULES}
    values["suppress_tokens"] = tuple(dict.fromkeys([*suppressed, *rules.suppress_tokens]))
    values["forced_bos_token_id"] = next(iter(rules.forced_bos_token_id), None)
    values["min_new_tokens"] = decode.min_tokens
    values = {key: value for key, value in values.items() if value not in (RULES.get(key, 0), None, ())}
    penalty = {"repetition_penalty": decode.repetition_penalty} if decode.repetition_penalty != 1 else {}
    return penalty | values | ({"num_return_sequences": several} if several > 1 else {})


def max_length_setting(decode: TargetDecode, max_length: int | None) -> JsonObject:
    """The limit of the output. `max_length` counts START and applies if decode has no limit."""
    return {"max_length": decode.max_tokens + 1 if decode.max_tokens else max_length}


def generation_config(run: Run, tokenizer: Tokenizer, max_length: int, suppressed: Collection[int]) -> JsonObject:
    """generation_config.json of an exported encoder-decoder run."""
    decode: TargetDecode = run.decode
    ids = seq2seq_ids(tokenizer) | {"eos_token_id": list(decode.rules.eos_token_id) or tokenizer.end}
    return (
        generated_strategy(decode) | max_length_setting(decode, max_length) | ids | generated_rules(decode, suppressed)
    )


def max_positions(run: Run) -> int:
    """The number of positions for formats that need one: enough for the data's longest source and its output."""
    longest: int = run.data.max_tokens
    return max(1024, 2 * longest + 32)


def control_ids(tokenizer: Tokenizer) -> JsonObject:
    """The control tokens of a model, for config.json."""
    return {"pad_token_id": tokenizer.pad, "bos_token_id": tokenizer.start, "eos_token_id": tokenizer.end}


def seq2seq_ids(tokenizer: Tokenizer) -> JsonObject:
    """The control tokens of an encoder-decoder model, for config.json."""
    return control_ids(tokenizer) | {"decoder_start_token_id": tokenizer.start}
