"""The IBM model against plain loops, symmetrization, the error rate, and the gold links of the embedded dates."""

import math
import random

import numpy as np
import pytest
from scipy.special import digamma

from regard.alignment import ibm
from regard.alignment.ibm import DiagonalAligner, align_words, read_word_ids
from regard.alignment.links import SYMMETRIZE, format_pharaoh, parse_pharaoh, symmetrize
from regard.metrics.alignment import alignment_metrics
from regard.synthetic.dates import gold_alignments, make_dates

WORDS = {"the": "das", "house": "haus", "book": "buch", "red": "rote", "is": "ist", "old": "alt", "a": "ein"}


def pairs(count: int) -> list[tuple[str, str]]:
    rng = random.Random(1)
    sources = [rng.choices(list(WORDS), k=rng.randint(1, 7)) for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[word] for word in words)) for words in sources]


def plain_em(texts: list[tuple[str, str]], iterations: int, alpha: float) -> tuple[dict, float, list[float]]:
    """The same model with loops over words: its table, its tension and its cross-entropies."""
    vocabulary = {word for _, target in texts for word in target.split()}
    table = {
        (s, t): 1 / len(vocabulary) for source, target in texts for s in [None, *source.split()] for t in target.split()
    }
    tension, history = 4.0, []
    for _ in range(iterations):
        counts, bits, words = dict.fromkeys(table, 0.0), 0.0, 0
        observed = expected = variance = 0.0
        for source, target in ((source.split(), target.split()) for source, target in texts):
            for j, word in enumerate(target):
                features = [-abs((i + 1) / len(source) - (j + 1) / len(target)) for i in range(len(source))]
                weights = [math.exp(tension * each) for each in features]
                shares = [each / sum(weights) for each in weights]
                joint = [0.08 * table[None, word]]
                joint += [0.92 * share * table[s, word] for share, s in zip(shares, source, strict=True)]
                bits, words = bits - math.log2(sum(joint)), words + 1
                for s, each in zip([None, *source], joint, strict=True):
                    counts[s, word] += each / sum(joint)
                mean = sum(share * each for share, each in zip(shares, features, strict=True))
                aligned = 1 - joint[0] / sum(joint)
                observed += sum(each * f for each, f in zip(joint[1:], features, strict=True)) / sum(joint)
                expected += aligned * mean
                variance += aligned * (sum(p * f * f for p, f in zip(shares, features, strict=True)) - mean**2)
        history.append(bits / words)
        totals = {s: sum(n + alpha for (other, _), n in counts.items() if other == s) for s, _ in table}
        table = {
            key: math.exp(digamma(n + alpha) - digamma(totals[key[0]])) if alpha else n / totals[key[0]]
            for key, n in counts.items()
        }
        tension = min(max(tension + (observed - expected) / variance, 0.1), 14.0)
    return table, tension, history


@pytest.mark.parametrize("alpha", [0.0, 0.01])
@pytest.mark.parametrize("cells", [1, 37, 1 << 20])
def test_the_model_equals_plain_loops(alpha: float, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with blocks that hold one target word, or parts of sentences."""
    monkeypatch.setattr(ibm, "CELLS", cells)
    texts = pairs(25)
    aligner = DiagonalAligner(*read_word_ids(texts), alpha=alpha)
    found = list(aligner.fit(4))
    table, tension, history = plain_em(texts, 4, alpha)
    assert np.allclose(found, history) and np.isclose(aligner.tension, tension)
    assert np.allclose(sorted(aligner.table), sorted(table.values()))


def test_likelihood_never_falls() -> None:
    """That of EM without a Dirichlet prior."""
    bits = list(DiagonalAligner(*read_word_ids(pairs(60)), alpha=0.0).fit(12))
    assert all(after <= before + 1e-9 for before, after in zip(bits, bits[1:], strict=False))


@pytest.mark.parametrize("kind", SYMMETRIZE)
def test_words_find_their_translations(kind: str) -> None:
    texts = pairs(300)
    found = list(align_words(texts, kind))  # type: ignore[arg-type]
    gold = [frozenset((i, i) for i in range(len(source.split()))) for source, _ in texts]
    assert alignment_metrics(zip(found, gold, gold, strict=True))["aer"] < 0.02


def test_empty_sentences_have_no_links() -> None:
    texts = [("", "das haus"), ("the house", ""), ("", ""), *pairs(50)]
    found = list(align_words(texts))
    assert found[:3] == [frozenset()] * 3 and len(found) == 53 and all(found[3:])
    assert list(align_words([])) == [] and list(align_words([("", ""), ("a", "")])) == [frozenset()] * 2


def test_grow_diag_final_and() -> None:
    """(0, 0) and (2, 2) agree; (1, 1) grows from them, and so does (2, 3); (5, 0) would connect an aligned word."""
    forward = frozenset({(0, 0), (1, 1), (2, 2), (2, 3), (4, 5)})
    reverse = frozenset({(0, 0), (2, 2), (5, 0)})
    assert format_pharaoh(symmetrize(forward, reverse, "grow-diag-final-and")) == "0-0 1-1 2-2 2-3 4-5"
    assert symmetrize(forward, reverse, "intersect") == {(0, 0), (2, 2)}
    assert symmetrize(forward, reverse, "union") == forward | reverse
    rng = random.Random(1)
    for _ in range(200):
        one, two = (frozenset((rng.randrange(6), rng.randrange(6)) for _ in range(6)) for _ in range(2))
        assert one & two <= symmetrize(one, two, "grow-diag-final-and") <= one | two


def test_error_rate_knows_sure_and_possible_links() -> None:
    sure, possible = parse_pharaoh("0-0 1?1 2p2 3-3", "gold:1")
    assert sure == {(0, 0), (3, 3)} and possible == {(0, 0), (1, 1), (2, 2), (3, 3)}
    metrics = alignment_metrics([(frozenset({(0, 0), (1, 1), (4, 4)}), sure, possible)])
    assert metrics == {"precision": pytest.approx(2 / 3), "recall": 0.5, "aer": pytest.approx(1 - 3 / 5)}
    assert alignment_metrics([]) == {"precision": 0.0, "recall": 0.0, "aer": 1.0}


@pytest.mark.parametrize("locales", [("en", "de"), ("ja", "en"), ("es", "fr")])
def test_gold_links_connect_fields(locales: tuple[str, str]) -> None:
    dates, gold = make_dates(locales, 300, 1), gold_alignments(locales, 300, 1)
    for split in dates:
        assert len(gold[split]) == len(dates[split])
        for (source, target), links in zip(dates[split], gold[split], strict=True):
            words = source.split(), target.split()
            assert links and all(i < len(words[0]) and j < len(words[1]) for i, j in links)
            if locales == ("en", "de"):
                year = next(word for word in words[1] if len(word.strip(",")) == 4 and word[:4].isdecimal())
                (linked,) = {words[0][i] for i, j in links if words[1][j] == year}
                assert linked.strip(",.!;") == year.strip(",")
                assert {i for i, _ in links} == set(range(len(words[0])))  # every English word is part of a field


def test_error_rate_on_dates() -> None:
    """The figure of docs/parallel.md is for 20,000 training pairs."""
    dates, gold = make_dates(("en", "de"), 3000, 1), gold_alignments(("en", "de"), 3000, 1)["test"]
    found = list(align_words([*dates["train"], *dates["test"]]))[-len(gold) :]
    assert alignment_metrics(zip(found, gold, gold, strict=True))["aer"] < 0.12
