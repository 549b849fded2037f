"""A bag-of-words baseline: TF-IDF of words and pairs of words, and a linear model that scikit-learn fits.

The features are those of its TfidfVectorizer(ngram_range=(1, 2)). A stored baseline predicts without it.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WORD = re.compile(r"\b\w\w+\b")
SEPARATOR = "\n"  # of the n-grams in a file; no word has one
MAX_FEATURES = 200_000  # the n-grams of the most texts
MAX_WEIGHTS = 20_000_000  # features times labels; more labels have fewer features

Array: TypeAlias = NDArray[np.float64]
Target: TypeAlias = str | Sequence[str] | float  # a label, labels, or a number
ProblemType: TypeAlias = Literal["single_label", "multi_label", "regression"]


def ngrams(text: str) -> list[str]:
    """The words of a text in lower case, and its pairs of neighboring words."""
    words = WORD.findall(text.lower())
    return words + [f"{first} {second}" for first, second in zip(words, words[1:], strict=False)]


class Tfidf:
    """Term frequency times inverse document frequency, in rows of length 1."""

    def __init__(self, vocabulary: Sequence[str], idf: NDArray[np.float32]) -> None:
        self.vocabulary, self.idf = list(vocabulary), idf
        self.ids = {term: number for number, term in enumerate(self.vocabulary)}

    @classmethod
    def of(cls, texts: Sequence[str], most: int = MAX_FEATURES) -> Self:
        """The terms of these texts; of more than `most`, those that the most texts have."""
        counts = Counter[str]()
        for text in texts:
            counts.update(set(ngrams(text)))
        terms = sorted(counts)
        if len(terms) > most:
            terms = sorted(sorted(terms, key=lambda term: -counts[term])[:most])
        frequency = np.array([counts[term] for term in terms], np.float64)
        return cls(terms, (np.log((1 + len(texts)) / (1 + frequency)) + 1).astype(np.float32))

    def rows(self, texts: Sequence[str]) -> "csr_matrix":
        """(texts, terms), a sparse matrix."""
        from scipy.sparse import csr_matrix

        columns, values, ends = list[int](), list[int](), [0]
        for text in texts:
            counts = Counter(self.ids[term] for term in ngrams(text) if term in self.ids)
            columns += counts.keys()
            values += counts.values()
            ends.append(len(columns))
        index = np.array(columns, np.int64)
        weights = np.array(values, np.float64) * self.idf[index]
        row = np.repeat(np.arange(len(texts)), np.diff(ends))
        lengths = np.sqrt(np.bincount(row, weights**2, minlength=len(texts)))
        return csr_matrix((weights / lengths[row], index, ends), (len(texts), len(self.vocabulary)))


@dataclass(frozen=True)
class LinearModel:
    """Scores of rows: x · weights + bias."""

    weights: Array  # (features, outputs)
    bias: Array

    def scores(self, rows: "csr_matrix") -> Array:
        scores: Array = rows @ self.weights + self.bias
        return scores


def fit_linear(rows: "csr_matrix", targets: NDArray[np.integer] | Array, problem: ProblemType, c: float) -> LinearModel:
    """Minimize c · Σ loss + |weights|² / 2.

    `targets` are class numbers of three or more classes, else (examples, outputs): 0 and 1, or numbers.
    """
    columns = [targets] if targets.ndim == 1 else list(targets.T)
    fits = [_fit_one(rows, column, problem, c) for column in columns]
    weights, bias = (list(parts) for parts in zip(*fits, strict=True)) if fits else ([], [])
    return LinearModel(np.hstack([np.zeros((rows.shape[1], 0)), *weights]), np.hstack([np.zeros(0), *bias]))


def _fit_one(rows: "csr_matrix", targets: NDArray[Any], problem: ProblemType, c: float) -> tuple[Array, Array]:
    """The weights (features, outputs) and biases."""
    from scipy.sparse import csr_matrix
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    features = rows.shape[1]
    if problem == "regression":
        model = Ridge(alpha=1 / c)
    elif len(np.unique(targets)) == 1:  # every text has this label
        return np.zeros((features, 1)), np.ones(1)
    else:
        model = LogisticRegression(C=c)
    rows = rows if features else csr_matrix((len(targets), 1))  # no text has a word
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of a baseline
        model.fit(rows, targets)
    return np.atleast_2d(model.coef_).T[:features], np.atleast_1d(model.intercept_)


# --- the baseline ----------------------------------------------------------------------------------------------------


class BagOfWords:
    """Predicts the target of a text from its words and pairs of words."""

    def __init__(self, kind: ProblemType, tfidf: Tfidf, model: LinearModel, labels: Sequence[str]) -> None:
        self.kind, self.tfidf, self.model, self.labels = kind, tfidf, model, list(labels)

    @classmethod
    def fits(
        cls, texts: Sequence[str], targets: Sequence[Target], problem: ProblemType, cs: Sequence[float]
    ) -> Iterator[Self]:
        """A fitted baseline for each inverse strength of regularization in `cs`.

        A target is a label, a sequence of labels, or a number.
        """
        labels, gold = _numbered(targets, problem)
        tfidf = Tfidf.of(texts, min(MAX_FEATURES, MAX_WEIGHTS // max(len(labels), 1)))
        rows = tfidf.rows(texts)
        for c in cs:
            yield cls(problem, tfidf, fit_linear(rows, gold, problem, c), labels)

    def predict(self, texts: Sequence[str]) -> list[Target]:
        """A label, a tuple of labels, or a number for each text."""
        scores = self.model.scores(self.tfidf.rows(texts))
        if self.kind == "regression":
            return [float(value) for value in scores[:, 0]]
        if self.kind == "multi_label":
            return [tuple(name for name, score in zip(self.labels, row, strict=True) if score > 0) for row in scores]
        best = scores.argmax(1) if scores.shape[1] > 1 else (scores > 0).sum(1)  # of a single label there are no scores
        return [self.labels[number] for number in best.tolist()]

    def save(self, path: Path) -> None:
        """Write one safetensors file, with weights in half precision."""
        from safetensors.numpy import save_file

        terms = np.frombuffer(SEPARATOR.join(self.tfidf.vocabulary).encode(), np.uint8)
        names = np.frombuffer("\0".join(self.labels).encode(), np.uint8)
        weights = {"weights": self.model.weights.astype(np.float16), "bias": self.model.bias.astype(np.float32)}
        tables: dict[str, Any] = {"terms": terms, "labels": names, "idf": self.tfidf.idf, **weights}
        save_file(tables, path, {"kind": self.kind})

    @classmethod
    def load(cls, path: Path) -> Self:
        from safetensors import safe_open

        with safe_open(path, "numpy") as file:
            tables = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 — it is no mapping
            kind: Any = file.metadata()["kind"]
        terms, labels = tables["terms"].tobytes().decode(), tables["labels"].tobytes().decode()
        tfidf = Tfidf(terms.split(SEPARATOR) if terms else [], tables["idf"])
        model = LinearModel(tables["weights"].astype(np.float64), tables["bias"].astype(np.float64))
        return cls(kind, tfidf, model, labels.split("\0") if labels else [])


def _numbered(targets: Sequence[Any], problem: ProblemType) -> tuple[list[str], NDArray[Any]]:
    """The labels, and the targets as `fit_linear` takes them."""
    if problem == "regression":
        return [], np.array(targets, np.float64)[:, None]
    label_sets = [(target,) if problem == "single_label" else target for target in targets]
    labels = sorted({label for label_set in label_sets for label in label_set})
    ids = {label: number for number, label in enumerate(labels)}
    if problem == "single_label" and len(labels) > 2:
        return labels, np.array([ids[label] for label in targets])
    gold = np.zeros((len(targets), len(labels)))
    for row, label_set in zip(gold, label_sets, strict=True):
        row[[ids[label] for label in label_set]] = 1
    return labels, gold[:, 1:] if problem == "single_label" else gold
