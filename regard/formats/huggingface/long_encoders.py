"""Hugging Face's folders of encoders for long texts: Longformer's and BigBird's."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...families import bigbird, longformer
from ...families.bert import label_names
from .bert import TASKS, EncoderFolder
from .folder import parse_config, read_weights
from .vocabularies import load_bigbird_unigram, load_byte_bpe
from .weight_names import load_weights


def load_predictor(path: Path, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """What people use, by what the folder is for."""
    folder = read(path, config)
    return import_module(f"regard.tasks.{TASKS[folder.config.head]}").borrowed(folder, overrides)


def read(path: Path, config: Mapping[str, Any]) -> EncoderFolder:
    folder = READERS[config["model_type"]](path, config)
    if folder.tokenizer.size > folder.config.vocab:
        raise UserError(
            f"{path} has {folder.tokenizer.size} tokens and its model {folder.config.vocab}; they belong to two models"
        )
    return folder


def read_longformer(path: Path, config: Mapping[str, Any]) -> EncoderFolder:
    theirs = {name.removeprefix("longformer."): tensor for name, tensor in read_weights(path).items()}
    ours = parse_config(path, config, lambda said: longformer.from_huggingface(said, theirs))
    names = longformer.names(ours, longformer.skipped(config))
    model = load_weights(longformer.Model(ours), theirs, names, longformer.unused(ours))
    return folder_of(config, ours, model, load_byte_bpe(path))


def read_bigbird(path: Path, config: Mapping[str, Any]) -> EncoderFolder:
    theirs = {name.removeprefix("bert."): tensor for name, tensor in read_weights(path).items()}
    ours = parse_config(path, config, lambda said: bigbird.from_huggingface(said, theirs))
    model = load_weights(bigbird.Model(ours), theirs, bigbird.names(ours), bigbird.unused(ours))
    return folder_of(config, ours, model, load_bigbird_unigram(path))


def folder_of(config: Mapping[str, Any], ours: Any, model: Any, tokenizer: Any) -> EncoderFolder:
    labels = tuple(label_names(config)) if ours.labels else ()
    return EncoderFolder(ours, model, tokenizer, labels, ours.positions.tokens)


READERS = {"longformer": read_longformer, "big_bird": read_bigbird}
