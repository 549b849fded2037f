"""Folders of Hugging Face `transformers`, read without it: config.json, safetensors, the tokenizer's own files."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...config.schema import Seq2SeqDecode
from ...decode import Filter, Forbid, ForcedEnd, Renormalize, Suppress
from ...errors import UserError
from ...files import read_json, read_optional_json

T = TypeVar("T")
GENERATION_FILE = "generation_config.json"

IMPORTERS = {  # by model_type: a module with `load_predictor`
    "marian": "regard.formats.huggingface.marian",
    "bert": "regard.formats.huggingface.bert",
    "longformer": "regard.formats.huggingface.longformer",
    "big_bird": "regard.formats.huggingface.bigbird",
    "t5": "regard.formats.huggingface.t5",
    "gpt2": "regard.formats.huggingface.gpt2",
    "llama": "regard.formats.huggingface.llama",
    "mistral": "regard.formats.huggingface.llama",
    "qwen2": "regard.formats.huggingface.llama",
}


def load_folder(path: Path, overrides: Mapping[str, Any]) -> Any:
    config = read_optional_json((path if (path / "config.json").is_file() else first_module(path)) / "config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in IMPORTERS:
        raise UserError(
            f"{path} holds a model of type {kind!r}; of Hugging Face's, regard reads: {', '.join(IMPORTERS)}"
        )
    return import_module(IMPORTERS[kind]).load_predictor(path, config, overrides)


def first_module(path: Path) -> Path:
    """Where the model of an older sentence-transformers folder lies."""
    listed = [each.get("path") for each in read_json(path / "modules.json", list) if isinstance(each, dict)]
    home = next((path / each for each in listed if each), path)
    if not (home / "config.json").is_file():
        raise UserError(f"{path} has a modules.json and no config.json; a Hugging Face folder needs one")
    return home


def parse_config(
    path: Path, said: Mapping[str, Any], reader: Callable[[Mapping[str, Any]], T], file: str = "config.json"
) -> T:
    """What a folder says in a file as ours, or the sentence that says why not."""
    try:
        return reader(said)
    except KeyError as error:
        raise UserError(f"{path / file} has no {error}; fetch the folder again") from error
    except TypeError as error:
        raise UserError(f"{path / file} has a value of the wrong type ({error}); fetch the folder again") from error
    except ValueError as error:
        raise UserError(f"{path / file}: {error_text(error)}") from error


def error_text(error: ValueError) -> str:
    """In one line; a validator's own sentence, or the key and what pydantic says of it."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    if first["type"] == "value_error":
        return first["msg"].removeprefix("Value error, ")
    return f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a folder: one safetensors file, or several with their index."""
    if (path / "model.safetensors.index.json").is_file():
        parts = read_json(path / "model.safetensors.index.json").get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(name, str) for name in parts.values()):
            raise UserError(f"{path / 'model.safetensors.index.json'} has no weight_map; fetch the folder again")
        files = sorted(set(parts.values()))
    elif (path / "model.safetensors").is_file():
        files = ["model.safetensors"]
    elif (path / "pytorch_model.bin").is_file():
        name = (read_json(path / "config.json").get("architectures") or ["AutoModel"])[0]
        raise UserError(
            f"{path} holds only pytorch_model.bin, a pickle, which regard never opens; convert it with transformers: "
            f"{name}.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    else:
        raise UserError(f"{path} has no model.safetensors; a Hugging Face folder needs its weights beside config.json")
    try:
        return {name: tensor.float() for file in files for name, tensor in load_file(path / file).items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"the weights in {path} are cut off or damaged ({error}); fetch the folder again") from error


def read_generation_config(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """How a folder generates: generation_config.json over config.json, where both are of the types they must be."""
    own = read_optional_json(path / GENERATION_FILE)
    found = {**config, **own}
    for name, (fits, wanted) in GENERATION_TYPES.items():
        if (value := found.get(name)) is not None and not fits(value):
            file = path / (GENERATION_FILE if name in own else "config.json")
            raise UserError(f"{file}: {name} is {value!r}; expected {wanted}, put it right")
    return found


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integer_list(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_integer, value))


GENERATION_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
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


def saved_decode(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Seq2SeqDecode | None:
    """decode.* of the run that a folder of ours was made from, unless its generation settings were changed since."""
    try:
        decode = Seq2SeqDecode(**config["regard"]["decode"])
    except (KeyError, TypeError, ValidationError):
        return None
    wanted = generation_settings(decode, generation.get("max_length"))
    return decode if all(generation.get(key) == value for key, value in wanted.items()) else None


def generation_settings(decode: Seq2SeqDecode, longest: int | None) -> dict[str, Any]:
    """What generation_config.json says for decode.*; `longest` tokens, START counted, where decode sets no limit."""
    limit = {"max_length": decode.max_tokens + 1 if decode.max_tokens else longest}
    if decode.kind == "sample":
        drawing = {name: getattr(decode, name) for name in ("temperature", "top_k", "top_p")}
        return {"do_sample": True, "num_beams": 1, **drawing, **limit}
    if decode.kind == "greedy":
        return {"do_sample": False, "num_beams": 1, **limit}
    # transformers has no rule that is quite `exact`, and its nearest one goes on for very long: its own default is used
    stop = {"early_stopping": decode.early_stopping == "first", "length_penalty": decode.length_penalty}
    return {"do_sample": False, "num_beams": decode.beam, **stop, **limit}


def decode_from_generation(generation: Mapping[str, Any]) -> Seq2SeqDecode:
    """decode.* as a folder's generation_config.json says."""
    if generation.get("do_sample"):
        raise UserError("generation_config.json asks for sampling (do_sample); set it to false")
    beams = generation.get("num_beams") or 1
    early, penalty = generation.get("early_stopping", False), generation.get("length_penalty")
    longest = generation.get("max_new_tokens") or max((generation.get("max_length") or 1) - 1, 0)  # with START
    return Seq2SeqDecode(
        kind="beam" if beams > 1 else "greedy",
        beam=beams,
        length_penalty=1.0 if penalty is None else penalty,
        early_stopping="first" if early is True else "exact" if early == "never" else "heuristic",
        max_tokens=longest,
    )


def logit_filters(generation: Mapping[str, Any]) -> tuple[Filter, ...]:
    """The logit filters of a folder, in the order in which transformers applies them."""
    found: list[Filter] = []
    words = generation.get("bad_words_ids") or []
    if any(len(word) == 1 for word in words):
        found.append(Suppress([word[0] for word in words if len(word) == 1]))
    if any(len(word) > 1 for word in words):
        found.append(Forbid([[word for word in words if len(word) > 1]]))
    if generation.get("suppress_tokens"):
        found.append(Suppress(generation["suppress_tokens"]))
    if generation.get("forced_eos_token_id") is not None:
        found.append(ForcedEnd(generation["forced_eos_token_id"]))
    if generation.get("renormalize_logits"):
        found.append(Renormalize())
    return tuple(found)
