"""The embedded data: dates and times as people write them, to be written again in another language (CLDR, by Babel)."""

import datetime
import difflib
import hashlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from ..data.examples import Examples
from ..errors import UserError

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
HELD = 1000  # examples each of valid and test
PARTS = {0: "valid", 1: "test"}  # of every twenty dates one each; the other eighteen are for training
OWN_DATES = ("EEEE, d MMMM y", "EEE, d MMM y", "d MMMM y", "MMM d, y", "y MMMM d")  # beside those of the locale
PLAIN_DATE, PLAIN_TIME = "y-MM-dd", "HH:mm"  # for a locale none of whose own forms is clear

Form = Callable[[datetime.datetime], str]


class InMemoryExamples(Examples):
    """Examples held in memory."""

    def __init__(self, name: str, examples: Sequence[tuple[Any, ...]]) -> None:
        self.name, self.examples = name, examples
        self.counts = {"examples": len(examples)}

    def __len__(self) -> int:
        return len(self.examples)

    def item(self, index: int) -> tuple[Any, ...]:
        return self.examples[index]

    def location(self, index: int) -> str:
        return f"{self.name}, example {index + 1}"

    def fingerprint(self) -> str:
        parts = "\0".join(self.text(i, side) for i, sides in enumerate(self.examples) for side in range(len(sides)))
        return hashlib.blake2b(parts.encode("utf-8"), digest_size=16).hexdigest()


def make_dates(locales: tuple[str, str], examples: int, seed: int) -> dict[str, InMemoryExamples]:
    """Pairs for train, valid and test. No date is in two of them; valid and test are the same for every seed."""
    source, target = SourceFormats(locale(locales[0])), TargetFormat(locale(locales[1]))
    made = {}
    for part, some in days(examples, seed).items():
        chance = random.Random(f"forms {part} {seed if part == 'train' else 0}")
        name = f"embedded {locales[0]}-{locales[1]} {part} data"
        made[part] = InMemoryExamples(name, [pair(chance, day, source, target) for day in some])
    return made


def days(examples: int, seed: int) -> dict[str, list[datetime.date]]:
    """Dates for each part; those of valid and test are the same for every seed."""
    found: dict[str, list[datetime.date]] = {"train": [], "valid": [], "test": []}
    for number in range(FIRST.toordinal(), LAST.toordinal() + 1):
        day = datetime.date.fromordinal(number)
        found[part_of(day)].append(day)
    chance = random.Random(f"train {seed}")
    chosen = {"train": [chance.choice(found["train"]) for _ in range(examples)]}
    return chosen | {part: random.Random(part).sample(found[part], HELD) for part in ("valid", "test")}


def part_of(day: datetime.date) -> str:
    """The part of the data that a date belongs to, on every machine and for every seed."""
    number = int.from_bytes(hashlib.sha256(day.isoformat().encode()).digest()[:8], "big")
    return PARTS.get(number % 20, "train")


def pair(chance: random.Random, day: datetime.date, source: "SourceFormats", target: "TargetFormat") -> tuple[str, str]:
    """The target names the weekday and the time where the source does: the source alone decides it."""
    moment = some_time(chance, day)
    form, weekday = chance.choice(source.dates)
    text, timed = source.spell(chance, moment, form)
    return text, target.spell(moment, weekday, timed)


def some_time(chance: random.Random, day: datetime.date) -> datetime.datetime:
    hour, minute, second = chance.randrange(24), chance.randrange(60), chance.randrange(60)
    return datetime.datetime(day.year, day.month, day.day, hour, minute, second)


def scruffy(chance: random.Random, text: str) -> str:
    """Case, spacing and punctuation as people in a hurry leave them; nothing is lost by it."""
    case, space, end = chance.random(), chance.random(), chance.random()
    if case < 0.2:
        text = text.upper() if case < 0.1 else text.lower()
    if space < 0.2:
        text = text.replace(" ", "  " if space < 0.1 else "\u00a0")
    return text + (chance.choice(".!;") if end < 0.1 else "")


class SourceFormats:
    """The ways to write a moment in one locale, those that can be misread left out."""

    def __init__(self, place: Any) -> None:
        from babel.dates import parse_pattern

        dates = [place.date_formats[size] for size in ("full", "long", "medium")]
        dates = clear([*dates, *map(parse_pattern, OWN_DATES)], place, probes_of_dates()) or [parse_pattern(PLAIN_DATE)]
        times = [place.time_formats[size] for size in ("short", "medium")]
        times = clear(times, place, probes_of_times()) or [parse_pattern(PLAIN_TIME)]
        self.dates = [(spelling(one, place), names_weekday(one)) for one in dates]
        self.times = [spelling(one, place) for one in times]
        self.joints = [str(place.datetime_formats["medium"]), "{1} {0}", "{0}, {1}"]

    def spell(self, chance: random.Random, moment: datetime.datetime, form: Form) -> tuple[str, bool]:
        """The date in this form, every other time with the time of the day; and whether that is there."""
        text, timed = form(moment), chance.random() < 0.5
        if timed:
            text = joined(chance.choice(self.joints), text, chance.choice(self.times)(moment))
        return scruffy(chance, text), timed


class TargetFormat:
    """The one way to write a moment in one locale."""

    def __init__(self, place: Any) -> None:
        self.full, self.long = (spelling(place.date_formats[size], place) for size in ("full", "long"))
        self.time = spelling(place.time_formats["short"], place)
        self.joint = str(place.datetime_formats["medium"])

    def spell(self, moment: datetime.datetime, weekday: bool, timed: bool) -> str:
        text = self.full(moment) if weekday else self.long(moment)
        return joined(self.joint, text, self.time(moment)) if timed else text


def spelling(pattern: Any, place: Any) -> Form:
    return lambda moment: pattern.apply(moment, place)


def names_weekday(pattern: Any) -> bool:
    return "%(E" in pattern.format or "%(c" in pattern.format  # in a sentence, or standing alone


def joined(joint: str, date: str, time: str) -> str:
    return joint.replace("'", "").replace("{1}", date).replace("{0}", time)


def clear(patterns: list[Any], place: Any, probes: list[datetime.datetime]) -> list[Any]:
    """The patterns under which no two of these moments look alike, in any case and under any pattern kept before."""
    kept, seen = [], dict[str, datetime.datetime]()
    for pattern in patterns:
        texts = {moment: pattern.apply(moment, place) for moment in probes}
        looks = [(look, moment) for moment, text in texts.items() for look in {text, text.upper(), text.lower()}]
        mine = dict(looks)
        if all(mine[look] == moment == seen.get(look, moment) for look, moment in looks):
            kept.append(pattern)
            seen |= mine
    return kept


def probes_of_dates() -> list[datetime.datetime]:
    """Every day and month that could be taken for each other, and years that differ in one place."""
    days = [(2021, month, day) for month in range(1, 13) for day in range(1, 13)]
    return [datetime.datetime(*day) for day in [*days, (1921, 3, 5), (2012, 3, 5), (2031, 3, 5), (2021, 3, 31)]]


def probes_of_times() -> list[datetime.datetime]:
    return [datetime.datetime(2021, 3, 5, hour, minute, 30) for hour in range(24) for minute in (0, 5, 12, 50)]


def locale(name: str) -> Any:
    """Babel's locale of this name, written en_GB or en-GB."""
    from babel import Locale, UnknownLocaleError
    from babel.localedata import locale_identifiers

    try:
        return Locale.parse(name.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        close = difflib.get_close_matches(name, locale_identifiers(), n=3, cutoff=0.5)
        offer = f"; nearest are {', '.join(close)}" if close else "; en, de, fr, ja and a thousand others are"
        raise UserError(f"data.locales: {name!r} is not a locale that Babel knows{offer}") from error
