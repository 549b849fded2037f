"""The English normalizer that Whisper's error rates are measured with (eval.normalize=whisper-english).

Its rules are those of the published normalizer, also where these are odd: "one oh one" becomes 101, and "one" stays a
word. British words get American spellings by rules, which agree with 1,735 of the 1,739 published ones. Two of the
others are misprints, and two are hesitations, which are removed before. The rules also change some that the list lacks.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from fractions import Fraction

from .spoken_numbers import ORDINAL_WORDS, SMALL_WORDS, TENS
from .whisper_spelling import american

# --- words -----------------------------------------------------------------------------------------------------------

ASIDE = re.compile(r"[<\[][^>\]]*[>\]]|\([^)]+\)")  # in brackets
HESITATION = re.compile(r"\b(hmm|mm|mhm|mmm|uh|um)\b")
SHORT = (
    "won't:will not, can't:can not, let's:let us, ain't:aint, y'all:you all, wanna:want to, gotta:got to, "
    "gonna:going to, i'ma:i am going to, imma:i am going to, woulda:would have, coulda:could have, "
    "shoulda:should have, ma'am:madam, mr:mister, mrs:missus, st:saint, dr:doctor, prof:professor, capt:captain, "
    "gov:governor, ald:alderman, gen:general, sen:senator, rep:representative, pres:president, rev:reverend, "
    "hon:honorable, asst:assistant, assoc:associate, lt:lieutenant, col:colonel, jr:junior, sr:senior, esq:esquire"
)
ENDS = (
    "'d been:had been, 's been:has been, 'd gone:had gone, 's gone:has gone, 'd done:had done, 's got:has got, "
    "n't:not, 're:are, 's:is, 'd:would, 'll:will, 't:not, 've:have, 'm:am"
)
LONG = [
    (re.compile(rf"{border}{short}\b"), f" {long} ")
    for table, border in ((SHORT, r"\b"), (ENDS, ""))
    for short, _, long in (pair.partition(":") for pair in table.split(", "))
]
LETTERS = {"œ": "oe", "ø": "o", "æ": "ae", "ß": "ss", "đ": "d", "ð": "d", "þ": "th", "ł": "l"}  # NFKD keeps these
KEPT = ".%$¢€£"  # symbols of numbers


def normalize_whisper_english(text: str) -> str:
    """The text as Whisper's English normalizer writes it."""
    text = HESITATION.sub("", ASIDE.sub("", text.lower()))
    text = re.sub(r"\s+'", "'", text)
    for pattern, long in LONG:
        text = pattern.sub(long, text)
    text = re.sub(r"(\d),(\d)", r"\1\2", text)
    text = re.sub(r"\.(?!\d)", " ", text)
    text = "".join(map(_plain, unicodedata.normalize("NFKD", text)))
    words = map(american, write_numbers(text).split())
    text = re.sub(r"[.$¢€£](?=[^0-9])", " ", " ".join(words))
    return " ".join(re.sub(r"([^0-9])%", r"\1 ", text).split())


def _plain(letter: str) -> str:
    """A letter without its marks; a space for other symbols."""
    if letter in KEPT or letter in LETTERS:
        return LETTERS.get(letter, letter)
    category = unicodedata.category(letter)
    return "" if category == "Mn" else " " if category[0] in "MSP" else letter


# --- numbers ---------------------------------------------------------------------------------------------------------

ZEROS = {"o", "oh", "zero"}
ONES = {word: number for number, word in enumerate(SMALL_WORDS.split()) if number}
SCALE_WORDS = (
    "thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"
)
SCALES = {"hundred": 100} | {word: 1000**power for power, word in enumerate(SCALE_WORDS.split(), 1)}
SIGNS = {"minus": "-", "negative": "-", "plus": "+", "positive": "+"}
MONEY = {"pound": "£", "euro": "€", "dollar": "$", "cent": "¢"}
MONEY |= {f"{word}s": sign for word, sign in MONEY.items()}
RULED_ORDINALS = ORDINAL_WORDS.replace("ninth", "nineth")  # as the published rules spell it
ENDING = {1: "st", 2: "nd", 3: "rd"}
SUFFIXED: dict[str, tuple[int, str]] = {  # plurals and ordinals, which end a number
    **{word: (number, ENDING.get(number, "th")) for number, word in enumerate(RULED_ORDINALS.split())},
    **{"sixes" if word == "six" else f"{word}s": (number, "s") for word, number in ONES.items()},
    **{f"{word[:-1]}ies": (number, "s") for word, number in TENS.items()},
    **{f"{word[:-1]}ieth": (number, "th") for word, number in TENS.items()},
    **{f"{word}{suffix}": (number, suffix) for word, number in SCALES.items() for suffix in ("s", "th")},
}
DECIMALS = {*ONES, *TENS, *ZEROS}
NUMBERS = {*DECIMALS, *SCALES, *SUFFIXED, *SIGNS, *MONEY, "per", "percent", "and", "double", "triple", "point"}
DIGITS = re.compile(r"\d+(\.\d+)?")


def write_numbers(text: str) -> str:
    """The text with its numbers in digits; "one" stays a word."""
    *parts, text = re.split(r"\band\s+a\s+half\b", text)
    for part in reversed(parts):
        if part.strip():
            text = f"{part} {'point five' if part.split()[-1] in DECIMALS | SCALES.keys() else 'and a half'} {text}"
    text = re.sub(r"(?<=[a-z])(?=[0-9])|(?<=[0-9])(?=[a-z])", " ", text)
    text = re.sub(r"(\d)\s+(st|nd|rd|th|s)\b", r"\1\2", text)
    text = " ".join(NumberWriter(text.split()).written())
    text = re.sub(r"([€£$]\d+) (?:and )?¢(\d{1,2})\b", lambda match: f"{match[1]}.{int(match[2]):02d}", text)
    text = re.sub(r"[€£$]0.(\d{1,2})\b", lambda match: f"¢{int(match[1])}", text)
    return re.sub(r"\b1(s?)\b", r"one\1", text)


class NumberWriter:
    """Reads words from left to right. `value` is the number so far: an int while its words add up, a str of digits
    where they were read one after the other.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.value: int | str | None = None
        self.sign = ""  # before the next output

    def written(self) -> Iterator[str]:
        """The words, with numbers in digits."""
        skip = False
        for place, word in enumerate(self.words):
            if skip:
                skip = False
                continue
            before = self.words[place - 1] if place else ""
            after = self.words[place + 1] if place + 1 < len(self.words) else ""
            bare = word[1:] if word[0] in "-+£€$¢" else word
            if DIGITS.fullmatch(bare):
                yield from self._digits(word, bare)
            elif word not in NUMBERS:
                yield from self._end(word)
            elif word in ("double", "triple") and (after in ONES or after in ZEROS):
                self.value = str(self.value or "") + str(ONES.get(after, 0)) * (2 if word == "double" else 3)
                skip = True
            elif word == "per" and self.value is not None and after == "cent":
                yield self._output(f"{self.value}%")
                skip = True
            else:
                yield from self._number_word(word, before, after)
        yield from self._end()

    def _output(self, text: str) -> str:
        text, self.sign, self.value = self.sign + text, "", None
        return text

    def _end(self, *words: str) -> Iterator[str]:
        """The number so far, then other words."""
        if self.value is not None:
            yield self._output(str(self.value))
        for word in words:
            yield self._output(word)

    def _digits(self, word: str, bare: str) -> Iterator[str]:
        if isinstance(self.value, str) and self.value.endswith("."):
            self.value += word
            return
        yield from self._end()
        self.sign = word[0] if bare != word else self.sign
        number = Fraction(bare)
        self.value = number.numerator if number.denominator == 1 else bare

    def _number_word(self, word: str, before: str, after: str) -> Iterator[str]:
        goes_on = after in NUMBERS or DIGITS.fullmatch(after) is not None
        if word in ZEROS:
            self.value = f"{self.value or ''}0"
        elif word in ONES or word in TENS:
            self.value = self._joined(ONES.get(word) or TENS[word], before)
        elif word in SCALES:
            yield from self._scale(SCALES[word])
        elif word in SUFFIXED:
            yield from self._suffixed(*SUFFIXED[word], before)
        elif word in SIGNS:
            yield from self._end(*[word] * (not goes_on))
            self.sign = SIGNS[word] if goes_on else ""
        elif word in MONEY and self.value is not None:
            self.sign = MONEY[word]
            yield from self._end()
        elif word == "percent" and self.value is not None:
            yield self._output(f"{self.value}%")
        elif word == "point" and goes_on:
            if after in DECIMALS or DIGITS.fullmatch(after):
                self.value = f"{self.value or ''}."
        elif word != "and" or not goes_on or before not in SCALES:
            yield from self._end(word)

    def _joined(self, number: int, before: str) -> int | str:
        """The value with a number below 100 after it: added where it fills zeros, else written after it."""
        value = self.value
        if value is None:
            return number
        if number < 20 and (isinstance(value, str) or before in ONES):
            last_zero = before in TENS and number < 10
            return f"{str(value)[:-1] if last_zero else value}{number}"
        room = 10 if number < 10 else 100
        return value + number if isinstance(value, int) and value % room == 0 else f"{value}{number}"

    def _scale(self, scale: int) -> Iterator[str]:
        if isinstance(self.value, str) or self.value == 0:
            scaled = _fraction(self.value)
            if scaled is not None and (scaled * scale).denominator == 1:
                self.value = (scaled * scale).numerator
                return
            yield from self._end()
        self._multiply(scale)

    def _multiply(self, scale: int) -> None:
        """Multiply what follows the thousands: two million three hundred."""
        value = self.value
        self.value = value // 1000 * 1000 + value % 1000 * scale if isinstance(value, int) else scale

    def _suffixed(self, number: int, suffix: str, before: str) -> Iterator[str]:
        if number < 100:
            yield self._output(f"{self._joined(number, before)}{suffix}")
            return
        if isinstance(self.value, int):
            self._multiply(number)
        else:
            yield from self._scale(number)
        yield self._output(f"{self.value}{suffix}")


def _fraction(text: int | str) -> Fraction | None:
    try:
        return Fraction(text)
    except ValueError:
        return None
