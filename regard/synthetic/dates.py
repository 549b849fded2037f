"""Embedded data for translation: dates and times as people write them, and their form in another language.

The formats are CLDR's, by Babel.
"""

import datetime
import difflib
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ..alignment.links import Links
from ..data.source import InMemorySource
from ..errors import UserError

FIRST_DAY, LAST_DAY = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
HELD_OUT = 1000  # examples each of valid and test
SPLITS = {0: "valid", 1: "test"}  # one of twenty dates each; the other eighteen are for training
OWN_DATES = ("EEEE, d MMMM y", "EEE, d MMM y", "d MMMM y", "MMM d, y", "y MMMM d")  # besides those of the locale
PLAIN_DATE, PLAIN_TIME = "y-MM-dd", "HH:mm"  # for a locale whose own formats are all ambiguous

FIELDS = ("Ec", "d", "ML", "yYu", "hHKkmsabB")  # letters of patterns: weekday, day, month, year and time
FIRST_MARK, END_MARK = 0xE000, "\uf8ff"  # private characters, which no locale uses: each field is between two
MARKS = re.compile("[\ue000-\uf8ff]")

DateFormat = Callable[[datetime.datetime], str]  # fields have marks
Pattern = Any  # babel.dates.DateTimePattern; babel is imported on use
Locale = Any  # babel.Locale


def make_dates(locales: tuple[str, str], examples: int, seed: int) -> dict[str, InMemorySource]:
    """Pairs for train, valid and test. No date is in two splits; valid and test are the same for every seed."""
    return {
        split: InMemorySource(
            f"embedded {locales[0]}-{locales[1]} {split} data",
            [(MARKS.sub("", source), MARKS.sub("", target)) for source, target in pairs],
        )
        for split, pairs in marked_dates(locales, examples, seed).items()
    }


def gold_alignments(locales: tuple[str, str], examples: int, seed: int) -> dict[str, list[Links]]:
    """For each pair of `make_dates`, the links between all words that have parts of the same field."""
    return {
        split: [
            frozenset(
                (i, j) for field, words in words_by_field(source).items() for i in words for j in others.get(field, ())
            )
            for source, others in ((source, words_by_field(target)) for source, target in pairs)
        ]
        for split, pairs in marked_dates(locales, examples, seed).items()
    }


def marked_dates(locales: tuple[str, str], examples: int, seed: int) -> dict[str, list[tuple[str, str]]]:
    """The pairs of each split, with marks around their fields."""
    source, target = SourceFormats(locale(locales[0])), TargetFormat(locale(locales[1]))
    splits = {}
    for split, dates in dates_by_split(examples, seed).items():
        rng = random.Random(f"forms {split} {seed if split == 'train' else 0}")
        splits[split] = [date_pair(rng, day, source, target) for day in dates]
    return splits


def words_by_field(marked: str) -> dict[str, set[int]]:
    """The numbers of the white-space separated words in which each field, given by its mark, has characters."""
    found: dict[str, set[int]] = defaultdict(set)
    word, gap, kind = -1, True, END_MARK
    for letter in marked:
        if MARKS.match(letter):
            kind = letter
            continue
        word += gap and not letter.isspace()
        gap = letter.isspace()
        if kind != END_MARK and not gap:
            found[kind].add(word)
    return found


def dates_by_split(examples: int, seed: int) -> dict[str, list[datetime.date]]:
    """Dates for each split; those of valid and test are the same for every seed."""
    dates: dict[str, list[datetime.date]] = {"train": [], "valid": [], "test": []}
    for number in range(FIRST_DAY.toordinal(), LAST_DAY.toordinal() + 1):
        day = datetime.date.fromordinal(number)
        dates[split_of(day)].append(day)
    rng = random.Random(f"train {seed}")
    chosen = {"train": [rng.choice(dates["train"]) for _ in range(examples)]}
    return chosen | {split: random.Random(split).sample(dates[split], HELD_OUT) for split in ("valid", "test")}


def split_of(day: datetime.date) -> str:
    """The split of a date, the same on every machine and for every seed."""
    number = int.from_bytes(hashlib.sha256(day.isoformat().encode()).digest()[:8], "big")
    return SPLITS.get(number % 20, "train")


def date_pair(
    rng: random.Random, day: datetime.date, source: "SourceFormats", target: "TargetFormat"
) -> tuple[str, str]:
    """The target has weekday and time if the source has: it is a function of the source. Both have marks."""
    moment = random_time(rng, day)
    date_format, weekday = rng.choice(source.dates)
    text, timed = source.write(rng, moment, date_format)
    return text, target.write(moment, weekday, timed)


def random_time(rng: random.Random, day: datetime.date) -> datetime.datetime:
    """A random time of the day."""
    hour, minute, second = rng.randrange(24), rng.randrange(60), rng.randrange(60)
    return datetime.datetime(day.year, day.month, day.day, hour, minute, second)


def add_text_noise(rng: random.Random, text: str) -> str:
    """Vary case, spacing and punctuation, without loss of information."""
    case, space, end = rng.random(), rng.random(), rng.random()
    if case < 0.2:
        text = text.upper() if case < 0.1 else text.lower()
    if space < 0.2:
        text = text.replace(" ", "  " if space < 0.1 else "\u00a0")
    return text + (rng.choice(".!;") if end < 0.1 else "")


class SourceFormats:
    """The unambiguous ways to write a moment in one locale."""

    def __init__(self, place: Locale) -> None:
        from babel.dates import parse_pattern

        dates = [place.date_formats[size] for size in ("full", "long", "medium")]
        dates = unambiguous([*dates, *map(parse_pattern, OWN_DATES)], place, date_probes())
        times = unambiguous([place.time_formats[size] for size in ("short", "medium")], place, time_probes())
        dates, times = dates or [parse_pattern(PLAIN_DATE)], times or [parse_pattern(PLAIN_TIME)]
        self.dates = [(date_formatter(one, place), names_weekday(one)) for one in dates]
        self.times = [date_formatter(one, place) for one in times]
        self.templates = [str(place.datetime_formats["medium"]), "{1} {0}", "{0}, {1}"]

    def write(self, rng: random.Random, moment: datetime.datetime, date_format: DateFormat) -> tuple[str, bool]:
        """The date in this format, with the time in half of the cases; and whether the time is there."""
        text, timed = date_format(moment), rng.random() < 0.5
        if timed:
            text = join_date_time(rng.choice(self.templates), text, rng.choice(self.times)(moment))
        return add_text_noise(rng, text), timed


class TargetFormat:
    """The one way to write a moment in one locale."""

    def __init__(self, place: Locale) -> None:
        self.full, self.long = (date_formatter(place.date_formats[size], place) for size in ("full", "long"))
        self.time = date_formatter(place.time_formats["short"], place)
        self.template = str(place.datetime_formats["medium"])

    def write(self, moment: datetime.datetime, weekday: bool, timed: bool) -> str:
        text = self.full(moment) if weekday else self.long(moment)
        return join_date_time(self.template, text, self.time(moment)) if timed else text


class MarkedFields:
    """The fields of a moment by their pattern, such as `MMM`, with marks."""

    def __init__(self, moment: datetime.datetime, place: Locale) -> None:
        from babel.dates import DateTimeFormat

        self.fields = DateTimeFormat(moment, place)

    def __getitem__(self, pattern: str) -> str:
        kind = next((number for number, letters in enumerate(FIELDS) if pattern[0] in letters), len(FIELDS))
        return f"{chr(FIRST_MARK + kind)}{self.fields[pattern]}{END_MARK}"


def date_formatter(pattern: Pattern, place: Locale) -> DateFormat:
    """A function that writes dates of a locale in one way."""
    return lambda moment: str(pattern.format % MarkedFields(moment, place))


def names_weekday(pattern: Pattern) -> bool:
    """True if a pattern has the weekday."""
    return "%(E" in pattern.format or "%(c" in pattern.format  # in a sentence, or standalone


def join_date_time(template: str, date: str, time: str) -> str:
    """A date and a time as a locale joins them."""
    return template.replace("'", "").replace("{1}", date).replace("{0}", time)


def unambiguous(patterns: list[Pattern], place: Locale, probes: list[datetime.datetime]) -> list[Pattern]:
    """The patterns that write no two probes alike, in any case, or like another probe under an earlier pattern."""
    kept, seen = [], dict[str, datetime.datetime]()
    for pattern in patterns:
        texts = {moment: pattern.apply(moment, place) for moment in probes}
        looks = [(look, moment) for moment, text in texts.items() for look in {text, text.upper(), text.lower()}]
        own = dict(looks)
        if all(own[look] == moment == seen.get(look, moment) for look, moment in looks):
            kept.append(pattern)
            seen |= own
    return kept


def date_probes() -> list[datetime.datetime]:
    """Every day and month that could be confused, and years that differ in one digit."""
    days = [(2021, month, day) for month in range(1, 13) for day in range(1, 13)]
    return [datetime.datetime(*day) for day in [*days, (1921, 3, 5), (2012, 3, 5), (2031, 3, 5), (2021, 3, 31)]]


def time_probes() -> list[datetime.datetime]:
    """Times of all hours, by which patterns are told apart."""
    return [datetime.datetime(2021, 3, 5, hour, minute, 30) for hour in range(24) for minute in (0, 5, 12, 50)]


def locale(name: str) -> Locale:
    """Babel's locale of this name, written en_GB or en-GB."""
    from babel import Locale, UnknownLocaleError
    from babel.localedata import locale_identifiers

    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        close = difflib.get_close_matches(name, locale_identifiers(), n=3, cutoff=0.5)
        hint = f"; nearest are {', '.join(close)}" if close else "; use en, de, fr, ja or another of its thousand"
        raise UserError(f"data.locales: {name!r} is not a locale that Babel knows{hint}") from error
