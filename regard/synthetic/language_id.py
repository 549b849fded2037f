"""Embedded data for classification: the language in which a date is written. Many languages are closely related."""

import datetime
import random
from collections import Counter
from collections.abc import Sequence

from ..data.source import InMemorySource
from ..errors import UserError
from .dates import DateFormat, SourceFormats, dates_by_split, locale, random_time

LOCALES = (
    "da", "nb", "sv", "is", "de", "nl", "af", "lb", "en", "es", "pt", "gl", "ca", "it", "fr", "ro",
    "cs", "sk", "pl", "sl", "hr", "et", "fi", "hu", "tr", "az", "id", "ms",
)  # fmt: skip

DistinctiveFormats = dict[tuple[int, int], list[DateFormat]]  # (weekday, month) -> formats of one language only


def make_phrases(locales: Sequence[str], examples: int, seed: int) -> dict[str, InMemorySource]:
    """Phrases and their languages, for train, valid and test. No date is in two splits.

    No phrase could be of two languages: the label is a function of the phrase.
    """
    locales = locales or LOCALES
    if len(set(locales)) < 2:
        raise UserError(f"data.locales={','.join(locales)} names one language; expected two or more to tell apart")
    sources = {name: SourceFormats(locale(name)) for name in dict.fromkeys(locales)}
    formats = {name: distinctive for name, distinctive in distinctive_formats(sources).items() if distinctive}
    if missing := [name for name in sources if name not in formats]:
        raise UserError(f"data.locales: {missing[0]} writes every date like another language of these; leave it out")
    splits = {}
    for split, dates in dates_by_split(examples, seed).items():
        rng = random.Random(f"phrases {split} {seed if split == 'train' else 0}")
        phrases = [make_phrase(rng, day, sources, formats) for day in dates]
        splits[split] = InMemorySource(f"embedded {split} phrases", phrases)
    return splits


def make_phrase(
    rng: random.Random,
    day: datetime.date,
    sources: dict[str, SourceFormats],
    formats: dict[str, DistinctiveFormats],
) -> tuple[str, str]:
    """The day in a random language among those that write it distinctively, and this language."""
    able = [name for name in formats if (day.weekday(), day.month) in formats[name]]
    name = rng.choice(able)
    date_format = rng.choice(formats[name][day.weekday(), day.month])
    return sources[name].write(rng, random_time(rng, day), date_format)[0], name


def distinctive_formats(sources: dict[str, SourceFormats]) -> dict[str, DistinctiveFormats]:
    """The formats that write a date of some weekday and month like no other language, in any case.

    They are compared on days of two digits, where languages look most alike.
    """
    formats: dict[str, DistinctiveFormats] = {name: {} for name in sources}
    for day in (datetime.datetime(2021, month, first) for month in range(1, 13) for first in range(15, 22)):
        looks = {name: [write(day).casefold() for write, _ in source.dates] for name, source in sources.items()}
        languages = Counter(look for texts in looks.values() for look in set(texts))
        for name, source in sources.items():
            writers = [
                write for (write, _), look in zip(source.dates, looks[name], strict=True) if languages[look] == 1
            ]
            if writers:
                formats[name][day.weekday(), day.month] = writers
    return formats
