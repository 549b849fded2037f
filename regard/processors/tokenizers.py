"""Text to numbers and back, by Hugging Face's `tokenizers`. Byte-level kinds lose nothing, whatever the text.

Four control symbols come first in a vocabulary that is learnt here. A task may ask for more, which come last:
`learn(…, control=(MASK,))`; `mask` then tells the number. No text is read as control: a task puts `<mask>` in by its
number. T5's sentinels are no control but symbols: that is how a text asks for a span. `sentinels` has their numbers.
"""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from ..config.schema import TokenizerConfig as TokenizerConfig
from ..errors import UserError
from ..files import atomic_write

# One thread per call: whoever wants more calls from several threads. The library's own make a later fork warn or hang.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
PAD, START, END, UNK = range(4)
ROLES = "regard"  # where the file of a borrowed tokenizer says which numbers are control
MASK = "<mask>"  # stands for a word that is to be guessed
SENTINEL = re.compile(r"<extra_id_\d+>")
LETTERS = 1000  # that a wordpiece vocabulary knows, at most
SAMPLE = 1_000_000  # texts that a tokenizer is learnt from, at most
BYTES = 256


class Tokenizer(Protocol):
    """What tasks need of a tokenizer. `encode` adds neither START nor END; `decode` passes over START, END and PAD."""

    size: int
    pad: int
    start: int
    end: int
    unk: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]: ...
    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]: ...
    def pieces(self, ids: Sequence[int]) -> list[str]: ...


class TrainedTokenizer:
    """A tokenizer of ours. Nothing in a user's text is ever control: `</s>` there is four characters like any others.

    Control is known by its names. What is learnt here has it first; a borrowed vocabulary has it where it pleases, and
    one without `<s>` starts with `<pad>`, as T5 does.
    """

    pad, start, end, unk = PAD, START, END, UNK

    def __init__(self, backend: Backend) -> None:
        backend.encode_special_tokens = True  # not stored in tokenizer.json, so it is said here
        self.backend = backend
        self.size = backend.get_vocab_size()
        added = backend.get_added_tokens_decoder()
        control = {token.content: number for number, token in added.items() if token.special}
        names = backend.get_vocab()
        self.pad, self.end, self.unk = (names[SPECIALS[number]] for number in (PAD, END, UNK))
        self.start = control.get(SPECIALS[START], self.pad)
        self.mask: int | None = control.get(MASK)
        self.symbols = {number: token.content for number, token in added.items() if token.content not in SPECIALS}
        numbers = {name: number for number, name in self.symbols.items()}
        self.sentinels = [numbers[name] for place in range(len(numbers)) if (name := sentinel(place)) in numbers]
        self._bytes = bytes_of(backend)
        self._glue = " " if spaced(backend) else ""  # between symbols and words

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            return [one.ids for one in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        except TypeError as error:  # what the library says to a text that UTF-8 cannot hold
            halves = [text for text in texts if any("\ud800" <= letter <= "\udfff" for letter in text)]
            if not halves:
                raise
            raise UserError(
                f"{halves[0]!r} is not valid Unicode: it holds half a surrogate pair; mend the text"
            ) from error

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self._glue.join(self._decoded(row)) for row in rows]

    def _decoded(self, row: Sequence[int]) -> Iterator[str]:
        """Where letters stand for bytes, symbols are taken out first: the library would read `<café>` as bytes."""
        kept = [number for number in row if number not in (self.pad, self.start, self.end)]
        if not self._bytes:
            yield self.backend.decode(kept, skip_special_tokens=False)
            return
        for symbol, group in itertools.groupby(kept, key=self.symbols.get):
            numbers = list(group)
            if symbol is None:
                yield self.backend.decode(numbers, skip_special_tokens=False)
            else:
                yield self._glue.join([symbol] * len(numbers))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One readable piece per id; spaces are shown as ▁, parts of a character as their bytes."""
        return [self._piece(number) for number in ids]

    def _piece(self, number: int) -> str:
        token = self.backend.id_to_token(number) or SPECIALS[UNK]
        if token in SPECIALS or number in self.symbols:
            return token
        if self._bytes:
            data = bytes(self._bytes[letter] for letter in token)
            try:
                token = data.decode("utf-8")
            except UnicodeDecodeError:
                return f"<{data.hex(' ')}>"
        return token.replace(" ", "▁")

    def save(self, path: Path) -> None:
        with atomic_write(path) as draft:
            draft.write_text(self.backend.to_str(pretty=True) + "\n", encoding="utf-8")


def sentinel(number: int) -> str:
    """What T5 calls the mark that stands for the first, the second … span left out of a text."""
    return f"<extra_id_{number}>"


def load_tokenizer(path: Path) -> Any:
    """A tokenizer that `save` wrote: one of ours, or a borrowed one, which says what its control is."""
    try:
        whole = json.loads(Path(path).read_text(encoding="utf-8"))
        if ROLES in whole:
            from .external import restored

            return restored(whole)
        backend = Backend.from_str(json.dumps(whole))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); it belongs to the run, restore it") from error
    except Exception as error:  # the library raises nothing more special
        raise UserError(f"{path} is not a whole tokenizer ({error}); it may have been cut off, restore it") from error
    if missing := [SPECIALS[number] for number in (PAD, END, UNK) if backend.token_to_id(SPECIALS[number]) is None]:
        raise UserError(f"{path} is no tokenizer of this program: it has no {missing[0]}")
    return TrainedTokenizer(backend)


def unknown(tokenizer: Tokenizer, text: str) -> list[str]:
    """The characters or words of `text` that the tokenizer does not know, each once, in their order."""
    if not isinstance(tokenizer, TrainedTokenizer) or tokenizer.unk not in tokenizer.encode([text])[0]:
        return []
    found = tokenizer.backend.encode(text, add_special_tokens=False)
    places = [place for number, place in zip(found.ids, found.offsets, strict=True) if number == tokenizer.unk]
    names = [text[slice(*place)] for place in places]
    return list(dict.fromkeys(name.strip() or name for name in names))


def train_tokenizer(settings: TokenizerConfig, texts: Iterable[str], control: Sequence[str] = ()) -> TrainedTokenizer:
    """A tokenizer made for these texts: the same texts give the same tokenizer, byte by byte. A sequence that is too
    long is sampled; anything else is read from its beginning to its end.

    `control` names what a task needs beyond the four, such as MASK; it has the last numbers, in this order.
    """
    symbols = tuple(dict.fromkeys(settings.symbols))
    vocab = settings.vocab - len(symbols) - len(control)
    _refuse(settings, vocab, control)
    backend = _blank(settings)
    if settings.kind == "wordpiece":
        backend = _in_pieces(backend, texts, symbols, vocab)
    elif settings.kind != "byte":
        backend.train_from_iterator(_sample(texts, symbols), _trainer(settings.kind, vocab))
    if settings.kind == "unigram":
        backend = _settled(backend)
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    for symbol in symbols:
        if backend.token_to_id(symbol) is not None and not symbol.isascii():
            raise UserError(
                f"tokenizer.symbols: {symbol!r} is the name of another piece; choose a longer one, such as <{symbol}>"
            )
    backend.add_tokens([AddedToken(symbol, special=False, normalized=False) for symbol in symbols])
    backend.add_tokens([AddedToken(name, special=not SENTINEL.fullmatch(name), normalized=False) for name in control])
    return TrainedTokenizer(backend)


def _refuse(settings: TokenizerConfig, vocab: int, control: Sequence[str]) -> None:
    for symbol in settings.symbols:
        if symbol in SPECIALS or symbol in control or not symbol.strip():
            reason = "stands for control already" if symbol.strip() else "is empty"
            raise UserError(f"tokenizer.symbols: {symbol!r} {reason}; choose another")
    least = {"bpe": BYTES, "unigram": BYTES + 1, "wordpiece": 2, "word": 1, "space": 1, "char": 1, "byte": 0}[
        settings.kind
    ]
    if settings.kind != "byte" and vocab < least + len(SPECIALS):
        parts = f"{least} pieces for the kind {settings.kind} and {len(SPECIALS) + len(control)} for control"
        if settings.symbols:
            parts += f", besides {len(set(settings.symbols))} symbols"
        raise UserError(
            f"tokenizer.vocab={settings.vocab} is too small; it must hold {parts}: at least "
            f"{settings.vocab - vocab + least + len(SPECIALS)}"
        )


def _blank(settings: TokenizerConfig) -> Backend:
    """The tokenizer before it has learnt: how text is cut up and put together again."""
    by_kind: dict[str, Callable[[], models.Model]] = {
        "bpe": models.BPE,
        "unigram": models.Unigram,
        "wordpiece": lambda: models.WordPiece(unk_token=SPECIALS[UNK], max_input_chars_per_word=100),
        "word": lambda: models.WordLevel(unk_token=SPECIALS[UNK]),
        "space": lambda: models.WordLevel(unk_token=SPECIALS[UNK]),
        "char": lambda: models.WordLevel(unk_token=SPECIALS[UNK]),
        "byte": lambda: models.BPE({name: number for number, name in enumerate([*SPECIALS, *letters()])}, []),
    }
    backend = Backend(by_kind[settings.kind]())
    forms = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC, "lower": normalizers.Lowercase}
    steps = [forms[name]() for name in settings.normalize.split("+") if name != "none"]
    if settings.kind == "word":  # a word brings the space before it along, also the first: one entry for both places
        steps.append(normalizers.Prepend(" "))
    if settings.kind == "wordpiece":  # control characters go, Chinese characters stand apart
        steps.append(normalizers.BertNormalizer(lowercase=False, strip_accents=False))
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    if settings.kind == "wordpiece":
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        return backend
    if settings.kind == "char":
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        return backend
    bare = pre_tokenizers.ByteLevel(add_prefix_space=settings.kind == "space", use_regex=False)
    if settings.kind == "space":  # a word brings one space along, so that `</s>` in a text is not the control symbol
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), bare])
    else:
        backend.pre_tokenizer = bare if settings.kind == "byte" else pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if settings.kind in ("word", "space"):
        apart = decoders.Replace(Regex(f"^{SPECIALS[UNK]}$"), " " + SPECIALS[UNK])
        backend.decoder = decoders.Sequence([apart, decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return backend


def _trainer(kind: str, vocab: int) -> trainers.Trainer:
    common: dict[str, Any] = {"vocab_size": vocab, "special_tokens": list(SPECIALS), "show_progress": False}
    if kind == "bpe":
        return trainers.BpeTrainer(initial_alphabet=letters(), **common)
    if kind == "unigram":
        return trainers.UnigramTrainer(initial_alphabet=letters(), unk_token=SPECIALS[UNK], **common)
    return trainers.WordLevelTrainer(**common)


def _in_pieces(backend: Backend, texts: Iterable[str], symbols: Sequence[str], vocab: int) -> Backend:
    """Learn wordpieces. The library numbers the letters inside words in the order of a hash table that differs in every
    process, and with them the pieces: so they are numbered here, like control, and then made pieces like any others."""
    texts = texts if isinstance(texts, Sequence) else list(texts)  # they are read twice
    known = _letters_in(backend, texts, symbols)[: min(LETTERS, (vocab - len(SPECIALS)) // 2)]
    assert backend.normalizer is not None and backend.pre_tokenizer is not None
    tidy, cut = backend.normalizer.normalize_str, backend.pre_tokenizer.pre_tokenize_str
    inside = [f"##{letter}" for letter in sorted(known) if len(cut(tidy(f"a{letter}"))) == 1]
    alphabet: dict[str, Any] = {"initial_alphabet": known, "limit_alphabet": len(known)}
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab, special_tokens=[*SPECIALS, *inside], show_progress=False, **alphabet
    )
    backend.train_from_iterator(_sample(texts, symbols), trainer)
    whole = json.loads(backend.to_str())
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["content"] in SPECIALS]
    return Backend.from_str(json.dumps(whole))


def _letters_in(backend: Backend, texts: Iterable[str], symbols: Sequence[str]) -> list[str]:
    """What words are made of, the most frequent first."""
    counts = Counter[str]()
    for some in _sample(texts, symbols):
        counts.update(backend.normalizer.normalize_str("\n".join(some)))  # type: ignore[union-attr]
    return sorted((each for each in counts if not each.isspace()), key=lambda letter: (-counts[letter], letter))


def _sample(texts: Iterable[str], symbols: Sequence[str]) -> Iterator[list[str]]:
    """At most SAMPLE of the texts, evenly spaced, without the symbols, which are not to be learnt from."""
    cut = re.compile("|".join(re.escape(symbol) for symbol in sorted(symbols, key=len, reverse=True)) or r"(?!)")
    if not isinstance(texts, Sequence):
        yield from (cut.split(text) for text in texts)
        return
    count = min(len(texts), SAMPLE)
    for first in range(0, count, 1000):
        places = range(first, min(first + 1000, count))
        yield [part for place in places for part in cut.split(texts[place * len(texts) // count])]


def _settled(backend: Backend) -> Backend:
    """Take the chance out of a unigram model. The library sums in the order of a hash table that differs in every
    process, so scores differ in their last digits, and bytes it hardly saw get the least score plus 0.0001, 0.0002 …"""
    whole = json.loads(backend.to_str())
    vocab = [
        (name, score or 0.0) for name, score in whole["model"]["vocab"]
    ]  # nothing: there was no text to learn from
    specials, learnt = vocab[: len(SPECIALS)], vocab[len(SPECIALS) :]
    lowest = min(score for _, score in learnt)
    unseen = lowest + 0.0001 * (BYTES + 1)
    settled = [(name, round(lowest if len(name) == 1 and score < unseen else score, 4)) for name, score in learnt]
    whole["model"]["vocab"] = specials + sorted(settled, key=lambda piece: (-piece[1], piece[0]))
    return Backend.from_str(json.dumps(whole))


def letters() -> list[str]:
    """The letter that stands for each byte in byte-level tokens (GPT-2's table)."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unseen = iter(range(BYTES, 2 * BYTES))
    return [chr(byte if byte in seen else next(unseen)) for byte in range(BYTES)]


def spaced(backend: Backend) -> bool:
    """Is this the kind `space`?"""
    cuts = backend.pre_tokenizer
    if not isinstance(cuts, pre_tokenizers.Sequence):
        return False
    return isinstance(cuts[0], pre_tokenizers.WhitespaceSplit) and isinstance(cuts[1], pre_tokenizers.ByteLevel)


def bytes_of(backend: Backend) -> dict[str, int]:
    """The byte of each letter, if the tokens of this tokenizer are made of such letters."""
    if not spaced(backend) and not isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        return {}
    return {letter: byte for byte, letter in enumerate(letters())}
