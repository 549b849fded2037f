"""Sentencepiece's files read without it: one message of protocol buffers, of which three fields matter here."""

import struct
from collections.abc import Iterator
from typing import Any


def parse_model(data: bytes) -> tuple[list[tuple[str, float, int]], int, bytes]:
    """Of a sentencepiece file, which is one protocol-buffer message: (piece, score, type)s, the model's kind, and the
    table by which it normalises text."""
    message = list(fields(data))
    pieces = []
    for piece in (dict(fields(value)) for number, value in message if number == 1):
        pieces.append((piece[1].decode(), struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0, piece.get(3, 1)))
    trainer, normalizer = (dict(fields(dict(message)[number])) for number in (2, 3))
    return pieces, trainer.get(3, 1), normalizer.get(2, b"")


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of every field of a message: whole numbers, or the bytes of anything else."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value: Any
            value, at = read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                if key & 7 != 2:
                    raise IndexError(f"field of type {key & 7}")
                size, at = read_varint(data, at)
            if at + size > len(data):
                raise IndexError("cut off")
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128:
        value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
    return value | data[at] << shift, at + 1
