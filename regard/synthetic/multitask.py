"""Embedded data of three kinds: dates in another language, scenes with a sentence, Morse code with its text."""

from collections.abc import Callable

from ..config.data.mixed import MultitaskData
from ..data.source import Source
from ..data.sources.manifest import AUDIO, IMAGE, TEXT, SourceTag
from ..data.sources.task_mixture import TaggedSource
from .captions import make_captions
from .dates import make_dates
from .morse import make_drills

LOCALES = ("en", "de")  # of the dates
SHARES = {"dates": 1.5, "scenes": 1.0, "morse": 2.5}  # examples of each source, in data.examples


def make_multitask(data: MultitaskData, split: str) -> Source:
    """The train, valid or test split of the sources in data.sources."""
    counts = {name: round(share * data.examples) for name, share in SHARES.items()}
    sources: dict[str, tuple[str, Callable[[], Source]]] = {
        "dates": (TEXT, lambda: make_dates(LOCALES, counts["dates"], seed=1)[split]),
        "scenes": (IMAGE, lambda: make_captions(counts["scenes"], data.shapes)[split]),
        "morse": (AUDIO, lambda: make_drills(counts["morse"])[split]),
    }
    chosen = [(name, *sources[name]) for name in data.sources]
    return TaggedSource([(SourceTag(kind, name), make()) for name, kind, make in chosen])
