"""Tokenizers made elsewhere and used unchanged: those of GPT-2, Llama and Marian folders."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from ...errors import UserError
from ...files import JsonMapping, JsonObject, atomic_write
from .byte_fallback import decode_by_bytes, display_byte, has_byte_fallback, replace_invalid_bytes
from .tokenizers import MASK, ROLES, Tokenizer, byte_letters, refuse_surrogates, text_list

SPACE = "▁"
ENCODER, DECODER = "cutter", "joiner"  # the keys of the two sentencepiece models in the file of a MarianTokenizer


class SentencePiece(Protocol):
    """The methods of sentencepiece's processor used here."""

    def encode(self, input: str, out_type: type[str]) -> list[str]: ...
    def decode_pieces(self, input: list[str]) -> str: ...
    def serialized_model_proto(self) -> bytes: ...


class FolderTokenizer:
    """The tokenizer of a folder. Text never encodes to a control token, even if the folder's own rules would.

    One entry may have several roles: GPT-2's `<|endoftext|>` is START, END and PAD. So control tokens are identified by
    id; the file of a run contains these ids (ROLES).
    """

    def __init__(self, backend: Backend, pad: int, start: int, end: int, unk: int) -> None:
        backend.encode_special_tokens = True
        self.backend, self.size = backend, backend.get_vocab_size()
        self.pad, self.start, self.end, self.unk = pad, start, end, unk
        self.adds_start = backend.encode("a").ids[:1] == [start]  # True if the folder puts START before every text
        masks = (backend.token_to_id(name) for name in (MASK, "[MASK]"))
        self.mask: int | None = next((number for number in masks if number is not None), None)
        self.symbols: dict[int, str] = {}  # tokens that are never masked
        self._added = set(backend.get_added_tokens_decoder())
        byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        self._bytes = {letter: byte for byte, letter in enumerate(byte_letters())} if byte_level else {}
        self._byte_fallback = has_byte_fallback(backend)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        for text in (listed := text_list(texts)):
            refuse_surrogates(text)
        return [encoding.ids for encoding in self.backend.encode_batch_fast(listed, add_special_tokens=False)]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        skipped = {self.pad, self.start, self.end}
        text_ids = [[number for number in row if number not in skipped] for row in rows]
        if self._byte_fallback:
            return [decode_by_bytes(self.backend, row) for row in text_ids]
        return [self.backend.decode(row, skip_special_tokens=False) for row in text_ids]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """A readable token per id; ▁ is a space, and parts of a character are shown as bytes."""
        return [self._token(number) for number in ids]

    def _token(self, number: int) -> str:
        token: str = self.backend.id_to_token(number) or f"<{number}>"  # a model may have more entries than names
        if number in self._added or not all(letter in self._bytes for letter in token):
            return display_byte(token).replace(" ", SPACE) if self._byte_fallback else token
        data = bytes(self._bytes[letter] for letter in token)
        try:
            return data.decode("utf-8").replace(" ", SPACE)
        except UnicodeDecodeError:
            return f"<{data.hex(' ')}>"

    @property
    def roles(self) -> dict[str, int]:
        return {role: getattr(self, role) for role in ("pad", "start", "end", "unk")}

    def save(self, path: Path) -> None:
        write_tokenizer(path, json.loads(self.backend.to_str()) | {ROLES: self.roles})


class MarianTokenizer:
    """The source or target tokenizer of a Marian folder: sentencepiece models to encode and decode, a vocabulary."""

    def __init__(
        self, encoder: SentencePiece, decoder: SentencePiece, vocab: Mapping[str, int], control: Mapping[str, int]
    ) -> None:
        self.encoder, self.decoder, self.vocab, self.roles = encoder, decoder, vocab, dict(control)
        self.names = {number: token for token, number in vocab.items()}
        self.pad, self.start, self.end, self.unk = (control[name] for name in ("pad", "start", "end", "unk"))
        self.size = max(self.names) + 1

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.vocab.get(token, self.unk) for token in self._split(text)] for text in text_list(texts)]

    def _split(self, text: str) -> list[str]:
        code, rest = [], text
        if text.startswith(">>") and "<<" in text:  # the code of the target language stays one token
            stop = text.index("<<") + 2
            code, rest = [text[:stop]], text[stop:]
        return code + self.encoder.encode(rest, out_type=str)

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        skipped = {self.pad, self.start, self.end, self.unk}
        rows = [[self.names.get(number, "<unk>") for number in ids if number not in skipped] for ids in sequences]
        valid = map(replace_invalid_bytes, rows)
        return [self.decoder.decode_pieces(tokens).replace(SPACE, " ").strip() for tokens in valid]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        return [display_byte(self.names.get(number, "<unk>")).replace(SPACE, " ") for number in ids]

    def save(self, path: Path) -> None:
        models = {ENCODER: self.encoder, DECODER: self.decoder}
        encoded = {name: b64encode(model.serialized_model_proto()).decode() for name, model in models.items()}
        write_tokenizer(path, {**encoded, "vocab": self.vocab, ROLES: self.roles})


def sentencepiece_processor(model_file: str | None = None, model_proto: bytes | None = None) -> SentencePiece:
    """A sentencepiece processor from its `model_file` or `model_proto`."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise UserError("Marian folders need sentencepiece; install it with: pip install 'regard[marian]'") from error
    return cast(SentencePiece, SentencePieceProcessor(model_file=model_file, model_proto=model_proto))


def load_external(whole: JsonObject) -> Tokenizer:
    """The tokenizer that `save` wrote."""
    roles = whole.pop(ROLES)
    if "own" in roles:
        from .custom import load_custom

        return load_custom(roles)
    if "control" in roles:
        from .whisper import ControlTokens, WhisperTokenizer

        control = ControlTokens(**roles.pop("control"))
        return WhisperTokenizer(Backend.from_str(json.dumps(whole)), **roles, control=control)
    if ENCODER not in whole:
        return FolderTokenizer(Backend.from_str(json.dumps(whole)), **roles)
    encoder, decoder = (sentencepiece_processor(model_proto=b64decode(whole[name])) for name in (ENCODER, DECODER))
    return MarianTokenizer(encoder, decoder, whole["vocab"], roles)


def write_tokenizer(path: Path, whole: JsonMapping) -> None:
    """Write the file of a tokenizer, atomically."""
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(whole, ensure_ascii=False) + "\n", encoding="utf-8")
