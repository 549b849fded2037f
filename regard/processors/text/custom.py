"""Custom tokenizers: of the library `tokenizers`, their folders, and any object with `encode` and `decode`."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from ...config.registry import Registry
from ...errors import UserError
from ...files import JsonMapping, read_optional_json
from .external import FolderTokenizer, write_tokenizer
from .tokenizers import ROLES, SPECIALS, Tokenizer, text_list

TOKENIZERS: Registry[object] = Registry("tokenizer", {})  # custom objects by name: a run folder contains no code
NAMES = {  # of control tokens, in the order of preference
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|endoftext|>"),
    "start": ("<s>", "[CLS]", "<bos>", "<|startoftext|>", "<|endoftext|>"),
    "end": ("</s>", "[SEP]", "<eos>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]", "<|endoftext|>"),
}
KEYS = {"pad": ("pad",), "start": ("bos", "cls"), "end": ("eos", "sep"), "unk": ("unk",)}  # in tokenizer_config.json
PROBE = "The quick brown fox, 1234."  # its tokens identify an object
AnyTokenizer: TypeAlias = Any  # the argument of `as_tokenizer`


def as_tokenizer(tokenizer: AnyTokenizer) -> Tokenizer:
    """Convert a user's tokenizer: a path, a backend, a transformers tokenizer or any object; see `regard.train`."""
    if isinstance(tokenizer, str | os.PathLike):
        return _from_path(Path(tokenizer))
    if isinstance(tokenizer, Backend):
        return _adopt(tokenizer, {})
    if isinstance(backend := getattr(tokenizer, "backend_tokenizer", None), Backend):  # a fast one of transformers
        names = {role: [getattr(tokenizer, f"{key}_token", None) for key in keys] for role, keys in KEYS.items()}
        return _adopt(backend, names)
    if all(hasattr(tokenizer, name) for name in ("size", "pad", "start", "end", "unk", "tokens", "save")):
        complete: Tokenizer = tokenizer
        return complete
    return CustomTokenizer(tokenizer)


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
        {role: [x["content"] if isinstance(x, dict) else x for x in tokens] for role, tokens in names.items()},
    )


def _adopt(backend: Backend, names: Mapping[str, Sequence[Any]]) -> FolderTokenizer:
    """A copy with its control tokens, found by name; missing ones are added."""
    copy = Backend.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    ids: dict[str, int] = {}
    for role, added in zip(("pad", "start", "end", "unk"), SPECIALS, strict=True):
        candidates = [name for name in [*names.get(role, ()), *NAMES[role]] if name]
        token_id = next((number for name in candidates if (number := copy.token_to_id(name)) is not None), None)
        if token_id is None:
            copy.add_special_tokens([AddedToken(added, special=True, normalized=False)])
            token_id = int(copy.token_to_id(added))  # type: ignore[arg-type]
        ids[role] = token_id
    return FolderTokenizer(copy, **ids)


class CustomTokenizer:
    """A user's object with `encode(text)` and `decode(ids)`. Missing control tokens get the last ids.

    A run folder contains its name and its encoding of a probe, not the object: register it before loading the run.
    """

    def __init__(self, custom: Any) -> None:
        for method in ("encode", "decode"):
            if not callable(getattr(custom, method, None)):
                raise UserError(
                    f"tokenizer is a {type(custom).__name__} without {method}; expected encode(text) -> ids and "
                    "decode(ids) -> text, a tokenizer of the library tokenizers, or a folder with tokenizer.json"
                )
        self.custom, self.name = custom, str(getattr(custom, "name", type(custom).__name__))
        self.size = _size(custom)
        for role in ("pad", "start", "end", "unk"):
            number = getattr(custom, role, None)
            if number is None:
                number, self.size = self.size, self.size + 1
            setattr(self, role, int(number))
        TOKENIZERS.add(self.name, custom)

    pad: int
    start: int
    end: int
    unk: int
    mask: int | None = None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, without control tokens."""
        return [self._ids(text) for text in text_list(texts)]

    def _ids(self, text: str) -> list[int]:
        encoded = self.custom.encode(text)
        ids = [int(number) for number in getattr(encoded, "ids", encoded)]
        if wrong := [number for number in ids if not 0 <= number < self.size]:
            raise UserError(
                f"the tokenizer {self.name} encodes {text[:40]!r} with the id {wrong[0]}; expected numbers from 0 to "
                f"{self.size - 1}: give it a `size` that fits"
            )
        return ids

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of every row, without control tokens."""
        skipped = {self.pad, self.start, self.end, self.unk}
        return [str(self.custom.decode([number for number in row if number not in skipped])) for row in rows]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """A readable token per id."""
        names = dict(zip((self.pad, self.start, self.end, self.unk), SPECIALS, strict=True))
        return [names.get(number) or str(self.custom.decode([number])) or f"<{number}>" for number in ids]

    def save(self, path: Path) -> None:
        """Write the name and the encoded probe, not the object, which is code."""
        write_tokenizer(path, {ROLES: {"own": self.name, "size": self.size, "probe": self._ids(PROBE)}})


def _size(custom: Any) -> int:
    """The number of ids, under any of its usual names."""
    sizes: tuple[Callable[[], Any], ...] = (
        lambda: custom.size, lambda: custom.vocab_size, lambda: custom.get_vocab_size(), lambda: len(custom),
    )  # fmt: skip
    for read in sizes:
        try:
            return int(read())
        except (AttributeError, TypeError):
            continue
    raise UserError(f"the tokenizer {type(custom).__name__} does not tell its size; give it an attribute `size`")


def load_custom(roles: JsonMapping) -> CustomTokenizer:
    """The registered tokenizer of a run that was trained with a custom object."""
    name = str(roles["own"])
    if name not in TOKENIZERS:
        raise UserError(
            f"this run was trained with the tokenizer {name} of a Python program; register it first: "
            "regard.register(tokenizer=…), or `regard --plugin FILE` with a file that does"
        )
    tokenizer = CustomTokenizer(TOKENIZERS[name])
    if tokenizer.size != roles["size"] or tokenizer.encode([PROBE])[0] != roles["probe"]:
        raise UserError(f"the registered tokenizer {name} differs from that of this run; register the same one")
    return tokenizer
