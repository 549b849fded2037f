"""A reader of sentencepiece model files that does not need sentencepiece: one protocol-buffer message."""

import struct
from collections.abc import Iterator
from typing import Any


def parse_model(data: bytes) -> tuple[list[tuple[str, float, int]], int, bytes]:
    """(token, score, type) of every entry, the type of the model, and its precompiled normalization table."""
    message = list(fields(data))
    entries = []
    for entry in (dict(fields(value)) for number, value in message if number == 1):
        entries.append((entry[1].decode(), struct.unpack("<f", entry[2])[0] if 2 in entry else 0.0, entry.get(3, 1)))
    trainer, normalizer = (dict(fields(dict(message)[number])) for number in (2, 3))
    return entries, trainer.get(3, 1), normalizer.get(2, b"")


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of every field of a message: an integer, or the bytes of any other type."""
    offset = 0
    while offset < len(data):
        key, offset = read_varint(data, offset)
        if key & 7 == 0:
            value: Any
            value, offset = read_varint(data, offset)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                if key & 7 != 2:
                    raise IndexError(f"field of type {key & 7}")
                size, offset = read_varint(data, offset)
            if offset + size > len(data):
                raise IndexError("cut off")
            value, offset = data[offset : offset + size], offset + size
        yield key >> 3, value


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """The variable-length integer at `offset`, and the offset after it."""
    value = shift = 0
    while data[offset] & 128:
        value, shift, offset = value | (data[offset] & 127) << shift, shift + 7, offset + 1
    return value | data[offset] << shift, offset + 1
