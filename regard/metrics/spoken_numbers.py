"""English number words as digits: "twenty one" becomes 21, "first" 1st, "two point five million" 2500000."""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple

SMALL_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS_WORDS = "twenty thirty forty fifty sixty seventy eighty ninety"
ORDINAL_WORDS = (
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth"
)
SMALL = {word: number for number, word in enumerate(SMALL_WORDS.split())}
TENS = {word: number * 10 for number, word in enumerate(TENS_WORDS.split(), 2)}
HUNDRED = {"hundred": 100}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
CARDINALS = SMALL | TENS | HUNDRED | SCALES
ORDINALS = {word: number for number, word in enumerate(ORDINAL_WORDS.split())}
ORDINALS |= {word[:-1] + "ieth": number for word, number in TENS.items()}
ORDINALS |= {f"{word}th": number for word, number in (HUNDRED | SCALES).items()}
PLURALS = {word[:-1] + "ies": number for word, number in TENS.items()}  # the twenties
CENTURIES = range(13, 21)  # "nineteen eighty" is a year; 12 30 is rather a time
NUMBER = re.compile(r"\d+(\.\d+)?")


class Part(NamedTuple):
    """One number word, or digits."""

    value: Decimal
    suffix: str  # of an ordinal ("th") or a plural ("s"): nothing follows within the number
    digits: bool  # written in digits


def join_numbers(words: Sequence[str]) -> list[str]:
    """The words, with every number in digits. A number in digits goes on with a scale: 3 million."""
    result: list[str] = []
    place = 0
    while place < len(words):
        number, used = _read_number(words, place)
        result.append(number or words[place])
        place += max(used, 1)
    return result


def _part(word: str) -> Part | None:
    if word in CARDINALS:
        return Part(Decimal(CARDINALS[word]), "", False)
    if word in ORDINALS:
        return Part(Decimal(ORDINALS[word]), "th", False)
    if word in PLURALS:
        return Part(Decimal(PLURALS[word]), "s", False)
    return Part(Decimal(word), "", True) if word.isascii() and NUMBER.fullmatch(word) else None


def _read_number(words: Sequence[str], place: int) -> tuple[str, int]:
    """The number that begins at a word, and how many words it has; "" and 0 if none begins there."""
    first, following = _part(words[place]), words[place + 1] if place + 1 < len(words) else ""
    scaled = following in HUNDRED or following in SCALES
    if first and first.digits and not scaled:
        return words[place], 1  # as it is written: 007, 3.50
    if not first and not (scaled and words[place] in ("a", "an")):
        return "", 0
    total, current = Decimal(0), first.value if first else Decimal(1)
    total, current = (current, Decimal(0)) if first and current in SCALES.values() else (total, current)
    used, last, suffix = 1, first.value if first else Decimal(1), first.suffix if first else ""
    while not suffix:
        linked = last >= 100 and words[place + used : place + used + 1] == ["and"]
        part = _part(words[place + used + linked]) if place + used + linked < len(words) else None
        if part is None or not _continues(part, current, total, last, linked):
            break
        scale = _next_scale(words, place + used + linked + 1)
        if last >= 100 > part.value and (scale == last or scale > last >= 1000):
            break  # one hundred and two hundred are two numbers
        total, current = _add(part, total, current)
        used, suffix, last = used + 1 + linked, part.suffix, part.value
    if suffix or (first and first.digits):
        return _format(total + current, suffix), used
    return _finish(total + current, words, place, used)


def _finish(value: Decimal, words: Sequence[str], place: int, used: int) -> tuple[str, int]:
    """A cardinal number with the rest of a year, or with what follows "point"."""
    if year := _year(value, words, place + used):
        return year[0], used + year[1]
    if decimals := _decimals(words, place + used):
        value, used = Decimal(f"{value:f}.{decimals}"), used + 1 + len(decimals)
        if place + used < len(words) and words[place + used] in SCALES:
            value, used = (value * SCALES[words[place + used]]).normalize(), used + 1
    return _format(value, ""), used


def _continues(part: Part, current: Decimal, total: Decimal, last: Decimal, linked: bool) -> bool:
    """True if a word belongs to the number before it: twenty one, but not one two."""
    if part.digits:
        return False
    if part.value in SCALES.values():
        smaller = not total or part.value < _lowest(total)
        return not linked and 0 < current < 1000 and smaller
    if part.value == 100:
        return not linked and 0 < current < 100
    if last >= 100:  # after hundred or a scale
        return 0 < part.value < 100
    return 20 <= last < 100 and last % 10 == 0 and 0 < part.value < 10


def _next_scale(words: Sequence[str], place: int) -> int:
    """The hundred or scale at a place, or after a unit there: in "twenty three hundred", that after twenty."""
    place += place < len(words) and SMALL.get(words[place], 10) < 10
    return (HUNDRED | SCALES).get(words[place], 0) if place < len(words) else 0


def _lowest(total: Decimal) -> int:
    """The lowest scale in a number."""
    return min(scale for scale in SCALES.values() if total % (scale * 1000) or scale == 10**12)


def _add(part: Part, total: Decimal, current: Decimal) -> tuple[Decimal, Decimal]:
    if part.value in SCALES.values():
        return total + (current * part.value).normalize(), Decimal(0)
    return total, (current * 100).normalize() if part.value == 100 else current + part.value


def _year(value: Decimal, words: Sequence[str], place: int) -> tuple[str, int] | None:
    """The year in "nineteen eighty four", and how many words follow the century."""
    if value not in CENTURIES or place >= len(words):
        return None
    if words[place] in PLURALS:
        return f"{value}{PLURALS[words[place]]}s", 1
    if (tens := (SMALL | TENS).get(words[place], 0)) < 10:
        return None
    unit = SMALL.get(words[place + 1], 0) if place + 1 < len(words) else 0
    if words[place] in TENS and 0 < unit < 10:
        return f"{value}{tens + unit}", 2
    return f"{value}{tens}", 1


def _decimals(words: Sequence[str], place: int) -> str:
    """The digits after "point"."""
    digits = ""
    if words[place : place + 1] == ["point"]:
        for word in words[place + 1 :]:
            if SMALL.get(word, 10) > 9:
                break
            digits += str(SMALL[word])
    return digits


def _format(value: Decimal, suffix: str) -> str:
    text = f"{value:f}"
    if suffix != "th":
        return text + suffix
    teen = value % 100 in (11, 12, 13)
    return text + ("th" if teen else {1: "st", 2: "nd", 3: "rd"}.get(int(value % 10), "th"))
