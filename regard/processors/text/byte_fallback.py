"""Byte fallback: vocabularies that encode an unknown character as bytes, one token such as `<0xE6>` for each.

The library decodes a run of such tokens only as a whole: one incomplete character turns the complete ones before it
into U+FFFD, so streamed text would change. Here only bytes that form no character become U+FFFD.
"""

from collections.abc import Sequence
from itertools import groupby

from tokenizers import Tokenizer as Backend

BYTE_TOKENS = {f"<0x{byte:02X}>": byte for byte in range(256)}
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def has_byte_fallback(backend: Backend) -> bool:
    """True if the decoder of a vocabulary joins byte tokens to characters."""
    return backend.decoder is not None and b'"ByteFallback"' in backend.decoder.__getstate__()


def decode_by_bytes(backend: Backend, ids: Sequence[int]) -> str:
    """Decode tokens of a vocabulary with byte fallback; every complete character stays."""
    assert backend.decoder is not None
    tokens = [token for number in ids if (token := backend.id_to_token(number)) is not None]
    text: str = backend.decoder.decode(replace_invalid_bytes(tokens))
    return text


def replace_invalid_bytes(tokens: Sequence[str]) -> list[str]:
    """The tokens with U+FFFD for bytes that form no character, one for each possible beginning of a character."""
    replaced: list[str] = []
    for are_bytes, group in groupby(tokens, BYTE_TOKENS.__contains__):
        run = list(group)
        replaced += _valid_bytes(run) if are_bytes else run
    return replaced


def _valid_bytes(run: list[str]) -> list[str]:
    data = bytes(BYTE_TOKENS[token] for token in run)
    letters = data.decode("utf-8", "replace")
    if REPLACEMENT not in letters:
        return run
    by_letter = [
        [REPLACEMENT] if letter == REPLACEMENT else [f"<0x{byte:02X}>" for byte in letter.encode()]
        for letter in letters
    ]
    return [token for tokens in by_letter for token in tokens]


def display_byte(token: str) -> str:
    """A byte token for display: an ASCII character, or the byte as `<e6>`; other tokens are unchanged."""
    if token not in BYTE_TOKENS:
        return token
    byte = BYTE_TOKENS[token]
    return chr(byte) if byte < 128 else f"<{byte:02x}>"
