"""Texts as numbers on disk, encoded once: a safetensors file per set of files and tokenizer, read by memory map."""

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from .. import __version__
from ..errors import UserError
from ..files import atomic_write
from ..processors.tokenizers import Tokenizer, unknown
from .documents import Documents
from .sampler import prefetch
from .split_points import CachedEncoder, TextPart

FORMAT = 1  # of these files, and of the way texts are read and cut: another one makes old files useless
HEAD = 4096  # bytes before the numbers
JOB = 1 << 18  # characters that a thread encodes together
NAMED, LENGTH = 5, 40  # unknown words or characters that are named, and how much of each
KINDS: dict[str, Any] = {"U16": np.dtype("<u2"), "U32": np.dtype("<u4"), "I64": np.dtype("<i8")}


@dataclass
class TokenFile:
    """What a file of the cache holds."""

    ids: np.ndarray
    ends: np.ndarray
    counts: Counter[str]
    fingerprint: str
    unknown: list[str]
    told: list[str] = field(default_factory=list)  # how this file came about, if that is worth saying
    folder: Any = None  # a temporary one lives as long as this


def cached_tokens(texts: Documents, tokenizer: Tokenizer, spare: Path | None = None) -> TokenFile:
    """The numbers of these texts, from the cache if they are there. What cannot be cached goes to `spare`."""
    request = f"{__version__} {FORMAT} {identity(tokenizer)} {texts.request()}"
    name = hashlib.blake2b(request.encode(), digest_size=16).hexdigest() + ".safetensors"
    wanted, state = folder_of(texts.data.cache), texts.state()
    told: list[str] = []
    for folder in [wanted, *([spare] if spare else [])]:
        found = opened(folder / name, state, told, texts.data.verify)
        if found:
            return found
    folder, keeper = _writable(wanted, spare, told)
    write(folder / name, texts, tokenizer, state)
    found = opened(folder / name, state, [])
    if texts.state() != state or not found:  # nothing is found if another process has already seen the change
        raise UserError(f"{texts.name} was changed while it was being read; leave it alone and start again")
    found.told, found.folder = told, keeper
    return found


def folder_of(cache: str) -> Path:
    """The folder that data.cache names, or the user's own."""
    if cache:
        return Path(cache).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~", ".cache").expanduser(), "regard")


def identity(tokenizer: Tokenizer) -> str:
    """Stands for what a tokenizer does."""
    backend = getattr(tokenizer, "backend", None)
    rules = backend.to_str() if backend else json.dumps(tokenizer.pieces(range(tokenizer.size)))
    told = [type(tokenizer).__name__, rules, tokenizer.start, tokenizer.end]
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()


def opened(path: Path, state: str, told: list[str], verify: bool = False) -> TokenFile | None:
    """What lies at `path`, if it is whole and of this state of the files; if not, `told` learns why."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
        tables = json.loads(head[8:])
        notes = tables["__metadata__"]
        counts, names = (json.loads(notes[name]) for name in ("counts", "unknown"))
        ids, ends = (_mapped(path, tables[name]) for name in ("ids", "ends"))
        if verify and fingerprint(_digest(path, ids), len(ends)) != notes["fingerprint"]:
            raise ValueError("not what was written")
    except OSError:
        return None
    except (ValueError, KeyError, TypeError):
        told.append(f"{path} was damaged or cut off; its texts were encoded anew")
        return None
    if notes["state"] != state:
        told.append("the files have changed since they were last encoded; they were encoded anew")
        return None
    return TokenFile(ids, ends, Counter(counts), notes["fingerprint"], names)


def fingerprint(digest: Any, texts: int) -> str:
    """Stands for the numbers, which the digest has seen, and for how many texts they make."""
    digest.update(b"%d" % texts)
    found: str = digest.hexdigest()
    return found


def _digest(path: Path, tokens: np.ndarray) -> Any:
    """Of the numbers in a file of the cache."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        file.seek(HEAD)
        for first in range(0, tokens.nbytes, JOB):
            digest.update(file.read(min(JOB, tokens.nbytes - first)))
    return digest


def _mapped(path: Path, table: dict[str, Any]) -> np.ndarray:
    """A ValueError says that the file ends too soon."""
    begin, end = (HEAD + place for place in table["data_offsets"])
    kind = KINDS[table["dtype"]]
    return np.memmap(path, kind, "r", begin, tuple(table["shape"])) if begin < end else np.zeros(0, kind)


def _writable(wanted: Path, spare: Path | None, told: list[str]) -> tuple[Path, Any]:
    """A folder to write to: the one that is wanted, else the spare one, else a temporary one."""
    for folder in [wanted, *([spare] if spare else [])]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            why = f"the cache {folder} cannot be written ({error.strerror}; data.cache)"
            continue
        if folder != wanted:
            told.append(f"{why}; encoded texts are in {folder}")
        return folder, None
    keeper = tempfile.TemporaryDirectory(prefix="regard-")
    told.append(f"{why}; texts are encoded again in every run")
    return Path(keeper.name), keeper


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass
class EncodedChunk:
    """What a thread makes of some parts."""

    ids: bytes
    ends: np.ndarray  # behind each END, from the beginning of the batch
    counts: Counter[str]
    strange: list[str]  # texts in which something is unknown


def write(path: Path, texts: Documents, tokenizer: Tokenizer, state: str) -> None:
    encoder = CachedEncoder(tokenizer)
    counts, names = Counter[str](), dict[str, None]()
    digest, stream = hashlib.blake2b(digest_size=16), texts.data.document == "stream"
    jobs = _jobs(texts.parts(encoder.seams.place if encoder.seams else None))
    with atomic_write(path) as draft, open(draft, "wb") as file, tempfile.TemporaryFile() as ends:
        file.seek(HEAD)
        with closing(prefetch(lambda job: _batch(encoder, job, stream), jobs, threads())) as batches:
            for batch in batches:
                digest.update(batch.ids)
                file.write(batch.ids)
                if not stream:
                    ends.write((batch.ends + counts["tokens"]).tobytes())
                counts.update(batch.counts)
                if len(names) < NAMED:
                    found = [name[:LENGTH] for text in batch.strange for name in unknown(tokenizer, text)]
                    names.update(dict.fromkeys(found[: NAMED - len(names)]))
        if stream and counts["tokens"]:  # one text
            ends.write(np.array([counts["tokens"]], KINDS["I64"]).tobytes())
        counts.update(texts.counts)
        tables = _tail(file, ends, counts["tokens"], encoder.code)
        notes = {"state": state, "fingerprint": fingerprint(digest, tables["ends"]["shape"][0])}
        notes |= {"counts": json.dumps(counts), "unknown": json.dumps(list(names))}
        head = json.dumps({"__metadata__": notes} | tables).encode()
        file.seek(0)
        file.write((HEAD - 8).to_bytes(8, "little") + head.ljust(HEAD - 8))


def threads() -> int:
    """For encoding; with one processor nobody works beside the reader."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8) if cores > 1 else 0


def _jobs(parts: Iterator[TextPart]) -> Iterator[list[TextPart]]:
    job: list[TextPart] = []
    size = 0
    for part in parts:
        job.append(part)
        size += len(part.text) + 1
        if size >= JOB:
            yield job
            job, size = [], 0
    if job:
        yield job


def _batch(encoder: CachedEncoder, job: list[TextPart], stream: bool) -> EncodedChunk:
    rows, code = encoder.encode(job), np.dtype(encoder.code)
    ids = np.frombuffer(b"".join(rows), code)
    behind = np.array([len(row) for row in rows]).cumsum() // code.itemsize
    strange = (ids == encoder.tokenizer.unk).nonzero()[0]
    texts = [job[number].text for number in np.unique(np.searchsorted(behind, strange[:NAMED], side="right"))]
    last = behind[[part.last for part in job]]
    ids = np.insert(ids, last, encoder.tokenizer.end)
    counts = _counts(job, len(last) if stream else 0)
    counts.update(tokens=len(ids), documents=len(last), unknown=len(strange))
    return EncodedChunk(ids.tobytes(), last + np.arange(1, len(last) + 1), counts, texts)


def _counts(job: list[TextPart], lines: int) -> Counter[str]:
    """Of the raw text, and of so many ends of lines, for which END stands."""
    cut = sum(part.inner and bool(part.text) and not part.text[0].isspace() for part in job)  # words in two parts
    return Counter(
        bytes=len("".join(part.text for part in job).encode("utf-8")) + lines,
        characters=sum(len(part.text) for part in job) + lines,
        words=sum(len(part.text.split()) for part in job) + lines - cut,
    )


def _tail(file: IO[bytes], ends: IO[bytes], tokens: int, code: str) -> dict[str, Any]:
    """Put the ends behind the numbers, on a multiple of eight; gives the tables of the file's head."""
    size = tokens * np.dtype(code).itemsize
    padding = -size % 8
    file.write(bytes(padding))
    ends.seek(0)
    shutil.copyfileobj(ends, file)
    last = file.tell() - HEAD
    tables = {
        "ids": {"dtype": f"U{8 * np.dtype(code).itemsize}", "shape": [tokens], "data_offsets": [0, size]},
        "ends": {"dtype": "I64", "shape": [(last - size - padding) // 8], "data_offsets": [size + padding, last]},
    }
    if padding:
        tables["padding"] = {"dtype": "U8", "shape": [padding], "data_offsets": [size, size + padding]}
    return tables
