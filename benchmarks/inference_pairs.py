"""`python -m benchmarks.inference_pairs FOLDER`: made-up pairs of a premise and a hypothesis, as tables.

A hypothesis follows from its premise (entailment), may be true (neutral) or is false (contradiction). As in sets that
people wrote, each premise has a hypothesis of every label, and a few words give most labels away: a denial, a purpose.
In the other pairs the label depends on both texts: a number, a color or a person is that of the premise or another.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


def words(text: str) -> list[str]:
    """The words between spaces."""
    return text.split()


LABELS = ("entailment", "neutral", "contradiction")
BORDERS = 0.7, 0.8  # shares of the pairs where train and dev end
RELATIONAL = 0.1

PEOPLE = words("""
Ada Ahmed Aiko Albert Alice Amara Anna Anton Astrid Bruno Carla Cem Chen Clara Daniel Diego Dora Edith Elif Emil
Erik Esther Farid Felix Fiona Frida Georg Greta Hannah Hugo Ida Igor Ines Ivan Jack Jana Jonas Julia Kamal Karin
Kofi Laura Lea Leo Lina Lucas Luisa Magnus Maria Marta Max Mei Mila Nadia Nils Nina Noah Nora Olga Omar Oscar Paula
Pedro Petra Priya Quentin Rafael Raja Rita Robin Rosa Ruth Samir Sara Selma Simon Sofia Sven Tara Theo Tina Tom Ulla
Uma Vera Victor Wanda Yara Yusuf Zara Zoe
""")
THINGS = words("""
apples baskets bells belts blankets boats books bottles bowls boxes bricks brushes buckets buttons candles carpets
chairs clocks coats cups curtains dolls doors drums envelopes fans flags flutes forks glasses gloves guitars hammers
hats helmets jackets jars kettles keys kites knives ladders lamps lanterns letters magnets maps masks mirrors mugs
needles nets notebooks paddles paintings pans pears pencils pianos pillows pipes plates pots puppets purses radios
ribbons ropes rugs saddles scarves shelves shirts shoes shovels socks sofas spoons stamps stools stoves tables tents
tiles towels toys trays trumpets umbrellas vases violins wallets watches whistles windows
""")
CITIES = words("""
Athens Basel Berlin Bogota Boston Cairo Chicago Cologne Delhi Dublin Geneva Glasgow Hanoi Havana Helsinki Istanbul
Jakarta Kiev Krakow Kyoto Lagos Leipzig Lima Lisbon London Lyon Madrid Manila Milan Montreal Nairobi Naples Osaka
Oslo Paris Porto Prague Quito Riga Rome Seoul Seville Sofia Tallinn Tokyo Toronto Tunis Turin Vienna Warsaw Zurich
""")
COLORS = words("red blue green yellow black white brown orange purple gray pink silver")
NUMBERS = words("two three four five six seven eight nine ten eleven twelve twenty")
ACTIONS = {"bought": "buy", "sold": "sell", "found": "find", "lost": "lose", "painted": "paint", "repaired": "repair",
           "counted": "count", "borrowed": "borrow", "packed": "pack", "cleaned": "clean"}  # fmt: skip
NEUTRAL = (
    "for a friend", "because of the weather", "to surprise a neighbor", "before breakfast", "with great joy",
    "after a long discussion", "on the way to a wedding", "for the first time in years",
)  # fmt: skip


class Pair(NamedTuple):
    """Two texts and their label."""

    premise: str
    hypothesis: str
    label: str


class Facts(NamedTuple):
    """What a premise says."""

    who: str
    did: str
    number: str
    color: str
    things: str
    city: str

    @classmethod
    def drawn(cls, draw: random.Random) -> "Facts":
        return cls(*(draw.choice(list(choices)) for choices in (PEOPLE, ACTIONS, NUMBERS, COLORS, THINGS, CITIES)))

    @property
    def sentence(self) -> str:
        return f"{self.who} {self.did} {self.number} {self.color} {self.things} in {self.city}."

    def hypothesis(self, draw: random.Random, label: str, relational: float) -> str:
        """A hypothesis with this label. With the probability `relational`, only both texts tell the label."""
        who, did, number, color, things, city = self
        statement = draw.choice(
            [
                f"{who} {did} {number} {things}",
                f"{who} {did} {color} {things}",
                f"{who} {did} {things} in {city}",
                f"{who} {did} {number} {color} {things}",
            ]
        )
        if label == "neutral":
            return f"{statement} {draw.choice(NEUTRAL)}."
        if label == "entailment":
            return f"{statement}."
        if draw.random() < relational:
            name, choices = draw.choice([("number", NUMBERS), ("color", COLORS), ("who", PEOPLE)])
            other = draw.choice([word for word in choices if word != getattr(self, name)])
            who, _, number, color, *_ = self._replace(**{name: other})
            return f"{who} {did} {number} {color} {things}."
        return draw.choice(
            [f"{who} did not {ACTIONS[did]} {things} in {city}.", f"Nobody {did} {color} {things}.",
             f"{who} has never been in {city}."]
        )  # fmt: skip


def make_pairs(count: int = 3600, seed: int = 1, relational: float = RELATIONAL) -> list[Pair]:
    """Pairs in the order of their premises, which are all different."""
    draw, premises = random.Random(seed), dict[Facts, None]()
    while len(premises) * len(LABELS) < count:
        premises[Facts.drawn(draw)] = None
    pairs = [
        Pair(facts.sentence, facts.hypothesis(draw, label, relational), label)
        for facts in premises
        for label in draw.sample(LABELS, len(LABELS))
    ]
    return pairs[:count]


def split_pairs(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The pairs of train, dev and test. No premise is in two of them."""
    train, dev = (round(share * len(pairs) / len(LABELS)) * len(LABELS) for share in BORDERS)
    return {"train": list(pairs[:train]), "dev": list(pairs[train:dev]), "test": list(pairs[dev:])}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inference_pairs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="where train.tsv, dev.tsv and test.tsv are written")
    parser.add_argument("--count", type=int, default=3600, help="pairs of all three files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--relational", type=float, default=RELATIONAL, help="share of contradictions without a denial")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in split_pairs(make_pairs(options.count, options.seed, options.relational)).items():
        lines = ["\t".join(row) + "\n" for row in (Pair._fields, *pairs)]
        (options.folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
