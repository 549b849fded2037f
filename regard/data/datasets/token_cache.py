"""Encoded texts on disk: one safetensors file per set of files and tokenizer, read by memory map."""

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from ... import __version__
from ...errors import UserError
from ...files import atomic_write, cache_folder
from ...processors.text.tokenizers import Tokenizer, unknown_words
from ..sources.documents import Documents
from ..sources.split_points import CachedEncoder, TextPart

FORMAT = 1  # of these files, and of how texts are read and split; a change invalidates old files
HEAD = 4096  # bytes before the token ids
JOB_CHARACTERS = 1 << 18  # that a thread encodes together
UNKNOWN_NAMED, UNKNOWN_LENGTH = 5, 40  # unknown words or characters that are named, and the length of each
DTYPES: dict[str, np.dtype[Any]] = {"U16": np.dtype("<u2"), "U32": np.dtype("<u4"), "I64": np.dtype("<i8")}
# Names in cache identities, which must not depend on the name of a class.
TYPE_NAMES = {"TrainedTokenizer": "Text", "FolderTokenizer": "FolderText", "MarianTokenizer": "MarianText"}

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class TokenFile:
    """The content of a cache file."""

    ids: np.ndarray
    ends: np.ndarray
    counts: Counter[str]
    fingerprint: str
    unknown: list[str]
    messages: list[str] = field(default_factory=list)  # why the texts were encoded again or are not cached
    folder: tempfile.TemporaryDirectory[str] | None = None  # a temporary folder lives as long as this object


def cached_tokens(texts: Documents, tokenizer: Tokenizer, fallback: Path | None = None) -> TokenFile:
    """The token ids of these texts, from the cache if possible. `fallback` is used if data.cache is not writable."""
    request = f"{__version__} {FORMAT} {tokenizer_identity(tokenizer)} {texts.request()}"
    name = hashlib.blake2b(request.encode(), digest_size=16).hexdigest() + ".safetensors"
    preferred, state = cache_folder(texts.data.cache), texts.state()
    messages: list[str] = []
    for folder in [preferred, *([fallback] if fallback else [])]:
        tokens = read_token_file(folder / name, state, messages, texts.data.verify)
        if tokens:
            return tokens
    folder, temporary = _writable_folder(preferred, fallback, messages)
    write_token_file(folder / name, texts, tokenizer, state)
    tokens = read_token_file(folder / name, state, [])
    if texts.state() != state or not tokens:  # None if another process has already replaced the file
        raise UserError(f"{texts.name} was changed while it was being read; leave it alone and start again")
    tokens.messages, tokens.folder = messages, temporary
    return tokens


def tokenizer_identity(tokenizer: Tokenizer) -> str:
    """A hash of everything that decides how a tokenizer encodes."""
    backend = getattr(tokenizer, "backend", None)
    rules = backend.to_str() if backend else json.dumps(tokenizer.tokens(range(tokenizer.size)))
    name = type(tokenizer).__name__
    facts = [TYPE_NAMES.get(name, name), rules, tokenizer.start, tokenizer.end]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def read_token_file(path: Path, state: str, messages: list[str], verify: bool = False) -> TokenFile | None:
    """The cache file at `path`, or None if it is missing, damaged or of another state; `messages` gets the reason."""
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD)
        tables = json.loads(head[8:])
        notes = tables["__metadata__"]
        counts, names = (json.loads(notes[name]) for name in ("counts", "unknown"))
        ids, ends = (_map_table(path, tables[name]) for name in ("ids", "ends"))
        if verify and fingerprint(_digest(path, ids), len(ends)) != notes["fingerprint"]:
            raise ValueError("the content differs from its fingerprint")
    except OSError:
        return None
    except (ValueError, KeyError, TypeError):
        messages.append(f"{path} was damaged or truncated; its texts were encoded again")
        return None
    if notes["state"] != state:
        messages.append("the files have changed since they were last encoded; they were encoded again")
        return None
    return TokenFile(ids, ends, Counter(counts), notes["fingerprint"], names)


def fingerprint(digest: hashlib.blake2b, texts: int) -> str:
    """Identifies the token ids in `digest` and the number of texts."""
    digest.update(b"%d" % texts)
    return digest.hexdigest()


def _digest(path: Path, tokens: np.ndarray) -> hashlib.blake2b:
    """A hash of the token ids in a cache file."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        file.seek(HEAD)
        for first in range(0, tokens.nbytes, JOB_CHARACTERS):
            digest.update(file.read(min(JOB_CHARACTERS, tokens.nbytes - first)))
    return digest


def _map_table(path: Path, table: dict[str, Any]) -> np.ndarray:
    """Memory-map a table. Raises ValueError if the file is too short."""
    begin, end = (HEAD + place for place in table["data_offsets"])
    dtype = DTYPES[table["dtype"]]
    return np.memmap(path, dtype, "r", begin, tuple(table["shape"])) if begin < end else np.zeros(0, dtype)


def _writable_folder(
    preferred: Path, fallback: Path | None, messages: list[str]
) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """A folder to write to: the preferred one, else the fallback, else a temporary one, which is also returned."""
    for folder in [preferred, *([fallback] if fallback else [])]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            why = f"the cache {folder} cannot be written ({error.strerror}; data.cache)"
            continue
        if folder != preferred:
            messages.append(f"{why}; encoded texts are in {folder}")
        return folder, None
    temporary = tempfile.TemporaryDirectory(prefix="regard-")
    messages.append(f"{why}; texts are encoded again in every run")
    return Path(temporary.name), temporary


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass
class EncodedChunk:
    """Parts of texts, encoded by one thread."""

    ids: bytes
    ends: np.ndarray  # offsets after each END, from the beginning of the chunk
    counts: Counter[str]
    with_unknown: list[str]  # texts that contain unknown tokens


def write_token_file(path: Path, texts: Documents, tokenizer: Tokenizer, state: str) -> None:
    """Write encoded texts to a memory-mapped file."""
    encoder = CachedEncoder(tokenizer)
    counts, names = Counter[str](), dict[str, None]()
    digest, stream = hashlib.blake2b(digest_size=16), texts.data.document == "stream"
    jobs = _jobs(texts.parts(encoder.rules.last_split if encoder.rules else None))
    with atomic_write(path) as draft, open(draft, "wb") as file, tempfile.TemporaryFile() as ends:
        file.seek(HEAD)
        with closing(prefetch(lambda job: _encode_job(encoder, job, stream), jobs, encoding_threads())) as chunks:
            for chunk in chunks:
                digest.update(chunk.ids)
                file.write(chunk.ids)
                if not stream:
                    ends.write((chunk.ends + counts["tokens"]).tobytes())
                counts.update(chunk.counts)
                if len(names) < UNKNOWN_NAMED:
                    some = [name for text in chunk.with_unknown for name in unknown_words(tokenizer, text)]
                    names.update(dict.fromkeys(name[:UNKNOWN_LENGTH] for name in some[: UNKNOWN_NAMED - len(names)]))
        if stream and counts["tokens"]:  # one text
            ends.write(np.array([counts["tokens"]], DTYPES["I64"]).tobytes())
        counts.update(texts.counts)
        tables = _append_ends(file, ends, counts["tokens"], encoder.typecode)
        notes = {"state": state, "fingerprint": fingerprint(digest, tables["ends"]["shape"][0])}
        notes |= {"counts": json.dumps(counts), "unknown": json.dumps(list(names))}
        head = json.dumps({"__metadata__": notes} | tables).encode()
        file.seek(0)
        file.write((HEAD - 8).to_bytes(8, "little") + head.ljust(HEAD - 8))


def prefetch(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Generator[Result, None, None]:
    """`map` with threads that run ahead. They end when the iterator ends or is closed."""
    if not threads:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="data")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def encoding_threads() -> int:
    """The number of encoding threads; 0 with a single processor: the reading thread then encodes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8) if cores > 1 else 0


def _jobs(parts: Iterator[TextPart]) -> Iterator[list[TextPart]]:
    job: list[TextPart] = []
    size = 0
    for part in parts:
        job.append(part)
        size += len(part.text) + 1
        if size >= JOB_CHARACTERS:
            yield job
            job, size = [], 0
    if job:
        yield job


def _encode_job(encoder: CachedEncoder, job: list[TextPart], stream: bool) -> EncodedChunk:
    rows, dtype = encoder.encode(job), np.dtype(encoder.typecode)
    ids = np.frombuffer(b"".join(rows), dtype)
    stops = np.array([len(row) for row in rows]).cumsum() // dtype.itemsize
    unknown = (ids == encoder.tokenizer.unk).nonzero()[0]
    texts = [job[number].text for number in np.unique(np.searchsorted(stops, unknown[:UNKNOWN_NAMED], side="right"))]
    last = stops[[part.last for part in job]]
    ids = np.insert(ids, last, encoder.tokenizer.end)
    counts = _raw_counts(job, len(last) if stream else 0)
    counts.update(tokens=len(ids), documents=len(last), unknown=len(unknown))
    return EncodedChunk(ids.tobytes(), last + np.arange(1, len(last) + 1), counts, texts)


def _raw_counts(job: list[TextPart], lines: int) -> Counter[str]:
    """Counts of the raw text, and of `lines` newlines, which END replaces."""
    split = sum(part.inner and bool(part.text) and not part.text[0].isspace() for part in job)  # words in two parts
    return Counter(
        bytes=len("".join(part.text for part in job).encode("utf-8")) + lines,
        characters=sum(len(part.text) for part in job) + lines,
        words=sum(len(part.text.split()) for part in job) + lines - split,
    )


def _append_ends(file: IO[bytes], ends: IO[bytes], tokens: int, typecode: str) -> dict[str, Any]:
    """Write the ends after the token ids, aligned to eight bytes. Returns the tables of the file's head."""
    size = tokens * np.dtype(typecode).itemsize
    padding = -size % 8
    file.write(bytes(padding))
    ends.seek(0)
    shutil.copyfileobj(ends, file)
    last = file.tell() - HEAD
    tables = {
        "ids": {"dtype": f"U{8 * np.dtype(typecode).itemsize}", "shape": [tokens], "data_offsets": [0, size]},
        "ends": {"dtype": "I64", "shape": [(last - size - padding) // 8], "data_offsets": [size + padding, last]},
    }
    if padding:
        tables["padding"] = {"dtype": "U8", "shape": [padding], "data_offsets": [size, size + padding]}
    return tables
