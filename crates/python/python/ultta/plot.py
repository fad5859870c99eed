"""Pictures of calibration and of streams, by matplotlib. Every function draws into ``ax`` and returns it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import metrics

__all__ = ["reliability", "stream"]


def reliability(prob: ArrayLike, right: ArrayLike, *, bins: int = 15, label: str | None = None, ax: Any = None) -> Any:
    """Reliability diagram: accuracy over confidence, bin by bin; the diagonal is perfect calibration.

    ``prob`` is the probability of each answer, ``right`` whether it was right.

    >>> ax = reliability([0.9, 0.6, 0.8, 0.7], [True, False, True, True], label="adapted")
    >>> ax.get_xlabel()
    'probability'
    """
    table = metrics.reliability(prob, right, bins)
    ax = _axes(ax)
    filled = table["n"] > 0
    ece = metrics.ece(prob, right, bins)
    name = f"ECE {100 * ece:.1f} %" if label is None else f"{label}: ECE {100 * ece:.1f} %"
    ax.plot([0, 1], [0, 1], color="0.7", linestyle="--", linewidth=1)
    ax.plot(table["prob"][filled], table["accuracy"][filled], marker="o", label=name)
    ax.set(xlabel="probability", ylabel="share right", xlim=(0, 1), ylim=(0, 1))
    ax.legend(loc="upper left")
    return ax


def stream(right: Mapping[str, ArrayLike], *, window: int = 200, ax: Any = None) -> Any:
    """Accuracy along a stream: the running mean over the last ``window`` samples, one curve per name.

    >>> ax = stream({"zero-shot": [1, 0, 1, 1], "adapted": [1, 1, 1, 1]}, window=2)
    >>> len(ax.get_lines())
    2
    """
    if window < 1:
        raise ValueError(f"window: expected at least 1, got {window}")
    ax = _axes(ax)
    for name, values in right.items():
        hits = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
        ends = np.arange(1, len(hits))
        starts = np.maximum(ends - window, 0)
        ax.plot(ends, (hits[ends] - hits[starts]) / np.maximum(ends - starts, 1), label=name)
    ax.set(xlabel="sample", ylabel=f"share right of the last {window}")
    ax.legend(loc="best")
    return ax


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot
    except ImportError:
        raise RuntimeError("plot: it needs matplotlib, which is not installed (pip install matplotlib)") from None
    return matplotlib.pyplot.subplots()[1]
