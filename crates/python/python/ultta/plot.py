"""Pictures of calibration and of streams, by matplotlib. Every function draws into ``ax`` and returns it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import metrics
from ._extras import missing

__all__ = ["explanation", "reliability", "stream"]


def reliability(prob: ArrayLike, right: ArrayLike, *, bins: int = 15, label: str | None = None, ax: Any = None) -> Any:
    """Reliability diagram: accuracy over confidence, bin by bin; the diagonal is perfect calibration.

    Bins of fewer than 20 answers are pale. A label has the same colour in every plot. ``prob`` is the probability of each answer, ``right`` whether it was right.

    >>> ax = reliability([0.9, 0.6, 0.8, 0.7], [True, False, True, True], label="adapted")
    >>> ax.get_xlabel()
    'probability'
    """
    table = metrics.reliability(prob, right, bins)
    ax = _axes(ax)
    sure, few = table["n"] >= FEW, (table["n"] > 0) & (table["n"] < FEW)
    if not sure.any():
        sure, few = few, sure
    ece = metrics.ece(prob, right, bins)
    name = f"ECE {100 * ece:.1f} %" if label is None else f"{label}: ECE {100 * ece:.1f} %"
    ax.plot([0, 1], [0, 1], color="0.7", linestyle="--", linewidth=1)
    look = _look(label)
    ax.plot(table["prob"][sure], table["accuracy"][sure], marker="o", label=name, **look)
    ax.plot(table["prob"][few], table["accuracy"][few], "o", alpha=0.25, color=look["color"])
    ax.set(xlabel="probability", ylabel="share right", xlim=(0, 1), ylim=(0, 1))
    ax.legend(loc="upper left")
    return ax


def stream(right: Mapping[str, ArrayLike], *, window: int = 200, ax: Any = None) -> Any:
    """Accuracy along a stream: the running mean over the last ``window`` samples, one curve per name.

    A curve begins where its window is half full. A name has the same colour in every plot.

    >>> ax = stream({"zero-shot": [1, 0, 1, 1], "adapted": [1, 1, 1, 1]}, window=2)
    >>> len(ax.get_lines())
    2
    """
    if window < 1:
        raise ValueError(f"window: expected at least 1, got {window}")
    ax = _axes(ax)
    for name, values in right.items():
        hits = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
        ends = np.arange(min(max((window + 1) // 2, 1), max(len(hits) - 1, 1)), len(hits))
        starts = np.maximum(ends - window, 0)
        share = (hits[ends] - hits[starts]) / np.maximum(ends - starts, 1)
        ax.plot(ends, share, label=name, **_look(name))
    ax.set(xlabel="sample", ylabel=f"share right of the last {window}")
    ax.legend(loc="best")
    return ax


def explanation(explained: Mapping[str, Any], *, ax: Any = None) -> Any:
    """Why a row is answered as it is: what each lever says for a class, beside the best class of the frozen model.

    ``explained`` comes from ``session.explain``. One line per class, the answer on top; a bar to the right speaks for
    the class, a bar to the left against it, in nats relative to the frozen model's own answer.

    >>> import ultta
    >>> session = ultta.Session(ultta.Head.from_text_features(np.eye(2), ["cat", "dog"]))
    >>> ax = explanation(session.explain([0.6, 0.8]))
    >>> [text.get_text().split()[0] for text in ax.get_yticklabels()]
    ['dog', 'cat']
    """
    ax = _axes(ax, size=(8.5, 4.8))
    classes = explained["classes"]
    base = next(entry for entry in classes if entry["class"] == explained["zero_shot_class"])["nats"]
    right = np.zeros(len(classes))
    left = np.zeros(len(classes))
    places = np.arange(len(classes))
    for place, lever in enumerate(explained["levers"]):
        nats = np.array([entry["nats"][place] - base[place] for entry in classes])
        start = np.where(nats >= 0, right, left)
        colour, meaning = LEVERS.get(lever, (COLOURS[5], lever))
        ax.barh(places, nats, left=start, color=colour, label=meaning, height=0.6)
        right += np.maximum(nats, 0)
        left += np.minimum(nats, 0)
    ax.plot(right + left, places, "D", color="black", markersize=6, label="their sum: the highest wins (+1 nat: 2.7 times as likely)", linestyle="none")
    ax.axvline(0, color="0.7", linewidth=1)
    ax.set_yticks(places, [f"{entry['class']}  {100 * entry['prob']:.0f} %" for entry in classes])
    ax.invert_yaxis()
    flipped = explained["flipped_by"]
    frozen = f"{explained['zero_shot_class']} ({100 * explained['zero_shot_prob']:.0f} %)"
    title = f"{explained['class']} ({100 * explained['prob']:.0f} %)"
    title += f"\nzero-shot says {frozen}; flipped by the {flipped}" if flipped else ", as zero-shot says"
    ax.set_title(title, fontsize="medium")
    ax.set_xlabel(f"← against it    nats beside {explained['zero_shot_class']}    for the class →")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False, fontsize="small")
    return ax


# Bins of fewer answers say little.
FEW = 20

# Colours of the levers of an explanation, and what they mean.
LEVERS = {
    "text": ("#6b7280", "text: the frozen model"),
    "labels": ("#00805e", "labels given for rows like it"),
    "image": ("#0072b2", "image: what this stream's pictures taught"),
    "prior": ("#d55e00", "prior: how often the class occurs here"),
    "scene": ("#b27700", "scene: the frames before it"),
    "method": ("#a8487f", "the method"),
}

# After Okabe and Ito: told apart by colour-blind readers. Grey is for the frozen model.
FROZEN = {"zero-shot", "zero_shot", "frozen"}
COLOURS = ("#0072b2", "#d55e00", "#00805e", "#a8487f", "#b27700", "#1b8fb8")
ADAPTED = {"adapted", "ul-tta", "ul_tta"}


def _look(name: str | None) -> dict[str, Any]:
    """The colour of a name: grey for the frozen model, blue for the adapted one, for others the next that is free."""
    if name in FROZEN:
        return {"color": "#6b7280", "linestyle": "--"}
    if name is None or name in ADAPTED:
        return {"color": COLOURS[0]}
    known = _known.setdefault(name, 1 + len(_known) % (len(COLOURS) - 1))
    return {"color": COLOURS[known]}


_known: dict[str, int] = {}


def _axes(ax: Any, size: tuple[float, float] | None = None) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot
    except ImportError:
        raise missing("plot", "matplotlib", "plot") from None
    # Long class names stay inside the picture.
    return matplotlib.pyplot.subplots(layout="constrained", figsize=size)[1]
