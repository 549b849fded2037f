"""Text to token ids and back, by Hugging Face's `tokenizers`. Byte-level kinds are lossless for any text.

Four control tokens come first in a trained vocabulary. A task may add more, which come last, as in
`train_tokenizer(…, control=(MASK,))`; `mask` is then its id. Text never encodes to a control token: a task inserts
`<mask>` by its id. T5's sentinels are not control tokens but symbols, so a prompt can ask for a span; `sentinels` has
their ids.
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

from ...config.data.texts import TokenizerConfig as TokenizerConfig
from ...errors import UserError
from ...files import atomic_write
from ...progress import track
from .byte_fallback import decode_by_bytes, display_byte, has_byte_fallback

# One thread per call; callers may use several threads. The threads of the library make a later fork warn or hang.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
PAD, START, END, UNK = range(4)
ROLES = "regard"  # the key of the control token ids in the file of an external tokenizer
MASK = "<mask>"  # replaces a token that is to be predicted
SENTINEL = re.compile(r"<extra_id_\d+>")
MAX_LETTERS = 1000  # of a wordpiece vocabulary
SAMPLE = 1_000_000  # texts that a tokenizer is trained on, at most
BYTES = 256
MAX_WORD = 1000  # characters of a word in training of subwords, whose time grows with the square of them
LONG_RUN = re.compile(
    rf"\w{{{MAX_WORD}}}|(?:[^\w\s]|_){{{MAX_WORD}}}|\s{{{MAX_WORD}}}"
)  # of letters, of signs, of spaces


class Tokenizer(Protocol):
    """The interface of a tokenizer. `encode` adds neither START nor END; `decode` skips START, END and PAD."""

    size: int
    pad: int
    start: int
    end: int
    unk: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text. A single str is refused: it would be a sequence of characters."""

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of every row of ids."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """A readable token per id."""

    def save(self, path: Path) -> None:
        """Write one file, which `load_tokenizer` reads."""


class TrainedTokenizer:
    """A trained or converted tokenizer. Text never encodes to control tokens: `</s>` in a text is four characters.

    Control tokens are found by name: a trained vocabulary has them first, a converted one anywhere. In a vocabulary
    without `<s>`, START is `<pad>`, as in T5.
    """

    pad, start, end, unk = PAD, START, END, UNK

    def __init__(self, backend: Backend) -> None:
        backend.encode_special_tokens = True  # not stored in tokenizer.json
        self.backend = backend
        self.size = backend.get_vocab_size()
        added = backend.get_added_tokens_decoder()
        control = {token.content: number for number, token in added.items() if token.special}
        names = backend.get_vocab()
        self.pad, self.end, self.unk = (names[SPECIALS[number]] for number in (PAD, END, UNK))
        self.start = control.get(SPECIALS[START], self.pad)
        self.mask: int | None = control.get(MASK)
        self.symbols = {number: token.content for number, token in added.items() if token.content not in SPECIALS}
        ids = {name: number for number, name in self.symbols.items()}
        self.sentinels = [ids[name] for place in range(len(ids)) if (name := sentinel(place)) in ids]
        self._bytes, self._byte_fallback = byte_values(backend), has_byte_fallback(backend)
        self._separator = " " if splits_on_spaces(backend) else ""  # between symbols and words

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            batch = self.backend.encode_batch_fast(text_list(texts), add_special_tokens=False)
            return [encoding.ids for encoding in batch]
        except TypeError:  # the library's error for a text that UTF-8 cannot represent
            for text in texts:
                refuse_surrogates(text)
            raise

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self._separator.join(self._decode_runs(row)) for row in rows]

    def _decode_runs(self, row: Sequence[int]) -> Iterator[str]:
        """Decode symbols separately in byte-level vocabularies: the library would read `<café>` as bytes."""
        ids = [number for number in row if number not in (self.pad, self.start, self.end)]
        if self._byte_fallback:
            yield decode_by_bytes(self.backend, ids)
            return
        if not self._bytes:
            yield self.backend.decode(ids, skip_special_tokens=False)
            return
        for symbol, group in itertools.groupby(ids, key=self.symbols.get):
            run = list(group)
            if symbol is None:
                yield self.backend.decode(run, skip_special_tokens=False)
            else:
                yield self._separator.join([symbol] * len(run))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """A readable token per id; ▁ is a space, and parts of a character are shown as bytes."""
        return [self._token(number) for number in ids]

    def _token(self, number: int) -> str:
        token = self.backend.id_to_token(number) or SPECIALS[UNK]
        if token in SPECIALS or number in self.symbols:
            return token
        if self._bytes:
            data = bytes(self._bytes[letter] for letter in token)
            try:
                token = data.decode("utf-8")
            except UnicodeDecodeError:
                return f"<{data.hex(' ')}>"
        return (display_byte(token) if self._byte_fallback else token).replace(" ", "▁")

    def save(self, path: Path) -> None:
        with atomic_write(path) as draft:
            draft.write_text(self.backend.to_str(pretty=True) + "\n", encoding="utf-8")


def sentinel(number: int) -> str:
    """T5's name of the token that replaces span `number` of a text."""
    return f"<extra_id_{number}>"


def text_list(texts: Sequence[str]) -> list[str]:
    """The texts to encode; one str would be read as a text for each of its characters."""
    if isinstance(texts, str):
        raise UserError(f"the texts to encode are one str, {texts!r:.40}; give a list of texts, such as encode([text])")
    return list(texts)


def refuse_surrogates(text: str) -> None:
    """Refuse a text that UTF-8 cannot represent."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"{text!r} is not valid Unicode: it holds half a surrogate pair; correct the text")


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer that `save` wrote: a `TrainedTokenizer`, or an external one, whose file holds its control ids."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if f'"{ROLES}"' in text and ROLES in (whole := json.loads(text)):
            from .external import load_external

            return load_external(whole)
        backend = Backend.from_str(text)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); it belongs to the run, restore it") from error
    except Exception as error:  # the library raises nothing more specific
        raise UserError(f"{path} is not a complete tokenizer ({error}); it may be truncated, restore it") from error
    if missing := [SPECIALS[number] for number in (PAD, END, UNK) if backend.token_to_id(SPECIALS[number]) is None]:
        raise UserError(f"{path} is not a tokenizer of regard: it has no {missing[0]}; restore it")
    return TrainedTokenizer(backend)


def unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The distinct words or characters of `text` that encode to UNK, in order."""
    if not isinstance(tokenizer, TrainedTokenizer) or tokenizer.unk not in tokenizer.encode([text])[0]:
        return []
    encoding = tokenizer.backend.encode(text, add_special_tokens=False)
    spans = [span for number, span in zip(encoding.ids, encoding.offsets, strict=True) if number == tokenizer.unk]
    names = [text[slice(*span)] for span in spans]
    return list(dict.fromkeys(name.strip() or name for name in names))


def train_tokenizer(settings: TokenizerConfig, texts: Iterable[str], control: Sequence[str] = ()) -> TrainedTokenizer:
    """Train a tokenizer; the same texts give the same bytes. A sequence above SAMPLE texts is sampled evenly; any
    other iterable is read completely.

    `control` names the tokens that a task needs besides the four, such as MASK; they get the last ids, in this order.
    """
    symbols = tuple(dict.fromkeys(settings.symbols))
    vocab = settings.vocab - len(symbols) - len(control)
    _check_settings(settings, vocab, control)
    backend = _untrained_backend(settings)
    if settings.kind == "wordpiece":
        backend = _train_wordpiece(backend, texts, symbols, vocab)
    elif settings.kind != "byte":
        cut = _word_cutter(backend) if settings.kind in ("bpe", "unigram") else lambda text: [text]
        backend.train_from_iterator(_tracked(_sample(texts, symbols, cut)), _trainer(settings.kind, vocab))
    if settings.kind == "unigram":
        backend = _round_scores(backend)
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    for symbol in symbols:
        if backend.token_to_id(symbol) is not None and not symbol.isascii():
            raise UserError(
                f"tokenizer.symbols: {symbol!r} is already a token; choose a longer one, such as <{symbol}>"
            )
    backend.add_tokens([AddedToken(symbol, special=False, normalized=False) for symbol in symbols])
    backend.add_tokens([AddedToken(name, special=not SENTINEL.fullmatch(name), normalized=False) for name in control])
    return TrainedTokenizer(backend)


def _check_settings(settings: TokenizerConfig, vocab: int, control: Sequence[str]) -> None:
    for symbol in settings.symbols:
        if symbol in SPECIALS or symbol in control or not symbol.strip():
            reason = "is a control token already" if symbol.strip() else "is empty"
            raise UserError(f"tokenizer.symbols: {symbol!r} {reason}; choose another")
    minimum = {"bpe": BYTES, "unigram": BYTES + 1, "wordpiece": 2, "word": 1, "space": 1, "char": 1, "byte": 0}
    least = minimum[settings.kind]
    if settings.kind != "byte" and vocab < least + len(SPECIALS):
        parts = f"{least} tokens of kind {settings.kind} and {len(SPECIALS) + len(control)} control tokens"
        if settings.symbols:
            parts += f", besides {len(set(settings.symbols))} symbols"
        raise UserError(
            f"tokenizer.vocab={settings.vocab} is too small; it must hold {parts}: at least "
            f"{settings.vocab - vocab + least + len(SPECIALS)}"
        )


def _untrained_backend(settings: TokenizerConfig) -> Backend:
    """The tokenizer before training: its normalizer, pre-tokenizer and decoder."""
    by_kind: dict[str, Callable[[], models.Model]] = {
        "bpe": models.BPE,
        "unigram": models.Unigram,
        "wordpiece": lambda: models.WordPiece(unk_token=SPECIALS[UNK], max_input_chars_per_word=100),
        "word": lambda: models.WordLevel(unk_token=SPECIALS[UNK]),
        "space": lambda: models.WordLevel(unk_token=SPECIALS[UNK]),
        "char": lambda: models.WordLevel(unk_token=SPECIALS[UNK]),
        "byte": lambda: models.BPE({name: number for number, name in enumerate([*SPECIALS, *byte_letters()])}, []),
    }
    backend = Backend(by_kind[settings.kind]())
    forms = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC, "lower": normalizers.Lowercase}
    steps = [forms[name]() for name in settings.normalize.split("+") if name != "none"]
    if settings.kind == "word":  # a word includes the space before it, also the first: one entry for both cases
        steps.append(normalizers.Prepend(" "))
    if settings.kind == "wordpiece":  # removes control characters, separates Chinese characters
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
    if settings.kind == "space":  # a word includes one space, so that `</s>` in a text is not the control token
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
        return trainers.BpeTrainer(initial_alphabet=byte_letters(), **common)
    if kind == "unigram":
        return trainers.UnigramTrainer(initial_alphabet=byte_letters(), unk_token=SPECIALS[UNK], **common)
    return trainers.WordLevelTrainer(**common)


def _train_wordpiece(backend: Backend, texts: Iterable[str], symbols: Sequence[str], vocab: int) -> Backend:
    """Train wordpieces reproducibly.

    The library numbers the letters inside words in the order of a hash table that differs in every process. So these
    letters are numbered here, as special tokens, and then made ordinary tokens.
    """
    texts = texts if isinstance(texts, Sequence) else list(texts)  # they are read twice
    letters = _frequent_letters(backend, texts, symbols)[: min(MAX_LETTERS, (vocab - len(SPECIALS)) // 2)]
    assert backend.normalizer is not None and backend.pre_tokenizer is not None
    normalize, split = backend.normalizer.normalize_str, backend.pre_tokenizer.pre_tokenize_str
    inside = [f"##{letter}" for letter in sorted(letters) if len(split(normalize(f"a{letter}"))) == 1]
    alphabet: dict[str, Any] = {"initial_alphabet": letters, "limit_alphabet": len(letters)}
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab, special_tokens=[*SPECIALS, *inside], show_progress=False, **alphabet
    )
    backend.train_from_iterator(_tracked(_sample(texts, symbols, _word_cutter(backend))), trainer)
    whole = json.loads(backend.to_str())
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["content"] in SPECIALS]
    return Backend.from_str(json.dumps(whole))


def _frequent_letters(backend: Backend, texts: Iterable[str], symbols: Sequence[str]) -> list[str]:
    """The letters of all words, the most frequent first."""
    assert backend.normalizer is not None
    counts = Counter[str]()
    for some in _sample(texts, symbols):
        counts.update(backend.normalizer.normalize_str("\n".join(some)))
    letters = (letter for letter in counts if not letter.isspace())
    return sorted(letters, key=lambda letter: (-counts[letter], letter))


def _word_cutter(backend: Backend) -> Callable[[str], list[str]]:
    """A function that splits words longer than MAX_WORD; some of up to twice this length stay whole."""
    assert backend.pre_tokenizer is not None
    split = backend.pre_tokenizer.pre_tokenize_str
    byte_level = isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel)  # words of letters, of digits or of signs

    def cut(text: str) -> list[str]:
        if not _may_have_long_words(text) or (byte_level and not LONG_RUN.search(text)):
            return [text]
        borders = [
            0,
            *(place for _, (begin, end) in split(text) for place in range(begin, end, MAX_WORD)[1:]),
            len(text),
        ]
        return [text[begin:end] for begin, end in itertools.pairwise(borders)]

    return cut


def _may_have_long_words(text: str) -> bool:
    """False if no word is longer than 2 · MAX_WORD. Such a word would cover a whole window of MAX_WORD, and most
    windows contain a space."""
    for place in range(0, len(text) - MAX_WORD + 1, MAX_WORD):
        words = text[place : place + MAX_WORD].split(None, 1)
        if not words or len(words[0]) == MAX_WORD:
            return True
    return False


def _sample(
    texts: Iterable[str], symbols: Sequence[str], cut: Callable[[str], list[str]] = lambda text: [text]
) -> Iterator[list[str]]:
    """At most SAMPLE of the texts, evenly spaced, without symbols, on which no tokenizer is trained.

    `cut` divides a text with long words.
    """
    separators = re.compile("|".join(re.escape(symbol) for symbol in sorted(symbols, key=len, reverse=True)) or r"(?!)")
    if not isinstance(texts, Sequence):
        yield from ([word for part in separators.split(text) for word in cut(part)] for text in texts)
        return
    count = min(len(texts), SAMPLE)
    for first in range(0, count, 1000):
        places = range(first, min(first + 1000, count))
        some = (part for place in places for part in separators.split(texts[place * len(texts) // count]))
        yield [word for part in some for word in cut(part)]


def _tracked(texts: Iterator[list[str]]) -> Iterator[list[str]]:
    return track(texts, "texts read for the tokenizer", size=len)


def _round_scores(backend: Backend) -> Backend:
    """Make the scores of a unigram model reproducible.

    The library sums in the order of a hash table that differs in every process, so scores differ in their last digits.
    Very rare bytes get the lowest score plus 0.0001, 0.0002 …
    """
    whole = json.loads(backend.to_str())
    vocab = [(name, score or 0.0) for name, score in whole["model"]["vocab"]]  # None: there was no text to train on
    specials, trained = vocab[: len(SPECIALS)], vocab[len(SPECIALS) :]
    lowest = min(score for _, score in trained)
    unseen = lowest + 0.0001 * (BYTES + 1)
    rounded = [(name, round(lowest if len(name) == 1 and score < unseen else score, 4)) for name, score in trained]
    whole["model"]["vocab"] = specials + sorted(rounded, key=lambda entry: (-entry[1], entry[0]))
    return Backend.from_str(json.dumps(whole))


def byte_letters() -> list[str]:
    """The letter that represents each byte in byte-level tokens (GPT-2's table)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(BYTES, 2 * BYTES))
    return [chr(byte if byte in printable else next(others)) for byte in range(BYTES)]


def splits_on_spaces(backend: Backend) -> bool:
    """True for the kind `space`."""
    steps = backend.pre_tokenizer
    if not isinstance(steps, pre_tokenizers.Sequence):
        return False
    return isinstance(steps[0], pre_tokenizers.WhitespaceSplit) and isinstance(steps[1], pre_tokenizers.ByteLevel)


def byte_values(backend: Backend) -> dict[str, int]:
    """The byte that each letter represents; empty if the tokens are not byte-level."""
    if not splits_on_spaces(backend) and not isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        return {}
    return {letter: byte for byte, letter in enumerate(byte_letters())}
