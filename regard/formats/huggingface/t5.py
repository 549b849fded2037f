"""Hugging Face's T5 folders, of the first T5 and of 1.1, as text-to-text systems."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...config.run import Run, change_settings
from ...errors import UserError
from ...families import t5
from ...processors.tokenizers import TrainedTokenizer
from .folder import (
    GENERATION_FILE,
    decode_from_generation,
    logit_filters,
    parse_config,
    read_generation_config,
    read_weights,
    saved_decode,
)
from .vocabularies import load_t5_unigram
from .weight_names import load_weights


def load_predictor(path: Path, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """What takes a text and gives one."""
    from ...device import resolve_device
    from ...tasks.translate import TranslatePredictor

    ours, model = read(path, config)
    generation = read_generation_config(path, config)
    decode = saved_decode(config, generation) or parse_config(path, generation, decode_from_generation, GENERATION_FILE)
    run = change_settings(Run(task="translate", model=ours, decode=decode), overrides)
    text = tokenizer(path, generation, ours)
    return TranslatePredictor(run, model, text, text, resolve_device(run.device), logit_filters(generation))


def read(path: Path, config: Mapping[str, Any]) -> tuple[t5.Config, t5.Model]:
    theirs = read_weights(path)
    ours = parse_config(path, config, t5.from_huggingface)
    ours = ours.model_copy(update={"tied": settled(theirs, config)})
    model = load_weights(t5.Model(ours), theirs, t5.names(ours), UNUSED)
    return ours, model  # type: ignore[return-value]


UNUSED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)  # of some old files


def settled(theirs: dict[str, Tensor], config: Mapping[str, Any]) -> bool:
    """Is the output's table the embeddings'? In ours that and scaled states go together, in their files not always:
    where they part, a head of its own is put into `theirs`, which says the same."""
    tied = config.get("tie_word_embeddings") is not False
    scaled = config.get("scale_decoder_outputs", tied)
    shared = next((theirs[name] for name in ("shared.weight", "encoder.embed_tokens.weight") if name in theirs), None)
    head = theirs.get("lm_head.weight", shared if tied else None)
    if shared is None or head is None:
        return bool(scaled)  # what is missing will be said
    if scaled and head.equal(shared):
        return True
    theirs["lm_head.weight"] = head * config["d_model"] ** -0.5 if scaled else head
    return False


def tokenizer(path: Path, generation: Mapping[str, Any], ours: t5.Config) -> TrainedTokenizer:
    text = load_t5_unigram(path)
    numbers = {"pad_token_id": text.pad, "eos_token_id": text.end, "decoder_start_token_id": text.start}
    for key, number in numbers.items():
        if generation.get(key) not in (None, number):
            raise UserError(f"{path}: {key} is {generation[key]} and its tokenizer has {number}; they must agree")
    if text.size > ours.vocab:
        raise UserError(f"{path} has {text.size} tokens and its model {ours.vocab}; they belong to two models")
    return text
