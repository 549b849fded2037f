"""Agreement of word alignments with those of annotators."""

from collections.abc import Iterable

from ..alignment.links import Links


def alignment_metrics(sentences: Iterable[tuple[Links, Links, Links]]) -> dict[str, float]:
    """Precision, recall and alignment error rate (Och and Ney, 2003).

    Each sentence has predicted, sure and possible links. Sure links are possible, too.
    """
    links = right = sure_links = predicted_sure = 0
    for predicted, sure, possible in sentences:
        links += len(predicted)
        right += len(predicted & possible)
        sure_links += len(sure)
        predicted_sure += len(predicted & sure)
    return {
        "precision": right / max(links, 1),
        "recall": predicted_sure / max(sure_links, 1),
        "aer": 1 - (right + predicted_sure) / max(links + sure_links, 1),
    }
