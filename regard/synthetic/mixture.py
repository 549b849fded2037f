"""Embedded mixtures: dates into several languages for text to text; dates, scenes and Morse code for multitask."""

from collections.abc import Callable

from ..config.data.mixed import MultitaskData
from ..config.data.texts import MixData
from ..data.source import Source
from ..data.sources.manifest import AUDIO, IMAGE, TEXT, SourceTag
from ..data.sources.mixture import Mixture
from ..data.sources.task_mixture import TaggedSource
from ..errors import UserError
from .captions import make_captions
from .dates import make_dates
from .language_id import make_phrases
from .morse import make_drills


def make_mixture(data: MixData, split: str) -> Mixture:
    """The train, valid or test split of the embedded tasks."""
    source, *targets = data.locales
    if not targets:
        raise UserError(f"data.locales={source} names one language; expected the source's and at least one target's")
    per_task = max(data.examples // (len(targets) + 1), 1)
    tasks: list[tuple[str, Source]] = [
        (f"to {target}: ", make_dates((source, target), per_task, seed=1)[split]) for target in targets
    ]
    tasks.append(("language: ", make_phrases((), per_task, seed=1)[split]))
    return Mixture(tasks, data.weights)


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
    return TaggedSource([(SourceTag(modality, name), make()) for name, modality, make in chosen])
