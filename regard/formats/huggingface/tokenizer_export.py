"""Our tokenizers as files that `transformers` and `tokenizers` use without regard."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, processors

from ...files import JsonObject, write_json
from ...processors.text.external import MarianTokenizer
from ...processors.text.tokenizers import END, SPECIALS, Tokenizer, TrainedTokenizer, byte_letters, byte_values
from .marian import TARGET_TOKENIZER_FILE, TOKENIZER_FILE

if TYPE_CHECKING:
    from ...tasks.translate.task import TranslatePredictor


def write_tokenizers(predictor: "TranslatePredictor", draft: Path) -> dict[str, TrainedTokenizer]:
    """Write one tokenizer.json, or one for source and one for target; return the tokenizers by file name."""
    tokenizers: JsonObject = {TOKENIZER_FILE: predictor.source}
    if predictor.target is not predictor.source:
        tokenizers[TARGET_TOKENIZER_FILE] = predictor.target
    for name, tokenizer in tokenizers.items():
        (draft / name).parent.mkdir(exist_ok=True)
        (draft / name).write_text(portable_tokenizer(tokenizer).to_str(pretty=True) + "\n", encoding="utf-8")
    return tokenizers


def write_tokenizer_files(predictor: "TranslatePredictor", draft: Path, max_length: int) -> None:
    """Write the tokenizers, each with its tokenizer_config.json."""
    if isinstance(predictor.source, MarianTokenizer):
        assert isinstance(predictor.target, MarianTokenizer)
        write_marian_tokenizer(predictor.source, predictor.target, draft, max_length)
        return
    for name, tokenizer in write_tokenizers(predictor, draft).items():
        write_json((draft / name).parent / "tokenizer_config.json", tokenizer_config(tokenizer, max_length))


def write_marian_tokenizer(source: MarianTokenizer, target: MarianTokenizer, draft: Path, max_length: int) -> None:
    """The files of a Marian folder that a run started from: two sentencepiece models with one vocabulary, or two."""
    for name, tokenizer in (("source.spm", source), ("target.spm", target)):
        (draft / name).write_bytes(tokenizer.encoder.serialized_model_proto())
    write_json(draft / "vocab.json", source.vocab)
    separate = source.vocab != target.vocab
    if separate:
        write_json(draft / "target_vocab.json", target.vocab)
    settings: JsonObject = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": separate,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    write_json(draft / "tokenizer_config.json", settings)


def has_target_folder(predictor: "TranslatePredictor") -> bool:
    """True if the target has a tokenizer of its own in `target/`; both sides of Marian are one tokenizer."""
    return predictor.target is not predictor.source and not isinstance(predictor.source, MarianTokenizer)


def tokenizer_config(tokenizer: Tokenizer, max_length: int) -> JsonObject:
    """tokenizer_config.json. Control names in a text stay text. `<unk>` is not named, or decoding would drop it."""
    pad, start, end, _ = SPECIALS
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad,
        "bos_token": start if tokenizer.start != tokenizer.pad else None,  # an imported vocabulary may have none
        "eos_token": end,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_length,
    }


def portable_tokenizer(tokenizer: TrainedTokenizer, add_end: bool = True) -> Backend:
    """A tokenizer.json that decodes as ours does without our code; `add_end` appends END to every text."""
    content = json.loads(tokenizer.backend.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] != tokenizer.unk]
    backend = Backend.from_str(json.dumps(content))
    end = SPECIALS[END]
    if add_end:
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.end)]
        )
    if tokenizer.symbols and byte_values(backend):
        backend.decoder = decode_around_symbols(backend.decoder, list(tokenizer.symbols.values()))
    return backend


def decode_around_symbols(decoder: decoders.Decoder, symbols: list[str]) -> decoders.Decoder:
    """A decoder that treats the text between symbols as separate texts, as our tokenizers do."""
    table = byte_letters()
    spelled = {symbol: "".join(table[byte] for byte in symbol.encode()) for symbol in symbols if not symbol.isascii()}
    before = [decoders.Replace(symbol, byte_text) for symbol, byte_text in spelled.items()]  # undone as bytes
    stripped = isinstance(decoder, decoders.Sequence)  # words: the space before the first is not of the text
    after = [decoders.Replace(f"{symbol} ", symbol) for symbol in symbols] if stripped else []
    return decoders.Sequence([*before, decoder, *after])
