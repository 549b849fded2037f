"""New texts from pieces of known ones, for a teacher to translate: its students then learn from more texts."""

import random
from collections import defaultdict
from collections.abc import Sequence

TRIES = 20  # for every text that is wanted
COMMON = 5  # places that a pair of words must have
SHORTEST = 6  # words of a text that is cut


def splice_texts(texts: Sequence[str], count: int, seed: int = 1) -> list[str]:
    """Up to `count` different new texts: the beginning of one text and the end of another, which share two words.

    "A man is riding a horse." and "A girl is riding a bicycle." give "A man is riding a bicycle." Words are what white
    space separates. The lengths of new texts are those of the given ones, but for the extreme 1 %.
    """
    rows = [text.split() for text in texts]
    known = {tuple(row) for row in rows}
    places: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for number, row in enumerate(rows):
        for place in range(1, len(row) - 2):
            places[row[place], row[place + 1]].append((number, place))
    lengths = sorted(map(len, rows))
    shortest, longest = (lengths[int(share * len(lengths))] if lengths else 0 for share in (0.005, 0.995))
    draw, found = random.Random(seed), list[str]()
    for _ in range(TRIES * count if rows else 0):
        if len(found) == count:
            break
        number = draw.randrange(len(rows))
        row = rows[number]
        if len(row) < SHORTEST:
            continue
        cut = draw.randrange(1, len(row) - 2)
        shared = places[row[cut], row[cut + 1]]
        if len(shared) < COMMON:
            continue
        other, place = draw.choice(shared)
        new = row[:cut] + rows[other][place:]
        if other != number and shortest <= len(new) <= longest and tuple(new) not in known:
            known.add(tuple(new))
            found.append(" ".join(new))
    return found
