"""The ids of control tokens in a folder's config.json and generation_config.json, checked against its vocabulary."""

import warnings
from collections.abc import Collection, Iterator
from pathlib import Path

from ...errors import UserError
from ...files import JsonMapping, read_optional_json
from .generation import GENERATION_FILE

ROLES = ("pad", "bos", "eos", "unk", "sep", "cls", "mask")
KEYS = (
    *(f"{role}_token_id" for role in ROLES), "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "suppress_tokens", "begin_suppress_tokens", "bad_words_ids",
)  # fmt: skip
NO_PAD = -1  # in folders of the first Llama


def check_control_ids(
    path: Path, config: JsonMapping, vocab: int, named: Collection[str] = (), keys: Collection[str] = KEYS
) -> None:
    """Refuse an id outside the vocabulary. A role whose token the tokenizer names (`named`) does not need its id:
    a wrong one is a warning there."""
    files = {"config.json": config, GENERATION_FILE: read_optional_json(path / GENERATION_FILE)}
    for file, values in files.items():
        for key in keys:
            wrong = [number for number in _numbers(values.get(key)) if not _is_id(number, vocab)]
            if not wrong or (key, wrong) == ("pad_token_id", [NO_PAD]):
                continue
            problem = f"{path / file}: {key} is {wrong[0]!r} and the vocabulary has {vocab} entries (vocab_size)"
            role = key.removesuffix("_token_id")
            if role not in named:
                raise UserError(f"{problem}; expected a number from 0 to {vocab - 1}, correct it or remove the key")
            warnings.warn(f"{problem}; the {role}_token of the tokenizer is used instead", stacklevel=2)


def _numbers(value: object) -> Iterator[object]:
    """The ids in a value: one, a list, or a list of lists."""
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif value is not None:
        yield value


def _is_id(value: object, vocab: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab


def check_vocabulary(path: Path, ids: Collection[int], vocab: int) -> None:
    """Refuse a tokenizer with an id that the model does not have: a count that fits may have gaps."""
    if (largest := max(ids, default=0)) >= vocab:
        raise UserError(
            f"{path}: the tokenizer has the id {largest} and the model only {vocab} entries (vocab_size); use the "
            "tokenizer of this model"
        )
