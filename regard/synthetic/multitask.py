"""Embedded data of three kinds: dates in another language, scenes with a sentence, Morse code with its text."""

from collections.abc import Callable

from ..config.multitask import MultitaskData
from ..data.examples import Examples
from ..data.manifest import AUDIO, IMAGE, TEXT, SourceTag
from ..data.task_mixture import TaggedExamples
from .captions import make_captions
from .dates import make_dates
from .morse import make_drills

LOCALES = ("en", "de")  # of the dates


def make_multitask(data: MultitaskData, split: str) -> Examples:
    """The train, valid or test split of the sources in data.sources."""
    sources: dict[str, tuple[str, Callable[[], Examples]]] = {
        "dates": (TEXT, lambda: make_dates(LOCALES, data.examples, seed=1)[split]),
        "scenes": (IMAGE, lambda: make_captions(data.examples, data.shapes)[split]),
        "morse": (AUDIO, lambda: make_drills(data.examples)[split]),
    }
    chosen = [(name, *sources[name]) for name in data.sources]
    return TaggedExamples([(SourceTag(kind, name), make()) for name, kind, make in chosen])
