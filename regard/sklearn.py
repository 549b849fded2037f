"""A text classifier with the interface of scikit-learn: it works in pipelines, cross-validation and grid search."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .config.merge import Settings
from .errors import UserError

if TYPE_CHECKING:
    from .tasks.classify.task import ClassifyPredictor

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.exceptions import NotFittedError
except ImportError as error:
    raise UserError("regard.sklearn needs scikit-learn; install it with: pip install 'regard[sklearn]'") from error


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Texts in, labels out. `X` is a list, array or column of texts; labels may be of any type.

    Settings that are None are those of the recipe. `settings` has any others, by dotted key. Nothing is left on disk;
    `predictor_.save(folder)` keeps a run.
    """

    def __init__(
        self,
        recipe: str = "classify",
        *,
        size: str | None = None,
        lr: float | None = None,
        steps: int | None = None,
        epochs: int | None = None,
        seed: int = 1,
        settings: Settings | None = None,
    ) -> None:
        self.recipe, self.size, self.lr, self.steps, self.epochs = recipe, size, lr, steps, epochs
        self.seed, self.settings = seed, settings

    def fit(self, X: Iterable[str], y: Iterable[Any]) -> "Classifier":
        """Train on texts and their labels."""
        from .api import train

        texts, labels = list(X), np.asarray(list(y))
        if len(texts) != len(labels):
            raise UserError(f"there are {len(texts)} texts and {len(labels)} labels; give one label for each text")
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(f"all {len(labels)} texts have the same label; a classifier needs at least two")
        named = {"model.size": self.size, "train.lr": self.lr, "train.steps": self.steps, "train.epochs": self.epochs}
        changed = {key: value for key, value in named.items() if value is not None}
        changes = {"train.tensorboard": False, "train.seed": self.seed, **changed, **(self.settings or {})}
        examples = [(text, _name(number)) for text, number in zip(texts, numbers.tolist(), strict=True)]
        with tempfile.TemporaryDirectory(prefix="regard-") as folder:
            predictor: Any = train(self.recipe, changes, out=Path(folder) / "run", data={"train": examples})
        if predictor is None:
            raise KeyboardInterrupt
        predictor.folder_of_run = None
        self.predictor_: ClassifyPredictor = predictor
        return self

    def predict_proba(self, X: Iterable[str]) -> np.ndarray:
        """The probabilities (texts, classes), in the order of `classes_`."""
        if not hasattr(self, "predictor_"):
            raise NotFittedError("this Classifier is not fitted; call fit first")
        ids, texts = self.predictor_.labels.ids, list(X)
        order: Sequence[int] = [ids[_name(number)] for number in range(len(self.classes_))]
        probabilities: np.ndarray = self.predictor_.outputs((text,) for text in texts).exp().numpy()[:, order]
        return probabilities

    def predict(self, X: Iterable[str]) -> np.ndarray:
        """The likeliest label of every text."""
        probabilities = self.predict_proba(X)
        labels: np.ndarray = self.classes_[probabilities.argmax(1)]
        return labels


def _name(number: int) -> str:
    """The label of a class in the run: a number, so that labels of any type are possible."""
    return f"class-{number}"
