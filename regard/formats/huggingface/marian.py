"""Marian's vocabularies: two sentencepiece models that cut, and vocab.json, which numbers the pieces.

A folder that we wrote has our own tokenizer.json instead, and target/tokenizer.json where the sides have one each.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config.run import Run, change_settings
from ...errors import UserError
from ...families import transformer
from ...files import read_json
from ...processors import tokenizers as own
from ...processors.external import MarianTokenizer, sentencepiece_processor
from ...processors.tokenizers import Tokenizer, TrainedTokenizer
from .folder import (
    GENERATION_FILE,
    decode_from_generation,
    logit_filters,
    parse_config,
    read_generation_config,
    read_weights,
    saved_decode,
)
from .weight_names import load_weights

TOKENIZER_FILE, TARGET_TOKENIZER_FILE = "tokenizer.json", "target/tokenizer.json"


def tokenizers(path: Path, config: Mapping[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """(source, target) of a Marian folder."""
    if "regard" in config or ((path / TOKENIZER_FILE).is_file() and not (path / "source.spm").is_file()):
        return _regard_tokenizers(path, config)

    def cutter(name: str) -> Any:
        if not (path / name).is_file():
            raise UserError(f"{path} has no {name}; a Marian folder needs source.spm, target.spm and vocab.json")
        try:
            return sentencepiece_processor(model_file=str(path / name))
        except (RuntimeError, OSError) as error:
            raise UserError(f"{path / name} is no sentencepiece model ({error}); fetch the folder again") from error

    if not (path / "vocab.json").is_file():
        raise UserError(f"{path} has no vocab.json; a Marian folder needs source.spm, target.spm and vocab.json")
    return _marian_tokenizers(path, config, cutter("source.spm"), cutter("target.spm"))


def _regard_tokenizers(path: Path, config: Mapping[str, Any]) -> tuple[TrainedTokenizer, TrainedTokenizer]:
    source = own.load_tokenizer(path / TOKENIZER_FILE)
    target = (
        source
        if config.get("share_encoder_decoder_embeddings", True)
        else own.load_tokenizer(path / TARGET_TOKENIZER_FILE)
    )
    numbers = {"pad_token_id": source.pad, "decoder_start_token_id": source.start, "eos_token_id": source.end}
    for key, number in numbers.items():
        if config[key] != number:
            raise UserError(
                f"{path / 'config.json'}: {key} is {config[key]} and {number} in {TOKENIZER_FILE}; they must agree"
            )
    for key, side in (("vocab_size", source), ("decoder_vocab_size", target)):
        if config.get(key, side.size) != side.size:
            raise UserError(f"{path / 'config.json'}: {key} is {config[key]} and its tokenizer has {side.size} entries")
    return source, target


def _marian_tokenizers(
    path: Path, config: Mapping[str, Any], source: Any, target: Any
) -> tuple[MarianTokenizer, MarianTokenizer]:
    vocab = read_json(path / "vocab.json")
    separate = (path / "target_vocab.json").is_file() and not config.get("share_encoder_decoder_embeddings", True)
    target_vocab = read_json(path / "target_vocab.json") if separate else vocab
    numbers = {"pad": config["pad_token_id"], "end": config["eos_token_id"], "start": config["decoder_start_token_id"]}
    joiner = target if separate else source  # as transformers does
    return (
        MarianTokenizer(source, source, vocab, numbers | {"unk": vocab["<unk>"]}),
        MarianTokenizer(target, joiner, target_vocab, numbers | {"unk": target_vocab["<unk>"]}),
    )


def load_predictor(path: Path, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """The translator in a Marian folder."""
    from ...device import resolve_device
    from ...tasks.translate import TranslatePredictor

    ours = parse_config(path, config, transformer.from_marian)
    model = transformer.Model(ours)
    load_weights(model, read_weights(path), transformer.marian(ours), transformer.MARIAN_COMPUTED)
    generation = read_generation_config(path, config)
    decode = saved_decode(config, generation) or parse_config(path, generation, decode_from_generation, GENERATION_FILE)
    run = change_settings(Run(task="translate", model=ours, decode=decode), overrides)
    source, target = tokenizers(path, config)
    return TranslatePredictor(run, model, source, target, resolve_device(run.device), logit_filters(generation))
