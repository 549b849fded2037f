"""Checks the bytes of a sound file before decoding: unreadable formats, and truncated files."""

import os
import re
import struct
from pathlib import PurePath
from typing import IO

HEAD = 1024  # bytes that identify the format of a file
OGG_PAGE = 65_307  # maximal bytes of an OGG page
STREAMED = 0x7FFFF000  # WAV files that were written as a stream state this length or more
CHUNKS = 1000  # at most this many chunks of a WAV file are inspected
EXPECTED = "give WAV, FLAC, OGG or MP3"
CONVERT = "convert it to WAV or FLAC, such as with: ffmpeg -i"

STARTS = {  # first bytes of formats that soundfile does not read
    rb".{4}ftyp(M4A|M4B|mp4a)": "M4A (AAC)",
    rb".{4}ftyp3g": "3GP",
    rb".{4}ftyp": "MP4 or M4A (AAC)",
    rb"\xff[\xf0\xf1\xf8\xf9]": "AAC",
    rb"ADIF": "AAC",
    rb"\x1aE\xdf\xa3": "WebM or Matroska",
    rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "WMA (Windows Media)",
    rb"#!AMR": "AMR",
    rb"#!SILK": "SILK",
    rb"wvpk": "WavPack",
    rb"MAC ": "Monkey's Audio",
    rb"TTA1": "TTA",
    rb"\.RMF": "RealAudio",
    rb"\.ra\xfd": "RealAudio",
    rb"FLV": "Flash video",
    rb"RIFF.{4}AVI ": "AVI video",
    rb"OggS.{24}Speex": "Speex",
    rb"MThd": "MIDI, notes without sound",
    rb"%PDF": "PDF",
    rb"PK\x03\x04": "a ZIP archive",
    rb"\x1f\x8b": "gzip",
    rb"\x89PNG|\xff\xd8\xff": "an image",
}  # fmt: skip
KNOWN = rb"RIFF|RIFX|RF64|riff|fLaC|OggS|ID3|\xff[\xe2-\xef\xf2-\xf7\xfa-\xff]|FORM|caff|\.snd|NIST_1A"  # soundfile's
SUFFIXES = {
    "m4a": "M4A (AAC)", "m4b": "M4A (AAC)", "aac": "AAC", "mp4": "MP4", "mov": "QuickTime video", "3gp": "3GP",
    "webm": "WebM", "mkv": "Matroska", "wma": "WMA (Windows Media)", "amr": "AMR", "ape": "Monkey's Audio",
    "wv": "WavPack", "spx": "Speex", "ra": "RealAudio",
    "raw": "samples without a header", "pcm": "samples without a header",
}  # fmt: skip


def describe_file(file: IO[bytes], name: str) -> str:
    """The format of a file that cannot be read as sound, and a remedy; "" if it may be sound."""
    head = file.read(HEAD)
    file.seek(0)
    if not head:
        return "it is empty; record or download it again"
    for start, format in STARTS.items():
        if re.match(start, head, re.DOTALL):
            return f"it is {format}; {_remedy(format, name)}"
    if re.match(KNOWN, head):
        return ""
    if _is_text(head):
        return f"it is text; {EXPECTED}"
    format = SUFFIXES.get(PurePath(name).suffix.lower().removeprefix("."), "")
    return f"its name says {format}; {_remedy(format, name)}" if format else ""


def _remedy(format: str, name: str) -> str:
    if format.startswith(("PDF", "a ZIP", "an image", "MIDI", "gzip")):
        return EXPECTED
    stem = PurePath(name).stem if PurePath(name).suffix else "sound"
    return f"{CONVERT} {PurePath(name).name if stem != 'sound' else 'sound.m4a'} {stem}.wav"


def _is_text(head: bytes) -> bool:
    try:
        head.decode("utf-8", "strict" if len(head) < HEAD else "ignore")
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


def check_complete(file: IO[bytes]) -> str:
    """What is missing at the end of a WAV or OGG file, or "". Their decoders do not report it."""
    head = file.read(12)
    size = file.seek(0, os.SEEK_END)
    problem = ""
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        problem = _check_wav(file, size)
    elif head[:4] == b"OggS":
        problem = _check_ogg(file, size)
    file.seek(0)
    return problem


def _check_wav(file: IO[bytes], size: int) -> str:
    position = 12
    for _ in range(CHUNKS):
        file.seek(position)
        head = file.read(8)
        if len(head) < 8:
            break
        chunk, length = struct.unpack("<4sI", head)
        position += 8
        if chunk == b"data":
            missing = position + length - size
            return f"{missing:,} of {length:,} bytes are missing" if missing > 1 and length < STREAMED else ""
        position += length + length % 2
    return ""


def _check_ogg(file: IO[bytes], size: int) -> str:
    file.seek(max(size - OGG_PAGE, 0))
    end = file.read()
    page = end[end.rfind(b"OggS\0") :]
    segments = page[27 : 27 + page[26]] if len(page) > 26 else b""
    missing = 27 + (page[26] if len(page) > 26 else 1) + sum(segments) - len(page)
    return f"at least {missing:,} bytes of its last page are missing" if missing > 0 else ""


def states_length(file: IO[bytes]) -> bool:
    """True if an MP3 file has a header frame with its length; without it, decoders estimate the length."""
    file.seek(0)
    head = file.read(10)
    tag = 10 + sum((byte & 127) << 7 * i for i, byte in enumerate(reversed(head[6:]))) if head[:3] == b"ID3" else 0
    file.seek(tag)
    stated = re.search(rb"Xing|Info|VBRI", file.read(HEAD)) is not None
    file.seek(0)
    return stated
