"""Embedded data for text to text: dates into several languages, and the language of a date, as one mixture."""

from ..config.data.texts import MixData
from ..data.source import Source
from ..data.sources.mixture import Mixture
from ..errors import UserError
from .dates import make_dates
from .language_id import make_phrases


def make_mixture(data: MixData, split: str) -> Mixture:
    """The train, valid or test split of the embedded tasks."""
    source, *targets = data.locales
    if not targets:
        raise UserError(f"data.locales={source} names one language; expected the source's and at least one target's")
    each = max(data.examples // (len(targets) + 1), 1)
    tasks: list[tuple[str, Source]] = [
        (f"to {target}: ", make_dates((source, target), each, seed=1)[split]) for target in targets
    ]
    tasks.append(("language: ", make_phrases((), each, seed=1)[split]))
    return Mixture(tasks, data.weights)
