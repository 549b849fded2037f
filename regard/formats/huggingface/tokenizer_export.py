"""Our tokenizers as files that `transformers` and `tokenizers` use without regard."""

import json
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, processors

from ...files import JsonObject, write_json
from ...processors.text.tokenizers import END, SPECIALS, Tokenizer, TrainedTokenizer, byte_letters, byte_values

TOKENIZER_FILE, TARGET_TOKENIZER_FILE = "tokenizer.json", "target/tokenizer.json"


def write_tokenizer_json(draft: Path, backend: Backend, settings: JsonObject) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    draft.mkdir(exist_ok=True)
    (draft / TOKENIZER_FILE).write_text(backend.to_str(pretty=True) + "\n", encoding="utf-8")
    write_json(draft / "tokenizer_config.json", settings)


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
