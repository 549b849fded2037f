"""Hugging Face's BERT folders, and those of sentence-transformers, which say besides how a text becomes one vector."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import normalizers

from ...errors import UserError
from ...families import bert
from ...files import read_json
from ...parts.pooling import Pooling
from ...processors.tokenizers import TrainedTokenizer
from .folder import parse_config, read_weights
from .vocabularies import load_wordpiece, tokenizer_settings
from .weight_names import load_weights


@dataclass(frozen=True)
class EncoderFolder:
    """What lies in a BERT folder. Texts stand between `tokenizer.start` and `tokenizer.end`."""

    config: bert.Config
    model: bert.Model
    tokenizer: TrainedTokenizer
    labels: tuple[str, ...]  # of the heads class and tag
    max_tokens: int  # of a text, its START and END counted
    pooling: Pooling = "mean"
    normalised: bool = True


TASKS = {"none": "masked", "words": "masked", "class": "classify", "tag": "tag"}  # by head: whose system it becomes


def load_predictor(path: Path, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """What people use, by what the folder is for. A task makes it: `borrowed(folder, overrides)` in its module."""
    folder = read(path, config)
    return import_module(f"regard.tasks.{TASKS[folder.config.head]}").borrowed(folder, overrides)


def read(path: Path, config: Mapping[str, Any]) -> EncoderFolder:
    home, pooling, normalised = modules(path)
    theirs = {plain(name): tensor for name, tensor in read_weights(home).items()}
    ours = parse_config(home, config, lambda said: bert.from_huggingface(said, theirs))
    model = load_weights(bert.Model(ours), theirs, bert.names(ours), unused(ours))
    labels = tuple(bert.label_names(config)) if ours.labels else ()
    folder = EncoderFolder(ours, model, load_wordpiece(home), labels, ours.positions.tokens, pooling, normalised)  # type: ignore[arg-type, union-attr]
    if folder.tokenizer.size > ours.vocab:
        raise UserError(
            f"{home} has {folder.tokenizer.size} tokens and its model {ours.vocab}; they belong to two models"
        )
    return as_sentences(folder, home)


def plain(name: str) -> str:
    """Without the prefix of models that have a head, and as norms are called since 2019."""
    return re.sub(r"\.beta$", ".bias", re.sub(r"\.gamma$", ".weight", name.removeprefix("bert.")))


def unused(c: bert.Config) -> tuple[str, ...]:
    """Tensors that transformers passes over, too: places in order, and heads that this model is not said to have."""
    heads = {
        "cls.predictions": c.head == "words",
        "cls.seq_relationship": c.next_sentence,
        "classifier": bool(c.labels),
    }
    spare = [] if c.tied else [r"cls\.predictions\.bias"]  # the decoder then has one of its own
    return (r"embeddings\.position_ids", *spare, *(rf"{name}\..*" for name, wanted in heads.items() if not wanted))


# --- sentence-transformers -------------------------------------------------------------------------------------------

WAYS: dict[str, Pooling] = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max"}
NAMES: dict[str, Pooling] = {"cls": "first", "mean": "mean", "max": "max"}


def modules(path: Path) -> tuple[Path, Pooling, bool]:
    """Where the model lies, how its vectors become one, and whether that has length one; by modules.json."""
    if not (path / "modules.json").is_file():
        return path, "mean", True
    try:
        said = [(str(each["type"]), str(each["path"])) for each in read_json(path / "modules.json", list)]
    except (TypeError, KeyError) as error:
        raise UserError(f"{path / 'modules.json'} is no list of modules with type and path; fetch it again") from error
    listed = {kind.rpartition(".")[2]: path / place for kind, place in said}
    if other := [name for name in listed if name not in ("Transformer", "Pooling", "Normalize")]:
        raise UserError(f"{path / 'modules.json'} has {other[0]}; regard reads Transformer, Pooling and Normalize")
    if "Transformer" not in listed or "Pooling" not in listed:
        raise UserError(f"{path / 'modules.json'} has no Transformer or no Pooling; regard needs both")
    refuse_prompt(path)
    return listed["Transformer"], way(listed["Pooling"] / "config.json"), "Normalize" in listed


def way(file: Path) -> Pooling:
    if not file.is_file():
        raise UserError(f"{file} is not there, and nothing else says how to pool; fetch the folder again")
    said = read_json(file)
    if "pooling_mode" in said:
        asked = [said["pooling_mode"]] if isinstance(said["pooling_mode"], str) else list(said["pooling_mode"])
        known = NAMES
    else:
        asked = [
            key.removeprefix("pooling_mode_") for key, on in said.items() if key.startswith("pooling_mode_") and on
        ]
        known = WAYS
    if len(asked) != 1 or asked[0] not in known:
        raise UserError(
            f"{file} pools by {' and '.join(asked) or 'nothing'}; regard pools by one of {', '.join(known)}"
        )
    return known[asked[0]]


def refuse_prompt(path: Path) -> None:
    file = path / "config_sentence_transformers.json"
    if file.is_file() and (name := read_json(file).get("default_prompt_name")):
        raise UserError(f"{file} puts the prompt {name!r} before every text (default_prompt_name); regard does not")


def as_sentences(folder: EncoderFolder, home: Path) -> EncoderFolder:
    """With the most tokens that sentence-transformers reads, and lower case where it is asked for."""
    file = home / "sentence_bert_config.json"
    said = read_json(file) if file.is_file() else {}
    if said.get("do_lower_case"):
        backend = folder.tokenizer.backend
        steps = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
        backend.normalizer = normalizers.Sequence(steps)  # type: ignore[arg-type]
    most = said.get("max_seq_length") or tokenizer_settings(home).get("model_max_length") or folder.max_tokens
    if not isinstance(most, int | float):
        raise UserError(f"{home} reads texts of max_seq_length {most!r}; expected a number, fetch the folder again")
    return replace(folder, max_tokens=int(min(most, folder.max_tokens)))
