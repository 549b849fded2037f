"""sentence-transformers folders: how the token states of a BERT become one vector per text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import normalizers

from ...errors import UserError
from ...files import Json, read_json
from ...parts.pooling import Pooling
from ...processors.text.tokenizers import TrainedTokenizer
from .vocabularies import tokenizer_settings

POOLING_FLAGS: dict[str, Pooling] = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max"}
POOLING_MODES: dict[str, Pooling] = {"cls": "first", "mean": "mean", "max": "max"}  # as newer versions write them


@dataclass(frozen=True)
class SentenceModules:
    """The content of modules.json: the folder of the Transformer, the pooling, and whether vectors have length one."""

    home: Path
    pooling: Pooling = "mean"
    normalize: bool = True


def read_modules(path: Path) -> SentenceModules:
    """The modules of a folder; the defaults where it has no modules.json."""
    file = path / "modules.json"
    if not file.is_file():
        return SentenceModules(path)
    try:
        modules = [_read_module(module) for module in read_json(file, list)]
    except (TypeError, KeyError) as error:
        raise UserError(f"{file} is no list of modules with type and path; fetch it again") from error
    folders = {module_type.rpartition(".")[2]: path / folder for module_type, folder in modules}
    if other := [name for name in folders if name not in ("Transformer", "Pooling", "Normalize")]:
        raise UserError(f"{file} has {other[0]}; regard supports Transformer, Pooling and Normalize")
    if "Transformer" not in folders or "Pooling" not in folders:
        raise UserError(f"{file} has no Transformer or no Pooling; regard needs both")
    refuse_prompt(path)
    return SentenceModules(
        folders["Transformer"], read_pooling(folders["Pooling"] / "config.json"), "Normalize" in folders
    )


def _read_module(module: Json) -> tuple[str, str]:
    if not isinstance(module, Mapping):
        raise TypeError("a module is not an object")
    return str(module["type"]), str(module["path"])


def read_pooling(file: Path) -> Pooling:
    """The pooling of a sentence-transformers folder."""
    if not file.is_file():
        raise UserError(f"{file} is missing, so the pooling is unknown; fetch the folder again")
    config = read_json(file)
    if "pooling_mode" in config:
        mode, table = config["pooling_mode"], POOLING_MODES
        modes = [mode] if isinstance(mode, str) else list(mode)
    else:
        prefix, table = "pooling_mode_", POOLING_FLAGS
        modes = [key.removeprefix(prefix) for key, on in config.items() if key.startswith(prefix) and on]
    if len(modes) != 1 or modes[0] not in table:
        raise UserError(
            f"{file} pools by {' and '.join(modes) or 'nothing'}; regard pools by one of {', '.join(table)}"
        )
    return table[modes[0]]


def refuse_prompt(path: Path) -> None:
    """Refuse a folder that puts a prompt before every text."""
    file = path / "config_sentence_transformers.json"
    if file.is_file() and (name := read_json(file).get("default_prompt_name")):
        raise UserError(
            f"{file} puts the prompt {name!r} before every text (default_prompt_name); regard does not, remove the key"
        )


def apply_sentence_settings(home: Path, tokenizer: TrainedTokenizer, context: int) -> int:
    """Make `tokenizer` lowercase where sentence_bert_config.json asks for it; return the longest text in tokens."""
    file = home / "sentence_bert_config.json"
    config = read_json(file) if file.is_file() else {}
    if config.get("do_lower_case"):
        backend = tokenizer.backend
        steps = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
        backend.normalizer = normalizers.Sequence(steps)
    longest = config.get("max_seq_length") or tokenizer_settings(home).get("model_max_length") or context
    if not isinstance(longest, int | float):
        raise UserError(f"{home}: max_seq_length is {longest!r}; expected a number, fetch the folder again")
    return int(min(longest, context))
