"""Links between the words of two sentences: symmetrization and the Pharaoh format."""

import re
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, get_args

from ..errors import UserError

Link: TypeAlias = tuple[int, int]  # a source word and a target word, from 0
Links: TypeAlias = frozenset[Link]
Symmetrization: TypeAlias = Literal["grow-diag-final-and", "intersect", "union", "forward", "reverse"]

PHARAOH = re.compile(r"(\d+)([-?p])(\d+)")  # sure links have a hyphen, possible ones ? or p
NEIGHBORS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def format_pharaoh(links: Iterable[Link]) -> str:
    """Links in Pharaoh format, such as "0-0 1-2"."""
    return " ".join(f"{i}-{j}" for i, j in sorted(links))


def parse_pharaoh(line: str, place: str) -> tuple[Links, Links]:
    """The sure and the possible links of a line; sure links are possible, too. `place` is for error messages."""
    sure, possible = set[Link](), set[Link]()
    for word in line.split():
        if (match := PHARAOH.fullmatch(word)) is None:
            raise UserError(f"{place} has {word!r:.40}; expected links such as 0-0 1-2, or 1?2 for a possible one")
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return frozenset(sure), frozenset(possible)


def check_symmetrization(name: str) -> Symmetrization:
    """The kind of symmetrization, or a UserError for another name."""
    for kind in get_args(Symmetrization):
        if name == kind:
            return name  # type: ignore[return-value]
    raise UserError(f"--symmetrize is {name!r}; expected one of {', '.join(get_args(Symmetrization))}")


def symmetrize(forward: Links, reverse: Links, kind: Symmetrization) -> Links:
    """One alignment from those of both directions; `forward` has at most one source word for every target word."""
    return SYMMETRIZE[kind](forward, reverse)


def grow_diag_final_and(forward: Links, reverse: Links) -> Links:
    """Koehn's heuristic (2003): grow the intersection through its neighbors, then connect words that have no link."""
    links, union = set(forward & reverse), forward | reverse
    sources, targets = {i for i, _ in links}, {j for _, j in links}
    todo = sorted(links)
    while todo:
        grown = []
        for i, j in todo:
            for step in NEIGHBORS:
                link = i + step[0], j + step[1]
                if link in union and link not in links and (link[0] not in sources or link[1] not in targets):
                    _add(link, links, sources, targets)
                    grown.append(link)
        todo = grown
    for direction in (forward, reverse):
        for link in sorted(direction):
            if link[0] not in sources and link[1] not in targets:
                _add(link, links, sources, targets)
    return frozenset(links)


def _add(link: Link, links: set[Link], sources: set[int], targets: set[int]) -> None:
    links.add(link)
    sources.add(link[0])
    targets.add(link[1])


SYMMETRIZE: dict[str, Callable[[Links, Links], Links]] = {
    "grow-diag-final-and": grow_diag_final_and,
    "intersect": lambda forward, reverse: forward & reverse,
    "union": lambda forward, reverse: forward | reverse,
    "forward": lambda forward, reverse: forward,
    "reverse": lambda forward, reverse: reverse,
}
