"""Metrics over labelled answers: fractions in [0, 1], but the NLL (nats) and the Brier score (0 to 2).

``prob`` is the probability of each answer, ``right`` whether it was right; ``probs`` are the probabilities of all
classes, rows × classes, and ``labels`` the classes the rows are of.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _ultta

__all__ = ["adaptive_ece", "aurc", "detection", "ece", "mce", "quality", "reliability", "top1"]

#: Bins of a calibration error, unless told otherwise.
BINS = 15

Closed = Literal["left", "right"]


def quality(probs: ArrayLike, labels: ArrayLike, answers: ArrayLike | None = None) -> dict[str, float]:
    """Everything that is said about a classifier's answers.

    Gives top1, top5, class_recall, ece, ece_right, ece_adaptive, ece_class, mce, nll, brier and aurc. The answers
    are the most probable classes unless given.

    >>> found = quality([[0.75, 0.25], [0.75, 0.25]], [0, 1])
    >>> found["top1"], found["ece"]
    (0.5, 0.25)
    """
    rows = np.ascontiguousarray(_unmasked("probs", probs), dtype=np.float32)
    if rows.ndim != 2:
        raise ValueError(f"probs: expected rows × classes, got {rows.ndim} dimensions")
    if not np.isfinite(rows).all():
        row = int(np.argmin(np.isfinite(rows).all(axis=1)))
        raise ValueError(f"probs: expected finite values, got others in row {row}")
    chosen = rows.argmax(axis=1) if answers is None else answers
    found: dict[str, float] = json.loads(_ultta._quality(rows, _whole("answers", chosen), _whole("labels", labels)))
    return found


def top1(answers: ArrayLike, labels: ArrayLike) -> float:
    """Share of answers that were right.

    >>> top1([1, 2, 2, 0], [1, 2, 0, 0])
    0.75
    """
    answered, wanted = _whole("answers", answers), _whole("labels", labels)
    if len(answered) != len(wanted):
        raise ValueError(
            f"labels: expected {len(answered)}, got {len(wanted)}: {len(wanted)} labels, {len(answered)} answers"
        )
    return float((answered == wanted).mean()) if len(wanted) else 0.0


def ece(prob: ArrayLike, right: ArrayLike, bins: int = BINS, *, closed: Closed = "left") -> float:
    """Expected calibration error of the answered class, over bins of equal width.

    ``closed="left"`` bins are [lo, hi), as in netcal and torchmetrics; "right" ones (lo, hi].

    >>> round(ece([0.55, 0.55, 0.60, 0.90], [False, False, True, True], bins=3), 3)
    0.2
    """
    return float(_bins(prob, right, bins, closed)["ece"])


def mce(prob: ArrayLike, right: ArrayLike, bins: int = BINS, *, closed: Closed = "left") -> float:
    """Largest gap of a bin.

    >>> round(mce([0.55, 0.55, 0.60, 0.90], [False, False, True, True], bins=3), 3)
    0.233
    """
    return float(_bins(prob, right, bins, closed)["mce"])


def adaptive_ece(prob: ArrayLike, right: ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error over bins of equal mass.

    >>> round(adaptive_ece([0.5, 0.7, 0.8, 1.0], [False, True, True, True], bins=2), 3)
    0.1
    """
    return _ultta._adaptive_ece(_real("prob", prob), _truth("right", right), bins)


def reliability(
    prob: ArrayLike, right: ArrayLike, bins: int = BINS, *, closed: Closed = "left"
) -> dict[str, NDArray[Any]]:
    """A reliability diagram: per bin the answers ``n``, their mean ``prob`` and their ``accuracy`` (0 where empty).

    >>> reliability([0.2, 0.9, 0.8], [False, True, True], bins=2)["n"].tolist()
    [1, 2]
    """
    found = _bins(prob, right, bins, closed)["bins"]
    n = np.array([cell["n"] for cell in found], dtype=np.int64)
    some = np.maximum(n, 1)
    return {
        "n": n,
        "prob": np.array([cell["prob"] for cell in found]) / some,
        "accuracy": np.array([cell["right"] for cell in found]) / some,
    }


def aurc(prob: ArrayLike, right: ArrayLike) -> float:
    """Area under the risk–coverage curve: the mean over k of the share of wrong answers among the k surest.

    >>> aurc([0.9, 0.8], [True, False])
    0.25
    """
    return _ultta._aurc(_real("prob", prob), _truth("right", right))


def detection(known: ArrayLike, strangers: ArrayLike) -> dict[str, float]:
    """How well a score, higher for known samples, tells them from strangers: auroc, aupr, fpr95.

    >>> detection([0.9, 0.8], [0.1, 0.2])["auroc"]
    1.0
    """
    found: dict[str, float] = json.loads(_ultta._detection(_score("known", known), _score("strangers", strangers)))
    return found


def _bins(prob: ArrayLike, right: ArrayLike, bins: int, closed: Closed) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        _ultta._reliability(_real("prob", prob), _truth("right", right), bins, closed)
    )
    return found


def _vector(what: str, values: ArrayLike) -> NDArray[Any]:
    array = np.asarray(_unmasked(what, values))
    if array.ndim != 1:
        raise ValueError(f"{what}: expected one value per answer, got {array.ndim} dimensions")
    return array


def _unmasked(what: str, values: ArrayLike) -> ArrayLike:
    """Refuses values that are said to be missing."""
    if np.ma.is_masked(values):
        raise ValueError(f"{what}: expected no masked values; leave those rows out first")
    return values


def _whole(what: str, values: ArrayLike) -> NDArray[np.int64]:
    array = _vector(what, values)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{what}: expected class indices, got {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)


def _real(what: str, values: ArrayLike) -> NDArray[np.float64]:
    return np.ascontiguousarray(_vector(what, values), dtype=np.float64)


def _score(what: str, values: ArrayLike) -> NDArray[np.float32]:
    return np.ascontiguousarray(_vector(what, values), dtype=np.float32)


def _truth(what: str, values: ArrayLike) -> NDArray[np.bool_]:
    return np.ascontiguousarray(_vector(what, values), dtype=np.bool_)
