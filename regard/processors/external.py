"""Vocabularies that were made elsewhere and stay as they are: those of GPT-2, Llama and Marian folders."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from ..errors import UserError
from ..files import atomic_write
from .tokenizers import ROLES, letters

SPACE = "▁"
MODELS = "cutter", "joiner"  # of sentencepiece


class FolderTokenizer:
    """The tokenizer of a folder, behind the verbs of our own. No text is control, whatever the folder itself would say.

    One entry may have several parts to play: GPT-2's `<|endoftext|>` is START, END and PAD. So control is known by its
    numbers, which a run keeps in the same file (ROLES).
    """

    def __init__(self, backend: Backend, pad: int, start: int, end: int, unk: int) -> None:
        backend.encode_special_tokens = True
        self.backend, self.size = backend, backend.get_vocab_size()
        self.pad, self.start, self.end, self.unk = pad, start, end, unk
        self.opens = backend.encode("a").ids[:1] == [start]  # does the folder put START before every text?
        self._kept = set(backend.get_added_tokens_decoder())
        spelt = isinstance(backend.decoder, decoders.ByteLevel)
        self._bytes = {letter: byte for byte, letter in enumerate(letters())} if spelt else {}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise UserError(f"{text!r} is not valid Unicode: it holds half a surrogate pair; mend the text")
        return [one.ids for one in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        silent = {self.pad, self.start, self.end}
        kept = [[number for number in row if number not in silent] for row in rows]
        return [self.backend.decode(row, skip_special_tokens=False) for row in kept]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One readable piece per id; spaces are shown as ▁, parts of a character as their bytes."""
        return [self._piece(number) for number in ids]

    def _piece(self, number: int) -> str:
        token: str = (
            self.backend.id_to_token(number) or f"<{number}>"
        )  # a model may have more entries than it has names
        if number in self._kept or not all(letter in self._bytes for letter in token):
            return token
        data = bytes(self._bytes[letter] for letter in token)
        try:
            return data.decode("utf-8").replace(" ", "▁")
        except UnicodeDecodeError:
            return f"<{data.hex(' ')}>"

    @property
    def roles(self) -> dict[str, int]:
        return {role: getattr(self, role) for role in ("pad", "start", "end", "unk")}

    def save(self, path: Path) -> None:
        _write(path, json.loads(self.backend.to_str()) | {ROLES: self.roles})


class MarianTokenizer:
    """One side of a Marian folder, behind the same verbs as our own tokenizers."""

    def __init__(self, cutter: Any, joiner: Any, vocab: Mapping[str, int], control: Mapping[str, int]) -> None:
        self.cutter, self.joiner, self.vocab, self.roles = cutter, joiner, vocab, dict(control)
        self.names = {number: piece for piece, number in vocab.items()}
        self.pad, self.start, self.end, self.unk = (control[name] for name in ("pad", "start", "end", "unk"))
        self.size = max(self.names) + 1

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.vocab.get(piece, self.unk) for piece in self._cut(text)] for text in texts]

    def _cut(self, text: str) -> list[str]:
        code, rest = [], text
        if text.startswith(">>") and "<<" in text:  # the language wanted, which stays whole
            place = text.index("<<") + 2
            code, rest = [text[:place]], text[place:]
        pieces: list[str] = self.cutter.encode(rest, out_type=str)
        return code + pieces

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        silent = {self.pad, self.start, self.end, self.unk}
        kept = [[self.names.get(each, "<unk>") for each in ids if each not in silent] for ids in sequences]
        return [self.joiner.decode_pieces(pieces).replace(SPACE, " ").strip() for pieces in kept]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.names.get(each, "<unk>").replace(SPACE, " ") for each in ids]

    def save(self, path: Path) -> None:
        models = {name: b64encode(getattr(self, name).serialized_model_proto()).decode() for name in MODELS}
        _write(path, {**models, "vocab": self.vocab, ROLES: self.roles})


def processor(**source: Any) -> Any:
    """What cuts and joins by a model of sentencepiece, its `model_file` or `model_proto`."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise UserError("Marian folders need sentencepiece; install it with: pip install 'regard[marian]'") from error
    return SentencePieceProcessor(**source)


def restored(whole: dict[str, Any]) -> FolderTokenizer | MarianTokenizer:
    """What `save` wrote."""
    roles = whole.pop(ROLES)
    if "cutter" not in whole:
        return FolderTokenizer(Backend.from_str(json.dumps(whole)), **roles)
    cutter, joiner = (processor(model_proto=b64decode(whole[name])) for name in MODELS)
    return MarianTokenizer(cutter, joiner, whole["vocab"], roles)


def _write(path: Path, whole: dict[str, Any]) -> None:
    with atomic_write(path) as draft:
        draft.write_text(json.dumps(whole, ensure_ascii=False) + "\n", encoding="utf-8")
