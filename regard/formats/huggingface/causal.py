"""Parts shared by folders of causal language models: tokenizer, generation settings, predictor."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from ...config.run import AnyRun, Run, change_settings
from ...config.run_folder import FORMAT
from ...errors import UserError
from ...families import gpt
from ...files import JsonMapping, JsonObject
from ...processors.text.external import FolderTokenizer
from ...tasks.language.settings import LanguageDecode
from .config_table import Only
from .control_ids import NO_PAD, ROLES, check_control_ids, check_vocabulary
from .folder import parse_config
from .generation import (
    GENERATION_FILE,
    RULES,
    ends_from_generation,
    generated_rules,
    generated_strategy,
    penalty_from_generation,
    read_generation_config,
    regard_entry,
    rules_from_generation,
    split_suppressed,
    strategy_from_generation,
    warn_of_unused,
)
from .vocabularies import tokenizer_settings

if TYPE_CHECKING:
    from ...tasks.language.settings import LanguageRun
    from ...tasks.language.task import LanguagePredictor

ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
UNQUANTIZED = Only("quantization_config", None, "regard reads unquantized folders", written=False)

NOT_APPLIED = ("encoder_no_repeat_ngram_size",)  # rules of models with a source

# --- tokenizer -------------------------------------------------------------------------------------------------------


def tokenizer(path: Path, config: JsonMapping) -> FolderTokenizer:
    """The tokenizer of tokenizer.json, or of GPT-2's vocab.json and merges.txt."""
    names = tokenizer_settings(path)
    control = [names[key] for key in ("bos_token", "eos_token", "pad_token", "unk_token") if names.get(key)]
    backend = _backend(path, control)

    def token_id(role: str) -> int | None:
        if name := names.get(f"{role}_token"):
            return _token_id(path, backend, name)
        value = config.get(f"{role}_token_id")
        number = value[0] if isinstance(value, list) else value
        return None if number == NO_PAD else number

    end = token_id("eos")
    if end is None:
        raise UserError(f"{path} does not name the token that ends a text; set eos_token in tokenizer_config.json")
    pad, start, unk = (end if (number := token_id(role)) is None else number for role in ("pad", "bos", "unk"))
    return FolderTokenizer(backend, pad, start, end, unk)


def _backend(path: Path, control: list[str]) -> Backend:
    if (path / "tokenizer.json").is_file():
        try:
            backend = Backend.from_str((path / "tokenizer.json").read_text(encoding="utf-8"))
        except Exception as error:  # the library raises nothing more specific
            raise UserError(
                f"{path / 'tokenizer.json'} is no complete tokenizer ({error}); fetch the folder again"
            ) from error
        backend.no_truncation()
        backend.no_padding()
        return backend
    vocab, merges = path / "vocab.json", path / "merges.txt"
    if not (vocab.is_file() and merges.is_file()):
        raise UserError(
            f"{path} has neither tokenizer.json nor vocab.json and merges.txt; write them with transformers: "
            f"AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    try:
        backend = Backend(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:
        raise UserError(
            f"{vocab} and {merges.name} are no byte-level vocabulary ({error}); fetch the folder again"
        ) from error
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = [name for name in dict.fromkeys([*control, "<|endoftext|>"]) if backend.token_to_id(name) is not None]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return backend


def _token_id(path: Path, backend: Backend, name: str) -> int:
    token: int | None = backend.token_to_id(name)
    if token is None:
        raise UserError(f"{path}: {name!r} of tokenizer_config.json is not in the vocabulary; fetch the folder again")
    return token


# --- generation settings ---------------------------------------------------------------------------------------------


def decode_from_generation(generation: JsonMapping) -> JsonObject:
    """The decode settings of a folder's generation_config.json. The prompt counts in its max_length and min_length."""
    limits: JsonObject = {}
    if newest := generation.get("max_new_tokens"):
        limits = {"max_tokens": newest}
    elif longest := generation.get("max_length"):
        limits = dict.fromkeys(("max_tokens", "max_length"), longest)
    if fewest := generation.get("min_new_tokens"):
        limits["min_tokens"] = min(fewest, limits.get("max_tokens", fewest))  # there the maximum wins
    elif shortest := generation.get("min_length"):
        limits["min_length"] = shortest
    if stop := generation.get("stop_strings"):
        limits["stop"] = [stop] if isinstance(stop, str) else stop
    strategy = {"strategy": strategy_from_generation(generation), **penalty_from_generation(generation)}
    rules = {key: value for key, value in rules_from_generation(generation).items() if key not in NOT_APPLIED}
    return {**strategy, **limits, "rules": rules}


def generation_settings(decode: LanguageDecode, suppressed: Collection[int] = ()) -> JsonObject:
    """generation_config.json of our decode settings."""
    counts_prompt = 0 < decode.max_length <= decode.max_tokens
    limits = {"max_length": decode.max_length} if counts_prompt else {"max_new_tokens": decode.max_tokens}
    limits |= {"min_length": decode.min_length} if decode.min_length else {}
    return limits | generated_strategy(decode) | generated_rules(decode, suppressed)


def decode_entry(decode: LanguageDecode) -> JsonObject:
    """The `regard` entry that `saved_decode` reads. Limits and rules are read from generation_config.json."""
    limits = {"max_tokens", "max_length", "min_tokens", "min_length"}
    penalty = "repetition_penalty"
    values = decode.model_dump(mode="json", exclude={"batch", "rules", penalty, *limits})
    generation = {key: value for key, value in generation_settings(decode).items() if key not in (*RULES, penalty)}
    return {"regard": {"format": FORMAT, "decode": values, "generation": generation}}


def saved_decode(config: JsonMapping, generation: JsonMapping) -> JsonObject | None:
    """The decode settings of the exported run; None if there are none or generation_config.json was changed since."""
    entry = regard_entry(config, "language", "gpt")
    if not entry or any(generation.get(key) != value for key, value in entry.get("generation", {}).items()):
        return None
    decode: JsonObject = entry["decode"]
    return decode


# --- predictor -------------------------------------------------------------------------------------------------------


def language_predictor(
    path: Path,
    config: JsonMapping,
    overrides: JsonMapping,
    ours: gpt.Config,
    model: gpt.Model,
    text: FolderTokenizer | None = None,
) -> "LanguagePredictor":
    """The predictor of a model that was read from a folder; `text` is its tokenizer if the folder has no file of it."""
    from ...device import resolve_device
    from ...tasks.language.task import LanguagePredictor

    names = tokenizer_settings(path)
    check_control_ids(path, config, ours.vocab, named=[role for role in ROLES if names.get(f"{role}_token")])
    text = tokenizer(path, config) if text is None else text
    if text.size > ours.vocab:
        raise UserError(
            f"{path}: the tokenizer has {text.size} entries and the model only {ours.vocab} (vocab_size); "
            "use the tokenizer of this model"
        )
    check_vocabulary(path, text.backend.get_vocab().values(), ours.vocab)

    generation = read_generation_config(path, config)
    generation, filters = split_suppressed(config, generation, {text.pad, text.start} - {text.end})

    def to_run(generation: JsonMapping) -> AnyRun:
        decode = decode_from_generation(generation)
        decode["rules"] |= ends_from_generation(generation, text.end, ours.vocab)
        saved = saved_decode(config, generation) or {"add_start": text.adds_start}
        return Run(task="language", model=ours, decode=decode | saved)

    run: LanguageRun = change_settings(parse_config(path, generation, to_run, GENERATION_FILE), overrides)
    warn_of_unused(path, generation, NOT_APPLIED)
    return LanguagePredictor(run, model, text, resolve_device(run.device), filters)
