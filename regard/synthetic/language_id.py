"""Embedded data for classification: in which language is a date written? Many of them are close relatives."""

import datetime
import random
from collections import Counter
from collections.abc import Sequence

from ..errors import UserError
from .dates import Form, InMemoryExamples, SourceFormats, days, locale, some_time

LOCALES = (
    "da", "nb", "sv", "is", "de", "nl", "af", "lb", "en", "es", "pt", "gl", "ca", "it", "fr", "ro",
    "cs", "sk", "pl", "sl", "hr", "et", "fi", "hu", "tr", "az", "id", "ms",
)  # fmt: skip

Kinds = dict[tuple[int, int], list[Form]]  # (weekday, month) -> the forms that say which language it is


def make_phrases(locales: Sequence[str], examples: int, seed: int) -> dict[str, InMemoryExamples]:
    """Phrases and their languages, for train, valid and test. No date is in two of them, and no language is written
    like another: the phrase alone decides it."""
    locales = locales or LOCALES
    if len(set(locales)) < 2:
        raise UserError(
            f"data.locales={','.join(locales)} names one language, and two or more are needed to tell apart"
        )
    sources = {name: SourceFormats(locale(name)) for name in dict.fromkeys(locales)}
    kinds = {name: own for name, own in telling(sources).items() if own}
    if silent := [name for name in sources if name not in kinds]:
        raise UserError(f"data.locales: {silent[0]} writes every date like another language of these; leave it out")
    made = {}
    for part, some in days(examples, seed).items():
        chance = random.Random(f"phrases {part} {seed if part == 'train' else 0}")
        made[part] = InMemoryExamples(f"embedded {part} phrases", [phrase(chance, day, sources, kinds) for day in some])
    return made


def phrase(
    chance: random.Random, day: datetime.date, sources: dict[str, SourceFormats], kinds: dict[str, Kinds]
) -> tuple[str, str]:
    """A language that can be told on this day, and the day in it."""
    able = [name for name in kinds if (day.weekday(), day.month) in kinds[name]]
    name = chance.choice(able)
    form = chance.choice(kinds[name][day.weekday(), day.month])
    return sources[name].spell(chance, some_time(chance, day), form)[0], name


def telling(sources: dict[str, SourceFormats]) -> dict[str, Kinds]:
    """The forms in which a date of some weekday and month looks like that of no other language, in any case. The day of
    the month has two digits here, where they look most alike, and the same ones everywhere."""
    found: dict[str, Kinds] = {name: {} for name in sources}
    for day in (datetime.datetime(2021, month, first) for month in range(1, 13) for first in range(15, 22)):
        looks = {name: [form(day).casefold() for form, _ in source.dates] for name, source in sources.items()}
        among = Counter(look for own in looks.values() for look in set(own))
        for name, source in sources.items():
            forms = [form for (form, _), look in zip(source.dates, looks[name], strict=True) if among[look] == 1]
            if forms:
                found[name][day.weekday(), day.month] = forms
    return found
