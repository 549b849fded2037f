"""Metrics of predicted numbers: squared error and its root, absolute error, Pearson's and Spearman's correlation."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def regression_metrics(predicted: Sequence[float], gold: Sequence[float]) -> dict[str, float]:
    """The errors, and the correlations where they exist: numbers that are all equal correlate with nothing."""
    ours, theirs = np.array(predicted, np.float64), np.array(gold, np.float64)
    mse = float(np.mean((ours - theirs) ** 2))
    metrics = {"mse": mse, "rmse": mse**0.5, "mae": float(np.mean(np.abs(ours - theirs)))}
    if np.ptp(ours) > 0 and np.ptp(theirs) > 0:
        metrics |= {"pearson": _pearson(ours, theirs), "spearman": _pearson(ranks(ours), ranks(theirs))}
    return metrics


def _pearson(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value from 1; equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse]
    return means
