"""The tokenizer of Whisper: text, and control tokens for languages, tasks and times."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from ...errors import UserError
from .external import FolderTokenizer, write_tokenizer
from .tokenizers import ROLES, TrainedTokenizer

CONTROL = "control"  # the key of the control tokens among the roles
RESOLUTION = 0.02  # seconds from one timestamp to the next
UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # languages that are written without spaces
MARKS = re.compile(r"(<\|[^|<>]*\|>)")  # of transcripts
TIMESTAMP = re.compile(r"<\|(\d+\.\d\d)\|>")
START, END, PREVIOUS = "startoftranscript", "endoftext", "startofprev"
NO_SPEECH, NO_TIMESTAMPS = "nospeech", "notimestamps"
TASKS = "translate", "transcribe"
OTHER_NAMES = {
    "bengali": "bn", "castilian": "es", "flemish": "nl", "haitian": "ht", "javanese": "jw", "letzeburgesch": "lb",
    "mandarin": "zh", "maori": "mi", "moldavian": "ro", "moldovan": "ro", "myanmar": "my", "nynorsk": "nn",
    "panjabi": "pa", "pushto": "ps", "sinhalese": "si", "valencian": "ca",
}  # fmt: skip  # English names of languages in the published models that CLDR does not have


@dataclass(frozen=True)
class ControlTokens:
    """The control tokens beside START and END. Timestamps follow `no_timestamps`, one for every 0.02 seconds."""

    no_timestamps: int
    languages: dict[str, int] = field(default_factory=dict)  # by code, such as "de"; none: a model of one language
    tasks: dict[str, int] = field(default_factory=dict)
    previous: int | None = None  # precedes the text of earlier windows
    no_speech: int | None = None  # its probability after START is that of a window without speech
    latest_start: int | None = None  # the last timestamp that may begin a window, counted from the first one
    timestamps: int = 1501  # how many there are: up to 30 seconds


class WhisperTokenizer(FolderTokenizer):
    """Control tokens and timestamps have no text."""

    def __init__(self, backend: Backend, pad: int, start: int, end: int, unk: int, control: ControlTokens) -> None:
        super().__init__(backend, pad, start, end, unk)
        self.control = control
        self.first_timestamp = control.no_timestamps + 1
        self._control = {number for number, token in backend.get_added_tokens_decoder().items() if token.special}
        self._control |= {pad, start, end}
        self.size = max(self.size, self.first_timestamp)

    # --- text and tokens ---------------------------------------------------------------------------------------

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return super().decode([self.text_tokens(row) for row in rows])

    def text_tokens(self, tokens: Sequence[int]) -> list[int]:
        return [token for token in tokens if self.is_text(token)]

    def is_text(self, token: int) -> bool:
        return token < self.first_timestamp and token not in self._control

    @property
    def text_end(self) -> int:
        """The id after the last text token."""
        return max((token for token in range(self.first_timestamp) if self.is_text(token)), default=-1) + 1

    def is_timestamp(self, token: int) -> bool:
        return token >= self.first_timestamp

    def seconds(self, timestamp: int) -> float:
        return (timestamp - self.first_timestamp) * RESOLUTION

    def timestamp(self, seconds: float) -> int:
        return self.first_timestamp + round(seconds / RESOLUTION)

    @property
    def control_ids(self) -> tuple[int, ...]:
        """The tokens that no text contains: all control tokens but END and timestamps."""
        return tuple(sorted(token for token in self._control if token < self.first_timestamp and token != self.end))

    # --- prompts -----------------------------------------------------------------------------------------------

    @property
    def multilingual(self) -> bool:
        return bool(self.control.languages)

    def language(self, name: str, key: str = "decode.language") -> str:
        """The code of a language, given by code or English name; `key` is the setting that gives it."""
        languages = self.control.languages
        if not languages:
            raise UserError(f"the language is {name!r}, and this model knows English alone; leave {key} out")
        code = name.strip().lower()
        if code not in languages:
            code = language_codes().get(code, code)
        if code not in languages:
            some = ", ".join(sorted(languages)[:12])
            raise UserError(f"{name!r} is no language of this model; it knows {len(languages)}, such as {some} ({key})")
        return code

    def data_language(self, name: str) -> str:
        """The code of data.language; "" in an English-only model."""
        return "" if not self.multilingual and name in ("en", "English") else self.language(name, "data.language")

    def prompt(
        self, language: str = "", task: str = "transcribe", timestamps: bool = True, previous: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """The tokens before a transcript; `language` is a code, "" in an English-only model."""
        control = self.control
        tokens = [self.start]
        if self.multilingual:
            if task not in control.tasks:
                raise UserError(f"this model does not {task}; it knows {', '.join(control.tasks)}")
            tokens += [control.languages[language], control.tasks[task]]
        elif task != "transcribe":
            raise UserError(f"decode.task is {task}, and this model knows English alone; use one of many languages")
        if not timestamps:
            tokens.append(control.no_timestamps)
        if previous and control.previous is not None:
            tokens = [control.previous, *previous, *tokens]
        return tuple(tokens)

    # --- transcripts to learn from -----------------------------------------------------------------------------

    def encode_transcript(
        self, text: str, language: str, task: str, timestamps: bool = True, prompts: bool = True
    ) -> tuple[list[int], list[int]]:
        """The tokens before START, and those after START: prompt, transcript and END.

        Text may have Whisper's marks. It may begin with `<|startofprev|>`, the previous text and
        `<|startoftranscript|>`. It may have timestamps such as `<|1.20|>`. Without `prompts` or `timestamps`, they are
        dropped.
        """
        spoken = text_language(language, task)
        before, mark, after = text.partition(f"<|{START}|>")
        earlier, transcript = (before.strip().removeprefix(f"<|{PREVIOUS}|>"), after) if mark else ("", text)
        tokens = self._encode_marked(transcript, spoken, timestamps)
        stamped = any(map(self.is_timestamp, tokens))
        previous: list[int] = []
        if earlier.strip() and prompts and self.control.previous is not None:
            previous = [self.control.previous, *self._encode_marked(earlier, spoken, timestamps, in_order=False)]
        return previous, [*self.prompt(language, task, stamped)[1:], *tokens, self.end]

    def _encode_marked(self, text: str, language: str, timestamps: bool, in_order: bool = True) -> list[int]:
        """The tokens of a text with timestamps, which may be dropped. Timestamps of several windows are unordered."""
        tokens: list[int] = []
        last = self.first_timestamp
        for part in MARKS.split(text):
            if TIMESTAMP.fullmatch(part):
                if timestamps:
                    last = self._timestamp(part, last if in_order else self.first_timestamp, text)
                    tokens.append(last)
            elif MARKS.fullmatch(part):
                raise UserError(
                    f"the transcript {_shortened(text)} has the mark {part}; expected timestamps such as <|1.20|>, "
                    f"and <|{PREVIOUS}|> and <|{START}|> before the text; data.language and data.task tell the rest"
                )
            elif part.strip():
                tokens += self.encode_words(part, language)
        return tokens

    def encode_words(self, text: str, language: str) -> list[int]:
        """The ids of a text whose words begin with a space, as in the published models; `language` is its code."""
        words = " ".join(text.split())
        if not words:
            return []
        return self.encode([words if language in UNSPACED or not self.spaced else f" {words}"])[0]

    @property
    def spaced(self) -> bool:
        """True if a space before a word is part of its token."""
        return bool(self._bytes)

    @staticmethod
    def plain(text: str) -> str:
        """A transcript without marks."""
        return " ".join(MARKS.sub(" ", text.rpartition(f"<|{START}|>")[2]).split())

    def _timestamp(self, mark: str, last: int, text: str) -> int:
        """The token of a timestamp, which must not precede `last`."""
        token = self.timestamp(float(mark.strip("<|>")))
        last_one = self.first_timestamp + self.control.timestamps - 1
        if token > last_one:
            raise UserError(
                f"a transcript has the timestamp {mark}, and the last one is <|{self.seconds(last_one):.2f}|>; cut the "
                f"recording of {_shortened(text)} into shorter ones"
            )
        if token < last:
            raise UserError(
                f"a transcript has the timestamp {mark} after <|{self.seconds(last):.2f}|>; sort those of "
                f"{_shortened(text)}"
            )
        return token

    # --- files -------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        roles: dict[str, Any] = {**self.roles, CONTROL: asdict(self.control)}
        write_tokenizer(path, json.loads(self.backend.to_str()) | {ROLES: roles})


@dataclass(frozen=True)
class WhisperTranscripts:
    """Encodes transcripts of one language as targets, with their prompts."""

    tokenizer: WhisperTokenizer
    language: str  # the code
    task: str
    timestamps: bool
    prompts: bool
    max_previous: int  # the last tokens of the previous text that are used

    def __call__(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        encoded = []
        for text in texts:
            previous, ids = self.tokenizer.encode_transcript(
                text, self.language, self.task, self.timestamps, self.prompts
            )
            if len(previous) > self.max_previous + 1:
                previous = [previous[0], *previous[-self.max_previous :]]
            prompt = np.array([*previous, self.tokenizer.start], np.int32)
            encoded.append((prompt, np.array(ids, np.int32)))
        return encoded


def with_control_tokens(trained: TrainedTokenizer, languages: Sequence[str], seconds: float) -> WhisperTokenizer:
    """A trained tokenizer with Whisper's control tokens, and timestamps up to `seconds`."""
    backend = Backend.from_str(trained.backend.to_str())
    names = [START, *languages, *TASKS, PREVIOUS, NO_SPEECH, NO_TIMESTAMPS]
    times = [f"{step * RESOLUTION:.2f}" for step in range(round(seconds / RESOLUTION) + 1)]
    backend.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in (*names, *times)])
    vocabulary = backend.get_vocab()
    ids = {name: vocabulary[f"<|{name}|>"] for name in names}
    control = ControlTokens(
        ids[NO_TIMESTAMPS], {name: ids[name] for name in languages}, {name: ids[name] for name in TASKS},
        ids[PREVIOUS], ids[NO_SPEECH], timestamps=len(times),
    )  # fmt: skip
    return WhisperTokenizer(backend, trained.pad, ids[START], trained.end, trained.unk, control)


def text_language(language: str, task: str) -> str:
    """The code of the language of the text: translations are English."""
    return "en" if task == "translate" else language


def _shortened(text: str) -> str:
    return f"{' '.join(text.split())!r:.60}"


def new_language(name: str) -> str:
    """The code of the language that a new model learns, given by code or English name."""
    code = name.strip().lower()
    code = language_codes().get(code, code)
    if not re.fullmatch("[a-z]{2,3}", code):
        raise UserError(f"data.language is {name!r}; expected a code or an English name, such as de or German")
    return code


def language_codes() -> dict[str, str]:
    """Codes by English name, in lower case."""
    from babel import Locale

    return {name.lower(): code for code, name in Locale("en").languages.items()} | OTHER_NAMES
