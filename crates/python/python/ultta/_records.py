"""The dictionaries that the compiled part returns."""

from __future__ import annotations

from typing import Literal, TypedDict


class Card(TypedDict):
    """What there is to know about a method."""

    name: str
    summary: str
    paper: str
    readout: Literal["before_observe", "after_observe"]
    rows: Literal["independent", "joint"]
    needs_horizon: bool
    needs_labels: bool
    needs_views: bool
    #: Whether its batch is the whole stream.
    sees_stream: bool
    memory_grows_with: str
    #: Whether its paper chose settings for each dataset.
    tuned: bool


class ZeroShotRecord(TypedDict):
    """The frozen model's answer for a row."""

    label: int
    prob: float


#: A row of a step, in the words of the command line.
Record = TypedDict(
    "Record",
    {
        "id": int,
        "label": int,
        "class": str,
        "prob": float,
        "prob_pred": float,
        "zero_shot": ZeroShotRecord,
        "admitted": bool,
        "unknown": bool,
        "garbage": bool,
    },
)
