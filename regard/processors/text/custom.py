"""Tokenizers of users: those of the library `tokenizers`, their folders, and any object with `encode` and `decode`."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from ...config.registry import Registry
from ...errors import UserError
from ...files import read_optional_json
from .external import FolderTokenizer, write_tokenizer
from .tokenizers import ROLES, SPECIALS, Tokenizer

TOKENIZERS: Registry[object] = Registry("tokenizer", {})  # objects of users by name: a run folder names no code
NAMES = {  # of control tokens, in the order of preference
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>"),
    "start": ("<s>", "[CLS]", "<bos>", "<|startoftext|>", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<eos>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]", "<|endoftext|>"),
}
KEYS = {"pad": ("pad",), "start": ("bos", "cls"), "end": ("eos", "sep"), "unk": ("unk",)}  # in tokenizer_config.json
PROBE = "The quick brown fox, 1234."  # its tokens identify an object
AnyTokenizer: TypeAlias = Any  # what `as_tokenizer` takes


def as_tokenizer(given: AnyTokenizer) -> Tokenizer:
    """A tokenizer of regard from what a user has: see `regard.train`."""
    if isinstance(given, str | os.PathLike):
        return _from_path(Path(given))
    if isinstance(given, Backend):
        return _adopt(given, {})
    if isinstance(backend := getattr(given, "backend_tokenizer", None), Backend):  # a fast one of transformers
        names = {role: [getattr(given, f"{key}_token", None) for key in keys] for role, keys in KEYS.items()}
        return _adopt(backend, names)
    if all(hasattr(given, name) for name in ("size", "pad", "start", "end", "unk", "pieces", "save")):
        known: Tokenizer = given
        return known
    return CustomTokenizer(given)


def _from_path(path: Path) -> FolderTokenizer:
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise UserError(
            f"tokenizer={path} cannot be read ({error}); expected a folder with tokenizer.json, or such a file"
        ) from error
    config = read_optional_json(file.with_name("tokenizer_config.json"))
    names = {role: [config.get(f"{key}_token") for key in keys] for role, keys in KEYS.items()}
    return _adopt(
        backend,
        {role: [each["content"] if isinstance(each, dict) else each for each in some] for role, some in names.items()},
    )


def _adopt(backend: Backend, names: Mapping[str, Sequence[Any]]) -> FolderTokenizer:
    """A copy with its control tokens, found by name; those that it lacks are added."""
    own = Backend.from_str(backend.to_str())
    own.no_truncation()
    own.no_padding()
    ids: dict[str, int] = {}
    for role, added in zip(("pad", "start", "end", "unk"), SPECIALS, strict=True):
        candidates = [each for each in [*names.get(role, ()), *NAMES[role]] if each]
        found = next((number for each in candidates if (number := own.token_to_id(each)) is not None), None)
        if found is None:
            own.add_special_tokens([AddedToken(added, special=True, normalized=False)])
            found = int(own.token_to_id(added))  # type: ignore[arg-type]
        ids[role] = found
    return FolderTokenizer(own, **ids)


class CustomTokenizer:
    """An object of the user with `encode(text)` and `decode(ids)`. Control tokens that it lacks get the last ids.

    A run keeps its name and how it encodes a probe, not the object: register it again before the run is loaded.
    """

    def __init__(self, given: Any) -> None:
        for method in ("encode", "decode"):
            if not callable(getattr(given, method, None)):
                raise UserError(
                    f"tokenizer is a {type(given).__name__} without {method}; expected encode(text) -> ids and "
                    "decode(ids) -> text, a tokenizer of the library tokenizers, or a folder with tokenizer.json"
                )
        self.given, self.name = given, str(getattr(given, "name", type(given).__name__))
        self.size = _size(given)
        for role in ("pad", "start", "end", "unk"):
            number = getattr(given, role, None)
            if number is None:
                number, self.size = self.size, self.size + 1
            setattr(self, role, int(number))
        TOKENIZERS.add(self.name, given)

    pad: int
    start: int
    end: int
    unk: int
    mask: int | None = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, without control tokens."""
        return [self._ids(text) for text in texts]

    def _ids(self, text: str) -> list[int]:
        found = self.given.encode(text)
        ids = [int(number) for number in getattr(found, "ids", found)]
        if wrong := [number for number in ids if not 0 <= number < self.size]:
            raise UserError(
                f"the tokenizer {self.name} encodes {text[:40]!r} with the id {wrong[0]}; expected numbers from 0 to "
                f"{self.size - 1}: give it a `size` that fits"
            )
        return ids

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of every row, whose control tokens are skipped."""
        skipped = {self.pad, self.start, self.end, self.unk}
        return [str(self.given.decode([number for number in row if number not in skipped])) for row in rows]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A readable token per id."""
        names = dict(zip((self.pad, self.start, self.end, self.unk), SPECIALS, strict=True))
        return [names.get(number) or str(self.given.decode([number])) or f"<{number}>" for number in ids]

    def save(self, path: Path) -> None:
        """Write the name and the probe; the object itself is code and stays with the user."""
        write_tokenizer(path, {ROLES: {"own": self.name, "size": self.size, "probe": self._ids(PROBE)}})


def _size(given: Any) -> int:
    """The number of ids, by whichever name the object gives it."""
    sizes: tuple[Callable[[], Any], ...] = (
        lambda: given.size, lambda: given.vocab_size, lambda: given.get_vocab_size(), lambda: len(given),
    )  # fmt: skip
    for read in sizes:
        try:
            return int(read())
        except (AttributeError, TypeError):
            continue
    raise UserError(f"the tokenizer {type(given).__name__} does not tell its size; give it an attribute `size`")


def load_custom(roles: Mapping[str, Any]) -> CustomTokenizer:
    """The tokenizer of a run that was trained with an object: the one that is registered under its name."""
    name = str(roles["own"])
    if name not in TOKENIZERS:
        raise UserError(
            f"this run was trained with the tokenizer {name} of a Python program; register it first: "
            "regard.register(tokenizer=…), or `regard --plugin FILE` with a file that does"
        )
    found = CustomTokenizer(TOKENIZERS[name])
    if found.size != roles["size"] or found.encode([PROBE])[0] != roles["probe"]:
        raise UserError(f"the registered tokenizer {name} differs from that of this run; register the same one")
    return found
