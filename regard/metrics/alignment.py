"""How well word alignments agree with those of annotators."""

from collections.abc import Iterable

from ..alignment.links import Links


def alignment_metrics(sentences: Iterable[tuple[Links, Links, Links]]) -> dict[str, float]:
    """Precision, recall and alignment error rate (Och and Ney, 2003); each sentence has found, sure and possible links.

    Sure links are possible, too.
    """
    links = right = sure_links = found_sure = 0
    for found, sure, possible in sentences:
        links += len(found)
        right += len(found & possible)
        sure_links += len(sure)
        found_sure += len(found & sure)
    return {
        "precision": right / max(links, 1),
        "recall": found_sure / max(sure_links, 1),
        "aer": 1 - (right + found_sure) / max(links + sure_links, 1),
    }
