"""Data frames: pandas if it is there, else polars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._extras import missing

if TYPE_CHECKING:
    from ._ultta import Step


def frame(columns: dict[str, Any]) -> Any:
    """A data frame of named columns.

    >>> frame({"a": [1, 2]}).shape
    (2, 1)
    """
    try:
        import pandas

        return pandas.DataFrame(columns)
    except ImportError:
        pass
    try:
        import polars
    except ImportError:
        raise missing("frame", "pandas or polars", "pandas") from None
    return polars.DataFrame(columns)


def step_frame(step: Step) -> Any:
    """One line per row of a step."""
    return frame(
        {
            "id": step.ids,
            "label": step.labels,
            "class": step.names,
            "prob": step.prob,
            "prob_pred": step.prob_pred,
            "zero_shot_label": step.zero_shot.labels,
            "zero_shot_prob": step.zero_shot.prob,
            "admitted": step.admitted,
            "unknown": step.unknown,
            "garbage": step.garbage,
        }
    )
