"""Folders of causal language models, GPT-2's and Llama's: their tokenizers, their ways to generate, and who writes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from ...config.run import Run, change_settings
from ...errors import UserError
from ...families import gpt
from ...files import read_optional_json
from ...processors.external import FolderTokenizer
from .folder import GENERATION_FILE, logit_filters, parse_config, read_generation_config

ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip


def activation(theirs: Mapping[str, Any], key: str, default: str) -> Any:
    if (name := theirs.get(key, default)) not in ACTIVATIONS:
        raise ValueError(f"{key} is {name!r}; expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def refuse(theirs: Mapping[str, Any], *keys: str) -> None:
    """What changes a model in a way that ours has not."""
    for key in ("quantization_config", *keys):
        if theirs.get(key):
            raise ValueError(f"{key} is set; regard reads {theirs.get('model_type')} folders without it")


def tokenizer(path: Path, config: Mapping[str, Any]) -> FolderTokenizer:
    """Of tokenizer.json, or of GPT-2's vocab.json and merges.txt."""
    said: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        said |= read_optional_json(path / name)
    names = {key: value["content"] if isinstance(value, dict) else value for key, value in said.items() if value}
    backend = _backend(
        path, [names[key] for key in ("bos_token", "eos_token", "pad_token", "unk_token") if key in names]
    )

    def number(role: str) -> int | None:
        if name := names.get(f"{role}_token"):
            return _token_id(path, backend, name)
        found = config.get(f"{role}_token_id")
        return found[0] if isinstance(found, list) else found

    end = number("eos")
    if end is None:
        raise UserError(f"{path} does not say what ends a text; name its eos_token in tokenizer_config.json")
    pad, start, unk = (end if (found := number(role)) is None else found for role in ("pad", "bos", "unk"))
    return FolderTokenizer(backend, pad, start, end, unk)


def _backend(path: Path, control: list[str]) -> Backend:
    if (path / "tokenizer.json").is_file():
        try:
            backend = Backend.from_str((path / "tokenizer.json").read_text(encoding="utf-8"))
        except Exception as error:  # the library raises nothing more special
            raise UserError(
                f"{path / 'tokenizer.json'} is no whole tokenizer ({error}); fetch the folder again"
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
    named = [name for name in dict.fromkeys([*control, "<|endoftext|>"]) if backend.token_to_id(name) is not None]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in named])
    return backend


def _token_id(path: Path, backend: Backend, name: str) -> int:
    found: int | None = backend.token_to_id(name)
    if found is None:
        raise UserError(f"{path}: {name!r} of tokenizer_config.json is not in the vocabulary; fetch the folder again")
    return found


# --- how it generates ------------------------------------------------------------------------------------------------

SAMPLING = ("temperature", "top_k", "top_p", "min_p")


def decode_from_generation(generation: Mapping[str, Any]) -> dict[str, Any]:
    """decode.* as a folder's generation_config.json says."""
    beams = generation.get("num_beams") or 1
    found: dict[str, Any] = {"kind": "beam" if beams > 1 else "greedy"}
    if generation.get("do_sample"):
        found = {"kind": "sample", "top_k": 50}  # what transformers does unless it is told otherwise
        found |= {name: generation[name] for name in SAMPLING if generation.get(name) is not None}
    elif beams > 1:
        early = generation.get("early_stopping", False)
        found["early_stopping"] = "first" if early is True else "exact" if early == "never" else "heuristic"
        penalty = generation.get("length_penalty")
        found |= {"beam": beams, "length_penalty": 1.0 if penalty is None else penalty}
    others = {"max_tokens": "max_new_tokens", "repetition_penalty": "repetition_penalty"}
    return found | {ours: generation[theirs] for ours, theirs in others.items() if generation.get(theirs)}


def generation_settings(decode: Any) -> dict[str, Any]:
    """What generation_config.json says for decode.*."""
    found = {"max_new_tokens": decode.max_tokens, "do_sample": decode.kind == "sample", "num_beams": 1}
    if decode.kind == "sample":
        found |= {name: getattr(decode, name) for name in SAMPLING if hasattr(decode, name)}
    if decode.kind == "beam":
        # transformers has no rule that is quite `exact`, and its nearest one goes on for very long: its default is used
        early = {"early_stopping": decode.early_stopping == "first", "length_penalty": decode.length_penalty}
        found |= {"num_beams": decode.beam, **early}
    return found | ({"repetition_penalty": decode.repetition_penalty} if decode.repetition_penalty != 1 else {})


def saved_decode(config: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any] | None:
    """decode.* of the run that a folder of ours was made from, unless its generation settings were changed since."""
    own = config.get("regard", {})
    if "decode" not in own or any(generation.get(key) != value for key, value in own.get("generation", {}).items()):
        return None
    decode: dict[str, Any] = own["decode"]
    return decode


# --- who writes ------------------------------------------------------------------------------------------------------


def language_predictor(
    path: Path, config: Mapping[str, Any], overrides: Mapping[str, Any], ours: gpt.Config, model: Any
) -> Any:
    """What people use, over a model that was read from a folder."""
    from ...device import resolve_device
    from ...tasks.language import LanguagePredictor

    text = tokenizer(path, config)
    if text.size > ours.vocab:
        raise UserError(
            f"{path}: the tokenizer has {text.size} entries and the model only {ours.vocab} (vocab_size); "
            "the tokenizer of another model may lie there"
        )
    generation = read_generation_config(path, config)

    def begun(said: Mapping[str, Any]) -> Run:
        decode = saved_decode(config, said) or decode_from_generation(said) | {"add_start": text.adds_start}
        return Run(task="language", model=ours, decode=decode)

    run = change_settings(parse_config(path, generation, begun, GENERATION_FILE), overrides)
    return LanguagePredictor(run, model, text, resolve_device(run.device), logit_filters(generation))
